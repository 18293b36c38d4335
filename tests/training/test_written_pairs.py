"""Training pairs made of the words of dialogues: stretches of them, intact and broken."""

import datasets
import pytest

from sdiareward.pairs.schema import JOINT
from sdiareward.training.augmentation import AugmentationSettings, AugmentedPairs
from sdiareward.training.written_pairs import WRITTEN_KINDS, make_written_pairs


WORDS = {
    "p0": ["did you eat", "yes an apple today", "was it good", "it was sour and small"],
    "p1": ["where is the key", "under the green mat", "it is not", "then ask the old neighbour"],
    "p2": ["shall we go", "when the rain has stopped"],
}

SCENE = [("Haldric", "Who guards the bridge?"), ("Jevyan", "Nobody guards the bridge.")]


def row(name, words, group):
    turns = [
        {"role": role, "text": text} for role, text in zip(["user", "assistant"] * len(words), words, strict=False)
    ]
    labels = {"source": "notes", "criterion": "modality", "subset": "scripted"}
    return {"pair_id": name, "group_id": group, **labels, "chosen": turns, "rejected": turns}


def rows():
    return [row(name, words, f"g{name}") for name, words in WORDS.items()]


def make(kinds, pairs=None, seed=0):
    pairs = rows() if pairs is None else pairs
    return list(make_written_pairs(pairs, [pair["pair_id"] for pair in pairs], kinds, seed))


def words(pair, side):
    return [message["content"] for message in pair[side]]


@pytest.mark.parametrize("seed", range(5))
def test_the_chosen_side_is_a_stretch_of_whole_exchanges(seed):
    found = make(["last_answer"], seed=seed)
    assert [number for number, _ in found] == [0, 1, 2]
    for number, pair in found:
        dialogue, stretch = list(WORDS.values())[number], words(pair, "chosen")
        starts = [start for start in (0, 2) if dialogue[start : start + len(stretch)] == stretch]
        assert len(starts) == 1
        assert [message["role"] for message in pair["chosen"]] == ["user", "assistant"] * (len(stretch) // 2)


def test_the_last_answer_is_that_of_another_conversation():
    for _, pair in make(["last_answer"]):
        chosen, rejected = words(pair, "chosen"), words(pair, "rejected")
        assert rejected[:-1] == chosen[:-1]
        assert rejected[-1] not in WORDS[pair["pair_id"].split(",")[0]]
        assert rejected[-1] in {answer for dialogue in WORDS.values() for answer in dialogue[1::2]}


def test_a_near_answer_is_of_the_same_conversation():
    found = make(["near_answer"])
    # The third dialogue has one answer, and nothing to put in its place.
    assert [number for number, _ in found] == [0, 1]
    for _, pair in found:
        answers = WORDS[pair["pair_id"].split(",")[0]][1::2]
        assert {words(pair, "chosen")[-1], words(pair, "rejected")[-1]} == set(answers)


def test_each_name_gives_one_pair_of_each_dialogue_and_another_stretch():
    found = make(["cut_off"] * 6, [row("p0", WORDS["p0"] * 3, "g")])
    assert [pair["pair_id"] for _, pair in found] == [f"p0, cut_off {number}" for number in range(1, 7)]
    assert len({tuple(words(pair, "chosen")) for _, pair in found}) > 2
    # An answer has to fit under every criterion of the pairs, and under that of both.
    assert {pair["criterion"] for _, pair in found} == {JOINT, "modality"}
    for _, pair in found:
        whole, part = words(pair, "chosen")[-1], words(pair, "rejected")[-1]
        assert whole.startswith(part) and 1 <= len(part.split()) < len(whole.split())


def test_the_same_seed_makes_the_same_pairs():
    kinds = list(WRITTEN_KINDS)
    assert make(kinds, seed=3) == make(kinds, seed=3) != make(kinds, seed=4)


def test_words_come_from_the_same_source():
    other = {**row("p3", ["who is there", "nobody at all here"], "gp3"), "source": "letters"}
    assert all(
        "nobody at all here" not in words(pair, "rejected") for _, pair in make(["last_answer"], [*rows(), other])
    )


def test_a_dialogue_counts_once_and_one_without_words_not_at_all():
    silent = row("p4", ["", "yes"], "gp4")
    again = {**rows()[0], "pair_id": "p5"}
    assert [number for number, _ in make(["last_answer"], [*rows(), silent, again])] == [0, 1, 2]


def test_pairs_without_a_criterion_count_as_joint_and_an_answer_alone_not_at_all():
    pairs = rows()
    del pairs[0]["criterion"]
    pairs[1]["criterion"] = None
    alone = row("p3", ["yes it is"], "gp3")
    alone["chosen"] = alone["rejected"] = [{"role": "assistant", "text": "yes it is"}]
    found = make(sorted(WRITTEN_KINDS), [*pairs, alone])
    assert {number for number, _ in found} == {0, 1, 2}
    assert {pair["criterion"] for number, pair in found if number < 2} == {JOINT}


def test_they_follow_the_pairs_of_a_training_split():
    pairs = datasets.Dataset.from_list(rows())
    augmented = AugmentedPairs(pairs, AugmentationSettings(written_negatives=["cut_off"]))
    assert augmented["pair_id"] == ["p0", "p1", "p2", "p0, cut_off 1", "p1, cut_off 1", "p2, cut_off 1"]
    assert augmented["criterion"][:3] == ["modality"] * 3
    assert augmented[5]["chosen"] == [
        {"role": "user", "content": "shall we go"},
        {"role": "assistant", "content": "when the rain has stopped"},
    ]
    assert [augmented[number]["criterion"] for number in range(6)] == augmented["criterion"]


def test_written_sources_add_pairs_of_their_own_labels(tmp_path):
    scene = "".join(f'[message]\nspeaker={name}\nmessage= _ "{said}"\n[/message]\n' for name, said in SCENE)
    for campaign in ("north", "south"):
        (tmp_path / campaign).mkdir()
        (tmp_path / campaign / "1.cfg").write_text(scene.replace("bridge", campaign))
    settings = AugmentationSettings(written_negatives=["last_answer"], written_sources=[f"wesnoth={tmp_path}"])
    augmented = AugmentedPairs(datasets.Dataset.from_list(rows()), settings)
    assert augmented["pair_id"][6:] == ["wesnoth north/1/0, last_answer 1", "wesnoth south/1/0, last_answer 1"]
    pair = augmented[6]
    assert (pair["source"], pair["criterion"], pair["group_id"]) == ("wesnoth", JOINT, augmented["group_id"][6])
    assert pair["group_id"] != augmented["group_id"][0]
    assert words(pair, "chosen") == ["Who guards the north?", "Nobody guards the north."]
    assert words(pair, "rejected") == ["Who guards the north?", "Nobody guards the south."]
    before = augmented.fingerprint()
    (tmp_path / "north" / "1.cfg").write_text(scene)
    assert AugmentedPairs(augmented.pairs, settings).fingerprint() != before


def test_an_unknown_source_is_named():
    with pytest.raises(ValueError, match="written source is 'meld'; it must be one of freedroidrpg, wesnoth"):
        AugmentationSettings(written_negatives=["cut_off"], written_sources=["meld"])


def test_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match="negative is 'transcript'; it must be one of last_answer, near_answer"):
        AugmentationSettings(written_negatives=["transcript"])
    with pytest.raises(ValueError, match="written_negatives is 'cut_off'; give a list"):
        AugmentationSettings(written_negatives="cut_off")
