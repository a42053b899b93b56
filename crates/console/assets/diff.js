// Bodies as text, and what a repair changes in them. Pure but for the elements at the end.

import { h } from "./dom.js";
import { many } from "./format.js";

const CONTEXT = 2;
/** Of longer bodies only the ends are compared. Lines. */
const LINES_MAX = 1_500;
/** Characters of an unchanged stretch of a line that are shown at each end. */
const STRETCH = 60;
const BODY_SHOWN = 40_000;

/** The bytes of a letter's body. */
export function bytesOf(letter) {
  if (letter.body !== undefined) return new TextEncoder().encode(letter.body);
  return Uint8Array.from(atob(letter.body_base64 ?? ""), (char) => char.charCodeAt(0));
}

/** Reads text and nothing else; throws on anything that is no UTF-8. */
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

const decoded = (bytes) => {
  try { return strict.decode(bytes); } catch { return null; }
};

/** Bytes as text; what is no UTF-8 as `\xff`. */
export function escaped(bytes) {
  const whole = decoded(bytes);
  if (whole !== null) return whole;
  let text = "";
  for (let at = 0; at < bytes.length;) {
    const length = lengthFrom(bytes[at]);
    const char = length ? decoded(bytes.subarray(at, at + length)) : null;
    text += char ?? `\\x${bytes[at].toString(16).padStart(2, "0")}`;
    at += char === null ? 1 : length;
  }
  return text;
}

/** Length of a character by its first byte; 0 if none begins so. */
const lengthFrom = (first) => (first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0);

/** JSON with a field a line; other text as it is. */
export function laidOut(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** The lines of two texts as [" " | "-" | "+", line], all of them. */
export function lineDiff(before, after) {
  const [one, other] = [before, after].map((text) => text.split("\n"));
  let head = 0;
  while (head < one.length && head < other.length && one[head] === other[head]) head += 1;
  let tail = 0;
  while (tail < one.length - head && tail < other.length - head && one.at(-1 - tail) === other.at(-1 - tail)) tail += 1;
  const middle = changed(one.slice(head, one.length - tail), other.slice(head, other.length - tail));
  const same = (line) => [" ", line];
  return [...one.slice(0, head).map(same), ...middle, ...one.slice(one.length - tail).map(same)];
}

/** By the longest common subsequence, unless that would take too long. */
function changed(one, other) {
  const gone = (line) => ["-", line];
  const come = (line) => ["+", line];
  if (one.length > LINES_MAX || other.length > LINES_MAX) return [...one.map(gone), ...other.map(come)];
  const width = other.length + 1;
  const longest = new Uint16Array((one.length + 1) * width);
  for (let at = one.length - 1; at >= 0; at -= 1) {
    for (let to = other.length - 1; to >= 0; to -= 1) {
      longest[at * width + to] = one[at] === other[to] ? longest[(at + 1) * width + to + 1] + 1 : Math.max(longest[(at + 1) * width + to], longest[at * width + to + 1]);
    }
  }
  const lines = [];
  let [at, to] = [0, 0];
  while (at < one.length && to < other.length) {
    if (one[at] === other[to]) {
      lines.push([" ", one[at]]);
      at += 1;
      to += 1;
    } else if (longest[(at + 1) * width + to] >= longest[at * width + to + 1]) {
      lines.push(gone(one[at]));
      at += 1;
    } else {
      lines.push(come(other[to]));
      to += 1;
    }
  }
  return [...lines, ...one.slice(at).map(gone), ...other.slice(to).map(come)];
}

/** Two bodies as texts that can be compared: fields a line if both are JSON, else broken at commas. */
export function comparable(before, after) {
  const isJson = [before, after].every((text) => { try { JSON.parse(text); return true; } catch { return false; } });
  return [before, after].map((text) => (isJson ? laidOut(text) : text.replaceAll(",", ",\n")));
}

/** What differs, with some lines around it. */
export function diffView(before, after) {
  const lines = lineDiff(...comparable(before, after));
  const isNear = (at) => lines.slice(Math.max(0, at - CONTEXT), at + CONTEXT + 1).some(([sign]) => sign !== " ");
  const shown = [];
  let skipped = 0;
  lines.forEach(([sign, line], at) => {
    if (!isNear(at)) { skipped += 1; return; }
    if (skipped) shown.push(h("span", { class: "skipped" }, `${many(skipped, "line")} as before\n`));
    skipped = 0;
    shown.push(diffLine(sign, line, partner(lines, at)));
  });
  if (skipped && shown.length) shown.push(h("span", { class: "skipped" }, `${many(skipped, "line")} as before\n`));
  return h("pre", { class: "body diff", tabindex: "0", role: "region", "aria-label": "What the repair changes" }, shown.length ? shown : "Nothing changes.");
}

/** The line that stands in the place of a changed one, if there is one. */
function partner(lines, at) {
  const [sign] = lines[at];
  if (sign === "-" && lines[at + 1]?.[0] === "+") return lines[at + 1][1];
  if (sign === "+" && lines[at - 1]?.[0] === "-") return lines[at - 1][1];
  return null;
}

function diffLine(sign, line, other) {
  const word = { " ": "", "-": "removed: ", "+": "added: " }[sign];
  const parts = other === null ? [cut(line, STRETCH * 6)] : marked(line, other);
  const tag = { " ": "span", "-": "del", "+": "ins" }[sign];
  return h(tag, {}, h("span", { class: "unseen" }, word), h("span", { class: "sign", "aria-hidden": "true" }, `${sign} `), parts, "\n");
}

/** A line with what `other` does not have of it marked. */
function marked(line, other) {
  const shorter = Math.min(line.length, other.length);
  let head = 0;
  while (head < shorter && line[head] === other[head]) head += 1;
  let tail = 0;
  while (tail < shorter - head && line.at(-1 - tail) === other.at(-1 - tail)) tail += 1;
  const middle = line.slice(head, line.length - tail);
  const [before, after] = [line.slice(0, head), line.slice(line.length - tail)];
  return [
    before.length > STRETCH * 2 ? `${before.slice(0, STRETCH)} … ${before.slice(-STRETCH)}` : before,
    middle ? h("mark", {}, cut(middle, STRETCH * 6)) : null,
    after.length > STRETCH * 2 ? `${after.slice(0, STRETCH)} … ${after.slice(-STRETCH)}` : after,
  ];
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most / 2)} … (${text.length - most} characters) … ${text.slice(-most / 2)}` : text);

/** A body to be read. */
export function bodyView(text, label) {
  const laid = laidOut(text);
  const more = laid.length - BODY_SHOWN;
  return [
    h("pre", { class: "body", tabindex: "0", role: "region", "aria-label": label }, more > 0 ? laid.slice(0, BODY_SHOWN) : laid),
    more > 0 ? h("p", { class: "dim" }, `The first ${BODY_SHOWN} of ${laid.length} characters. \`fairlane dlq show --body\` writes all of it.`) : null,
  ];
}
