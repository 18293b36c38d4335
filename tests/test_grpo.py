"""Two real steps of TRL's GRPO, rewarded by a spoken-dialogue reward model."""

import importlib.util
import zlib
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import torch

from sdiareward.reward_function import async_reward_fn, reward_fn
from sdiareward.scoring import Scorer


ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def scorer(make_tiny_model, tiny_processor):
    return Scorer(make_tiny_model(), tiny_processor, num_workers=0)


def turn(role, text, audio=None):
    items = [{"type": "text", "text": text}] if text else []
    return {"role": role, "content": items + ([] if audio is None else [{"type": "audio", "audio": audio}])}


@pytest.fixture
def train_policy(tmp_path, tiny_processor, make_tone):
    """Return a function that trains a tiny policy for two steps; it returns the completions and the metrics logged."""
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    from sdiareward.nano import CHAT_TEMPLATE

    def train(reward, **options):
        tokenizer = tiny_processor.tokenizer
        tokenizer.chat_template = CHAT_TEMPLATE
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        policy = Qwen2ForCausalLM(Qwen2Config(vocab_size=704, num_key_value_heads=1, **sizes))
        before = policy.model.embed_tokens.weight.detach().clone()
        rows = [
            {
                "prompt": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": f"question {row}"}],
                "voice": {"array": make_tone(0.2, 200.0 + 50 * row).tolist(), "sampling_rate": 16_000},
            }
            for row in range(4)
        ]
        args = GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=8,
            max_steps=2,
            learning_rate=1e-2,
            beta=0.0,
            log_completions=True,
            num_completions_to_print=0,
            gradient_checkpointing=False,
            use_cpu=True,
            bf16=False,
            report_to="none",
            logging_steps=1,
            save_strategy="no",
            disable_tqdm=True,
        )
        dataset = datasets.Dataset.from_list(rows)
        trainer = GRPOTrainer(policy, reward, args=args, train_dataset=dataset, processing_class=tokenizer, **options)
        trainer.train()
        assert not torch.equal(before, policy.model.embed_tokens.weight)
        tables = [pd.read_parquet(path) for path in sorted((tmp_path / "completions").glob("*.parquet"))]
        return (
            pd.concat(tables),
            trainer.state.log_history,
            {row["prompt"][1]["content"]: row["voice"] for row in rows},
        )

    return train


def check_logged(table, history, voices, reward, speak):
    """Assert that what TRL logged is what the scorer gives for the completions that can be spoken."""
    assert len(table) == 8
    for _, row in table.iterrows():
        text, question = row["completion"][0]["content"], row["prompt"][1]["content"]
        user = turn("user", question, np.asarray(voices[question]["array"], dtype=np.float32))
        [audio] = speak([text])
        if audio is None:
            assert np.isnan(row["sdiareward_modality"])
        else:
            [expected] = reward.scorer.score([[user, turn("assistant", text, audio)]], "modality")
            assert row["sdiareward_modality"] == pytest.approx(expected, abs=1e-4)
    logged = [entry for entry in history if "reward" in entry]
    means = table.groupby("step")["sdiareward_modality"].mean().tolist()
    assert [entry["rewards/sdiareward_modality/mean"] for entry in logged] == pytest.approx(means, abs=1e-4)
    failed = table["sdiareward_modality"].isna().groupby(table["step"]).mean().tolist()
    assert [entry["sdiareward_modality/failed"] for entry in logged] == pytest.approx(failed)
    assert reward.num_judged == table["sdiareward_modality"].notna().sum()


def test_grpo_logs_the_rewards_of_the_scorer(scorer, speak, train_policy):
    reward = reward_fn(scorer, criterion="modality", speak=speak, audio_column="voice")
    table, history, voices = train_policy(reward)
    check_logged(table, history, voices, reward, speak)
    assert reward.num_failed == 0


def test_grpo_logs_the_same_of_coroutines(scorer, speak, train_policy):
    reward = async_reward_fn(scorer, criterion="modality", speak=speak, audio_column="voice")
    table, history, voices = train_policy(reward)
    check_logged(table, history, voices, reward, speak)
    assert reward.num_failed == 0


def test_grpo_goes_on_without_the_completions_that_cannot_be_judged(scorer, speak, train_policy):
    def moody(texts):
        return [None if zlib.crc32(text.encode()) % 3 == 0 else speak([text])[0] for text in texts]

    reward = reward_fn(scorer, criterion="modality", speak=moody, audio_column="voice")
    table, history, voices = train_policy(reward)
    check_logged(table, history, voices, reward, moody)
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
    check_logged(table, history, voices, reward, speak)
    assert reward.num_failed == 0


def test_the_example_trains_on_recorded_questions_and_synthetic_answers(tmp_path):
    spec = importlib.util.spec_from_file_location("grpo_speech", ROOT / "examples" / "grpo_speech.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    options = {"reward_model": ROOT / "checkpoints" / "nano", "synthesizer": "hibari", "output_dir": tmp_path}
    flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    trainer = example.main([*flags, "--max_steps", "1", "--num_questions", "1"])
    assert trainer.reward_funcs[0].num_judged == 8
    assert trainer.state.log_history[0]["rewards/sdiareward_colloquialness/std"] > 0
