import pytest

from sdiareward.dataset_builder.episodes import Episode, Part, Turn, TurnTimesError, compare_spans, validate_episode


def make_episode(*spans, audio="call.wav"):
    """Return an episode of turns of one recording, each `(start_s, end_s)` or `(start_s, end_s, audio)`."""
    parts = [Part(f"words {number}", *(span[2:] or [audio]), *span[:2]) for number, span in enumerate(spans)]
    turns = tuple(Turn(("user", "assistant")[number % 2], (part,)) for number, part in enumerate(parts))
    return Episode("e", "folder", "wild", "g", turns, "Unknown", "Unknown", "en", "CC0-1.0")


@pytest.mark.parametrize(
    ("spans", "named"),
    [
        ([(0.0, 3.2), (0.0, 3.2)], "turns 0 and 1 have 100%"),
        ([(0.0, None), (0.0, None)], "turns 0 and 1 have 100%"),
        ([(0.0, 3.2), (0.0, 3.2, "./folder/../call.wav")], "turns 0 and 1 have 100%"),
        ([(0.0, 3.2), (3.2, 5.0), (5.0, 6.0), (3.2, 5.0)], "turns 1 and 3 have 100%"),
        ([(0.0, 8.0), (2.0, 3.0)], "turns 0 and 1 have 100%"),
        ([(0.0, None), (2.0, 3.0)], "turns 0 and 1 have 100%"),
        ([(0.0, 4.0), (1.9, 5.0)], "turns 0 and 1 have 68%"),
        ([(3.2, 6.4), (0.0, 3.2)], "turn 1 begins 3.20 s before turn 0"),
        ([(3.2, 6.4), (0.0, 2.0, "other.wav"), (7.0, 8.0), (0.0, 3.2)], "turn 3 begins 3.20 s before turn 0"),
    ],
)
def test_turns_that_are_one_sound_or_run_backwards_are_refused_by_number(spans, named):
    with pytest.raises(TurnTimesError, match=named):
        validate_episode(make_episode(*spans))
    validate_episode(make_episode(*spans), is_broken=True)


@pytest.mark.parametrize(
    ("spans", "shares"),
    [
        ([(0.0, 3.2), (3.2, 6.4)], [0.0]),
        ([(0.0, 3.2), (3.2, None)], [0.0]),
        ([(0.0, 3.0), (2.5, None)], [1 / 6]),
        ([(0.0, 3.0), (2.0, 4.0)], [0.5]),
        ([(1.0, 1.5), (0.75, 1.125)], [1 / 3]),
        ([(0.0, None), (0.0, None, "other.wav")], []),
    ],
)
def test_turns_that_overlap_in_part_are_kept_and_measured(spans, shares):
    episode = make_episode(*spans)
    validate_episode(episode)
    assert [shared for _, _, shared, _ in compare_spans(episode)] == pytest.approx(shares)
