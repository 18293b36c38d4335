"""Run or resume an audit: score the pairs under every condition, compute statistics and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.audio_sdiareward import AudioError
from sdiareward.common.files import JsonLines
from sdiareward.common.provenance import describe_run
from sdiareward.common.run_identity import claim_run_dir
from sdiareward.evaluation.baseline_pairs import LabelledPairs, load_baseline_pairs
from sdiareward.evaluation.pair_scoring import score_with_baselines
from sdiareward.evaluation.report.content import make_plain
from sdiareward.pairs.content import fingerprint_pairs
from sdiareward.pairs.labels import describe_pairs
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.sampling import sample_rows
from sdiareward.pairs.schema import SIDES
from sdiareward.perturbations.attack_sounds import fingerprint_sounds
from sdiareward.perturbations.attacks import ATTACKS
from sdiareward.perturbations.decoded_pairs import AuditPair
from sdiareward.perturbations.registry import PERTURBATIONS

from .checks import measure_checks, read_trained_with
from .conditions import (
    ERROR,
    NATURAL,
    Condition,
    PairSample,
    Rewards,
    collect_rewards,
    list_severities,
    make_attack_conditions,
    make_perturbation_conditions,
)
from .modality_ablation import AUDIO_ONLY, BOTH, CONDITIONS, TEXT_ONLY, describe_conditions
from .statistics import Pairs, describe_natural, measure_attacks, measure_perturbations
from .verdicts import judge


if TYPE_CHECKING:
    import datasets

    from sdiareward.scoring.model_spec import ModelSpec
    from sdiareward.scoring.scorer import Scorer

# Flags, result files and names of checks keep older words that committed results and cards hold: "nuisance" for a
# perturbation, "hearing" for the modality ablation, "paid" for a successful attack.
PARTS = ("nuisances", "attacks", "hearing", "baselines")
# Few enough to stay in memory; the beginning of the sample covers several recordings and subsets.
_NUM_DISTRACTORS = 32
_HEARD_ALONE = (AUDIO_ONLY, TEXT_ONLY)


@dataclass(frozen=True)
class AuditJob:
    """The model, the data and the settings of an audit.

    Args:
        model ([`ModelSpec`]): The model.
        data (`str`): Pairs, as `loading.load_pairs` takes them.
        output_dir (`Path`): Folder of the results; a killed run resumes from it.
        split (`str`, *optional*, defaults to `"test"`): Split to audit on.
        train_split (`str`, *optional*, defaults to `"train"`): Split that baselines are fitted on.
        num_pairs (`int`, *optional*, defaults to 60): Number of pairs to draw; 0 for all.
        nuisances, attacks (`tuple[str, ...]`): Names of the perturbations and attacks to try.
        parts (`tuple[str, ...]`, *optional*): Some of `PARTS`.
        sounds_dir (`str`, *optional*): Recordings that attacks use instead of synthetic sounds; see
            `attacks.AttackContext`.
        seed (`int`, *optional*, defaults to 0): Seed of the sample, of random changes, and of the intervals.
        num_bootstrap (`int`, *optional*, defaults to 1000): Bootstrap draws of the intervals.
        audio_root (`str`, *optional*): As `loading.load_pairs` takes it.
        baseline_data (`str`, *optional*): Data set that the baselines are fitted on; by default `data`.
    """

    model: ModelSpec
    data: str
    output_dir: Path
    split: str = "test"
    train_split: str = "train"
    num_pairs: int = 60
    nuisances: tuple[str, ...] = tuple(PERTURBATIONS)
    attacks: tuple[str, ...] = tuple(ATTACKS)
    parts: tuple[str, ...] = PARTS
    sounds_dir: str | None = None
    seed: int = 0
    num_bootstrap: int = 1000
    audio_root: str | None = None
    baseline_data: str | None = None

    def load_pairs(self, split: str) -> datasets.Dataset:
        """Load a split of the data; raises what `loading.load_pairs` raises."""
        return load_pairs(self.data, split, audio_root=self.audio_root)

    def identity(self, labels: Sequence[Mapping[str, Any]], pairs: datasets.Dataset) -> dict[str, Any]:
        """Return what a line of rewards depends on: not the size of the sample, nor the list of conditions."""
        sounds = {} if self.sounds_dir is None else {"sounds": fingerprint_sounds(self.sounds_dir)}
        return {
            **sounds,
            **self.model.identity(),
            "split": self.split,
            "pairs": fingerprint_pairs(labels, pairs),
            "seed": self.seed,
        }


class Auditor:
    """Audit one model; it is loaded when the first reward is needed.

    Args:
        job ([`AuditJob`]): The job.

    Raises:
        ScoringError: See `ModelSpec.load`; the model does not know a criterion of the pairs.
        ValueError: The pairs cannot be audited, or the folder holds another audit.
    """

    def __init__(self, job: AuditJob):
        self.job = job
        self.folder = job.output_dir
        self.pairs = job.load_pairs(job.split)
        self.labels = describe_pairs(self.pairs)
        self.run = job.identity(self.labels, self.pairs)
        claim_run_dir(self.folder, self.run)
        self.sample = PairSample(self.pairs, self.labels, sample_rows(self.labels, job.num_pairs, job.seed))
        self.training_pairs: LabelledPairs | None = None
        self.notice: str | None = None
        if "baselines" in job.parts:
            self.training_pairs, self.notice = load_baseline_pairs(
                self.labels,
                job.data,
                job.split,
                job.train_split,
                baseline_data=job.baseline_data,
                audio_root=job.audio_root,
            )
        self.attacks = {name: ATTACKS[name] for name in job.attacks}
        self.options: dict[str, Any] = {"num_bootstrap": job.num_bootstrap, "seed": job.seed}

    @cached_property
    def scorer(self) -> Scorer:
        """The model, loaded."""
        from sdiareward.scoring.model_spec import ScoringError

        scorer = self.job.model.load()
        unknown = {label["criterion"] for label in self.sample.labels} - set(scorer.processor.prompts)
        if unknown:
            known = ", ".join(sorted(scorer.processor.prompts))
            raise ScoringError(f"the pairs have the criteria {sorted(unknown)}; this model knows {known}.")
        return scorer

    @cached_property
    def distractors(self) -> list[AuditPair]:
        """Pairs that attacks take turns and words from; they do not depend on the size of the sample."""
        first = PairSample(self.pairs, self.labels, sample_rows(self.labels, _NUM_DISTRACTORS, self.job.seed))
        found = []
        for number in range(len(first)):
            with suppress(AudioError, FileNotFoundError, TypeError):
                found.append(first[number])
        return found

    @cached_property
    def rewards(self) -> Rewards:
        """The rewards of the sample under every condition; missing ones are scored."""
        return collect_rewards(lambda: self.scorer, self.sample, self.make_conditions(), self.folder)

    @cached_property
    def measured(self) -> Pairs:
        """The pairs that could be scored unchanged, with their rewards."""
        return Pairs(self.sample.labels, self.rewards, **self.options)

    @cached_property
    def usable(self) -> PairSample:
        """The sample of these pairs."""
        return self.sample.keep(label["pair_id"] for label in self.measured.labels)

    def make_conditions(self) -> list[Condition]:
        """Return every condition of the job's parts."""
        job = self.job
        found: list[Condition] = []
        if "nuisances" in job.parts:
            found += make_perturbation_conditions(list_severities(job.nuisances), job.seed)
        if "attacks" in job.parts:
            found += make_attack_conditions(
                self.attacks,
                lambda: self.distractors,
                lambda: self.scorer.processor.max_turn_s,
                seed=job.seed,
                sounds_dir=job.sounds_dir,
            )
        if "hearing" in job.parts:
            found += [Condition(f"hearing/{name}", CONDITIONS[name]) for name in _HEARD_ALONE]
        return found

    def audit(self) -> dict[str, Any]:
        """Run all parts; return the content of `audit.json`, which `docs/audit.md` describes."""
        scores, fitted = self._score_baselines()
        audit = {
            **self._describe_run(),
            "natural": describe_natural(self.measured),
            "nuisances": self._measure_perturbations(),
            "attacks": self._measure_attacks(),
            "hearing": self._measure_hearing(scores),
            "baselines": fitted,
        }
        audit["verdicts"] = judge(measure_checks(audit))
        audit["timing"] = self._sum_timing()
        audit["config"] = {**asdict(self.job), "output_dir": str(self.folder)}
        return dict(make_plain({**audit, "run": self.run, **describe_run()}))

    def _sum_timing(self) -> dict[str, float]:
        """Return the sums over all sessions that were not killed."""
        sessions = JsonLines(self.folder / "sessions.jsonl").read()
        return {name: sum(session[name] for session in sessions) for name in ("num_dialogues", "seconds", "audio_s")}

    def _describe_run(self) -> dict[str, Any]:
        subsets = {label["pair_id"]: label["subset"] for label in self.sample.labels}
        failed = [
            {"condition": key, "pair_id": line["pair_id"], "subset": subsets[line["pair_id"]], "reason": line[ERROR]}
            for key, lines in self.rewards.items()
            for line in lines.values()
            if ERROR in line
        ]
        return {
            "format": 1,
            "model": self.job.model.name,
            "trained_with": read_trained_with(self.job.model.checkpoint),
            "dataset": self.job.data,
            "split": self.job.split,
            "num_pairs": len(self.measured.labels),
            "num_groups": len(set(self.measured.groups)),
            "num_available": len(self.labels),
            "skipped": [line for line in failed if line["condition"] == NATURAL],
            "failures": [line for line in failed if line["condition"] != NATURAL],
        }

    def _measure_perturbations(self) -> dict[str, Any] | None:
        return measure_perturbations(self.measured, self.job.nuisances) if "nuisances" in self.job.parts else None

    def _measure_attacks(self) -> list[dict[str, Any]] | None:
        return measure_attacks(self.measured, self.attacks) if "attacks" in self.job.parts else None

    def _score_baselines(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Return the scores of the baselines on the same pairs, and the counts of their training pairs."""
        if self.training_pairs is None:
            return {}, None
        train, labels = self.training_pairs
        found = score_with_baselines(train, labels, self.usable.select_encoded(), self.usable.labels, self.folder)
        return {kind: scores for kind, (scores, _) in found.items()}, {kind: of for kind, (_, of) in found.items()}

    def _measure_hearing(self, baselines: Mapping[str, Any]) -> dict[str, Any] | None:
        wanted = _HEARD_ALONE if "hearing" in self.job.parts else ()
        scores = {BOTH: _select_scores(self.rewards, NATURAL)}
        scores |= {name: _select_scores(self.rewards, f"hearing/{name}") for name in wanted}
        labels = _select_labels(self.usable.labels, scores.values())
        if not labels or not (wanted or baselines):
            return None
        return {"num_pairs": len(labels), "rows": describe_conditions(labels, scores, baselines, **self.options)}


def split_details(audit: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return an audit without the long table of changes by column, and the rows of that table."""
    if audit["nuisances"] is None:
        return audit, []
    rows = audit["nuisances"]["rows"]
    short = [{key: value for key, value in row.items() if key != "columns"} for row in rows]
    return {**audit, "nuisances": {**audit["nuisances"], "rows": short}}, rows


def _select_scores(rewards: Rewards, condition: str) -> dict[str, Any]:
    """Return the rewards of both sides under a condition by `pair_id`."""
    lines = rewards.get(condition, {})
    return {
        pair_id: {side: line["rewards"][side] for side in SIDES}
        for pair_id, line in lines.items()
        if "rewards" in line
    }


def _select_labels(labels: Sequence[Mapping[str, Any]], scores: Any) -> list[Mapping[str, Any]]:
    """Return the labels of the pairs that have all of some scores."""
    found = list(scores)
    return [label for label in labels if all(label["pair_id"] in of_one for of_one in found)]
