"""Calls as a page and a terminal show them: the timing of systems, and the turns of each window in two lanes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.calls.reading import Call, count_notices
from sdiareward.calls.recordings import ASSISTANT, ROLES, USER, read_channels
from sdiareward.calls.turns import Segment
from sdiareward.common.files import write_file
from sdiareward.common.tables import ABSENT, Row, Table, format_signed

from .page import Block, Collector, render_page


if TYPE_CHECKING:
    from markupsafe import Markup

Timing = Mapping[str, float | int | None]
# What each value means; gaps count from the end of the user's turn to the start of the assistant's.
MEANINGS = {
    "response_gap_median_s": "response gap, median, s (start of the answer minus end of the user's turn)",
    "response_gap_p90_s": "response gap, 90th percentile, s",
    "answered_within_3_s": "share of the user's turns that are answered within 3 s",
    "gaps_over_2_s": "answers after more than 2 s",
    "gaps_over_5_s": "answers after more than 5 s",
    "overlap_s": "time in which both speak, s",
    "overlap_share": "share of the recording in which both speak",
    "early_starts": "answers that begin more than 0.2 s before the user's turn ends",
    "barge_ins": "user's turns that begin more than 0.2 s before the assistant's ends",
    "stop_time_median_s": "time until the assistant stops after these, median, s",
    "backchannels": "stretches of at most 1 s inside the other side's turn",
    "assistant_backchannels": "of these, the assistant's",
    "talked_over": "longer stretches inside the other side's turn",
    "longest_silence_s": "longest silence, s",
}
_LANE_Y, _LANE_HEIGHT, _BETWEEN = (2, 22), 16, 4


def describe_timing(timing: Mapping[str, Timing]) -> str:
    """Return the median response gap of each system."""
    gaps = {name: found["response_gap_median_s"] for name, found in timing.items()}
    told = ", ".join(f"{name} {gap:.2f} s" for name, gap in gaps.items() if gap is not None)
    return f"Median response gap: {told}. Rewards do not measure it."


def list_notices(calls: Mapping[str, Mapping[str, Call]]) -> list[str]:
    """Return how the calls of systems were read, and what their rewards may follow."""
    lines = []
    for system, found in calls.items():
        lines += [f"{system}, {notice}." for notice in count_notices(found)]
    rates = {system: {call.rate for call in found.values()} for system, found in calls.items()}
    if len(set(map(frozenset, rates.values()))) > 1:
        told = "; ".join(f"{system} at {', '.join(map(str, sorted(found)))} Hz" for system, found in rates.items())
        lines.append(f"Calls are recorded at different rates: {told}.")
    return lines


def tabulate_timing(timing: Mapping[str, Timing]) -> Table:
    rows = [
        Row([meaning, *(ABSENT if found[name] is None else found[name] for found in timing.values())])
        for name, meaning in MEANINGS.items()
    ]
    return Table("Timing (not part of the reward)", ["of all calls", *timing], rows)


def show_call(call: Call, rewards: Sequence[float | None], collector: Collector) -> Iterator[Block]:
    """Yield a player of a call, and the two lanes of each window below its reward."""
    samples = read_channels(call.files, call.settings.user_channel).samples.mean(axis=0)
    clip = collector.describe_clip({"array": np.ascontiguousarray(samples), "sampling_rate": SAMPLING_RATE}, None)
    turn = {"role": "call", "text": f"{len(call.turns.turns)} turns", "clips": [clip]}
    yield "turns", ([turn], call.files.name)
    yield "bounds", "The user is above, the assistant below. Thin bars are gaps before answers, and overlaps."
    for number, (window, reward) in enumerate(zip(call.windows, rewards, strict=True), start=1):
        start_s, end_s = window[0].start_s, window[-1].end_s
        told = "no reward" if reward is None else f"reward {format_signed(reward)}"
        yield "bounds", f"Window {number}, {start_s:.1f} to {end_s:.1f} s: {told}"
        yield "text", _draw_lanes(call.turns.pieces, start_s, end_s)


def _draw_lanes(pieces: Sequence[Segment], start_s: float, end_s: float) -> Markup:
    """Draw the user above the assistant; with thin bars for gaps before answers and for overlaps."""
    from markupsafe import Markup

    inside = [piece for piece in pieces if piece.start_s < end_s and piece.end_s > start_s]
    marks = [_draw(each, each.role, _LANE_Y[each.channel], _LANE_HEIGHT, start_s) for each in inside]
    for before, after in zip(inside, inside[1:], strict=False):
        first_s, last_s = sorted((before.end_s, after.start_s))
        span = Segment(first_s, last_s, ASSISTANT)
        if before.channel == USER and after.channel == ASSISTANT and after.end_s > before.end_s:
            kind = "gap" if after.start_s >= before.end_s else "overlap"
            marks.append(_draw(span, kind, _LANE_Y[USER] + _LANE_HEIGHT, _BETWEEN, start_s))
    label = f"{ROLES[USER]} above, {ROLES[ASSISTANT]} below, {start_s:.1f} to {end_s:.1f} s"
    head = Markup('<svg class="lanes" viewBox="0 0 {:.2f} 40" preserveAspectRatio="none" role="img" aria-label="{}">')
    return head.format(end_s - start_s, label) + Markup("").join(marks) + Markup("</svg>")


def _draw(span: Segment, kind: str, y: float, height: float, start_s: float) -> Markup:
    from markupsafe import Markup

    told = f"{kind} {span.start_s:.2f} to {span.end_s:.2f} s {span.text}".strip()
    mark: Any = Markup('<rect class="{}" x="{:.3f}" y="{}" width="{:.3f}" height="{}"><title>{}</title></rect>')
    return mark.format(kind, span.start_s - start_s, y, span.length_s, height, told)


def write_call_page(folder: Path, call: Call, report: Mapping[str, Any]) -> Path:
    """Write `index.html` of one call: rewards, timing, and its turns in two lanes."""
    collector = Collector()
    rewards = [window["reward"] for window in report["windows"]]
    page = render_page(
        title=call.files.name,
        kind="A call",
        subject=call.files.name,
        subtitle=f"{len(call.turns.turns)} turns in {call.turns.duration_s:.1f} s, scored under {report['criterion']}",
        headline=f"Mean reward of {len(rewards)} windows: {format_signed(report['reward'])}",
        sections=[
            ("windows", "Rewards and turns", list(show_call(call, rewards, collector))),
            ("timing", "Timing", [("table", tabulate_timing({"value": call.timing}))]),
            ("notices", "How it was read", [("list", report["notices"])]),
        ],
        clips=collector.clips,
    )
    write_file(folder / "index.html", page)
    return folder / "index.html"
