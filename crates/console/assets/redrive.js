// Sending dead letters again: say what to repair, see what changes and costs, agree, watch.

import { ask, path } from "./api.js";
import { badge, confirm, facts, field, h, meter, morph, replace, trouble } from "./dom.js";
import { diffView } from "./diff.js";
import { count, dollars, instant, many } from "./format.js";

const EVERY = 700;
/** A longer body is edited elsewhere. */
const EDITED_MAX = 200_000;
/** A run that does not get on for so long may have lost its driver. Milliseconds. */
const STANDS_AFTER = 6_000;
const STATES = { running: "busy", paused: "warn", cancelled: "", done: "good" };

export const runState = (run) => badge(run.state, STATES[run.state]);

/** What usually helps against a failure of this sort. */
function suggested({ reason, field: at }) {
  return {
    strip: reason === "undecodable",
    trim: reason === "oversize",
    patch: reason === "invalid_job" && at && !/[.[]/.test(at) ? JSON.stringify({ [at]: null }) : "",
  };
}

/**
 * The form over some letters. `letter`: {reason, field} of what they have in common, and of a single one also {seq, text,
 * isText}. `filter`: which letters the API is to send.
 */
export function repairForm(context, { letter, filter, title }) {
  const guess = suggested(letter);
  const check = (id, isOn) => h("input", { type: "checkbox", id, checked: isOn });
  const input = (props) => h("input", { spellcheck: "false", autocapitalize: "off", placeholder: "as it is", ...props });
  const strip = check("strip", guess.strip);
  const trim = check("trim", guess.trim);
  const model = input({ id: "model" });
  const room = input({ id: "room", type: "number", min: 1, step: 1 });
  const tenant = input({ id: "for-tenant" });
  const rate = input({ id: "rate", type: "number", min: 1, max: 10_000, step: 1, placeholder: "20" });
  const patch = h("textarea", { id: "patch", rows: 2, spellcheck: "false", placeholder: '{"field": null}', value: guess.patch });
  const canEdit = letter.text !== undefined && letter.text.length <= EDITED_MAX;
  const edit = canEdit ? h("textarea", { id: "edit", rows: 8, spellcheck: "false", value: letter.isText ? letter.text : "" }) : null;
  const shown = h("div", { class: "outcome", "aria-live": "polite" });
  const send = h("button", { type: "button", class: "primary", id: "send", disabled: !context.mayChange(), on: { click: offer } }, "Send again …");
  const form = h("form", { class: "card repair", on: { submit: (event) => { event.preventDefault(); preview(); }, input: () => replace(shown) } },
    h("h2", {}, title),
    h("div", { class: "checks" },
      h("label", { class: "check" }, strip, " leave out bytes that cannot be decoded"),
      h("label", { class: "check" }, trim, " cut the longest text until the job fits its model")),
    h("div", { class: "fields" },
      field("Model", model), field("Answer tokens at most", room), field("For tenant", tenant), field("Letters a second", rate)),
    field("Merge into the document", patch, "JSON; null takes a field away (RFC 7396)."),
    edit ? h("details", {}, h("summary", {}, "Write the body anew"), field("Body", edit, "Replaces the whole body if it is changed.")) : null,
    h("div", { class: "actions" },
      letter.seq ? h("button", { type: "submit", id: "preview" }, "Show what changes") : h("button", { type: "submit", id: "preview" }, "Try without sending"),
      send),
    context.mayChange() ? null : h("p", { class: "dim" }, "A viewer's token may look, not send."),
    shown);

  /** What is asked for. Throws what is wrong with it. */
  function repair() {
    const wanted = {};
    if (strip.checked) wanted.strip = true;
    if (trim.checked) wanted.trim = [""];
    if (model.value.trim()) wanted.model = model.value.trim();
    if (room.value) wanted.max_tokens = Number(room.value);
    if (tenant.value.trim()) wanted.tenant = tenant.value.trim();
    if (patch.value.trim()) {
      try {
        wanted.patch = JSON.parse(patch.value);
      } catch (error) {
        throw new Error(`What is to be merged is no JSON: ${error.message}`);
      }
    }
    if (edit && edit.value !== (letter.isText ? letter.text : "")) wanted.body = edit.value;
    return wanted;
  }

  const dryRun = () => ask("POST", "redrives", { body: { filter, repair: repair(), dry_run: true } });

  async function preview() {
    try {
      if (!letter.seq) return replace(shown, plan(await dryRun()));
      const told = await ask("POST", path(["dead-letters", letter.seq, "repair"]), { body: repair() });
      if (!told.sendable) return replace(shown, h("p", { class: "note bad", role: "alert" }, `It stays: ${told.why}.`));
      replace(shown,
        h("p", {}, told.changes.length ? `${told.changes.join("; ")}.` : "Nothing is changed."),
        diffView(letter.text, told.body),
        h("p", { class: "price" }, `It would be taken: for ${told.tenant}, ${told.model}, ${size(told)}, ${price(told)}.`));
    } catch (fault) {
      replace(shown, trouble(fault));
    }
  }

  let isAsking = false;
  async function offer() {
    // Disabled it would lose the focus.
    if (isAsking) return;
    isAsking = true;
    try {
      const told = await dryRun();
      replace(shown, plan(told));
      if (told.sendable === 0) return;
      const lines = [
        `${many(told.sendable, "job")}, ${size(told)}, ${price(told)}.`,
        told.letters > told.sendable ? `${many(told.letters - told.sendable, "letter")} cannot be sent so and will stay.` : null,
        "They run as batch work under their tenant's share. What has a result by now is not paid again.",
      ].filter(Boolean);
      if (!await confirm(`Send ${many(told.sendable, "letter")} again?`, lines, "Send")) return;
      const per_second = rate.value ? Number(rate.value) : undefined;
      const run = await ask("POST", "redrives", { body: { filter, repair: repair(), per_second } });
      context.go("letters", "run", run.id);
    } catch (fault) {
      replace(shown, trouble(fault));
    } finally {
      isAsking = false;
    }
  }

  return { element: form };
}

const size = (told) => `about ${count(told.input_tokens)} input and ${count(told.output_tokens)} output tokens`;

function price(told) {
  const unpriced = told.unpriced ? ` (${many(told.unpriced, "job")} without a known price)` : "";
  return told.cost_usd === null ? "its model has no known price" : `about ${dollars(told.cost_usd)}${unpriced}`;
}

/** What a run would do. */
function plan(told) {
  return [
    h("p", { class: "price" }, `${count(told.sendable)} of ${many(told.letters, "letter")} can be sent: ${size(told)}, ${price(told)}.`),
    told.left.length ? h("ul", { class: "left" }, told.left.map(({ letter, why }) => h("li", {}, h("a", { href: `#/letters/${letter}` }, `#${letter}`), ` stays: ${why}`))) : null,
  ];
}

/** A run, while it goes on and after. */
export function runPage(id) {
  const live = h("div");
  const control = (verb, text) => h("button", { type: "button", id: verb, on: { click: () => act(verb) } }, text);
  const [pause, resume, cancel] = [control("pause", "Pause"), control("resume", "Go on"), control("cancel", "End")];
  const said = h("p", { class: "said", role: "status" });
  const element = h("div", {}, h("a", { class: "back", href: "#/letters" }, "All dead letters"),
    h("div", { class: "card" }, live, h("div", { class: "actions" }, pause, resume, cancel), said));
  let isOpen = true;
  let timer = null;
  let moved = { total: -1, at: 0 };

  async function act(verb) {
    try {
      await ask("POST", path(["redrives", id, verb]));
      said.textContent = "";
      clearTimeout(timer);
      load();
    } catch (fault) {
      said.textContent = fault.message;
    }
  }

  async function load() {
    let isOver = false;
    try {
      const run = await ask("GET", path(["redrives", id]));
      if (!isOpen) return;
      isOver = ["done", "cancelled"].includes(run.state);
      draw(run, isOver);
    } catch (fault) {
      if (!isOpen) return;
      isOver = fault.status === 404;
      morph(live, trouble(fault));
    }
    if (!isOver) timer = setTimeout(load, EVERY);
  }

  function draw(run, isOver) {
    const { tally } = run;
    const total = tally.sent + tally.already + tally.gone + tally.left;
    pause.hidden = isOver || run.state !== "running";
    if (total !== moved.total) moved = { total, at: performance.now() };
    // A run whose driver went away is called running and stands still; whoever goes on with it takes it over.
    const stands = run.state === "running" && performance.now() - moved.at > STANDS_AFTER;
    resume.hidden = isOver || !(run.state === "paused" || stands);
    cancel.hidden = isOver;
    morph(live,
      h("h2", {}, run.id, " ", runState(run)),
      h("div", { class: "limit" }, h("span", { class: "limit-name dim" }, "dealt with"), meter(total / Math.max(1, run.letters), "letters dealt with", "good"), h("span", { class: "num" }, `${count(total)} / ${count(run.letters)}`)),
      facts([
        ["Sent", count(tally.sent)],
        ["Sent by another run", tally.already || null],
        ["Gone", tally.gone || null],
        ["Left", tally.left || null],
        ["Repair", Object.keys(run.repair).join(", ")],
        ["At most", `${count(run.per_second)} a second`],
        ["Begun", instant(run.created_ms)],
        ["What", run.what],
      ]),
      tally.some_left.length ? h("ul", { class: "left" }, tally.some_left.map(({ letter, why }) => h("li", {}, h("a", { href: `#/letters/${letter}` }, `#${letter}`), `: ${why}`))) : null);
  }

  load();
  return { element, close: () => { isOpen = false; clearTimeout(timer); } };
}
