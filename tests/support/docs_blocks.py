"""Find the code blocks of the guides, and the commands in shell blocks.

The line before a block may say what it requires, `<!-- given: dialogues, runs/calibrated -->`, or why it does not run
here, `<!-- not run: reason -->`.
"""

import re
import shlex
from typing import NamedTuple

from support.paths import ROOT


GUIDES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NOTE = re.compile(r"<!-- (not run|given): *(.*?) *-->\n\Z")
# Their arguments are not checked.
FOREIGN = {"cd", "curl", "docker", "export", "git", "hf", "kill", "pip-licenses", "vllm"}
_SCRIPTS = {
    "sdiareward": "sdiareward.cli",
}
_LAUNCHERS = ("accelerate", "torchrun")


class Block(NamedTuple):
    """A fenced block of code, and the note before it."""

    place: str
    language: str
    code: str
    not_run: str | None
    given: tuple[str, ...]


def find_blocks(text, name):
    blocks = []
    for fence in _FENCE.finditer(text):
        place = f"{name}:{text.count(chr(10), 0, fence.start()) + 1}"
        note = _NOTE.search(text, 0, fence.start())
        kind, content = note.groups() if note else (None, "")
        given = tuple(re.split(r",\s*", content)) if kind == "given" else ()
        blocks.append(Block(place, *fence.groups(), content if kind == "not run" else None, given))
    return blocks


def all_blocks(*languages):
    blocks = [block for path in GUIDES for block in find_blocks(path.read_text(encoding="utf-8"), path.name)]
    return [block for block in blocks if block.language in languages]


def split_commands(code):
    """Return the words of each command, without comments, variables and line breaks."""
    commands, pending = [], ""
    for line in code.replace("\\\n", " ").splitlines():
        pending += line + "\n"
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:  # A quotation that goes on in the next line.
            continue
        pending = ""
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words:
            commands.append([word for word in words if word != "&"])
    if pending.strip():
        raise ValueError(f"a quotation is not closed: {pending.strip()!r}")
    return commands


def module_of(words):
    """Return the module of ours that a command runs and its arguments, or None; raise for an unknown program."""
    program, arguments = words[0], words[1:]
    if program in _SCRIPTS:
        return _SCRIPTS[program], arguments
    if program in _LAUNCHERS:
        arguments = _behind_launcher(arguments)
    elif program != "python":
        if program in FOREIGN or program in ("make", "pip"):
            return None
        raise ValueError(f"unknown program {program!r}; is it misspelt?")
    if arguments[0] == "-m":
        # In the repository the builder is also `dataset_builder`.
        return re.sub(r"^(?=dataset_builder)", "sdiareward.", arguments[1]), arguments[2:]
    return f"sdiareward.{arguments[0].removesuffix('.py').replace('/', '.')}", arguments[1:]


def _behind_launcher(arguments):
    """Return a launcher's arguments from the module or script on."""
    starts = [index for index, word in enumerate(arguments) if word == "-m" or word.endswith(".py")]
    return arguments[starts[0] :]
