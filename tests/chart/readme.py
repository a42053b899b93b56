"""The table of values in helm/fairlane/README.md, from the comments in values.yaml.

    readme.py           says whether it is up to date
    readme.py --write   brings it up to date

A comment stands directly above its key. A key whose children have comments is a heading; any other is a row with its
default. Every value has a comment, its own or that of a key above it whose default is shown whole.
"""

import json
import sys

import yaml

from chart import CHART

BEGIN = "<!-- values: written by tests/chart/readme.py from values.yaml -->\n"
END = "<!-- end of values -->\n"


class Undocumented(Exception):
    """A value without a comment."""


def rows():
    """(path, default or None for a heading, text) in the order of values.yaml."""
    text = (CHART / "values.yaml").read_text()
    return list(walk(yaml.compose(text, yaml.CSafeLoader), text.splitlines(), ()))


def walk(mapping, lines, path):
    for key, value in mapping.value:
        here = (*path, key.value)
        comment = comment_above(lines, key.start_mark)
        inner = value.value if isinstance(value, yaml.MappingNode) else []
        if any(comment_above(lines, child.start_mark) for child, _ in inner):
            if comment:
                yield here, None, comment
            yield from walk(value, lines, here)
        elif comment:
            yield here, yaml.CSafeLoader("").construct_document(value), comment
        else:
            raise Undocumented(".".join(here))


def comment_above(lines, mark):
    found = []
    for line in reversed(lines[: mark.line]):
        if not line.startswith(" " * mark.column + "# "):
            break
        found.insert(0, line[mark.column + 2 :])
    return " ".join(found)


def table():
    written = ["| value | default | |\n", "|---|---|---|\n"]
    for path, default, text in rows():
        shown = "" if default is None and text_is_heading(path) else f"`{json.dumps(default, ensure_ascii=False)}`"
        cell = text.replace("|", "\\|")
        written.append(f"| `{'.'.join(path)}` | {shown} | {cell} |\n")
    return "".join(written)


def text_is_heading(path):
    value = yaml.safe_load((CHART / "values.yaml").read_text())
    for key in path:
        value = value[key]
    return isinstance(value, dict)


def expected(readme):
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    path = CHART / "README.md"
    wanted = expected(path.read_text())
    if "--write" in sys.argv:
        path.write_text(wanted)
    elif wanted != path.read_text():
        sys.exit(f"{path} does not match values.yaml; run tests/chart/readme.py --write")
