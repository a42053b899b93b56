// All tenants: what they get against what is due to them, who is demoted, how far budgets are used.

import { ask } from "./api.js";
import { choice, h, meter, replace } from "./dom.js";
import { count, many, percent, short } from "./format.js";
import { rowList } from "./rows.js";
import { picture, rowOf, stateOf } from "./share.js";
import { tenantPanel } from "./tenant.js";

const SORTS = {
  work: ["most work", (row) => -row.work],
  share: ["largest share", (row) => -row.share],
  behind: ["furthest behind", (row) => (row.isWaiting ? row.share - row.due : 1)],
  budget: ["budget used", (row) => -(row.budget ?? -1)],
  name: ["name", () => 0],
};
const SHOWN = {
  all: ["all", () => true],
  waiting: ["waiting", (row) => row.isWaiting],
  behind: ["behind", (row) => row.isBehind],
  demoted: ["demoted", (row) => row.tenant.demoted],
  cap: ["at their cap", (row) => row.isCapped],
  over: ["over budget", (row) => row.budget > 1],
};
/** How long an order is kept at least, so that rows can be read. Milliseconds. */
const ORDER_KEPT = 5_000;
const SETTINGS_EVERY = 20_000;

export function tenantsView(context) {
  const { feed, go } = context;
  let settings = [];
  let opened = null;
  let order = [];
  let orderedAt = 0;
  let [sort, only] = ["work", "all"];

  const search = h("input", { type: "search", id: "search", placeholder: "part of a name", "aria-label": "Search tenants", spellcheck: "false", on: { input: reorder } });
  const sorting = choice(Object.entries(SORTS).map(([key, [text]]) => [key, text]), sort, { change: () => { sort = sorting.value; reorder(); } });
  sorting.setAttribute("aria-label", "Sort by");
  const filters = h("div", { class: "chips", role: "radiogroup", "aria-label": "Which tenants" });
  filters.addEventListener("change", (event) => { only = event.target.value; reorder(); });
  replace(filters, Object.entries(SHOWN).map(([key, [text]]) => h("label", { class: "chip" },
    h("input", { type: "radio", name: "only", value: key, checked: key === only }), h("span", {}, text, " ", h("span", { class: "num", "data-count": key })))));
  const summary = h("p", { class: "dim summary" });
  const list = rowList({
    label: "Tenants", key: (row) => row.tenant.tenant, open: (row) => go("tenants", row.tenant.tenant),
    // As the style sheet lays them out: two lines where there is no room for one.
    height: (list) => (list.clientWidth < 640 ? 62 : 36), row: cells,
  });
  const heads = h("div", { class: "row-heads", "aria-hidden": "true" }, ["Tenant", "State", "Crit", "Std", "Batch", "Run", "Share and due", "Share", "Due", "Input today"].map((head, at) => h("span", { class: `c${at}` }, head)));
  const all = h("div", { class: "tenant-list" },
    h("div", { class: "tools" }, search, sorting), filters, summary, heads, list.element);
  const panel = h("div", { class: "tenant-panel", hidden: true });
  const element = h("div", { class: "view tenants" }, h("h1", { class: "unseen" }, "Tenants"), all, panel);

  const askSettings = () => ask("GET", "tenants").then((answer) => { settings = answer.tenants; update(); }, () => {});
  askSettings();
  const timer = setInterval(askSettings, SETTINGS_EVERY);

  /** Tenants with work or lately granted, and those that have settings of their own. */
  function rows() {
    const { fleet } = feed;
    const idle = settings.filter(({ tenant }) => !fleet.tenants.has(tenant)).map((record) => ({
      tenant: record.tenant, weight: Math.round((record.weight ?? 1) * 1_000), queued: [0, 0, 0], in_flight: 0, in_flight_max: record.in_flight_max ?? 0,
      input_tokens_today: 0, daily_input_tokens: record.daily_input_tokens, granted: 0,
    }));
    return [...fleet.tenants.values(), ...idle].map((tenant) => rowOf(tenant, fleet));
  }

  function reorder() {
    orderedAt = 0;
    list.top();
    update();
  }

  function update() {
    if (!feed.fleet) return;
    const found = rows();
    for (const counter of filters.querySelectorAll("[data-count]")) {
      const number = found.filter(SHOWN[counter.dataset.count][1]).length;
      counter.textContent = short(number);
      counter.closest(".chip").classList.toggle("none", number === 0 && counter.dataset.count !== only);
    }
    const wanted = search.value.trim().toLowerCase();
    const fits = found.filter((row) => SHOWN[only][1](row) && row.tenant.tenant.toLowerCase().includes(wanted));
    list.whole = Math.max(0, ...fits.map((row) => Math.max(row.share, row.due)));
    list.set(ordered(fits));
    summary.textContent = summed(found, fits);
    opened?.update();
  }

  /** Sorted anew now and then, but not under somebody's eyes: rows keep their places while one points at them. */
  function ordered(fits) {
    const byName = new Map(fits.map((row) => [row.tenant.tenant, row]));
    if (orderedAt === 0 || (performance.now() - orderedAt > ORDER_KEPT && !list.isBusy())) {
      const rank = SORTS[sort][1];
      fits.sort((one, other) => rank(one) - rank(other) || one.tenant.tenant.localeCompare(other.tenant.tenant));
      order = fits.map((row) => row.tenant.tenant);
      orderedAt = performance.now();
      return fits;
    }
    const kept = order.filter((name) => byName.has(name)).map((name) => byName.get(name));
    const known = new Set(order);
    const fresh = fits.filter((row) => !known.has(row.tenant.tenant));
    order = [...kept, ...fresh].map((row) => row.tenant.tenant);
    return [...kept, ...fresh];
  }

  function summed(found, fits) {
    const { fleet } = feed;
    const told = fits.length === found.length ? many(found.length, "tenant") : `${count(fits.length)} of ${many(found.length, "tenant")}`;
    const busiest = fleet.tenants.size < fleet.active_tenants ? `, the busiest of ${count(fleet.active_tenants)} with work` : "";
    return `${told}${busiest}. Bars: share of the last minute; marks: what is due.`;
  }

  function cells(row) {
    const { tenant } = row;
    const [critical, standard, batch] = tenant.queued;
    const today = tenant.daily_input_tokens
      ? [meter(row.budget, `budget of ${tenant.tenant}`, row.budget > 1 ? "warn" : ""), h("span", { class: "num" }, `${short(tenant.input_tokens_today)} / ${short(tenant.daily_input_tokens)}`)]
      : h("span", { class: "num dim" }, short(tenant.input_tokens_today));
    const queue = (jobs, at, word) => h("span", { class: `c${at} num ${jobs ? "" : "none"}`, "data-word": word }, short(jobs));
    return [
      h("span", { class: "c0 name", title: tenant.tenant }, tenant.tenant),
      h("span", { class: "c1" }, stateOf(row, feed.now())),
      queue(critical, 2, "crit"), queue(standard, 3, "std"), queue(batch, 4, "batch"), queue(tenant.in_flight, 5, "run"),
      h("span", { class: "c6" }, picture(row, list.whole)),
      h("span", { class: "c7 num" }, percent(row.share)),
      h("span", { class: "c8 num dim" }, percent(row.due)),
      h("span", { class: "c9" }, today),
      h("span", { class: "c10 num" }, `${short(row.queued)} wait · ${short(tenant.in_flight)} run`),
    ];
  }

  function show([name]) {
    const isFilter = name?.startsWith("?");
    if (isFilter && name.slice(1) in SHOWN) {
      only = name.slice(1);
      filters.querySelector(`input[value="${only}"]`).checked = true;
      orderedAt = 0;
    }
    const wanted = isFilter ? undefined : name;
    element.classList.toggle("with-panel", Boolean(wanted));
    list.select(wanted ?? null);
    if (opened?.name === wanted) return;
    opened?.close();
    opened = wanted ? tenantPanel(context, wanted, () => { askSettings(); }) : null;
    panel.hidden = !opened;
    replace(panel, opened?.element);
  }

  return { element, update, show, close: () => { clearInterval(timer); opened?.close(); } };
}
