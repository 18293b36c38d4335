import base64
import io

import numpy as np
import pytest
import soundfile
import torch

from sdiareward.judges.thinker import Thinker, ThinkerProcessor, find_repeats
from sdiareward.judges.wavreward.judge import JudgingPrompt, WavRewardJudge
from sdiareward.pairs.messages import join_turns, make_audio_content


@pytest.fixture(scope="module")
def thinker(tiny_judge):
    return Thinker.from_pretrained(tiny_judge, device="cpu", batch_size=3)


@pytest.fixture(scope="module")
def conversations(make_tone):
    return [
        JudgingPrompt().make_conversation(make_tone(duration_s, seed=seed))
        for seed, duration_s in enumerate((0.3, 0.8, 0.5, 0.4))
    ]


def texts(answers):
    return [[answer.text for answer in found] for found in answers]


def test_answers_and_expected_scores_are_the_same_alone_and_in_a_batch(thinker, make_tone):
    judge = WavRewardJudge(thinker)
    recordings = [
        make_tone(duration_s, 300.0 * seed, seed=seed) for seed, duration_s in ((1, 0.4), (2, 0.6), (3, 0.5))
    ]
    options = {"max_new_tokens": 6, "expected": True}
    together = judge.judge(recordings, **options)
    for recording, judgement in zip(recordings, together, strict=True):
        (alone,) = judge.judge([recording], **options)
        assert alone.texts == judgement.texts
        assert alone.expected_score == pytest.approx(judgement.expected_score, abs=1e-5)
        assert 1 < judgement.expected_score < 5
        assert judgement.score is None and not judgement.follows_format
        assert judgement.num_tokens == 6 and judgement.seconds > 0
    assert len({judgement.texts for judgement in together}) > 1
    assert together[0].expected_score != together[1].expected_score


def test_sampling_depends_on_the_seed_and_keeps_the_callers_generator(thinker, conversations):
    def sample(seed):
        options = {"max_new_tokens": 6, "temperature": 1.0, "num_return_sequences": 3}
        return texts(thinker.generate(conversations[:2], seed=seed, **options))

    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    first = sample(0)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert [len(found) for found in first] == [3, 3]
    assert sample(0) == first != sample(1)


def test_the_probabilities_are_those_of_a_forward_pass(thinker, conversations):
    probabilities = thinker.compute_next_token_probabilities(
        conversations, ["", "a", "<score>", "b c"], ["1", "3", "5"]
    )
    inputs = thinker.prepare(conversations[2:3], ["<score>"])
    logits = thinker.model(**inputs).logits[0, -1]
    ids = [thinker.processor.encode_text(digit)[0] for digit in "135"]
    assert torch.allclose(probabilities[2], logits[ids].softmax(dim=-1), atol=1e-5)
    assert torch.allclose(probabilities.sum(dim=-1), torch.ones(4))


def test_what_a_thinker_cannot_do_is_refused(thinker, conversations):
    with pytest.raises(ValueError, match="'score' is . tokens"):
        thinker.compute_next_token_probabilities(conversations[:1], [""], ["score"])
    with pytest.raises(ValueError, match="2 answers at temperature 0 would be the same"):
        thinker.generate(conversations, num_return_sequences=2)
    with pytest.raises(ValueError, match="ChatML"):
        thinker.processor.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)


def test_turns_are_joined_with_silence_and_sent_to_an_endpoint_with_the_very_samples(make_tone):
    joined = join_turns([np.ones(3), np.full(2, 0.5), np.ones(1)], gap_s=2 / 16_000)
    assert joined.dtype == np.float32 and joined.tolist() == [1, 1, 1, 0, 0, 0.5, 0.5, 0, 0, 1]
    samples = np.round(make_tone(0.1) * 32768).astype(np.int16)
    samples[:2] = -32768, 32767
    part = make_audio_content({"array": samples.astype(np.float32) / 32768, "sampling_rate": 16_000})
    array, rate = soundfile.read(io.BytesIO(base64.b64decode(part["input_audio"]["data"])), dtype="int16")
    assert (part["type"], part["input_audio"]["format"], rate) == ("input_audio", "wav", 16_000)
    assert array.tolist() == samples.tolist()


def test_a_saved_processor_begins_the_answer_as_before(tmp_path, tiny_judge, fixtures_dir):
    backbone = ThinkerProcessor.from_pretrained(fixtures_dir / "base_tiny")
    assert backbone.max_turn_s == 60.0
    backbone.max_turn_s = 7.0
    backbone.save_pretrained(tmp_path)
    again = ThinkerProcessor.from_pretrained(tmp_path)
    assert type(again) is ThinkerProcessor
    assert again.max_turn_s == 7.0
    messages = [{"role": "user", "content": "hello"}]
    with_prompt, without = (
        again.apply_chat_template(messages, add_generation_prompt=begin)["input_ids"][0] for begin in (True, False)
    )
    assert again.tokenizer.decode(with_prompt[len(without) :]) == "<|im_start|>assistant\n"
    assert with_prompt[: len(without)] == without


def test_repeated_clips_are_encoded_once_to_the_same_vectors_and_gradients(tiny_judge, make_tone, monkeypatch):
    one, other = torch.zeros(2, 3), torch.ones(2, 3)
    assert find_repeats([one, other, one.clone(), torch.zeros(2, 4), other]) == ([0, 1, 3], [0, 1, 0, 2, 1])
    thinker = Thinker.from_pretrained(tiny_judge, device="cpu")
    tower = thinker.model.model.audio_tower
    tones = [make_tone(0.4, seed=1), make_tone(0.6, seed=2)]
    repeated = thinker.prepare([JudgingPrompt().make_conversation(tones[index]) for index in (0, 1, 0, 0, 1)])
    frames = []
    tower.conv1.register_forward_pre_hook(lambda _, inputs: frames.append(inputs[0].shape[0]))
    features = [repeated[name] for name in ("input_features", "feature_attention_mask")]

    def run():
        frames.clear()
        tower.zero_grad()
        found = thinker.model.model.get_audio_features(*features).last_hidden_state
        (found * torch.arange(1.0, found.numel() + 1).view_as(found)).sum().backward()
        return found.detach(), tower.conv1.weight.grad.clone(), sum(frames)

    shared, shared_gradient, num_shared = run()
    monkeypatch.setattr(tower, "forward", type(tower).forward.__get__(tower))
    plain, gradient, num_plain = run()
    assert torch.allclose(shared, plain, atol=1e-6)
    assert torch.allclose(shared_gradient, gradient, rtol=1e-4, atol=1e-2)
    assert num_shared < num_plain
