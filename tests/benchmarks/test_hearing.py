"""What the sound of a dialogue adds to the likelihood of its words."""

import numpy as np
import pytest
import torch

from benchmarks import hearing
from sdiareward.scoring.scorer import Scorer


@pytest.fixture
def scorer(make_tiny_model, tiny_processor):
    return Scorer(make_tiny_model(), tiny_processor, num_workers=0)


@pytest.fixture
def dialogue(make_tone):
    def say(role, text, pitch):
        sound = {"array": make_tone(0.5, pitch), "sampling_rate": 16_000}
        return {"role": role, "content": [{"type": "audio", "audio": sound}, {"type": "text", "text": text}]}

    return [say("user", "is it far", 100.0), say("assistant", "ten miles", 200.0)]


def test_only_the_words_remain_without_the_sound(dialogue):
    (first, second) = hearing.without_sound(dialogue)
    assert first == {"role": "user", "content": [{"type": "text", "text": "is it far"}]}
    assert second["role"] == "assistant"


def test_sounds_are_put_before_the_words(dialogue):
    words_first = [{**message, "content": message["content"][::-1]} for message in dialogue]
    assert words_first[0]["content"][0]["type"] == "text"
    assert hearing.put_sound_first(words_first) == dialogue
    assert words_first[0]["content"][0]["type"] == "text"


def test_likelihoods_are_those_of_the_next_token_without_markers(scorer, dialogue):
    found = hearing.compute_likelihoods(scorer, dialogue)
    inputs = scorer.processor([dialogue], criterion="joint")
    with torch.inference_mode():
        states = scorer.model(**inputs, output_hidden_states=True).hidden_states[-1][0]
        table = torch.softmax(states.float() @ scorer.model.get_input_embeddings().weight.float().T, dim=-1)
    ids = inputs["input_ids"][0].tolist()
    markers = set(scorer.processor.tokenizer.get_added_vocab().values())
    begin = ids.index(scorer.processor.tokenizer.convert_tokens_to_ids("<|im_end|>"))
    expected = [
        np.log(float(table[place - 1, ids[place]])) for place in range(begin, len(ids)) if ids[place] not in markers
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_what_the_sound_adds_is_a_difference_of_the_same_tokens(scorer, dialogue):
    with_sound, alone = (
        hearing.compute_likelihoods(scorer, each) for each in (dialogue, hearing.without_sound(dialogue))
    )
    assert len(with_sound) == len(alone)
    assert hearing.measure_sound(scorer, dialogue) == pytest.approx(float(np.mean(with_sound - alone)))
    assert hearing.measure_sound(scorer, hearing.without_sound(dialogue)) == 0


def test_a_tie_counts_as_wrong():
    share = hearing.compute_share(np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [2.0, 1.0]]))
    assert share["accuracy"] == 0.5
    assert share["interval"][0] < 0.5 < share["interval"][1]


class CountingScorer:
    """Rewards the words, whatever is heard; or words that are as many as the tenths of a second of their sound."""

    def __init__(self, listens):
        self._listens = listens

    def score(self, dialogues, criterion):
        return [sum(map(self._score_turn, dialogue)) for dialogue in dialogues]

    def _score_turn(self, message):
        sound, words = (message["content"][place] for place in (0, 1))
        num_words = float(len(words["text"].split()))
        return -abs(num_words - 10 * len(sound["audio"]["array"]) / 16_000) if self._listens else num_words


def make_dialogue(*sizes):
    """Return a dialogue whose turns have so many words, and as many tenths of a second of sound."""
    roles = ("user", "assistant")
    return [
        {
            "role": roles[place % 2],
            "content": [
                {"type": "audio", "audio": {"array": np.zeros(size * 1600), "sampling_rate": 16_000}},
                {"type": "text", "text": " ".join(["word"] * size)},
            ],
        }
        for place, size in enumerate(sizes)
    ]


def test_couples_have_as_many_turns_and_about_as_many_words_each_once():
    long, short, middle, alone = make_dialogue(9, 9), make_dialogue(1, 2), make_dialogue(2, 2), make_dialogue(2, 2, 2)
    assert hearing.couple([long, alone, middle, short]) == [(3, 2)]
    assert hearing.couple([long, middle, short, make_dialogue(8, 8)]) == [(2, 1), (3, 0)]


def test_lent_words_stand_beside_the_own_sound(dialogue):
    other = [{"role": message["role"], "content": [{"type": "text", "text": "no"}]} for message in dialogue]
    lent = hearing.lend_words(dialogue, other)
    assert [message["content"][1]["text"] for message in lent] == ["no", "no"]
    assert [message["content"][0] for message in lent] == [message["content"][0] for message in dialogue]
    assert dialogue[0]["content"][1]["text"] == "is it far"


@pytest.mark.parametrize(("listens", "share"), [(True, 1.0), (False, 0.0)])
def test_only_who_listens_gets_crossed_couples_right(listens, share):
    scorer, dialogues = CountingScorer(listens), [make_dialogue(1, 5), make_dialogue(4, 2)]
    found = hearing.measure_crossing(scorer, dialogues, np.array(scorer.score(dialogues, "joint")))
    # To like many words, in whatever dialogue, is a tie.
    assert (found["num_couples"], found["accuracy"]) == (1, share)


def test_dialogues_of_different_lengths_make_no_couple():
    dialogues = [make_dialogue(1), make_dialogue(1, 2)]
    assert hearing.measure_crossing(CountingScorer(True), dialogues, np.zeros(2)) == {"num_couples": 0}


def test_a_model_with_a_head_is_measured_in_all_three_ways(tiny_checkpoint, dialogue):
    other = hearing.lend_words(dialogue, make_dialogue(3, 2))
    found = hearing.measure(
        str(tiny_checkpoint), [{"chosen": dialogue, "rejected": other}, {"chosen": other, "rejected": dialogue}]
    )
    # The two pairs are each other's opposite, so one of them is right, unless it is a tie.
    assert [found[name]["accuracy"] for name in ("by_reward", "by_words")] == [0.5, 0.5]
    assert found["by_crossing"]["num_couples"] == 1
