"""Synthesise a scenario, check every line, and join question and answers to samples.

The casts are tried in an order that depends on the scenario, each with a female and a male voice: the question until
one passes the filters; the answers until all of one speaker's pass. One speaker gives all three answers, so that the
voice does not predict the score. If no speaker passes, the one with the most answers is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, read_audio
from sdiareward.common.errors import Skipped
from sdiareward.dataset_builder.episodes import SkipError
from sdiareward.dataset_builder.synthesis import SynthesisError
from sdiareward.pairs.messages import join_turns
from sdiareward.pairs.schema import make_stable_id, make_stable_seed
from sdiareward.perturbations.attack_sounds import find_clips
from sdiareward.perturbations.channel import encode_flac
from sdiareward.perturbations.effects import measure_level, scale_to_level

from .filters import WordErrors, load_classifier
from .scenarios import Line, Scenario
from .schema import LANGUAGE_TAGS, MIXED_LANGUAGES, NO_VOICE
from .voices import Cast, ChatRewardConfig, EventSettings, order_casts, speak_line


# A cast, and the gender of its voice for a category that does not determine it.
Speaker = tuple[Cast, str]
QUESTION = "question"
_GENDERS = ("female", "male")


@dataclass(frozen=True)
class Take:
    array: np.ndarray  # (num_samples,), mono, 16 kHz
    synthesizer: str
    wer: float | None  # None if it was not checked.
    language: str

    @property
    def duration_s(self) -> float:
        return len(self.array) / SAMPLING_RATE


Takes = dict[Any, Take | Skipped]


@dataclass
class Recorded:
    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    rejected: list[Skipped] = field(default_factory=list)  # Every line that failed, of all casts.


class Recorder:
    def __init__(self, config: ChatRewardConfig):
        self._config = config
        self._casts = config.read_casts()
        self._words = WordErrors(config.asr)

    @cached_property
    def _score_emotions(self) -> Any:
        return load_classifier(self._config.emotion) if self._config.emotion else None

    def record(self, scenario: Scenario, split: str) -> Recorded:
        recorded = Recorded()
        asking, answering = self._choose_speakers(scenario, split)
        question = self._record_lines(scenario, {QUESTION: scenario.question}, asking, recorded).get(QUESTION)
        answers = scenario.answers if isinstance(question, Take) else {}
        takes = self._record_lines(scenario, answers, answering, recorded)
        for score in scenario.answers:
            item, answer = f"{scenario.scenario_id} {score}", takes.get(score)
            if not isinstance(question, Take) or answer is None:
                reason = "no voice spoke the question; see the rejected lines."
                recorded.skipped.append(Skipped(item, "no_question", reason))
            elif isinstance(answer, Skipped):
                recorded.skipped.append(Skipped(item, answer.kind, answer.reason))
            else:
                self._join(scenario, score, question, answer, recorded)
        return recorded

    def _choose_speakers(self, scenario: Scenario, split: str) -> tuple[list[Speaker], list[Speaker]]:
        """Return the speakers for the question and for the answers, different genders first."""
        held_out = frozenset(self._config.left_out) if split == "train" else frozenset()
        named = self._config.casts_by_attribute.get(scenario.voices, self._config.casts)
        speaking = [cast.drop_engines(held_out) for cast in self._casts if cast.name in named]
        casts = order_casts(speaking, self._config.seed, scenario.scenario_id)
        # A female voice is closest to all ages.
        if scenario.voices == "age":
            women = [(cast, "female") for cast in casts]
            return women, women
        first = make_stable_seed(self._config.seed, scenario.scenario_id) % 2
        answering, asking = ([(cast, _GENDERS[i]) for cast in casts] for i in (first, 1 - first))
        return asking + answering, answering + asking

    def _record_lines(
        self, scenario: Scenario, lines: Mapping[Any, Line], speakers: list[Speaker], recorded: Recorded
    ) -> Takes:
        """Return the lines of the first speaker with whom all pass, else of the one with the most.

        A speaker is skipped at the first failed line; the other lines are synthesised only if all speakers fail.
        """
        attempts: list[Takes] = [{} for _ in speakers]
        for is_last_round in (False, True):
            for (cast, gender), takes in zip(speakers, attempts, strict=True):
                for name in [name for name in lines if name not in takes]:
                    try:
                        takes[name] = self._speak(cast, gender, scenario, lines[name], is_question=name == QUESTION)
                    except (SkipError, SynthesisError) as error:
                        skip = Skipped(f"{scenario.scenario_id} {name}", error.kind, f"{cast.name}: {error}")
                        takes[name] = skip
                        recorded.rejected.append(skip)
                        if not is_last_round:
                            break
                if _rank(takes)[0] == len(lines):
                    return takes
        return max(attempts, key=_rank, default={})

    def _speak(self, cast: Cast, gender: str, scenario: Scenario, line: Line, *, is_question: bool) -> Take:
        """Speak and check a line; a question with the attribute `audio` then gets its sound."""
        attribute, category, config = scenario.voices, line.category, self._config
        voice = cast.find_voice(attribute, category, gender)
        if voice is None:
            raise SkipError(NO_VOICE, f"has no voice for {attribute} {category!r}.")
        # One speaker for all answers, where the category does not decide it.
        drawn = voice.draw(make_stable_seed(config.seed, scenario.scenario_id, is_question))
        language = LANGUAGE_TAGS[category or "english"] if attribute == "language" else "en"
        is_shaped = cast.is_shaped(attribute)
        array = speak_line(line.text, drawn, attribute, category, is_shaped=is_shaped, language=language)
        wer = None if config.max_wer is None else self._words.rate(line.text, array, language)
        if wer is not None and wer > (config.max_wer or 0.0):
            raise SkipError("wer", f"the word error rate is {wer:.3f}; at most {config.max_wer} is allowed.")
        if attribute == "emotion" and category and config.emotion:
            score, least = self._score_emotions(array).get(category, 0.0), config.emotion.threshold
            if score < least:
                raise SkipError("emotion", f"{category!r} has the score {score:.3f}; at least {least} is needed.")
        if attribute == "audio" and is_question:
            seed = make_stable_seed(config.seed, scenario.scenario_id, category)
            try:
                array = mix_event(array, load_event(str(category), seed, config.events), config.events)
            except AudioError as error:
                raise SkipError("no_event", str(error)) from error
        return Take(array, voice.engine, wer, language)

    def _join(self, scenario: Scenario, score: int, question: Take, answer: Take, recorded: Recorded) -> None:
        array = join_turns([question.array, answer.array], self._config.gap_s)
        duration_s = len(array) / SAMPLING_RATE
        if not self._config.min_s <= duration_s <= self._config.max_s:
            limits = f"{self._config.min_s:.0f} to {self._config.max_s:.0f} s are kept"
            reason = f"the dialogue lasts {duration_s:.1f} s; {limits}."
            recorded.skipped.append(Skipped(f"{scenario.scenario_id} {score}", "duration", reason))
            return
        line = scenario.answers[score]
        labels = (scenario.part, scenario.attribute, scenario.category, scenario.question.category, line.category)
        sample_id = make_stable_id(scenario.scenario_id, score, *labels, scenario.question.text, line.text)
        of_scenario = ("scenario_id", "part", "attribute", "category", "topic", "license")
        row = {
            "sample_id": sample_id,
            **{name: getattr(scenario, name) for name in of_scenario},
            "response_category": line.category,
            "score": score,
            "design_score": score,
            "expert_scores": None,
            "question": scenario.question.text,
            "response": line.text,
            "question_s": question.duration_s,
            "response_s": answer.duration_s,
            "duration_s": duration_s,
            "audio": {"bytes": encode_flac(array), "path": f"{sample_id}.flac"},
            "question_synthesizer": question.synthesizer,
            "synthesizer": answer.synthesizer,
            "question_wer": question.wer,
            "response_wer": answer.wer,
            "language": question.language if question.language == answer.language else MIXED_LANGUAGES,
        }
        recorded.rows.append(row)


def load_event(category: str, seed: int, events: EventSettings) -> np.ndarray:
    names = events.classes.get(category, (category,))
    clips = [path for name in names for path in find_clips(name, events.folder)]
    if not clips:
        raise SkipError("no_event", f"sound {category!r} has no clip; put one into {Path(events.folder, names[0])}.")
    return read_audio(clips[np.random.default_rng(seed).integers(len(clips))])


def mix_event(speech: np.ndarray, clip: np.ndarray, events: EventSettings) -> np.ndarray:
    """Repeat a clip under speech, from `lead_s` before it to its end, within full scale."""
    mixed = np.concatenate([np.zeros(round(events.lead_s * SAMPLING_RATE), dtype=np.float32), speech])
    sound = np.resize(clip, len(mixed))
    mixed += scale_to_level(sound, measure_level(speech) * 10 ** (-events.snr_db / 20)).astype(np.float32)
    return (mixed / max(1.0, float(np.abs(mixed).max(initial=0.0)) / 0.99)).astype(np.float32)


def _rank(takes: Takes) -> tuple[int, int]:
    """Rank the most lines first; among equals the most voices, as a missing one is the least informative reason."""
    num_missing = sum(isinstance(take, Skipped) and take.kind == NO_VOICE for take in takes.values())
    return sum(isinstance(take, Take) for take in takes.values()), -num_missing
