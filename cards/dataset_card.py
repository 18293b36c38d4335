"""Read the shards of a data set that may be published, and render the card of its repository from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.package import CARDS
from sdiareward.common.tables import escape_markdown
from sdiareward.dataset_builder.licences import find_corpus, find_licence, find_redistribution_block
from sdiareward.dataset_builder.reports.data_card import HEADER, list_configs, list_languages, read_report, render_card
from sdiareward.dataset_builder.shards import COUNTED, SPLITS, count_pairs, list_paths
from sdiareward.pairs.schema import CRITERIA, JOINT, SIDES, make_arrow_schema


if TYPE_CHECKING:
    import datasets

Label = Mapping[str, Any]
_LABELS = (*(name for name in COUNTED if name != "split"), "language", "license", "pair_id")
# The fields of a turn that are read to check whether a row may be published; `path` is the audio's.
_TURN_FIELDS = {"audio_ref", "duration_s", "path"}
# As the Hub names sizes.
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


@dataclass(frozen=True)
class Shard:
    path: Path
    criterion: str
    split: str
    num_bytes: int  # Before compression.
    labels: Sequence[Label]  # Of each row; `why_withheld` is None if its audio may be sent.

    @property
    def place(self) -> str:
        """Its folder and name below the folder of a table."""
        return f"{self.criterion}/{self.path.name}"


def read_shards(folder: Path, columns: datasets.Features, remedy: str) -> list[Shard]:
    """Return the shards of a data set or a release; raise for one with other columns than these."""
    return [_read_shard(path, make_arrow_schema(columns), remedy) for path in list_paths(folder)]


def _read_shard(path: Path, agreed: Any, remedy: str) -> Shard:
    import pyarrow as pa
    import pyarrow.parquet as pq

    criterion, split = path.parent.name, path.name.split("-")[0]
    if criterion not in (*CRITERIA, JOINT) or split not in SPLITS:
        found = f"lies under criterion {criterion!r} and split {split!r}"
        raise ValueError(f"{path}: {found}, which the builder does not write; move it out of data/.")
    try:
        file = pq.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path}: not a Parquet file ({error}); build the data set again.") from error
    with file:
        if file.schema_arrow != agreed or file.schema_arrow.metadata != agreed.metadata:
            raise ValueError(f"{path}: {remedy}.")
        leaves = [file.schema.column(index).path for index in range(len(file.schema))]
        wanted = [leaf for leaf in leaves if leaf in _LABELS or not _TURN_FIELDS.isdisjoint(leaf.split("."))]
        rows = file.read(columns=wanted).to_pylist()
        groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
        num_bytes = sum(group.total_byte_size for group in groups)
    return Shard(path, criterion, split, num_bytes, [_label(path, row, split) for row in rows])


def _label(path: Path, row: Mapping[str, Any], split: str) -> Label:
    label = {name: row[name] for name in _LABELS} | {"split": split, "why_withheld": find_redistribution_block(row)}
    for side in SIDES:
        label[f"{side}_h"] = sum(turn["duration_s"] or 0.0 for turn in row[side] or ()) / 3600
        names = [(turn.get("audio") or {}).get("path") or "" for turn in row[side] or ()]
        if local := [name for name in names if "/" in name or "\\" in name]:
            found = f"pair {row['pair_id']} names the local file {local[0]!r}"
            raise ValueError(f"{path}: {found}; build the data set again.")
    return label


def render_dataset_card(
    folder: Path, shards: Sequence[Shard], public: Sequence[Shard], released: Sequence[Shard], repo_id: str
) -> str:
    """Render the card of a repository with the shards `public` of a data set and of its metadata release."""
    import jinja2

    labels = [label for shard in shards for label in shard.labels]
    licences, sources = count_by(labels, "license"), count_by(labels, "source")
    corpora = [find_corpus(name) for name, (num_public, _) in sources.items() if num_public]
    report, configs = read_report(folder), _make_configs(public, released)
    # Of the builder's report, the fields that hold no local paths.
    config = {name: value for name, value in report.get("config", {}).items() if name in ("seed", "channel")}
    facts = {"config": config, "skipped": report.get("skipped", []), "pairs": _count_pairs(public), "sources": sources}
    reasons = Counter(escape_markdown(label["why_withheld"]) for label in labels if label["why_withheld"])
    counts = {
        each["config_name"]: {split: info.num_examples for split, info in each["info"].splits.items()}
        for each in configs
    }
    template = jinja2.Template((CARDS / "dataset_publication.md").read_text("utf-8"), keep_trailing_newline=True)
    publication = template.render(
        repo_id=repo_id,
        configurations={name: ", ".join(f"{split} {n}" for split, n in of.items()) for name, of in counts.items()},
        num_pairs=len(labels),
        reasons=dict(reasons.most_common()),
        has_metadata=bool(released),
        num_left_out=len(labels) - sum(len(shard.labels) for shard in released),
        licences=[(_link_licence(name), *counts) for name, counts in licences.items()],
        config=config,
        attributions=[f"- {corpus.attribution}" for corpus in corpora if corpus and corpus.attribution],
    )
    header = _render_header(labels, licences, sources, configs)
    return render_card(facts, header=header, publication=publication, name=repo_id)


def _count_pairs(shards: Sequence[Shard]) -> list[dict[str, Any]]:
    """Return pairs and hours as a builder's report counts them."""
    labels = (label for shard in shards for label in shard.labels)
    cells = ({**label, **{name: _format_cell(label[name]) for name in COUNTED}} for label in labels)
    return count_pairs((cell["split"], cell) for cell in cells)


def count_by(labels: Sequence[Label], column: str) -> dict[str, tuple[int, int]]:
    """Return the pairs with and without audio by the value of a column."""
    counts = Counter((_format_cell(label[column]), label["why_withheld"] is None) for label in labels)
    return {name: (counts[name, True], counts[name, False]) for name in sorted({name for name, _ in counts})}


def _format_cell(value: Any) -> str:
    """Return a value as a cell of a table, without line breaks and bars."""
    return " ".join(str(value).split()).replace("|", "/")


def _make_configs(public: Sequence[Shard], released: Sequence[Shard]) -> list[dict[str, Any]]:
    """Return name, files by split and `DatasetInfo` of each configuration; the metadata release is one."""
    from sdiareward.dataset_builder.release.release import release_features
    from sdiareward.pairs.schema import features

    rows = [{"criterion": shard.criterion, "split": shard.split} for shard in public]
    configs = [{**config, "info": _make_info(config, "data", public, features())} for config in list_configs(rows)]
    if splits := [split for split in SPLITS if any(shard.split == split for shard in released)]:
        files = [{"split": split, "path": f"metadata/*/{split}-*.parquet"} for split in splits]
        config = {"config_name": "metadata", "data_files": files}
        configs.append({**config, "info": _make_info(config, "metadata", released, release_features())})
    return configs


def _make_info(
    config: Mapping[str, Any], folder: str, shards: Sequence[Shard], columns: datasets.Features
) -> datasets.DatasetInfo:
    """Return columns, splits and sizes of a configuration, as the Hub's viewer and `datasets` need them."""
    import datasets

    infos, download_bytes = datasets.SplitDict(), 0
    for entry in config["data_files"]:
        patterns = [entry["path"]] if isinstance(entry["path"], str) else entry["path"]
        of_split = [each for each in shards if any(fnmatch(f"{folder}/{each.place}", pattern) for pattern in patterns)]
        num_rows = sum(len(shard.labels) for shard in of_split)
        infos.add(datasets.SplitInfo(entry["split"], sum(shard.num_bytes for shard in of_split), num_rows))
        download_bytes += sum(shard.path.stat().st_size for shard in of_split)
    size = sum(info.num_bytes for info in infos.values())
    return datasets.DatasetInfo(features=columns, splits=infos, download_size=download_bytes, dataset_size=size)


def _render_header(
    labels: Sequence[Label],
    licences: Mapping[str, tuple[int, int]],
    sources: Mapping[str, Any],
    configs: Sequence[Mapping[str, Any]],
) -> str:
    """Return the YAML of the card; columns, splits and sizes are written as `datasets` writes them."""
    from datasets.info import DatasetInfosDict
    from huggingface_hub import DatasetCardData

    found = [find_licence(name) for name, (num_public, _) in licences.items() if num_public]
    names = sorted({licence.hub_id for licence in found if licence}) or ["other"]
    data = DatasetCardData(
        language=list_languages(label["language"] for label in labels),
        license=names[0] if len(names) == 1 else names,
        size_categories=next((name for bound, name in _SIZES if len(labels) < bound), "n>1M"),
        # `original` are ours; others are not on the Hub.
        source_datasets=["original" if n == "colloquial_scripts" else f"extended|other-{n}" for n in sources],
        **HEADER,
    )
    DatasetInfosDict({config["config_name"]: config["info"] for config in configs}).to_dataset_card_data(data)
    data["configs"] = [{name: config[name] for name in ("config_name", "data_files")} for config in configs]
    return data.to_yaml()


def _link_licence(name: str) -> str:
    """Return the name of a licence, linked to its text if that is known."""
    licence = find_licence(name)
    if licence is None:
        return escape_markdown(name)
    place = f"notices/{licence.notice}" if licence.notice else f"https://spdx.org/licenses/{licence.name}.html"
    return f"[{name}]({place})"
