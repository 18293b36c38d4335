"""Compare systems: read, match, measure, score, count, write."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from sdiareward.chat_sdiareward import DialogueError
from sdiareward.common.files import replace_atomically, write_file
from sdiareward.common.optional_dependencies import check_modules
from sdiareward.common.provenance import describe_run
from sdiareward.common.user_errors import UserError
from sdiareward.pairs.messages import Form
from sdiareward.pairs.systems import System, name_systems, read_systems
from sdiareward.scoring.model_spec import ModelSpec

from ..report.content import make_plain
from .limits import Limit, list_limits
from .measures import COVARIATES, DialogueMeasures, correlate, match_levels, measure_dialogue
from .page import write_page
from .ranking import rank_systems
from .results import Comparison, PairOfSystems, RankedSystem, ScoredDialogues
from .verdicts import CRITERIA, describe_criterion, join_verdicts, list_reasons, phrase_verdict
from .wins import RULE, count_wins


ALL = "all"
EmbedAudio = Literal["all", "none"]
_NEEDED = ("jinja2", "matplotlib", "scipy")
_MAX_NAME_CHARACTERS = 60
_NUM_EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to compare with what, and where the results go; the fields are those of `compare`."""

    systems: Sequence[str]
    model: ModelSpec
    criterion: str = "joint"
    output_dir: Path
    pattern: str | None = None
    form: Form | None = None
    user_turns: str | None = None
    audio_root: str | None = None
    num_bootstrap: int = 1000
    seed: int = 0
    embed_audio: EmbedAudio = "all"
    match_level: bool = False

    @property
    def criteria(self) -> list[str]:
        return list(CRITERIA) if self.criterion == ALL else [self.criterion]

    @property
    def draws(self) -> dict[str, int]:
        return {"num_bootstrap": self.num_bootstrap, "seed": self.seed}


def compare(
    *systems: str | Path,
    model: str | Path = "nano",
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
    spec = ModelSpec(str(model), prompts, dtype, device, batch_tokens=batch_tokens)
    with TemporaryDirectory() if output_dir is None else nullcontext(output_dir) as folder:
        settings = Settings(
            systems=list(map(str, systems)),
            model=spec,
            criterion=criterion,
            output_dir=Path(folder),
            pattern=pattern,
            form=form,
            user_turns=None if user_turns is None else str(user_turns),
            audio_root=None if audio_root is None else str(audio_root),
            num_bootstrap=num_bootstrap,
            seed=seed,
            embed_audio=embed_audio,
            match_level=match_level,
        )
        found = run(settings)
    if found is None:
        raise UserError("this is one of several processes, of which the main one has the results.")
    return found if output_dir is not None else replace(found, output_dir=None, page=None)


def name_output_dir(systems: Sequence[str]) -> Path:
    """Return the folder that a comparison is written to by default: `compare-A-B` in the working directory."""
    names = "-".join(name_systems(systems)) if systems else ""
    return Path(re.sub(r"[^\w.-]+", "_", f"compare-{names}")[:_MAX_NAME_CHARACTERS])


def run(settings: Settings) -> Comparison | None:
    """Compare systems and write the result; the same call resumes a run. Return None in all but the main process."""
    check_modules(_NEEDED)
    if len(settings.criteria) > 1 and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError(
            f"criterion is {ALL} in one of several processes, which score one criterion at a time; run each criterion "
            f"with them into one output_dir, then {ALL} in a single process, which takes what they scored."
        )
    options = {name: getattr(settings, name) for name in ("pattern", "user_turns", "audio_root", "form")}
    systems = read_systems(settings.systems, **options)
    if len(systems) > 2:
        check_modules(["choix"])
    names, unmatched = match_dialogues(systems)
    max_turn_s = _check_model(settings)
    measures, skipped = measure_systems(systems, names, max_turn_s, settings.match_level)
    if settings.match_level:
        systems = [replace(system, read=partial(_read_matched, system.read, max_turn_s)) for system in systems]
    scored = _score(settings, systems, measures, skipped)
    if scored is None:
        return None
    pairs = [pair for criterion in settings.criteria for pair in _compare_pairs(scored, criterion, settings.draws)]
    limits = list_limits(settings.model.name, scored, pairs, max_turn_s, settings.match_level)
    pairs = [replace(pair, verdict=_phrase_verdict(pair, limits)) for pair in pairs]
    ranking = _rank(scored, settings) if len(systems) > 2 else []
    found = Comparison(
        verdict=join_verdicts(pairs, ranking),
        systems={system.name: system.path for system in systems},
        model=settings.model.name,
        criteria=settings.criteria,
        pairs=pairs,
        ranking=ranking,
        limits=[limit.text for limit in limits],
        dialogues=_list_dialogues(scored),
        unmatched=unmatched,
        skipped=skipped,
        output_dir=str(settings.output_dir),
        page=str(settings.output_dir / "report" / "index.html"),
    )
    _write(found, scored, systems, settings)
    return found


def _check_model(settings: Settings) -> float:
    """Raise unless the model has the criteria; return the number of seconds of a turn that it hears."""
    processor = settings.model.load_processor()
    known = {**processor.prompts, **(settings.model.prompts or {})}
    if unknown := [name for name in settings.criteria if name not in known]:
        raise UserError(f"criterion is {unknown[0]!r}; this model knows {', '.join(sorted(known))}, and {ALL}.")
    return float(processor.max_turn_s)


def _read_matched(read: Callable[[str], Any], max_turn_s: float, name: str) -> Any:
    return match_levels(read(name), max_turn_s)


def match_dialogues(systems: Sequence[System]) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the dialogues of all systems, in the first one's order, and the others with the systems without them."""
    known = {system.name: set(system.names) for system in systems}
    everything = dict.fromkeys(name for system in systems for name in system.names)
    missing = {name: [owner for owner, names in known.items() if name not in names] for name in everything}
    common = [name for name, lacking in missing.items() if not lacking]
    if not common:
        found = {
            system.name: system.names or [f"none ({each})" for each in system.skipped.values()][:1]
            for system in systems
        }
        examples = "; ".join(f"{name} has {_list_some(names)}" for name, names in found.items())
        raise UserError(
            f"no dialogue is in all of {len(systems)} systems: {examples}; dialogues are matched by name: name them "
            "alike, or say with --pattern how recordings are named."
        )
    return common, [{"dialogue": name, "missing_in": lacking} for name, lacking in missing.items() if lacking]


def _list_some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NUM_EXAMPLES])
    return f"{shown} and {len(names) - _NUM_EXAMPLES} more" if len(names) > _NUM_EXAMPLES else shown or "none"


def measure_systems(
    systems: Sequence[System], names: Sequence[str], max_turn_s: float, match_level: bool
) -> tuple[dict[str, list[DialogueMeasures]], list[dict[str, Any]]]:
    """Return the measures of every dialogue by name and system, and the dialogues that cannot be used."""
    from tqdm.auto import tqdm

    skipped = [
        {"system": system.name, "dialogue": name, "reason": reason}
        for system in systems
        for name, reason in system.skipped.items()
    ]
    measures: dict[str, list[DialogueMeasures]] = {}
    for name in tqdm(names, unit="dialogue", desc="reading recordings"):
        found = []
        for system in systems:
            try:
                found.append(measure_dialogue(system.read(name), max_turn_s, match_level=match_level))
            except DialogueError as error:
                skipped.append({"system": system.name, "dialogue": name, "reason": str(error)})
        if len(found) == len(systems):
            measures[name] = found
    _require_some(measures, len(names), skipped)
    return measures, skipped


def _require_some(
    left: Mapping[str, Any] | Sequence[Any], num_common: int, skipped: Sequence[Mapping[str, Any]]
) -> None:
    if not len(left):
        last = skipped[-1]
        place = f"{last['system']}, {last['dialogue']}"
        raise UserError(f"none of {num_common} dialogues can be compared; {place}: {last['reason']}")


def _score(
    settings: Settings,
    systems: Sequence[System],
    measures: Mapping[str, list[DialogueMeasures]],
    skipped: list[dict[str, Any]],
) -> ScoredDialogues | None:
    """Score under every criterion; keep the dialogues for which all rewards are known, note the others as skipped."""
    # Not before: what is wrong with the systems is reported without loading torch.
    from .job import SystemsJob, score_systems

    names, loaded, rewards = list(measures), list[Any](), dict[str, Any]()
    for criterion in settings.criteria:
        folder = settings.output_dir / "scores" / criterion
        shared: dict[str, Any] = {
            "systems": systems,
            "names": names,
            "loaded": loaded,
            "match_level": settings.match_level,
        }
        job = SystemsJob(settings.model, str(folder), criterion=criterion, **shared)
        result = score_systems(job, folder)
        if result is None:
            continue
        _, rewards[criterion], reasons = result
        for row, reason in reasons.items():
            dialogue, system = divmod(row, len(systems))
            skipped.append({"system": systems[system].name, "dialogue": names[dialogue], "reason": reason})
    if not rewards:
        return None
    is_known = np.all([np.isfinite(found).all(axis=1) for found in rewards.values()], axis=0)
    kept = [name for name, known in zip(names, is_known, strict=True) if known]
    _require_some(kept, len(names), skipped)
    groups = [next((system.groups[name] for system in systems if name in system.groups), name) for name in kept]
    return ScoredDialogues(
        [system.name for system in systems],
        kept,
        groups,
        {criterion: found[is_known] for criterion, found in rewards.items()},
        [measures[name] for name in kept],
    )


def _compare_pairs(scored: ScoredDialogues, criterion: str, draws: Mapping[str, int]) -> list[PairOfSystems]:
    rewards, pairs = scored.rewards[criterion], []
    measured = {name: scored.get_values(covariate.measure) for name, covariate in COVARIATES.items()}
    for one, other in combinations(range(len(scored.systems)), 2):
        first, second = scored.systems[one], scored.systems[other]
        found = count_wins(rewards[:, one], rewards[:, other], scored.groups, **draws)
        margins = rewards[:, one] - rewards[:, other]
        follows = {
            name: correlate(margins, values[:, one], values[:, other], COVARIATES[name])
            for name, values in measured.items()
        }
        found["is_clear"] &= not list_reasons(first, second, follows)
        pairs.append(PairOfSystems(criterion, first, second, "", follows=follows, **found))
    return pairs


def _phrase_verdict(pair: PairOfSystems, limits: Sequence[Limit]) -> str:
    systems = {pair.first, pair.second}
    mine = [limit.short for limit in limits if limit.short and systems.issuperset(limit.systems)]
    return phrase_verdict(pair.first, pair.second, pair.criterion, asdict(pair), pair.follows, mine)


def _rank(scored: ScoredDialogues, settings: Settings) -> list[RankedSystem]:
    return [
        RankedSystem(criterion, **{**entry, "system": scored.systems[entry["system"]]})
        for criterion, rewards in scored.rewards.items()
        for entry in rank_systems(rewards, scored.groups, **settings.draws)
    ]


def _list_dialogues(scored: ScoredDialogues) -> list[dict[str, Any]]:
    return [
        {
            "dialogue": name,
            "group_id": scored.groups[row],
            "system": system,
            "criterion": criterion,
            "reward": float(rewards[row, column]),
            **asdict(scored.measures[row][column]),
        }
        for criterion, rewards in scored.rewards.items()
        for row, name in enumerate(scored.names)
        for column, system in enumerate(scored.systems)
    ]


def _write(found: Comparison, scored: ScoredDialogues, systems: Sequence[System], settings: Settings) -> None:
    import pyarrow.parquet as pq

    folder = settings.output_dir
    report = {name: value for name, value in asdict(found).items() if name not in ("dialogues", "output_dir", "page")}
    report |= {"rule": RULE, "about": {criterion: describe_criterion(criterion) for criterion in found.criteria}}
    report |= {
        "match_level": settings.match_level,
        "num_dialogues": len(scored.names),
        "num_groups": len(set(scored.groups)),
        **settings.draws,
    }
    report = make_plain({**report, "identity": settings.model.identity(), **describe_run()})
    write_file(folder / "compare.json", json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    with replace_atomically(folder / "compare.parquet") as temporary:
        pq.write_table(found.to_arrow(), temporary)
    write_page(folder / "report", report, scored, systems, settings.embed_audio)
