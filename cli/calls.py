"""`sdiareward score` of a call: rewards of its windows, and its timing, as text, JSON or a page."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import Any

from sdiareward.calls.reading import CallSettings, read_call
from sdiareward.calls.recordings import CallFiles
from sdiareward.common.files import write_file
from sdiareward.scoring.model_spec import ModelArguments


def score_call(
    files: CallFiles,
    settings: CallSettings,
    criterion: str | None,
    model: ModelArguments,
    *,
    output_dir: Path | None,
    segments: Path | None,
    turns_dir: Path | None,
) -> dict[str, Any]:
    """Score the windows of a call; write its turns and its page where folders for them are given."""
    from sdiareward.audio_sdiareward import describe_unheard
    from sdiareward.pairs.labels import name_criterion

    criterion = name_criterion(criterion)
    call = read_call(replace(files, segments=(segments,)) if segments else files, settings)
    if turns_dir is not None:
        call.write_turns(turns_dir)
    heard: dict[int, Any] = {}
    dialogues = [call.read_window(number) for number in range(len(call.windows))]
    rewards = model.make_spec().load(criterion).score(dialogues, criterion, heard=heard)
    unheard = describe_unheard([(f"window {number + 1}", each) for number, each in sorted(heard.items())])
    report = {
        "path": files.label,
        "criterion": criterion,
        "reward": sum(rewards) / len(rewards),
        "windows": [
            {"reward": reward, "num_turns": len(window), "start_s": window[0].start_s, "end_s": window[-1].end_s}
            for reward, window in zip(rewards, call.windows, strict=True)
        ],
        "turns": [{"role": turn.role, "start_s": turn.start_s, "end_s": turn.end_s} for turn in call.turns.turns],
        "timing": call.timing,
        "notices": [*call.notices, *unheard],
    }
    if output_dir is not None:
        from sdiareward.evaluation.report.calls import write_call_page

        output_dir.mkdir(parents=True, exist_ok=True)
        write_file(output_dir / "call.json", dumps(report, allow_nan=False, indent=2) + "\n")
        page = write_call_page(output_dir, call, report)
        print(f"Page: {page}", file=sys.stderr)
    return report


def describe_call(report: Mapping[str, Any]) -> str:
    """Return what a terminal shows of a call: how it was read, the rewards, and the timing."""
    from sdiareward.evaluation.report.calls import MEANINGS

    lines = [
        report["path"],
        *(f"  {notice}" for notice in report["notices"]),
        "",
        "window   turns          time    reward",
    ]
    for number, window in enumerate(report["windows"], start=1):
        span = f"{window['start_s']:.1f}-{window['end_s']:.1f} s"
        lines.append(f"{number:>6}  {window['num_turns']:>6}  {span:>14}  {window['reward']:+.4f}")
    lines += [
        f"{'mean':>6}  {'':>6}  {'':>14}  {report['reward']:+.4f}",
        "",
        "Timing (not part of the reward):",
    ]
    shown = {name: value for name, value in report["timing"].items() if value is not None}
    return "\n".join([*lines, *(f"{value:>10}  {MEANINGS[name]}" for name, value in shown.items())])
