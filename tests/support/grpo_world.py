"""A tiny policy that TRL's GRPO trains for two steps."""

import copy

import datasets
import numpy as np
import pandas as pd
import pytest
import torch


def train_policy(folder, tokenizer, make_tone, reward, **options):
    """Return the completions, the metrics logged, and the voice of each question."""
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    from sdiareward.chat_sdiareward import CHAT_TEMPLATE

    # Other tests share the tokenizer.
    tokenizer = copy.deepcopy(tokenizer)
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
        output_dir=str(folder),
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
    tables = [pd.read_parquet(path) for path in sorted((folder / "completions").glob("*.parquet"))]
    return (pd.concat(tables), trainer.state.log_history, {row["prompt"][1]["content"]: row["voice"] for row in rows})


def turn(role, text, audio=None):
    items = [{"type": "text", "text": text}] if text else []
    return {"role": role, "content": items + ([] if audio is None else [{"type": "audio", "audio": audio}])}


def check_logged(table, history, voices, reward, speak, scorer):
    """Assert that what TRL logged is what the scorer gives for the completions that can be spoken."""
    assert len(table) == 8
    for _, row in table.iterrows():
        text, question = row["completion"][0]["content"], row["prompt"][1]["content"]
        user = turn("user", question, np.asarray(voices[question]["array"], dtype=np.float32))
        [audio] = speak([text])
        if audio is None:
            assert np.isnan(row["sdiareward_modality"])
        else:
            [expected] = scorer.score([[user, turn("assistant", text, audio)]], "modality")
            assert row["sdiareward_modality"] == pytest.approx(expected, abs=1e-4)
    logged = [entry for entry in history if "reward" in entry]
    means = table.groupby("step")["sdiareward_modality"].mean().tolist()
    assert [entry["rewards/sdiareward_modality/mean"] for entry in logged] == pytest.approx(means, abs=1e-4)
    failed = table["sdiareward_modality"].isna().groupby(table["step"]).mean().tolist()
    assert [entry["sdiareward_modality/failed"] for entry in logged] == pytest.approx(failed)
    assert reward.num_scored == table["sdiareward_modality"].notna().sum()
