"""Training pairs cut to some of their exchanges."""

import numpy as np
import pytest

from sdiareward.perturbations.decoded_pairs import Turn
from sdiareward.training.arguments import TrainArguments
from sdiareward.training.augmentation import AugmentationSettings, AugmentedPairs, augment
from sdiareward.training.excerpts import draw_excerpt


def side(*answers, system=False):
    turns = [{"role": "system", "text": "be kind"}] if system else []
    for number, answer in enumerate(answers):
        turns += [{"role": "user", "text": f"question {number}"}, {"role": "assistant", "text": answer}]
    return turns


def draws(chosen, rejected, num=200):
    return [draw_excerpt(chosen, rejected, np.random.default_rng(seed)) for seed in range(num)]


def test_an_excerpt_is_each_run_of_whole_exchanges_but_the_whole():
    drawn = {tuple(kept) for kept in draws(side("a", "b", "c"), side("x", "y", "z"))}
    assert drawn == {(0, 1), (2, 3), (4, 5), (0, 1, 2, 3), (2, 3, 4, 5)}


def test_the_system_prompt_stays_at_the_head():
    drawn = {tuple(kept) for kept in draws(side("a", "b", system=True), side("x", "y", system=True))}
    assert drawn == {(0, 1, 2), (0, 3, 4)}


def test_the_sides_differ_in_every_excerpt():
    drawn = {tuple(kept) for kept in draws(side("a", "b", "c"), side("a", "b", "y"))}
    assert drawn == {(4, 5), (2, 3, 4, 5)}
    assert set(draws(side("a", "b"), side("a", "b"), num=20)) == {None}


def spoken(turns, channel, uris):
    """Return turns as a build writes them: each side has bytes of its own."""
    return [
        turn
        | {"audio": {"bytes": f"{uri} {channel}".encode(), "path": f"{channel}-{number}.flac"}}
        | {"audio_ref": [{"uri": uri, "start_s": 0.5, "end_s": 1.0, "text": turn["text"]}]}
        for number, (turn, uri) in enumerate(zip(turns, uris, strict=True))
    ]


def test_one_recording_through_two_channels_is_no_difference():
    uris = ["sample:a", "sample:b", "sample:c", "sample:d"]
    chosen, rejected = spoken(side("a", "b"), "chosen", uris), spoken(side("a", "y"), "rejected", uris)
    assert set(map(tuple, draws(chosen, rejected))) == {(2, 3)}
    moved = spoken(side("a", "b"), "rejected", ["sample:a", "sample:x", "sample:c", "sample:d"])
    assert set(map(tuple, draws(chosen, moved))) == {(0, 1)}


@pytest.mark.parametrize("uri", ["synthetic:world", None])
def test_sides_that_differ_in_the_sound_alone_differ_in_all_turns(uri):
    chosen, rejected = (spoken(side("a", "b"), name, [uri] * 4) for name in ("chosen", "rejected"))
    assert set(map(tuple, draws(chosen, rejected))) == {(0, 1), (2, 3)}


@pytest.mark.parametrize("rejected", [side("x"), side("a", "b", "b"), side("a", "b")[::-1]])
def test_sides_of_one_exchange_or_of_other_roles_stay_whole(rejected):
    chosen = side("a") if len(rejected) == 2 else side("a", "b")
    assert set(draws(chosen, rejected, num=20)) == {None}


def test_turns_in_memory_are_cut_as_rows_are():
    def decode(turns):
        return [Turn(turn["role"], turn["text"], np.zeros(1, np.float32)) for turn in turns]

    chosen = decode(side("a", "b"))
    rejected = [*chosen[:3], Turn("assistant", "b", np.ones(1, np.float32))]
    assert set(map(tuple, draws(chosen, rejected))) == {(2, 3)}


@pytest.fixture
def pairs(tone_pairs):
    def double(row):
        """Two exchanges, whose answers differ between the sides."""
        return {
            name: [{**turn, "text": f"{turn['text']} {number}"} for number, turn in enumerate(row[name] * 2)]
            for name in ("chosen", "rejected")
        }

    return tone_pairs.map(double).add_column("pair_id", [f"p{row}" for row in range(4)])


def test_pairs_copies_and_attacks_are_cut_on_both_sides_alike(pairs):
    settings = AugmentationSettings(["gain"], hard_negatives=["shuffled"], excerpt_share=1.0)
    rows = AugmentedPairs(pairs, settings, 15.0)
    words = {}
    for number in range(len(rows)):
        row = rows[number]
        sides = [[str(message).split("line ")[1][:3] for message in row[name]] for name in ("chosen", "rejected")]
        words[row["pair_id"]] = sides
    for name, (chosen, rejected) in words.items():
        assert len(chosen) == len(rejected) == 2, name
        # The answer of the other exchange stands there.
        assert (chosen == rejected) != name.endswith("shuffled")
    assert {chosen[0][-1] for chosen, _ in words.values()} == {"0", "2"}


def test_a_share_of_the_pairs_is_cut_the_same_ones_every_time(pairs):
    lengths = [
        [
            len(AugmentedPairs(pairs, AugmentationSettings(excerpt_share=0.5, seed=seed))[row]["chosen"])
            for row in range(4)
        ]
        for seed in (0, 0, *range(1, 9))
    ]
    assert lengths[0] == lengths[1]
    assert 8 < sum(length == 2 for found in lengths[1:] for length in found) < 28
    assert augment(pairs, AugmentationSettings(seed=3), 15.0) is pairs


def test_a_share_out_of_range_is_an_error_when_it_is_parsed():
    with pytest.raises(ValueError, match="excerpt_share is 1.5; it must lie between 0 and 1"):
        TrainArguments("model", "data", excerpt_share=1.5)
