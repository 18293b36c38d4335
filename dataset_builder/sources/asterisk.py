"""Asterisk core sounds, English: announcements of a telephone exchange, read by one voice actress (scripted).

Origin: the prompts of the Asterisk PBX, recorded by Allison Smith, (c) 2003-2010, financed by Digium.
Size: 568 prompts, 25 minutes, 8 kHz. Language: en-US. Licence: CC-BY-SA-3.0.

How to obtain: `apt-get install asterisk-core-sounds-en-wav asterisk-core-sounds-en` (Debian main). The first package
holds the recordings, the second their words:

    /usr/share/asterisk/sounds/en_US_f_Allison/*.wav
    /usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz      one `name: words` per line

These are announcements, not conversation: an episode lines up consecutive prompts of one application (voice mail,
conference, ...) and gives them to the two roles in turn. They serve as read speech of studio quality.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from sdiareward.chat_sdiareward import ROLES
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, Part, Turn
from sdiareward.pairs.schema import UNKNOWN, make_stable_id

from ..references import make_reference
from .reading import find_clip


DEFAULT_PATH = Path("/usr/share")
_SOUNDS = Path("asterisk/sounds/en_US_f_Allison")
_TRANSCRIPT = Path("doc/asterisk-core-sounds-en/core-sounds-en.txt.gz")
# The real list has 50 kilobytes; a small packed file could unpack to gigabytes.
_MAX_TRANSCRIPT_BYTES = 16 * 2**20
_TURNS_PER_EPISODE = 4
_MIN_WORDS = 3


def read_episodes(path: Path | None = None) -> Iterator[Episode | Skipped]:
    """Yield episodes of four prompts of one application.

    Args:
        path (`Path`, *optional*): The folder above `asterisk/` and `doc/`; `/usr/share` by default.

    Raises:
        FileNotFoundError: The recordings or the transcript are not there.
    """
    root = path or DEFAULT_PATH
    prompts: dict[str, Part] = {}
    for name, text in read_transcript(root / _TRANSCRIPT):
        prompt = _read_prompt(root, name, text, prompts)
        if isinstance(prompt, Skipped):
            yield prompt
        else:
            prompts[name] = prompt
    for application, members in groupby(sorted(prompts), key=lambda name: name.split("-")[0]):
        names = list(members)
        for start in range(0, len(names), _TURNS_PER_EPISODE):
            chosen = names[start : start + _TURNS_PER_EPISODE]
            if len(chosen) % 2:
                yield Skipped(
                    f"asterisk {chosen[-1]}", "no_answer", f"{application} has no prompt left to pair it with."
                )
            if even := chosen[: len(chosen) - len(chosen) % 2]:
                yield _make_episode(application, start, {name: prompts[name] for name in even})


def read_transcript(path: Path) -> Iterator[tuple[str, str]]:
    """Yield `(name, words)` of every prompt.

    Raises:
        FileNotFoundError: There is no transcript at `path`.
        ValueError: It cannot be unpacked.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: not found; apt-get install asterisk-core-sounds-en-wav asterisk-core-sounds-en, or give a path."
        )
    for line in _unpack(path).decode("utf-8", errors="replace").splitlines():
        name, separator, text = line.partition(":")
        if separator and not line.startswith(";"):
            yield name.strip(), text.strip()


def _unpack(path: Path) -> bytes:
    try:
        with gzip.open(path) as file:
            data = file.read(_MAX_TRANSCRIPT_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: cannot be unpacked ({error}); get the file again.") from error
    if len(data) > _MAX_TRANSCRIPT_BYTES:
        raise ValueError(f"{path}: unpacks to more than {_MAX_TRANSCRIPT_BYTES} bytes; take the file of the package.")
    return data


def _read_prompt(root: Path, name: str, text: str, known: Mapping[str, Part]) -> Part | Skipped:
    item, relative = f"asterisk {name}", f"{_SOUNDS.as_posix()}/{name}.wav"
    if name in known:
        return Skipped(item, "duplicate", "the transcript has it twice; the first line is kept.")
    if "[" in text:
        return Skipped(item, "no_speech", f"described as {text!r}; brackets stand for tones and music.")
    if len(text.split()) < _MIN_WORDS:
        return Skipped(item, "too_short", f"is {text!r}; a turn needs at least {_MIN_WORDS} words.")
    clip = find_clip(root, relative, item)
    return clip if isinstance(clip, Skipped) else Part(text, str(clip), ref=make_reference("asterisk", relative))


def _make_episode(application: str, start: int, prompts: Mapping[str, Part]) -> Episode:
    return Episode(
        name=f"{application}/{start}/{make_stable_id(*prompts)[:6]}",
        source="asterisk",
        subset="scripted",
        group=application,
        turns=tuple(Turn(ROLES[position % 2], (part,)) for position, part in enumerate(prompts.values())),
        primary="Inform",
        secondary=UNKNOWN,
        language="en-US",
        license="CC-BY-SA-3.0",
    )
