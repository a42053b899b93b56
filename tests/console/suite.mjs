// The console of a fleet that runs, as people use it: by mouse, by keys alone, on a phone, at night, with three tenants and
// with a thousand. Every step is told with the time it took; the first that fails ends the suite.

import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { Fleet, eventually, job } from "./fleet.mjs";
import { Looks, SCREENS } from "./looks.mjs";
import { pure } from "./pure.mjs";

const require = createRequire(join(process.env.NODE_MODULES, "none.js"));
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const [program, kept] = process.argv.slice(2);
const shots = kept || mkdtempSync(join(tmpdir(), "fairlane-console-shots-"));
mkdirSync(shots, { recursive: true });

const TENANTS = ["acme", "northwind-traders", "wallpaper-lite"];
const HOSTILE = `"><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>`;
const MANY = 1_000;

/** A job whose text is no UTF-8 in the middle. */
function broken(id) {
  const [head, tail] = JSON.stringify(job("acme", id, { prompt: "Five tags for the sea|at night" })).split("|");
  return Buffer.concat([Buffer.from(head), Buffer.from([0xff, 0xc3, 0x28]), Buffer.from(tail)]);
}

const fleet = await Fleet.start(program, "--preset", "tier1", "--time-scale", "10");
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
const open = await browser.newContext({ viewport: SCREENS.wide, locale: "en-GB" });
const page = await open.newPage();
page.setDefaultTimeout(15_000);
const looks = new Looks(page, shots, axe);
const asked = [];
const complaints = [];
page.on("request", (request) => asked.push(request.url()));
page.on("pageerror", (error) => complaints.push(error.stack));
// A refused call is one as well, and is expected now and then.
page.on("console", (message) => message.type() === "error" && !/status of 40\d|ERR_/.test(message.text()) && complaints.push(message.text()));

// Whoever works on the page need not build the program for each change.
const fromDisk = process.env.CONSOLE_ASSETS;
if (fromDisk) {
  await open.route(/\/console\/[\w.]*$/, async (route) => {
    const response = await route.fetch();
    const file = new URL(route.request().url()).pathname.split("/").at(-1) || "index.html";
    await route.fulfill({ response, body: readFileSync(join(fromDisk, file)) });
  });
}

const base = fleet.link().split("#")[0];
const view = (path) => page.goto(`${base}#/${path}`);
const live = () => page.locator("#live", { hasText: "live" }).waitFor();
const text = (locator) => page.locator(locator).innerText();
const see = (words) => page.getByText(words).first().waitFor();

const steps = {
  async "a wrong token and a tenant's key are told apart from a good one"() {
    await page.goto(base);
    const enter = async (token) => {
      await page.getByLabel("Token").fill(token);
      await page.getByRole("button", { name: "Sign in" }).click();
    };
    await enter("not-a-token-at-all");
    await see("This token is not known, or was taken back.");
    await looks.at("sign-in");
    const secret = /flk_\w+/.exec(fleet.run("tenant", "key", "create", "acme"))[0];
    await enter(secret);
    await see("This key speaks for tenant acme alone.");
    assert.equal(await page.evaluate(() => sessionStorage.length), 0);
    await enter(fleet.token());
    await live();
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByLabel("Token").waitFor();
    assert.equal(await page.evaluate(() => sessionStorage.length), 0);
  },

  async "the link that dev prints opens it, and the token leaves the address"() {
    await page.goto(fleet.link());
    await live();
    assert.equal(await page.evaluate(() => location.hash), "#/now");
    const answer = await fetch(base);
    const policy = answer.headers.get("content-security-policy");
    assert.match(policy, /default-src 'none'/);
    assert.doesNotMatch(policy, /unsafe|\*/);
    // The shortest ways lead there, too.
    for (const way of ["/", "/console"]) assert.equal((await fetch(new URL(way, base))).url, base);
    for (const path of ["fleet", "tenants", "dead-letters", "redrives", "fleet/events"]) {
      assert.equal((await fetch(new URL(`/v1/${path}`, base))).status, 401, path);
    }
  },

  async "numbers, times, differences and the course of a job"() {
    await pure(page, base);
  },

  async "a letter is found, read, repaired, sent again, and its job is done"() {
    fleet.submit([...Array.from({ length: 4 }, (_, at) => job("acme", `fine-${at}`)), broken("broken-1"), broken("broken-2"), broken("broken-3")], "--tenant", "acme", "--wait", "--timeout", "60");
    await page.getByRole("tab", { name: "Dead letters" }).click();
    await page.getByRole("link", { name: /undecodable/ }).click();
    await see("Send all 3 again");
    const line = page.getByRole("link", { name: /broken-\d|acme/ }).last();
    await line.click();
    await see("Repair and send again");
    const seq = /#(\d+)/.exec(await text("main .card > h2 >> nth=0"))[1];
    assert.match(await text('[aria-label="Body of the letter"]'), /the sea\\xff\\xc3\(at night/);
    assert.ok(await page.getByLabel("leave out bytes").isChecked(), "the repair that helps is suggested");
    await page.getByRole("button", { name: "Show what changes" }).click();
    const diff = page.getByLabel("What the repair changes");
    await diff.waitFor();
    assert.equal(await diff.locator("del mark").innerText(), "\\xff\\xc3");
    assert.match(await diff.innerText(), /^2 lines as before/, "what is far from a change is not shown");
    assert.match(await text(".price"), /It would be taken: for acme, claude-haiku-4-5, about \d+ input and 64 output tokens, about \$0\.\d+\./);
    await looks.at("letter");
    // What is asked twice is not done when the answer is no.
    await page.getByRole("button", { name: "Send again …" }).click();
    await page.getByRole("button", { name: "Not now" }).click();
    assert.equal((await fleet.ask("redrives")).runs.length, 0);
    await page.getByRole("button", { name: "Send again …" }).click();
    await page.getByText("1 job, about").first().waitFor();
    await page.getByRole("button", { name: "Send", exact: true }).click();
    await page.locator(".badge", { hasText: "done" }).waitFor();
    assert.match(await text("main"), /1 \/ 1/);
    const { runs: [run] } = await fleet.ask("redrives");
    assert.deepEqual([run.tally.sent, run.state, run.repair.strip], [1, "done", true]);
    await looks.at("run");
    const { letter } = await fleet.ask(`dead-letters/${seq}`);
    await view(`jobs/acme/${letter.job}`);
    await page.locator(".badge", { hasText: "done" }).waitFor();
    await see(`#${seq}`);
    const trace = page.locator('a[href^="http://traces.example/trace/"]');
    assert.match(await trace.getAttribute("href"), /trace\/[0-9a-f]{32}$/);
    await view(`letters/${seq}`);
    await see(`sent again by ${run.id}`);
    assert.equal(await page.getByRole("button", { name: "Send again …" }).count(), 0, "a letter is sent once");
  },

  async "a whole group is tried, priced, sent and watched"() {
    await view("letters");
    await page.getByRole("link", { name: /undecodable/ }).click();
    await see("Send all 2 again");
    await page.getByLabel("leave out bytes").uncheck();
    await page.getByRole("button", { name: "Try without sending" }).click();
    await see("0 of 2 letters can be sent");
    await see("stays: it would be turned away again");
    await page.getByLabel("leave out bytes").check();
    await page.getByRole("button", { name: "Try without sending" }).click();
    await see("2 of 2 letters can be sent");
    await looks.at("group");
    await page.getByRole("button", { name: "Send again …" }).click();
    await page.getByRole("button", { name: "Send", exact: true }).click();
    await page.getByText("2 / 2").waitFor();
    await view("letters");
    await see("No dead letters.");
  },

  async "text of tenants stays text"() {
    const hostile = (id, more) => job("acme", id, more);
    fleet.submit([hostile("hostile-1", { priority: HOSTILE, prompt: HOSTILE }), hostile("hostile-2", { prompt: HOSTILE, metadata: { note: HOSTILE } })], "--wait", "--timeout", "60");
    await view("letters");
    await page.getByRole("link", { name: /invalid job/ }).click();
    await see("<img src=x");
    await page.getByRole("link", { name: /hostile-1/ }).click();
    await page.getByRole("button", { name: "Show what changes" }).click();
    await page.getByLabel("What the repair changes").waitFor();
    await looks.at("letter-hostile");
    await view("jobs/acme/hostile-2");
    await page.locator(".badge", { hasText: "done" }).waitFor();
    await page.getByText("The record, as it is stored").click();
    // What no server of ours would say: the page does not rely on it.
    const bad = (await fleet.ask("fleet"));
    bad.tenants.push({ tenant: HOSTILE, weight: 1_000, queued: [1, 0, 0], in_flight: 0, in_flight_max: 9, input_tokens_today: 0, granted: 0 });
    bad.workers.push({ worker: HOSTILE, slots: 1, live: 0, draining: false, silent_ms: 9_000 });
    bad.pools.push({ pool: HOSTILE, left: [1, 1, 1], per_minute: [1, 1, 1], heard: true, missing: [0, 0, 0], breaker: "open", open_until_ms: bad.at_ms + 60_000, granted: [0, 0, 0] });
    bad.gates = [{ scope: "kind", tenant: HOSTILE, kind: HOSTILE, model: HOSTILE, until_ms: bad.at_ms + 60_000 }];
    await page.route("**/v1/fleet/events", (route) => route.fulfill({ contentType: "text/event-stream", body: `event: fleet\ndata: ${JSON.stringify(bad)}\n\n` }));
    await page.route("**/v1/whoami", (route) => route.fulfill({ json: { role: "viewer", namespace: HOSTILE, version: HOSTILE, trace_url: "javascript:window.hacked=1//{trace}" } }));
    await view("now");
    await page.reload();
    await page.locator(".pool", { hasText: "<img" }).waitFor();
    await view("tenants");
    await page.locator(".row", { hasText: "<img" }).click();
    await page.getByRole("heading", { name: "<img" }).waitFor();
    await view("tenants/acme");
    assert.ok(await page.getByRole("button", { name: "Save" }).isDisabled(), "a viewer changes nothing");
    await view("jobs/acme/hostile-2");
    await page.locator(".badge", { hasText: "done" }).waitFor();
    assert.equal(await page.locator('a[href^="javascript"]').count(), 0);
    assert.equal(await page.evaluate(() => window.hacked), undefined);
    assert.deepEqual(await page.evaluate(() => [document.querySelectorAll("script").length, document.querySelectorAll('img[src="x"]').length]), [1, 0]);
    await page.unroute("**/v1/fleet/events");
    await page.unroute("**/v1/whoami");
    await page.reload();
    await live();
  },

  async "three tenants, on every screen"() {
    const line = (tenant, at) => job(tenant, `line-${at}`, at % 3 ? { origin: "batch_job" } : { origin: "scheduled", sla_seconds: 3_600 });
    fleet.submit(TENANTS.flatMap((tenant) => Array.from({ length: 70 }, (_, at) => line(tenant, at))));
    await view("now");
    await page.locator(".pool").first().waitFor();
    await eventually("jobs in line", 20, async () => /[1-9]\d*\nwaiting/.test(await text(".lanes")));
    await looks.at("now-3");
    await view("tenants");
    for (const tenant of TENANTS) await page.locator(".row", { hasText: tenant }).waitFor();
    await looks.at("tenants-3");
    await view("jobs/acme/line-69");
    await page.locator(".badge", { hasText: "queued" }).waitFor();
    await see("Why it waits:");
    await looks.at("job-waiting");
    await view("letters");
    await page.locator("a.group", { hasText: "invalid job" }).waitFor();
    await looks.at("letters");
    await view("jobs");
    await page.getByLabel("Job", { exact: true }).fill("line-0");
    await page.getByRole("button", { name: "Find" }).click();
    await see("3 tenants have a job line-0.");
    await looks.at("jobs-found");
    await page.getByLabel("Job", { exact: true }).fill("fine-1");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "acme / fine-1" }).waitFor();
    await page.getByLabel("Job", { exact: true }).fill("no-such-job");
    await page.keyboard.press("Enter");
    await see("No tenant has a job no-such-job.");
  },

  async "a weight that is changed here holds in the fleet at once"() {
    await page.setViewportSize(SCREENS.wide);
    await view("tenants");
    await page.locator(".row", { hasText: "acme" }).click();
    await page.getByLabel("Weight", { exact: true }).fill("0");
    await page.getByRole("button", { name: "Save" }).click();
    assert.ok(await page.getByLabel("Weight", { exact: true }).evaluate((input) => !input.validity.valid), "0 is no weight");
    await page.getByLabel("Weight", { exact: true }).fill("3");
    await page.getByRole("button", { name: "Save" }).click();
    await see("Saved; it holds at once.");
    await eventually("the new weight", 10, async () => (await text("#weight-now")) === "3");
    const { tenants } = JSON.parse(fleet.run("top", "--once", "-o", "json"));
    assert.equal(tenants.find(({ tenant }) => tenant === "acme").weight, 3_000);
    await eventually("three fifths due", 10, async () => (await text('.row:has-text("acme") .c8')) === "60 %");
    await page.getByRole("button", { name: "Demote for 5 minutes" }).click();
    await page.locator(".row", { hasText: "acme" }).getByText(/demoted \d min/).waitFor();
    await looks.at("tenant");
    await page.setViewportSize(SCREENS.wide);
    await page.getByRole("button", { name: "Restore" }).click();
    await eventually("no demotion", 10, async () => !(await fleet.ask("fleet")).tenants.some(({ demoted }) => demoted));
  },

  async "all of it by keys alone"() {
    await page.evaluate(() => sessionStorage.clear());
    await page.goto(base);
    await page.reload();
    await page.keyboard.type(fleet.token());
    await page.keyboard.press("Enter");
    await live();
    const at = () => page.evaluate(() => document.activeElement.id || document.activeElement.textContent.slice(0, 40));
    /** Presses Tab until `wanted` has the focus; whoever has it on the way shows it. */
    const tabTo = async (wanted) => {
      for (let presses = 0; presses < 40; presses += 1) {
        await page.keyboard.press("Tab");
        const isSeen = await page.evaluate(() => {
          const here = document.activeElement;
          const shown = here.matches(".chip input") ? here.nextElementSibling : here;
          return here === document.body || getComputedStyle(shown).outlineStyle !== "none";
        });
        assert.ok(isSeen, `the focus on ${await at()} cannot be seen`);
        if (await page.evaluate((css) => document.activeElement.matches(css), wanted)) return;
      }
      throw new Error(`Tab does not come to ${wanted}; it is at ${await at()}`);
    };
    await tabTo("#tab-now");
    await page.keyboard.press("ArrowRight");
    assert.equal(await at(), "tab-tenants");
    await page.locator(".row").first().waitFor();
    await tabTo("#search");
    await page.keyboard.type("wallpaper");
    await eventually("one row", 5, async () => (await page.locator(".row").count()) === 1);
    await tabTo(".rows");
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "wallpaper-lite" }).waitFor();
    await page.locator("#weight").waitFor();
    await tabTo("#weight");
    await page.keyboard.type("2");
    await page.keyboard.press("Enter");
    await see("Saved; it holds at once.");
    await page.locator("#tab-tenants").focus();
    await page.keyboard.press("End");
    assert.equal(await at(), "tab-letters");
    await page.locator("a.group").first().waitFor();
    await tabTo("a.group");
    await page.keyboard.press("Enter");
    await page.locator("a.back").waitFor();
    await page.locator("a.group").first().waitFor();
    await tabTo("a.group");
    await page.keyboard.press("Enter");
    await see("Repair and send again");
    await tabTo("#preview");
    await page.keyboard.press("Enter");
    await page.getByLabel("What the repair changes").waitFor();
    await tabTo("#send");
    await page.keyboard.press("Enter");
    await page.getByRole("dialog").waitFor();
    assert.equal(await at(), "Not now", "nothing is sent by pressing Enter once too often");
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    await page.keyboard.press("Enter");
    await page.getByRole("dialog").waitFor();
    await page.keyboard.press("Shift+Tab");
    await page.keyboard.press("Enter");
    await page.locator(".badge", { hasText: "done" }).waitFor();
  },

  async "a thousand tenants"() {
    fleet.submit(Array.from({ length: MANY }, (_, at) => job(`tenant-${String(at).padStart(4, "0")}`, "one", { origin: "batch_job" })));
    await view("tenants");
    await eventually("a thousand tenants", 40, async () => Number(/([\d,]+) tenants/.exec(await text(".summary"))?.[1].replace(",", "")) > MANY);
    assert.ok((await page.locator(".row").count()) < 80, "rows out of sight do not exist");
    await looks.at("tenants-1000");
    await page.setViewportSize(SCREENS.wide);
    await page.locator(".rows").focus();
    await page.keyboard.press("End");
    const last = page.locator(".row.active");
    await last.waitFor();
    assert.equal(await last.getAttribute("aria-posinset"), await last.getAttribute("aria-setsize"));
    await page.getByLabel("Search tenants").fill("0777");
    await page.locator(".row", { hasText: "tenant-0777" }).click();
    await page.getByRole("heading", { name: "tenant-0777" }).waitFor();
    await see("Oldest");
    await looks.at("tenant-1000");
    await page.getByRole("tab", { name: "Now" }).click();
    await page.locator(".pool").first().waitFor();
    await looks.at("now-1000");
    await page.setViewportSize(SCREENS.wide);
  },

  async "what is old is told as old, until there is news"() {
    const scheduler = fleet.note().members.find(({ url }) => base.startsWith(url));
    process.kill(scheduler.pid, "SIGSTOP");
    try {
      await page.locator("#stale", { hasText: /What you see is \d+ s old/ }).waitFor();
      assert.equal(await text("#live"), "stale");
      await looks.at("stale");
    } finally {
      process.kill(scheduler.pid, "SIGCONT");
    }
    await live();
    await page.locator("#stale").waitFor({ state: "hidden" });
    // Not the process but its connection: begun anew.
    await page.route("**/v1/fleet/events", (route) => route.abort());
    await page.reload();
    await page.locator("#stale", { hasText: "Trying again" }).waitFor();
    await page.unroute("**/v1/fleet/events");
    await live();
  },

  async "a token that is taken back opens nothing any more"() {
    const tokens = readFileSync(fleet.tokensFile(), "utf8");
    await view("tenants/acme");
    await see("Settings");
    writeFileSync(fleet.tokensFile(), "operator another-token-altogether\n");
    try {
      await see("You were signed out: the token is not known any more.");
      assert.equal(await page.evaluate(() => sessionStorage.length), 0);
    } finally {
      writeFileSync(fleet.tokensFile(), tokens);
    }
  },

  async "nothing was asked of anybody else, and nothing went wrong in the page"() {
    const origin = new URL(base).origin;
    assert.deepEqual([...new Set(asked.map((url) => new URL(url).origin))], [origin]);
    assert.ok(asked.every((url) => !url.includes(fleet.token())), "a token was in an address");
    assert.deepEqual(complaints, []);
  },

  async "it looks as it should"() {
    looks.verdict();
  },
};

let failed = null;
const begun = Date.now();
const only = process.env.ONLY && new RegExp(process.env.ONLY);
for (const [name, step] of Object.entries(steps)) {
  if (only && !only.test(name)) continue;
  const from = Date.now();
  try {
    await step();
    console.log(`ok    ${name} (${((Date.now() - from) / 1_000).toFixed(1)} s)`);
  } catch (error) {
    failed = `FAIL  ${name}\n${error.stack}`;
    await page.screenshot({ path: join(shots, "failed.png") }).catch(() => {});
    break;
  }
}
await browser.close();
if (failed) console.error(`${failed}\nlooks: ${looks.faults.join("\n")}\nin the page: ${complaints.join("\n")}\nscreenshots: ${shots}\n${fleet.said()}`);
else console.log(`${looks.shots} looks, ${((Date.now() - begun) / 1_000).toFixed(0)} s`);
await fleet.stop();
if (!failed && !kept) rmSync(shots, { recursive: true });
process.exit(failed ? 1 : 0);
