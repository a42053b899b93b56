"""The keys that the programs read, from crates/runtime/fairlane.example.toml, which their own tests hold to the code."""

import re
import tomllib

from chart import ROOT

EXAMPLE = ROOT / "crates" / "runtime" / "fairlane.example.toml"
# Tables whose entries the user names; the example shows one entry of each.
MAPS = {("limits", "pools"), ("models",), ("prices",), ("tenants",)}


def example():
    """Every key with its default, or an example value."""
    lines = []
    for line in EXAMPLE.read_text().splitlines():
        if re.match(r"#[a-z]", line):
            line = line[1:]
        elif line.startswith("#   "):
            line = line[4:]
        lines.append(line)
    return tomllib.loads("\n".join(lines))


def unknown_keys(config):
    """What in a configuration the programs would refuse: names they do not know and values of another kind."""
    return list(compare(config, example(), ()))


def compare(config, known, path):
    for key, value in config.items():
        here = (*path, key)
        if path in MAPS:
            [entry] = known.values()
            yield from compare(value, entry, here)
        elif key not in known:
            yield f"{'.'.join(here)} does not exist"
        elif isinstance(value, dict) and isinstance(known[key], dict):
            yield from compare(value, known[key], here)
        elif not same_kind(value, known[key]):
            yield f"{'.'.join(here)} is {value!r}, and the example has {known[key]!r}"


def same_kind(value, known):
    # The example says so of what is not set.
    if known == "":
        return True
    # A whole number will do where a number is asked for, but not the other way round.
    return type(value) is type(known) or (type(value) is int and type(known) is float)
