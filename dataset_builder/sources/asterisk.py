"""Asterisk core sounds, English: announcements of a telephone exchange, read by one voice actress (scripted).

Origin: the prompts of the Asterisk PBX, recorded by Allison Smith, (c) 2003-2010, financed by Digium.
Size: 568 prompts, 25 minutes, 8 kHz. Language: en-US. Licence: CC-BY-SA-3.0.

How to obtain: `apt-get install asterisk-core-sounds-en-wav asterisk-core-sounds-en` (Debian main). The first package
holds the recordings, the second their words:

    /usr/share/asterisk/sounds/en_US_f_Allison/*.wav
    /usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz      one `name: words` a line

These are announcements, not conversation: an episode lines up consecutive prompts of one application (voice mail,
conference, ...) and gives them to the two roles in turn. They serve as read speech of studio quality.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from sdiareward.dataset_builder.schema import UNKNOWN, Episode, Part, Turn, stable_id


DEFAULT_PATH = Path("/usr/share")
_SOUNDS = Path("asterisk/sounds/en_US_f_Allison")
_TRANSCRIPT = Path("doc/asterisk-core-sounds-en/core-sounds-en.txt.gz")
_TURNS_PER_EPISODE = 4
_MIN_WORDS = 3


def episodes(path: Path | None = None) -> Iterator[Episode]:
    """Yield episodes of four prompts of one application.

    Args:
        path (`Path`, *optional*): The folder above `asterisk/` and `doc/`; `/usr/share` by default.

    Raises:
        FileNotFoundError: The recordings or the transcript are not there.
    """
    root = path or DEFAULT_PATH
    prompts = [(name, text) for name, text in read_transcript(root / _TRANSCRIPT) if _is_speech(root, name, text)]
    for application, members in groupby(sorted(prompts), key=lambda prompt: prompt[0].split("-")[0]):
        group = list(members)
        for start in range(0, len(group) - len(group) % 2, _TURNS_PER_EPISODE):
            chosen = group[start : start + _TURNS_PER_EPISODE]
            yield _episode(root, application, start, chosen[: len(chosen) - len(chosen) % 2])


def read_transcript(path: Path) -> Iterator[tuple[str, str]]:
    """Yield `(name, words)` of every prompt.

    Raises:
        FileNotFoundError: There is no transcript at `path`.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: not found; apt-get install asterisk-core-sounds-en-wav asterisk-core-sounds-en, or give a path."
        )
    for line in gzip.decompress(path.read_bytes()).decode("utf-8", errors="replace").splitlines():
        name, separator, text = line.partition(":")
        if separator and not line.startswith(";"):
            yield name.strip(), text.strip()


def _is_speech(root: Path, name: str, text: str) -> bool:
    """Tones are described in brackets; single words make no turn."""
    return "[" not in text and len(text.split()) >= _MIN_WORDS and (root / _SOUNDS / f"{name}.wav").is_file()


def _episode(root: Path, application: str, start: int, prompts: list[tuple[str, str]]) -> Episode:
    turns = tuple(
        Turn(("user", "assistant")[position % 2], (Part(text, str(root / _SOUNDS / f"{name}.wav")),))
        for position, (name, text) in enumerate(prompts)
    )
    return Episode(
        name=f"{application}/{start}/{stable_id(*(name for name, _ in prompts))[:6]}",
        source="asterisk",
        subset="scripted",
        group=application,
        turns=turns,
        primary="Inform",
        secondary=UNKNOWN,
        language="en-US",
        license="CC-BY-SA-3.0",
    )
