"""Run or resume an audit: score the pairs under every condition, compute statistics and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.files import JsonLines
from sdiareward.common.provenance import describe_run
from sdiareward.evaluation.baselines import LabelledPairs, load_baseline_pairs, score_with_baselines
from sdiareward.evaluation.held_out import find_overlap
from sdiareward.evaluation.report.content import make_plain
from sdiareward.pairs.content import fingerprint_pairs
from sdiareward.pairs.labels import describe_pairs
from sdiareward.pairs.loading import choose_split, load_pairs
from sdiareward.pairs.sampling import sample_rows
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
    """The model, the data and the settings of an audit; `sdiareward audit --help` describes them."""

    model: ModelSpec
    data: str
    output_dir: Path
    split: str | None = None  # `test`; a file has none.
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


class Auditor:
    """Audit one model; it is loaded when the first reward is needed, and a killed run resumes from the folder."""

    def __init__(self, job: AuditJob):
        job = replace(job, split=choose_split(job.data, job.split))
        self.job = job
        self.folder = job.output_dir
        self.pairs = load_pairs(job.data, job.split, audio_root=job.audio_root)
        self.labels = describe_pairs(self.pairs)
        # What a line of rewards depends on: not the size of the sample, nor the list of conditions.
        self.run = {
            **({} if job.sounds_dir is None else {"sounds": fingerprint_sounds(job.sounds_dir)}),
            **job.model.identity(),
            "split": job.split,
            "pairs": fingerprint_pairs(self.labels, self.pairs),
            "seed": job.seed,
        }
        self.sample = PairSample(self.pairs, self.labels, sample_rows(self.labels, job.num_pairs, job.seed))
        self.training_pairs: LabelledPairs | None = None
        self.notice: str | None = None
        if "baselines" in job.parts:
            places: dict[str, Any] = {"baseline_data": job.baseline_data, "audio_root": job.audio_root}
            self.training_pairs, self.notice = load_baseline_pairs(
                self.labels, job.data, job.split, job.train_split, **places
            )
        self.attacks = {name: ATTACKS[name] for name in job.attacks}
        self.options: dict[str, Any] = {"num_bootstrap": job.num_bootstrap, "seed": job.seed}

    @cached_property
    def scorer(self) -> Scorer:
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
            with suppress(ValueError, FileNotFoundError, TypeError):
                found.append(first[number])
        return found

    def make_conditions(self) -> list[Condition]:
        job = self.job
        found: list[Condition] = []
        if "nuisances" in job.parts:
            found += make_perturbation_conditions(list_severities(job.nuisances), job.seed)
        if "attacks" in job.parts:
            found += make_attack_conditions(
                self.attacks,
                lambda: self.distractors,
                lambda: self.scorer.processor.max_turn_s,
                job.seed,
                job.sounds_dir,
            )
        if "hearing" in job.parts:
            found += [Condition(f"hearing/{name}", CONDITIONS[name]) for name in _HEARD_ALONE]
        return found

    def audit(self) -> dict[str, Any]:
        """Run all parts; return the content of `audit.json`, which `docs/audit.md` describes."""
        rewards = collect_rewards(lambda: self.scorer, self.sample, self.make_conditions(), self.folder, self.run)
        measured, parts = Pairs(self.sample.labels, rewards, **self.options), self.job.parts
        usable = self.sample.keep(label["pair_id"] for label in measured.labels)
        scores, fitted = self._score_baselines(usable)
        audit = {
            **self._describe_sample(measured, rewards),
            "natural": describe_natural(measured),
            "overlap": self._find_overlap(usable, rewards),
            "nuisances": measure_perturbations(measured, self.job.nuisances) if "nuisances" in parts else None,
            "attacks": measure_attacks(measured, self.attacks) if "attacks" in parts else None,
            "hearing": self._measure_hearing(measured, rewards, scores),
            "baselines": fitted,
        }
        audit["verdicts"] = judge(measure_checks(audit))
        # Over all sessions that were not killed.
        sessions = JsonLines(self.folder / "sessions.jsonl").read()
        names = ("num_dialogues", "seconds", "audio_s")
        audit["timing"] = {name: sum(session[name] for session in sessions) for name in names}
        audit["config"] = {**asdict(self.job), "output_dir": str(self.folder)}
        return dict(make_plain({**audit, "run": self.run, **describe_run()}))

    def _describe_sample(self, measured: Pairs, rewards: Rewards) -> dict[str, Any]:
        subsets = {label["pair_id"]: label["subset"] for label in self.sample.labels}
        failed = [
            {"condition": key, "pair_id": line["pair_id"], "subset": subsets[line["pair_id"]], "reason": line[ERROR]}
            for key, lines in rewards.items()
            for line in lines.values()
            if ERROR in line
        ]
        return {
            "format": 1,
            "model": self.job.model.name,
            "trained_with": read_trained_with(self.job.model.checkpoint),
            "dataset": self.job.data,
            "split": self.job.split,
            "num_pairs": len(measured.labels),
            "num_groups": len(set(measured.groups)),
            "num_available": len(self.labels),
            "skipped": [line for line in failed if line["condition"] == NATURAL],
            "failures": [line for line in failed if line["condition"] != NATURAL],
        }

    def _find_overlap(self, usable: PairSample, rewards: Rewards) -> dict[str, Any] | None:
        scores = {label["pair_id"]: rewards[NATURAL][label["pair_id"]]["rewards"] for label in usable.labels}
        options = {**self.options, "nan": "wrong"}
        return find_overlap(self.job.model.checkpoint, usable.select_encoded(), usable.labels, scores, options)

    def _score_baselines(self, usable: PairSample) -> tuple[dict[str, Any], dict[str, Any] | None]:
        if self.training_pairs is None:
            return {}, None
        train, labels = self.training_pairs
        found = score_with_baselines(train, labels, usable.select_encoded(), usable.labels, self.folder)
        return {kind: scores for kind, (scores, _) in found.items()}, {kind: of for kind, (_, of) in found.items()}

    def _measure_hearing(
        self, measured: Pairs, rewards: Rewards, baselines: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Compare the modalities and the baselines on the pairs that have a reward with each modality."""
        keys = {f"hearing/{name}": name for name in _HEARD_ALONE} if "hearing" in self.job.parts else {}
        scores = {
            name: {pair_id: line["rewards"] for pair_id, line in rewards[key].items() if "rewards" in line}
            for key, name in {NATURAL: BOTH, **keys}.items()
        }
        labels = [label for label in measured.labels if all(label["pair_id"] in of_one for of_one in scores.values())]
        if not labels or not (keys or baselines):
            return None
        return {"num_pairs": len(labels), "rows": describe_conditions(labels, scores, baselines, **self.options)}


def split_details(audit: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return an audit without the long table of changes by column, and the rows of that table."""
    if audit["nuisances"] is None:
        return audit, []
    rows = audit["nuisances"]["rows"]
    short = [{key: value for key, value in row.items() if key != "columns"} for row in rows]
    return {**audit, "nuisances": {**audit["nuisances"], "rows": short}}, rows
