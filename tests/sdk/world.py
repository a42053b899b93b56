"""A fleet as its callers see it, and what its upstream knows."""

import collections
import json
from pathlib import Path

import anthropic
from suite.fleet import get

HERE = Path(__file__).parent
MODEL = "claude-haiku-4-5"


class World:
    def __init__(self, fleet):
        self.fleet = fleet
        self.secrets = {}

    def key(self, tenant):
        if tenant not in self.secrets:
            self.secrets[tenant] = self.fleet.run("tenant", "key", "create", tenant).strip()
        return self.secrets[tenant]

    def client(self, tenant="acme", **options):
        return anthropic.Anthropic(base_url=self.fleet.api_url, api_key=self.key(tenant), **options)

    def operator(self):
        """The token of an operator."""
        words = (self.fleet.scratch / "data" / "api-tokens").read_text().split()
        return words[words.index("operator") + 1]

    def paid(self):
        """Billed calls by prompt."""
        return collections.Counter(record["prompt_hash"] for record in self.records() if record["billed"])

    def records(self):
        """Ended calls as the upstream logged them."""
        return [json.loads(line) for line in get(f"{self.fleet.sim_url}/sim/log").splitlines()]


def ask(client, text, **options):
    options = {"model": MODEL, "max_tokens": 32, **options}
    return client.messages.create(messages=[{"role": "user", "content": text}], **options)
