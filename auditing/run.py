"""Run or resume an audit: score the pairs under every condition, compute statistics and verdicts."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.files import JsonLines
from sdiareward.common.machine import describe_run
from sdiareward.evaluation.baselines import load_baseline_pairs, score_with_baselines
from sdiareward.evaluation.report.content import make_plain
from sdiareward.evaluation.summary import find_overlap
from sdiareward.pairs.content import fingerprint_pairs
from sdiareward.pairs.labels import describe_pairs, sample_rows
from sdiareward.pairs.loading import choose_split, load_pairs
from sdiareward.perturbations.attack_sounds import fingerprint_sounds
from sdiareward.perturbations.attacks import ATTACKS
from sdiareward.perturbations.decoded_pairs import AuditPair, decode_pairs
from sdiareward.perturbations.registry import PERTURBATIONS

from . import conditions, verdicts


if TYPE_CHECKING:
    from sdiareward.scoring.model_spec import ModelSpec
    from sdiareward.scoring.scorer import Scorer

# Flags, result files and check names keep older words because committed results and cards contain them: "nuisance" for
# perturbation, "hearing" for modality ablation, "paid" for a successful attack.
PARTS = ("nuisances", "attacks", "hearing", "baselines")
# Few enough for memory; the start of the sample covers several recordings and subsets.
_NUM_DISTRACTORS = 32


@dataclass
class Auditor:
    """Audit one model, loaded when the first reward is needed; a killed run resumes from the folder.

    `sdiareward audit --help` describes the fields.
    """

    model: ModelSpec
    data: str
    output_dir: Path
    split: str | None = None  # By default `test`; a file has no split.
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

    def __post_init__(self) -> None:
        self.split = choose_split(self.data, self.split)
        self.pairs = load_pairs(self.data, self.split, audio_root=self.audio_root)
        self.labels = describe_pairs(self.pairs)
        self._row_of = {label["pair_id"]: row for row, label in enumerate(self.labels)}
        # Everything a line of rewards depends on; excludes sample size and list of conditions.
        self.run = {
            **({} if self.sounds_dir is None else {"sounds": fingerprint_sounds(self.sounds_dir)}),
            **self.model.identity(),
            "split": self.split,
            "pairs": fingerprint_pairs(self.labels, self.pairs),
            "seed": self.seed,
        }
        self.sample = self._draw(self.num_pairs)
        # The training pairs and their labels, or the reason why there are none.
        self.training_pairs, self.notice = None, None
        if "baselines" in self.parts:
            places: dict[str, Any] = {"baseline_data": self.baseline_data, "audio_root": self.audio_root}
            self.training_pairs, self.notice = load_baseline_pairs(
                self.labels, self.data, self.split, self.train_split, **places
            )

    def _draw(self, num_pairs: int) -> list[dict[str, Any]]:
        return [self.labels[row] for row in sample_rows(self.labels, num_pairs, self.seed)]

    def read_pair(self, pair_id: str) -> AuditPair:
        return decode_pairs(self.pairs, [self._row_of[pair_id]])[0]

    @cached_property
    def scorer(self) -> Scorer:
        from sdiareward.scoring.model_spec import ScoringError

        scorer = self.model.load()
        if unknown := {label["criterion"] for label in self.sample} - set(scorer.processor.prompts):
            known = ", ".join(sorted(scorer.processor.prompts))
            raise ScoringError(f"the pairs have the criteria {sorted(unknown)}; this model supports {known}.")
        return scorer

    @cached_property
    def distractors(self) -> list[AuditPair]:
        """Pairs from which attacks take turns and words, independent of the sample size."""
        found = []
        for label in self._draw(_NUM_DISTRACTORS):
            with suppress(ValueError, FileNotFoundError, TypeError):
                found.append(self.read_pair(label["pair_id"]))
        return found

    def make_conditions(self) -> list[conditions.Condition]:
        found: list[conditions.Condition] = []
        if "nuisances" in self.parts:
            found += conditions.make_perturbation_conditions(conditions.list_severities(self.nuisances), self.seed)
        if "attacks" in self.parts:
            heard = (lambda: self.distractors, lambda: self.scorer.processor.max_turn_s)
            found += conditions.make_attack_conditions(self.attacks, *heard, self.seed, self.sounds_dir)
        return found + (conditions.make_modality_conditions() if "hearing" in self.parts else [])

    def audit(self) -> dict[str, Any]:
        """Run all parts; return the content of `audit.json`, which `docs/audit.md` describes."""
        pair_ids = [label["pair_id"] for label in self.sample]
        rewards = conditions.collect_rewards(
            lambda: self.scorer, self.read_pair, pair_ids, self.make_conditions(), self.output_dir, self.run
        )
        options = {"num_bootstrap": self.num_bootstrap, "seed": self.seed}
        pairs = verdicts.Pairs(self.sample, rewards, **options)
        lines = rewards[conditions.NATURAL]
        natural = {label["pair_id"]: lines[label["pair_id"]]["rewards"] for label in pairs.labels}
        usable = (self.pairs.select([self._row_of[pair_id] for pair_id in natural]), pairs.labels)
        baselines = score_with_baselines(*self.training_pairs, *usable, self.output_dir) if self.training_pairs else {}
        scores = {str(kind): of for kind, (of, _) in baselines.items()}
        heard = conditions.MODALITIES if "hearing" in self.parts else ()
        subsets = {label["pair_id"]: label["subset"] for label in self.sample}
        failed = [
            {"condition": key, "pair_id": pair_id, "subset": subsets[pair_id], "reason": line[conditions.ERROR]}
            for key, lines in rewards.items()
            for pair_id, line in lines.items()
            if conditions.ERROR in line
        ]
        audit: dict[str, Any] = {
            "model": self.model.name,
            "trained_with": verdicts.read_trained_with(self.model.checkpoint),
            "dataset": self.data,
            "split": self.split,
            "num_pairs": len(pairs.labels),
            "num_groups": len(set(pairs.groups)),
            "num_available": len(self.labels),
            "skipped": [line for line in failed if line["condition"] == conditions.NATURAL],
            "failures": [line for line in failed if line["condition"] != conditions.NATURAL],
            "natural": verdicts.describe_natural(pairs),
            "overlap": find_overlap(self.model.checkpoint, *usable, natural, {**options, "nan": "wrong"}),
            "nuisances": verdicts.measure_perturbations(pairs, self.nuisances) if "nuisances" in self.parts else None,
            "attacks": verdicts.measure_attacks(pairs, self.attacks) if "attacks" in self.parts else None,
            "hearing": verdicts.measure_modalities(pairs, heard, scores),
            "baselines": {kind: of for kind, (_, of) in baselines.items()} if self.training_pairs else None,
        }
        audit["verdicts"] = verdicts.judge(verdicts.measure_checks(audit))
        # Sum over all sessions that were not killed.
        sessions = JsonLines(self.output_dir / "sessions.jsonl").read()
        names = ("num_dialogues", "seconds", "audio_s")
        audit["timing"] = {name: sum(session[name] for session in sessions) for name in names}
        audit["config"] = {**asdict(self), "output_dir": str(self.output_dir)}
        return dict(make_plain({**audit, "run": self.run, **describe_run()}))
