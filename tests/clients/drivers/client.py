"""What the suite wants of nats-py. Verbs and answers are described in suite/clients.py."""

import asyncio
import base64
import json
import os
import sys

import nats
from nats.js.errors import KeyNotFoundError, NotFoundError

FINAL = ("done", "failed", "cancelled")


def say(value):
    print(json.dumps(value), flush=True)


def message(found):
    own = {name: text for name, text in (found.headers or {}).items() if not name.startswith("Nats-")}
    body = base64.b64encode(found.data or b"").decode()
    say({"subject": found.subject, "seq": found.seq, "headers": own, "body": body})


async def publish(js, subject, *headers):
    given = dict(header.split("=", 1) for header in headers)
    ack = await js.publish(subject, sys.stdin.buffer.read(), headers=given or None)
    say({"stream": ack.stream, "seq": ack.seq, "duplicate": bool(ack.duplicate)})


async def record(js, bucket, key):
    status = await js.key_value(bucket)
    try:
        say(json.loads((await status.get(key)).value))
    except KeyNotFoundError:
        say(None)


async def follow(js, bucket, key):
    watch = await (await js.key_value(bucket)).watch(key)
    say("ready")
    async for entry in watch:
        if entry and entry.value:
            found = json.loads(entry.value)
            say(found)
            if found["phase"] in FINAL:
                return


async def last(js, stream, subject):
    try:
        message(await js.get_last_msg(stream, subject, direct=True))
    except NotFoundError:
        say(None)


async def at(js, stream, seq):
    try:
        message(await js.get_msg(stream, int(seq), direct=True))
    except NotFoundError:
        say(None)


async def subjects(js, stream, subject_filter):
    info = await js.stream_info(stream, subjects_filter=subject_filter)
    say(info.state.subjects or {})


async def main(verb, *arguments):
    nc = await nats.connect(os.environ["NATS_URL"])
    await VERBS[verb](nc.jetstream(), *arguments)
    await nc.close()


VERBS = {"publish": publish, "record": record, "follow": follow, "last": last, "at": at, "subjects": subjects}

asyncio.run(main(*sys.argv[1:]))
