"""Plan the repository of a data set: its public shards, a table without audio, a card."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.cards.dataset_repository_card import render_dataset_repository_card
from sdiareward.cards.licences import find_licence
from sdiareward.dataset_builder.formats.shards import COUNTED, SPLITS, PairTally
from sdiareward.dataset_builder.release.release import release_features
from sdiareward.dataset_builder.reports.data_card import list_configs, list_languages
from sdiareward.pairs.schema import SIDES, features

from .listening_table import make_listening_features, write_listening
from .metadata_table import read_release, write_metadata
from .plan import NOTICES, PlannedFile, RepositoryPlan
from .public_shards import Shard, list_shards, publish_shard, read_labels


if TYPE_CHECKING:
    import datasets

_EXAMPLE_REPOSITORY = "ORG/sdiareward"


@dataclass(frozen=True)
class Table:
    """Shards of one set of columns.

    Args:
        folder (`str`): Their folder in the repository.
        shards (`list[Shard]`): The shards.
        columns (`datasets.Features`): Their columns.
    """

    folder: str
    shards: list[Shard]
    columns: datasets.Features

    @property
    def files(self) -> list[PlannedFile]:
        """Return the shards as files of the repository."""
        return [PlannedFile(f"{self.folder}/{shard.place}", shard.path) for shard in self.shards]


def plan_dataset(
    folder: Path, *, metadata: Path | None = None, repo_id: str | None = None, work_dir: Path | None = None
) -> RepositoryPlan:
    """Plan the repository of a data set.

    It holds audio only if the row's licence and the corpora that the row refers to allow it (`cards/licences.py`), and
    a row without audio for every pair. Only the shards of the folder are read.

    Args:
        folder (`Path`): Data set folder of the builder.
        metadata (`Path`, *optional*): Its metadata release, from `dataset_builder.release`; by default a table
            without fingerprints is made from the shards.
        repo_id (`str`, *optional*): Name of the repository, for the examples of its card.
        work_dir (`Path`, *optional*): Folder for rewritten shards; by default `<folder>-publish` beside the folder,
            which a note names.

    Raises:
        FileNotFoundError: A folder holds no shards.
        ValueError: A shard is not one of the builder, the release holds audio or pairs that the folder does not have,
            or the packages that find phone numbers and addresses are not installed.
    """
    source = folder.resolve()
    work = work_dir or source.with_name(f"{source.name}-publish")
    labels, public = _publish_shards(list_shards(folder), work / "data")
    pairs = Table("data", public, features())
    table, scrubbed = _make_metadata(folder, metadata, work / "metadata", {label["pair_id"] for label in labels})
    num_left_out = len(labels) - sum(shard.num_rows for shard in table.shards)
    to_hear, num_unreadable = write_listening(public, work / "listen")
    listen = Table("listen", to_hear, make_listening_features())
    facts = _collect_facts(folder, labels) | {"scrubbed": scrubbed, "has_fingerprints": metadata is not None}
    facts["num_left_out"] = num_left_out
    configs = _make_configs(pairs, listen, table)
    card = render_dataset_repository_card(facts, configs, repo_id or _EXAMPLE_REPOSITORY)
    files = [
        PlannedFile("README.md", card.encode()),
        *pairs.files,
        *listen.files,
        *table.files,
        *_plan_notices(labels),
    ]
    notes = _list_notes(labels, metadata, num_left_out)
    if work_dir is None and any(work in file.source.parents for file in files if isinstance(file.source, Path)):
        notes.append(f"rewritten shards are in {work}, which may be deleted after the push.")
    if num_unreadable:
        notes.append(f"{num_unreadable} of the pairs to listen to cannot be decoded: are these recordings whole?")
    return RepositoryPlan("dataset", files, notes=notes)


def _publish_shards(shards: Sequence[Shard], output: Path) -> tuple[list[dict[str, Any]], list[Shard]]:
    """Return the labels of all rows, and the shards that may be published."""
    from tqdm import tqdm

    labels: list[dict[str, Any]] = []
    public = []
    for shard in tqdm(shards, desc="licences", unit="shard", disable=None):
        of_shard = read_labels(shard)
        labels += of_shard
        if published := publish_shard(shard, of_shard, output):
            public.append(published)
    return labels, public


def _make_metadata(
    folder: Path, release: Path | None, output: Path, pair_ids: Collection[str]
) -> tuple[Table, dict[str, int] | None]:
    """Return the table without audio and the identifiers removed from it; None if the release removed them."""
    if release is not None:
        return Table("metadata", read_release(release, pair_ids), release_features()), None
    try:
        shards, scrubbed = write_metadata(list_shards(folder), output)
    except ImportError as error:
        raise ValueError(
            f"{error.name} is not installed, which finds personal data in transcripts; pip install "
            '"sdiareward[build]", or give the metadata release.'
        ) from error
    return Table("metadata", shards, release_features()), dict(scrubbed)


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
    """Return the number of pairs with and without audio by the values of a column."""
    counts: dict[str, list[int]] = {}
    for label in labels:
        counts.setdefault(_format_cell(label[column]), [0, 0])[label["why_withheld"] is not None] += 1
    return {name: (count[0], count[1]) for name, count in sorted(counts.items())}


def _format_cell(value: Any) -> str:
    """Return a value as a cell of a table, without line breaks and bars."""
    return " ".join(str(value).split()).replace("|", "/")


def _make_configs(pairs: Table, *tables: Table) -> list[dict[str, Any]]:
    """Return name, files by split and `DatasetInfo` of each configuration; every other table is one."""
    configs = []
    for config in list_configs([vars(shard) for shard in pairs.shards]):
        configs.append({**config, "info": _make_info(config, pairs)})
    for table in tables:
        splits = [split for split in SPLITS if any(shard.split == split for shard in table.shards)]
        files = [{"split": split, "path": f"{table.folder}/*/{split}-*.parquet"} for split in splits]
        if files:
            config = {"config_name": table.folder, "data_files": files}
            configs.append({**config, "info": _make_info(config, table)})
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
    """Return the notices that must accompany the recordings."""
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
            "the table without audio has no fingerprints, so nobody can rebuild pairs from it; python -m "
            "sdiareward.dataset_builder release writes one with, for --metadata."
        )
    if num_left_out:
        why = "a personal detail goes over the parts of a turn" if metadata is None else "the release left them out"
        notes.append(f"{num_left_out} pairs are not in the table without audio: {why}.")
    return notes
