// What the suite wants of the JavaScript client. Verbs and answers are described in suite/clients.py.

import { readFileSync } from "node:fs";
import { jetstream } from "@nats-io/jetstream";
import { Kvm } from "@nats-io/kv";
import { connect, headers } from "@nats-io/transport-node";

const FINAL = ["done", "failed", "cancelled"];

const say = (value) => console.log(JSON.stringify(value));

function message(found) {
  if (!found) return say(null);
  const own = found.header.keys().filter((name) => !name.startsWith("Nats-"));
  say({
    subject: found.subject,
    seq: found.seq,
    headers: Object.fromEntries(own.map((name) => [name, found.header.get(name)])),
    body: Buffer.from(found.data).toString("base64"),
  });
}

const verbs = {
  async publish(js, subject, ...given) {
    const options = given.length ? { headers: headers() } : {};
    for (const header of given) {
      const [name, ...rest] = header.split("=");
      options.headers.set(name, rest.join("="));
    }
    const { stream, seq, duplicate } = await js.publish(subject, readFileSync(0), options);
    say({ stream, seq, duplicate });
  },

  async record(js, bucket, key) {
    const entry = await (await new Kvm(js).open(bucket)).get(key);
    say(entry?.operation === "PUT" ? entry.json() : null);
  },

  async follow(js, bucket, key) {
    const watch = await (await new Kvm(js).open(bucket)).watch({ key });
    say("ready");
    for await (const entry of watch) {
      if (entry.operation !== "PUT") continue;
      say(entry.json());
      if (FINAL.includes(entry.json().phase)) return;
    }
  },

  async last(js, stream, subject) {
    message(await (await js.jetstreamManager()).direct.getMessage(stream, { last_by_subj: subject }));
  },

  async at(js, stream, seq) {
    message(await (await js.jetstreamManager()).direct.getMessage(stream, { seq: Number(seq) }));
  },

  async subjects(js, stream, filter) {
    const info = await (await js.jetstreamManager()).streams.info(stream, { subjects_filter: filter });
    say(info.state.subjects ?? {});
  },
};

const [verb, ...given] = process.argv.slice(2);
const nc = await connect({ servers: process.env.NATS_URL });
await verbs[verb](jetstream(nc), ...given);
await nc.close();
