"""Training pairs of one turn: its own words against those of another turn."""

from collections import Counter

import datasets
import pytest

from sdiareward.pairs.schema import JOINT
from sdiareward.scoring.batching import DialoguePreparer
from sdiareward.training.arguments import TrainArguments
from sdiareward.training.augmentation import AugmentationSettings, AugmentedPairs, augment
from sdiareward.training.precompute import precompute_pairs
from sdiareward.training.turns import find_turns, make_turn_pairs


WORDS = [
    ("where have you been", "down at the harbour"),
    ("what did you see there", "boats and a lot of fog"),
    ("well", "no one comes here now"),
    ("who is the tall man", "he sells fish on mondays"),
]


@pytest.fixture
def pairs(tone_pairs):
    """Pairs whose two sides say the same with other sounds."""

    def say(row, number):
        return {
            side: [{**turn, "text": words} for turn, words in zip(row[side], WORDS[number], strict=True)]
            for side in ("chosen", "rejected")
        }

    return tone_pairs.map(say, with_indices=True).add_column("pair_id", [f"p{row}" for row in range(4)])


def test_every_distinct_turn_is_found_once(pairs):
    twice = datasets.concatenate_datasets([pairs, pairs])
    found = find_turns(twice, 8.0)
    assert len(found) == 16
    assert {(turn["row"], turn["side"], turn["turn"]) for turn in found} == {
        (row, side, turn) for row in range(4) for side in ("chosen", "rejected") for turn in (0, 1)
    }
    assert all(turn["text"] == WORDS[turn["row"]][turn["turn"]] for turn in found)


def test_recordings_are_found_by_their_paths_as_well(pairs, tmp_path):
    rows = pairs.to_list()
    for number, row in enumerate(rows):
        row["criterion"] = None
        for side in ("chosen", "rejected"):
            for place, turn in enumerate(row[side]):
                path = tmp_path / f"{number}-{side}-{place}.wav"
                path.write_bytes(turn["audio"]["bytes"])
                turn["audio"] = str(path)
    files = datasets.Dataset.from_list(rows)
    assert find_turns(files, 8.0) == find_turns(pairs, 8.0)
    assert {pair.criterion for _, pair in make_turn_pairs(files, 2, seed=0)} == {JOINT}


def test_longer_turns_and_turns_without_words_are_left_out(pairs):
    # The tones of row n last 0.2 + 0.1 n seconds.
    assert {turn["row"] for turn in find_turns(pairs, 0.35)} == {0, 1}
    silent = pairs.map(lambda row: {"chosen": [{**turn, "text": ""} for turn in row["chosen"]]})
    assert {turn["side"] for turn in find_turns(silent, 8.0)} == {"rejected"}


def test_words_that_were_exchanged_already_are_left_out(pairs):
    kinds = pairs.add_column("secondary", ["transcript", "order", "", None])
    assert Counter(turn["row"] for turn in find_turns(kinds, 8.0)) == {0: 2, 1: 4, 2: 4, 3: 4}


def test_other_words_are_those_of_another_turn(pairs):
    made = list(make_turn_pairs(pairs, 3, seed=0))
    # Both sides say all turns; "well" is too short to be told from other words.
    assert len(made) == 3 * (14 + 8) == len({pair.pair_id for _, pair in made})
    made = [(row, pair) for row, pair in made if pair.words is not None]
    assert len(made) == 3 * 14
    said = {words for turns in WORDS for words in turns} - {"well"}
    for row, pair in made:
        own = pairs[row][pair.side][pair.turn]["text"]
        assert pair.words in said - {own}
        assert pair.criterion in ("joint", pairs[row]["criterion"])
    assert {pair.criterion for _, pair in made} == {"joint", "modality", "colloquialness"}
    assert len({pair.words for _, pair in made}) == 7


def test_other_words_are_about_as_many(pairs, monkeypatch):
    monkeypatch.setattr("sdiareward.training.turns._NUM_NEAR", 2)
    for row, pair in make_turn_pairs(pairs, 4, seed=1):
        own = pairs[row][pair.side][pair.turn]["text"]
        assert pair.words is None or abs(len(pair.words.split()) - len(own.split())) <= 1


def test_turns_of_both_sides_with_another_sound_are_pairs(pairs):
    made = [(row, pair) for row, pair in make_turn_pairs(pairs, 1, seed=0) if pair.words is None]
    assert [(row, pair.side, pair.turn) for row, pair in made] == [
        (row, "chosen", turn) for row in range(4) for turn in (0, 1)
    ]
    for row, pair in made:
        sides = pair.make_sides(pairs[row])
        for name in ("chosen", "rejected"):
            assert sides[name][0] == {**pairs[row][name][pair.turn], "role": "user"}
        assert sides["chosen"][1:] == sides["rejected"][1:] == [{"role": "assistant", "content": "I see."}]


def test_turns_with_other_words_or_the_same_sound_are_no_pairs_of_sounds(pairs):
    # One answer has other words: the other turn is said by both sides, but the pair is not about its sound.
    other_words = pairs.map(lambda row: {"rejected": [row["rejected"][0], {**row["rejected"][1], "text": "not that"}]})
    same_sound = pairs.map(lambda row: {"rejected": row["chosen"]})
    for changed in (other_words, same_sound):
        assert all(pair.words is not None for _, pair in make_turn_pairs(changed, 1, seed=0))


def test_pairs_of_turns_depend_on_the_seed_alone(pairs):
    first, again, other = (list(make_turn_pairs(pairs, 2, seed=seed)) for seed in (0, 0, 1))
    assert first == again != other


def test_pairs_without_criteria_give_pairs_of_joint(pairs):
    made = list(make_turn_pairs(pairs.remove_columns("criterion"), 1, seed=0))
    assert len(made) == 14 + 8
    assert {pair.criterion for _, pair in made} == {"joint"}


def test_turns_that_all_say_the_same_give_no_pairs(tone_pairs):
    same = tone_pairs.map(lambda row: {"rejected": row["chosen"]})
    same = same.map(
        lambda row: {
            side: [{**turn, "text": "one two three"} for turn in row[side]] for side in ("chosen", "rejected")
        }
    )
    assert list(make_turn_pairs(same, 2, seed=0)) == []


def test_the_sides_have_one_sound_and_two_texts(pairs):
    rows = AugmentedPairs(pairs, AugmentationSettings(["gain"], turn_pairs=2, pair_shares={"modality": 0.0}), 15.0)
    # Two pairs of colloquialness with a copy each, two of each of 14 turns, and two of each of 8 turns of both sides.
    assert len(rows) == 2 * 2 + 2 * 14 + 2 * 8
    assert rows["pair_id"][4].startswith("turn ")
    assert rows["criterion"][4:] == [rows[number]["criterion"] for number in range(4, len(rows))]
    for number in range(4, 4 + 2 * 14):
        chosen, rejected = (rows[number][side] for side in ("chosen", "rejected"))
        assert [message["role"] for message in (*chosen, *rejected)] == ["user", "assistant"] * 2
        assert _read_text(chosen[0]) != _read_text(rejected[0])
    given = rows[4]
    assert given["chosen"][0]["audio"] == given["rejected"][0]["audio"]


def test_later_pairs_of_a_turn_are_read_through_a_channel(pairs):
    plain, changed = (
        AugmentedPairs(pairs, AugmentationSettings(names, turn_pairs=2), 15.0) for names in ([], ["polarity"])
    )
    number = plain["pair_id"].index(next(name for name in plain["pair_id"] if name.endswith(", 1")))
    assert "audio" in plain[number]["chosen"][0]
    name = plain["pair_id"][number]
    message = changed[changed["pair_id"].index(name)]["chosen"][0]
    assert [item["type"] for item in message["content"]] == ["text", "audio"]


def test_rows_are_selected_by_their_numbers(pairs):
    rows = AugmentedPairs(pairs, AugmentationSettings(turn_pairs=1), 15.0)
    some = rows.select([0, 5, 9])
    assert some["pair_id"] == [rows["pair_id"][number] for number in (0, 5, 9)]
    assert some[2] == rows[9]
    assert some.fingerprint() != rows.fingerprint()
    assert augment(pairs, AugmentationSettings(), 15.0) is pairs


def test_a_share_of_the_pairs_of_turns_is_used_and_all_others(pairs):
    few, half, whole = (
        AugmentedPairs(pairs, AugmentationSettings(["gain"], turn_pairs=2, turn_pair_share=share), 15.0)["pair_id"]
        for share in (0.2, 0.5, 1.0)
    )
    turns = [[name for name in names if name.startswith("turn ")] for names in (few, half, whole)]
    assert set(turns[0]) < set(turns[1]) < set(turns[2])
    assert len(turns[2]) == 44 and 12 < len(turns[1]) < 32
    # First pairs of a turn and later ones, which are read through a channel.
    assert {name[-1] for name in turns[0]} == {"0", "1"}
    assert {tuple(name for name in names if not name.startswith("turn ")) for names in (few, half)} == {
        tuple(name for name in whole if not name.startswith("turn "))
    }


def test_one_turn_is_a_dialogue_that_can_be_trained_on(pairs, tiny_processor, tmp_path):
    rows = AugmentedPairs(pairs, AugmentationSettings(["gain"], turn_pairs=2, pair_shares={"modality": 0.0}), 15.0)
    found, skipped = precompute_pairs(rows, tiny_processor, tmp_path, split="train")
    assert skipped == [] and len(found) == len(rows)
    prepare = DialoguePreparer(tiny_processor)
    for number in range(4, len(rows)):
        row = rows[number]
        sides = prepare(range(2), [row["chosen"], row["rejected"]], [row["criterion"]] * 2).dialogues
        assert sum(len(message.input_ids) for side in sides for message in side) == found[number]["length"]
        assert (sides[0][1].clips == sides[1][1].clips) == (number < 4 + 2 * 14)


def test_a_wrong_number_is_an_error_when_it_is_parsed():
    with pytest.raises(ValueError, match="turn_pairs is -1; give 0 for none, or a number of pairs of each turn"):
        TrainArguments("model", "data", turn_pairs=-1)
    with pytest.raises(ValueError, match="turn_pair_share is 0; it must lie above 0, up to 1"):
        TrainArguments("model", "data", turn_pairs=1, turn_pair_share=0)
    with pytest.raises(ValueError, match="turn_pair_share is 0.5 without turn_pairs, and has no effect"):
        TrainArguments("model", "data", turn_pair_share=0.5)


def _read_text(message):
    items = message.get("content") or [{"type": "text", "text": message["text"]}]
    return next(item["text"] for item in items if item["type"] == "text")
