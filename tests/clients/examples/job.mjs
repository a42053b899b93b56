// Publishes a job, waits for its outcome and prints the answer.
// Needs: npm install @nats-io/transport-node @nats-io/jetstream @nats-io/kv

import { randomUUID } from "node:crypto";
import { jetstream } from "@nats-io/jetstream";
import { Kvm } from "@nats-io/kv";
import { connect } from "@nats-io/transport-node";

const TENANT = "acme";

const nc = await connect({ servers: process.env.NATS_URL ?? "nats://127.0.0.1:4222" });
const js = jetstream(nc);
const job = randomUUID();
const body = {
  id: job,
  origin: "user_action",
  kind: "short_summary",
  model: "claude-haiku-4-5-20251001",
  prompt: "Say in one sentence what a message queue is for.",
};
// When this returns, the job is stored and cannot get lost any more.
await js.publish(`fl.submit.${TENANT}`, JSON.stringify(body));

const status = await new Kvm(js).open("fl_status");
const watch = await status.watch({ key: `${TENANT}.${job}` });
const limit = setTimeout(() => watch.stop(new Error("no outcome within 120 s")), 120_000);
let record;
for await (const entry of watch) {
  record = entry.operation === "PUT" ? entry.json() : undefined;
  if (["done", "failed", "cancelled"].includes(record?.phase)) break;
}
clearTimeout(limit);
await nc.close();
if (record.phase !== "done") throw new Error(`${TENANT}/${job} ${record.phase}: ${JSON.stringify(record.failure)}`);
const texts = record.result.content.filter((block) => block.type === "text").map((block) => block.text);
console.log(`${TENANT}/${job}:`, texts.join(""));
