import pytest
from support.audit_world import make_dataset

from sdiareward.perturbations.decoded_pairs import decode_pairs, to_messages


@pytest.fixture(scope="module")
def pairs(make_tone):
    return make_dataset(make_tone, 20)


def test_a_pair_in_memory_is_the_pair_of_the_data_set(pairs, make_tone):
    (pair,) = decode_pairs(pairs, [1])
    assert (pair.pair_id, pair.criterion, pair.subset, pair.license) == ("p1", *["colloquialness"] * 2, "CC0-1.0")
    assert [turn.role for turn in pair.chosen] == ["user", "assistant", "user", "assistant"]
    assert pair.rejected[2].text == "so, um, that is 1 2"
    assert pair.chosen[1].array == pytest.approx(make_tone(0.12, 240.0, 1), abs=1e-4)
    kinds = [[item["type"] for item in message["content"]] for message in to_messages(pair.chosen, text=False)]
    assert kinds == [["audio"]] * 4


def test_a_pair_can_be_read_without_its_recordings(pairs):
    (pair,), (outline,) = decode_pairs(pairs, [1]), decode_pairs(pairs, [1], audio=False)
    assert (outline.pair_id, outline.criterion, outline.group_id) == (pair.pair_id, pair.criterion, pair.group_id)
    assert [(turn.role, turn.text) for turn in outline.chosen] == [(turn.role, turn.text) for turn in pair.chosen]
    assert [len(turn.array) for turn in [*outline.chosen, *outline.rejected]] == [0] * 8


def test_a_system_turn_and_a_turn_without_a_recording_are_named(pairs):
    first, second = pairs.select([0, 0]).to_list()
    first["chosen"] = [{**first["chosen"][0], "role": "system"}, *first["chosen"]]
    second["rejected"][1]["audio"] = None
    for row, place in ((first, "pair p0, chosen, turn 0: is of the system"), (second, "pair p0, rejected, turn 2")):
        with pytest.raises(ValueError, match=place):
            decode_pairs(pairs.from_list([row]), [0])
