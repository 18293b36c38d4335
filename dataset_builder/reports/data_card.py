"""The card and the report of a data set folder: its content, and the skipped items with their reasons."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from string import Template
from typing import Any

import yaml

from sdiareward.common.escaping import escape_code, escape_markdown
from sdiareward.common.files import write_file
from sdiareward.common.package_files import CARDS
from sdiareward.common.skipped import Skipped
from sdiareward.common.tables import render_table
from sdiareward.pairs.schema import JOINT

from ..formats.shards import SPLITS, read_rows


_CARD = CARDS / "dataset_card.md"
# The tags by which the Hub finds our data sets.
HEADER: dict[str, Any] = {
    "pretty_name": "SDiaReward pairs",
    "task_categories": ["audio-classification"],
    "tags": ["spoken-dialogue", "reward-model", "preference"],
}


# Why the speakers of a source spoke.
_SPOKE_FOR = {
    "amazon_queen": "The actors of {} spoke for a game, not for research on speech.",
    "asterisk": "The announcer of {} spoke for telephone systems, not for research on speech.",
    "meld": "The actors of {} spoke for television, not for research on speech.",
    "sample": "The actors and the announcer of {} spoke for a game and for telephone systems, not for research.",
    "youtube": "Who is heard in recordings on the web ({}) may not even have spoken for publication.",
}
_UNKNOWN_SPEAKERS = "What those who are heard in {} spoke for, and agreed to, is not recorded here: ask its publisher."
# The code of a language that is not known.
_UNDETERMINED = "und"
_WHOLE_GROUPS = "a group is in one split only"
# No recording of a person.
_SYNTHETIC_ONLY = ("balanced_scripts", "colloquial_scripts")


def make_report(
    folder: Path,
    counts: Sequence[Mapping[str, Any]],
    skipped: Sequence[Skipped],
    settings: Mapping[str, Any],
    **more: Any,
) -> dict[str, Any]:
    """Return the report of a data set folder whose shards are complete."""
    report = {"build_id": make_content_id(folder), **more, "config": dict(settings), "pairs": list(counts)}
    languages = list_languages(code for _, code in read_column(folder, "language"))
    report |= {"languages": languages, "groups": count_groups(read_column(folder, "group_id"))}
    return {**report, **summarise_skipped(skipped)}


def write_report(
    folder: Path,
    counts: Sequence[Mapping[str, Any]],
    skipped: Sequence[Skipped],
    settings: Mapping[str, Any],
    **more: Any,
) -> dict[str, Any]:
    """Write `README.md` and `report.json` of a data set folder whose shards are complete; return the report."""
    report = make_report(folder, counts, skipped, settings, **more)
    return save_report(folder, report, render_card(report))


def read_column(folder: Path, name: str) -> list[tuple[str, Any]]:
    """Return the split and the value of each pair; none where no pair is left."""
    try:
        return [(split, row[name]) for split, row in read_rows(folder, [name])]
    except FileNotFoundError:
        return []


def count_groups(groups: Iterable[tuple[str, str]]) -> dict[str, int]:
    found = set(groups)
    return {"all": len({group for _, group in found}), **Counter(split for split, _ in sorted(found))}


def describe_groups(report: Mapping[str, Any]) -> str:
    """Describe how many groups there are, and what joined some; empty where nothing counted them."""
    counts, joined = report.get("groups") or {}, report.get("joined") or {}
    text = ", ".join(f"{split} {count}" for split, count in counts.items())
    if joined.get("groups"):
        text += (
            f" ({joined['groups']} that share recordings were joined: {joined['by_file']} share a file, "
            f"{joined['equal_copies']} recordings are equal copies, {joined['near_copies']} near copies)"
        )
    return text and f"groups: {text}"


def list_languages(codes: Iterable[str | None]) -> list[str]:
    """Return the languages of codes such as `en-US`, as the Hub lists them, without unknown ones."""
    return sorted({code.partition("-")[0].lower() for code in codes if code and code != _UNDETERMINED})


def save_report(folder: Path, report: dict[str, Any], card: str) -> dict[str, Any]:
    """Write the card of a folder, then its report, which marks the folder as complete; return the report."""
    write_file(folder / "README.md", card)
    write_file(folder / "report.json", json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return report


def read_finished(folder: Path, plan_id: str) -> dict[str, Any] | None:
    """Return the report of a folder if it is complete and has this `plan_id`, a hash of its settings."""
    report = read_report(folder) if (folder / "data").is_dir() else {}
    return report if report.get("plan_id") == plan_id else None


def read_report(folder: Path) -> dict[str, Any]:
    path = folder / "report.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def read_public_settings(folder: Path) -> dict[str, Any]:
    """Return the seed and channel of a build, from its report; its other settings may hold local paths."""
    config = read_report(folder).get("config", {})
    return {key: config.get(key) for key in ("seed", "channel")}


def summarise_skipped(skipped: Sequence[Skipped]) -> dict[str, Any]:
    """Return the report's entries on skipped items: counts by kind, and each item with its reason."""
    return {
        "drops": dict(sorted(Counter(skip.kind for skip in skipped).items())),
        "skipped": [asdict(skip) for skip in skipped],
    }


def make_content_id(folder: Path) -> str:
    """Return 16 hexadecimal digits that depend on the shards of a data set folder alone."""
    digest = hashlib.sha256()
    for path in sorted((folder / "data").rglob("*.parquet")):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def summarise(report: Mapping[str, Any]) -> str:
    """Summarise a run: pairs, hours, skipped items by kind, and the first reason of each."""
    rows = report["pairs"]
    lines = [f"{sum(row['pairs'] for row in rows)} pairs"]
    if rows and "chosen_h" in rows[0]:
        hours = [sum(row[f"{side}_h"] for row in rows) for side in ("chosen", "rejected")]
        lines[0] += f", {hours[0]:.2f} h chosen, {hours[1]:.2f} h rejected"
    for name in ("criterion", "split", "subset", "source", "synthesizer"):
        counts: Counter[str] = Counter()
        for row in rows:
            counts[row[name]] += row["pairs"]
        lines.append(f"  by {name}: " + ", ".join(f"{key} {count}" for key, count in sorted(counts.items())))
    lines += [f"  by {text}"] if (text := describe_groups(report)) else []
    lines.append(f"{len(report['skipped'])} skipped")
    for kind, count in report["drops"].items():
        first = next(skip for skip in report["skipped"] if skip["kind"] == kind)
        lines.append(f"  {kind}: {count}; the first: {first['item']}: {' '.join(first['reason'].split())}")
    return "\n".join(lines)


def render_card(
    report: Mapping[str, Any], *, header: str | None = None, publication: str = "", name: str = "sdiareward"
) -> str:
    """Render the card of a folder that `datasets` loads by `name`."""
    rows, config = report["pairs"], report["config"]
    skipped = len(report["skipped"])
    channel = (
        (json.dumps(config["channel"]) if config["channel"] else "off") if "channel" in config else "not recorded"
    )
    known = (report.get("bench") or {}).get("num_known_groups")
    groups = f"{known} groups of the test split have other pairs in training" if known else _WHOLE_GROUPS
    return Template(_CARD.read_text(encoding="utf-8")).substitute(
        header=render_header(report, list_configs(rows)) if header is None else header,
        table="\n".join(render_table(list(rows[0]), [list(row.values()) for row in rows], num_left=5)) if rows else "",
        total=sum(row["pairs"] for row in rows),
        skipped=f"{skipped} {'item was' if skipped == 1 else 'items were'} skipped",
        channel=escape_code(channel if "channel" in config else "not recorded"),
        speakers=_render_speakers(report.get("sources") or {row["source"] for row in rows}),
        seed=escape_markdown(config.get("seed", "none")),
        publication=publication,
        groups=". ".join(filter(None, [groups, describe_groups(report)])),
        name=name,
        split=next((split for split in SPLITS if any(row["split"] == split for row in rows)), SPLITS[0]),
    )


def _render_speakers(sources: Iterable[str]) -> str:
    """Describe why the speakers spoke, as far as it is known."""
    named = [name for name in sorted(sources) if name not in _SYNTHETIC_ONLY]
    texts = [_SPOKE_FOR.get(name, _UNKNOWN_SPEAKERS).format(escape_code(name)) for name in named]
    return " ".join(texts) or "No recordings of persons are in here."


def render_header(report: Mapping[str, Any], configs: Sequence[Mapping[str, Any]], **changes: Any) -> str:
    """Render the header of a folder's card; `changes` replace values of `HEADER`."""
    # `datasets` caches a local folder under its last name and its card, not its files: without the description another
    # build in a folder of the same name would be answered with this one.
    configs = [{**config, "description": f"build {report['build_id']}"} for config in configs]
    languages = {"language": report["languages"]} if report.get("languages") else {}
    header = {**HEADER, **changes, **languages, "license": "other", "configs": configs}
    return yaml.safe_dump(header, sort_keys=False, allow_unicode=True).strip()


def list_configs(rows: Sequence[Mapping[str, Any]], folder: str = "data") -> list[dict[str, Any]]:
    """Return the configurations of a data set: everything, each criterion, and the benchmark (the test split)."""
    configs = []
    for name in ("default", *sorted({row["criterion"] for row in rows}), "esdr_bench"):
        files: list[dict[str, Any]] = []
        for split in ("test",) if name == "esdr_bench" else SPLITS:
            present = sorted({row["criterion"] for row in rows if row["split"] == split})
            if name in present:
                files.append({"split": split, "path": f"{folder}/{name}/{split}-*.parquet"})
            elif name in ("default", "esdr_bench"):
                # Families are tested apart from the paper's pairs.
                wanted = [criterion for criterion in present if criterion != JOINT or split != "test"]
                paths = [f"{folder}/{criterion}/{split}-*.parquet" for criterion in wanted]
                if wanted:
                    path = f"{folder}/*/{split}-*.parquet" if wanted == present else paths
                    files.append({"split": split, "path": path})
        if files:
            configs.append({"config_name": name, "data_files": files})
    return configs
