"""Compare spoken dialogue systems: which one's dialogues get the higher reward, and is the difference clear?

`compare` reads, matches, measures and scores the dialogues into one table, takes verdicts from it, and writes
`compare.json`, `compare.parquet` and the page. A win is a strictly higher reward, as in the metric; a tie counts half
for each system.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, Clip, is_silent, open_encoded, open_source
from sdiareward.calls.reading import CallSettings
from sdiareward.calls.recordings import Form, UserChannel
from sdiareward.calls.turns import CallRules, measure_timing
from sdiareward.chat_sdiareward import ROLES, Dialogue, DialogueError, make_dialogue
from sdiareward.common.errors import UserError, check_modules
from sdiareward.common.files import JsonLines, hash_json, replace_atomically, write_file
from sdiareward.common.machine import describe_run
from sdiareward.common.tables import escape_markdown, render_html
from sdiareward.pairs.content import hash_parts
from sdiareward.pairs.rows import Rows, open_messages
from sdiareward.pairs.systems import System, name_systems, read_systems
from sdiareward.perturbations.channel import encode_flac
from sdiareward.perturbations.effects import measure_level
from sdiareward.scoring.dataset import ScoringJob, score_dataset
from sdiareward.scoring.model_spec import ModelSpec

from . import verdicts
from .comparison_page import tabulate_wins, write_page
from .report.calls import describe_timing, list_notices
from .report.content import make_plain
from .report.page import EmbedAudio
from .verdicts import CRITERIA, Record


if TYPE_CHECKING:
    import pandas as pd

    from sdiareward.scoring.scorer import Scorer

ALL = "all"
_NEEDED = ("jinja2", "matplotlib", "scipy")
_MAX_NAME_CHARACTERS = 60
_NUM_NAMED = 3
# A level below this is silence.
_FLOOR_DBFS = -100.0


@dataclass(frozen=True)
class Comparison:
    """The comparison of two or more systems."""

    verdict: str
    systems: dict[str, str]
    model: str
    criteria: list[str]
    # Two systems under a criterion, each: counts, intervals, tests and verdict, as in `compare.json`.
    pairs: list[Record]
    ranking: list[Record]
    limits: list[str]
    # One row per dialogue, system and criterion: labels, `reward` and what `measure_dialogue` returns.
    dialogues: pd.DataFrame = field(repr=False)
    # `dialogue`, and `missing_in`: the systems that lack it.
    unmatched: list[Record] = field(repr=False)
    # By system, what `calls.turns.measure_timing` returns of all its calls; empty without calls.
    timing: dict[str, Record] = field(default_factory=dict, repr=False)
    skipped: list[Record] = field(default_factory=list, repr=False)
    output_dir: str | None = None
    page: str | None = None

    def __repr__(self) -> str:
        return f"Comparison({self.verdict.splitlines()[0]})"

    def _repr_html_(self) -> str:
        """Return the verdict, the win rates and the limits, for a notebook."""
        _, wins = tabulate_wins(self.pairs)
        limits = "\n".join(f"- {escape_markdown(limit)}" for limit in self.limits)
        verdict = "\n\n".join(map(escape_markdown, self.verdict.splitlines()))
        return render_html("\n\n".join([verdict, wins.to_markdown(), limits]))


class OtherProcessError(UserError):
    """Raised in all processes of a run but the main one, which has the results."""


def compare(
    *systems: str | Path,
    model: str | Path | ModelSpec = "nano",
    criterion: str = "joint",
    output_dir: str | Path | None = None,
    pattern: str | None = None,
    form: Form | None = None,
    user_channel: UserChannel | None = None,
    window: int = 6,
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
        form (`"turns"` or `"call"`, *optional*): What recordings are; by default their names and lengths decide.
        user_channel (`"left"` or `"right"`, *optional*): The user's channel of stereo calls; left is assumed.
        window (`int`, *optional*, defaults to 6): Turns of a call that are scored together; see `docs/calls.md`.
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
        `limits` (what qualifies the verdict) and `dialogues`, a table of every reward (higher is better).

    Raises:
        UserError: There are fewer than two systems, one cannot be read, or they have no dialogue in common.
        ScoringError: The model cannot be loaded, or no dialogue can be scored.

    Examples:
        >>> found = compare("runs/a", "runs/b")  # doctest: +SKIP
        >>> print(found.verdict)  # doctest: +SKIP
    """
    options = (prompts, dtype, device, batch_tokens)
    spec = model if isinstance(model, ModelSpec) else ModelSpec(str(model), *options)
    criteria = list(CRITERIA) if criterion == ALL else [criterion]
    check_modules(_NEEDED)
    if len(criteria) > 1 and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        remedy = f"run each criterion into one output_dir, then {ALL} in a single process"
        raise UserError(f"criterion is {ALL} in several processes, which score one at a time; {remedy}.")
    calls = CallSettings(form, user_channel, rules=CallRules(window=window))
    found = read_systems(systems, pattern=pattern, user_turns=user_turns, audio_root=audio_root, calls=calls)
    check_modules(["choix"] if len(found) > 2 else [])
    names, unmatched = match_dialogues(found)
    max_turn_s = _check_model(spec, criteria)
    measured, skipped = measure_systems(found, names, max_turn_s, match_level)

    def read(system: System, name: str) -> Any:
        messages = system.read(name)
        return match_levels(make_dialogue(messages), max_turn_s).to_messages() if match_level else messages

    paths, draws = {system.name: system.path for system in found}, {"num_bootstrap": num_bootstrap, "seed": seed}
    with TemporaryDirectory() if output_dir is None else nullcontext(output_dir) as place:
        folder = Path(place)
        # All systems' versions of a dialogue are neighbours, because they share turns.
        owners = [(system, name) for name in measured["dialogue"].unique() for system in found]
        rows = open_messages([f"{each.name}/{name}" for each, name in owners], lambda number: read(*owners[number]))
        about = {"systems": paths, **({"match_level": verdicts.MATCHED_DBFS} if match_level else {})}
        job = SystemsJob(model=spec, dataset=str(folder / "scores"), rows=rows, about=about)
        table = score_systems(job, criteria, measured, skipped)
        _require_some(len(table), len(names), skipped)
        pairs = verdicts.compare_systems(table, **draws)
        limits = verdicts.list_limits(spec.name, table, pairs, max_turn_s, match_level)
        for pair in pairs:
            of_pair = [limit.short for limit in limits if limit.system in ("", pair["first"], pair["second"])]
            pair["verdict"] = verdicts.phrase_verdict(pair, list(filter(None, of_pair)))
        groups = verdicts.list_groups(table)
        ranking = [
            {"criterion": each, **entry}
            for each in (criteria if len(found) > 2 else [])
            for entry in verdicts.rank_systems(verdicts.spread(table, each), groups, **draws)
        ]
        verdict = verdicts.join_verdicts(pairs, ranking)
        recorded = {system.name: system.calls for system in found if system.calls}
        timing = {each: measure_timing([call.turns for call in of.values()]) for each, of in recorded.items()}
        verdict += f"\n{describe_timing(timing)}" if timing else ""
        result: Record = {"verdict": verdict, "systems": paths, "model": spec.name, "criteria": criteria}
        result |= {"pairs": pairs, "ranking": ranking}
        result |= {"limits": [*(limit.text for limit in limits), *list_notices(recorded)], "timing": timing}
        result |= {"unmatched": unmatched, "skipped": skipped}
        questions = {each: verdicts.describe_criterion(each) for each in criteria}
        report = {**result, "rule": verdicts.RULE, "about": questions, **draws}
        report |= {"num_dialogues": table["dialogue"].nunique(), "num_groups": table["group_id"].nunique()}
        report |= {"match_level": match_level, "identity": spec.identity(), **describe_run()}
        report = make_plain(report)
        write_file(folder / "compare.json", json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
        with replace_atomically(folder / "compare.parquet") as temporary:
            table.to_parquet(temporary, index=False)
        readers = {system.name: partial(read, system) for system in found}
        page = write_page(folder / "report", report, table, readers, recorded, embed_audio)
    kept: Record = {} if output_dir is None else {"output_dir": str(folder), "page": str(page)}
    return Comparison(**result, dialogues=table, **kept)


def name_output_dir(systems: Sequence[str]) -> Path:
    """Return the folder that a comparison is written to by default: `compare-A-B` in the working directory."""
    names = "-".join(name_systems(systems)) if systems else ""
    return Path(re.sub(r"[^\w.-]+", "_", f"compare-{names}")[:_MAX_NAME_CHARACTERS])


def match_dialogues(systems: Sequence[System]) -> tuple[list[str], list[Record]]:
    """Return the dialogues of all systems, in the first one's order, and the others with the systems without them."""
    everything = dict.fromkeys(name for system in systems for name in system.names)
    known = {system.name: set(system.names) for system in systems}
    missing = {name: [owner for owner, names in known.items() if name not in names] for name in everything}
    common = [name for name, lacking in missing.items() if not lacking]
    if not common:
        examples = {
            system.name: system.names[:_NUM_NAMED] or [f"none ({reason})" for reason in system.skipped.values()][:1]
            for system in systems
        }
        having = "; ".join(f"{name} has {', '.join(found) or 'none'}" for name, found in examples.items())
        remedy = "they are matched by name: name them alike, or say with --pattern how recordings are named."
        raise UserError(f"no dialogue is in all of {len(systems)} systems: {having}; {remedy}")
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
) -> tuple[pd.DataFrame, list[Record]]:
    """Return a row per dialogue and system, without its reward, and the dialogues that cannot be used."""
    import pandas as pd
    from tqdm.auto import tqdm

    skipped: list[Record] = []
    for each in systems:
        skipped += [{"system": each.name, "dialogue": name, "reason": why} for name, why in each.skipped.items()]
    rows: list[Record] = []
    for name in tqdm(names, unit="dialogue", desc="reading recordings"):
        group = next((system.groups[name] for system in systems if name in system.groups), name)
        found = []
        for system in systems:
            try:
                measures = measure_dialogue(make_dialogue(system.read(name)), max_turn_s, match_level=match_level)
                labels = {"dialogue": name, "group_id": group, "system": system.name}
                found.append({**labels, "criterion": "", "reward": np.nan, **measures})
            except DialogueError as error:
                skipped.append({"system": system.name, "dialogue": name, "reason": str(error)})
        rows += found if len(found) == len(systems) else []
    _require_some(len(rows), len(names), skipped)
    # Without recordings there are no rates.
    return pd.DataFrame(rows).astype(dict.fromkeys(("lowest_rate", "highest_rate"), "Int64")), skipped


def _require_some(num_left: int, num_common: int, skipped: Sequence[Record]) -> None:
    if not num_left:
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
            gain = 10 ** (verdicts.MATCHED_DBFS / 20) / measure_level(heard)
            matched |= {id(clip): Clip({"bytes": encode_flac(gain * array), "path": None}) for clip, array in sounds}
    turns = [replace(turn, parts=tuple(matched.get(id(part), part) for part in turn.parts)) for turn in dialogue.turns]
    return replace(dialogue, turns=tuple(turns))


@dataclass(frozen=True, kw_only=True)
class SystemsJob(ScoringJob):
    """Scores the dialogues of all systems with the engine of data sets, which skips those already scored."""

    # Each system has checked its own paths when it was read; all are absolute.
    audio_root: str | None = os.sep
    rows: Rows
    about: Record  # What the rewards depend on besides model and criterion; digests compare the dialogues themselves.
    loaded: list[Scorer] = field(default_factory=list)  # Kept for further criteria.

    def open_rows(self) -> Rows:
        return self.rows

    def identity(self) -> Record:
        return {**self.model.identity(), "criterion": self.criterion, **self.about}

    describe_settings = identity

    def load_scorer(self, device: str | None = None) -> Scorer:
        if not self.loaded:
            self.loaded.append(self.model.load(self.criterion, device))
        return self.loaded[0]


def score_systems(
    job: SystemsJob, criteria: Sequence[str], measured: pd.DataFrame, skipped: list[Record]
) -> pd.DataFrame:
    """Return a row per dialogue, system and criterion; those without a reward are added to `skipped`."""
    import pandas as pd

    tables = []
    for criterion in criteria:
        folder = Path(job.dataset) / criterion
        if score_dataset(replace(job, criterion=criterion, dataset=str(folder)), folder) is None:
            raise OtherProcessError("this is one of several processes; the main one has the results.")
        rewards = pd.read_parquet(folder / "scores.parquet").set_index("row")["reward"].reindex(measured.index)
        tables.append(measured.assign(criterion=criterion, reward=rewards.where(np.isfinite(rewards))))
        for record in JsonLines(folder / "skipped.jsonl").read():
            labels = measured.loc[record["row"], ["system", "dialogue"]].to_dict()
            skipped.append({**labels, "reason": record["reason"]})
    table = pd.concat(tables, ignore_index=True)
    return table[table["reward"].notna().groupby(table["dialogue"]).transform("all")]
