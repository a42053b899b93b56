// One job: where it is, how it got there, and what it waits for.

import { ask, path } from "./api.js";
import { badge, facts, h, morph, replace, trouble } from "./dom.js";
import { bodyView } from "./diff.js";
import { count, dollars, instant, many, span, words } from "./format.js";

const EVERY = 1_000;
const OVER = ["done", "failed", "cancelled"];
const TONES = { done: "good", failed: "bad", cancelled: "", retrying: "warn", deferred: "warn", needs_decision: "warn" };
/** What a phase means, for who meets it the first time. */
const PHASES = {
  accepted: "taken in, and not in the queue itself yet",
  queued: "waiting for its turn",
  generating: "the model is at work on it",
  refining: "there is an answer, which is being checked or continued",
  retrying: "failed in passing, and tried again later",
  deferred: "put off, because the upstream has been overloaded for too long",
  needs_decision: "its owner is asked whether it may wait until the next day",
  done: "has its result",
  failed: "ended as a dead letter",
  cancelled: "called off by its owner",
};
/** How calls end that brought a job on. */
const GOOD = ["done", "pause_turn", "compaction"];
/** Jobs of one id that are listed. */
const LISTED_MAX = 100;

export function jobsView(context) {
  const input = h("input", { type: "search", id: "job", "aria-label": "Job", placeholder: "job, or tenant/job", spellcheck: "false", autocapitalize: "off", required: true });
  const form = h("form", { class: "tools", role: "search", on: { submit: (event) => { event.preventDefault(); find(input.value.trim()); } } },
    input, h("button", { type: "submit", class: "primary" }, "Find"));
  const found = h("div", { "aria-live": "polite" });
  const element = h("div", { class: "view jobs" }, h("h1", { class: "unseen" }, "Jobs"), form, found);
  let opened = null;

  async function find(text) {
    const slash = text.indexOf("/");
    if (slash > 0) return context.go("jobs", text.slice(0, slash), text.slice(slash + 1));
    try {
      const { count: number, jobs } = await ask("GET", path(["jobs"], { id: text }));
      if (number === 1) return context.go("jobs", jobs[0].tenant, jobs[0].job);
      leave();
      replace(found, number === 0 ? nothing(text) : several(text, number, jobs));
    } catch (fault) {
      leave();
      replace(found, trouble(fault));
    }
  }

  function leave() {
    opened?.close();
    opened = null;
  }

  function show([tenant, job]) {
    leave();
    if (!job) {
      replace(found, h("p", { class: "dim card" }, "Find a job by its id. Records of ended jobs are kept for a while only; letters of failed ones for longer."));
      requestAnimationFrame(() => input.focus());
      return;
    }
    input.value = `${tenant}/${job}`;
    opened = jobPage(context, tenant, job);
    replace(found, opened.element);
  }

  return { element, show, close: leave };
}

const nothing = (text) => h("p", { class: "note" }, `No tenant has a job ${text}. Records of ended jobs are kept for a while only.`);

function several(text, number, jobs) {
  return h("div", { class: "card" },
    h("p", {}, `${count(number)} tenants have a job ${text}.`),
    h("ul", { class: "links" }, jobs.slice(0, LISTED_MAX).map(({ tenant, job }) => h("li", {}, h("a", { href: linkTo(tenant, job) }, `${tenant}/${job}`)))));
}

export const linkTo = (tenant, job) => `#/jobs/${encodeURIComponent(tenant)}/${encodeURIComponent(job)}`;

function jobPage(context, tenant, job) {
  const element = h("article", { class: "job" }, h("p", { class: "dim" }, "Looking …"));
  const raw = h("details", {}, h("summary", {}, "The record, as it is stored"));
  let isOpen = true;
  let timer = null;
  let [record, why, fault] = [null, null, null];

  async function load() {
    try {
      const query = { tenant };
      record = await ask("GET", path(["jobs", job], query));
      why = OVER.includes(record.phase) ? null : await ask("GET", path(["jobs", job, "why"], query)).catch(() => null);
      fault = null;
    } catch (error) {
      fault = error;
    }
    if (!isOpen) return;
    draw();
    const isOver = fault?.status === 404 || (record && OVER.includes(record.phase) && !fault);
    if (!isOver) timer = setTimeout(load, EVERY);
  }

  const live = h("div");
  const rawBody = h("div");
  raw.append(rawBody);

  function draw() {
    if (!record) return morph(element, trouble(fault));
    if (live.parentNode !== element) replace(element, live, raw);
    morph(live, fault ? trouble(fault) : null, page(context, record, why));
    if (!raw.open) replace(rawBody, bodyView(JSON.stringify(record), "Record"));
  }

  load();
  return { element, close: () => { isOpen = false; clearTimeout(timer); } };
}

function page(context, record, why) {
  const { feed } = context;
  const link = (other) => h("a", { href: linkTo(record.tenant, other) }, other);
  const usage = record.usage;
  const failure = record.failure;
  return [
    h("div", { class: "card" },
      h("h2", { class: "name-wrap" }, h("a", { href: `#/tenants/${encodeURIComponent(record.tenant)}` }, record.tenant), " / ", record.job),
      h("p", {}, badge(words(record.phase), TONES[record.phase] ?? "busy"), " ", h("span", { class: "dim" }, PHASES[record.phase] ?? "")),
      why ? h("p", { class: "why" }, h("strong", {}, "Why it waits: "), why.text, ".",
        why.until_ms ? ` Until ${instant(why.until_ms)}, in ${span(why.until_ms - feed.now())}.` : "",
        why.place ? ` ${placed(why, feed.now())}` : "") : null,
      failure ? h("div", { class: "note bad" }, h("strong", {}, words(failure.reason)), ": ", failure.message, failure.fix ? h("p", {}, `What to do: ${failure.fix}`) : null) : null,
      record.retry_reason && !OVER.includes(record.phase) ? h("p", {}, `Tried again because: ${record.retry_reason}.`) : null),
    h("section", { "aria-labelledby": "course" }, h("h2", { id: "course" }, "Its course"), course(record, feed.now())),
    h("section", { "aria-labelledby": "facts" }, h("h2", { id: "facts" }, "Facts"),
      h("div", { class: "card" }, facts([
        ["Kind", record.kind],
        ["Priority", record.priority],
        ["Model asked for", record.model],
        ["Model that answered", record.model_used],
        ["Lighter model", record.fallback && `${record.fallback.model} (${words(record.fallback.why)})`],
        ["Attempts", count(record.attempts)],
        ["Credits handed out", count(record.deliveries)],
        ["Ambiguous calls", record.ambiguous || null],
        ["Tokens", usage && `${count(usage.input_tokens)} in, ${count(usage.output_tokens)} out`],
        ["Tokens so far", record.tokens_so_far],
        ["Cost", record.cost_usd !== undefined && record.cost_usd !== null ? dollars(record.cost_usd) : null],
        ["Trace", record.trace_id && trace(context, record.trace_id)],
        ["Shares the outcome of", record.same_as && link(record.same_as)],
        ["Comes from", record.parent && [link(record.parent.job), ` (${record.parent.how})`]],
        ["Sent again from letter", record.redrive_of && h("a", { href: `#/letters/${record.redrive_of}` }, `#${record.redrive_of}`)],
        ["Jobs that come from it", record.children?.length ? record.children.slice(0, 20).map((child) => [link(child.job), " "]) : null],
      ]))),
  ];
}

function placed({ reason, place }, now) {
  const ahead = reason === "behind_own" ? "It is" : place.ahead ? `${many(place.ahead, "job")} of its own tenant before it,` : "First of its tenant,";
  return `${ahead} ${place.priority} on ${place.pool}${place.eta_ms ? `; its turn should come in ${span(place.eta_ms - now)}` : ""}.`;
}

/** A trace by its id: a link where the console is told where traces are. */
export function trace(context, id) {
  const pattern = context.who?.trace_url;
  const text = h("code", { class: "wrap" }, id);
  return pattern ? h("a", { href: pattern.replaceAll("{trace}", encodeURIComponent(id)), target: "_blank", rel: "noreferrer" }, text) : text;
}

/** What happened when: [{from, to, sort, text}], without gaps. `sort`: wait, call-good, call-bad, between. */
export function stretches(record, now) {
  const end = record.finished_ms ?? now;
  const found = [];
  let at = record.accepted_ms;
  const wait = (to, text) => { if (to > at) found.push({ from: at, to, sort: found.length ? "between" : "wait", text }); };
  for (const one of record.tries ?? []) {
    const from = Math.max(at, one.at_ms - one.latency_ms);
    wait(from, found.length ? "to be tried again" : "for its turn");
    const isGood = GOOD.includes(one.outcome);
    found.push({ from, to: Math.max(from, one.at_ms), sort: isGood ? "call-good" : "call-bad", text: `${one.model ?? "a model"}: ${words(one.outcome)}${one.status ? ` (${one.status})` : ""}`, one });
    at = Math.max(from, one.at_ms);
  }
  if (record.finished_ms === undefined || record.finished_ms === null) {
    const isCalled = ["generating", "refining"].includes(record.phase);
    if (isCalled && record.started_ms > at) wait(record.started_ms, "for its turn");
    if (isCalled) at = Math.max(at, record.started_ms ?? at);
    if (end > at) found.push({ from: at, to: end, sort: isCalled ? "call-now" : found.length ? "between" : "wait", text: isCalled ? "the model is at work" : `so far, ${words(record.phase)}` });
  } else if (!found.length) {
    wait(end, record.started_ms ? "was called and ended" : "without a call");
  }
  return found;
}

function course(record, now) {
  const parts = stretches(record, now);
  const from = record.accepted_ms;
  const whole = Math.max(1, (parts.at(-1)?.to ?? now) - from);
  const event = (at, what, detail, tone) => h("li", {}, h("span", { class: "num dim" }, at === from ? instant(at) : `+${span(at - from)}`), h("span", {}, h("strong", { class: tone ?? "" }, what), " ", detail));
  return h("div", { class: "card" },
    h("div", { class: "course", role: "img", "aria-label": parts.map((part) => `${span(part.to - part.from)}: ${part.text}`).join("; ") },
      parts.map((part) => h("i", { class: part.sort, title: `${span(part.to - part.from)}: ${part.text}`, vars: { "--from": ((part.from - from) / whole).toFixed(5), "--part": ((part.to - part.from) / whole).toFixed(5) } }))),
    h("ol", { class: "events" },
      event(from, "accepted", ""),
      parts.map((part) => event(part.from, part.sort.startsWith("call") ? "called" : "waited", `${span(part.to - part.from)} ${part.sort.startsWith("call") ? "· " : ""}${part.text}${part.one?.request_id ? ` · ${part.one.request_id}` : ""}`)),
      record.retry_at_ms && !OVER.includes(record.phase) ? event(record.retry_at_ms, "runs again", `at ${instant(record.retry_at_ms)}`) : null,
      record.finished_ms ? event(record.finished_ms, words(record.phase), record.failure ? words(record.failure.reason) : "", TONES[record.phase]) : null));
}
