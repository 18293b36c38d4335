"""Build ChatReward: scenarios -> splits -> speech -> filters -> Parquet with a card and a report (section 3.2.3).

Finished scenarios stay in part files until the last shard is written: a killed build resumes; another configuration
starts anew; a finished build is not repeated. Deterministic synthesizers give the same samples again.

Then human experts verify text, speech and scores (the paper has five). Raters write a CSV with the columns
`sample_id`, `rater` and `score` (1 to 5), a row per sample that they heard. The gold score is the median; a half is
rounded up. The optional column `wrong` rejects a sample: `text` or `speech` says what is wrong with it, `sample` that
it is of no use; it then needs no score. One rater suffices, and a rejected sample is not in the new data set. Unusable
rows are reported by line and change nothing.
"""

from __future__ import annotations

import csv
import json
import logging
import math
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import fmean, median
from string import Template
from typing import Any

from sdiareward.common.errors import Skipped
from sdiareward.common.files import lock_folder, require_other_folder
from sdiareward.common.package import CARDS
from sdiareward.common.parts import Make, Processes, Rows, run_parts
from sdiareward.common.tables import escape_markdown, render_table
from sdiareward.pairs.schema import make_stable_id

from ..reports import data_card
from ..row_parts import choose_size, open_row_parts, write_shards
from ..shards import ShardWriter, read_rows
from .recording import Recorder
from .scenarios import assign_splits, read_scenarios, take_evenly
from .schema import LANGUAGE_TAGS, MIXED_LANGUAGES, features
from .voices import ChatRewardConfig, read_engine_versions


logger = logging.getLogger(__name__)
_COLUMNS = ("sample_id", "rater", "score")
_WRONG = ("text", "speech", "sample")
# Sample -> rater -> score.
Ratings = Mapping[str, Mapping[str, int]]


def build(config: ChatRewardConfig) -> dict[str, Any]:
    """Build the data set of `config`; return its report."""
    output = Path(config.output_dir)
    with lock_folder(output):
        scenarios = take_evenly(read_scenarios(config.scenarios), config.limit)
        identity = json.loads(json.dumps(config.identity()))
        plan_id = make_stable_id(json.dumps([identity, [s.as_row() for s in scenarios]], sort_keys=True))
        work = output / ".parts" / plan_id
        if finished := None if work.parent.exists() else data_card.read_finished(output, plan_id):
            logger.warning("%s is up to date; delete its report.json to build it again.", output)
            return finished
        casts = config.read_casts()
        splits = assign_splits(scenarios, test=config.test, seed=config.seed)
        plans = {scenario.scenario_id: (scenario, splits[scenario.scenario_id]) for scenario in scenarios}
        parts = open_row_parts(work, {}, features())
        pending = [plans[name] for name in parts.find_pending(list(plans))]
        engine, load = Processes(config.num_workers), partial(_load, config)
        run_parts(parts, pending, load, choose_size(len(plans)), engine, label="scenarios", unit="scenario")
        found = {row["item"]: json.loads(row["notes"]) for row in parts.iter_rows(["notes"])}
        kinds = ("skipped", "rejected")
        skipped, rejected = ([skip for name in plans for skip in found[name][kind]] for kind in kinds)
        if len(skipped) == sum(len(scenario.answers) for scenario in scenarios):
            raise ValueError(f"no sample is left of {len(plans)} scenarios: {[s['reason'] for s in skipped[:3]]}.")
        write_shards(parts, {name: split for name, (_, split) in plans.items()}, output, features())
        report = {
            "plan_id": plan_id,
            "config": identity,
            "synthesizers": read_engine_versions(casts),
            "rejected_lines": dict(sorted(Counter(skip["kind"] for skip in rejected).items())),
            **data_card.summarise_skipped([Skipped(**skip) for skip in skipped]),
            "rejected": rejected,
            "scenarios": {"read": len(plans), **Counter(splits.values())},
        }
        report = _save_report(output, report)
        shutil.rmtree(work.parent)
        return report


def _load(config: ChatRewardConfig) -> Make:
    recorder = Recorder(config)

    def record(parts: Iterable[Any]) -> Iterator[Rows]:
        for part in parts:
            rows = []
            for scenario, split in part:
                found = recorder.record(scenario, split)
                notes = {"skipped": [*map(asdict, found.skipped)], "rejected": [*map(asdict, found.rejected)]}
                rows.append({"item": scenario.scenario_id, "rows": found.rows, "notes": json.dumps(notes)})
            yield rows

    return record


def _save_report(output: Path, report: dict[str, Any]) -> dict[str, Any]:
    """Write the card and the report of a folder; return the report with the content of its shards."""
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    codes = set()
    for split, row in read_rows(output, ("attribute", "duration_s", "language")):
        seconds[split, row["attribute"] or "content"].append(row["duration_s"])
        codes |= {*LANGUAGE_TAGS.values()} if row["language"] == MIXED_LANGUAGES else {row["language"]}
    # Samples and hours by split and attribute, as in Table 4.
    samples = [
        {"split": split, "attribute": attribute, "samples": len(found), "hours": round(sum(found) / 3600, 4)}
        for (split, attribute), found in sorted(seconds.items())
    ]
    report |= {"build_id": data_card.make_content_id(output), "samples": samples}
    report |= {"languages": data_card.list_languages(codes)}
    splits = sorted({split for split, _ in seconds}, reverse=True)
    files = [{"split": split, "path": f"data/{split}-*.parquet"} for split in splits]
    configs = [{"config_name": "default", "data_files": files}]
    tags = ["spoken-dialogue", "reward-model", "synthetic"]
    header = data_card.render_header(report, configs, pretty_name="ChatReward", tags=tags)
    card = Template((CARDS / "chatreward_card.md").read_text(encoding="utf-8")).substitute(
        seed=report["config"]["seed"],
        gap_s=report["config"]["gap_s"],
        table="\n".join(render_table(list(samples[0]), [list(row.values()) for row in samples], num_left=2)),
        synthesizers=", ".join(map(escape_markdown, report["synthesizers"].values())),
        skipped=len(report["skipped"]),
    )
    return data_card.save_report(output, report, f"---\n{header}\n---\n{card}")


def read_ratings(path: Path, known: set[str]) -> tuple[dict[str, dict[str, int]], list[Skipped], list[Skipped]]:
    """Return the ratings of a CSV, and a `Skipped` for each rejection of a sample and for each unusable row."""
    ratings: dict[str, dict[str, int]] = defaultdict(dict)
    rejected, skipped = [], []
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file)
        if missing := [name for name in _COLUMNS if name not in (rows.fieldnames or ())]:
            raise ValueError(f"{path}: the header lacks {missing}; the columns are {list(_COLUMNS)}.")
        for row in rows:
            sample, rater, score, wrong = ((row.get(name) or "").strip() for name in (*_COLUMNS, "wrong"))
            if sample not in known:
                problem = "unknown_sample", f"sample_id {sample!r} is not in the data set."
            elif not rater:
                problem = "missing_rater", "rater is empty; every score needs one."
            elif wrong and wrong not in _WRONG:
                problem = "bad_wrong", f"wrong is {wrong!r}; it must be one of {list(_WRONG)}."
            elif wrong:
                rejected.append(Skipped(sample, f"wrong_{wrong}", f"{rater} rejects it."))
                continue
            elif score not in ("1", "2", "3", "4", "5"):
                problem = "bad_score", f"score is {score!r}; it must be a whole number from 1 to 5."
            elif rater in ratings[sample]:
                problem = "rated_twice", f"{rater!r} has rated {sample} before; the first score is kept."
            else:
                ratings[sample][rater] = int(score)
                continue
            skipped.append(Skipped(f"{path.name} line {rows.line_num}", *problem))
    gone = {skip.item for skip in rejected}
    return {sample: given for sample, given in ratings.items() if given and sample not in gone}, rejected, skipped


def compute_gold_score(scores: Sequence[int]) -> int:
    return math.floor(median(scores) + 0.5)


def measure_agreement(design: Mapping[str, int], ratings: Ratings) -> dict[str, Any]:
    """Measure how far raters agree with each other (ranges) and with the designed scores (changes)."""
    golds = {sample: compute_gold_score(list(given.values())) for sample, given in ratings.items()}
    changes = Counter(f"{design[sample]} -> {gold}" for sample, gold in golds.items() if gold != design[sample])
    ranges = {sample: max(given.values()) - min(given.values()) for sample, given in ratings.items() if len(given) > 1}
    # From a difference of 2 on, two raters disagree clearly.
    wide = sorted(sample for sample, width in ranges.items() if width >= 2)
    return {
        "rated": len(ratings),
        "ratings": sum(map(len, ratings.values())),
        "raters": len({rater for given in ratings.values() for rater in given}),
        "changed": changes.total(),
        "changes": dict(sorted(changes.items())),
        "mean_range": round(fmean(ranges.values()), 4) if ranges else None,
        "wide": len(wide),
        "disagreements": wide,
    }


def merge_experts(folder: Path, ratings_path: Path, output: Path) -> dict[str, Any]:
    """Copy a data set with the expert scores of a CSV, without what experts reject; return the report of the copy."""
    require_other_folder(folder, output)
    design = {row["sample_id"]: row["design_score"] for _, row in read_rows(folder, ("sample_id", "design_score"))}
    ratings, rejected, bad_rows = read_ratings(ratings_path, set(design))
    gone = {skip.item for skip in rejected}
    if gone >= set(design):
        raise ValueError(f"{ratings_path}: rejects all {len(design)} samples; nothing is left to write.")
    if not ratings and not rejected:
        raise ValueError(f"{ratings_path}: no row can be used ({[skip.reason for skip in bad_rows[:3]]}).")
    with ShardWriter(output, features()) as writer:
        for split, row in read_rows(folder):
            if given := ratings.get(row["sample_id"]):
                # In the order of the raters' names.
                scores = [given[rater] for rater in sorted(given)]
                row |= {"expert_scores": scores, "score": compute_gold_score(scores)}
            if row["sample_id"] not in gone:
                writer.write(split, row)
    report = data_card.read_report(folder)
    report |= {
        "plan_id": make_stable_id(report["plan_id"], data_card.make_content_id(output)),
        "experts": {**measure_agreement(design, ratings), "rejected": len(gone)},
        "rejected_by_experts": [*report.get("rejected_by_experts", ()), *map(asdict, rejected)],
        "bad_rows": [asdict(skip) for skip in bad_rows],
    }
    return _save_report(output, report)
