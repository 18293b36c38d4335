"""`filter`: the rules, then a judge's scores and labels; writes another data set folder (appendix B.1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sdiareward.common.files import require_other_folder
from sdiareward.common.llm import ChatClient, ChatSettings
from sdiareward.common.settings import make_settings
from sdiareward.common.skipped import Skipped
from sdiareward.pairs.prompts import read_prompt_file

from ..pairing.filtering import ANNOTATION_PROMPTS, PROMPTS, FilterSettings, annotate_rows, filter_rows
from ..reports.data_card import read_report, summarise_skipped, write_report
from ..shards import ShardWriter, count_pairs, read_rows
from . import BuilderArguments, finish


@dataclass(kw_only=True)
class FilterArguments(BuilderArguments):
    folder: str = field(metadata={"help": "data set folder, as `build` writes it"})
    output_dir: str = field(metadata={"help": "folder to write"})
    judge: dict[str, Any] | None = field(
        default=None, metadata={"help": "fields of ChatSettings; without a judge only the rules apply"}
    )
    filter: dict[str, Any] = field(default_factory=dict, metadata={"help": "fields of FilterSettings"})
    annotate: bool = field(
        default=False, metadata={"help": "let the judge add the labels of Table 5 that the source does not have"}
    )
    prompt_file: str | None = field(
        default=None, metadata={"help": "prompts of the judge instead of the shipped ones (configs/prompts.yaml)"}
    )
    cache_dir: str | None = field(
        default=None, metadata={"help": "folder of the judge's answers (default: OUTPUT_DIR-answers)"}
    )

    def __post_init__(self) -> None:
        require_other_folder(self.folder, self.output_dir)
        if self.annotate and self.judge is None:
            raise ValueError("annotate needs a judge; give the endpoint and model under judge.")


def run(args: FilterArguments) -> int:
    client = None
    if args.judge is not None and not args.dry_run:
        settings = make_settings(ChatSettings, args.judge, "judge")
        client = ChatClient(settings, args.cache_dir or f"{args.output_dir.rstrip('/')}-answers")
    rules = make_settings(FilterSettings, args.filter, "filter")
    read_prompt_file(args.prompt_file)
    if args.dry_run:
        return finish(args.output_dir, _count(args, rules), args.strict)
    return finish(args.output_dir, filter_folder(args, rules, client), args.strict)


def filter_folder(args: FilterArguments, rules: FilterSettings, client: ChatClient | None) -> dict[str, Any]:
    """Write the pairs of `args.folder` that are kept to `args.output_dir`; return the report."""
    skipped: list[Skipped] = []
    output = Path(args.output_dir)
    before = read_report(Path(args.folder))
    prompts = read_prompt_file(args.prompt_file)
    rows: Iterable[dict[str, Any] | Skipped] = filter_rows(_read(args), client, rules, prompts)
    if client and args.annotate:
        rows = annotate_rows(_keep(rows, skipped), client, prompts, max_failed=rules.max_failed)
    with ShardWriter(output) as writer:
        for row in _keep(rows, skipped):
            writer.write(row["split"], row)
    used = {"filter": PROMPTS, **({"annotation": ANNOTATION_PROMPTS} if args.annotate else {})}
    judge = {
        "judge": client.settings.model if client else None,
        "prompt_versions": {name: prompts.compute_version(*names) for name, names in used.items()} if client else None,
    }
    settings = {**before.get("config", {}), "filter": {**asdict(rules), **judge}}
    more = {"filtered_from": before.get("build_id"), **({"judge_usage": client.usage} if client else {})}
    more |= {"joined": before["joined"]} if "joined" in before else {}
    return write_report(output, writer.counts, skipped, settings, **more)


def _read(args: FilterArguments) -> Iterator[dict[str, Any]]:
    for split, row in read_rows(Path(args.folder)):
        yield {**row, "split": split}


def _keep(rows: Iterable[dict[str, Any] | Skipped], skipped: list[Skipped]) -> Iterator[dict[str, Any]]:
    for row in rows:
        if isinstance(row, Skipped):
            skipped.append(row)
        else:
            yield row


def _count(args: FilterArguments, rules: FilterSettings) -> dict[str, Any]:
    """Count the pairs that the rules keep, without asking the judge or writing."""
    skipped: list[Skipped] = []
    kept = _keep(filter_rows(_read(args), None, rules), skipped)
    return {"pairs": count_pairs((row["split"], row) for row in kept), **summarise_skipped(skipped)}
