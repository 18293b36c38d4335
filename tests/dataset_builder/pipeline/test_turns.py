import pytest

from sdiareward.dataset_builder.pipeline.settings import TurnSettings
from sdiareward.dataset_builder.pipeline.turns import (
    Segment,
    SkipError,
    SpokenTurn,
    drop_crowded_turns,
    find_two_speakers,
    group_episodes,
    intersect,
    merge_turns,
    split_at_silent_turns,
)


RULES = TurnSettings()


def segments(*items):
    return [Segment(start, end, speaker) for start, end, speaker in items]


def turns_of(*items):
    return merge_turns(segments(*items), ("a", "b"), RULES)


def spans(turns):
    return [(turn.start_s, turn.end_s, turn.speaker) for turn in turns]


def kinds(cuts):
    return [(cut.start_s, cut.end_s, cut.kind) for cut in cuts]


def alternating(count, duration_s, pause_s=0.0, start_s=0.0):
    step_s = duration_s + pause_s
    starts = [start_s + index * step_s for index in range(count)]
    return [SpokenTurn(start, start + duration_s, "ab"[index % 2]) for index, start in enumerate(starts)]


def test_segments_are_cut_to_the_speech_and_keep_their_overlaps():
    found = intersect(segments((0, 5, "a"), (4, 9, "b"), (9.5, 9.9, "a")), [(1, 2), (3, 4.5), (8, 9.2)])
    assert spans(found) == [(1, 2, "a"), (3, 4.5, "a"), (4, 4.5, "b"), (8, 9, "b")]
    # A short segment after a long one.
    found = intersect(segments((0, 100, "a"), (1, 2, "b"), (50, 51, "b")), [(0, 10), (40, 60)])
    assert spans(found) == [(0, 10, "a"), (1, 2, "b"), (40, 60, "a"), (50, 51, "b")]


def test_the_two_speakers_with_the_most_speech_are_kept():
    assert find_two_speakers(segments((0, 4, "x"), (4, 14, "y"), (14, 15, "z"), (15, 22, "x"))) == ("x", "y")
    with pytest.raises(SkipError, match="1 speaker") as dropped:
        find_two_speakers(segments((0, 5, "a"), (6, 9, "a")))
    assert dropped.value.kind == "one_speaker"


def kept_of(*items):
    spoken = segments(*items)
    turns, _ = merge_turns(spoken, ("a", "b"), RULES)
    return drop_crowded_turns(turns, spoken, ("a", "b"), RULES)


def test_others_may_speak_in_a_tenth_of_a_turn_and_more_drops_that_turn_alone():
    talk = [(0, 10, "a"), (10, 20, "b"), (20, 30, "a"), (30, 40, "b"), (40, 50, "a"), (50, 60, "b")]
    turns, cuts = kept_of(*talk, (22, 22.5, "c"), (23, 23.5, "d"))
    assert spans(turns) == talk and not cuts
    turns, cuts = kept_of(*talk, (22, 22.5, "c"), (23, 23.6, "d"))
    assert spans(turns) == talk[:2] + talk[3:]
    assert kinds(cuts) == [(20, 30, "other_speakers")]
    assert cuts[0].reason == "other speakers speak in 11.0% of the turn; at most 10% is allowed."
    episodes, odd = group_episodes(turns, RULES)
    # The answer to the turn that is gone begins an episode: it is not joined to the one before.
    assert [spans(episode) for episode in episodes] == [talk[:2], talk[3:5]]
    assert kinds(odd) == [(50, 60, "odd_turn")]
    # Others who speak at the same time count once.
    turns, cuts = kept_of((0, 10, "a"), (2, 3, "c"), (2, 3, "d"))
    assert spans(turns) == [(0, 10, "a")] and not cuts


def test_a_word_of_a_third_speaker_under_a_turn_does_not_part_it_and_one_in_a_pause_does():
    turns, cuts = turns_of((0, 5, "a"), (3, 3.4, "c"), (5.1, 9, "a"), (9, 12, "b"))
    assert spans(turns) == [(0, 9, "a"), (9, 12, "b")] and not any(turn.is_after_break for turn in turns)
    assert kinds(cuts) == [(3, 3.4, "other_speaker")]
    turns, _ = turns_of((0, 5, "a"), (4.9, 5.3, "c"), (5.4, 9, "a"))
    assert [turn.is_after_break for turn in turns] == [False, True]


def show(spans):
    return " ".join(f"{span.speaker}{span.start_s:g}-{span.end_s:g}" for span in spans)


@pytest.mark.parametrize(
    ("items", "turns", "dropped", "episodes", "odd"),
    [
        # Consecutive segments of one speaker are a turn, also around a sliver of the other.
        ("a0-1 a1.5-3 b3.2-4 b4.1-4.2 a4.3-5", "a0-3 b3.2-4 a4.3-5", ["short_segment"], ["a0-3 b3.2-4"], [4.3]),
        ("a0-1 b1-1.1 a1.1-3", "a0-3", ["short_segment"], [], [0]),
        # A third speaker ends an episode, also where the speakers would alternate.
        ("a0-1 b1-2 c2-3 b3-4 a4-5", "a0-1 b1-2 b3-4 a4-5", ["other_speaker"], ["a0-1 b1-2", "b3-4 a4-5"], []),
        ("a0-1 c1-2 b2-3", "a0-1 b2-3", ["other_speaker"], [], [0, 2]),
        # A segment inside a turn of the other is dropped and ends an episode.
        ("a0-8 b5-6 a8.2-10 b10-12", "a0-8 a8.2-10 b10-12", ["overlap"], ["a8.2-10 b10-12"], [0]),
    ],
)
def test_segments_become_turns_and_episodes(items, turns, dropped, episodes, odd):
    found, cuts = turns_of(*((*map(float, item[1:].split("-")), item[0]) for item in items.split()))
    assert show(found) == turns
    assert [cut.kind for cut in cuts] == dropped
    grouped, cuts = group_episodes(found, RULES)
    assert list(map(show, grouped)) == episodes
    assert [(cut.kind, cut.start_s) for cut in cuts] == [("odd_turn", start_s) for start_s in odd]


@pytest.mark.parametrize(("start_s", "is_split"), [(4.75, False), (4.5, True), (5.0, False), (7.0, False)])
def test_an_overlap_of_a_tenth_of_the_shorter_turn_starts_a_new_episode(start_s, is_split):
    turns = [SpokenTurn(0, 5, "a"), SpokenTurn(start_s, start_s + 5, "b"), SpokenTurn(20, 22, "a")]
    episodes, cuts = group_episodes(turns, RULES)
    first_two, last_two = tuple(turns[:2]), tuple(turns[1:])
    assert episodes == [last_two if is_split else first_two]
    assert kinds(cuts) == [(0, 5, "odd_turn") if is_split else (20, 22, "odd_turn")]


def test_an_episode_lasts_at_most_90_seconds_from_first_start_to_last_end():
    exact = alternating(6, 15.0, start_s=7.0)
    assert [len(episode) for episode in group_episodes(exact, RULES)[0]] == [6]
    longer = alternating(6, 15.0, pause_s=0.1, start_s=7.0)
    episodes, cuts = group_episodes(longer, RULES)
    assert [spans(episode) for episode in episodes] == [spans(longer[:4]), spans(longer[4:])]
    assert not cuts


@pytest.mark.parametrize(
    ("num_turns", "duration_s", "sizes", "odd"),
    [
        (19, 1.0, [16, 2], [18]),
        # An odd turn at a cap begins the next episode.
        (8, 30.0, [2, 2, 2, 2], []),
        # Two turns are longer than an episode.
        (3, 46.0, [], [0, 46, 92]),
    ],
)
def test_an_episode_has_at_most_16_turns_and_an_odd_last_one_is_dropped(num_turns, duration_s, sizes, odd):
    turns = alternating(num_turns, duration_s)
    episodes, cuts = group_episodes(turns, RULES)
    assert [turn for episode in episodes for turn in episode] == [turn for turn in turns if turn.start_s not in odd]
    assert [len(episode) for episode in episodes] == sizes
    assert kinds(cuts) == [(start_s, start_s + duration_s, "odd_turn") for start_s in odd]


def test_a_turn_of_more_than_60_seconds_is_dropped_and_splits():
    spans = ((0, 1), (1, 2), (2, 62.5), (63, 64), (64, 124))
    turns = [SpokenTurn(*span, "ab"[index % 2]) for index, span in enumerate(spans)]
    episodes, cuts = group_episodes(turns, RULES)
    assert episodes == [tuple(turns[:2]), tuple(turns[3:])]
    assert kinds(cuts) == [(2, 62.5, "long_turn")]


def test_an_optional_longest_pause_splits_turns_and_episodes():
    rules = TurnSettings(max_pause_s=2.0)
    turns, _ = merge_turns(segments((0, 1, "a"), (3.5, 4, "a"), (4, 5, "b"), (7.5, 8, "a")), ("a", "b"), rules)
    assert spans(turns) == [(0, 1, "a"), (3.5, 4, "a"), (4, 5, "b"), (7.5, 8, "a")]
    episodes, cuts = group_episodes(turns, rules)
    assert episodes == [(turns[1], turns[2])]
    assert kinds(cuts) == [(0, 1, "odd_turn"), (7.5, 8, "odd_turn")]


def test_a_minimum_interval_splits_turns_that_follow_too_soon():
    turns = alternating(4, 1.0, pause_s=0.25)
    assert len(group_episodes(turns, TurnSettings(min_interval_s=0.25))[0]) == 1
    assert group_episodes(turns, TurnSettings(min_interval_s=0.3))[0] == []


def test_an_episode_is_split_at_turns_without_words():
    turns = alternating(7, 1.0)
    episodes, cuts = split_at_silent_turns(turns, ["t0", "t1", "t2", " ", "t4", "t5", "t6"])
    assert episodes == [((turns[0], "t0"), (turns[1], "t1")), ((turns[4], "t4"), (turns[5], "t5"))]
    assert kinds(cuts) == [(2, 3, "odd_turn"), (3, 4, "empty_text"), (6, 7, "odd_turn")]


def test_every_second_is_in_an_episode_or_skipped():
    found = "a0-4 b4-6 a5-5.5 c7-9 a9-12 b11-14 a15-80 b81-83"
    items = [(*map(float, item[1:].split("-")), item[0]) for item in found.split()]
    turns, dropped = turns_of(*items)
    episodes, cuts = group_episodes(turns, RULES)
    kept_s = sum(turn.duration_s for episode in episodes for turn in episode)
    assert kept_s + sum(cut.end_s - cut.start_s for cut in dropped + cuts) == sum(e - s for s, e, _ in items)
