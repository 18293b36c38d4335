"""Two real steps of TRL's GRPO, rewarded by a spoken-dialogue reward model."""

import functools
import importlib.util
import json
import sys
import zlib

import pytest
from support.grpo_world import check_logged, train_policy
from support.paths import ROOT

from sdiareward.scoring.reward_function import async_reward_fn, reward_fn
from sdiareward.scoring.scorer import Scorer


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scorer(make_tiny_model, tiny_processor):
    return Scorer(make_tiny_model(), tiny_processor, num_workers=0)


@pytest.fixture(name="train_policy")
def policy_trainer(tmp_path, tiny_processor, make_tone):
    return functools.partial(train_policy, tmp_path, tiny_processor.tokenizer, make_tone)


@pytest.mark.parametrize("make_reward", [reward_fn, async_reward_fn])
def test_grpo_logs_the_rewards_of_the_scorer(make_reward, scorer, speak, train_policy):
    reward = make_reward(scorer, criterion="modality", speak=speak, audio_column="voice")
    table, history, voices = train_policy(reward)
    check_logged(table, history, voices, reward, speak, scorer)
    assert reward.num_failed == 0


def test_grpo_continues_without_the_completions_that_cannot_be_scored(scorer, speak, train_policy):
    def moody(texts):
        return [None if zlib.crc32(text.encode()) % 3 == 0 else speak([text])[0] for text in texts]

    reward = reward_fn(scorer, criterion="modality", speak=moody, audio_column="voice")
    table, history, voices = train_policy(reward)
    check_logged(table, history, voices, reward, moody, scorer)
    assert 0 < reward.num_failed < 8


def test_grpo_with_a_policy_that_speaks_brings_its_sound_as_a_column(scorer, speak, train_policy):
    def roll_out(prompts, trainer):
        tokenizer = trainer.processing_class
        texts = [f"answer {index}" for index in range(len(prompts))]
        ids = [tokenizer(text)["input_ids"] for text in texts]
        encoded = [
            tokenizer.apply_chat_template(prompt, add_generation_prompt=True)["input_ids"] for prompt in prompts
        ]
        return {
            "prompt_ids": encoded,
            "completion_ids": ids,
            "logprobs": [[0.0] * len(each) for each in ids],
            "completion_audio": speak(texts),
        }

    reward = reward_fn(scorer, criterion="modality", audio_column="voice", completion_audio_column="completion_audio")
    table, history, voices = train_policy(reward, rollout_func=roll_out)
    check_logged(table, history, voices, reward, speak, scorer)
    assert reward.num_failed == 0


@pytest.fixture
def example(monkeypatch):
    spec = importlib.util.spec_from_file_location("grpo_speech", ROOT / "examples" / "grpo_speech.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "grpo_speech", module)
    spec.loader.exec_module(module)
    return module


def test_the_example_trains_on_recorded_questions_and_synthetic_answers(tmp_path, example, capsys):
    options = {"reward_model": ROOT / "checkpoints" / "nano", "synthesizer": "hibari", "output_dir": tmp_path}
    flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    trainer = example.main([*flags, "--max_steps", "1", "--num_questions", "1"])
    # Three kinds of answers before the step and one after it.
    assert trainer.reward_funcs[0].num_scored == 8 + 4
    assert trainer.state.log_history[0]["rewards/sdiareward_joint/std"] > 0
    printed = capsys.readouterr().out
    before, after = printed.split("After training:")
    assert all(kind in before for kind in ("answers of the script:", "their words in random order:"))
    assert "the policy's answers:" in before and "the policy's answers:" in after
    kept = json.loads((tmp_path / "rewards.json").read_text())
    assert list(kept["before"]) == ["answers of the script", "their words in random order", "the policy's answers"]
    assert f"the policy's answers: {kept['after'][example.POLICY]['mean_reward']:+.2f} (1 answers)" in after
