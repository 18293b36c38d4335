import json
import math
import shutil
from functools import partial

import datasets
import pytest
import torch
import yaml
from support import wavreward_eval_world
from support.paths import FIXTURES, ROOT
from trl import GRPOConfig, SFTConfig

from sdiareward.cli import main
from sdiareward.dataset_builder.chatreward.scenarios import features
from sdiareward.judges.thinker import Thinker, ThinkerProcessor, load_thinker_model
from sdiareward.judges.wavreward.audio_grpo import AudioGRPOTrainer
from sdiareward.judges.wavreward.judge import PROMPT_FILE, JudgingPrompt, WavRewardJudge
from sdiareward.judges.wavreward.train import (
    GRPOArguments,
    JudgeArguments,
    load_judge_to_train,
    load_samples_to_train_on,
    make_prompt_rows,
    make_target_rows,
    train,
)
from sdiareward.judges.wavreward.wavreward_trainer import ScenarioSampler, TargetCollator
from sdiareward.perturbations.channel import encode
from sdiareward.training.arguments import OptionError


ask = partial(JudgingPrompt().make_conversation, reasoning=False)


@pytest.fixture(scope="module")
def samples(make_tone):
    """Three scenarios of three answers, of different lengths."""
    rows = []
    for scenario in range(3):
        for answer, score in enumerate((5, 3, 1)):
            tone = make_tone(0.2 + 0.07 * scenario + 0.05 * answer, 200.0 + 150 * answer, seed=scenario)
            audio = {"bytes": encode(tone, 16_000, "WAV", "PCM_16", None), "path": None}
            rows.append(
                {"sample_id": f"{scenario}{answer}", "scenario_id": f"s{scenario}", "score": score, "audio": audio}
            )
    return datasets.Dataset.from_list(rows)


@pytest.fixture(scope="module")
def dataset_folder(samples, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat_reward")
    wavreward_eval_world.write_split(folder, "train", [{**dict.fromkeys(features()), **row} for row in samples])
    return folder


COMMON = {"per_device_train_batch_size": 6, "lr_scheduler_type": "constant", "use_cpu": True, "bf16": False}
COMMON |= {"gradient_checkpointing": False, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
EACH_STEP = {"save_strategy": "steps", "save_steps": 1}


def grpo_config(folder, **changes):
    sizes = {"num_generations": 2, "max_completion_length": 5, "max_steps": 1, "learning_rate": 1e-2}
    loss = {"beta": 0.01, "loss_type": "grpo", "use_bias_correction_kl": False, "logging_steps": 1}
    return GRPOConfig(output_dir=str(folder), **{**COMMON, **sizes, **loss, **changes})


def count_letters(completions, **_):
    """A reward that differs between answers even of a model that writes gibberish."""
    return [float(len(completion[0]["content"])) for completion in completions]


@pytest.fixture
def make_trainer(tmp_path, tiny_judge, samples):
    def make(**changes):
        return AudioGRPOTrainer(
            load_thinker_model(tiny_judge, dtype="float32"),
            [count_letters],
            grpo_config(tmp_path / "run", **changes),
            processing_class=ThinkerProcessor.from_pretrained(tiny_judge),
            train_dataset=make_prompt_rows(samples, ask),
        )

    return make


def logps_alone(model, processor, prompt, completion_ids):
    """Return the log probability of each token of an answer, by the class's own forward pass and nothing else."""
    inputs = Thinker(model, processor).prepare([prompt])
    length = inputs["input_ids"].shape[1]
    inputs["input_ids"] = torch.cat([inputs["input_ids"], torch.tensor([completion_ids])], dim=1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    logits = model(**inputs).logits[0, length - 1 : -1]
    return logits.log_softmax(dim=-1).gather(1, torch.tensor(completion_ids)[:, None])[:, 0]


@pytest.mark.slow
def test_each_row_of_a_shuffled_batch_is_scored_with_its_own_recording(make_trainer, samples, monkeypatch):
    trainer, read, prepare = make_trainer(), [], ThinkerProcessor.prepare
    # Recordings 0, 4 and 8: no two sound alike.
    rows = [make_prompt_rows(samples, ask)[index] for index in (0, 0, 4, 4, 8, 8)]
    trainer.model.train()
    batch = trainer._prepare_inputs(rows)
    trainer._audio = {name: batch[name] for name in ("input_features", "feature_attention_mask")}
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    keep = batch["completion_ids"].shape[1]
    found, _, _ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, keep, batch_size=4)
    processor = trainer.processing_class
    # A prompt is tokenized once for its group.
    prompts = [make_prompt_rows(samples, ask)[index]["prompt"] for index in (0, 0, 1, 1, 1, 0)]
    monkeypatch.setattr(ThinkerProcessor, "prepare", lambda self, *args: read.append(1) or prepare(self, *args))
    ids, _, fields = trainer._tokenize_prompts(prompts)
    assert len(read) == 3 and ids[0] == ids[1] == ids[5] != ids[2]
    assert len(fields["input_features"]) == 6
    assert torch.equal(fields["input_features"][0], fields["input_features"][5])
    prompt_of = {
        tuple(Thinker(trainer.model, processor).prepare([row["prompt"]])["input_ids"][0].tolist()): row["prompt"]
        for row in rows
    }
    assert len(prompt_of) == 3
    for row in range(6):
        prompt = prompt_of[tuple(batch["prompt_ids"][row][batch["prompt_mask"][row] == 1].tolist())]
        length = int(batch["completion_mask"][row].sum())
        expected = logps_alone(trainer.model, processor, prompt, batch["completion_ids"][row][:length].tolist())
        assert torch.allclose(found[row, :length], expected, atol=1e-4)


def test_advantages_are_those_of_equation_4_times_the_root_of_n_minus_1_over_n(make_trainer, samples):
    trainer = make_trainer(num_generations=6)
    rewards = [10.0, 6.0, 1.0, 10.0, 0.0, 15.0]
    trainer.reward_funcs = [lambda **_: rewards]
    trainer.model.train()
    batch = trainer._generate_and_score_completions([make_prompt_rows(samples, ask)[0]] * 6)
    mean = sum(rewards) / 6
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / 6)
    expected = [(reward - mean) / deviation * math.sqrt(5 / 6) for reward in rewards]
    assert batch["advantages"].tolist() == pytest.approx(expected, abs=1e-3)


def test_placeholders_are_never_sampled_and_generation_without_recordings_is_refused(make_trainer):
    suppressed = make_trainer().generation_config.suppress_tokens
    assert suppressed == [643, 652, 653]
    with pytest.raises(ValueError, match="continuous_batching do not support recordings"):
        make_trainer(use_vllm=True)


def run_grpo(folder, tiny_judge, dataset_folder, config=None, **arguments):
    args = GRPOArguments(model_name_or_path=str(tiny_judge), dataset=str(dataset_folder), **arguments)
    return train(args, grpo_config(folder, **(config or {})))


def weights(folder):
    return {name: tensor.clone() for name, tensor in load_thinker_model(folder).state_dict().items()}


@pytest.fixture
def rewarded_by_letters(monkeypatch):
    """Gibberish never has a score; letters make a signal to learn from."""
    monkeypatch.setattr("sdiareward.judges.wavreward.train.make_reward_functions", lambda **_: [count_letters])


def read_kl(folder):
    return [line["kl"] for line in json.loads((folder / "run.json").read_text())["history"] if "kl" in line]


@pytest.mark.slow
def test_a_run_changes_what_is_not_frozen_and_its_reference_stays_the_published_thinker(
    tmp_path, dataset_folder, rewarded_by_letters, monkeypatch
):
    # Its configuration names a class that does not exist.
    start, trainers, save = FIXTURES / "base_tiny", [], AudioGRPOTrainer.save_model
    monkeypatch.setattr(
        AudioGRPOTrainer, "save_model", lambda trainer, *rest: trainers.append(trainer) or save(trainer, *rest)
    )
    folder = run_grpo(tmp_path, start, dataset_folder, {"max_steps": 2}, freeze_audio_tower=True)
    before, after = weights(start), weights(folder)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    heard = {name for name in changed if "audio_tower" in name or "visual" in name}
    assert "lm_head.weight" in changed
    assert heard == {"model.audio_tower.proj.weight", "model.audio_tower.proj.bias"}
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainers[0].ref_model.state_dict().items())
    first, second = read_kl(folder)
    assert first == 0.0 and second > 1e-4
    Thinker.from_pretrained(folder, device="cpu")
    record = json.loads((folder / "run.json").read_text())
    assert (record["arguments"]["sigma"], record["num_samples"]) == (1.0, 9)
    assert any("rewards/count_letters/mean" in line for line in record["history"])


@pytest.mark.slow
def test_adapters_start_from_adapters_are_merged_on_loading_and_their_reference_is_the_thinker_without_them(
    tmp_path, tiny_judge, dataset_folder, rewarded_by_letters
):
    for use_peft, dtype in ((False, torch.float32), (True, torch.bfloat16)):
        args = JudgeArguments(model_name_or_path=str(tiny_judge), dataset="none", use_peft=use_peft)
        assert load_judge_to_train(args, grpo_config(tmp_path, bf16=True))[0].dtype == dtype
    config = {"max_steps": 2, "learning_rate": 1e-1}
    lora = {"use_peft": True, "lora_r": 2, "multi_sample": False}
    first = run_grpo(tmp_path / "first", tiny_judge, dataset_folder, {**config, "bf16": True}, **lora)
    # PEFT draws one of the two matrices of an adapter and sets the other to zero.
    kl = read_kl(first)
    assert kl[0] == 0.0 < kl[-1]
    second = run_grpo(tmp_path / "second", first, dataset_folder, {**config, "max_steps": 1}, **lora)
    assert read_kl(second) == [0.0]
    assert json.loads((second / "adapter_config.json").read_text())["base_model_name_or_path"] == str(first)
    base, once, twice = (weights(folder) for folder in (tiny_judge, first, second))
    changed = {name for name in base if not torch.equal(base[name].float(), once[name].float())}
    assert changed and all("language_model.layers" in name for name in changed)
    name = "model.language_model.layers.0.mlp.up_proj.weight"
    assert 0 < (twice[name] - once[name]).norm() < (twice[name] - base[name]).norm()


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_weights(tmp_path, tiny_judge, dataset_folder, rewarded_by_letters):
    # Five steps of three an epoch: it resumes in the middle of the second.
    config = {**EACH_STEP, "max_steps": 5}
    whole = run_grpo(tmp_path / "whole", tiny_judge, dataset_folder, config)
    expected = weights(whole)
    shutil.rmtree(whole / "checkpoint-5")
    found = weights(run_grpo(whole, tiny_judge, dataset_folder, config, resume=True))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert (whole / "checkpoint-5").exists() and not (whole / "checkpoint-6").exists()


def test_the_sft_loss_is_the_cross_entropy_of_the_answer_alone(tiny_judge, samples):
    model, processor = load_thinker_model(tiny_judge), ThinkerProcessor.from_pretrained(tiny_judge)
    rows = make_target_rows(samples.select([0, 5]), ask, reasoning=False)
    batch = TargetCollator(processor)([rows[0], rows[1]])
    found = model(**batch).loss
    total, count = 0.0, 0
    for row in rows:
        ids = processor.encode_text(row["target"] + "<|im_end|>")
        total -= float(logps_alone(model, processor, row["prompt"], ids).sum())
        count += len(ids)
    assert rows[1]["target"] == "<score>1</score>"
    assert float(found) == pytest.approx(total / count, abs=1e-4)


def run_sft(folder, tiny_judge, dataset_folder, config=None, **arguments):
    options = {**COMMON, "max_steps": 3, "learning_rate": 3e-2, **(config or {})}
    places = {"model_name_or_path": str(tiny_judge), "dataset": str(dataset_folder)}
    return train(JudgeArguments(**places, reasoning=False, **arguments), SFTConfig(output_dir=str(folder), **options))


@pytest.mark.slow
def test_resumed_sft_ends_with_the_same_weights_and_refuses_other_options(tmp_path, tiny_judge, dataset_folder):
    whole = run_sft(tmp_path / "whole", tiny_judge, dataset_folder, EACH_STEP, use_peft=True)
    expected = weights(whole)
    named = {**EACH_STEP, "resume_from_checkpoint": str(whole / "checkpoint-1")}
    folder = run_sft(tmp_path / "named", tiny_judge, dataset_folder, named, use_peft=True)
    assert not (folder / "checkpoint-1").exists() and (folder / "checkpoint-2").exists()
    found = weights(folder)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    with pytest.raises(OptionError, match="learning_rate"):
        run_sft(whole, tiny_judge, dataset_folder, {**EACH_STEP, "learning_rate": 0.5}, use_peft=True, resume=True)


def test_sft_with_reasoning_needs_targets_and_incomplete_scenarios_are_skipped(
    samples, dataset_folder, caplog, monkeypatch
):
    with pytest.raises(ValueError, match="have no column 'target' with thoughts to imitate"):
        make_target_rows(samples, ask, reasoning=True)
    args = JudgeArguments(dataset=str(dataset_folder), max_scenarios=2)
    assert load_samples_to_train_on(args)["scenario_id"] == ["s0"] * 3 + ["s1"] * 3
    load = "sdiareward.dataset_builder.chatreward.scenarios.load_samples"
    monkeypatch.setattr(load, lambda *_: samples.select([0, 1, 2, 3, 5, 6, 7, 8]))
    assert load_samples_to_train_on(args)["sample_id"] == ["00", "01", "02", "20", "21", "22"]
    assert "skipped 1 of 3 scenarios, which do not have 3 answers" in caplog.text
    monkeypatch.setattr(load, lambda *_: samples.select([]))
    with pytest.raises(ValueError, match="there are no samples to train on"):
        load_samples_to_train_on(args)


@pytest.mark.slow
def test_both_commands_run_from_their_recipes(tmp_path, tiny_judge, dataset_folder, capsys):
    def run(recipe, model, output, *more):
        words = ["--config", FIXTURES / recipe, "--model", model, "--dataset", dataset_folder, *more]
        words += ["--max_steps", 1, "--save_strategy", "no", "--output_dir", tmp_path / output]
        assert main(["train", *map(str, words)]) == 0

    recipe = yaml.safe_load((ROOT / "configs" / "wavreward-7b.yaml").read_text())
    answers = 8 * recipe["per_device_train_batch_size"] * recipe["steps_per_generation"]
    assert answers % (3 * recipe["num_generations"]) == 0
    own = JudgingPrompt(system="", task="How loud? ")
    own.save(tmp_path)
    run("wavreward-nano-sft.yaml", tiny_judge, "sft", "--prompt_file", tmp_path / PROMPT_FILE)
    sizes = ["--per_device_train_batch_size", 6, "--num_generations", 2, "--multi_sample", "false"]
    run("wavreward-nano.yaml", tmp_path / "sft", "grpo", *sizes, "--accuracy_reward", "exact")
    record = json.loads((tmp_path / "grpo" / "run.json").read_text())
    assert (record["arguments"]["accuracy_reward"], record["arguments"]["multi_sample"]) == ("exact", False)
    assert record["prompt_version"] == own.version
    assert WavRewardJudge.from_pretrained(tmp_path / "grpo", device="cpu").prompt == own
    assert str(tmp_path / "grpo") in capsys.readouterr().out


SCENARIOS = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14]]


def sampler(scenarios=SCENARIOS, **changes):
    return ScenarioSampler(scenarios, **{"num_generations": 2, "prompts_per_batch": 6, "repeat_count": 1, **changes})


def test_a_batch_holds_whole_scenarios_with_each_answer_repeated_for_its_group_and_steps():
    rows = list(sampler())
    assert len(rows) == len(sampler()) == 24
    for batch in (rows[:12], rows[12:]):
        assert batch[::2] == batch[1::2]
        assert {row // 3 for row in batch[:6]} != {row // 3 for row in batch[6:]}
        assert all(sorted(set(scenario)) in SCENARIOS for scenario in (batch[:6], batch[6:]))
    rows = list(sampler(repeat_count=3))
    assert len(rows) == 72 and rows[:12] == rows[12:24] == rows[24:36] != rows[36:48]


def test_without_multi_sample_each_scenario_gives_one_answer_by_seed_and_epoch():
    assert list(sampler(seed=1)) == list(sampler(seed=1)) != list(sampler(seed=2))
    single, epochs = sampler(multi_sample=False, prompts_per_batch=5), []
    for epoch in range(6):
        single.set_epoch(epoch)
        rows = list(single)
        assert rows[::2] == rows[1::2] and sorted(row // 3 for row in rows[::2]) == [0, 1, 2, 3, 4]
        epochs.append(tuple(sorted(rows[::2])))
    assert len(set(epochs)) > 1 and {row % 3 for rows in epochs for row in rows} == {0, 1, 2}


def test_invalid_batch_sizes_are_refused():
    for scenarios, size, message in (
        (SCENARIOS, 4, "4 prompts, not a multiple of a scenario's 3 answers"),
        (SCENARIOS, 18, "there are 5 scenarios, but a generation batch takes 6"),
        ([[0, 1], [2, 3, 4]], 3, r"scenarios have \[2, 3\] answers; all must have the same number"),
    ):
        with pytest.raises(ValueError, match=message):
            sampler(scenarios, prompts_per_batch=size)
