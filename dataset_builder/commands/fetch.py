"""`fetch`: obtain what the sources read: recordings from the web, or scripts from a language model."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdiareward.common.settings import make_settings
from sdiareward.common.skipped import Skipped

from . import BuilderArguments


@dataclass(kw_only=True)
class FetchArguments(BuilderArguments):
    """What to fetch: exactly one of the two, as a mapping in the file of `--config`."""

    youtube: dict[str, Any] | None = field(
        default=None, metadata={"help": "fields of FetchSettings; the files become the source `youtube`"}
    )
    scripts: dict[str, Any] | None = field(
        default=None,
        metadata={
            "help": "output (a JSONL file, which becomes the source `colloquial_scripts`), endpoint (fields of "
            "ChatSettings), scenarios (a file instead of the project's 250), prompt_file (prompts instead of the "
            "shipped ones), and fields of ScriptSettings"
        },
    )

    def __post_init__(self) -> None:
        if (self.youtube is None) == (self.scripts is None):
            raise ValueError("exactly one of youtube and scripts must be given.")
        if self.scripts is not None and not {"output", "endpoint"} <= set(self.scripts):
            raise ValueError("scripts needs output, a JSONL file, and endpoint, with at least a model.")


def run(args: FetchArguments) -> int:
    """Fetch what the config names."""
    if args.youtube is not None:
        skipped = _fetch_recordings(args.youtube, "youtube", args.dry_run)
    else:
        skipped = _write_scripts(dict(args.scripts or {}), "scripts", args.dry_run)
    for skip in skipped:
        sys.stdout.write(f"  {skip.kind}: {skip.item}: {skip.reason}\n")
    return 1 if args.strict and skipped else 0


def _fetch_recordings(values: dict[str, Any], label: str, is_dry: bool) -> list[Skipped]:
    from ..sources.fetching import FetchSettings, fetch

    settings = make_settings(FetchSettings, values, label)
    if is_dry:
        wanted = [*(channel.url for channel in settings.channels), *settings.videos, *settings.searches]
        sys.stdout.write(f"{settings.output_dir}: would fetch {settings.format} of {', '.join(wanted)}\n")
        return []
    report = fetch(settings)
    sys.stdout.write(
        f"{settings.output_dir}: {len(report.fetched)} fetched, {report.num_present} there before, "
        f"{report.num_other_titles} with other titles, {len(report.skipped)} skipped\n"
    )
    return report.skipped


def _write_scripts(values: dict[str, Any], label: str, is_dry: bool) -> list[Skipped]:
    from sdiareward.common.llm.client import ChatClient, ChatSettings
    from sdiareward.pairs.prompts import read_prompt_file

    from ..sources.scripts_by_llm import ScriptSettings, plan_scripts, read_scenarios, write_scripts

    output = Path(values.pop("output"))
    endpoint = make_settings(ChatSettings, values.pop("endpoint"), f"{label}.endpoint")
    scenarios = read_scenarios(values.pop("scenarios", None))
    prompts = read_prompt_file(values.pop("prompt_file", None))
    settings = make_settings(ScriptSettings, values, label)
    if is_dry:
        count = len(plan_scripts(scenarios, settings.variations))
        sys.stdout.write(f"{output}: would write {count} pairs of scripts on {len(scenarios)} scenarios\n")
        return []
    client = ChatClient(endpoint, output.with_name(f"{output.name}-answers"))
    skipped = write_scripts(output, client, scenarios, settings, prompts)
    with output.open(encoding="utf-8") as lines:
        count = sum(1 for _ in lines)
    sys.stdout.write(f"{output}: {count} pairs of scripts, {len(skipped)} skipped; {client.usage}\n")
    return skipped
