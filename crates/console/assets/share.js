// A tenant in numbers: what it gets, and what is due to it.

import { badge, h } from "./dom.js";
import { about, percent } from "./format.js";

/** Why a tenant is demoted. */
export const CAUSES = { throttles: "rate limits", budget: "budget", hand: "by hand" };

/** Whose turn comes less than once a minute is not behind in each minute without one. Thousandths of a cost unit. */
const SHORT = 2_000;

/** A tenant's numbers, and what follows from them. */
export function rowOf(tenant, fleet) {
  const queued = tenant.queued.reduce((sum, jobs) => sum + jobs, 0);
  const isWaiting = queued > 0;
  const hasWork = isWaiting || tenant.in_flight > 0;
  const share = fleet.granted > 0 ? tenant.granted / fleet.granted : 0;
  const due = hasWork && fleet.active_weight > 0 ? tenant.weight / fleet.active_weight : 0;
  const isCapped = isWaiting && tenant.in_flight >= tenant.in_flight_max;
  return {
    tenant, queued, isWaiting, share, due, isCapped,
    work: queued + tenant.in_flight,
    budget: tenant.daily_input_tokens ? tenant.input_tokens_today / tenant.daily_input_tokens : null,
    isBehind: isWaiting && !isCapped && share < due / 2 && (due - share) * fleet.granted > SHORT,
  };
}

/** In words, what is out of the common with it. */
export function stateOf(row, now) {
  const { demoted } = row.tenant;
  if (demoted) return badge(`demoted ${about(demoted.until_ms - now)}`, "bad");
  if (row.isCapped) return badge(`at its cap`, "warn");
  if (row.budget > 1) return badge("over budget", "warn");
  if (row.isBehind) return badge("behind", "warn");
  return null;
}

/** A share as a bar, and what is due as a mark on it, both as parts of `whole`. */
export function picture(row, whole) {
  const part = (value) => (whole > 0 ? Math.min(1, value / whole) : 0).toFixed(4);
  return h("span", {
    class: "picture", role: "img", "aria-label": `share ${percent(row.share)}, due ${percent(row.due)}`,
    title: `share ${percent(row.share)}, due ${percent(row.due)}`, vars: { "--share": part(row.share), "--due": part(row.due) },
  }, h("i"), row.due > 0 ? h("b") : null);
}
