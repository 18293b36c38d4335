"""Turn episodes and scripts into preference pairs (section 3.1): plan all pairs, then make each one independently.

A modality pair compares a recorded episode (chosen) with the same words from a synthesizer (rejected). A
colloquialness pair compares a spoken-style script (chosen) with its written-style original (rejected); voices and
settings are the same, so that only the style differs.

Voices are cloned from recordings of the same dialogue, as in the paper: "a greedy heuristic for reference audio
selection to capture rich acoustic features, prioritizing clips with a duration between 5 and 30 seconds and a word
count under 60. Dialogue groups lacking viable prompts are pruned." Our reading (`choose_references`), by role:

1. A turn of 5 to 30 s (inclusive) with fewer than 60 words is a clip. The longest is taken, because it has the most
   speech; among equally long turns, the first.
2. If no turn qualifies, the role's turns are joined in order until they last 5 s. A turn that would extend the clip
   beyond 30 s or to 60 words starts a new clip.
3. Otherwise the dialogue is pruned (`NoReference`), even if the other role has a clip.

Scripts have no recordings to clone, and section 3.1 asks only for "consistent acoustic conditions" on both sides. If
all scripts had the same two voices, a reward model would hear the same two people in every pair. Therefore the option
`script_voices` gives a pool, and the pair's id draws two voices, the same for both sides and on any machine.

The voice separates the paper's modality pairs, and the words separate its colloquialness pairs. Pairs of a family are
separated by neither: both sides have one voice and one channel, and the conversation of one side is broken.

- `context`: an answer, all answers, the order of the answers or the transcript belong to another dialogue, or an
  exchange is repeated. Both sides are recordings, or one synthesizer speaks both.
- `fluency`: the words of the answers are shuffled, or the last answer is cut off. One synthesizer speaks both sides.
- `prosody`: the recording through the WORLD vocoder, with its own intonation against a flat one or an uneven tempo.

Their criterion is `joint`: its prompt covers both aspects. They are in none of the paper's subsets. `primary` is the
family and `secondary` the kind; each is reported separately. A replacement turn is from the same source and split.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from itertools import permutations, product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field, PositiveInt

from sdiareward.audio_sdiareward import MIN_SAMPLES, SAMPLING_RATE, AudioError, read_audio
from sdiareward.chat_sdiareward import MAX_TURNS, ROLES
from sdiareward.common.settings import require_known
from sdiareward.dataset_builder.episodes import RECORDING, SYNTHETIC, Episode, Part, ScriptPair, Turn, is_recorded
from sdiareward.dataset_builder.synthesis import ReferenceClip, load_synthesizer
from sdiareward.esdr_accuracy.pairwise import NO_SUBSET
from sdiareward.pairs.messages import list_visible
from sdiareward.pairs.schema import JOINT, MAX_TURN_S, SIDES, make_stable_id, make_stable_seed
from sdiareward.perturbations.channel import CODINGS, ChannelSettings, encode_flac
from sdiareward.perturbations.effects import trim_silence

from ..pipeline.inspection import require_sound
from ..pipeline.media import locate_span, read_media, read_span
from .plausible_speech import require_language, require_plausible
from .splits import shuffle, split_unit


class TurnDurationError(AudioError):
    """Raised for an empty turn or one longer than 60 s (B.1, first phase of the filter)."""


class NoReference(ValueError):  # noqa: N818 - named after the missing item
    """Raised for a dialogue with a role without a usable reference; it is pruned."""


# Gap between the parts of a turn, the same on both sides.
_GAP = np.zeros(round(0.15 * SAMPLING_RATE), dtype=np.float32)
# Turns are cut from files of at most one episode; longer recordings go through the pipeline.
_MAX_FILE_S = 2 * MAX_TURNS * MAX_TURN_S
# Options that do not change the speech: where an engine runs, time limits, languages, folders of files.
_SILENT_OPTIONS = {"base_url", "api_key_env", "timeout_s", "max_retries", "addresses", "languages"}
_FILE_OPTIONS = {"model_path", "voices_path", "audio"}
# Limits of a clip for voice cloning; it has fewer words than the last.
MIN_S, MAX_S, MAX_WORDS = 5.0, 30.0, 60
_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".m4a")


class ScriptVoice(NamedTuple):
    audio: str
    text: str

    @property
    def identity(self) -> tuple[str, str]:
        """Machine-independent: the file name without its folder, and the words."""
        return Path(self.audio).name, self.text


@dataclass(frozen=True)
class PairPlan:
    """Everything needed to make a pair."""

    criterion: str
    chosen: Episode
    rejected: Episode  # Same as `chosen` for a modality pair.
    synthesizer: str  # For the synthetic side or sides (two names if they differ), or `RECORDING`.
    split: str
    channel: ChannelSettings | None  # None keeps the channel difference between recordings and synthesizers.
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # By synthesizer.
    script_voices: tuple[ScriptVoice, ...] = ()
    known_pair_id: str | None = None  # For a released pair: its words may have been scrubbed.
    family: str = ""  # Empty for the paper's pairs.

    def is_recorded(self, side: str) -> bool:
        return is_recorded(self.criterion, side, self.synthesizer)

    def find_engine(self, side: str) -> tuple[str, dict[str, Any]]:
        """Return the name and the options of the synthesizer of a side."""
        name, _, other = self.synthesizer.partition("+")
        name = other or name if side == "rejected" else name
        options = {key: value for key, value in self.options.get(name, {}).items() if key != "script_voices"}
        if self.family == "prosody":
            options["contour"] = self.chosen.secondary if side == "rejected" else "kept"
        return name, options

    @property
    def engines(self) -> dict[str, Mapping[str, Any]]:
        """The options of each required synthesizer, by name."""
        return {name: options for name, options in map(self.find_engine, ("rejected", "chosen")) if name != RECORDING}

    @property
    def pair_id(self) -> str:
        """Hash of the pair's inputs: names and words of both sides, synthesizer, voices and channel."""
        if self.known_pair_id:
            return self.known_pair_id
        (name, options), rejected = map(self.find_engine, SIDES)
        engine = [name, *([json.dumps(audible, sort_keys=True)] if (audible := list_audible(options)) else [])]
        if rejected != (name, options):
            engine += [rejected[0], json.dumps(list_audible(rejected[1]), sort_keys=True)]
        engine += [self.family] if self.family else []
        engine += [json.dumps(sorted(voice.identity for voice in self.script_voices))] if self.script_voices else []
        words = [turn.text for side in (self.chosen, self.rejected) for turn in side.turns]
        names = (self.chosen.source, self.chosen.name, self.rejected.name)
        return make_stable_id(self.criterion, *names, *engine, self.channel, *words)

    @property
    def label(self) -> dict[str, str]:
        """The columns by which a report counts the pair, without its split."""
        # A family is in none of the paper's subsets.
        subset = NO_SUBSET if self.family else self.chosen.subset
        labels = {"criterion": self.criterion, "subset": subset, "source": self.chosen.source}
        return {**labels, "synthesizer": self.synthesizer}


def list_audible(options: Any) -> Any:
    """Return the machine-independent options that change an engine's speech; also for options by engine."""
    if not isinstance(options, Mapping):
        return options
    return {
        key: Path(value).name if key in _FILE_OPTIONS and value else list_audible(value)
        for key, value in options.items()
        if key not in _SILENT_OPTIONS
    }


@dataclass(frozen=True)
class SynthesizerSpec:
    seen: tuple[str, ...]  # Used in every split.
    left_out: tuple[str, ...] = ()  # Held out: used only in the test split.
    per_dialogue: int | None = None  # Number of `seen` per dialogue outside the test split; None: all.
    across: int = 0  # Extra pairs per script, with two synthesizers, so that the voice does not separate them.

    def __post_init__(self) -> None:
        if shared := set(self.seen) & set(self.left_out):
            raise ValueError(f"synthesizers {sorted(shared)} are both seen and held out; name each once.")

    def for_dialogue(self, split: str, key: str, seed: int) -> list[str]:
        if split == "test":
            return [*self.seen, *self.left_out]
        return shuffle(self.seen, seed, key)[: self.per_dialogue]

    def choose_across_dialogue(self, split: str, key: str, seed: int) -> list[str]:
        """Return `across` couples of synthesizers for the two sides of a script, chosen and rejected."""
        couples = permutations([*self.seen, *(self.left_out if split == "test" else ())], 2)
        ordered = sorted(couples, key=lambda couple: make_stable_id(seed, key, *couple))
        return ["+".join(couple) for couple in ordered[: self.across]]


def plan_pairs(
    items: Iterable[Episode | ScriptPair],
    assignment: Mapping[tuple[str, str], str],
    choices: Mapping[str, SynthesizerSpec],
    channel: ChannelSettings | None,
    seed: int,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[PairPlan]:
    given, plans = options or {}, []
    for item in items:
        criterion = "colloquialness" if isinstance(item, ScriptPair) else "modality"
        chosen, rejected = (item.spoken, item.written) if isinstance(item, ScriptPair) else (item, item)
        if criterion not in choices:
            raise ValueError(f"{chosen.source} has {criterion} pairs; add an entry {criterion!r} to synthesizers.")
        split, key, spec = assignment[split_unit(chosen)], f"{chosen.source}/{chosen.name}", choices[criterion]
        for name in [*spec.for_dialogue(split, key, seed), *spec.choose_across_dialogue(split, key, seed)]:
            voices = read_pool(given, name, criterion)
            plans.append(PairPlan(criterion, chosen, rejected, name, split, channel, given, voices))
    return plans


def make_row(plan: PairPlan) -> dict[str, Any]:
    """Synthesize or read both sides of a pair, match their channels, and encode them."""
    sounds = {"chosen": _read_side(plan, "chosen")}
    sounds["rejected"] = _read_side(plan, "rejected", sounds["chosen"] if plan.criterion == "modality" else None)
    chosen = plan.chosen
    return {
        "pair_id": plan.pair_id,
        **plan.label,
        "primary": chosen.primary,
        "secondary": chosen.secondary,
        **{side: _encode_side(plan, side, arrays) for side, arrays in sounds.items()},
        "group_id": chosen.group_id,
        "channel": plan.channel.as_row() if plan.channel else None,
        "native_coding": list(chosen.native_coding),
        "quality": None,
        "language": chosen.language,
        "license": chosen.license,
    }


def _read_side(plan: PairPlan, side: str, recorded: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
    """Return the audio of each turn before channel matching; `recorded` has the same words."""
    episode: Episode = getattr(plan, side)
    label = f"{episode.source} {episode.name}"
    trim_db = plan.channel.trim_db if plan.channel else None
    texts = [turn.text for turn in episode.turns]
    if plan.is_recorded(side):
        arrays = _read_recorded(episode, label, trim_db)
        require_plausible(texts, arrays, label)
        return arrays
    name, options = plan.find_engine(side)
    engine = load_synthesizer(name, options)
    for text in texts:
        require_language(engine, name, episode.language, text)
    is_copy = getattr(engine, "uses_reference", False)
    if hasattr(engine, "speak_dialogue"):
        lines = [(turn.role, turn.text) for turn in episode.turns]
        spoken = [[array] for array in engine.speak_dialogue(lines, _choose_reference_clips(plan, label))]
    else:
        speak: Any = _speak if engine.is_deterministic and not is_copy else _speak.__wrapped__
        spoken = []
        for turn in episode.turns:
            voice = make_stable_seed(plan.chosen.group_id, turn.role)
            parts = [part for part in turn.parts if part.text or is_copy]
            more = [{"reference": read_part(part, label)} if is_copy else {} for part in parts]
            spoken.append([speak(engine, part.text, voice, **own) for part, own in zip(parts, more, strict=True)])
    # Copy-synthesis keeps the recording's channel, which includes its codings.
    for coding in () if is_copy else episode.native_coding:
        spoken = [[CODINGS[coding](array, SAMPLING_RATE) for array in parts] for parts in spoken]
    arrays = [_join(parts, trim_db) for parts in spoken]
    speaker = f"{name} {json.dumps(options, sort_keys=True)}"
    require_plausible(texts, arrays, f"{label}, {name}", engine=speaker, recorded=recorded, is_copy=is_copy)
    return arrays


def _read_recorded(episode: Episode, label: str, trim_db: float | None = None) -> list[np.ndarray]:
    turns = enumerate(episode.turns)
    return [_join([read_part(part, f"{label}, turn {n}") for part in turn.parts], trim_db) for n, turn in turns]


# Consecutive pairs are often from one dialogue and share most turns.
@lru_cache(maxsize=128)
def _speak(engine: Any, text: str, voice: int, **reference: np.ndarray) -> np.ndarray:
    return engine.speak(text, voice=voice, **reference)


def _choose_reference_clips(plan: PairPlan, label: str) -> dict[str, ReferenceClip]:
    """Choose clips for voice cloning; scripts have no recordings and use the pool of voices."""
    if plan.criterion != "modality":
        # None without a pool: the engine's options name the voices.
        drawn = draw_voices(plan.script_voices, plan.pair_id)
        return {role: ReferenceClip(read_audio(voice.audio), voice.text) for role, voice in drawn.items()}
    arrays = _read_recorded(plan.chosen, label)
    turns = [
        (turn.role, ReferenceClip(array, turn.text)) for turn, array in zip(plan.chosen.turns, arrays, strict=True)
    ]
    return choose_references(turns)


def choose_references(turns: Sequence[tuple[str, ReferenceClip]]) -> dict[str, ReferenceClip]:
    """Return a clip for each role, from one or more turns."""
    chosen: dict[str, ReferenceClip] = {}
    for role in dict.fromkeys(role for role, _ in turns):
        own = [clip for each, clip in turns if each == role]
        if usable := [clip for clip in own if _can_be_cloned([clip], MIN_S)]:
            # `max` keeps the first of equal values.
            chosen[role] = max(usable, key=lambda clip: clip.array.size)
            continue
        run: list[ReferenceClip] = []
        for clip in own:
            run = next(clips for clips in ([*run, clip], [clip], []) if _can_be_cloned(clips))
            if _can_be_cloned(run, MIN_S):
                chosen[role] = ReferenceClip(_join([c.array for c in run], None), " ".join(c.text for c in run))
                break
        else:
            lasts = [f"{clip.array.size / SAMPLING_RATE:.1f} s with {len(clip.text.split())} words" for clip in own]
            needed = f"a reference needs {MIN_S:g} to {MAX_S:g} s and fewer than {MAX_WORDS} words"
            raise NoReference(f"no reference for {role!r}: its turns last {', '.join(lasts)}; {needed}.")
    return chosen


def _can_be_cloned(clips: Sequence[ReferenceClip], least_s: float = 0.0) -> bool:
    seconds = sum(clip.array.size for clip in clips) / SAMPLING_RATE
    return least_s <= seconds <= MAX_S and sum(len(clip.text.split()) for clip in clips) < MAX_WORDS


def read_pool(options: Mapping[str, Mapping[str, Any]], synthesizer: str, criterion: str) -> tuple[ScriptVoice, ...]:
    """Return the pool of voices for scripts; recorded dialogues have their own voices."""
    pool = options.get(synthesizer.partition("+")[0], {}).get("script_voices")
    if criterion == "modality" or pool is None:
        return ()
    return _read_folder(pool) if isinstance(pool, str) else _make_pool(pool)


@cache
def _read_folder(folder: str) -> tuple[ScriptVoice, ...]:
    """Read a pool of voices from a folder of recordings, each with a `.txt` file of its words."""
    clips = sorted(path for path in list_visible(Path(folder)) if path.suffix.lower() in _SUFFIXES)
    texts = [" ".join(clip.with_suffix(".txt").read_text(encoding="utf-8").split()) for clip in clips]
    return _make_pool([{"audio": str(clip), "text": text} for clip, text in zip(clips, texts, strict=True)])


def _make_pool(entries: Sequence[Any]) -> tuple[ScriptVoice, ...]:
    for entry in entries:
        if not isinstance(entry, Mapping) or set(entry) != {"audio", "text"} or not str(entry["text"]).strip():
            raise ValueError(f"script_voices has {entry!r}; an entry needs 'audio', a path, and 'text', its words.")
    voices = tuple(ScriptVoice(str(entry["audio"]), str(entry["text"])) for entry in entries)
    names = {voice.identity[0] for voice in voices}
    if len(names) < max(2, len(voices)):
        raise ValueError(f"script_voices has {len(voices)} files and {len(names)} names; give two or more of each.")
    return voices


def draw_voices(pool: Sequence[ScriptVoice], pair_id: str) -> dict[str, ScriptVoice]:
    """Return two different voices by role, determined by pool and pair."""
    ordered = sorted(pool, key=lambda voice: make_stable_id(pair_id, *voice.identity))
    return dict(zip(ROLES, ordered, strict=False))


def _encode_side(plan: PairPlan, side: str, arrays: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    episode: Episode = getattr(plan, side)
    spoken = {"uri": f"{SYNTHETIC}:{plan.find_engine(side)[0]}", "start_s": None, "end_s": None}
    made = {} if plan.is_recorded(side) else spoken
    turns = []
    for position, (turn, array) in enumerate(zip(episode.turns, arrays, strict=True)):
        if plan.channel:
            rng = np.random.default_rng(make_stable_seed(plan.pair_id, side, position))
            array = plan.channel(array, SAMPLING_RATE, rng)
        duration_s = len(array) / SAMPLING_RATE
        if len(array) < MIN_SAMPLES or duration_s > MAX_TURN_S:
            lasts = f"{episode.source} {episode.name}, turn {position}: lasts {duration_s:.2f} s"
            raise TurnDurationError(f"{lasts}; it must last more than 0.02 s and at most 60 s.")
        references = [
            {"uri": p.ref, "start_s": p.start_s, "end_s": p.end_s, "text": p.text, **made} for p in turn.parts
        ]
        audio = {"bytes": encode_flac(array), "path": f"{plan.pair_id}-{side}-{position}.flac"}
        found = {"role": turn.role, "text": turn.text, "audio": audio}
        turns.append({**found, "duration_s": duration_s, "audio_ref": references})
    return turns


def read_part(part: Part, label: str) -> np.ndarray:
    if part.audio is None:
        raise AudioError(f"{label}: no recording of {part.text!r}.")
    if part.audio.endswith(".wav") and part.end_s is not None:
        return require_sound(read_span(part.audio, part.start_s, part.end_s), label)
    array = read_whole(part.audio)
    start, end = locate_span(part.start_s, part.end_s, array.size, label)
    return require_sound(array[start:end], label)


def read_whole(audio: str) -> np.ndarray:
    """Return the recording of a part; consecutive parts read a file only once."""
    return _read_file(*(read_file_version(audio) if os.path.isfile(audio) else (audio, 0, 0)))


@lru_cache(maxsize=4)
def _read_file(path: str, _size: int, _changed_ns: int) -> np.ndarray:
    return read_media(path, max_s=_MAX_FILE_S)


def read_file_version(path: str) -> tuple[str, int, int]:
    """Return path, size and modification time, a key that changes with the file."""
    status = os.stat(path)
    return path, status.st_size, status.st_mtime_ns


def _join(parts: Sequence[np.ndarray], trim_db: float | None) -> np.ndarray:
    """Join the trimmed parts of a turn with a fixed gap."""
    pieces: list[np.ndarray] = []
    for part in parts:
        pieces += [part if trim_db is None else trim_silence(part, trim_db), _GAP]
    return np.concatenate(pieces[:-1])


KINDS = {
    "context": ("last_answer", "near_answer", "all_answers", "order", "transcript", "repetition"),
    "fluency": ("shuffled_words", "cut_off"),
    "prosody": ("flat", "uneven"),
}


class Pool(list[Episode]):
    """The episodes of a source in a split; broken dialogues take turns from them."""

    @cached_property
    def partners(self) -> dict[str, Episode]:
        """For each recorded episode, by name: the episode to exchange words with, nearest in words per turn.

        Partners are from different groups, with the same number of turns and no turn in common.
        """
        found: dict[str, Episode] = {}
        recorded = filter(_is_recorded, self)
        left = sorted(recorded, key=lambda episode: (_count_words(episode.turns).sum(), episode.name))
        while left:
            episode = left.pop(0)
            sizes = _count_words(episode.turns)
            if suited := [index for index, other in enumerate(left) if _can_exchange_words(episode, other)]:
                nearest = min(suited, key=lambda index: int(np.abs(_count_words(left[index].turns) - sizes).sum()))
                other = left.pop(nearest)
                found |= {episode.name: other, other.name: episode}
        return found


@dataclass(frozen=True)
class FamilySpec:
    kinds: Annotated[tuple[str, ...], Field(min_length=1)] | None = None  # None: all of the family.
    per_dialogue: PositiveInt = 1  # Pairs per dialogue, each of a different kind.


def validate_families(families: Mapping[str, FamilySpec]) -> None:
    require_known(families, KINDS, "families")
    for family, spec in families.items():
        require_known(spec.kinds or (), KINDS[family], f"families.{family}.kinds")


def plan_family_pairs(
    items: Iterable[Episode | ScriptPair],
    assignment: Mapping[tuple[str, str], str],
    families: Mapping[str, FamilySpec],
    synthesizers: SynthesizerSpec | None,
    channel: ChannelSettings | None,
    seed: int,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[PairPlan]:
    """Return the pairs of the families; kinds that do not apply to a dialogue are skipped."""
    # Use each dialogue once: a script against a caricature repeats the spoken side.
    episodes: dict[tuple[str, str], Episode] = {}
    for item in items:
        episode = item.spoken if isinstance(item, ScriptPair) else item
        if not (isinstance(item, ScriptPair) and episode.secondary == "caricature"):
            episodes.setdefault((episode.source, episode.name), episode)
    pools: dict[tuple[str, str], Pool] = {}
    for episode in episodes.values():
        pools.setdefault((episode.source, assignment[split_unit(episode)]), Pool()).append(episode)
    given, plans = options or {}, []
    for episode, family in product(episodes.values(), families):
        split, spec = assignment[split_unit(episode)], families[family]
        pool, name, key = pools[episode.source, split], episode.name, f"{episode.source}/{episode.name}"
        names = synthesizers.for_dialogue(split, f"{family}/{key}", seed) if synthesizers else []
        if _is_recorded(episode):
            names = ["world" if family == "prosody" else RECORDING]
        done = 0
        for kind in shuffle(spec.kinds or KINDS[family], seed, f"{family}/{key}"):
            rng = np.random.default_rng(make_stable_seed(seed, family, kind, key))
            if done == spec.per_dialogue or not (rejected := break_dialogue(kind, episode, pool, rng)):
                continue
            done += 1
            label: Any = {"primary": family, "secondary": kind}
            sides = replace(episode, **label), replace(rejected, name=f"{name}/{kind}", **label)
            for engine in names:
                voices = read_pool(given, engine, JOINT)
                plans.append(PairPlan(JOINT, *sides, engine, split, channel, given, voices, family=family))
    return plans


def break_dialogue(kind: str, episode: Episode, pool: Pool, rng: np.random.Generator) -> Episode | None:
    """Return the dialogue, broken as the kind says; None if it does not apply."""
    turns, answers, is_spoken = episode.turns, range(1, len(episode.turns), 2), not _is_recorded(episode)
    last = answers[-1]
    new: dict[int, Turn | None] = {}
    match kind:
        case "last_answer" | "near_answer" | "all_answers":
            # A near answer is from an earlier exchange or another part of the recording.
            is_near = kind == "near_answer"
            others = [other for other in pool if (other.group_id == episode.group_id) == is_near]
            if not is_near:
                others = [others[index] for index in rng.permutation(len(others))[:8].tolist()]
            candidates = [turn for other in others for turn in other.turns[1::2]]
            for index in answers if kind == "all_answers" else [last]:
                new[index] = _find_nearest(turns[index], [turn for turn in candidates if turn not in new.values()])
        case "order" if len({turns[index].text for index in answers}) > 1:
            # Every question gets the answer to another one.
            moved = np.roll(answers, -int(rng.integers(1, len(answers)))).tolist()
            new = {index: turns[place] for index, place in zip(answers, moved, strict=True)}
        # Both transcripts are coherent, right in one pair and wrong in the other, so only the recordings decide.
        case "transcript" if not is_spoken and (other := pool.partners.get(episode.name)):
            for index, (turn, said) in enumerate(zip(turns, other.turns, strict=True)):
                texts = [said.text, *[""] * (len(turn.parts) - 1)]
                parts = (replace(part, text=text) for part, text in zip(turn.parts, texts, strict=True))
                new[index] = Turn(turn.role, tuple(parts))
        case "repetition" if len(turns) + 2 <= MAX_TURNS:
            return replace(episode, turns=(*turns, *turns[-2:]))
        case "shuffled_words" if is_spoken:
            for index in answers:
                words = turns[index].text.split()
                shuffled = " ".join(words[place] for place in rng.permutation(len(words)))
                new[index] = Turn("assistant", (Part(shuffled),))
        case "cut_off" if is_spoken and len(words := turns[last].text.split()) >= 4:
            kept = int(rng.integers(len(words) // 3, 2 * len(words) // 3 + 1))
            new[last] = Turn("assistant", (Part(" ".join(words[:kept])),))
        case "flat" | "uneven" if not is_spoken:
            return episode
    changed = tuple(each for index, own in enumerate(turns) if (each := new.get(index, own)) is not None)
    # No replacement for a turn, or no word changed.
    if len(changed) < len(turns) or [turn.text for turn in changed] == [turn.text for turn in turns]:
        return None
    return replace(episode, turns=changed)


def _is_recorded(episode: Episode) -> bool:
    return all(part.audio is not None for turn in episode.turns for part in turn.parts)


def _count_words(turns: Sequence[Turn]) -> np.ndarray:
    return np.array([len(turn.text.split()) for turn in turns])


def _find_nearest(turn: Turn, candidates: Iterable[Turn]) -> Turn | None:
    others = [other for other in candidates if other.text != turn.text]
    size = len(turn.text.split())
    return min(others, key=lambda other: (abs(len(other.text.split()) - size), other.text), default=None)


def _can_exchange_words(one: Episode, other: Episode) -> bool:
    if one.group_id == other.group_id or len(one.turns) != len(other.turns):
        return False
    return all(turn.text != own.text for turn, own in zip(one.turns, other.turns, strict=True))
