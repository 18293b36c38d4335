"""Choose the recordings that voices are cloned from: of the dialogue itself, or for scripts of a pool.

The paper: "a greedy heuristic for reference audio selection to capture rich acoustic features, prioritizing clips with
a duration between 5 and 30 seconds and a word count under 60. Dialogue groups lacking viable prompts are pruned."
Our reading, for each role of a dialogue (`choose_references`):

1. A turn of 5 to 30 s (both included) with fewer than 60 words is a clip. The longest has most of the voice and is
   taken; of equally long turns the first.
2. If no turn qualifies, the role's turns are joined from the first on until they last 5 s. A turn that would take the
   clip over 30 s or to 60 words begins a new one.
3. Otherwise the dialogue is pruned (`NoReference`), even if its other role has a clip.

As in the paper, the clip is from the dialogue that is synthesised: its words are among those to be spoken.

Scripts have no recordings to clone from, and section 3.1 only asks for "consistent acoustic conditions" of both sides.
With two voices for all scripts, a reward model hears the same two people in every pair. So the option `script_voices`
names a pool, and the pair's id draws two voices: the same for both sides, and on any machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sdiareward.audio_sdiareward import read_audio
from sdiareward.chat_sdiareward import ROLES
from sdiareward.dataset_builder.synthesis import ReferenceClip
from sdiareward.pairs.messages import list_visible
from sdiareward.pairs.schema import make_stable_id


MIN_S, MAX_S = 5.0, 30.0
# A reference has fewer.
MAX_WORDS = 60
OPTION = "script_voices"
_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".m4a")


class NoReference(ValueError):  # noqa: N818 - it names what is missing
    """Raised for a dialogue in which some role has no usable reference; it is pruned."""


@dataclass(frozen=True)
class Clip:
    role: str
    text: str
    duration_s: float


def choose_references(turns: Sequence[Clip]) -> dict[str, tuple[int, ...]]:
    """Return by role the positions of the turns that are joined to its reference."""
    chosen = {}
    for role in dict.fromkeys(turn.role for turn in turns):
        own = [position for position, turn in enumerate(turns) if turn.role == role]
        usable = [i for i in own if turns[i].duration_s >= MIN_S and _fits([turns[i]])]
        # `max` keeps the first of equals.
        reference = (max(usable, key=lambda i: turns[i].duration_s),) if usable else _join_turns(turns, own)
        if not reference:
            found = ", ".join(f"{turns[i].duration_s:.1f} s with {len(turns[i].text.split())} words" for i in own)
            raise NoReference(
                f"no reference for {role!r}: its turns last {found}; a voice is cloned from {MIN_S:g} to {MAX_S:g} s "
                f"with fewer than {MAX_WORDS} words."
            )
        chosen[role] = reference
    return chosen


def _join_turns(turns: Sequence[Clip], own: Sequence[int]) -> tuple[int, ...]:
    run: list[int] = []
    for position in own:
        if not _fits([turns[other] for other in (*run, position)]):
            run = []
        if _fits([turns[position]]):
            run.append(position)
        if sum(turns[other].duration_s for other in run) >= MIN_S:
            return tuple(run)
    return ()


def _fits(clips: Sequence[Clip]) -> bool:
    """Check the upper limits only: the clips may still be too short."""
    num_words = sum(len(clip.text.split()) for clip in clips)
    return sum(clip.duration_s for clip in clips) <= MAX_S and num_words < MAX_WORDS


@dataclass(frozen=True)
class ScriptVoice:
    audio: str
    text: str

    @property
    def identity(self) -> tuple[str, str]:
        """The same on any machine: the name of the file without its folder, and the words."""
        return Path(self.audio).name, self.text


def split_options(options: Mapping[str, Any], criterion: str) -> tuple[dict[str, Any], tuple[ScriptVoice, ...]]:
    """Return the options of the engine itself, and the pool of voices."""
    own = {name: value for name, value in options.items() if name != OPTION}
    if criterion == "modality" or OPTION not in options:
        return own, ()
    value = options[OPTION]
    return own, _read_folder(value) if isinstance(value, str) else _make_pool(value)


@cache
def _read_folder(folder: str) -> tuple[ScriptVoice, ...]:
    """Read a pool from a folder of recordings, each beside a `.txt` file with its words."""
    clips = sorted(path for path in list_visible(Path(folder)) if path.suffix.lower() in _SUFFIXES)
    texts = [clip.with_suffix(".txt").read_text(encoding="utf-8") for clip in clips]
    return _make_pool([{"audio": str(c), "text": " ".join(t.split())} for c, t in zip(clips, texts, strict=True)])


def _make_pool(entries: Sequence[Any]) -> tuple[ScriptVoice, ...]:
    for entry in entries:
        if not isinstance(entry, Mapping) or set(entry) != {"audio", "text"} or not str(entry["text"]).strip():
            raise ValueError(f"{OPTION} has the entry {entry!r}; each needs 'audio', a path, and 'text', its words.")
    voices = tuple(ScriptVoice(str(entry["audio"]), str(entry["text"])) for entry in entries)
    names = {voice.identity[0] for voice in voices}
    if len(names) < max(2, len(voices)):
        raise ValueError(
            f"{OPTION} has {len(voices)} recordings, {len(names)} of different names; give at least two, each a name "
            "of its own."
        )
    return voices


def draw_voices(pool: Sequence[ScriptVoice], pair_id: str) -> dict[str, ScriptVoice]:
    """Return two different voices by role, the same for the same pool and pair."""
    ordered = sorted(pool, key=lambda voice: make_stable_id(pair_id, *voice.identity))
    return dict(zip(ROLES, ordered, strict=False))


def load_voices(pool: Sequence[ScriptVoice], pair_id: str) -> dict[str, ReferenceClip]:
    """Return the clips to clone, by role; none without a pool: the engine's options name its voices."""
    drawn = draw_voices(pool, pair_id)
    return {role: ReferenceClip(read_audio(voice.audio), voice.text) for role, voice in drawn.items()}
