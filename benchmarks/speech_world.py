"""Long two-speaker recordings with a known answer, mixed from the acted dialogues of `amazon_queen`.

The hero of the game is one speaker, the person of one conversation the other: the same two people through a whole
recording. Every conversation is recorded under each of `CONDITIONS`, with the same words and with pauses drawn alike,
so that a difference between conditions is made by the condition. What is drawn depends on the seed alone.

Notable choices:

- Speech is what a clip holds within 35 dB of its loudest 10 ms; pauses of 0.5 s and more are no speech. Clips have
  been cut to their speech, so that a turn begins and ends where somebody is heard.
- Most pauses between turns last 0.2-1.5 s, one in twelve 3-12 s: with these the cap on an episode's length matters.
- Where turns overlap, half of them do so by 2-8% of the shorter turn and half by 15-40%: below and above the ratio
  that splits an episode.
- A third speaker is the person of another conversation, whose turns are put between those of the two. One actor may
  play several characters: that makes the world harder, never easier.
- Each speaker has a room impulse response of their own (direct sound, then exponentially decaying noise). Boundaries
  are those of the direct sound. Background noise has a 1/f spectrum.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.common.files import replace_atomically, write_file
from sdiareward.dataset_builder.episodes import Episode, Turn
from sdiareward.dataset_builder.sources import read_source
from sdiareward.dataset_builder.sources.amazon_queen import DEFAULT_PATH
from sdiareward.pairs.schema import make_stable_seed

from .speech_mixing import (
    Utterance,
    add_third,
    find_speech,
    lay_out,
    level_speakers,
    make_utterance,
    read_part,
    render,
)


HERO = "hero"
# Section B.1.
SPLIT_OVERLAP = 0.1
MAX_EPISODE_S = 90.0
MAX_TURNS = 16


@dataclass(frozen=True)
class Condition:
    """How a conversation is recorded.

    Args:
        name (`str`): Name in the report.
        snr_db (`float`): Power of the speech, where somebody speaks, over that of the noise, in dB.
        rt60_s (`float`, *optional*): Reverberation time; None for no room.
        overlap_share (`float`): Share of the changes of speaker where the turns overlap.
        third_share (`float`): Share of a third speaker in the speech, as nearly as whole turns allow.
    """

    name: str
    snr_db: float = 40.0
    rt60_s: float | None = None
    overlap_share: float = 0.0
    third_share: float = 0.0


CONDITIONS = (
    Condition("clean"),
    Condition("noisy", snr_db=12.0, rt60_s=0.4),
    Condition("overlap", overlap_share=0.5),
    Condition("third_below", third_share=0.05),
    Condition("third_above", third_share=0.2),
)


@dataclass(frozen=True)
class TrueTurn:
    """One turn of a recording: who, when and what; `speech_s` are the stretches of speech in it."""

    speaker: str
    start_s: float
    end_s: float
    text: str
    speech_s: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class TrueRecording:
    """What is known of a recording.

    Args:
        name (`str`): Conversation and condition; names the files.
        condition (`str`): Name of the condition.
        duration_s (`float`): Length of the audio.
        turns (`tuple[TrueTurn, ...]`): In the order of their beginnings.
        drawn_overlaps (`tuple[float, ...]`): The overlap ratio drawn for each change of speaker, 0 for a pause.
        third_speaker (`str`, *optional*): Name of the third speaker; None where there is none.
        third_share (`float`): Share of the third speaker in the speech.
    """

    name: str
    condition: str
    duration_s: float
    turns: tuple[TrueTurn, ...]
    drawn_overlaps: tuple[float, ...]
    third_speaker: str | None
    third_share: float

    @property
    def dialogue(self) -> tuple[TrueTurn, ...]:
        """The turns of the two speakers."""
        return tuple(turn for turn in self.turns if turn.speaker != self.third_speaker)


def read_conversations(path: Path | None = None) -> tuple[dict[str, list[Turn]], str]:
    """Return the turns of every conversation by its name, and which source they are from.

    Args:
        path (`Path`, *optional*): `queen.1c`, its folder, or a folder in the form of the bundled sample. Without one,
            Debian's place is tried, then the bundled sample, whose conversations are shorter.

    Raises:
        FileNotFoundError: There is nothing at `path`.
    """
    is_sample = not DEFAULT_PATH.exists() if path is None else (path / "manifest.jsonl").is_file()
    source = "sample" if is_sample else "amazon_queen"
    conversations: dict[str, list[Turn]] = {}
    for episode in read_source(source, path):
        if isinstance(episode, Episode) and episode.source == "amazon_queen":
            conversations.setdefault(episode.group.removesuffix(".DOG"), []).extend(episode.turns)
    return conversations, source


def choose_pairs(
    conversations: Mapping[str, list[Turn]], num_pairs: int, min_speech_s: float, seed: int, half: str
) -> list[tuple[str, str]]:
    """Draw conversations of different characters that are long enough, each with another for a third speaker.

    Args:
        conversations (`Mapping`): Turns by name.
        num_pairs (`int`): How many to draw.
        min_speech_s (`float`): Speech that a conversation must hold.
        seed (`int`): Seed.
        half (`str`): `"development"` or `"report"`: the characters are parted between the two once and for all, so
            that what was tuned on one half can be reported on the other.

    Returns:
        `list[tuple[str, str]]`: The conversation and that of the third speaker.

    Raises:
        ValueError: There are not enough conversations of this length.
    """
    rng = _generator(seed, "pairs")
    members = sorted(name for name in conversations if _half(name) == half)
    order = [members[index] for index in rng.permutation(len(members))]
    chosen: dict[str, str] = {}
    for name in order:
        is_wanted = len(chosen) < num_pairs and _character(name) not in chosen
        if is_wanted and _speech_s(conversations[name]) >= min_speech_s:
            chosen[_character(name)] = name
    if len(chosen) < num_pairs:
        raise ValueError(
            f"{len(chosen)} characters of the {half} half have a conversation of {min_speech_s:.0f} s of speech, "
            f"{num_pairs} are needed; lower --minutes or give --amazon_queen."
        )
    names = list(chosen.values())
    # Everybody is the third speaker of somebody else's recording.
    thirds = names[1:] + names[:1]
    if num_pairs == 1:
        thirds = [next(name for name in order if _character(name) not in chosen)]
    return list(zip(names, thirds, strict=True))


def _generator(seed: int, key: str) -> np.random.Generator:
    return np.random.default_rng([seed, make_stable_seed(key)])


def _character(name: str) -> str:
    return name.rstrip("0123456789")


def _half(name: str) -> str:
    return ("development", "report")[make_stable_seed(_character(name)) % 2]


def _speech_s(turns: Sequence[Turn]) -> float:
    """Return the seconds of speech in a conversation."""
    parts = (part for turn in turns for part in turn.parts)
    return sum(end - start for part in parts for start, end in find_speech(read_part(part))) / 100


def take_conversation(turns: Sequence[Turn], person: str, minutes: float, seed: int) -> list[Utterance]:
    """Return the first exchanges of a conversation, as many as fill `minutes` with their pauses.

    Args:
        turns (`Sequence[Turn]`): Turns of the hero (`user`) and the person in alternation.
        person (`str`): Name of the person.
        minutes (`float`): Length aimed at; the result is at most one exchange longer.
        seed (`int`): Seed of the pauses inside turns and of the levels.
    """
    rng = _generator(seed, person)
    utterances: list[Utterance] = []
    num_frames = 0.0
    for turn in turns:
        if turn.role == "user" and num_frames > minutes * 6000:
            break
        utterances.append(make_utterance(turn, HERO if turn.role == "user" else person, rng))
        num_frames += utterances[-1].num_frames + 140
    return level_speakers(utterances, rng)


def take_third(turns: Sequence[Turn], person: str, minutes: float, seed: int) -> list[Utterance]:
    """Return what the person of a conversation may say as a third speaker elsewhere: short utterances.

    Args:
        turns (`Sequence[Turn]`): As for `take_conversation`.
        person (`str`): Name of the person.
        minutes (`float`): How much of the conversation to use.
        seed (`int`): Seed of the level.
    """
    parts = [Turn(turn.role, (part,)) for turn in turns for part in turn.parts if turn.role != "user"]
    return take_conversation(parts, person, minutes, seed)


def make_recording(
    utterances: Sequence[Utterance], others: Sequence[Utterance], condition: Condition, name: str, seed: int
) -> tuple[TrueRecording, np.ndarray]:
    """Record a conversation under a condition.

    Args:
        utterances (`Sequence[Utterance]`): The conversation.
        others (`Sequence[Utterance]`): What a third speaker may say; unused where the condition has none.
        condition (`Condition`): How it is recorded.
        name (`str`): Name of the conversation; the condition is appended for that of the recording.
        seed (`int`): Seed.

    Returns:
        `tuple`: The truth, and the audio as 16 kHz float32.
    """
    rng, pauses = (_generator(seed, key) for key in (f"{name}-{condition.name}", name))
    if condition.third_share:
        utterances = add_third(utterances, others, condition.third_share, rng)
    starts, ratios = lay_out(utterances, condition.overlap_share, pauses)
    audio = render(utterances, starts, condition.rt60_s, condition.snr_db, rng)
    turns = []
    for start, utterance in zip(starts, utterances, strict=True):
        offset = start - utterance.speech[0][0]
        speech_s = tuple(((offset + first) / 100, (offset + last) / 100) for first, last in utterance.speech)
        turns.append(TrueTurn(utterance.speaker, speech_s[0][0], speech_s[-1][1], utterance.text, speech_s))
    third = others[0].speaker if condition.third_share else None
    by_third = sum(u.num_speech_frames for u in utterances if u.speaker == third)
    share = by_third / sum(u.num_speech_frames for u in utterances)
    title, duration_s = f"{name}-{condition.name}", len(audio) / SAMPLING_RATE
    return TrueRecording(title, condition.name, duration_s, tuple(turns), tuple(ratios), third, share), audio


def true_episodes(recording: TrueRecording) -> list[tuple[TrueTurn, ...]]:
    """Return the episodes that the rules of section B.1, as `pipeline.turns` reads them, give for the true turns.

    Written from that module's description and not with its code, so that one checks the other. Between two turns of an
    episode nobody else speaks and they overlap by less than 0.1 of the shorter one; it has an even number of turns, at
    most 16, and lasts at most 90 s; where a limit ends it, an odd last turn begins the next one.
    """
    episodes = []
    for stretch in _stretches(recording):
        while len(stretch) >= 2:
            num_fitting = max(n for n in range(len(stretch) + 1) if _fits(stretch[:n]))
            num_even = num_fitting // 2 * 2
            if num_even:
                episodes.append(tuple(stretch[:num_even]))
            # Where not even two turns fit, the first of them can be in no episode.
            stretch = stretch[num_even or 1 :] if num_fitting < len(stretch) else []
    return episodes


def _fits(turns: Sequence[TrueTurn]) -> bool:
    return not turns or (len(turns) <= MAX_TURNS and turns[-1].end_s - turns[0].start_s <= MAX_EPISODE_S)


def _stretches(recording: TrueRecording) -> list[list[TrueTurn]]:
    """Return the turns of the two speakers, parted at the third speaker and at large overlaps."""
    stretches: list[list[TrueTurn]] = [[]]
    for turn in recording.turns:
        last = stretches[-1][-1] if stretches[-1] else None
        if turn.speaker == recording.third_speaker:
            stretches.append([])
        elif last is not None and (last.end_s - turn.start_s) >= SPLIT_OVERLAP * min(
            last.end_s - last.start_s, turn.end_s - turn.start_s
        ):
            stretches.append([turn])
        else:
            stretches[-1].append(turn)
    return stretches


def write_recording(recording: TrueRecording, audio: np.ndarray, folder: Path) -> Path:
    """Write `NAME.wav` (16 kHz, mono, 16-bit), `NAME.rttm` (speech by speaker) and `NAME.json` (the whole truth).

    An episode is written as the beginnings of its turns.

    Args:
        recording (`TrueRecording`): The truth.
        audio (`np.ndarray`): 16 kHz.
        folder (`Path`): Where to write; created.

    Returns:
        `Path`: The WAV file.
    """
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        f"SPEAKER {recording.name} 1 {start:.2f} {end - start:.2f} <NA> <NA> {turn.speaker} <NA> <NA>\n"
        for turn in recording.turns
        for start, end in turn.speech_s
    ]
    write_file(folder / f"{recording.name}.rttm", "".join(lines))
    truth = asdict(recording) | {"episodes": [[turn.start_s for turn in e] for e in true_episodes(recording)]}
    write_file(folder / f"{recording.name}.json", json.dumps(truth, indent=1) + "\n")
    path = folder / f"{recording.name}.wav"
    with replace_atomically(path) as temporary:
        soundfile.write(temporary, audio, SAMPLING_RATE, format="WAV", subtype="PCM_16")
    return path


def make_world(
    path: Path | None, folder: Path, *, num_pairs: int, minutes: float, seed: int, half: str = "report"
) -> tuple[list[TrueRecording], dict[str, Any]]:
    """Write a world of `num_pairs` conversations under each of `CONDITIONS`.

    Args:
        path (`Path`, *optional*): `queen.1c`; see `read_conversations`.
        folder (`Path`): Where to write.
        num_pairs (`int`): Conversations.
        minutes (`float`): Length of all recordings together, about.
        seed (`int`): Seed.
        half (`str`, *optional*, defaults to `"report"`): See `choose_pairs`.

    Returns:
        `tuple`: The truth of each recording, and what describes the world in a report.
    """
    from tqdm import tqdm

    conversations, source = read_conversations(path)
    each = minutes / (num_pairs * len(CONDITIONS))
    pairs = choose_pairs(conversations, num_pairs, 0.7 * 60 * each, seed, half)
    recordings = []
    for name, third in tqdm(pairs, desc="world", unit="conversation"):
        utterances = take_conversation(conversations[name], name, each, seed)
        others = take_third(conversations[third], third, each, seed)
        for condition in CONDITIONS:
            recording, audio = make_recording(utterances, others, condition, name, seed)
            write_recording(recording, audio, folder)
            recordings.append(recording)
    about = {
        "source": source,
        "conversations": [{"name": name, "third_speaker": third} for name, third in pairs],
        "conditions": [asdict(condition) for condition in CONDITIONS],
        "audio_s": sum(recording.duration_s for recording in recordings),
        "seed": seed,
        "half": half,
    }
    return recordings, about
