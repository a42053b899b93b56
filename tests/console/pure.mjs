// The parts of the page that need no page, run where they will run: in the browser.

import assert from "node:assert/strict";

export async function pure(page, base) {
  const call = (file, name, ...given) => page.evaluate(async ([url, name, given]) => (await import(url))[name](...given), [new URL(file, base).href, name, given]);
  const table = async (file, name, rows) => {
    for (const [given, wanted] of rows) assert.deepEqual(await call(file, name, ...[given].flat()), wanted, `${name}(${given})`);
  };
  await table("format.js", "short", [[7, "7"], [9_999, "9999"], [12_345, "12.3k"], [4_500_000, "4.5M"], [7_200_000_000, "7.2G"]]);
  await table("format.js", "span", [[-5, "0 ms"], [320, "320 ms"], [3_250, "3.3 s"], [250_000, "4 min 10 s"], [7_500_000, "2 h 05 min"], [270_000_000, "3 d 03 h"]]);
  await table("format.js", "percent", [[0, "0 %"], [0.0007, "0.07 %"], [0.042, "4.2 %"], [0.5, "50 %"], [NaN, "–"]]);
  await table("format.js", "dollars", [[0, "$0"], [0.00042, "$0.00042"], [12.345, "$12.35"]]);
  await table("format.js", "many", [[[1, "job"], "1 job"], [[1_200, "job"], "1,200 jobs"]]);

  // What is changed is found, and both texts can be made again of what is told.
  const texts = ["", "a", "a\nb\nc", "a\nc", "b\nb\nb", "c\nb\na", "x\na\nb\nc\ny"];
  for (const before of texts) {
    for (const after of texts) {
      const lines = await call("diff.js", "lineDiff", before, after);
      const side = (sign) => lines.filter(([mark]) => mark === " " || mark === sign).map(([, line]) => line).join("\n");
      assert.deepEqual([side("-"), side("+")], [before, after], JSON.stringify(lines));
      if (before === after) assert.ok(lines.every(([mark]) => mark === " "));
    }
  }
  assert.deepEqual(await call("diff.js", "lineDiff", "a\nb\nc", "a\nc"), [[" ", "a"], ["-", "b"], [" ", "c"]]);
  const escaped = (bytes) => page.evaluate(async ([url, list]) => (await import(url)).escaped(Uint8Array.from(list)), [new URL("diff.js", base).href, bytes]);
  assert.equal(await escaped([0x61, 0xff, 0xe6, 0xb7, 0xa1, 0xe6, 0xb7, 0xed, 0xa0, 0x80, 0xf0, 0x9f, 0x8c, 0x8a]), "a\\xff淡\\xe6\\xb7\\xed\\xa0\\x80🌊");
  assert.equal(await escaped([0xef, 0xbb, 0xbf, 0x7b]), "\ufeff{");

  const record = (more) => ({ accepted_ms: 1_000, phase: "done", tries: [], ...more });
  const one = (at_ms, latency_ms, outcome) => ({ at_ms, latency_ms, outcome, model: "m" });
  const sorts = async (given, now) => (await call("jobs.js", "stretches", given, now)).map(({ from, to, sort }) => [sort, from, to]);
  assert.deepEqual(await sorts(record({ phase: "queued" }), 5_000), [["wait", 1_000, 5_000]]);
  assert.deepEqual(await sorts(record({ phase: "generating", started_ms: 2_000 }), 5_000), [["wait", 1_000, 2_000], ["call-now", 2_000, 5_000]]);
  const tries = [one(3_000, 1_000, "overloaded"), one(9_000, 500, "done")];
  assert.deepEqual(await sorts(record({ finished_ms: 9_000, tries }), 99_000), [["wait", 1_000, 2_000], ["call-bad", 2_000, 3_000], ["between", 3_000, 8_500], ["call-good", 8_500, 9_000]]);
  assert.deepEqual(await sorts(record({ phase: "retrying", tries: tries.slice(0, 1) }), 4_000), [["wait", 1_000, 2_000], ["call-bad", 2_000, 3_000], ["between", 3_000, 4_000]]);
  // A clock that is off makes nothing negative.
  for (const [, from, to] of await sorts(record({ finished_ms: 500, tries: [one(400, 9_000, "done")] }), 0)) assert.ok(to >= from);
}
