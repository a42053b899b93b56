// One dead letter: why it is one, its body, and what a repair would make of it.

import { ask, path } from "./api.js";
import { badge, facts, h, replace, trouble } from "./dom.js";
import { bodyView, bytesOf, escaped } from "./diff.js";
import { bytes, count, dollars, instant, many, words } from "./format.js";
import { linkTo, trace } from "./jobs.js";
import { repairForm } from "./redrive.js";

export function letterPage(context, seq) {
  const element = h("div", {}, h("p", { class: "dim" }, "Reading …"));
  let isOpen = true;

  async function load() {
    try {
      const copy = await ask("GET", path(["dead-letters", seq]));
      const { letters } = await ask("GET", path(["dead-letters"], { standing: "redriven", fingerprint: copy.letter.fingerprint, limit: 1_000 }));
      const note = letters.find((entry) => entry.seq === copy.seq)?.redriven;
      if (isOpen) draw(copy, note);
    } catch (fault) {
      if (isOpen) replace(element, h("a", { class: "back", href: "#/letters" }, "All dead letters"), trouble(fault));
    }
  }

  function draw(copy, note) {
    const { letter } = copy;
    const raw = bytesOf(copy);
    const text = escaped(raw);
    const group = `#/letters/group/${encodeURIComponent(letter.reason)}/${encodeURIComponent(letter.fingerprint)}`;
    replace(element,
      h("a", { class: "back", href: group }, "Letters of the same cause"),
      h("div", { class: "card" },
        h("h2", { class: "name-wrap" }, `#${copy.seq}  `, letter.tenant ? h("a", { href: linkTo(letter.tenant, letter.job) }, `${letter.tenant} / ${letter.job}`) : letter.job),
        h("p", {}, badge(words(letter.reason), "bad"), letter.detail ? [" ", badge(words(letter.detail))] : null, " ", note ? h("a", { href: `#/letters/run/${note.run}` }, `sent again by ${note.run}`) : null),
        h("p", { class: "wrap" }, letter.message),
        letter.fix ? h("p", {}, h("strong", {}, "What to do: "), letter.fix) : null),
      note ? null : repairForm(context, {
        letter: { ...letter, seq: copy.seq, text, isText: copy.body !== undefined }, filter: { ids: [{ letter: copy.seq }] }, title: "Repair and send again",
      }).element,
      h("section", { "aria-labelledby": "body" },
        h("h2", { id: "body" }, "Body, ", h("span", { class: "dim" }, `${bytes(raw.length)}${copy.body === undefined ? ", not all of it UTF-8" : ""}`)),
        bodyView(text, "Body of the letter")),
      h("section", { "aria-labelledby": "about" },
        h("h2", { id: "about" }, "About it"),
        h("div", { class: "card" }, about(context, copy))));
  }

  load();
  return { element, close: () => { isOpen = false; } };
}

function about(context, { letter, headers }) {
  const upstream = letter.upstream;
  return [
    facts([
      ["Written", instant(letter.at_ms)],
      ["Kind", letter.kind],
      ["Model", letter.model],
      ["Field at fault", letter.field && h("code", { class: "wrap" }, letter.field)],
      ["Byte at fault", letter.offset],
      ["Attempts", count(letter.attempts)],
      ["Cost", letter.cost_usd ? dollars(letter.cost_usd) : null],
      ["Upstream said", upstream && [upstream.status, upstream.message].filter(Boolean).join(": ")],
      ["Upstream's id", upstream?.request_id && h("code", { class: "wrap" }, upstream.request_id)],
      ["Trace", letter.trace_id && trace(context, letter.trace_id)],
      ["Read from", h("code", { class: "wrap" }, letter.subject)],
      ["Sent again before", letter.lineage?.length ? letter.lineage.map((one) => `#${one.letter} ${words(one.reason)}${one.repair ? ` (${one.repair})` : ""}`).join(", ") : null],
    ]),
    letter.tries?.length ? h("details", {}, h("summary", {}, many(letter.tries.length, "call")),
      h("ol", { class: "events" }, letter.tries.map((one) => h("li", {}, h("span", { class: "num dim" }, instant(one.at_ms)), h("span", {}, `${one.model ?? ""} ${words(one.outcome)} ${one.status ?? ""}`))))) : null,
    headers?.length ? h("details", {}, h("summary", {}, many(headers.length, "header")), h("pre", { class: "body" }, headers.map(([name, value]) => `${name}: ${value}\n`).join(""))) : null,
  ];
}
