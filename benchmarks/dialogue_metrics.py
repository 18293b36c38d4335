"""Compare what a pipeline made of a recording with the truth: who spoke when, which words, which episodes.

Diarization errors come from `pyannote.metrics` and word errors from `jiwer`. No library counts episodes, roles and
turns with their words as the pipeline defines them.

Every function returns counts or seconds, so that recordings are pooled by adding up; `rates` turns sums into rates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple


Counts = dict[str, float]
TOLERANCE_S = 0.5
SOFT_AGREEMENT = 0.8
# Total width of the collar in seconds as `pyannote.metrics` wants it, half of it on each side of a boundary, and
# whether stretches where several people speak are skipped. The usual "collar 0.25 s" is 0.25 s on each side.
DIARIZATION_SCORINGS = {
    "collar_0.25": (0.5, False),
    "collar_0.25_skip_overlap": (0.5, True),
    "collar_0": (0.0, False),
    "collar_0_skip_overlap": (0.0, True),
}


class Span(NamedTuple):
    """Somebody speaks: a label of the speaker or the role, a time, and the words where they matter."""

    speaker: str
    start_s: float
    end_s: float
    text: str = ""


Episode = Sequence[Span]


def diarization_errors(reference: Iterable[Span], hypothesis: Iterable[Span], duration_s: float) -> Counts:
    """Return seconds of missed speech, false alarm, confusion and of the reference's speech, by scoring.

    Args:
        reference (`Iterable[Span]`): The truth.
        hypothesis (`Iterable[Span]`): What was found; its labels are mapped to the truth's as fits best.
        duration_s (`float`): Length of the recording, all of which is scored.

    Returns:
        `dict[str, float]`: `SCORING/missed_s`, `SCORING/false_alarm_s`, `SCORING/confusion_s` and `SCORING/total_s`
        for each of `DIARIZATION_SCORINGS`.
    """
    from pyannote.core import Segment, Timeline
    from pyannote.metrics.diarization import DiarizationErrorRate

    annotations = _annotation(reference), _annotation(hypothesis)
    everything = Timeline([Segment(0.0, duration_s)])
    counts: Counts = {}
    for name, (collar_s, skip_overlap) in DIARIZATION_SCORINGS.items():
        metric = DiarizationErrorRate(collar=collar_s, skip_overlap=skip_overlap)
        found = metric(*annotations, uem=everything, detailed=True)
        parts = {"missed_s": "missed detection", "false_alarm_s": "false alarm", "confusion_s": "confusion"}
        counts |= {f"{name}/{key}": float(found[title]) for key, title in (parts | {"total_s": "total"}).items()}
    return counts


def _annotation(spans: Iterable[Span]) -> Any:
    from pyannote.core import Annotation, Segment

    annotation = Annotation()
    for number, span in enumerate(spans):
        annotation[Segment(span.start_s, span.end_s), number] = span.speaker
    return annotation


def count_matches(true_s: Sequence[float], found_s: Sequence[float], tolerance_s: float = TOLERANCE_S) -> int:
    """Return how many times can be matched one to one within `tolerance_s` (inclusive).

    Args:
        true_s (`Sequence[float]`): Times, in any order.
        found_s (`Sequence[float]`): Times, in any order.
        tolerance_s (`float`, *optional*, defaults to 0.5): Largest distance.
    """
    true, found, matches = sorted(true_s), sorted(found_s), 0
    # Taking the earliest candidate each time never costs a later match.
    while true and found:
        # Times on a grid of 10 ms are not exact in binary.
        if abs(true[0] - found[0]) <= tolerance_s + 0.001:
            matches += 1
            true, found = true[1:], found[1:]
        elif true[0] < found[0]:
            true = true[1:]
        else:
            found = found[1:]
    return matches


def boundary_counts(true: Sequence[Span], found: Sequence[Span]) -> Counts:
    """Return how many boundaries of turns there are, were found, and match; beginnings and ends match their own kind.

    Args:
        true (`Sequence[Span]`): The true turns.
        found (`Sequence[Span]`): The turns found.
    """
    starts, ends = (
        count_matches([getattr(t, edge) for t in true], [getattr(t, edge) for t in found])
        for edge in ("start_s", "end_s")
    )
    return {"boundaries_true": 2 * len(true), "boundaries_found": 2 * len(found), "boundaries_matched": starts + ends}


@lru_cache(maxsize=1)
def _normalizer() -> Any:
    import jiwer

    return jiwer.Compose(
        [
            jiwer.ToLowerCase(),
            jiwer.SubstituteRegexes({r"[-\u2013\u2014\u2026/]|\.\.+": " "}),
            jiwer.RemovePunctuation(),
            jiwer.RemoveMultipleSpaces(),
            jiwer.Strip(),
        ]
    )


def normalize(text: str) -> str:
    """Return lower-case words without punctuation; a dash or an ellipsis separates words. Nothing else is changed.

    Fillers are kept, numbers and abbreviations stay as they are written.
    """
    return str(_normalizer()(text))


def word_errors(reference: str, hypothesis: str) -> Counts:
    """Return words of the reference, and substitutions, deletions and insertions, after `normalize`.

    Args:
        reference (`str`): What was said.
        hypothesis (`str`): What was recognised.
    """
    import jiwer

    truth, words = normalize(reference), normalize(hypothesis)
    if not truth:
        return {"words": 0, "substitutions": 0, "deletions": 0, "insertions": len(words.split())}
    found = jiwer.process_words(truth, words)
    return {
        "words": len(truth.split()),
        "substitutions": found.substitutions,
        "deletions": found.deletions,
        "insertions": found.insertions,
    }


def turn_word_errors(true: Sequence[Span], found: Sequence[Span]) -> tuple[Counts, Counts]:
    """Return the word errors of turns, each found turn compared with the true one it shares most time with.

    Args:
        true (`Sequence[Span]`): Turns with their words.
        found (`Sequence[Span]`): Turns with their words.

    Returns:
        `tuple`: Over all turns (the words of a true turn without a partner are deletions, of a found one insertions);
        over those true turns whose partner lies within 0.5 s of them on both sides, where only recognition counts.
    """
    everything: Counter[str] = Counter()
    aligned: Counter[str] = Counter()
    partners = _partners(true, found)
    for index, turn in enumerate(true):
        own = [other for other, partner in zip(found, partners, strict=True) if partner == index]
        everything.update(word_errors(turn.text, " ".join(other.text for other in own)))
        if len(own) == 1 and _is_near(turn, own[0]):
            aligned.update(word_errors(turn.text, own[0].text))
    for other, partner in zip(found, partners, strict=True):
        if partner is None:
            everything.update(word_errors("", other.text))
    return dict(everything), dict(aligned)


def _partners(true: Sequence[Span], found: Sequence[Span]) -> list[int | None]:
    """Return for each found turn the index of the true one that it shares most time with."""
    partners: list[int | None] = []
    for other in found:
        shared = [_shared_s(turn, other) for turn in true]
        best = max(range(len(true)), key=shared.__getitem__, default=None)
        partners.append(best if best is not None and shared[best] > 0 else None)
    return partners


def _shared_s(one: Span, other: Span) -> float:
    return max(0.0, min(one.end_s, other.end_s) - max(one.start_s, other.start_s))


def _is_near(one: Span, other: Span) -> bool:
    return all(count_matches([getattr(one, e)], [getattr(other, e)]) for e in ("start_s", "end_s"))


def episode_counts(true: Sequence[Episode], found: Sequence[Episode]) -> Counts:
    """Return how many episodes and turns there are, were found, and match.

    An episode is matched by one with the same number of turns, of the same roles, each within 0.5 s on both sides. It
    is matched softly where `agreement` reaches 0.8; and a turn or an exchange (two consecutive turns) of an episode
    where any episode found has the same within 0.5 s.

    Args:
        true (`Sequence[Episode]`): Turns with roles, by episode.
        found (`Sequence[Episode]`): Likewise.
    """
    turns = [[(turn,) for episode in side for turn in episode] for side in (true, found)]
    exchanges = [[pair for episode in side for pair in pairwise(episode)] for side in (true, found)]
    return {
        "episodes_true": len(true),
        "episodes_found": len(found),
        "episodes_matched": _num_matched(true, found, with_roles=True),
        "episodes_matched_softly": _num_soft(true, found),
        "turns_true": len(turns[0]),
        "turns_found": len(turns[1]),
        "turns_matched": _num_matched(*turns, with_roles=False),
        "exchanges_true": len(exchanges[0]),
        "exchanges_found": len(exchanges[1]),
        "exchanges_matched": _num_matched(*exchanges, with_roles=False),
    }


def _num_matched(true: Sequence[Episode], found: Sequence[Episode], *, with_roles: bool) -> int:
    """Count one-to-one matches; a match is so close that the first one is the only one."""
    rest, matches = list(found), 0
    for one in true:
        for index, other in enumerate(rest):
            is_same = len(one) == len(other) and all(map(_is_near, one, other))
            if is_same and (not with_roles or [t.speaker for t in one] == [t.speaker for t in other]):
                del rest[index]
                matches += 1
                break
    return matches


def _num_soft(true: Sequence[Episode], found: Sequence[Episode]) -> int:
    # Above one half no two episodes can agree with the same one.
    return sum(any(agreement(one, other) >= SOFT_AGREEMENT for other in found) for one in true)


def agreement(true: Episode, found: Episode) -> float:
    """Return the time that two episodes give to the same speaker over the time that either gives to anyone.

    Roles may be exchanged: an episode that begins one turn late still has the same two people.

    Args:
        true (`Episode`): Turns with roles.
        found (`Episode`): Likewise.

    Returns:
        `float`: 0 (nothing in common) to 1 (the same).
    """
    roles = sorted({turn.speaker for turn in (*true, *found)})
    shared_s = {
        (a, b): sum(_shared_s(one, other) for one in true if one.speaker == a for other in found if other.speaker == b)
        for a in roles
        for b in roles
    }
    straight = sum(shared_s[role, role] for role in roles)
    crossed = sum(shared_s[a, b] for a, b in zip(roles, reversed(roles), strict=True))
    best = max(straight, crossed)
    return best / (sum(turn.end_s - turn.start_s for turn in (*true, *found)) - best)


def purity_counts(true_speech: Sequence[Span], found: Sequence[Episode]) -> Counts:
    """Return the seconds of speech in the found turns, and how many are of the person who mostly has that role.

    Args:
        true_speech (`Sequence[Span]`): Stretches of speech of all speakers.
        found (`Sequence[Episode]`): Episodes found.
    """
    in_turns_s = of_role_s = 0.0
    for episode in found:
        for role in {turn.speaker for turn in episode}:
            by_speaker: dict[str, float] = {}
            for turn in episode:
                for speech in true_speech if turn.speaker == role else ():
                    by_speaker[speech.speaker] = by_speaker.get(speech.speaker, 0.0) + _shared_s(speech, turn)
            in_turns_s += sum(by_speaker.values())
            of_role_s += max(by_speaker.values(), default=0)
    return {"in_turns_s": in_turns_s, "of_role_s": of_role_s}


def rates(sums: Mapping[str, float]) -> dict[str, float | None]:
    """Turn pooled counts into rates; None where there is nothing to divide by.

    Args:
        sums (`Mapping[str, float]`): Sums of what the other functions return; word errors under the prefixes
            `recording/`, `turn/` and `aligned_turn/`.

    Returns:
        `dict`: `diarization_error_rate/SCORING` and `word_error_rate/KIND` (lower is better; of `turn` also the part
        that is insertions); precision, recall and F1 of boundaries, recall and precision of episodes, turns and
        exchanges, and `role_purity` (higher is better).
    """
    result: dict[str, float | None] = {}
    for name in DIARIZATION_SCORINGS:
        if f"{name}/total_s" in sums:
            errors = sum(sums[f"{name}/{kind}"] for kind in ("missed_s", "false_alarm_s", "confusion_s"))
            result[f"diarization_error_rate/{name}"] = _ratio(errors, sums[f"{name}/total_s"])
    for kind in ("recording", "turn", "aligned_turn"):
        errors = sum(sums.get(f"{kind}/{error}", 0) for error in ("substitutions", "deletions", "insertions"))
        result[f"word_error_rate/{kind}"] = _ratio(errors, sums.get(f"{kind}/words", 0))
    # Words too many: a turn outside of the true episodes, or a recogniser that repeats itself.
    result["word_error_rate/turn_insertions"] = _ratio(sums.get("turn/insertions", 0), sums.get("turn/words", 0))
    matched = sums["boundaries_matched"]
    result["boundary_precision"] = _ratio(matched, sums["boundaries_found"])
    result["boundary_recall"] = _ratio(matched, sums["boundaries_true"])
    result["boundary_f1"] = _ratio(2 * matched, sums["boundaries_true"] + sums["boundaries_found"])
    for unit in ("episodes", "turns", "exchanges"):
        result[f"{unit}_recovered"] = _ratio(sums[f"{unit}_matched"], sums[f"{unit}_true"])
        result[f"{unit}_right"] = _ratio(sums[f"{unit}_matched"], sums[f"{unit}_found"])
    result["episodes_recovered_softly"] = _ratio(sums["episodes_matched_softly"], sums["episodes_true"])
    result["role_purity"] = _ratio(sums["of_role_s"], sums["in_turns_s"])
    return result


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
