"""Pages for people, run as they are read: every block of commands, in order, against one running fleet.

A block is what stands between ``` or is indented by four spaces. What it is, its language says, or its first word:

| block | what is done with it |
|---|---|
| commands | run by bash, one session a page; each must end with 0 |
| configuration (`[section]`) | read by `fairlane config show` |
| JSON, a line each or one document; Python | parsed |
| anything else | nothing |

A comment on the line above changes that:

    <!-- not run: REASON -->         its syntax is checked, and that the commands and flags of `fairlane` exist
    <!-- run by: tests/PATH -->      the same; another suite runs it, and names the page
    <!-- run: until it succeeds -->  commands that wait for something a person would wait for
    <!-- output -->                  lines that the commands before it print, in this order; `...` stands for anything

and a comment that begins with `<!-- before` holds commands that are run before the block and shown to nobody.
"""

import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

from .clients import HERE


TOP = HERE.parents[1]
PAGES = (
    "README.md",
    "deploy/README.md",
    "deploy/tutorial.md",
    "deploy/concepts.md",
    "deploy/tracing.md",
    "deploy/operations.md",
    "deploy/api.md",
)
PROGRAMS = {"bash", "cargo", "curl", "docker", "echo", "export", "fairlane", "helm", "kubectl", "nats", "target/release/fairlane"}
SHELLS = {"sh", "bash"}
# Markers of other suites that run a block; they fail by themselves if it is gone.
ELSEWHERE = re.compile(r"(ci|drill): \w+")
PAGE_SECONDS = 180
SEPARATOR = "\x1e"


class Block:
    def __init__(self, page, line, language, text, marker, before):
        self.page, self.line, self.language, self.text = page, line, language, text
        self.word, _, self.argument = (marker or "").partition(": ")
        self.before = before

    def __str__(self):
        return f"{self.page}:{self.line}"

    @property
    def kind(self):
        first = self.text.split(maxsplit=1)[0] if self.text.strip() else ""
        if self.word == "output":
            return "output"
        if self.language in SHELLS or (not self.language and (first in PROGRAMS or re.match(r"\w+=\S* \S", self.text))):
            return "commands"
        if self.language in ("toml", "json", "python"):
            return self.language
        if not self.language and re.match(r"\[[\w.<>\"-]+\]\n", self.text):
            return "toml"
        if not self.language and self.text.startswith("{"):
            return "json"
        if not self.language and re.match(r"import |from \w+ import ", self.text):
            return "python"
        return "other"


def blocks(page):
    """The blocks of a page, in order."""
    lines = (TOP / page).read_text().splitlines()
    found, marker, before, at = [], None, "", 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("<!-- before"):
            end = next(n for n in range(at, len(lines)) if lines[n].endswith("-->"))
            before = "\n".join(lines[at + 1 : end])
            at = end + 1
        elif line.startswith("<!-- ") and line.endswith(" -->"):
            marker = line[5:-4]
            at += 1
        elif line.startswith("```"):
            end = next(n for n in range(at + 1, len(lines)) if lines[n].startswith("```"))
            text = "\n".join(lines[at + 1 : end]) + "\n"
            found.append(Block(page, at + 1, line[3:].strip(), text, marker, before))
            marker, before, at = None, "", end + 1
        elif line.startswith("    ") and (at == 0 or not lines[at - 1] or lines[at - 1].endswith("-->")):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end]):
                end += 1
            text = "\n".join(row[4:] for row in lines[at:end]).rstrip() + "\n"
            found.append(Block(page, at + 1, "", text, marker, before))
            marker, before, at = None, "", end
        else:
            if line:
                marker = None
            at += 1
    return found


class Pages:
    def __init__(self, fleet, tools):
        self.fleet, self.tools = fleet, tools
        self.helps = {}

    def check(self, page):
        """Every block of a page."""
        steps = []
        for block in blocks(page):
            if block.kind == "commands" and block.word in ("", "run"):
                steps.append((block, None))
            elif block.kind == "output":
                assert steps and steps[-1][1] is None, f"{block}: no commands before it"
                steps[-1] = (steps[-1][0], block)
            else:
                self.look(block)
        with tempfile.TemporaryDirectory(prefix="fairlane-page-") as folder:
            self.run(page, steps, Path(folder))
        return len(steps)

    def look(self, block):
        """What is not run is at least what it says it is."""
        if block.word == "run by":
            assert (TOP / block.argument).is_file(), f"{block}: there is no {block.argument}"
            suite = (TOP / block.argument).read_text()
            assert Path(block.page).name in suite, f"{block}: {block.argument} does not name the page"
        elif block.kind == "commands" and not ELSEWHERE.fullmatch(f"{block.word}: {block.argument}"):
            assert block.word == "not run" and block.argument, f"{block}: say why it is not run, not {block.word!r}"
        if block.kind == "commands":
            self.syntax(block)
        elif block.kind == "toml":
            self.configuration(block)
        elif block.kind == "json":
            documents = [block.text] if block.text.startswith("{\n") else block.text.splitlines()
            for document in documents:
                json.loads(document)
        elif block.kind == "python":
            compile(block.text, str(block), "exec")

    def syntax(self, block):
        checked = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
        assert checked.returncode == 0, f"{block}: {checked.stderr}"
        joined = block.text.replace("\\\n", " ")
        for command in re.findall(r"^(?:[A-Z_]+=\S+ )*(?:target/release/)?fairlane (.*)$", joined, re.M):
            words = command.split("#")[0].split()
            verbs = []
            while words and re.fullmatch(r"[a-z]+", words[0]) and len(verbs) < 3 and self.help(*verbs, words[0]):
                verbs.append(words.pop(0))
            told = self.help(*verbs) or self.help()
            for flag in re.findall(r"(?<=\s)--[a-z-]+", " " + command):
                assert re.search(rf"{flag}\b", told), f"{block}: fairlane {' '.join(verbs)} has no {flag}"

    def help(self, *verbs):
        """The help of a command; None if there is none of this name."""
        if verbs not in self.helps:
            asked = subprocess.run([self.fleet.program, *verbs, "--help"], capture_output=True, text=True)
            # A word that is no command is an argument of the one before, whose help is shown again.
            is_command = asked.returncode == 0 and f"Usage: fairlane {' '.join(verbs)}".strip() in asked.stdout
            self.helps[verbs] = asked.stdout if is_command else None
        return self.helps[verbs]

    def configuration(self, block):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(block.text)
            file.flush()
            self.fleet.run("config", "show", "--config", file.name)

    def run(self, page, steps, folder):
        self.make_workspace(folder)
        script = "".join(self.step(number, block) for number, (block, _) in enumerate(steps))
        ended = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=self.environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PAGE_SECONDS,
        )
        parts = ended.stdout.split(SEPARATOR)[1:]
        if ended.returncode != 0:
            block = steps[max(len(parts) - 1, 0)][0]
            raise AssertionError(f"{block} ends with {ended.returncode}:\n{block.text}---\n{(parts or [''])[-1]}")
        for (block, output), printed in zip(steps, parts, strict=True):
            if output:
                shows(output, printed)

    @staticmethod
    def step(number, block):
        text = block.text
        if block.argument == "until it succeeds":
            text = f"for _try in {{1..240}}; do if {{ {text}\n}}; then break; fi; sleep 0.25; [ $_try -lt 240 ]; done\n"
        return f"{block.before}\nprintf '{SEPARATOR}'\n{text}\n"

    def make_workspace(self, folder):
        """As if the reader stood at the top of the tree, with the program built."""
        release = folder / "target" / "release"
        release.mkdir(parents=True)
        (release / "fairlane").symlink_to(self.fleet.program)
        for name in ("deploy", "helm", "tests"):
            (folder / name).symlink_to(TOP / name)
        # Where the tutorial has `fairlane dev` keep its data.
        (folder / "fairlane-data").symlink_to(self.fleet.scratch / "data")

    def environment(self, folder):
        places = [folder / "target" / "release", Path(self.tools["nats"]).parent, os.environ["PATH"]]
        return {
            **self.fleet.environment,
            "PATH": os.pathsep.join(map(str, places)),
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "NO_COLOR": "1",
            "FAIRLANE_CONTEXTS": str(folder / "contexts.json"),
            # What the reader takes from the words of `fairlane dev`.
            "NATS_URL": self.fleet.nats_url,
            "FAIRLANE_API": self.fleet.api_url,
        }


def shows(output, printed):
    """Lines of a page stand in what was printed, in this order."""
    lines = iter(printed.splitlines())
    for wanted in output.text.splitlines():
        if wanted.strip() in ("", "..."):
            continue
        pattern = ".*".join(re.escape(part.strip()) for part in re.split(r"\.\.\.", wanted))
        assert any(re.search(pattern, squeezed(line)) or re.search(pattern, line) for line in lines), (
            f"{output}: {wanted!r} is not in\n{printed}"
        )


def squeezed(line):
    """Columns are as wide as what is in them: one space between two is enough."""
    return re.sub(r"  +", "  ", line)
