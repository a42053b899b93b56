// Dead letters in groups of one cause, the letters of a group, and the runs that send them again.

import { ask, path } from "./api.js";
import { badge, choice, facts, h, morph, replace, trouble } from "./dom.js";
import { bytes, count, dollars, instant, many, words } from "./format.js";
import { letterPage } from "./letter.js";
import { repairForm, runPage, runState } from "./redrive.js";

const EVERY = 10_000;
const PAGE = 100;
/** Letters of a group that are listed. */
const LISTED_MAX = 1_000;
const RUNS_SHOWN = 8;

export function lettersView(context) {
  const element = h("div", { class: "view letters" });
  let page = null;
  const close = () => page?.close?.();

  function show([what, one, other]) {
    close();
    if (what === "group") page = groupPage(context, one, other);
    else if (what === "run") page = runPage(one);
    else if (/^\d+$/.test(what ?? "")) page = letterPage(context, what);
    else page = groupsPage();
    replace(element, h("h1", { class: "unseen" }, "Dead letters"), page.element);
  }

  return { element, show, close };
}

const back = () => h("a", { class: "back", href: "#/letters" }, "All dead letters");

/** Calls `load` now and then until it is stopped. */
function every(load) {
  load();
  const timer = setInterval(load, EVERY);
  return () => clearInterval(timer);
}

function groupsPage() {
  const reason = choice([["", "any reason"]], "", { change: () => load() });
  reason.setAttribute("aria-label", "Reason");
  const tenant = h("input", { type: "search", id: "letters-tenant", placeholder: "tenant", "aria-label": "Tenant", spellcheck: "false", on: { change: () => load() } });
  const all = h("input", { type: "checkbox", id: "letters-all", on: { change: () => load() } });
  const groups = h("div", {}, h("p", { class: "dim" }, "Reading …"));
  const runs = h("div");
  const element = h("div", {},
    h("div", { class: "tools" }, tenant, reason, h("label", { class: "check" }, all, " also those sent again")),
    groups, h("section", { "aria-labelledby": "runs" }, h("h2", { id: "runs" }, "Runs that send letters again"), runs));
  let isOpen = true;

  async function load() {
    try {
      const asked = { standing: all.checked ? "all" : "open", reason: reason.value, tenant: tenant.value.trim(), limit: 0 };
      const answer = await ask("GET", path(["dead-letters"], asked));
      if (isOpen) drawGroups(answer);
    } catch (fault) {
      if (isOpen) replace(groups, trouble(fault));
    }
    try {
      const answer = await ask("GET", "redrives");
      if (isOpen) drawRuns(answer.runs);
    } catch (fault) {
      if (isOpen) replace(runs, trouble(fault));
    }
  }

  function drawGroups(answer) {
    const known = new Set([...reason.options].map((option) => option.value));
    for (const word of new Set(answer.groups.map((group) => group.reason))) {
      if (!known.has(word)) reason.append(h("option", { value: word }, words(word)));
    }
    if (!answer.groups.length) return morph(groups, h("p", { class: "card dim" }, "No dead letters. Every job that ended had a result or was called off."));
    const open = answer.groups.reduce((sum, group) => sum + group.open, 0);
    morph(groups,
      h("p", { class: "dim summary" }, `${many(open, "open letter")} in ${many(answer.groups.length, "group")} of one cause each.`),
      h("ul", { class: "groups" }, answer.groups.map(group)));
  }

  function drawRuns(list) {
    morph(runs, list.length
      ? h("ul", { class: "groups" }, list.slice(0, RUNS_SHOWN).map((run) => h("li", {}, h("a", { class: "card group", href: `#/letters/run/${run.id}` },
        h("span", { class: "group-count" }, h("b", {}, count(run.tally.sent)), h("small", {}, "sent")),
        h("span", { class: "group-what" }, h("strong", {}, run.id), " ", runState(run), h("span", { class: "dim" }, `${many(run.letters, "letter")}, ${instant(run.created_ms)}`))))))
      : h("p", { class: "card dim" }, "None yet."));
  }

  const stop = every(load);
  return { element, close: () => { isOpen = false; stop(); } };
}

function group(group) {
  const more = group.tenants - group.some_tenants.length;
  const href = `#/letters/group/${encodeURIComponent(group.reason)}/${encodeURIComponent(group.fingerprint)}`;
  return h("li", {}, h("a", { class: "card group", href },
    h("span", { class: "group-count" }, h("b", {}, count(group.open)), h("small", {}, group.open === group.letters ? "open" : `open of ${count(group.letters)}`)),
    h("span", { class: "group-what" },
      h("strong", {}, words(group.reason)), " ",
      h("span", { class: "wrap" }, group.example.message),
      h("span", { class: "dim" }, `${group.some_tenants.join(", ")}${more > 0 ? ` and ${count(more)} more` : ""} · last ${instant(group.last_ms)}`))));
}

function groupPage(context, reason, fingerprint) {
  const head = h("div");
  const list = h("div");
  const form = h("div");
  const further = h("button", { type: "button", hidden: true, on: { click: () => { shown = LISTED_MAX; load(); } } });
  const others = h("button", { type: "button", hidden: true, on: { click: () => { standing = "all"; load(); } } }, "Also those sent again");
  const element = h("div", {}, back(), head, form, h("h2", {}, "Letters"), list, h("div", { class: "actions" }, further, others));
  let isOpen = true;
  let shown = PAGE;
  let standing = "open";
  let isOffered = false;

  async function load() {
    try {
      const answer = await ask("GET", path(["dead-letters"], { reason, fingerprint, standing, limit: shown }));
      if (isOpen) draw(answer);
    } catch (fault) {
      if (isOpen) replace(list, trouble(fault));
    }
  }

  function draw(answer) {
    const [group] = answer.groups;
    if (group) {
      morph(head, h("div", { class: "card" },
        h("h2", {}, words(group.reason)), h("p", { class: "wrap" }, group.example.message),
        group.example.fix ? h("p", {}, h("strong", {}, "What to do: "), group.example.fix) : null,
        facts([
          ["Letters", `${count(group.open)} open of ${count(group.letters)}`],
          ["Tenants", `${group.some_tenants.join(", ")}${group.tenants > group.some_tenants.length ? ` and ${count(group.tenants - group.some_tenants.length)} more` : ""}`],
          ["Kinds", group.some_kinds.join(", ")],
          ["First, last", `${instant(group.first_ms)}, ${instant(group.last_ms)}`],
          ["Fingerprint", h("code", { class: "wrap" }, group.fingerprint)],
        ])));
      if (!isOffered && group.open > 1) {
        isOffered = true;
        const filter = { reasons: [reason], fingerprints: [fingerprint] };
        replace(form, repairForm(context, { letter: { reason, field: group.example.field }, filter, title: `Send all ${count(group.open)} again` }).element);
      }
    }
    morph(list, answer.letters.length ? h("ul", { class: "groups" }, answer.letters.map(letterLine)) : h("p", { class: "card dim" }, "None is open."));
    const more = answer.count - answer.letters.length;
    further.textContent = `Show more (${count(more)})`;
    further.hidden = more === 0 || shown === LISTED_MAX;
    others.hidden = standing !== "open";
  }

  const stop = every(load);
  return { element, close: () => { isOpen = false; stop(); } };
}

function letterLine(entry) {
  const state = entry.redriven ? badge(entry.redriven.sent ? "sent again" : "claimed", "good") : null;
  return h("li", {}, h("a", { class: "card group", href: `#/letters/${entry.seq}` },
    h("span", { class: "group-count" }, h("b", {}, `#${entry.seq}`), h("small", {}, bytes(entry.size))),
    h("span", { class: "group-what" },
      h("strong", { class: "wrap" }, `${entry.tenant} / ${entry.job}`), " ", state,
      h("span", { class: "dim" }, [entry.kind, entry.model, entry.attempts ? many(entry.attempts, "attempt") : null, entry.cost_usd ? dollars(entry.cost_usd) : null, instant(entry.at_ms)].filter(Boolean).join(" · ")))));
}
