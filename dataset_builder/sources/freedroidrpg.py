"""FreedroidRPG: written dialogues of a role-playing game, between the player and the others (text only).

Origin: the conversations of the game, a science fiction set in a town besieged by robots: the player asks, somebody
answers. Size: about 1,150
exchanges with 71 characters. Language: en. Licence: GPL-2.0-or-later.

How to obtain: `apt-get install freedroidrpg-data` (Debian main). Expected tree below `/usr/share/freedroidrpg`:

    data/**/dialogs/<character>.lua   { id = ..., text = _"<the player's line>", code = function() ... end }

A conversation is a table of nodes, and the player chooses the next one. The calls `Npc:says(_"...")` and
`Tux:says(_"...")` of its code follow the player's line; of alternatives (`if`) the first one is read, whatever its
condition, and of random lines (`says_random`) the first. In the order of the file, neighbouring nodes are about one
matter: up to three exchanges in a row are a dialogue. A line with a placeholder (`%s`), or without any word, ends it.
Computer terminals (`cli_says`) are left out. Groups are the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode

from .reading import make_written_episode


DEFAULT_PATH = Path("/usr/share/freedroidrpg")
_EXCHANGES_PER_EPISODE = 3
_STRING = r'(?:\[\[(?P<long>.*?)\]\]|"(?P<short>(?:[^"\\]|\\.)*)")'
_TOKEN = re.compile(
    r"--\[\[.*?\]\]|--[^\n]*"
    rf"|(?:(?P<node>\btext\s*=)|(?P<speaker>\bNpc|\bTux):says(?:_random)?\()\s*_?{_STRING}"
    r"|\[\[.*?\]\]|\"(?:[^\"\\]|\\.)*\""
    r"|\b(?P<silent>echo_text\s*=\s*false)|\b(?P<word>if|elseif|else|function|do|end)\b",
    re.DOTALL,
)
_WORD = re.compile(r"[^\W\d_]{2}")
Line = tuple[str, str]


def read_episodes(path: Path | None = None) -> Iterator[Episode | Skipped]:
    """Yield dialogues of up to three exchanges, file by file.

    Args:
        path (`Path`, *optional*): The folder above `data/`; Debian's place by default.

    Raises:
        FileNotFoundError: There are no dialogues.
    """
    root = path or DEFAULT_PATH
    files = sorted((root / "data").glob("**/dialogs/*.lua"))
    if not files:
        raise FileNotFoundError(
            f"{root}: data/**/dialogs/*.lua not found; apt-get install freedroidrpg-data, or give a path."
        )
    for file in files:
        name = file.relative_to(root / "data").with_suffix("").as_posix()
        script = file.read_text(encoding="utf-8", errors="replace")
        if "cli_says" in script:
            yield Skipped(f"freedroidrpg {name}", "no_dialogue", "a computer terminal: nobody speaks.")
            continue
        for number, exchanges in enumerate(_cut([read_exchanges(lines) for lines in read_nodes(script)])):
            turns = [words for exchange in exchanges for words in exchange]
            yield make_written_episode("freedroidrpg", name, number, turns, "GPL-2.0-or-later")


def read_nodes(script: str) -> Iterator[list[Line]]:
    """Yield the lines of each node, `(role, words)`, along the first of its alternatives."""
    lines: list[Line] = []
    # Blocks that are open, and whether their statements are read.
    blocks: list[tuple[str, bool]] = []
    for token in _TOKEN.finditer(script):
        is_read = all(read for _, read in blocks)
        if token["node"]:
            yield lines
            lines, blocks = [("user", _read_words(token))], []
        elif token["speaker"] and is_read:
            lines.append(("user" if token["speaker"] == "Tux" else "assistant", _read_words(token)))
        elif token["silent"]:
            # The text names the player's choice; nobody speaks it.
            lines = []
        elif token["word"] == "end":
            blocks = blocks[:-1]
        elif token["word"] in ("elseif", "else") and blocks:
            blocks[-1] = (blocks[-1][0], False)
        elif token["word"] and token["word"] not in ("elseif", "else"):
            blocks.append((token["word"], True))
    yield lines


def _read_words(token: re.Match[str]) -> str:
    words = (
        token["long"]
        if token["short"] is None
        else re.sub(r"\\(.)", lambda found: {"n": " "}.get(found[1], found[1]), token["short"])
    )
    return " ".join((words or "").split())


def read_exchanges(lines: Iterable[Line]) -> list[tuple[str, str]]:
    """Return what the player says, and the answer to it, up to the first unusable line."""
    turns = [(role, " ".join(words for _, words in group)) for role, group in groupby(lines, key=itemgetter(0))]
    if turns and turns[0][0] != "user":
        turns = turns[1:]
    exchanges = []
    for (_, asked), (_, answer) in zip(turns[::2], turns[1::2], strict=False):
        if not all(_WORD.search(words) and "%" not in words for words in (asked, answer)):
            break
        exchanges.append((asked, answer))
    return exchanges


def _cut(nodes: Iterable[list[tuple[str, str]]]) -> Iterator[list[tuple[str, str]]]:
    """Yield up to three consecutive exchanges; a node without any ends them."""
    for is_usable, group in groupby(nodes, key=bool):
        exchanges = [exchange for node in group for exchange in node]
        for start in range(0, len(exchanges) if is_usable else 0, _EXCHANGES_PER_EPISODE):
            yield exchanges[start : start + _EXCHANGES_PER_EPISODE]
