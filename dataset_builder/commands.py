"""`sdiareward build`: from recordings to pairs, benchmark, metadata release, and back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from cyclopts import Parameter

from sdiareward.common.commands import MANIFEST_HELP, make_app
from sdiareward.common.errors import Skipped
from sdiareward.common.files import lock_folder, require_unlocked
from sdiareward.common.settings import make_settings, read_mapping

from .pairing import BenchSettings


BUILD = make_app(
    "build",
    "Build a data set of preference pairs from recordings; other commands fetch, filter, release, describe data.\n\n"
    "Every command prints a summary: pairs, hours, and skipped items by reason. With --strict, a skipped item gives\n"
    "exit status 1. The guide is docs/build_data.md.",
    help_epilogue=MANIFEST_HELP,
)
CHATREWARD = make_app("chatreward", "Build ChatReward, the scored dialogues for training WavReward.")
BUILD.command(CHATREWARD)
_LABELS = ("criterion", "subset", "source", "synthesizer")


@Parameter(name="*")
@dataclass(kw_only=True)
class RunArguments:
    """How a command of the builder runs.

    Args:
        strict: Exit with 1 if an item was skipped.
        dry_run: Only print the plan.
    """

    strict: bool = False
    dry_run: bool = False

    def finish(self, folder: str | Path, report: Mapping[str, Any]) -> int:
        from .reports.data_card import summarise

        sys.stdout.write(f"{folder}: {summarise(report)}\n")
        return int(self.strict and bool(report["skipped"]))


RUN, BENCH = RunArguments(), BenchSettings()


@BUILD.default
def build(
    *,
    config: Path,
    output_dir: str | None = None,
    num_workers: int | None = None,
    engine: Literal["datasets", "ray"] | None = None,
    run: RunArguments = RUN,
) -> int:
    """Build a data set of preference pairs.

    Args:
        config: YAML file with the fields of BuildConfig.
        output_dir: Output folder; overrides the config.
        num_workers: Number of processes.
        engine: Engine for the pipeline and the pairs.
    """
    from . import builder
    from .builder import read_build_config

    settings = read_build_config(config, {"output_dir": output_dir, "num_workers": num_workers, "engine": engine})
    return run.finish(settings.output_dir, builder.build(settings, dry_run=run.dry_run))


@BUILD.command
def fetch(*, config: Path, run: RunArguments = RUN) -> int:
    """Download recordings (youtube), or write scripts or scenarios with a language model.

    Args:
        config: YAML file with one key. youtube: fields of FetchSettings. scripts: output (a JSONL file), endpoint,
            scenarios, prompt_file, fields of ScriptSettings. chatreward: output, endpoint, prompt_file, fields of
            ScenarioSettings.
    """
    given = read_mapping(config)
    if len(given) != 1 or not set(given) <= {"youtube", "scripts", "chatreward"}:
        raise ValueError(f"{config}: has {list(given)}; give exactly one of youtube, scripts and chatreward.")
    [(kind, values)] = given.items()
    label = f"{config}: {kind}"
    if kind == "youtube":
        skipped = _fetch_recordings(values, label, run.dry_run)
    else:
        skipped = _write_by_model(kind, values, label, run.dry_run)
    for skip in skipped:
        sys.stdout.write(f"  {skip.kind}: {skip.item}: {skip.reason}\n")
    return int(run.strict and bool(skipped))


def _fetch_recordings(values: Any, label: str, is_dry: bool) -> list[Skipped]:
    from .sources.fetching import FetchSettings, fetch

    settings = make_settings(FetchSettings, values, label)
    if is_dry:
        wanted = [*(channel.url for channel in settings.channels), *settings.videos, *settings.searches]
        sys.stdout.write(f"{settings.output_dir}: would fetch {settings.format} of {', '.join(wanted)}\n")
        return []
    with lock_folder(settings.output_dir):
        report = fetch(settings)
    sys.stdout.write(
        f"{settings.output_dir}: {len(report.fetched)} fetched, {report.num_present} already present, "
        f"{report.num_other_titles} with other titles, {len(report.skipped)} skipped\n"
    )
    return report.skipped


def _write_by_model(kind: str, values: Any, label: str, is_dry: bool) -> list[Skipped]:
    from sdiareward.common.llm import ChatClient, ChatSettings
    from sdiareward.pairs.prompts import read_prompt_file

    from .chatreward.scenarios import ScenarioSettings, write_scenarios
    from .sources.scripts_by_llm import ScriptSettings, plan_scripts, read_scenarios, write_scripts

    if not isinstance(values, dict) or not {"output", "endpoint"} <= set(values):
        raise ValueError(f"{label} needs output (a JSONL file) and endpoint (with at least a model).")
    rest = dict(values)
    output, endpoint = Path(rest.pop("output")), make_settings(ChatSettings, rest.pop("endpoint"), f"{label}.endpoint")
    client = ChatClient(endpoint, output.with_name(f"{output.name}-answers"))
    prompts = read_prompt_file(rest.pop("prompt_file", None))
    write: Callable[[], list[Skipped]]
    if kind == "scripts":
        scenarios = read_scenarios(rest.pop("scenarios", None))
        style = make_settings(ScriptSettings, rest, label)
        items, count = "pairs of scripts", len(plan_scripts(scenarios, style.variations))
        planned = f"{count} {items} on {len(scenarios)} scenarios"
        write = partial(write_scripts, output, client, scenarios, style, prompts)
    else:
        settings = make_settings(ScenarioSettings, rest, label)
        items, planned = "scenarios", f"{settings.count} scenarios"
        write = partial(write_scenarios, output, client, settings, prompts)
    if is_dry:
        sys.stdout.write(f"{output}: would write {planned}\n")
        return []
    with lock_folder(client.cache_dir):
        skipped = write()
    num_written = output.read_bytes().count(b"\n") if output.is_file() else 0
    sys.stdout.write(f"{output}: {num_written} {items}, {len(skipped)} skipped; {client.usage}\n")
    return skipped


@BUILD.command
def filter(
    folder: str | None = None,
    /,
    *,
    config: Path | None = None,
    output_dir: str | None = None,
    run: RunArguments = RUN,
) -> int:
    """Filter a data set by rules and a judge's scores, and add the judge's labels.

    Args:
        folder: Data set folder, as written by build; by default the config's.
        config: YAML file with judge (fields of ChatSettings), filter (fields of FilterSettings), annotate,
            prompt_file, cache_dir. Without a judge, only the rules apply.
        output_dir: Output folder.
    """
    from .pairing.filtering import FilterConfig, filter_folder

    given = {"folder": folder, "output_dir": output_dir}
    values = (read_mapping(config) if config else {}) | {key: value for key, value in given.items() if value}
    settings = make_settings(FilterConfig, values, str(config or "filter"))
    require_unlocked(settings.folder)
    with nullcontext() if run.dry_run else lock_folder(settings.output_dir):
        return run.finish(settings.output_dir, filter_folder(settings, is_dry=run.dry_run))


@BUILD.command
def bench(folder: Path, /, *, output_dir: Path, settings: BenchSettings = BENCH, run: RunArguments = RUN) -> int:
    """Draw the stratified benchmark and isolate it from training (appendix B.1).

    Args:
        folder: Data set folder, as written by build or filter.
        output_dir: Output folder.
    """
    from .pairing.splits import draw_bench, make_bench
    from .reports.data_card import summarise_skipped
    from .shards import count_pairs

    if not run.dry_run:
        return run.finish(output_dir, make_bench(folder, output_dir, settings))
    labels, assignment, skipped = draw_bench(folder, settings)
    taken = ((assignment[label["pair_id"]], label) for label in labels if label["pair_id"] in assignment)
    return run.finish(output_dir, {"pairs": count_pairs(taken), **summarise_skipped(skipped)})


@BUILD.command
def release(
    folder: Path,
    /,
    *,
    output_dir: Path,
    audio_root: list[str] | None = None,
    names: Path | None = None,
    phone_region: list[str] | None = None,
    run: RunArguments = RUN,
) -> int:
    """Write a metadata release of a data set, without audio.

    Args:
        folder: Data set folder, as written by build.
        output_dir: Output folder.
        audio_root: [SOURCE=]DIR: folder with the recordings as DIR/SOURCE/..., or the folder of one source.
        names: Text file with names to remove, one per line, such as uploaders.
        phone_region: Country for phone numbers without +.
    """
    from .release.release import AudioRoots, release
    from .release.scrubbing import DEFAULT_REGIONS
    from .reports.data_card import summarise_skipped
    from .shards import count_pairs, read_rows

    if run.dry_run:
        return run.finish(output_dir, {"pairs": count_pairs(read_rows(folder, _LABELS)), **summarise_skipped([])})
    listed = names.read_text(encoding="utf-8").splitlines() if names else ()
    roots, regions = AudioRoots.parse(audio_root or []), tuple(phone_region or DEFAULT_REGIONS)
    return run.finish(output_dir, release(folder, output_dir, audio_roots=roots, names=listed, regions=regions))


@BUILD.command
def reconstruct(
    folder: Path,
    /,
    *,
    output_dir: Path,
    audio_root: list[str] | None = None,
    allow_reencoded: bool = False,
    synthesizer_options: Path | None = None,
    num_workers: int = 2,
    run: RunArguments = RUN,
) -> int:
    """Rebuild a released data set from your own audio.

    Args:
        folder: Folder of the metadata release.
        output_dir: Output folder for the data set.
        audio_root: [SOURCE=]DIR: folder with the recordings as DIR/SOURCE/..., or the folder of one source.
        allow_reencoded: Accept recordings in another encoding.
        synthesizer_options: YAML file with options by synthesizer, such as the address of an endpoint.
        num_workers: Number of processes.
    """
    from .release.release import AudioRoots, reconstruct

    report = reconstruct(
        folder,
        AudioRoots.parse(audio_root or []),
        output_dir,
        allow_reencoded=allow_reencoded,
        synthesizer_options=read_mapping(synthesizer_options) if synthesizer_options else None,
        num_workers=num_workers,
        dry_run=run.dry_run,
    )
    return run.finish(output_dir, report)


@BUILD.command
def stats(
    folder: Path, /, *, output_dir: Path | None = None, split: Literal["train", "validation", "test"] | None = None
) -> None:
    """Describe a data set: Table 1, hours, turns, durations, and the panels of Figure 5.

    Args:
        folder: Data set folder.
        output_dir: Folder for tables and figures; by default tables are printed.
        split: Describe only this split.
    """
    from .reports.data_card import compute_statistics, render_statistics, write_statistics

    if output_dir is None:
        sys.stdout.write(render_statistics(compute_statistics(folder, split=split)))
        return
    write_statistics(folder, output_dir, split=split)
    sys.stdout.write(f"{output_dir}: {', '.join(sorted(path.name for path in output_dir.iterdir()))}\n")


@CHATREWARD.default
def build_chatreward(
    *, config: Path, output_dir: str | None = None, num_workers: int | None = None, strict: bool = False
) -> int:
    """Synthesise the scenarios, filter them, and write the data set; the same command resumes.

    Args:
        config: YAML file with the fields of ChatRewardConfig.
        output_dir: Output folder; overrides the config.
        num_workers: Number of processes.
        strict: Exit with 1 if a sample is missing.
    """
    from .chatreward import builder
    from .chatreward.voices import read_config

    settings = read_config(config, {"output_dir": output_dir, "num_workers": num_workers})
    report = builder.build(settings)
    sys.stdout.write(f"{settings.output_dir}: {summarise_samples(report)}\n")
    return int(strict and bool(report["skipped"]))


def summarise_samples(report: Mapping[str, Any]) -> str:
    """Summarise a build: samples, rejected lines, and missing samples by reason."""
    rejected = ", ".join(f"{kind} {count}" for kind, count in report["rejected_lines"].items())
    samples, hours = (sum(row[name] for row in report["samples"]) for name in ("samples", "hours"))
    lines = [
        f"{samples} samples, {hours:.2f} h",
        f"lines rejected and retried with other voices: {rejected or 'none'}",
        f"{len(report['skipped'])} samples missing",
    ]
    return "\n".join([*lines, *(f"  {kind}: {count}" for kind, count in report["drops"].items())])


@CHATREWARD.command
def rate(folder: Path, /, *, ratings: Path, output_dir: Path) -> None:
    """Copy the data set with expert scores.

    Args:
        folder: Data set folder.
        ratings: CSV with sample_id, rater, score and, to reject a sample, wrong.
        output_dir: Output folder.
    """
    from .chatreward.builder import merge_experts

    report = merge_experts(folder, ratings, output_dir)
    experts = {name: value for name, value in report["experts"].items() if name != "disagreements"}
    sys.stdout.write(f"{output_dir}: {experts}\n{len(report['bad_rows'])} rows cannot be used\n")
    for row in report["bad_rows"]:
        sys.stdout.write(f"  {row['item']}: {row['reason']}\n")
