"""Who spoke when to episodes. A segment is written `a0-5`: speaker, start, end."""

import re

import pytest

from sdiareward.dataset_builder.pipeline.settings import TurnSettings
from sdiareward.dataset_builder.pipeline.turns import (
    Segment,
    SkipError,
    SpokenTurn,
    find_two_speakers,
    form_episodes,
    intersect,
    split_at_silent_turns,
)


def parse(text):
    found = re.findall(r"([a-z])([\d.]+)-([\d.]+)", text)
    return [Segment(float(start), float(end), speaker) for speaker, start, end in found]


def show(spans):
    return " ".join(f"{span.speaker}{span.start_s:g}-{span.end_s:g}" for span in spans)


def alternate(count, duration_s, pause_s=0.0):
    starts = [index * (duration_s + pause_s) for index in range(count)]
    return " ".join(f"{'ab'[n % 2]}{start:g}-{start + duration_s:g}" for n, start in enumerate(starts))


def test_segments_are_cut_to_the_speech_and_keep_their_overlaps():
    found = intersect(parse("a0-5 b4-9 a9.5-9.9"), [(1, 2), (3, 4.5), (8, 9.2)])
    assert show(found) == "a1-2 a3-4.5 b4-4.5 b8-9"
    # A short segment after a long one.
    assert show(intersect(parse("a0-100 b1-2 b50-51"), [(0, 10), (40, 60)])) == "a0-10 b1-2 a40-60 b50-51"


def test_the_two_speakers_with_the_most_speech_are_kept():
    assert find_two_speakers(parse("x0-4 y4-14 z14-15 x15-22")) == ("x", "y")
    with pytest.raises(SkipError, match="1 speaker") as dropped:
        find_two_speakers(parse("a0-5 a6-9"))
    assert dropped.value.kind == "one_speaker"


TALK = "a0-10 b10-20 a20-30 b30-40 a40-50 b50-60"
CASES = [
    # Consecutive segments of one speaker are a turn, also around a sliver of the other.
    ("a0-1 a1.5-3 b3.2-4 b4.1-4.2 a4.3-5", {}, ["a0-3 b3.2-4"], ["short_segment 4.1", "odd_turn 4.3"]),
    # A third speaker ends an episode, also where the speakers would alternate.
    ("a0-1 b1-2 c2-2.5 b3-4 a4-5", {}, ["a0-1 b1-2", "b3-4 a4-5"], ["other_speaker 2"]),
    ("a0-2 c2-3 b3-5", {}, [], ["other_speaker 2", "odd_turn 0", "odd_turn 3"]),
    # A segment inside a turn of the other is dropped and ends an episode.
    ("a0-8 b5-6 a8.2-10 b10-12", {}, ["a8.2-10 b10-12"], ["overlap 5", "odd_turn 0"]),
    # Others may speak in a tenth of a turn, at the same time once; more drops that turn alone, and its answer begins
    # an episode.
    (f"{TALK} c22-22.5 d23-23.5", {}, [TALK], ["other_speaker 22", "other_speaker 23"]),
    (f"{TALK} c22-23 d22-23", {}, [TALK], ["other_speaker 22", "other_speaker 22"]),
    (
        f"{TALK} c22-22.5 d23-23.6",
        {},
        ["a0-10 b10-20", "b30-40 a40-50"],
        ["other_speaker 22", "other_speaker 23", "other_speakers 20", "odd_turn 50"],
    ),
    # A word of a third speaker under a turn does not part it, and one in a pause does.
    ("a0-5 c3-3.4 a5.1-9 b9-12", {}, ["a0-9 b9-12"], ["other_speaker 3"]),
    ("a0-5 c4.9-5.3 a5.4-9 b9-12", {}, ["a5.4-9 b9-12"], ["other_speaker 4.9", "odd_turn 0"]),
    # An overlap of a tenth of the shorter turn starts an episode.
    ("a0-5 b4.75-9.75", {}, ["a0-5 b4.75-9.75"], []),
    ("a0-5 b4.5-9.5 a20-22", {}, ["b4.5-9.5 a20-22"], ["odd_turn 0"]),
    # At most 90 s from the first start to the last end; the odd last turn begins the next episode.
    (alternate(6, 15), {}, [alternate(6, 15)], []),
    (alternate(6, 15, 0.1), {}, ["a0-15 b15.1-30.1 a30.2-45.2 b45.3-60.3", "a60.4-75.4 b75.5-90.5"], []),
    # At most 16 turns.
    (alternate(19, 1), {}, [alternate(16, 1), "a16-17 b17-18"], ["odd_turn 18"]),
    ("a0-40 b40-80 a80-100 b100-110", {}, ["a0-40 b40-80", "a80-100 b100-110"], []),
    ("a0-1 b1-2 a2-62.5 b63-64 a64-65", {}, ["a0-1 b1-2", "b63-64 a64-65"], ["long_turn 2"]),
    ("a0-1 a3.5-4 b4-5 a7.5-8", {"max_pause_s": 2.0}, ["a3.5-4 b4-5"], ["odd_turn 0", "odd_turn 7.5"]),
    (alternate(4, 1, 0.25), {"min_interval_s": 0.25}, [alternate(4, 1, 0.25)], []),
    (alternate(4, 1, 0.25), {"min_interval_s": 0.3}, [], [f"odd_turn {start}" for start in (0, 1.25, 2.5, 3.75)]),
]


@pytest.mark.parametrize(("items", "rules", "episodes", "dropped"), CASES)
def test_segments_become_episodes_and_the_rest_is_skipped_with_its_times(items, rules, episodes, dropped):
    found, skipped = form_episodes(parse(items), [(0.0, 1e6)], TurnSettings(**rules))
    assert list(map(show, found)) == episodes
    assert [f"{span.kind} {span.start_s:g}" for span in skipped] == dropped


def test_an_episode_is_split_at_turns_without_words():
    turns = [SpokenTurn(*vars(segment).values()) for segment in parse(alternate(7, 1))]
    episodes, cuts = split_at_silent_turns(turns, ["t0", "t1", "t2", " ", "t4", "t5", "t6"])
    assert episodes == [((turns[0], "t0"), (turns[1], "t1")), ((turns[4], "t4"), (turns[5], "t5"))]
    assert [(cut.start_s, cut.kind) for cut in cuts] == [(2, "odd_turn"), (3, "empty_text"), (6, "odd_turn")]
