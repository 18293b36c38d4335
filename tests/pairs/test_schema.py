import copy

import pytest

from sdiareward.dataset_builder.episodes import Episode, Part, Turn, validate_episode
from sdiareward.pairs.schema import features, make_stable_id, make_stable_seed, validate_row


def make_turn(role, duration_s=2.0):
    return {
        "role": role,
        "text": "hello",
        "audio": {"bytes": b"x", "path": "x"},
        "duration_s": duration_s,
        "audio_ref": [],
    }


@pytest.fixture
def row():
    side = [make_turn("user"), make_turn("assistant")]
    return {
        "pair_id": "p1",
        "criterion": "modality",
        "subset": "semi_wild",
        "source": "meld",
        "primary": "Positive",
        "secondary": "Joy",
        "chosen": side,
        "rejected": copy.deepcopy(side),
        "synthesizer": "piper",
        "group_id": "g1",
        "channel": None,
        "native_coding": [],
        "quality": None,
        "language": "en",
        "license": "CC0-1.0",
    }


def make_episode(roles, text="hello"):
    turns = tuple(Turn(role, (Part(text),)) for role in roles)
    return Episode("e1", "asterisk", "scripted", "g", turns, "Inform", "Unknown", "en", "CC0-1.0")


def test_a_stable_id_is_the_same_on_every_machine():
    assert make_stable_id("asterisk", "agent") == "c8086635f14903a8"
    assert make_stable_seed("asterisk", "agent") == 0xC8086635F14903A8
    assert make_stable_id("a", "bc") != make_stable_id("ab", "c")


def test_a_valid_row_passes(row):
    validate_row(row)
    assert set(row) == set(features())


BROKEN = {
    "criterion": (lambda r: r.update(criterion="beauty"), "criterion is 'beauty'"),
    "subset": (lambda r: r.update(subset="studio"), "subset is 'studio'"),
    "subset of the other criterion": (lambda r: r.update(subset="colloquialness"), "does not go with"),
    "no group": (lambda r: r.update(group_id=""), "group_id is empty"),
    "taxonomy": (lambda r: r.update(secondary="Bored"), "secondary is 'Bored'; Table 5 allows"),
    "odd number of turns": (lambda r: r["chosen"].append(make_turn("user")), "chosen: has 3 turns"),
    "too many turns": (lambda r: r.update(rejected=[make_turn("user"), make_turn("assistant")] * 9), "has 18 turns"),
    "two user turns": (lambda r: r["rejected"][1].update(role="user"), "must alternate"),
    "turn of a minute and more": (lambda r: r["chosen"][1].update(duration_s=60.1), "chosen turn 1: lasts 60.1 s"),
    "turn of no time": (lambda r: r["rejected"][0].update(duration_s=0.0), "rejected turn 0: lasts 0.0 s"),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_a_broken_row_is_refused_by_name(problem, row):
    spoil, message = BROKEN[problem]
    spoil(row)
    with pytest.raises(ValueError, match=message) as error:
        validate_row(row)
    assert "p1" in str(error.value)


def test_an_episode_needs_alternating_turns_with_words():
    validate_episode(make_episode(["user", "assistant"]))
    with pytest.raises(ValueError, match="asterisk episode e1: has 1 turns"):
        validate_episode(make_episode(["user"]))
    with pytest.raises(ValueError, match="turn 0 has no text"):
        validate_episode(make_episode(["user", "assistant"], text=" "))
