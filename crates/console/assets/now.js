// What is going on now: what is in line, how far the limits are used, what is refused, who works.

import { ask } from "./api.js";
import { badge, facts, h, meter, morph, svg } from "./dom.js";
import { about, count, many, percent, short, span, tone, words } from "./format.js";

const LIMITS = ["requests", "input tokens", "output tokens"];
const SILENT = 3_500;
/** Workers told one by one. */
const WORKERS_SHOWN = 16;
const AUTOSCALE_EVERY = 5_000;

export function nowView({ feed }) {
  const element = h("div", { class: "view now" });
  let wanted = null;
  const askWanted = () => ask("GET", "autoscale").then((signal) => { wanted = signal; }, () => { wanted = null; });
  askWanted();
  const timer = setInterval(askWanted, AUTOSCALE_EVERY);
  const update = () => morph(element, drawn(feed, wanted));
  morph(element, h("p", { class: "dim" }, "Asking the leading scheduler …"));
  return { element, update, close: () => clearInterval(timer) };
}

function drawn(feed, wanted) {
  const { fleet } = feed;
  return [
    h("h1", { class: "unseen" }, "Now"),
    matters(fleet),
    h("section", { "aria-labelledby": "in-line" },
      h("h2", { id: "in-line" }, "In line"),
      h("div", { class: "lanes" }, fleet.lanes.map((lane, at) => laneCard(feed, lane, at)))),
    h("section", { "aria-labelledby": "limits" },
      h("h2", { id: "limits" }, "Limits, used and a minute's worth"),
      pools(fleet)),
    h("div", { class: "pair" },
      h("section", { "aria-labelledby": "workers" }, h("h2", { id: "workers" }, "Workers"), workers(fleet)),
      h("section", { "aria-labelledby": "leader" }, h("h2", { id: "leader" }, "Leader"), leader(fleet, wanted))),
  ];
}

/** What somebody should know before anything else; nothing when all is well. */
function matters(fleet) {
  const left = (until) => span(until - fleet.at_ms);
  const found = [];
  const silent = fleet.workers.filter((worker) => worker.silent_ms > SILENT);
  if (!fleet.workers.length) found.push(["bad", "No workers.", "Nothing runs until one is started."]);
  if (silent.length) found.push(["warn", `${many(silent.length, "worker")} silent.`, "Their jobs run elsewhere when their credits end."]);
  for (const pool of fleet.pools) {
    if (pool.breaker === "open") found.push(["bad", `Breaker of ${pool.pool} open.`, `Most calls to it fail. One is let through in ${left(pool.open_until_ms)}; its jobs wait.`]);
    if (pool.breaker === "half_open") found.push(["warn", `Breaker of ${pool.pool} probing.`, "One call is out to see whether it answers again."]);
    if (pool.paused_until_ms > fleet.at_ms) found.push(["warn", `${pool.pool} paused.`, `The upstream asked it to wait ${left(pool.paused_until_ms)}.`]);
  }
  for (const gate of fleet.gates ?? []) {
    if (gate.until_ms > fleet.at_ms) found.push(["bad", `${refused(gate)} refused.`, `Tried again in ${left(gate.until_ms)}.`]);
  }
  if (fleet.calls_max !== undefined) found.push(["warn", `At most ${many(fleet.calls_max, "call")} at once.`, "The upstream limits them for now."]);
  const demoted = [...fleet.tenants.values()].filter((tenant) => tenant.demoted);
  if (demoted.length) found.push(["", `${many(demoted.length, "tenant")} demoted.`, h("a", { href: "#/tenants/?demoted" }, "Which")]);
  return h("ul", { class: "matters", "aria-label": "What needs attention" }, found.length
    ? found.map(([tone, what, more]) => h("li", { class: tone }, h("strong", {}, what), " ", more))
    : h("li", { class: "good" }, "No pauses, no open breakers, no refusals."));
}

function refused(gate) {
  return {
    account: "The whole account (key, billing or spend limit)",
    pool: `Pool ${gate.pool}`,
    model: `Model ${gate.model}`,
    kind: `${gate.kind} of ${gate.tenant} on ${gate.model}`,
  }[gate.scope];
}

function laneCard(feed, lane, at) {
  const { fleet } = feed;
  const granted = fleet.pools.reduce((sum, pool) => sum + pool.granted[at], 0);
  const part = fleet.granted > 0 ? granted / fleet.granted : 0;
  return h("div", { class: `card lane ${lane.priority}` },
    h("h3", {}, lane.priority),
    h("div", { class: "figures" },
      h("p", {}, h("b", {}, short(lane.queued)), h("small", {}, "waiting")),
      h("p", {}, h("b", {}, lane.queued ? span(lane.oldest_ms) : "–"), h("small", {}, "oldest")),
      h("p", {}, h("b", {}, percent(part)), h("small", {}, "of cost granted"))),
    spark(feed.history.map((sample) => sample.queued[at]), `${lane.priority} jobs waiting, last five minutes`));
}

/** The course of a number; the newest at the right. */
function spark(values, label) {
  const width = 300;
  const most = Math.max(1, ...values);
  const at = (value, index) => `${width - (values.length - 1 - index)},${(31 - (value / most) * 29).toFixed(1)}`;
  const line = values.map(at).join(" ");
  const first = width - (values.length - 1);
  return svg("svg", { class: "spark", viewBox: `0 0 ${width} 32`, preserveAspectRatio: "none", role: "img", "aria-label": `${label}: at most ${count(most)}` },
    svg("line", { x1: 0, x2: width, y1: 31.5, y2: 31.5 }),
    values.length > 1 ? svg("polygon", { points: `${first},32 ${line} ${width},32` }) : null,
    values.length > 1 ? svg("polyline", { points: line }) : null);
}

const used = (pool) => LIMITS.map((_, at) => 1 - pool.left[at] / Math.max(1, pool.per_minute[at]));

function pools(fleet) {
  if (!fleet.pools.length) return h("p", { class: "card dim" }, "No pool is known yet: the first job names one.");
  const worst = (pool) => Math.max(...used(pool));
  const all = [...fleet.pools].sort((one, other) => worst(other) - worst(one) || one.pool.localeCompare(other.pool));
  return h("div", { class: "card pools" }, all.map((pool) => h("div", { class: "pool", "data-key": pool.pool },
    h("div", { class: "pool-name" }, h("strong", {}, pool.pool), " ", poolState(pool, fleet.at_ms)),
    used(pool).map((part, at) => limit(pool, at, part)))));
}

function limit(pool, at, part) {
  const all = pool.per_minute[at];
  const taken = Math.max(0, all - pool.left[at]);
  const others = pool.missing[at] > 0 ? h("span", { class: "dim" }, ` others ${short(pool.missing[at])}`) : null;
  return h("div", { class: "limit" },
    h("span", { class: "limit-name dim" }, LIMITS[at]),
    meter(part, `${LIMITS[at]} of ${pool.pool}`, tone(part)),
    h("span", { class: "num" }, `${short(taken)} / ${short(all)}`, others));
}

function poolState(pool, now) {
  if (pool.breaker === "open") return badge(`breaker open ${about(pool.open_until_ms - now)}`, "bad");
  if (pool.paused_until_ms > now) return badge(`paused ${about(pool.paused_until_ms - now)}`, "warn");
  if (pool.breaker === "half_open") return badge("probing", "warn");
  return h("span", { class: "dim" }, pool.heard ? "as told upstream" : "as configured");
}

function workers(fleet) {
  const slots = fleet.workers.reduce((sum, worker) => sum + worker.slots, 0);
  const live = fleet.workers.reduce((sum, worker) => sum + worker.live, 0);
  const rank = (worker) => (worker.silent_ms > SILENT ? 0 : worker.draining ? 1 : 2);
  const shown = [...fleet.workers].sort((one, other) => rank(one) - rank(other) || one.worker.localeCompare(other.worker)).slice(0, WORKERS_SHOWN);
  const more = fleet.workers.length - shown.length;
  return h("div", { class: "card" },
    h("div", { class: "limit" },
      h("span", { class: "limit-name dim" }, "slots taken"),
      meter(live / Math.max(1, slots), "slots taken", ""),
      h("span", { class: "num" }, `${count(live)} / ${count(slots)}`)),
    h("ul", { class: "workers" }, shown.map((worker) => h("li", { "data-key": worker.worker },
      h("code", {}, worker.worker),
      worker.silent_ms > SILENT ? badge(`silent ${about(worker.silent_ms)}`, "bad") : worker.draining ? badge("draining", "warn") : null,
      meter(worker.live / Math.max(1, worker.slots), `slots taken of ${worker.worker}`),
      h("span", { class: "num" }, `${worker.live} / ${worker.slots}`)))),
    more > 0 ? h("p", { class: "dim" }, `and ${many(more, "more worker")}`) : null);
}

function leader(fleet, wanted) {
  return h("div", { class: "card" }, facts([
    ["Term", count(fleet.term)],
    ["Version", fleet.version],
    ["In flight", many(fleet.in_flight, "job")],
    ["Tenants with work", count(fleet.active_tenants)],
    ["Granted in a minute", `${short(fleet.granted / 1_000)} cost units`],
    ["Slots worth having", wanted && `${count(wanted.wanted_slots)} (${words(wanted.reason)})`],
    ["Why so many", wanted?.text],
  ]));
}
