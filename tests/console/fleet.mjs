// A fleet of `fairlane dev`, and what people would do to it from a terminal.

import { spawn, spawnSync } from "node:child_process";
import { closeSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const HAIKU = "claude-haiku-4-5";

/** Repeats `attempt` until it returns something true; the last trouble says what is wrong. */
export async function eventually(what, seconds, attempt) {
  const end = Date.now() + seconds * 1_000;
  for (;;) {
    let trouble = "it does not hold";
    try {
      const found = await attempt();
      if (found) return found;
    } catch (error) {
      trouble = error.message;
    }
    if (Date.now() > end) throw new Error(`${what}: ${trouble} after ${seconds} s`);
    await new Promise((wake) => setTimeout(wake, 150));
  }
}

export function job(tenant, id, more = {}) {
  return { id, tenant, origin: "user_action", kind: "tagging", prompt: `Five tags for picture ${id}`, model: HAIKU, max_tokens: 64, ...more };
}

export class Fleet {
  static async start(program, ...flags) {
    const fleet = new Fleet();
    fleet.program = program;
    fleet.dir = mkdtempSync(join(tmpdir(), "fairlane-console-"));
    fleet.env = { ...process.env, FAIRLANE_DEV_STATE: join(fleet.dir, "dev.json"), NO_COLOR: "1", FAIRLANE__SCHEDULER__CONSOLE_TRACE_URL: "http://traces.example/trace/{trace}" };
    delete fleet.env.ANTHROPIC_API_KEY;
    fleet.log = join(fleet.dir, "dev.log");
    const log = openSync(fleet.log, "w");
    fleet.process = spawn(program, ["dev", "--sim", ...flags], { cwd: fleet.dir, env: fleet.env, stdio: ["ignore", log, log] });
    closeSync(log);
    fleet.ended = new Promise((ended) => fleet.process.once("exit", ended));
    await eventually("a fleet that runs", 90, () => fleet.said().includes("Ctrl-C stops"));
    return fleet;
  }

  said = () => readFileSync(this.log, "utf8");

  note = () => JSON.parse(readFileSync(this.env.FAIRLANE_DEV_STATE, "utf8"));

  /** Where the console is, with the token that opens it, as `dev` prints it. */
  link = () => /console\s+(\S+)/.exec(this.said())[1];

  tokensFile = () => this.note().api_tokens;

  token = () => /operator (\S+)/.exec(readFileSync(this.tokensFile(), "utf8"))[1];

  member = (name) => this.note().members.find((member) => member.name === name);

  /** What a command prints. */
  run(...command) {
    const done = spawnSync(this.program, command, { cwd: this.dir, env: this.env, encoding: "utf8", timeout: 120_000 });
    if (![0, 1].includes(done.status)) throw new Error(`${command.join(" ")}: ${done.status} ${done.stdout}${done.stderr}`);
    return done.stdout;
  }

  /** Sends lines: jobs, or bytes as they are. */
  submit(lines, ...flags) {
    const path = join(this.dir, "jobs.jsonl");
    writeFileSync(path, Buffer.concat(lines.flatMap((line) => [Buffer.isBuffer(line) ? line : Buffer.from(JSON.stringify(line)), Buffer.from("\n")])));
    return this.run("submit", path, ...flags);
  }

  /** Asks the HTTP API of the scheduler whose console is open. */
  async ask(path) {
    const answer = await fetch(new URL(`/v1/${path}`, this.link()), { headers: { authorization: `Bearer ${this.token()}` } });
    return answer.json();
  }

  async stop() {
    this.process.kill("SIGTERM");
    const late = setTimeout(() => this.process.kill("SIGKILL"), 30_000);
    await this.ended;
    clearTimeout(late);
    rmSync(this.dir, { recursive: true, force: true });
  }
}
