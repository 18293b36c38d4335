"""`fetch`: obtain what builds read: recordings from the web, or scripts or scenarios from a language model."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sdiareward.common.llm import ChatClient, ChatSettings
from sdiareward.common.locks import lock_folder
from sdiareward.common.settings import make_settings
from sdiareward.common.skipped import Skipped
from sdiareward.pairs.prompts import PromptSet, read_prompt_file

from . import BuilderArguments


@dataclass(kw_only=True)
class FetchArguments(BuilderArguments):
    """What to fetch: exactly one of the three, as a mapping in the file of `--config`."""

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

    chatreward: dict[str, Any] | None = field(
        default=None,
        metadata={
            "help": "output (a JSONL file of scenarios for `build chatreward`), endpoint, prompt_file, and fields of "
            "ScenarioSettings"
        },
    )

    def __post_init__(self) -> None:
        if [self.youtube, self.scripts, self.chatreward].count(None) != 2:
            raise ValueError("exactly one of youtube, scripts and chatreward must be given.")
        for name, values in (("scripts", self.scripts), ("chatreward", self.chatreward)):
            if values is not None and not {"output", "endpoint"} <= set(values):
                raise ValueError(f"{name} needs output, a JSONL file, and endpoint, with at least a model.")


def run(args: FetchArguments) -> int:
    if args.youtube is not None:
        skipped = _fetch_recordings(args.youtube, "youtube", args.dry_run)
    elif args.scripts is not None:
        skipped = _write_scripts(dict(args.scripts), "scripts", args.dry_run)
    else:
        skipped = _write_scenarios(dict(args.chatreward or {}), "chatreward", args.dry_run)
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
    with lock_folder(settings.output_dir):
        report = fetch(settings)
    sys.stdout.write(
        f"{settings.output_dir}: {len(report.fetched)} fetched, {report.num_present} there before, "
        f"{report.num_other_titles} with other titles, {len(report.skipped)} skipped\n"
    )
    return report.skipped


def _write_scripts(values: dict[str, Any], label: str, is_dry: bool) -> list[Skipped]:
    from ..sources.scripts_by_llm import ScriptSettings, plan_scripts, read_scenarios, write_scripts

    output, endpoint, prompts = _read_writer(values, label)
    scenarios = read_scenarios(values.pop("scenarios", None))
    settings = make_settings(ScriptSettings, values, label)
    if is_dry:
        count = len(plan_scripts(scenarios, settings.variations))
        sys.stdout.write(f"{output}: would write {count} pairs of scripts on {len(scenarios)} scenarios\n")
        return []
    client = _open_client(endpoint, output)
    with lock_folder(client.cache_dir):
        skipped = write_scripts(output, client, scenarios, settings, prompts)
    _print_written(output, "pairs of scripts", skipped, client)
    return skipped


def _write_scenarios(values: dict[str, Any], label: str, is_dry: bool) -> list[Skipped]:
    from ..chatreward.scenarios import ScenarioSettings, write_scenarios

    output, endpoint, prompts = _read_writer(values, label)
    settings = make_settings(ScenarioSettings, values, label)
    if is_dry:
        sys.stdout.write(f"{output}: would write {settings.count} scenarios\n")
        return []
    client = _open_client(endpoint, output)
    with lock_folder(client.cache_dir):
        skipped = write_scenarios(output, client, settings, prompts)
    _print_written(output, "scenarios", skipped, client)
    return skipped


def _read_writer(values: dict[str, Any], label: str) -> tuple[Path, ChatSettings, PromptSet]:
    """Take the file to write, the endpoint and the prompts out of the settings."""
    endpoint = make_settings(ChatSettings, values.pop("endpoint"), f"{label}.endpoint")
    return Path(values.pop("output")), endpoint, read_prompt_file(values.pop("prompt_file", None))


def _open_client(endpoint: ChatSettings, output: Path) -> ChatClient:
    return ChatClient(endpoint, output.with_name(f"{output.name}-answers"))


def _print_written(output: Path, items: str, skipped: list[Skipped], client: ChatClient) -> None:
    count = output.read_bytes().count(b"\n") if output.is_file() else 0
    sys.stdout.write(f"{output}: {count} {items}, {len(skipped)} skipped; {client.usage}\n")
