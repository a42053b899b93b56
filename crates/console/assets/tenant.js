// One tenant: what it gets, what it waits for, and its settings.

import { ask, path } from "./api.js";
import { badge, choice, facts, field, h, meter, morph, replace, trouble } from "./dom.js";
import { count, instant, many, percent, short, span } from "./format.js";
import { CAUSES, picture, rowOf, stateOf } from "./share.js";

const WHY_EVERY = 2_000;
const DEMOTE_MS = 300_000;

/** The panel of tenant `name`; `changed()` is called when its settings are. */
export function tenantPanel(context, name, changed) {
  const { feed } = context;
  const state = h("div");
  const waits = h("div");
  const settings = h("div");
  const title = h("h2", { tabindex: "-1", class: "name-wrap" }, name);
  const element = h("article", { class: "card panel", "aria-label": `Tenant ${name}` },
    h("a", { class: "back", href: "#/tenants" }, "All tenants"), title, state,
    h("h3", {}, "What it waits for"), waits,
    h("h3", {}, "Settings"), settings);
  let isOpen = true;

  function update() {
    const tenant = feed.fleet?.tenants.get(name);
    if (!tenant) {
      morph(state, h("p", { class: "dim" }, "It has no work now and had none lately."));
      return;
    }
    const row = rowOf(tenant, feed.fleet);
    morph(state,
      h("p", {}, stateOf(row, feed.now()) ?? badge("as usual", "good")),
      h("div", { class: "limit" }, h("span", { class: "limit-name dim" }, "share and due"), picture(row, Math.max(row.share, row.due) * 1.25), h("span", { class: "num" }, `${percent(row.share)} / ${percent(row.due)}`)),
      h("div", { class: "limit" }, h("span", { class: "limit-name dim" }, "running"), meter(tenant.in_flight / tenant.in_flight_max, "running"), h("span", { class: "num" }, `${count(tenant.in_flight)} / ${count(tenant.in_flight_max)}`)),
      tenant.daily_input_tokens
        ? h("div", { class: "limit" }, h("span", { class: "limit-name dim" }, "input today"), meter(row.budget, "budget used", row.budget > 1 ? "warn" : ""), h("span", { class: "num" }, `${short(tenant.input_tokens_today)} / ${short(tenant.daily_input_tokens)}`))
        : null,
      facts([
        ["Weight now", h("span", { id: "weight-now" }, String(tenant.weight / 1_000))],
        ["Waiting", `${count(tenant.queued[0])} critical, ${count(tenant.queued[1])} standard, ${count(tenant.queued[2])} batch`],
        ["Demoted until", tenant.demoted && `${instant(tenant.demoted.until_ms)} (${CAUSES[tenant.demoted.cause] ?? tenant.demoted.cause})`],
      ]));
  }

  async function askWhy() {
    try {
      const why = await ask("GET", path(["tenants", name, "why"]));
      if (isOpen) morph(waits, why.lines.length ? why.lines.map(line) : h("p", { class: "dim" }, "Nothing: it has no jobs in line."));
    } catch (fault) {
      if (isOpen) morph(waits, h("p", { class: "dim" }, fault.status === 404 ? "Nothing was seen of it lately." : fault.message));
    }
  }

  function line(line) {
    return h("div", { class: "why-line", "data-key": `${line.pool} ${line.priority}` },
      h("strong", {}, `${many(line.queued, "job")}, ${line.priority}, ${line.pool}`),
      h("p", {}, "Oldest ", h("a", { href: `#/jobs/${encodeURIComponent(name)}/${encodeURIComponent(line.job)}` }, line.job), `: ${line.why.text}`,
        line.why.until_ms ? ` (${span(line.why.until_ms - feed.now())})` : "", "."));
  }

  async function load() {
    try {
      replace(settings, form(await ask("GET", path(["tenants", name]))));
    } catch (fault) {
      replace(settings, trouble(fault));
    }
  }

  function form(record) {
    if (record.error) return trouble(new Error(`Its record is not usable: ${record.error}`));
    const mayChange = context.mayChange();
    const number = (value, min, max, step) => h("input", { type: "number", min, max, step, value: value ?? "", placeholder: "configured", inputmode: "decimal" });
    const plan = choice([["", "configured"], ["standard", "standard"], ["pro", "pro"]], record.plan ?? "");
    const weight = number(record.weight, 0.01, 1_000, "any");
    weight.id = "weight";
    const budget = number(record.daily_input_tokens, 0, 1e12, 1);
    const cap = number(record.in_flight_max, 1, 1e6, 1);
    const said = h("p", { role: "status", class: "said" });
    const save = async (changes, done) => {
      try {
        const kept = await ask("PUT", path(["tenants", name]), { body: changes });
        changed();
        if (!isOpen) return;
        replace(settings, form(kept));
        settings.querySelector(".said").textContent = done;
      } catch (fault) {
        said.textContent = fault.message;
        said.className = "said bad";
      }
    };
    const submit = (event) => {
      event.preventDefault();
      const given = (input) => (input.value === "" ? null : Number(input.value));
      save({ plan: plan.value || null, weight: given(weight), daily_input_tokens: given(budget), in_flight_max: given(cap) }, "Saved; it holds at once.");
    };
    const isDemoted = record.demoted_until_ms > feed.now();
    const demotion = isDemoted
      ? h("button", { type: "button", on: { click: () => save({ demoted_until_ms: null }, "It is restored.") } }, "Restore")
      : h("button", { type: "button", on: { click: () => save({ demoted_until_ms: Math.round(feed.now() + DEMOTE_MS) }, "Its standard work is served as batch for five minutes.") } }, "Demote for 5 minutes");
    return h("form", { class: "settings", on: { submit } },
      h("fieldset", { disabled: !mayChange },
        h("div", { class: "fields" },
          field("Weight", weight), field("Plan", plan),
          field("Input tokens a day", budget), field("Jobs at once", cap)),
        h("div", { class: "actions" }, h("button", { type: "submit", class: "primary" }, "Save"), demotion)),
      h("p", { class: "dim" }, "What is left empty holds as configured. A weight takes the place of the plan's."),
      mayChange ? null : h("p", { class: "dim" }, "A viewer's token may not change them."),
      said);
  }

  load();
  askWhy();
  const timer = setInterval(askWhy, WHY_EVERY);
  requestAnimationFrame(() => title.focus({ preventScroll: false }));
  update();
  return { name, element, update, close: () => { isOpen = false; clearInterval(timer); } };
}
