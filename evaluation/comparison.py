"""Compare spoken dialogue systems: which one's dialogues get the higher reward, and is the difference clear?

`compare` reads, matches, measures and scores the dialogues, counts wins, and writes `compare.json`, `compare.parquet`
and the page. A win is a strictly higher reward, as in the metric; a tie counts half for each system.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from sdiareward.audio_sdiareward import SAMPLING_RATE, Clip, is_silent, open_encoded, open_source
from sdiareward.chat_sdiareward import ROLES, Dialogue, DialogueError, make_dialogue
from sdiareward.common.errors import UserError, check_modules
from sdiareward.common.files import JsonLines, hash_json, replace_atomically, write_file
from sdiareward.common.machine import describe_run
from sdiareward.esdr_accuracy.pairwise import has_many, percentile_interval, student_quantile
from sdiareward.pairs.content import hash_parts
from sdiareward.pairs.messages import Form
from sdiareward.pairs.rows import MessageRows, Rows
from sdiareward.pairs.systems import System, name_systems, read_systems
from sdiareward.perturbations.channel import encode_flac
from sdiareward.perturbations.effects import measure_level
from sdiareward.scoring.dataset import ScoringJob, score_dataset
from sdiareward.scoring.model_spec import ModelSpec

from .comparison_page import write_page
from .report.content import make_plain
from .report.examples import EmbedAudio
from .statistics import Clusters, sign_flip_test
from .verdicts import (
    COVARIATES,
    CRITERIA,
    MATCHED_DBFS,
    MAX_P_VALUE,
    RULE,
    Covariate,
    describe_criterion,
    is_certain,
    join_verdicts,
    list_limits,
    list_reasons,
    phrase_verdict,
)


if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from sdiareward.scoring.scorer import Scorer

ALL = "all"
_NEEDED = ("jinja2", "matplotlib", "scipy")
_MAX_NAME_CHARACTERS = 60
_NUM_NAMED = 3
# A level below this is silence.
_FLOOR_DBFS = -100.0
_MIN_CORRELATION = 0.3
# Where ranks of fewer dialogues agree, it may well be by chance.
_MIN_DIALOGUES = 5
# Wins of each system over each other one that are added to the counted ones: without them the strength of a system
# that wins every time is infinite.
PRIOR_WINS = 0.5
# Narrower intervals are rounding errors of equal fits.
_MIN_WIDTH = 1e-9
Record = dict[str, Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PairOfSystems:
    """Two systems under one criterion; counts and margins are the first's against the second."""

    criterion: str
    first: str
    second: str
    verdict: str
    is_clear: bool
    num_dialogues: int
    num_groups: int
    num_first: int
    num_second: int
    num_ties: int
    win_rate: float
    # None for one group.
    interval: list[float] | None
    # Of the sign test, in which the signs of whole groups are random.
    p_value: float
    mean_margin: float
    # None for one group, or if all margins are equal.
    mean_margin_interval: list[float] | None
    # By the names of `COVARIATES`, the result of `correlate`.
    follows: dict[str, Record]


@dataclass(frozen=True)
class RankedSystem:
    """A system's place under one criterion; see `rank_systems`."""

    criterion: str
    system: str
    strength: float
    interval: list[float] | None
    num_groups: int
    win_rate: float


@dataclass(frozen=True)
class Comparison:
    """The comparison of two or more systems."""

    verdict: str
    systems: dict[str, str]
    model: str
    criteria: list[str]
    pairs: list[PairOfSystems]
    ranking: list[RankedSystem]
    limits: list[str]
    # One row per dialogue, system and criterion: labels, `reward` and what `measure_dialogue` returns.
    dialogues: list[Record] = field(repr=False)
    # `dialogue`, and `missing_in`: the systems that lack it.
    unmatched: list[Record] = field(repr=False)
    skipped: list[Record] = field(repr=False)
    output_dir: str | None = None
    page: str | None = None

    def to_pandas(self) -> pd.DataFrame:
        """Return `dialogues` as a table, which is also in `compare.parquet`."""
        return self.to_arrow().to_pandas()

    def to_arrow(self) -> pa.Table:
        import pyarrow as pa

        return pa.Table.from_pylist(self.dialogues)


class OtherProcessError(UserError):
    """Raised in all processes of a run but the main one, which has the results."""


@dataclass(frozen=True)
class ScoredDialogues:
    """The dialogues that all systems have, with their rewards."""

    systems: list[str]
    names: list[str]
    groups: list[str]
    # By criterion, shape `(num_dialogues, num_systems)`.
    rewards: dict[str, Floats]
    # By dialogue and system.
    measures: list[list[Record]]

    def get_values(self, name: str) -> Floats:
        """Return one of the measures, shape `(num_dialogues, num_systems)`."""
        return np.array([[each[name] for each in row] for row in self.measures], dtype=np.float64)


def compare(
    *systems: str | Path,
    model: str | Path | ModelSpec = "nano",
    criterion: str = "joint",
    output_dir: str | Path | None = None,
    pattern: str | None = None,
    form: Form | None = None,
    user_turns: str | Path | None = None,
    audio_root: str | Path | None = None,
    prompts: Mapping[str, str] | None = None,
    dtype: str | None = None,
    device: str | None = None,
    batch_tokens: int | None = None,
    num_bootstrap: int = 1000,
    seed: int = 0,
    embed_audio: EmbedAudio = "all",
    match_level: bool = False,
) -> Comparison:
    """Find out which of several systems gets the higher rewards for the same dialogues, and whether that is clear.

    Args:
        *systems (`str` or `Path`): Two or more folders or tables of dialogues, as `NAME=PATH` to name them, or one
            table with a column `system`; see `docs/compare.md`.
        model (`str` or `Path`, *optional*, defaults to `"nano"`): Checkpoint folder or Hub id.
        criterion (`str`, *optional*, defaults to `"joint"`): `"modality"`, `"colloquialness"`, `"joint"`, another one
            of the model, or `"all"` for these three.
        output_dir (`str` or `Path`, *optional*): Folder for `compare.json`, `compare.parquet` and the page; the same
            call resumes a run there. By default nothing is kept.
        pattern (`str`, *optional*): Names of recordings, such as `"{dialogue}_{turn}_{role}.wav"`.
        user_turns (`str` or `Path`, *optional*): Folder of the user's turns, which all systems share.
        form (`str`, *optional*): `"turns"` if two recordings of one length are turns, not the channels of a call.
        audio_root (`str` or `Path`, *optional*): Folder at which relative paths in tables begin; see
            `pairs.systems.read_systems`.
        prompts (`dict[str, str]`, *optional*): System prompts by criterion in place of the checkpoint's.
        dtype (`str`, *optional*): Dtype of the backbone.
        device (`str`, *optional*): Where to compute; by default an accelerator if there is one.
        batch_tokens (`int`, *optional*): Tokens in one forward pass.
        num_bootstrap (`int`, *optional*, defaults to 1000): Bootstrap draws of the intervals.
        seed (`int`, *optional*, defaults to 0): Seed of the draws.
        embed_audio (`"all"` or `"none"`, *optional*, defaults to `"all"`): Recordings that the page plays.
        match_level (`bool`, *optional*, defaults to `False`): Bring all systems to one level first, -26 dBFS.

    Returns:
        [`Comparison`]: `verdict` (a sentence), `pairs` (win rate, interval and test of every two systems), `ranking`,
        `limits` (what qualifies the verdict) and `dialogues` (every reward, higher is better).

    Raises:
        UserError: There are fewer than two systems, one cannot be read, or they have no dialogue in common.
        ScoringError: The model cannot be loaded, or no dialogue can be scored.

    Examples:
        >>> found = compare("runs/a", "runs/b")  # doctest: +SKIP
        >>> print(found.verdict)  # doctest: +SKIP
    """
    spec = model
    if not isinstance(spec, ModelSpec):
        spec = ModelSpec(str(model), prompts, dtype, device, batch_tokens=batch_tokens)
    criteria = list(CRITERIA) if criterion == ALL else [criterion]
    check_modules(_NEEDED)
    if len(criteria) > 1 and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            f"criterion is {ALL} in one of several processes, which score one criterion at a time; run each criterion "
            f"with them into one output_dir, then {ALL} in a single process, which takes what they scored."
        )
    options: Record = {"pattern": pattern, "user_turns": user_turns, "audio_root": audio_root, "form": form}
    found = read_systems(systems, **options)
    check_modules(["choix"] if len(found) > 2 else [])
    names, unmatched = match_dialogues(found)
    max_turn_s = _check_model(spec, criteria)
    measures, skipped = measure_systems(found, names, max_turn_s, match_level)
    if match_level:
        found = [replace(system, read=partial(_read_matched, system.read, max_turn_s)) for system in found]
    draws = {"num_bootstrap": num_bootstrap, "seed": seed}
    with TemporaryDirectory() if output_dir is None else nullcontext(output_dir) as place:
        folder = Path(place)
        shared: Record = {"systems": found, "names": list(measures), "match_level": match_level, "loaded": []}
        jobs = [SystemsJob(spec, str(folder / "scores" / name), criterion=name, **shared) for name in criteria]
        scored = score_systems(jobs, measures, skipped)
        pairs = [pair for name in criteria for pair in _compare_pairs(scored, name, draws)]
        limits = list_limits(spec.name, scored, pairs, max_turn_s, match_level)
        for number, pair in enumerate(pairs):
            of_pair = (limit for limit in limits if {pair.first, pair.second}.issuperset(limit.systems))
            short = [limit.short for limit in of_pair if limit.short]
            pairs[number] = replace(pair, verdict=phrase_verdict(pair, short))
        ranking = [
            RankedSystem(name, scored.systems[system], **entry)
            for name, rewards in scored.rewards.items()
            for system, entry in (rank_systems(rewards, scored.groups, **draws) if len(found) > 2 else {}).items()
        ]
        result = Comparison(
            verdict=join_verdicts(pairs, ranking),
            systems={system.name: system.path for system in found},
            model=spec.name,
            criteria=criteria,
            pairs=pairs,
            ranking=ranking,
            limits=[limit.text for limit in limits],
            dialogues=_list_dialogues(scored),
            unmatched=unmatched,
            skipped=skipped,
            output_dir=str(folder),
            page=str(folder / "report" / "index.html"),
        )
        _write(result, scored, found, {**draws, "match_level": match_level, "identity": spec.identity()}, embed_audio)
    return result if output_dir is not None else replace(result, output_dir=None, page=None)


def name_output_dir(systems: Sequence[str]) -> Path:
    """Return the folder that a comparison is written to by default: `compare-A-B` in the working directory."""
    names = "-".join(name_systems(systems)) if systems else ""
    return Path(re.sub(r"[^\w.-]+", "_", f"compare-{names}")[:_MAX_NAME_CHARACTERS])


def match_dialogues(systems: Sequence[System]) -> tuple[list[str], list[Record]]:
    """Return the dialogues of all systems, in the first one's order, and the others with the systems without them."""
    known = {system.name: set(system.names) for system in systems}
    everything = dict.fromkeys(name for system in systems for name in system.names)
    missing = {name: [owner for owner, names in known.items() if name not in names] for name in everything}
    common = [name for name, lacking in missing.items() if not lacking]
    if not common:
        examples = []
        for system in systems:
            names = system.names or [f"none ({reason})" for reason in system.skipped.values()][:1] or ["none"]
            more = f" and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else ""
            examples.append(f"{system.name} has {', '.join(names[:_NUM_NAMED])}{more}")
        raise UserError(
            f"no dialogue is in all of {len(systems)} systems: {'; '.join(examples)}; dialogues are matched by name: "
            "name them alike, or say with --pattern how recordings are named."
        )
    return common, [{"dialogue": name, "missing_in": lacking} for name, lacking in missing.items() if lacking]


def _check_model(spec: ModelSpec, criteria: Sequence[str]) -> float:
    """Raise unless the model has the criteria; return the number of seconds of a turn that it hears."""
    processor = spec.load_processor()
    known = {**processor.prompts, **(spec.prompts or {})}
    if unknown := [name for name in criteria if name not in known]:
        raise UserError(f"criterion is {unknown[0]!r}; this model knows {', '.join(sorted(known))}, and {ALL}.")
    return float(processor.max_turn_s)


def measure_systems(
    systems: Sequence[System], names: Sequence[str], max_turn_s: float, match_level: bool
) -> tuple[dict[str, list[Record]], list[Record]]:
    """Return the measures of every dialogue by name and system, and the dialogues that cannot be used."""
    from tqdm.auto import tqdm

    skipped = [
        {"system": system.name, "dialogue": name, "reason": reason}
        for system in systems
        for name, reason in system.skipped.items()
    ]
    measures: dict[str, list[Record]] = {}
    for name in tqdm(names, unit="dialogue", desc="reading recordings"):
        found = []
        for system in systems:
            try:
                found.append(measure_dialogue(make_dialogue(system.read(name)), max_turn_s, match_level=match_level))
            except DialogueError as error:
                skipped.append({"system": system.name, "dialogue": name, "reason": str(error)})
        if len(found) == len(systems):
            measures[name] = found
    _require_some(list(measures), len(names), skipped)
    return measures, skipped


def _require_some(left: Sequence[str], num_common: int, skipped: Sequence[Record]) -> None:
    if not left:
        last = skipped[-1]
        place = f"{last['system']}, {last['dialogue']}"
        raise UserError(f"none of {num_common} dialogues can be compared; {place}: {last['reason']}")


def measure_dialogue(given: Dialogue, max_turn_s: float, *, match_level: bool = False) -> Record:
    """Measure what a reward might follow instead of the speech, as it is scored; the rates are those given."""
    dialogue = match_levels(given, max_turn_s) if match_level else given
    answers, answers_s, durations, user, rates = list[Any](), 0.0, list[float](), list[Any](), list[int]()
    for number, (turn, original) in enumerate(zip(dialogue.turns, given.turns, strict=True), start=1):
        is_answer = turn.role == ROLES[1]
        try:
            rates += [_read_sampling_rate(clip) for clip in original.clips]
            answers += [clip.read(max_duration_s=max_turn_s) for clip in turn.clips if is_answer]
            durations += (found_s := [clip.duration_s for clip in turn.clips])
            answers_s += sum(found_s) if is_answer else 0.0
            user += [] if is_answer else [hash_parts(turn.parts)]
        except (ValueError, OSError, TypeError) as error:
            raise DialogueError(str(error), number) from error
    cut_s = [max(duration - max_turn_s, 0.0) for duration in durations]
    heard = np.concatenate(answers) if answers else np.zeros(0, dtype=np.float32)
    return {
        "num_turns": len(durations),  # Recordings.
        "num_cut": sum(seconds > 0 for seconds in cut_s),  # Of which the model hears only the beginning.
        "num_silent": sum(map(is_silent, answers)),
        "audio_s": sum(durations),
        "cut_s": sum(cut_s),  # That the model does not hear.
        "answer_s": answers_s,
        "heard_answer_s": len(heard) / SAMPLING_RATE,
        # Root mean square of the heard part of the assistant's turns.
        "level_dbfs": max(20 * math.log10(max(measure_level(heard), 1e-10)), _FLOOR_DBFS),
        "user_hash": hash_json(user)[:16],
        "num_messages": len(dialogue.turns),
        "num_texts": sum(bool(turn.text.strip()) for turn in dialogue.turns),
        "lowest_rate": min(rates, default=None),
        "highest_rate": max(rates, default=None),
    }


def _read_sampling_rate(clip: Clip) -> int:
    handle, name, array, rate = open_source(clip.source, clip.sampling_rate or SAMPLING_RATE)
    if array is not None:
        return rate
    with open_encoded(handle, name) as file:
        return int(file.samplerate)


def match_levels(dialogue: Dialogue, max_turn_s: float) -> Dialogue:
    """Bring what is heard of each role's recordings to one level, `MATCHED_DBFS`; silence stays as it is."""
    num_heard = round(max_turn_s * SAMPLING_RATE)
    by_role: dict[str, list[Any]] = {}
    for number, turn in enumerate(dialogue.turns, start=1):
        try:
            by_role.setdefault(turn.role, []).extend((clip, clip.read()) for clip in turn.clips)
        except (ValueError, OSError, TypeError) as error:
            raise DialogueError(str(error), number) from error
    matched: dict[int, Clip] = {}
    for sounds in filter(None, by_role.values()):
        heard = np.concatenate([array[:num_heard] for _, array in sounds])
        if not is_silent(heard):
            gain = 10 ** (MATCHED_DBFS / 20) / measure_level(heard)
            matched |= {id(clip): Clip({"bytes": encode_flac(gain * array), "path": None}) for clip, array in sounds}
    turns = [replace(turn, parts=tuple(matched.get(id(part), part) for part in turn.parts)) for turn in dialogue.turns]
    return replace(dialogue, turns=tuple(turns))


def _read_matched(read: Callable[[str], Any], max_turn_s: float, name: str) -> Any:
    return match_levels(make_dialogue(read(name)), max_turn_s).to_messages()


@dataclass(frozen=True, kw_only=True)
class SystemsJob(ScoringJob):
    """Scores the dialogues of all systems with the engine of data sets, which skips those already scored."""

    # Each system has checked its own paths when it was read; all are absolute.
    audio_root: str | None = os.sep
    systems: Sequence[System]
    names: Sequence[str]
    match_level: bool = False
    # Keeps the model for the jobs of further criteria.
    loaded: list[Scorer] = field(default_factory=list, compare=False)

    def open_rows(self) -> Rows:
        """Return the dialogues, all systems' versions of one after the other, because they share turns."""
        owners = [(system, name) for name in self.names for system in self.systems]
        ids = [f"{system.name}/{name}" for system, name in owners]
        return MessageRows(ids, lambda number: owners[number][0].read(owners[number][1]))

    def identity(self) -> Record:
        """Return what the rewards depend on; digests compare the dialogues themselves."""
        paths = {system.name: system.path for system in self.systems}
        matched = {"match_level": MATCHED_DBFS} if self.match_level else {}
        return {**self.model.identity(), "criterion": self.criterion, "systems": paths, **matched}

    def describe_settings(self) -> Record:
        return self.identity()

    def load_scorer(self, device: str | None = None) -> Scorer:
        if not self.loaded:
            self.loaded.append(self.model.load(self.criterion, device))
        return self.loaded[0]


def score_systems(
    jobs: Sequence[SystemsJob], measures: Mapping[str, list[Record]], skipped: list[Record]
) -> ScoredDialogues:
    """Score under every criterion; keep the dialogues for which all rewards are known, add the others to `skipped`."""
    systems, names, rewards = jobs[0].systems, list(measures), dict[str, Floats]()
    for job in jobs:
        folder = Path(job.dataset)
        if score_dataset(job, folder) is None:
            raise OtherProcessError("this is one of several processes, of which the main one has the results.")
        table = pq.read_table(folder / "scores.parquet", columns=["row", "reward"])
        found = np.full(len(names) * len(systems), np.nan)
        found[table["row"].to_numpy()] = table["reward"].to_numpy()
        rewards[str(job.criterion)] = found.reshape(len(names), len(systems))
        for record in JsonLines(folder / "skipped.jsonl").read():
            row, system = divmod(record["row"], len(systems))
            skipped.append({"system": systems[system].name, "dialogue": names[row], "reason": record["reason"]})
    is_known = np.all([np.isfinite(found).all(axis=1) for found in rewards.values()], axis=0)
    kept = [name for name, known in zip(names, is_known, strict=True) if known]
    _require_some(kept, len(names), skipped)
    return ScoredDialogues(
        [system.name for system in systems],
        kept,
        [next((system.groups[name] for system in systems if name in system.groups), name) for name in kept],
        {criterion: found[is_known] for criterion, found in rewards.items()},
        [measures[name] for name in kept],
    )


def _compare_pairs(scored: ScoredDialogues, criterion: str, draws: Mapping[str, int]) -> list[PairOfSystems]:
    rewards, pairs = scored.rewards[criterion], []
    measured = {name: scored.get_values(covariate.measure) for name, covariate in COVARIATES.items()}
    for one, other in combinations(range(len(scored.systems)), 2):
        margins = rewards[:, one] - rewards[:, other]
        follows = {
            name: correlate(margins, values[:, one], values[:, other], COVARIATES[name])
            for name, values in measured.items()
        }
        names = (scored.systems[one], scored.systems[other])
        found = count_wins(margins, scored.groups, **draws)
        pair = PairOfSystems(criterion, *names, "", follows=follows, **found)
        pairs.append(replace(pair, is_clear=pair.is_clear and not list_reasons(pair)))
    return pairs


def count_wins(margins: ArrayLike, groups: Sequence[Hashable], *, num_bootstrap: int = 1000, seed: int = 0) -> Record:
    """Count how often the first of two systems wins, with intervals and a sign test over groups."""
    array = np.asarray(margins, dtype=np.float64)
    signs = np.sign(array).astype(np.int64)
    clusters = Clusters(groups, num_bootstrap=num_bootstrap, seed=seed)
    wins, means = clusters.measure((1 + signs) / 2, is_share=True), clusters.measure(array)
    p_value = sign_flip_test(clusters.add_up(signs))
    return {
        "num_dialogues": len(signs),
        "num_groups": wins["num_groups"],
        "num_first": int((signs > 0).sum()),
        "num_second": int((signs < 0).sum()),
        "num_ties": int((signs == 0).sum()),
        "win_rate": wins["mean"],
        "interval": wins["interval"],
        "p_value": p_value,
        "is_clear": is_certain(wins["interval"], p_value),
        "mean_margin": means["mean"],
        "mean_margin_interval": means["interval"],
    }


def correlate(margins: ArrayLike, first: ArrayLike, second: ArrayLike, covariate: Covariate) -> Record:
    """Measure whether margins may be about a difference between two systems.

    It `is_suspect` if margins follow it: a rank correlation of 0.3 in size and p below 0.05. It `is_systematic` if
    one system has more of it in so many dialogues that the sign test has p below 0.05, and not only a trifle more.
    """
    from scipy.stats import spearmanr

    margin, one, other = (np.asarray(values, dtype=np.float64) for values in (margins, first, second))
    difference = one - other
    mean, num_first, num_second = float(difference.mean()), int((difference > 0).sum()), int((difference < 0).sum())
    correlation = p_value = None
    if len(margin) >= _MIN_DIALOGUES and np.ptp(margin) > 0 and np.ptp(difference) > 0:
        measured = spearmanr(margin, difference)
        correlation, p_value = float(measured.statistic), float(measured.pvalue)
    smallest = max(covariate.min_difference, covariate.min_share * min(one.mean(), other.mean()))
    is_large = bool(mean and abs(mean) >= smallest)
    signs = np.repeat([1, -1], [num_first, num_second])
    return {
        "mean_difference": mean,
        "correlation": correlation,
        "p_value": p_value,
        "is_suspect": abs(correlation or 0.0) >= _MIN_CORRELATION and (p_value or 0.0) < MAX_P_VALUE,
        "num_first": num_first,
        "num_second": num_second,
        "is_large": is_large,
        "is_systematic": is_large and sign_flip_test(signs) < MAX_P_VALUE,
    }


def rank_systems(
    rewards: Floats, groups: Sequence[Hashable], *, num_bootstrap: int = 1000, seed: int = 0
) -> dict[int, Record]:
    """Rank systems, the strongest first; `strength` is the log-odds of a win against a system of mean strength."""
    clusters = Clusters(groups, num_bootstrap=num_bootstrap, seed=seed)
    num_groups, num_systems = len(clusters.strata), rewards.shape[1]
    # How often the system of a row beats that of a column; a tie counts half for each.
    of_dialogue = (np.sign(rewards[:, :, None] - rewards[:, None, :]) + 1) / 2 * (1 - np.eye(num_systems))
    wins = np.zeros((num_groups, num_systems, num_systems))
    np.add.at(wins, clusters.members, of_dialogue)
    total = wins.sum(axis=0)
    strengths = fit_strengths(total)
    intervals: list[Any] = [None] * num_systems
    if has_many(clusters.strata):
        draws = np.array([fit_strengths(drawn) for drawn in np.tensordot(clusters.draws, wins, axes=1)])
        intervals = [percentile_interval(each) for each in draws.T]
    elif num_groups > 1:
        # Student's t from fits without each group.
        changes = np.array([fit_strengths(total - left_out) for left_out in wins]) - strengths
        half = student_quantile(num_groups - 1) * np.sqrt((1 - 1 / num_groups) * (changes**2).sum(axis=0))
        intervals = np.stack([strengths - half, strengths + half], axis=1).tolist()
    rates = total.sum(axis=1) / (total + total.T).sum(axis=1)
    return {
        int(system): {
            "strength": float(strengths[system]),
            # None if no dialogue or group makes a difference.
            "interval": bounds if (bounds := intervals[system]) and np.ptp(bounds) > _MIN_WIDTH else None,
            "num_groups": num_groups,
            "win_rate": float(rates[system]),
        }
        for system in np.argsort(-strengths, kind="stable")
    }


def fit_strengths(wins: Floats) -> Floats:
    """Return the log-odds, mean 0, under which the wins of row over column plus `PRIOR_WINS` are most likely."""
    import choix

    prior = PRIOR_WINS * (1 - np.eye(len(wins)))
    strengths = np.asarray(choix.ilsr_pairwise_dense(wins + prior, max_iter=10_000), dtype=np.float64)
    return strengths - strengths.mean()


def _list_dialogues(scored: ScoredDialogues) -> list[Record]:
    return [
        {
            "dialogue": name,
            "group_id": scored.groups[row],
            "system": system,
            "criterion": criterion,
            "reward": float(rewards[row, column]),
            **scored.measures[row][column],
        }
        for criterion, rewards in scored.rewards.items()
        for row, name in enumerate(scored.names)
        for column, system in enumerate(scored.systems)
    ]


def _write(
    found: Comparison, scored: ScoredDialogues, systems: Sequence[System], settings: Record, embed_audio: EmbedAudio
) -> None:
    folder = Path(str(found.output_dir))
    report = {name: value for name, value in asdict(found).items() if name not in ("dialogues", "output_dir", "page")}
    report |= {"rule": RULE, "about": {criterion: describe_criterion(criterion) for criterion in found.criteria}}
    report |= {"num_dialogues": len(scored.names), "num_groups": len(set(scored.groups)), **settings}
    report = make_plain({**report, **describe_run()})
    write_file(folder / "compare.json", json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    with replace_atomically(folder / "compare.parquet") as temporary:
        pq.write_table(found.to_arrow(), temporary)
    write_page(folder / "report", report, scored, systems, embed_audio)
