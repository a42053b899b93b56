// The fleet as it is told once a second: one stream, begun again whenever it breaks.

import { Fault, request } from "./api.js";

/** Without news for so long, what is shown counts as old; after more, the stream is begun anew. Milliseconds. */
const OLD = 4_000;
const DEAD = 15_000;
const PAUSES = [500, 1_000, 2_000, 5_000];
/** Five minutes, a sample a second. */
const SAMPLES = 300;

export class Feed extends EventTarget {
  /** The latest record, its tenants as a Map by name. */
  fleet = null;
  /** Why it is not newer, in words; null while all is well. */
  trouble = null;
  history = [];
  #heard = 0;
  #told = 0;
  #stop = null;

  start() {
    this.stop();
    this.#stop = new AbortController();
    this.#run(this.#stop.signal);
    this.clock = setInterval(() => this.dispatchEvent(new Event("age")), 1_000);
  }

  stop() {
    this.#stop?.abort();
    clearInterval(this.clock);
    Object.assign(this, { fleet: null, trouble: null, history: [] });
    this.#heard = 0;
  }

  /** Milliseconds since the leader last told how things are. */
  age = () => (this.#heard ? performance.now() - this.#heard : Infinity);

  isOld = () => this.age() > OLD;

  /** The leader's clock, which times until something are reckoned by. Unix milliseconds. */
  now = () => (this.fleet ? this.fleet.at_ms + this.age() : Date.now());

  async #run(signal) {
    for (let failures = 0; !signal.aborted; failures += 1) {
      const begun = this.#heard;
      try {
        await this.#follow(signal);
        this.trouble = "The connection was closed.";
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof Fault && [401, 403].includes(error.status)) return;
        this.trouble = error instanceof Fault ? error.message : "The connection broke off.";
      }
      if (this.#heard !== begun) failures = 0;
      this.dispatchEvent(new Event("age"));
      await new Promise((resume) => setTimeout(resume, PAUSES[Math.min(failures, PAUSES.length - 1)]));
    }
  }

  async #follow(signal) {
    const one = new AbortController();
    const stop = () => one.abort();
    signal.addEventListener("abort", stop);
    this.#told = performance.now();
    const watch = setInterval(() => performance.now() - this.#told > DEAD && stop(), 1_000);
    try {
      const response = await request("GET", "fleet/events", { signal: one.signal });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        for (const event of events) this.#take(event);
      }
    } finally {
      clearInterval(watch);
      signal.removeEventListener("abort", stop);
      stop();
    }
  }

  #take(text) {
    const lines = text.split("\n");
    const field = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
    const [name, data] = [field("event"), field("data")];
    if (!name || !data) return;
    this.#told = performance.now();
    const record = JSON.parse(data);
    if (name === "trouble") {
      this.trouble = `The leading scheduler cannot be asked: ${record.message}.`;
      this.dispatchEvent(new Event("age"));
      return;
    }
    const tenants = name === "fleet" ? new Map() : this.fleet.tenants;
    for (const tenant of record.gone ?? []) tenants.delete(tenant);
    for (const tenant of record.tenants) tenants.set(tenant.tenant, tenant);
    this.fleet = { ...record, tenants };
    this.trouble = null;
    this.#heard = performance.now();
    this.history.push({ at: record.at_ms, queued: record.lanes.map((lane) => lane.queued), oldest: record.lanes.map((lane) => lane.oldest_ms) });
    if (this.history.length > SAMPLES) this.history.shift();
    this.dispatchEvent(new Event("fleet"));
  }
}
