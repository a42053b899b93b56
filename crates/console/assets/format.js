// Numbers, times and words for people. Pure.

const whole = new Intl.NumberFormat("en");

export const count = (number) => whole.format(number);

/** "1 job", "2 jobs". */
export const many = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

/** 950, 12.3k, 4.5M. */
export function short(number) {
  if (Math.abs(number) < 10_000) return String(Math.round(number));
  for (const [unit, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(number) >= unit) return `${(number / unit).toFixed(1).replace(/\.0$/, "")}${letter}`;
  }
}

/** Milliseconds as 320 ms, 3.2 s, 4 min 10 s, 2 h 05 min, 3 d 04 h. */
export function span(ms) {
  ms = Math.max(0, ms);
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  const seconds = Math.floor(ms / 1_000);
  const two = (number) => String(number).padStart(2, "0");
  if (seconds < 60) return `${(ms / 1_000).toFixed(1)} s`;
  if (seconds < 3_600) return `${Math.floor(seconds / 60)} min ${two(seconds % 60)} s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3_600)} h ${two(Math.floor(seconds % 3_600 / 60))} min`;
  return `${Math.floor(seconds / 86_400)} d ${two(Math.floor(seconds % 86_400 / 3_600))} h`;
}

/** 12 %, 4.2 %, 0.07 %; a dash for what has no whole. */
export function percent(part) {
  if (!Number.isFinite(part)) return "–";
  const hundred = part * 100;
  const digits = hundred === 0 || hundred >= 9.95 ? 0 : hundred >= 0.995 ? 1 : 2;
  return `${hundred.toFixed(digits)} %`;
}

export function dollars(usd) {
  if (usd === 0) return "$0";
  return usd < 0.01 ? `$${usd.toPrecision(2)}` : `$${usd.toFixed(2)}`;
}

/** Local time of day; with the date when it is not today's. */
export function instant(ms, now = Date.now()) {
  const at = new Date(ms);
  const time = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date(now).toDateString() ? time : `${at.toISOString().slice(0, 10)} ${time}`;
}

export const bytes = (size) => (size < 1_024 ? `${size} B` : size < 1 << 20 ? `${(size / 1_024).toFixed(1)} KiB` : `${(size / (1 << 20)).toFixed(1)} MiB`);

/** dead_reason as words. */
export const words = (text) => text.replaceAll("_", " ");

/** Milliseconds in one unit: 40 s, 4 min, 2 h, 3 d. */
export function about(ms) {
  const seconds = Math.max(0, Math.round(ms / 1_000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3_600) return `${Math.round(seconds / 60)} min`;
  return seconds < 86_400 ? `${Math.round(seconds / 3_600)} h` : `${Math.round(seconds / 86_400)} d`;
}

/** How much of a limit is used: a full one is as it should be when there is work; an overdrawn one is not. */
export const tone = (part) => (part > 1.02 ? "warn" : part >= 0.95 ? "full" : "");
