"""Plan the repository of a data set: its public shards, its metadata release, a card."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.cards.dataset_repository_card import render_dataset_repository_card
from sdiareward.cards.licences import find_licence
from sdiareward.dataset_builder.release.release import release_features
from sdiareward.dataset_builder.reports.data_card import list_configs, list_languages
from sdiareward.dataset_builder.shards import COUNTED, SPLITS, PairTally
from sdiareward.pairs.schema import SIDES, features

from .plan import NOTICES, PlannedFile, RepositoryPlan
from .public_shards import Shard, has_columns, list_shards, publish_shard, read_columns, read_labels


if TYPE_CHECKING:
    import datasets

_EXAMPLE_REPOSITORY = "ORG/sdiareward"


@dataclass(frozen=True)
class Table:
    folder: str
    shards: list[Shard]
    columns: datasets.Features

    @property
    def files(self) -> list[PlannedFile]:
        return [PlannedFile(f"{self.folder}/{shard.place}", shard.path) for shard in self.shards]


def plan_dataset(
    folder: Path, *, metadata: Path | None = None, repo_id: str | None = None, work_dir: Path | None = None
) -> RepositoryPlan:
    """Plan the repository: the rows whose audio `cards/licences.py` allows, and all rows of `metadata`."""
    source = folder.resolve()
    work = work_dir or source.with_name(f"{source.name}-publish")
    labels, public = _publish_shards(list_shards(folder), work / "data")
    if not public and metadata is None:
        raise ValueError(f"{folder}: no audio may be published; give its metadata release with --metadata.")
    pairs = Table("data", public, features())
    released = [] if metadata is None else _read_release(metadata, {label["pair_id"] for label in labels})
    table = Table("metadata", released, release_features())
    num_left_out = len(labels) - sum(shard.num_rows for shard in released)
    facts = _collect_facts(folder, labels) | {"has_metadata": metadata is not None, "num_left_out": num_left_out}
    configs = _make_configs(pairs, table)
    card = render_dataset_repository_card(facts, configs, repo_id or _EXAMPLE_REPOSITORY)
    files = [PlannedFile("README.md", card.encode()), *pairs.files, *table.files, *_plan_notices(labels)]
    notes = _list_notes(labels, metadata, num_left_out)
    if work_dir is None and any(work in file.source.parents for file in files if isinstance(file.source, Path)):
        notes.append(f"rewritten shards are in {work}, which may be deleted after the push.")
    return RepositoryPlan("dataset", files, notes=notes)


def _publish_shards(shards: Sequence[Shard], output: Path) -> tuple[list[dict[str, Any]], list[Shard]]:
    from tqdm import tqdm

    labels: list[dict[str, Any]] = []
    public = []
    for shard in tqdm(shards, desc="licences", unit="shard", disable=None):
        of_shard = read_labels(shard)
        labels += of_shard
        if published := publish_shard(shard, of_shard, output):
            public.append(published)
    return labels, public


def _read_release(folder: Path, pair_ids: Collection[str]) -> list[Shard]:
    """Return the shards of a metadata release, which must have its columns (no audio) and pairs of the data set."""
    shards = list_shards(folder)
    released = set()
    for shard in shards:
        if not has_columns(shard.path, release_features()):
            raise ValueError(
                f"{shard.path}: does not have the columns of a metadata release, which has no audio; write one with "
                "sdiareward build release."
            )
        released |= {row["pair_id"] for row in read_columns(shard.path, lambda leaf: leaf == "pair_id")}
    if unknown := sorted(map(str, released - set(pair_ids))):
        raise ValueError(
            f"{folder}: {len(unknown)} of its {len(released)} pairs, such as {unknown[0]}, are not in the data set; "
            "give the release of this data set."
        )
    return shards


def _collect_facts(folder: Path, labels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the facts for the card; from the builder's report only fields without local paths."""
    path = folder / "report.json"
    report = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    settings = report.get("config", {})
    public = [label for label in labels if label["why_withheld"] is None]
    reasons = Counter(label["why_withheld"] for label in labels if label["why_withheld"])
    return {
        "config": {name: settings[name] for name in ("seed", "channel") if name in settings},
        "skipped": report.get("skipped", []),
        "pairs": _count(public),
        "num_pairs": len(labels),
        "languages": list_languages(label["language"] for label in labels),
        "licences": _count_by(labels, "license"),
        "sources": _count_by(labels, "source"),
        "why_withheld": dict(reasons.most_common()),
    }


def _count(labels: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return pairs and hours as a builder's report counts them."""
    tally = PairTally()
    for label in labels:
        hours = {side: label[f"{side}_h"] for side in SIDES}
        tally.add({name: _format_cell(label[name]) for name in COUNTED}, hours)
    return tally.counts


def _count_by(labels: Sequence[Mapping[str, Any]], column: str) -> dict[str, tuple[int, int]]:
    counts: dict[str, list[int]] = {}
    for label in labels:
        counts.setdefault(_format_cell(label[column]), [0, 0])[label["why_withheld"] is not None] += 1
    return {name: (count[0], count[1]) for name, count in sorted(counts.items())}


def _format_cell(value: Any) -> str:
    """Return a value as a cell of a table, without line breaks and bars."""
    return " ".join(str(value).split()).replace("|", "/")


def _make_configs(pairs: Table, metadata: Table) -> list[dict[str, Any]]:
    """Return name, files by split and `DatasetInfo` of each configuration; the metadata release is one."""
    configs = [
        {**config, "info": _make_info(config, pairs)} for config in list_configs([vars(each) for each in pairs.shards])
    ]
    splits = [split for split in SPLITS if any(shard.split == split for shard in metadata.shards)]
    if splits:
        files = [{"split": split, "path": f"{metadata.folder}/*/{split}-*.parquet"} for split in splits]
        config = {"config_name": metadata.folder, "data_files": files}
        configs.append({**config, "info": _make_info(config, metadata)})
    return configs


def _make_info(config: Mapping[str, Any], table: Table) -> datasets.DatasetInfo:
    """Return columns, splits and sizes of a configuration, as the Hub's viewer and `datasets` need them."""
    from fnmatch import fnmatch

    import datasets

    infos, download_bytes = datasets.SplitDict(), 0
    for entry in config["data_files"]:
        patterns = [entry["path"]] if isinstance(entry["path"], str) else entry["path"]
        shards = [
            shard
            for shard in table.shards
            if any(fnmatch(f"{table.folder}/{shard.place}", pattern) for pattern in patterns)
        ]
        num_bytes = sum(shard.num_bytes for shard in shards)
        infos.add(datasets.SplitInfo(entry["split"], num_bytes, sum(shard.num_rows for shard in shards)))
        download_bytes += sum(shard.path.stat().st_size for shard in shards)
    return datasets.DatasetInfo(
        features=table.columns,
        splits=infos,
        download_size=download_bytes,
        dataset_size=sum(info.num_bytes for info in infos.values()),
    )


def _plan_notices(labels: Sequence[Mapping[str, Any]]) -> list[PlannedFile]:
    licences = [find_licence(label["license"]) for label in labels if label["why_withheld"] is None]
    names = sorted({licence.notice for licence in licences if licence and licence.notice})
    return [PlannedFile(f"notices/{name}", (NOTICES / name).read_bytes()) for name in names]


def _list_notes(labels: Sequence[Mapping[str, Any]], metadata: Path | None, num_left_out: int) -> list[str]:
    notes = []
    withheld = [label for label in labels if label["why_withheld"]]
    if withheld:
        counts = ", ".join(f"{name} {count[1]}" for name, count in _count_by(withheld, "license").items())
        notes.append(f"the audio of {len(withheld)} of {len(labels)} pairs is not published; by licence: {counts}.")
        reasons = Counter(label["why_withheld"] for label in withheld)
        notes += [f"{count} withheld: {reason}." for reason, count in reasons.most_common()]
    if metadata is None:
        notes.append(
            "there is no metadata release, so nobody can rebuild pairs; sdiareward build release writes one, for "
            "--metadata."
        )
    elif num_left_out:
        notes.append(f"{num_left_out} pairs are not in the metadata release.")
    return notes
