"""Score one dialogue or two in one batch: rewards, the reward after each turn, the shortcut checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sdiareward.audio_sdiareward import Heard, audio_duration_s, describe_unheard
from sdiareward.esdr_accuracy.pairwise import MODALITY_SUBSETS
from sdiareward.pairs.schema import CRITERIA
from sdiareward.perturbations.registry import PERTURBATIONS
from sdiareward.scoring.calibration import Calibration

from .shortcut_checks import CHECKS, Check, change_dialogue, compare


if TYPE_CHECKING:
    from sdiareward.scoring.scorer import Scorer

NAMES = ("A", "B")
_SILENCE = "leading_silence"


@dataclass(frozen=True)
class Result:
    criterion: str
    rewards: list[float]
    growth: list[list[float]]  # Reward after each turn, per dialogue; the last is its reward.
    checks: list[Check] = field(default_factory=list)
    probabilities: dict[str, float] = field(default_factory=dict)  # By subset, that the first is better.
    num_fitted: dict[str, int] = field(default_factory=dict)  # By subset, the pairs behind the calibration.
    uncalibrated: str = ""  # Why there is no calibration.
    notes: list[str] = field(default_factory=list)  # What the model does not hear.

    @property
    def margin(self) -> float | None:
        return self.rewards[0] - self.rewards[1] if len(self.rewards) == 2 else None


def compute_result(
    scorer: Scorer, dialogues: Sequence[Sequence[Mapping[str, Any]]], criterion: str, with_checks: bool = True
) -> Result:
    names = CHECKS if with_checks else ()
    changed = [change_dialogue(dialogue, name) for name in names for dialogue in dialogues]
    heard: dict[int, Heard] = {}
    rewards = iter(scorer.score([*dialogues, *changed], criterion, heard=heard))
    finals = [next(rewards) for _ in dialogues]
    after = {name: [next(rewards) for _ in dialogues] for name in names}
    beginnings = [dialogue[:end] for dialogue in dialogues for end in range(1, len(dialogue))]
    features = dict(scorer.iter_features(beginnings, criterion))
    parts = (features[index].reward for index in range(len(beginnings)))
    growth = [[*(next(parts) for _ in dialogue[1:]), final] for dialogue, final in zip(dialogues, finals, strict=True)]
    return Result(
        criterion,
        finals,
        growth,
        compare(finals, after),
        notes=_list_notes(dialogues, heard, scorer.processor.max_turn_s, with_checks),
        **_calibrate(scorer.model.config, finals, criterion),
    )


def _calibrate(config: Any, rewards: Sequence[float], criterion: str) -> dict[str, Any]:
    """Return the fields of a result from the calibration, or why there is none."""
    try:
        calibration = Calibration.of(config)
    except ValueError as error:
        reason = "the checkpoint has no calibration" if config.calibration is None else str(error).rstrip(".")
        return {"uncalibrated": reason}
    if len(rewards) == 1:
        return {}
    margin = rewards[0] - rewards[1]
    fitted = {
        name: of for name, of in sorted(calibration.parameters["subsets"].items()) if _has_criterion(name, criterion)
    }
    if not fitted:
        return {"uncalibrated": f"it was fitted on no pairs of the criterion {criterion!r}"}
    num_fitted = {name: of["num_pairs"] for name, of in fitted.items()}
    probabilities = {subset: calibration.compute_probability(margin, subset) for subset in num_fitted}
    return {"probabilities": probabilities, "num_fitted": num_fitted}


def _has_criterion(subset: str, criterion: str) -> bool:
    """Return whether the subset has the criterion; a custom criterion applies to all subsets."""
    return criterion not in CRITERIA or (subset in MODALITY_SUBSETS) == (criterion == "modality")


def _list_notes(
    dialogues: Sequence[Sequence[Mapping[str, Any]]], heard: Mapping[int, Heard], max_turn_s: float, with_checks: bool
) -> list[str]:
    notes: list[str] = []
    silence_s = PERTURBATIONS[_SILENCE].default
    for index, (name, dialogue) in enumerate(zip(NAMES, dialogues, strict=False)):
        notes += [f"Dialogue {name}: {notice}." for notice in describe_unheard([("", heard[index])])]
        lengths = [audio_duration_s(item["audio"]) for turn in dialogue for item in turn["content"] if "audio" in item]
        num_pushed = sum(length <= max_turn_s < length + silence_s for length in lengths)
        if with_checks and num_pushed:
            notes.append(
                f"Dialogue {name}: the silence of the checks pushes the end of {num_pushed} turns beyond the "
                f"{max_turn_s:g} s that are heard, so that this check also takes words away."
            )
    return notes
