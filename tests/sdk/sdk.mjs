// The TypeScript SDK, unmodified, pointed at a fleet by baseURL alone. Ends with 1 and the reason if anything is wrong.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.env.API_URL, apiKey: process.env.API_KEY });
const model = "claude-haiku-4-5";
const user = (content) => [{ role: "user", content }];

const answer = await client.messages.create({ model, max_tokens: 32, messages: user("hello [[sim:out=7]]") });
assert.equal(answer.stop_reason, "end_turn");
assert.equal(answer.usage.output_tokens, 7);

const names = [];
const stream = client.messages.stream({ model, max_tokens: 64, messages: user("tell me [[sim:out=60]]") });
for await (const event of stream) names.push(event.type);
const final = await stream.finalMessage();
assert.equal(names[0], "message_start");
assert.equal(names.at(-1), "message_stop");
assert.equal(final.usage.output_tokens, 60);

const tool = { name: "find", input_schema: { type: "object", properties: { q: { type: "string" } }, required: ["q"] } };
const called = await client.messages.create({
  model, max_tokens: 200, messages: user("use it"), tools: [tool], tool_choice: { type: "tool", name: "find" },
});
assert.equal(called.stop_reason, "tool_use");

const counted = await client.messages.countTokens({ model, messages: user("word ".repeat(100)) });
assert.ok(counted.input_tokens > 50);

await assert.rejects(
  client.messages.create({ model, max_tokens: -1, messages: user("x") }),
  (error) => error instanceof Anthropic.BadRequestError && error.error.type === "error",
);
await assert.rejects(
  new Anthropic({ baseURL: process.env.API_URL, apiKey: "flk_no" }).messages.create({ model, max_tokens: 9, messages: user("x") }),
  Anthropic.AuthenticationError,
);

const requests = [1, 2, 3].map((n) => ({ custom_id: `t${n}`, params: { model, max_tokens: 9, messages: user(`item ${n}`) } }));
let batch = await client.messages.batches.create({ requests });
for (let tries = 0; batch.processing_status !== "ended" && tries < 200; tries += 1) {
  await new Promise((wake) => setTimeout(wake, 300));
  batch = await client.messages.batches.retrieve(batch.id);
}
assert.equal(batch.request_counts.succeeded, 3);
const results = [];
for await (const line of await client.messages.batches.results(batch.id)) results.push(line.custom_id);
assert.deepEqual(results.sort(), ["t1", "t2", "t3"]);

const key = { headers: { "idempotency-key": `ts-${Date.now()}` } };
const first = await client.messages.create({ model, max_tokens: 9, messages: user("once") }, key);
const second = await client.messages.create({ model, max_tokens: 9, messages: user("once") }, key);
assert.equal(first.id, second.id);
