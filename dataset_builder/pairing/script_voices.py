"""Voices of scripts, for synthesizers that clone: a pool of recordings, from which each dialogue gets two.

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


OPTION = "script_voices"
_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".m4a")


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
    return own, _read_folder(value) if isinstance(value, str) else read_script_voices(value)


def read_script_voices(value: str | Sequence[Any]) -> tuple[ScriptVoice, ...]:
    """Read a list of `{"audio", "text"}`, or a folder of recordings, each beside a `.txt` file with its words."""
    if isinstance(value, str):
        voices = tuple(_read_clip(path) for path in _list_clips(Path(value)))
    else:
        voices = tuple(map(_read_entry, value))
    names = [voice.identity[0] for voice in voices]
    if len(set(names)) < max(2, len(names)):
        raise ValueError(
            f"{OPTION} has {len(names)} recordings, {len(set(names))} of different names; give at least two, each a "
            "name of its own."
        )
    return voices


_read_folder = cache(read_script_voices)


def _list_clips(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; {OPTION} names recordings with their words as .txt files.")
    return sorted(path for path in list_visible(folder) if path.suffix.lower() in _SUFFIXES)


def _read_clip(path: Path) -> ScriptVoice:
    words = path.with_suffix(".txt")
    if not words.is_file():
        raise FileNotFoundError(f"{words}: no such file; write the words of {path.name} into it.")
    return _make_voice(str(path), " ".join(words.read_text(encoding="utf-8").split()))


def _read_entry(entry: Any) -> ScriptVoice:
    if not isinstance(entry, Mapping) or set(entry) != {"audio", "text"}:
        raise ValueError(f"{OPTION} has the entry {entry!r}; each needs 'audio', a path, and 'text', its words.")
    return _make_voice(str(entry["audio"]), str(entry["text"]))


def _make_voice(audio: str, text: str) -> ScriptVoice:
    if not text.strip():
        raise ValueError(f"{OPTION}: {audio} has no words; a voice is cloned from a recording and its words.")
    return ScriptVoice(audio, text)


def draw_voices(pool: Sequence[ScriptVoice], pair_id: str) -> dict[str, ScriptVoice]:
    """Return two different voices by role, the same for the same pool and pair."""
    ordered = sorted(pool, key=lambda voice: make_stable_id(pair_id, *voice.identity))
    return dict(zip(ROLES, ordered, strict=False))


def load_voices(pool: Sequence[ScriptVoice], pair_id: str) -> dict[str, ReferenceClip]:
    """Return the clips to clone, by role; none without a pool: the engine's options name its voices."""
    drawn = draw_voices(pool, pair_id)
    return {role: ReferenceClip(read_audio(voice.audio), voice.text) for role, voice in drawn.items()}
