"""Speakers, lines and sampling of SoulX-Podcast in its own notation.

SoulX-Podcast names the speakers S1, S2, ... in the order of their prompts; a prompt is a recording and its transcript.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sdiareward.audio_sdiareward import SAMPLING_RATE, read_audio

from . import ReferenceClip, SynthesisError


# Number of speaker marks that the model knows.
_MAX_SPEAKERS = 4


@dataclass(frozen=True)
class Sampling:
    """How speech tokens are drawn; the defaults are SoulX-Podcast's own.

    Args:
        seed (`int`): Seed of every dialogue, so that it depends on no other.
        temperature, top_k, top_p, repetition_penalty (`float` or `int`): As in text generation.
    """

    seed: int = 1988
    temperature: float = 0.6
    top_k: int = 100
    top_p: float = 0.9
    repetition_penalty: float = 1.25


@dataclass(frozen=True)
class Script:
    """A dialogue in SoulX-Podcast's notation.

    Args:
        prompts (`tuple[ReferenceClip, ...]`): One per speaker, S1 first.
        lines (`tuple[tuple[str, str], ...]`): `("S1", text)` of each turn.
    """

    prompts: tuple[ReferenceClip, ...]
    lines: tuple[tuple[str, str], ...]

    @property
    def speakers(self) -> tuple[str, ...]:
        """The marks of the speakers, in the order of `prompts`."""
        return tuple(f"S{number}" for number in range(1, len(self.prompts) + 1))

    def encode_prompts(self) -> list[bytes]:
        """Return the recordings of the prompts as WAV files (16 bit, 16 kHz)."""
        import soundfile

        files = []
        for clip in self.prompts:
            buffer = io.BytesIO()
            soundfile.write(buffer, clip.array, SAMPLING_RATE, format="WAV", subtype="PCM_16")
            files.append(buffer.getvalue())
        return files

    def as_json(self, recordings: Sequence[str]) -> dict[str, Any]:
        """Return the script in the form of SoulX-Podcast's example files.

        Args:
            recordings (`Sequence[str]`): What stands for the recording of each prompt, in the order of `prompts`.
        """
        prompts = zip(self.speakers, self.prompts, recordings, strict=True)
        speakers = {mark: {"prompt_audio": audio, "prompt_text": clip.text} for mark, clip, audio in prompts}
        return {"speakers": speakers, "text": [list(line) for line in self.lines]}


def make_script(lines: Sequence[tuple[str, str]], references: Mapping[str, ReferenceClip]) -> Script:
    """Number the speakers of a dialogue in the order of their first turns, and join each text into one line.

    SoulX-Podcast reads a text up to its first line break and drops the rest, so white space becomes single spaces.

    Args:
        lines (`Sequence[tuple[str, str]]`): `(role, text)` of each turn.
        references (`Mapping[str, ReferenceClip]`): By role; roles that do not speak are omitted.

    Raises:
        SynthesisError: A line is empty, a role has no reference, or more than four roles speak.
    """
    roles = list(dict.fromkeys(role for role, _ in lines))
    if not 1 <= len(roles) <= _MAX_SPEAKERS:
        raise SynthesisError(f"soulx-podcast: {len(roles)} roles speak; it takes dialogues of 1 to {_MAX_SPEAKERS}.")
    if missing := [role for role in roles if role not in references]:
        raise SynthesisError(
            f"soulx-podcast: no reference clip for {missing}; it clones voices. Give every role a clip, or a voice in "
            "the option 'voices'."
        )
    marks = {role: f"S{number}" for number, role in enumerate(roles, start=1)}
    spoken = tuple((marks[role], " ".join(text.split())) for role, text in lines)
    if empty := [position for position, (_, text) in enumerate(spoken) if not text]:
        raise SynthesisError(f"soulx-podcast: lines {empty} have no text; remove them.")
    prompts = tuple(ReferenceClip(references[role].array, " ".join(references[role].text.split())) for role in roles)
    return Script(prompts, spoken)


def read_voices(voices: Mapping[str, Mapping[str, str]] | None) -> dict[str, ReferenceClip]:
    """Read the recordings of the option `voices`.

    Args:
        voices (`Mapping`, *optional*): By role, `{"audio": path, "text": words}`.

    Raises:
        ValueError: A voice lacks one of the two fields.
        FileNotFoundError: A recording does not exist.
    """
    clips = {}
    for role, voice in (voices or {}).items():
        if set(voice) != {"audio", "text"}:
            raise ValueError(f"soulx-podcast: voice of {role!r} has {sorted(voice)}; it needs 'audio' and 'text'.")
        clips[role] = ReferenceClip(read_audio(voice["audio"]), voice["text"])
    return clips
