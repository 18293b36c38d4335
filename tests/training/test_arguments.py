"""The command line of training is TRL's; what has no effect is refused before the model or the data are looked for."""

import importlib.util
import re
from dataclasses import fields

import pytest
from support.paths import ROOT
from support.refusals import check_refused
from trl import RewardConfig

from sdiareward.train import main
from sdiareward.training.arguments import (
    OptionError,
    RewardTrainingConfig,
    SDiaRewardModelConfig,
    SDiaRewardScriptArguments,
    choose_max_length,
    choose_schedule,
    parse_arguments,
    require_libraries,
    require_supported,
)


@pytest.fixture
def make_config(tmp_path):
    def make(kind=RewardConfig, **options):
        needed = {"output_dir": str(tmp_path / "run"), "use_cpu": True, "report_to": "none"}
        return kind(**{**needed, **({"bf16": False} if kind is RewardConfig else {}), **options})

    return make


# The examples of TRL's reward script, with a model and data of ours.
TRL_EXAMPLE = """
    --model_name_or_path Qwen/Qwen2.5-Omni-3B --dataset_name sdiareward --output_dir run
    --per_device_train_batch_size 8 --num_train_epochs 1 --gradient_checkpointing True --learning_rate 1.0e-4
    --eval_strategy steps --eval_steps 50 --max_length 2048 --push_to_hub --hub_model_id me/model
    --use_peft --lora_task_type SEQ_CLS --lora_r 32 --lora_alpha 16
"""


def test_an_example_of_trl_means_what_it_means_there():
    args, training, model_args = parse_arguments([*TRL_EXAMPLE.split(), "--use_cpu"])
    names = (args.dataset_name, args.dataset_config, model_args.model_name_or_path)
    assert names == ("sdiareward", None, "Qwen/Qwen2.5-Omni-3B")
    assert (model_args.mode, model_args.lora_r, model_args.lora_alpha) == ("lora", 32, 16)
    assert (choose_max_length(training), training.hub_model_id, training.eval_steps) == (2048, "me/model", 50)
    # The finished folder is pushed, and not each checkpoint.
    assert (args.push_to_hub, training.push_to_hub) == (True, False)


def test_flags_override_the_file_of_config_and_a_single_value_is_a_list(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("dataset_name: a\nlearning_rate: 1e-4\nmore_datasets: b\naugmentations: gain\nseed: 3\n")
    flags = ["--config", str(recipe), "--seed", "5", "--output-dir", str(tmp_path), "--use_cpu"]
    args, training, model_args = parse_arguments(flags)
    assert (args.dataset_name, args.more_datasets, args.augmentations) == ("a", ["b"], ["gain"])
    assert (training.learning_rate, training.seed, training.bf16, model_args.mode) == (1e-4, 5, False, "full")


def test_names_get_the_commits_of_their_revisions(tmp_path, monkeypatch):
    monkeypatch.setattr("sdiareward.training.arguments.resolve_revision", lambda *names: "@".join(names))
    flags = "--dataset_name d --dataset_revision r1 --more_datasets a b --more_revisions r2 r3 --use_peft"
    flags += " --model_name_or_path m --model_revision r4 --adapter_name_or_path p --adapter_revision r5 --use_cpu"
    args, _, model_args = parse_arguments([*flags.split(), "--output_dir", str(tmp_path)])
    assert (args.dataset_name, args.more_datasets) == ("d@r1@dataset", ["a@r2@dataset", "b@r3@dataset"])
    assert (model_args.model_name_or_path, model_args.adapter_name_or_path) == ("m@r4", "p@r5")


NOWHERE = ["--model_name_or_path", "nano", "--dataset_name", "nowhere/data", "--use_cpu", "--bf16", "False"]
REFUSED = {
    "--eos_token </s> --hub_token x": "hub_token, eos_token: training here does not use it; omit it",
    "--use_dora --dtype auto": "dtype, use_dora: training here does not use it",
    "--dataset_streaming": "dataset_streaming: training here",
    "--warmup_ratio 0.1": "unknown option --warmup_ratio; did you mean --warmup_steps?",
    "--learning_rate fast": "argument --learning_rate.*: invalid float value: 'fast'",
    "--resume_from_checkpoint . --resume True": "give resume alone for the newest",
    "--more_datasets a b --more_revisions main": "give one revision for each",
    "--config {tmp}/none.yaml": "none.yaml: no such file",
    "--config {tmp}/unknown.yaml": "unknown option --learning_rat; did you mean --learning_rate",
    "--config {tmp}/wrong.yaml": "wrong.yaml: not YAML",
    "--early_stopping_patience 2": "early_stopping_patience needs evaluations; set eval_strategy",
    "--optim adamw_bnb_8bit": "optim is .*bitsandbytes",
    "--report_to wandbb": "report_to is .*wandbb is not supported",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_wrong_options_end_in_one_line_before_anything_is_loaded(flags, tmp_path, capsys):
    if "bnb" in flags and importlib.util.find_spec("bitsandbytes") is not None:
        pytest.skip("bitsandbytes is installed")
    (tmp_path / "unknown.yaml").write_text("learning_rat: 1\n")
    (tmp_path / "wrong.yaml").write_text("seed: [1\n")
    given = [*NOWHERE, "--output_dir", str(tmp_path / "run"), *flags.format(tmp=tmp_path).split()]
    line = check_refused(capsys, REFUSED[flags], main, given)
    assert line.startswith("sdiareward train: error: ") and len(line) < 500
    assert not list((tmp_path / "run").glob("[!.]*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"do_eval": True}, "do_eval is True but eval_strategy is 'no'"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps is 0; it must be at least 1"),
        ({"accelerator_config": {"split_batches": True}}, "accelerator_config has split_batches"),
        ({"fsdp": True}, "fsdp is given to one process"),
        ({"label_smoothing_factor": 0.5}, "label_smoothing_factor is 0.5; it must be at least 0 and below 0.5"),
        ({"liger_kernel_config": {"rope": True}}, "liger_kernel_config"),
        ({"push_to_hub": True}, "push_to_hub"),
        ({"max_length": None, "gradient_accumulation_steps": 8, "do_train": True, "optim": "sgd"}, None),
    ],
)
def test_options_of_trl_that_the_trainer_takes_and_refuses(options, message, make_config):
    config = make_config(**options)
    require_libraries(config)
    if message is None:
        require_supported(config)
        return
    with pytest.raises(OptionError, match=message):
        require_supported(config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        # Of the model: an option of another kind of training.
        ({"freeze_backbone": True, "freeze_audio_tower": False}, "freeze_audio_tower is False and would have no"),
        ({"lora_r": 64}, "lora_r is 64 and would have no effect; it is for training with use_peft"),
        ({"use_peft": True, "through_backbone": True}, "through_backbone .* with freeze_backbone"),
        ({"freeze_backbone": True, "through_backbone": True, "from_cache": "cache"}, "from_cache has no effect"),
        ({"freeze_backbone": True, "use_peft": True}, "use_peft and freeze_backbone are both given"),
        ({"folds": 1}, "folds is 1; it must be at least 2"),
        ({"folds": 2, "use_peft": True}, "use_peft and folds are both given"),
        ({"max_turn_s": -1.0}, "max_turn_s"),
        # Of the script: out of range, or without effect.
        ({"augmentations": ["echo"]}, "unknown perturbation 'echo'"),
        ({"augmentations": ["gain"], "augmented_copies": 0}, "augmented_copies is 0; give at least 1"),
        ({"augment_sides": "left"}, "augment_sides is 'left'; it must be one of both, each"),
        ({"hard_negatives": ["bribe"]}, "the hard negative is 'bribe'; it must be one of breaths, clicks"),
        ({"hard_negative_share": 0.0}, "hard_negative_share is 0; it must be above 0 and at most 1"),
        ({"augmented_copies": 3}, "augmented_copies has no effect without augmentations"),
        ({"hard_negative_share": 0.5}, "hard_negative_share has no effect without hard_negatives"),
        ({"batch_tokens": 0}, "batch_tokens is 0; it must be at least 1"),
    ],
)
def test_options_of_ours_that_have_no_effect_or_are_out_of_range_are_refused(options, message):
    is_of_model = {*options} <= {field.name for field in fields(SDiaRewardModelConfig)}
    with pytest.raises(ValueError, match=message):
        SDiaRewardModelConfig(**options) if is_of_model else SDiaRewardScriptArguments("pairs", **options)


def test_early_stopping_follows_the_validation_loss(tmp_path):
    flags = ["--dataset_name", "d", "--output_dir", str(tmp_path), "--eval_strategy", "epoch", "--use_cpu"]
    flags += ["--early_stopping_patience", "1"]
    config = parse_arguments(flags)[1]
    assert (config.metric_for_best_model, config.greater_is_better) == ("loss", False)
    flags += ["--metric_for_best_model", "accuracy", "--greater_is_better", "True"]
    config = parse_arguments(flags)[1]
    assert (config.metric_for_best_model, config.greater_is_better) == ("accuracy", True)


def test_the_precision_fits_the_machine_unless_one_is_given(make_config, monkeypatch):
    monkeypatch.setattr("sdiareward.training.arguments.is_torch_bf16_gpu_available", lambda: False)
    config = make_config(RewardTrainingConfig)
    assert not config.bf16 and not config.dataloader_pin_memory
    assert choose_schedule(config, "full", 8)[0].startswith("no GPU for bfloat16 is used: training in float32 on cpu")
    assert len(choose_schedule(make_config(RewardTrainingConfig, bf16=False), "full", 8)) == 1
    with pytest.raises(OptionError, match="has no GPU that computes in bfloat16; add --bf16 False"):
        make_config(RewardTrainingConfig, bf16=True, use_cpu=False)


@pytest.mark.parametrize("mode", ["head", "lora", "full"])
def test_the_guide_has_the_schedules_that_a_run_chooses(mode, make_config):
    guide = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    (row,) = [line for line in guide.splitlines() if line.startswith(f"| `{mode}` | 0.")]
    rate, _, *schedules = (cell.strip() for cell in row.strip("|").split("|")[1:])
    for num_pairs, written in zip((20, 20_000), schedules, strict=True):
        args = make_config(RewardTrainingConfig)
        choose_schedule(args, mode, num_pairs)
        steps = args.num_train_epochs * -(-num_pairs // args.per_device_train_batch_size)
        assert float(rate) == args.learning_rate
        assert list(map(int, re.findall(r"\d+", written.replace(",", "")))) == [args.num_train_epochs, steps]
    given = make_config(RewardTrainingConfig, bf16=False, learning_rate=0.0, num_train_epochs=1)
    assert choose_schedule(given, mode, 20) == [] and (given.learning_rate, given.num_train_epochs) == (0.0, 1)
