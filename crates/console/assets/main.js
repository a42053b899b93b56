// The frame of all views: who is there, which view is shown, and whether what it shows is fresh.

import { session, token } from "./api.js";
import { replace } from "./dom.js";
import { Feed } from "./feed.js";
import { about } from "./format.js";
import { jobsView } from "./jobs.js";
import { lettersView } from "./letters.js";
import { nowView } from "./now.js";
import { known, signIn } from "./signin.js";
import { tenantsView } from "./tenants.js";

const VIEWS = { now: nowView, tenants: tenantsView, jobs: jobsView, letters: lettersView };
const byId = (id) => document.getElementById(id);
const [main, tabs, live, stale, leave] = ["main", "tabs", "live", "stale", "leave"].map(byId);

const feed = new Feed();
/** Who is signed in, null if nobody. */
let who = null;
/** What is shown: {name, element, show(parts), update(), close()}. */
let shown = null;

/** What all views are given. */
const context = {
  feed,
  get who() { return who; },
  mayChange: () => who?.role === "operator",
  go: (...parts) => { location.hash = `#/${parts.map(encodeURIComponent).join("/")}`; },
};

function place() {
  const [name, ...parts] = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decoded);
  return name in VIEWS ? { name, parts } : { name: "now", parts: [] };
}

function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

function show() {
  if (!who) return;
  const { name, parts } = place();
  if (shown?.name !== name) {
    shown?.close?.();
    shown = { name, ...VIEWS[name](context) };
    replace(main, shown.element);
    main.setAttribute("aria-labelledby", `tab-${name}`);
    document.title = `${byId(`tab-${name}`).textContent} · Fairlane`;
  }
  for (const tab of tabs.children) {
    const isHere = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", String(isHere));
    tab.tabIndex = isHere ? 0 : -1;
  }
  shown.show?.(parts);
  if (feed.fleet) shown.update?.();
}

function age() {
  if (!who) return;
  const isOld = feed.isOld();
  const first = !feed.fleet && !feed.trouble;
  live.className = isOld ? "live old" : "live";
  live.textContent = first ? "connecting" : isOld ? "stale" : "live";
  stale.hidden = !isOld || first;
  if (stale.hidden) return;
  const since = feed.fleet ? `What you see is ${about(feed.age())} old. ` : "";
  stale.textContent = `${since}${feed.trouble ?? "Nothing was heard for a while."} Trying again.`;
}

function enter(identity) {
  who = identity;
  leave.hidden = false;
  tabs.hidden = false;
  byId("where").textContent = who.namespace === "fl" ? "" : who.namespace;
  feed.start();
  age();
  show();
}

function out(why) {
  feed.stop();
  token.forget();
  shown?.close?.();
  who = shown = null;
  leave.hidden = stale.hidden = tabs.hidden = true;
  live.textContent = "";
  live.className = "";
  document.title = "Sign in · Fairlane";
  signIn(main, enter, why);
}

/** A token behind the `#` of a link, which no server sees, is used once and leaves no trace in the address. */
function fromLink() {
  const given = /^#token=(.+)$/.exec(location.hash);
  if (!given) return;
  token.set(decoded(given[1]));
  history.replaceState(null, "", "#/now");
}

async function begin() {
  fromLink();
  if (!token.get()) return out();
  try {
    enter(await known(token.get()));
  } catch (fault) {
    out(fault.status === 401 ? "This token is not known, or was taken back." : fault.message);
  }
}

feed.addEventListener("fleet", () => { age(); shown?.update?.(); });
feed.addEventListener("age", () => { age(); shown?.tick?.(); });
session.addEventListener("refused", () => who && out("You were signed out: the token is not known any more."));
leave.addEventListener("click", () => out());
addEventListener("hashchange", () => (location.hash.startsWith("#token=") ? begin() : show()));
tabs.addEventListener("keydown", (event) => {
  const all = [...tabs.children];
  const at = all.indexOf(document.activeElement);
  const to = { ArrowRight: at + 1, ArrowLeft: at - 1 + all.length, Home: 0, End: all.length - 1 }[event.key];
  if (at < 0 || to === undefined) return;
  event.preventDefault();
  const tab = all[to % all.length];
  location.hash = tab.getAttribute("href");
  tab.tabIndex = 0;
  tab.focus();
});
begin();
