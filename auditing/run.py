"""Run or resume an audit: score the pairs under every condition, compute statistics and verdicts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from sdiareward.common.errors import check_extra
from sdiareward.common.files import JsonLines
from sdiareward.common.machine import describe_run
from sdiareward.common.tables import Results
from sdiareward.evaluation.baselines import load_baseline_pairs, score_with_baselines
from sdiareward.evaluation.report.content import make_plain
from sdiareward.evaluation.scores import load_scored_pairs
from sdiareward.evaluation.summary import find_overlap
from sdiareward.pairs.content import fingerprint_pairs
from sdiareward.pairs.labels import describe_pairs, sample_rows
from sdiareward.pairs.loading import choose_split
from sdiareward.perturbations.attack_sounds import fingerprint_sounds
from sdiareward.perturbations.attacks import ATTACKS
from sdiareward.perturbations.decoded_pairs import AuditPair, decode_pairs
from sdiareward.perturbations.registry import PERTURBATIONS
from sdiareward.scoring.model_spec import ModelSpec

from . import conditions, verdicts
from .report import write_audit


if TYPE_CHECKING:
    from sdiareward.scoring.scorer import Scorer

# Result files and check names keep older words because committed results and cards contain them: "nuisance" for
# perturbation, "hearing" for modality ablation, "paid" for a successful attack.
Part = Literal["perturbations", "attacks", "hearing", "baselines"]
PARTS: tuple[Part, ...] = ("perturbations", "attacks", "hearing", "baselines")
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
    max_samples: int = 60
    perturbations: tuple[str, ...] = tuple(PERTURBATIONS)
    attacks: tuple[str, ...] = tuple(ATTACKS)
    parts: tuple[str, ...] = PARTS
    sounds_dir: str | None = None
    seed: int = 0
    num_bootstrap: int = 1000
    audio_root: str | None = None
    baseline_data: str | None = None
    criterion: str | None = None  # For all pairs; replaces the column `criterion`.

    def __post_init__(self) -> None:
        self.split = choose_split(self.data, self.split)
        places: dict[str, Any] = {"audio_root": self.audio_root, "criterion": self.criterion}
        self.pairs, notice = load_scored_pairs(self.model.name, self.data, self.split, places)
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
        self.sample = self._draw(self.max_samples)
        # The training pairs and their labels, if any.
        self.training_pairs, notices = None, [notice]
        if "baselines" in self.parts:
            places["baseline_data"] = self.baseline_data
            found = load_baseline_pairs(self.labels, self.data, self.split, self.train_split, **places)
            self.training_pairs = found[0]
            notices.append(found[1])
        self.notices = [notice for notice in notices if notice]

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
        if "perturbations" in self.parts:
            severities = conditions.list_severities(self.perturbations)
            found += conditions.make_perturbation_conditions(severities, self.seed)
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
        is_perturbed = "perturbations" in self.parts
        changed = verdicts.measure_perturbations(pairs, self.perturbations) if is_perturbed else None
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
            "nuisances": changed,
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


_KNOWN: dict[str, Collection[str]] = {"perturbations": PERTURBATIONS, "attacks": ATTACKS, "parts": PARTS}


def choose_names(**wanted: Sequence[str] | None) -> dict[str, tuple[str, ...]]:
    """Return the known perturbations, attacks and parts that are wanted, in order; None and `all` want each."""
    found: dict[str, tuple[str, ...]] = {}
    for kind, names in wanted.items():
        known = _KNOWN[kind]
        names = ("all",) if names is None else names
        if unknown := [name for name in names if name not in (*known, "all", "none")]:
            raise ValueError(f"--{kind}: {unknown[0]!r} is not one of {', '.join(known)}, all, none.")
        found[kind] = tuple(name for name in known if name in names or "all" in names)
    return found


def audit(
    model: str | Path,
    dataset: str | Path,
    *,
    output_dir: str | Path | None = None,
    split: str | None = None,
    criterion: str | None = None,
    max_samples: int | None = 60,
    perturbations: Sequence[str] | None = None,
    attacks: Sequence[str] | None = None,
    parts: Sequence[Part] = PARTS,
    audio_root: str | Path | None = None,
    baseline_data: str | Path | None = None,
    train_split: str = "train",
    sounds_dir: str | Path | None = None,
    dtype: str | None = None,
    device: str | None = None,
    batch_tokens: int | None = None,
    num_bootstrap: int = 1000,
    seed: int = 0,
) -> Results:
    """Perturb and attack pairs, and measure how much a model's rewards change, like `sdiareward audit`.

    Args:
        model (`str` or `Path`): Folder or Hub id of a checkpoint, `"nano"` or `"small"`.
        dataset (`str` or `Path`): Table, folder or Hub id of pairs, as in [`load_pairs`].
        output_dir (`str` or `Path`, *optional*): Folder for pages and rewards, from which the same call resumes a
            killed run. By default nothing is kept.
        split (`str`, *optional*): Split to audit on, by default `"test"`; a single file has no splits.
        criterion (`str`, *optional*): Criterion of all pairs; replaces the column `criterion`.
        max_samples (`int`, *optional*, defaults to 60): Number of pairs to draw, spread over subsets, recordings and
            synthesizers; None for all.
        perturbations (`list[str]`, *optional*): Names of perturbations, by default all; see `docs/audit.md`.
        attacks (`list[str]`, *optional*): Names of attacks, by default all.
        parts (`list[str]`, *optional*): Parts of the audit, all by default: `"perturbations"`, `"attacks"`,
            `"hearing"` and `"baselines"`.
        audio_root (`str` or `Path`, *optional*): Base folder for relative paths that are not beside the table.
        baseline_data (`str` or `Path`, *optional*): Pairs to fit the baselines on, by default `dataset`.
        train_split (`str`, *optional*, defaults to `"train"`): Split of the pairs for the baselines.
        sounds_dir (`str` or `Path`, *optional*): Recordings to insert instead of synthetic sounds.
        dtype (`str`, *optional*): Dtype of the backbone.
        device (`str`, *optional*): Device; by default an accelerator if available.
        batch_tokens (`int`, *optional*): Tokens per forward pass.
        num_bootstrap (`int`, *optional*, defaults to 1000): Bootstrap draws of the intervals.
        seed (`int`, *optional*, defaults to 0): Seed of the draws and of noise.

    Returns:
        [`Results`]: The content of `audit.json`; it prints as checks and tables.

    Raises:
        PairsError: The data set cannot be read, or has no such split.
        ScoringError: The model cannot be loaded.
        ValueError: A perturbation, an attack or a part is unknown.

    Examples:
        >>> results = audit("nano", "pairs.csv", perturbations=["noise"], parts=["perturbations"])  # doctest: +SKIP
        >>> [check["name"] for check in results["verdicts"] if check["status"] == "fail"]  # doctest: +SKIP
    """
    check_extra("eval")
    options: dict[str, Any] = choose_names(perturbations=perturbations, attacks=attacks, parts=parts)
    paths = {"audio_root": audio_root, "baseline_data": baseline_data, "sounds_dir": sounds_dir}
    options |= {name: path and str(path) for name, path in paths.items()}
    options |= {"split": split, "train_split": train_split, "criterion": criterion, "max_samples": max_samples or 0}
    options |= {"num_bootstrap": num_bootstrap, "seed": seed}
    spec = ModelSpec(str(model), None, dtype, device, batch_tokens)
    with TemporaryDirectory() if output_dir is None else nullcontext(output_dir) as place:
        found = Auditor(spec, str(dataset), Path(place), **options).audit()
        return Results(found, write_audit(Path(place), found))
