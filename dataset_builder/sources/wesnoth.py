"""The Battle for Wesnoth: written scenes of the campaigns of a fantasy game (text only).

Origin: what the characters of the campaigns say to each other between and in the battles. Size: about 2,500 exchanges
in sixteen campaigns of Debian 12. Language: en. Licence: GPL-2.0-or-later; some campaigns add CC-BY-SA-4.0.

How to obtain: `apt-get install wesnoth-1.16-httt wesnoth-1.16-did` and the like, one package for each campaign (Debian
main). Expected tree below `/usr/share/games/wesnoth/1.16/data/campaigns`:

    <campaign>/**/*.cfg               [message] speaker=<name> message= _ "<words>" [/message]

Messages one after another, with nothing but comments between them, are a scene. Whoever speaks next answers: a scene
is cut into dialogues of up to three exchanges, whose two roles may be spoken by more than two characters. Narration,
choices of the player and lines with a placeholder end a scene. Groups are the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from sdiareward.dataset_builder.episodes import Episode

from .reading import make_written_episode


DEFAULT_PATH = Path("/usr/share/games/wesnoth/1.16/data/campaigns")
_EXCHANGES_PER_EPISODE = 3
_MESSAGE = re.compile(r"\[message\]((?:(?!\[/?message\]).)*)\[/message\]", re.DOTALL)
_NOTHING = re.compile(r"(?:\s|#[^\n]*\n)*")
_SPEAKER = re.compile(r'^\s*(?:speaker|id)\s*=\s*"?([^"\n]*?)"?\s*$', re.MULTILINE)
_WORDS = re.compile(r'^\s*message\s*=\s*(?:\{\w+\s*\(?)?\s*_\s*"((?:[^"]|"")*)"', re.MULTILINE)
# Markup, and what a message begins with for translators.
_NOT_SAID = re.compile(r"^[^^]*\^|<[^>]*>")
Line = tuple[str, str]


def read_episodes(path: Path | None = None) -> Iterator[Episode]:
    """Yield dialogues of up to three exchanges, file by file.

    Args:
        path (`Path`, *optional*): The folder of the campaigns; Debian's place by default.

    Raises:
        FileNotFoundError: There are no campaigns.
    """
    root = path or DEFAULT_PATH
    files = sorted(root.glob("*/**/*.cfg"))
    if not files:
        raise FileNotFoundError(
            f"{root}: <campaign>/**/*.cfg not found; apt-get install wesnoth-1.16-httt and the like, or give a path."
        )
    for file in files:
        name = file.relative_to(root).with_suffix("").as_posix()
        scenes = read_scenes(file.read_text(encoding="utf-8", errors="replace"))
        starts = (
            scene[first : first + 2 * _EXCHANGES_PER_EPISODE] for scene in scenes for first in _list_starts(scene)
        )
        for number, lines in enumerate(starts):
            yield make_written_episode("wesnoth", name, number, [words for _, words in lines], "GPL-2.0-or-later")


def _list_starts(scene: Sequence[Line]) -> range:
    return range(0, len(scene) - 1, 2 * _EXCHANGES_PER_EPISODE)


def read_scenes(script: str) -> Iterator[list[Line]]:
    """Yield the lines of each scene, `(speaker, words)`, an even number; neighbouring lines have two speakers."""
    scene: list[Line] = []
    end = 0
    for message in _MESSAGE.finditer(script):
        if not _NOTHING.fullmatch(script, end, message.start()):
            yield _merge(scene)
            scene = []
        end = message.end()
        if line := _read_line(message[1]):
            scene.append(line)
        else:
            yield _merge(scene)
            scene = []
    yield _merge(scene)


def _read_line(message: str) -> Line | None:
    speaker, words = _SPEAKER.search(message), _WORDS.search(message)
    if not speaker or not words or speaker[1] in ("", "narrator") or re.search(r"\[option\]|\$", message):
        return None
    said = " ".join(_NOT_SAID.sub("", words[1]).replace('""', '"').replace("’", "'").split())
    return (speaker[1], said) if re.search(r"[a-z]", said) else None


def _merge(lines: Sequence[Line]) -> list[Line]:
    scene = [(name, " ".join(words for _, words in group)) for name, group in groupby(lines, key=itemgetter(0))]
    return scene[: len(scene) // 2 * 2]
