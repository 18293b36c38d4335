"""Form turns from segments of speech, cut them into windows of equal size, and measure the timing of calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .recordings import ASSISTANT, ROLES, USER


class Segment(NamedTuple):
    """A stretch of speech by one side; also a turn."""

    start_s: float
    end_s: float
    channel: int
    text: str = ""

    @property
    def role(self) -> str:
        return ROLES[self.channel]

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True)
class CallRules:
    """Rules for forming turns.

    Args:
        join_s (`float`): Pieces of one side with shorter pauses are joined.
        backchannel_s (`float`): Longer stretches are turns, unless they are inside a turn of the other side.
        lead_s (`float`): A backchannel begins at least this long before the other side's piece ends; a turn that
            begins this early counts as an early start.
        resume_s (`float`): After a backchannel the other side resumes within this time.
        window (`int`): Turns per window, equal for all windows, because the reward depends on the number of turns.
    """

    join_s: float = 0.5
    backchannel_s: float = 1.0
    lead_s: float = 0.2
    resume_s: float = 1.5
    window: int = 6

    def __post_init__(self) -> None:
        if self.window not in range(2, 17, 2):
            raise ValueError(f"window is {self.window}; give an even number of turns from 2 to 16.")


@dataclass(frozen=True)
class Turns:
    """The alternating turns of a call, speech inside turns of the other side, and all joined pieces."""

    turns: list[Segment]
    inside: list[Segment]
    pieces: list[Segment]
    duration_s: float  # Duration of the recording.


def form_turns(segments: Sequence[Segment], duration_s: float, rules: CallRules = CallRules()) -> Turns:
    """Join the pieces of each side; set aside backchannels and speech inside the other side's turn."""
    pieces = list[Segment]()
    for channel in (USER, ASSISTANT):
        joined = list[Segment]()
        for segment in sorted(each for each in segments if each.channel == channel):
            if joined and segment.start_s - joined[-1].end_s <= rules.join_s:
                joined[-1] = _unite(joined[-1], segment)
            else:
                joined.append(segment)
        pieces += joined
    pieces.sort()
    turns, inside = list[Segment](), list[Segment]()
    for number, piece in enumerate(pieces):
        last = turns[-1] if turns else None
        if last is None or piece.channel == last.channel:
            turns[-1:] = [piece if last is None else _unite(last, piece)]
        elif piece.end_s <= last.end_s or _is_backchannel(piece, last, pieces[number + 1 : number + 2], rules):
            inside.append(piece)
        else:
            turns.append(piece)
    return Turns(turns, inside, pieces, duration_s)


def _unite(first: Segment, second: Segment) -> Segment:
    text = f"{first.text} {second.text}".strip()
    return first._replace(end_s=max(first.end_s, second.end_s), text=text)


def _is_backchannel(piece: Segment, last: Segment, following: Sequence[Segment], rules: CallRules) -> bool:
    """Return whether a short piece begins during the other side's speech, which soon resumes."""
    resumes = any(each.channel == last.channel and each.start_s - piece.end_s <= rules.resume_s for each in following)
    return resumes and piece.length_s <= rules.backchannel_s and piece.start_s < last.end_s - rules.lead_s


def make_windows(turns: Sequence[Segment], size: int) -> list[list[Segment]]:
    """Cut turns into windows of `size`; each starts with the user and ends with the assistant.

    The last window ends with the last answer and may overlap the one before. A shorter call is one window.
    """
    first = 1 if turns and turns[0].channel == ASSISTANT else 0
    whole = list(turns[first : first + (len(turns) - first) // 2 * 2])
    starts = list(range(0, max(len(whole) - size, 0) + 1, size))
    if starts[-1] + size < len(whole):
        starts.append(len(whole) - size)
    return [whole[start : start + size] for start in starts if whole]


def measure_timing(calls: Sequence[Turns], rules: CallRules = CallRules()) -> dict[str, float | int | None]:
    """Measure the timing of one call, or of several together; a reward does not include it.

    - `response_gap_median_s`, `response_gap_p90_s`: start of the assistant's turn minus end of the preceding user
      turn, negative for an early start; None without an answer.
    - `answered_within_3_s`: share of user turns that are answered within 3 s; `gaps_over_2_s`, `gaps_over_5_s`:
      number of later answers.
    - `overlap_s`, `overlap_share`: time during which both speak, and its share of the recording.
    - `early_starts`: assistant turns that start more than 0.2 s before the user's turn ends.
    - `barge_ins`: user turns that start more than 0.2 s before the assistant's turn ends; `stop_time_median_s`: end
      of the assistant's turn minus start of the user's, over barge-ins.
    - `backchannels`: stretches of at most 1 s inside the other side's turn; `assistant_backchannels`: those by the
      assistant; `talked_over`: longer stretches inside the other side's turn.
    - `longest_silence_s`: longest silence between the first and the last word.
    """
    changes = [change for call in calls for change in zip(call.turns, call.turns[1:], strict=False)]
    gaps = [after.start_s - before.end_s for before, after in changes if after.channel == ASSISTANT]
    overlaps = [before.end_s - after.start_s for before, after in changes if after.channel == USER]
    stops = [overlap for overlap in overlaps if overlap > rules.lead_s]
    inside = [piece for call in calls for piece in call.inside]
    short = [piece for piece in inside if piece.length_s <= rules.backchannel_s]
    num_asked = sum(turn.channel == USER for call in calls for turn in call.turns)
    overlap_s, silence_s = 0.0, 0.0
    for call in calls:
        last_end_s = [-1.0, -1.0]
        for piece in sorted(call.pieces):
            # Pieces of one channel do not overlap, so each is compared with the other side's last piece.
            other_s, end_s = last_end_s[1 - piece.channel], max(last_end_s)
            overlap_s += max(min(other_s, piece.end_s) - piece.start_s, 0.0)
            silence_s = max(silence_s, piece.start_s - end_s) if end_s >= 0 else silence_s
            last_end_s[piece.channel] = piece.end_s
    measured: dict[str, float | int | None] = {
        "response_gap_median_s": float(np.median(gaps)) if gaps else None,
        "response_gap_p90_s": float(np.percentile(gaps, 90)) if gaps else None,
        "answered_within_3_s": sum(gap <= 3 for gap in gaps) / max(num_asked, 1),
        "gaps_over_2_s": sum(gap > 2 for gap in gaps),
        "gaps_over_5_s": sum(gap > 5 for gap in gaps),
        "overlap_s": overlap_s,
        "overlap_share": overlap_s / sum(call.duration_s for call in calls),
        "early_starts": sum(gap < -rules.lead_s for gap in gaps),
        "barge_ins": len(stops),
        "stop_time_median_s": float(np.median(stops)) if stops else None,
        "backchannels": len(short),
        "assistant_backchannels": sum(piece.channel == ASSISTANT for piece in short),
        "talked_over": len(inside) - len(short),
        "longest_silence_s": silence_s,
    }
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in measured.items()}
