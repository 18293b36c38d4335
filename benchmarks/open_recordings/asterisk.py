"""Asterisk core sounds, English: announcements of a telephone exchange, read by one voice actress.

    apt-get install asterisk-core-sounds-en-wav asterisk-core-sounds-en
    python -m benchmarks.open_recordings.asterisk /usr/share runs/audio/asterisk

568 prompts of the Asterisk PBX, 25 minutes, 8 kHz, recorded by Allison Smith, (c) 2003-2010, financed by Digium;
CC-BY-SA-3.0. The first package holds the recordings, `asterisk/sounds/en_US_f_Allison/*.wav`, the second their words,
`doc/asterisk-core-sounds-en/core-sounds-en.txt.gz`, one `name: words` per line.

These are announcements, not conversation: a dialogue lines up consecutive prompts of one application (voice mail,
conference, ...) and gives them to the two roles in turn. They serve as read speech of studio quality.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from sdiareward.chat_sdiareward import ROLES
from sdiareward.dataset_builder.episodes import Part, Turn
from sdiareward.pairs.schema import make_stable_id

from .folders import Dialogue, run


_SOUNDS = "asterisk/sounds/en_US_f_Allison"
_TRANSCRIPT = "doc/asterisk-core-sounds-en/core-sounds-en.txt.gz"
_TURNS_PER_DIALOGUE = 4
_MIN_WORDS = 3


def read_dialogues(root: Path) -> Iterator[Dialogue]:
    """Yield four prompts of one application, two where no more are left."""
    prompts = dict(_read_prompts(root))
    for application, members in groupby(sorted(prompts), key=lambda name: name.split("-")[0]):
        names = list(members)
        for start in range(0, len(names) - 1, _TURNS_PER_DIALOGUE):
            chosen = names[start : min(start + _TURNS_PER_DIALOGUE, len(names) - len(names) % 2)]
            turns = [Turn(ROLES[position % 2], (prompts[name],)) for position, name in enumerate(chosen)]
            yield Dialogue(f"{application}/{start}/{make_stable_id(*chosen)[:6]}", application, turns)


def _read_prompts(root: Path) -> Iterator[tuple[str, Part]]:
    """Yield the prompts of at least three words by name; brackets stand for tones and music."""
    for line in gzip.decompress((root / _TRANSCRIPT).read_bytes()).decode("utf-8", errors="replace").splitlines():
        name, text = (side.strip() for side in line.partition(":")[::2])
        clip = root / _SOUNDS / f"{name}.wav"
        if not line.startswith(";") and "[" not in text and len(text.split()) >= _MIN_WORDS and clip.is_file():
            yield name, Part(text, str(clip))


def main() -> None:
    run("asterisk", read_dialogues, language="en-US", license="CC-BY-SA-3.0", subset="scripted", primary="Inform")


if __name__ == "__main__":
    main()
