"""Publishes a job, waits for its outcome and prints the answer. Needs: pip install nats-py"""

import asyncio
import json
import os
import uuid

import nats

TENANT = "acme"


async def main():
    nc = await nats.connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222"))
    js = nc.jetstream()
    job = str(uuid.uuid4())
    body = {
        "id": job,
        "origin": "user_action",
        "kind": "short_summary",
        "model": "claude-haiku-4-5-20251001",
        "prompt": "Say in one sentence what a message queue is for.",
    }
    # When this returns, the job is stored and cannot get lost any more.
    await js.publish(f"fl.submit.{TENANT}", json.dumps(body).encode())
    record = await asyncio.wait_for(outcome(js, job), timeout=120)
    await nc.close()
    if record["phase"] != "done":
        raise SystemExit(f"{TENANT}/{job} {record['phase']}: {record.get('failure')}")
    texts = [block["text"] for block in record["result"]["content"] if block["type"] == "text"]
    print(f"{TENANT}/{job}:", "".join(texts))


async def outcome(js, job):
    status = await js.key_value("fl_status")
    async for entry in await status.watch(f"{TENANT}.{job}"):
        # The watch says None when there is nothing yet.
        record = json.loads(entry.value) if entry and entry.value else {}
        if record.get("phase") in ("done", "failed", "cancelled"):
            return record


asyncio.run(main())
