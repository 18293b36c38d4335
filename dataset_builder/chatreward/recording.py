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
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import SkipError
from sdiareward.dataset_builder.synthesis import SynthesisError
from sdiareward.pairs.messages import join_turns
from sdiareward.pairs.schema import make_stable_id, make_stable_seed
from sdiareward.perturbations.channel import encode_flac
from sdiareward.perturbations.levels import measure_level, scale_to_level
from sdiareward.perturbations.sound_clips import find_clips

from .filters import EmotionClassifier, WordErrors, load_classifier
from .scenarios import Line, Scenario
from .schema import LANGUAGE_TAGS, MIXED_LANGUAGES, NO_VOICE
from .settings import ChatRewardConfig, EventSettings
from .voices import Cast, order_casts, speak_line


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


@dataclass
class Recorded:
    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    rejected: list[Skipped] = field(default_factory=list)  # Every line that failed, of all casts.


class Recorder:
    def __init__(self, config: ChatRewardConfig):
        self._config = config
        self._casts = config.read_casts()

    @cached_property
    def _words(self) -> WordErrors:
        return WordErrors(self._config.asr)

    @cached_property
    def _emotions(self) -> EmotionClassifier | None:
        return load_classifier(self._config.emotion) if self._config.emotion else None

    def record(self, scenario: Scenario, split: str) -> Recorded:
        recorded = Recorded()
        asking, answering = self._choose_speakers(scenario, split)
        question = self._record_question(scenario, asking, recorded.rejected)
        takes = {} if question is None else self._record_answers(scenario, answering, recorded.rejected)
        for score in scenario.answers:
            outcome = self._join(scenario, score, question, takes.get(score))
            if isinstance(outcome, Skipped):
                recorded.skipped.append(outcome)
            else:
                recorded.rows.append(outcome)
        return recorded

    def _choose_speakers(self, scenario: Scenario, split: str) -> tuple[list[Speaker], list[Speaker]]:
        """Return the speakers for the question and for the answers, different genders first."""
        held_out = frozenset(self._config.left_out) if split == "train" else frozenset()
        named = self._config.casts_by_attribute.get(scenario.voices, self._config.casts)
        speaking = [cast for cast in self._casts if cast.name in named]
        casts = [
            cast.drop_engines(held_out) for cast in order_casts(speaking, self._config.seed, scenario.scenario_id)
        ]
        first = make_stable_seed(self._config.seed, scenario.scenario_id) % 2
        answering, asking = _GENDERS[first], _GENDERS[1 - first]
        # A female voice is closest to all ages.
        if scenario.voices == "age":
            women = [(cast, _GENDERS[0]) for cast in casts]
            return women, women
        by_gender = {gender: [(cast, gender) for cast in casts] for gender in _GENDERS}
        return by_gender[asking] + by_gender[answering], by_gender[answering] + by_gender[asking]

    def _record_question(self, scenario: Scenario, speakers: list[Speaker], rejected: list[Skipped]) -> Take | None:
        for cast, gender in speakers:
            take = self._try_line(cast, scenario, QUESTION, scenario.question, gender)
            if isinstance(take, Take):
                return take
            rejected.append(take)
        return None

    def _record_answers(
        self, scenario: Scenario, speakers: list[Speaker], rejected: list[Skipped]
    ) -> dict[int, Take | Skipped]:
        """Return the answers of the first speaker with three that pass, else of the one with the most.

        A speaker is skipped at the first failed answer; the other answers are synthesised only if all speakers fail.
        """
        attempts: list[dict[int, Take | Skipped]] = [{} for _ in speakers]
        for is_last_round in (False, True):
            for (cast, gender), takes in zip(speakers, attempts, strict=True):
                for score, line in scenario.answers.items():
                    if score not in takes:
                        takes[score] = take = self._try_line(cast, scenario, str(score), line, gender)
                        if isinstance(take, Skipped):
                            rejected.append(take)
                            if not is_last_round:
                                break
                if _count_takes(takes) == len(scenario.answers):
                    return takes
        # Among equals the one with most voices: a missing voice is the least informative reason.
        return max(attempts, key=lambda takes: (_count_takes(takes), -_count_missing_voices(takes)))

    def _try_line(self, cast: Cast, scenario: Scenario, name: str, line: Line, gender: str) -> Take | Skipped:
        try:
            return self._speak(cast, scenario, name, line, gender)
        except SkipError as error:
            return Skipped(f"{scenario.scenario_id} {name}", error.kind, f"{cast.name}: {error}")

    def _speak(self, cast: Cast, scenario: Scenario, name: str, line: Line, gender: str) -> Take:
        """Speak and check a line; a question with the attribute `audio` then gets its sound."""
        attribute = scenario.voices
        voice = cast.find_voice(attribute, line.category, gender)
        if voice is None:
            raise SkipError(NO_VOICE, f"has no voice for {attribute} {line.category!r}.")
        try:
            # One speaker for all answers, where the category does not decide it.
            speaker = make_stable_seed(self._config.seed, scenario.scenario_id, name == QUESTION)
            drawn, is_shaped = voice.draw(speaker), cast.is_shaped(attribute)
            language = LANGUAGE_TAGS[line.category or "english"] if attribute == "language" else "en"
            array = speak_line(line.text, drawn, attribute, line.category, is_shaped=is_shaped, language=language)
        except SynthesisError as error:
            raise SkipError(error.kind, str(error)) from error
        wer = self._check_words(line.text, array, language)
        if attribute == "emotion" and line.category:
            self._check_emotion(line.category, array)
        if attribute == "audio" and name == QUESTION:
            array = self._add_event(str(line.category), scenario.scenario_id, array)
        return Take(array, voice.engine_name, wer, language)

    def _check_words(self, text: str, array: np.ndarray, language: str) -> float | None:
        limit = self._config.max_wer
        if limit is None:
            return None
        wer = self._words.rate(text, array, language)
        if wer is not None and wer > limit:
            raise SkipError("wer", f"the word error rate is {wer:.3f}; at most {limit} is allowed.")
        return wer

    def _check_emotion(self, category: str, array: np.ndarray) -> None:
        if self._emotions is None or self._config.emotion is None:
            return
        score, least = self._emotions.score_emotions(array).get(category, 0.0), self._config.emotion.threshold
        if score < least:
            raise SkipError("emotion", f"{category!r} has the score {score:.3f}; at least {least} is needed.")

    def _add_event(self, category: str, scenario_id: str, speech: np.ndarray) -> np.ndarray:
        seed = make_stable_seed(self._config.seed, scenario_id, category)
        try:
            return mix_event(speech, load_event(category, seed, self._config.events), self._config.events)
        except AudioError as error:
            raise SkipError("no_event", str(error)) from error

    def _join(
        self, scenario: Scenario, score: int, question: Take | None, answer: Take | Skipped | None
    ) -> dict[str, Any] | Skipped:
        item = f"{scenario.scenario_id} {score}"
        if question is None or answer is None:
            return Skipped(item, "no_question", "no voice spoke the question; see the rejected lines.")
        if isinstance(answer, Skipped):
            return Skipped(item, answer.kind, answer.reason)
        array = join_turns([question.array, answer.array], self._config.gap_s)
        duration_s = len(array) / SAMPLING_RATE
        if not self._config.min_s <= duration_s <= self._config.max_s:
            limits = f"{self._config.min_s:.0f} to {self._config.max_s:.0f} s are kept"
            return Skipped(item, "duration", f"the dialogue lasts {duration_s:.1f} s; {limits}.")
        return _make_row(scenario, score, question, answer, array)


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


def _count_takes(takes: Mapping[int, Take | Skipped]) -> int:
    return sum(isinstance(take, Take) for take in takes.values())


def _count_missing_voices(takes: Mapping[int, Take | Skipped]) -> int:
    return sum(isinstance(take, Skipped) and take.kind == NO_VOICE for take in takes.values())


def _make_row(scenario: Scenario, score: int, question: Take, answer: Take, array: np.ndarray) -> dict[str, Any]:
    line = scenario.answers[score]
    labels = (scenario.part, scenario.attribute, scenario.category, scenario.question.category, line.category)
    sample_id = make_stable_id(scenario.scenario_id, score, *labels, scenario.question.text, line.text)
    return {
        "sample_id": sample_id,
        "scenario_id": scenario.scenario_id,
        "part": scenario.part,
        "attribute": scenario.attribute,
        "category": scenario.category,
        "response_category": line.category,
        "topic": scenario.topic,
        "score": score,
        "design_score": score,
        "expert_scores": None,
        "question": scenario.question.text,
        "response": line.text,
        "question_s": question.duration_s,
        "response_s": answer.duration_s,
        "duration_s": len(array) / SAMPLING_RATE,
        "audio": {"bytes": encode_flac(array), "path": f"{sample_id}.flac"},
        "question_synthesizer": question.synthesizer,
        "synthesizer": answer.synthesizer,
        "question_wer": question.wer,
        "response_wer": answer.wer,
        "language": question.language if question.language == answer.language else MIXED_LANGUAGES,
        "license": scenario.license,
    }
