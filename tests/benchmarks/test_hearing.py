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


def make_pair(own, lent):
    return {
        side: [{"role": "user", "content": [{"type": "text", "text": word}]} for word in words.split()]
        for side, words in (("chosen", own), ("rejected", lent))
    }


def test_a_couple_exchanges_its_words():
    pairs = [make_pair("a b", "c d"), make_pair("e f", "a b"), make_pair("c d", "a b"), make_pair("g h", "not there")]
    # The second has the words of the first, which has those of the third.
    assert hearing.couple(pairs) == [(0, 2)]


def test_a_couple_is_right_by_the_sum_of_both_dialogues():
    # 1 + 3 against 0.5 + 2; then 1 + 0 against 0 + 2, though the first dialogue is right.
    rewards = np.array([[1.0, 0.5], [3.0, 2.0], [1.0, 0.0], [0.0, 2.0]])
    assert hearing.measure_couples(rewards, [(0, 1)])["accuracy"] == 1
    assert hearing.measure_couples(rewards, [(0, 1), (2, 3)])["accuracy"] == 0.5


def test_words_that_are_liked_decide_pairs_and_no_couple(tiny_checkpoint, dialogue):
    other = [
        {**message, "content": [message["content"][0], {"type": "text", "text": words}]}
        for message, words in zip(dialogue, ("who is there", "a friend of yours"), strict=True)
    ]
    # The same sound in both: each pair is the other one's opposite.
    pairs = [{"chosen": dialogue, "rejected": other}, {"chosen": other, "rejected": dialogue}]
    found = hearing.measure(str(tiny_checkpoint), pairs, hearing.couple(pairs))
    assert found["by_reward"]["accuracy"] == 0.5
    assert found["by_couples"]["accuracy"] == 0
