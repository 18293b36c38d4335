"""Form speakers, turns and episodes from diarized segments. Pure arithmetic on times.

Our reading of section B.1. "We strictly retain only the two dominant speakers, discarding segments where secondary
speakers exceed 10% of the duration": we keep the two speakers with the most speech in a recording and drop all other
segments. An episode ends at a segment of another speaker that is at least partly in a silence of the two. If others
speak during a turn, the turn is kept if they speak for at most 10% of its duration; otherwise it is dropped and the
next turn starts a new episode. The rest of the recording is kept.

"A minimum interval of 0 seconds, an overlap ratio >= 0.1, and a strict duration cap of 90 seconds": the interval
between two turns is the silence between them; a negative interval is an overlap. An overlap of at least 0.1 of the
shorter turn starts a new episode; a smaller one is kept as natural speech. An episode lasts at most 90 s from its
first start to its last end. Phase 1 of the filter is also applied here, before transcription: an even number of turns,
at most 16, each at most 60 s; roles alternate, and the first speaker of an episode is the user.

The paper leaves two cases open. A segment inside a turn of the other speaker has an overlap ratio of 1 and can neither
precede nor follow that turn: it is dropped, and the next turn starts a new episode. If an episode ends because the
next turn would exceed a limit, its odd last turn begins the next episode.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf

from sdiareward.dataset_builder.episodes import SkipError

from .settings import TurnSettings


@dataclass(frozen=True, order=True)
class Segment:
    """A span of one speaker, in seconds from the start of the recording."""

    start_s: float
    end_s: float
    speaker: str

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True)
class SpokenTurn(Segment):
    is_after_break: bool = False  # Speech before this turn was dropped, so it begins an episode.


@dataclass(frozen=True)
class SkippedSpan:
    start_s: float
    end_s: float
    kind: str
    reason: str


Episodes = list[tuple[SpokenTurn, ...]]


def form_episodes(
    segments: Iterable[Segment], speech: Sequence[tuple[float, float]], settings: TurnSettings
) -> tuple[Episodes, list[SkippedSpan]]:
    """Return the episodes of a diarized recording and the skipped spans; raise `SkipError` for one speaker."""
    spoken = intersect(segments, speech)
    speakers = find_two_speakers(spoken)
    merged, skipped = merge_turns(spoken, speakers, settings)
    turns, crowded = drop_crowded_turns(merged, spoken, speakers, settings)
    episodes, skipped_turns = group_episodes(turns, settings)
    return episodes, [*skipped, *crowded, *skipped_turns]


def intersect(segments: Iterable[Segment], speech: Sequence[tuple[float, float]]) -> list[Segment]:
    """Return the parts of diarized segments that are in speech, sorted by time."""
    parts = []
    first = 0
    for segment in sorted(segments):
        while first < len(speech) and speech[first][1] <= segment.start_s:
            first += 1
        for start_s, end_s in speech[first:]:
            if start_s >= segment.end_s:
                break
            parts.append(Segment(max(start_s, segment.start_s), min(end_s, segment.end_s), segment.speaker))
    return sorted(parts)


def find_two_speakers(segments: Sequence[Segment]) -> tuple[str, str]:
    """Return the two speakers with the most speech, in descending order."""
    speech_s: dict[str, float] = {}
    for segment in segments:
        speech_s[segment.speaker] = speech_s.get(segment.speaker, 0.0) + segment.duration_s
    if len(speech_s) < 2:
        raise SkipError("one_speaker", f"has {len(speech_s)} speaker; a dialogue needs two.")
    first, second, *_ = sorted(speech_s, key=lambda speaker: (-speech_s[speaker], speaker))
    return first, second


def merge_turns(
    segments: Iterable[Segment], speakers: tuple[str, str], settings: TurnSettings
) -> tuple[list[SpokenTurn], list[SkippedSpan]]:
    """Merge consecutive segments of one speaker into turns; return the turns and the skipped spans."""
    turns: list[SpokenTurn] = []
    skipped = []
    is_after_break = False
    segments = sorted(segments)
    of_two = _unite(segment for segment in segments if segment.speaker in speakers)
    for segment in segments:
        last = turns[-1] if turns else None
        if segment.duration_s < settings.min_segment_s:
            skipped.append(_skip(segment, "short_segment", f"lasts less than {settings.min_segment_s} s."))
        elif segment.speaker not in speakers:
            skipped.append(_skip(segment, "other_speaker", f"{segment.speaker} is not one of the two main speakers."))
            is_after_break |= segment.duration_s - _measure_shared(segment, of_two) >= settings.min_segment_s
        elif last is not None and last.speaker != segment.speaker and segment.end_s <= last.end_s:
            skipped.append(_skip(segment, "overlap", f"is inside a turn of {last.speaker}."))
            is_after_break = True
        else:
            longest_s = inf if settings.max_pause_s is None else settings.max_pause_s
            is_after_break |= last is not None and segment.start_s - last.end_s > longest_s
            if last is not None and last.speaker == segment.speaker and not is_after_break:
                turns[-1] = replace(last, end_s=max(last.end_s, segment.end_s))
            else:
                turns.append(SpokenTurn(segment.start_s, segment.end_s, segment.speaker, is_after_break))
            is_after_break = False
    return turns, skipped


def drop_crowded_turns(
    turns: Iterable[SpokenTurn], segments: Iterable[Segment], speakers: tuple[str, str], settings: TurnSettings
) -> tuple[list[SpokenTurn], list[SkippedSpan]]:
    """Drop turns during which others speak too long; return the kept turns and the skipped spans."""
    kept: list[SpokenTurn] = []
    skipped = []
    is_after_break = False
    others = _unite(segment for segment in segments if segment.speaker not in speakers)
    for turn in turns:
        share = _measure_shared(turn, others) / turn.duration_s
        # Times are sums of floats, so a tenth is not exact.
        if share > settings.max_others_in_turn + 1e-9:
            reason = f"others speak in {share:.1%} of the turn; the limit is {settings.max_others_in_turn:.0%}."
            skipped.append(_skip(turn, "other_speakers", reason))
            is_after_break = True
            continue
        kept.append(replace(turn, is_after_break=turn.is_after_break or is_after_break))
        is_after_break = False
    return kept, skipped


def _unite(segments: Iterable[Segment]) -> list[tuple[float, float]]:
    """Return the time covered by segments, as disjoint, sorted spans."""
    union: list[tuple[float, float]] = []
    for segment in sorted(segments):
        if union and segment.start_s <= union[-1][1]:
            union[-1] = union[-1][0], max(segment.end_s, union[-1][1])
        else:
            union.append((segment.start_s, segment.end_s))
    return union


def _measure_shared(segment: Segment, spans: Sequence[tuple[float, float]]) -> float:
    """Return the seconds that a segment shares with disjoint, sorted spans."""
    shared_s = 0.0
    for start_s, end_s in spans[max(bisect(spans, (segment.start_s, inf)) - 1, 0) :]:
        if start_s >= segment.end_s:
            break
        shared_s += max(0.0, min(end_s, segment.end_s) - max(start_s, segment.start_s))
    return shared_s


def group_episodes(turns: Iterable[SpokenTurn], settings: TurnSettings) -> tuple[Episodes, list[SkippedSpan]]:
    """Group turns into episodes by the rules above; return episodes and skipped spans."""
    episodes: Episodes = []
    skipped: list[SkippedSpan] = []
    current: list[SpokenTurn] = []

    def close(is_last_kept: bool = False) -> None:
        """End an episode; an odd last turn begins the next one or is skipped."""
        even = len(current) // 2 * 2
        episodes.extend([tuple(current[:even])] if even else [])
        del current[:even]
        if current and not (is_last_kept and even):
            skipped.append(_skip(current.pop(), "odd_turn", "has no answer in its episode."))

    def is_full(turn: SpokenTurn) -> bool:
        is_long = bool(current) and turn.end_s - current[0].start_s > settings.max_episode_s
        return is_long or len(current) == settings.max_turns

    for turn in turns:
        if turn.duration_s > settings.max_turn_s:
            reason = f"lasts {turn.duration_s:.1f} s; the limit is {settings.max_turn_s} s."
            skipped.append(_skip(turn, "long_turn", reason))
            close()
            continue
        if current and _is_boundary(current[-1], turn, settings):
            close()
        if is_full(turn):
            close(is_last_kept=True)
        if is_full(turn):
            close()
        current.append(turn)
    close()
    return episodes, sorted(skipped, key=lambda span: (span.start_s, span.end_s))


def _is_boundary(last: SpokenTurn, turn: SpokenTurn, settings: TurnSettings) -> bool:
    if turn.is_after_break or turn.speaker == last.speaker:
        return True
    interval_s = turn.start_s - last.end_s
    if interval_s >= 0:
        return interval_s < settings.min_interval_s
    shared_s = min(turn.end_s, last.end_s) - max(turn.start_s, last.start_s)
    return shared_s >= settings.split_overlap * min(turn.duration_s, last.duration_s)


def split_at_silent_turns(
    turns: Sequence[SpokenTurn], texts: Sequence[str]
) -> tuple[list[tuple[tuple[SpokenTurn, str], ...]], list[SkippedSpan]]:
    """Split an episode at turns without words; return the pieces and the skipped spans."""
    pieces: list[list[tuple[SpokenTurn, str]]] = [[]]
    skipped = []
    for turn, text in zip(turns, texts, strict=True):
        if text.strip():
            pieces[-1].append((turn, text))
        else:
            skipped.append(_skip(turn, "empty_text", "no words were recognised."))
            pieces.append([])
    for piece in pieces:
        if len(piece) % 2:
            skipped.append(_skip(piece.pop()[0], "odd_turn", "has no answer, because adjacent turns have no words."))
    return [tuple(piece) for piece in pieces if piece], sorted(skipped, key=lambda span: span.start_s)


def _skip(segment: Segment, kind: str, reason: str) -> SkippedSpan:
    return SkippedSpan(segment.start_s, segment.end_s, kind, reason)
