"""`filter`: the rules, then a judge's scores and labels; writes another data set folder (appendix B.1)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sdiareward.common.skipped import Skipped
from sdiareward.llm.client import ChatClient, ChatSettings

from ..formats.shards import ShardWriter, count_pairs, read_rows
from ..pairing.annotation import annotate_rows
from ..pairing.filtering import FilterSettings, filter_rows
from ..reports.data_card import summarize_skipped, write_report
from ..settings import make_settings, read_mapping
from . import add_common_arguments, finish


@dataclass(frozen=True)
class FilterConfig:
    """What `filter` reads, asks and writes.

    Args:
        folder (`str`): Data set folder, as `build` writes it.
        output_dir (`str`): Folder to write.
        judge (`Mapping`, *optional*): Fields of `ChatSettings`; without a judge only the rules apply.
        filter (`Mapping`): Fields of `FilterSettings`.
        annotate (`bool`): Whether the judge also labels what Table 5 asks for and the source does not say.
        cache_dir (`str`, *optional*): Where answers are kept; `<output_dir>-answers` by default.
    """

    folder: str
    output_dir: str
    judge: Mapping[str, Any] | None = None
    filter: Mapping[str, Any] = field(default_factory=dict)
    annotate: bool = False
    cache_dir: str | None = None

    def __post_init__(self) -> None:
        if Path(self.folder).resolve() == Path(self.output_dir).resolve():
            raise ValueError(f"folder and output_dir are both {self.folder}; write to another folder.")
        if self.annotate and self.judge is None:
            raise ValueError("annotate needs a judge; give the endpoint and model under judge.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_common_arguments(parser, config="the fields of FilterConfig")
    parser.add_argument("--folder", help="data set folder to read instead of the config's")
    parser.add_argument("--output-dir", help="folder to write instead of the config's")


def run(args: argparse.Namespace) -> int:
    """Filter a data set folder into another."""
    given = {"folder": args.folder, "output_dir": args.output_dir}
    values = read_mapping(args.config) | {key: value for key, value in given.items() if value is not None}
    config = make_settings(FilterConfig, values, str(args.config))
    client = None
    if config.judge is not None and not args.dry_run:
        settings = make_settings(ChatSettings, config.judge, f"{args.config}: judge")
        client = ChatClient(settings, config.cache_dir or f"{config.output_dir.rstrip('/')}-answers")
    rules = make_settings(FilterSettings, config.filter, f"{args.config}: filter")
    if args.dry_run:
        return finish(config.output_dir, _count(config, rules), args.strict)
    return finish(config.output_dir, filter_folder(config, rules, client), args.strict)


def filter_folder(config: FilterConfig, rules: FilterSettings, client: ChatClient | None) -> dict[str, Any]:
    """Write the pairs of `config.folder` that are kept to `config.output_dir`; return the report.

    Args:
        config (`FilterConfig`): Folders, and whether to annotate.
        rules (`FilterSettings`): What the judge's scores must reach.
        client (`ChatClient`, *optional*): Asks the judge; None applies the rules alone.

    Raises:
        EndpointError: The judge cannot be reached at all; what it has said is kept.
        FileNotFoundError: `config.folder` is no data set folder.
    """
    skipped: list[Skipped] = []
    output = Path(config.output_dir)
    rows: Iterable[dict[str, Any] | Skipped] = filter_rows(_read(config), client, rules)
    if client and config.annotate:
        rows = annotate_rows(_keep(rows, skipped), client)
    with ShardWriter(output) as writer:
        for row in _keep(rows, skipped):
            writer.write(row["split"], row)
    before = json.loads((Path(config.folder) / "report.json").read_text(encoding="utf-8"))
    settings = {**before["config"], "filter": {**asdict(rules), "judge": client.settings.model if client else None}}
    more = {"filtered_from": before["build_id"], **({"judge_usage": client.usage} if client else {})}
    return write_report(output, writer.counts, skipped, settings, **more)


def _read(config: FilterConfig) -> Iterator[dict[str, Any]]:
    for split, row in read_rows(Path(config.folder)):
        yield {**row, "split": split}


def _keep(rows: Iterable[dict[str, Any] | Skipped], skipped: list[Skipped]) -> Iterator[dict[str, Any]]:
    for row in rows:
        if isinstance(row, Skipped):
            skipped.append(row)
        else:
            yield row


def _count(config: FilterConfig, rules: FilterSettings) -> dict[str, Any]:
    """Return what the rules leave; nobody is asked and nothing is written."""
    skipped: list[Skipped] = []
    kept = _keep(filter_rows(_read(config), None, rules), skipped)
    return {"pairs": count_pairs((row["split"], row) for row in kept), **summarize_skipped(skipped)}
