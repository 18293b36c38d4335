"""Options of training are refused before the model or the data, which are not there, are looked for."""

import importlib.util
import re

import pytest
from support.paths import ROOT
from support.refusals import check_refused

from sdiareward.common.commands import parse_trl
from sdiareward.train import main
from sdiareward.training.arguments import TrainArguments
from sdiareward.training.options import (
    OptionError,
    RewardTrainingConfig,
    choose_schedule,
    merge_accumulation,
    prepare_early_stopping,
    require_libraries,
    require_supported,
)


@pytest.fixture(autouse=True)
def without_deepspeed():
    """Forget a DeepSpeed configuration that was refused: `transformers` keeps it for the process."""
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    yield
    unset_hf_deepspeed_config()


@pytest.fixture
def make_config(tmp_path):
    from trl import RewardConfig

    def make(**options):
        return RewardConfig(**{"output_dir": str(tmp_path / "run"), "use_cpu": True, "bf16": False, **options})

    return make


UNUSED = {
    "include_num_input_tokens_seen": "all",
    "liger_kernel_config": {"rope": True},
    "max_length": 512,
    "model_init_kwargs": {"dtype": "float16"},
    "push_to_hub": True,
    "train_sampling_strategy": "group_by_length",
    "trust_remote_code": True,
    "use_liger_kernel": True,
}


@pytest.mark.parametrize("name", UNUSED)
def test_an_option_that_would_be_ignored_is_refused_by_name(name, make_config):
    with pytest.raises(OptionError, match=f"^{name}: .* omit it"):
        require_supported(make_config(**{name: UNUSED[name]}))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_length": None, "gradient_accumulation_steps": 8, "report_to": "none", "do_train": True},
        {"eval_strategy": "steps", "eval_steps": 2, "save_total_limit": 3, "optim": "sgd"},
    ],
)
def test_the_other_options_are_accepted(options, make_config):
    require_supported(make_config(**options))
    require_libraries(make_config(**options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"do_eval": True}, "do_eval is True but eval_strategy is 'no'"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps is 0; it must be at least 1"),
        ({"accelerator_config": {"split_batches": True}}, "accelerator_config has split_batches"),
        ({"fsdp": True}, "fsdp is given to one process"),
        ({"label_smoothing_factor": 0.5}, "label_smoothing_factor is 0.5; it must be at least 0 and below 0.5"),
    ],
)
def test_an_option_that_would_fail_late_is_refused(options, message, make_config):
    with pytest.raises(OptionError, match=message):
        require_supported(make_config(**options))


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is not None, reason="bitsandbytes is installed")
def test_an_optimizer_whose_library_is_missing_is_refused(make_config):
    with pytest.raises(OptionError, match="optim is .*bitsandbytes"):
        require_libraries(make_config(optim="adamw_bnb_8bit"))


def test_an_unknown_tracker_is_refused(make_config):
    with pytest.raises(OptionError, match="report_to is .*wandbb is not supported"):
        require_libraries(make_config(report_to="wandbb"))


def test_early_stopping_follows_the_validation_loss(make_config):
    config = make_config(eval_strategy="epoch")
    prepare_early_stopping(config, 1)
    assert (config.metric_for_best_model, config.greater_is_better) == ("loss", False)
    config = make_config(eval_strategy="epoch", metric_for_best_model="accuracy", greater_is_better=True)
    prepare_early_stopping(config, 1)
    assert (config.metric_for_best_model, config.greater_is_better) == ("accuracy", True)
    prepare_early_stopping(make_config(eval_strategy="no"), None)
    with pytest.raises(OptionError, match="early_stopping_patience needs evaluations; set eval_strategy"):
        prepare_early_stopping(make_config(eval_strategy="no"), 1)


def test_accumulated_batches_are_one_larger_batch(make_config):
    args = make_config(per_device_train_batch_size=2, gradient_accumulation_steps=8)
    merged = merge_accumulation(args)
    assert (merged.per_device_train_batch_size, merged.gradient_accumulation_steps) == (16, 1)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (2, 8)
    assert merge_accumulation(merged) is merged


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": "head", "freeze_audio_tower": False}, "freeze_audio_tower is False but train is 'head'"),
        ({"train": "lora", "freeze_text_model": True}, "freeze_text_model is True but train is 'lora'"),
        ({"lora_r": 64}, "lora_r is 64 but train is 'full', in which it has no effect; set train to lora, or omit"),
        ({"train": "head", "lora_alpha": 64}, "lora_alpha is 64 but train is 'head'"),
        ({"train": "lora", "through_backbone": True}, "through_backbone is True but train is 'lora'"),
        ({"adapter_name_or_path": "adapter"}, "adapter_name_or_path is 'adapter' but train is 'full'"),
        ({"from_cache": "cache"}, "from_cache is given but train is 'full'"),
        ({"augmented_copies": 3}, "augmented_copies is 3 without augmentations"),
        ({"hard_negative_share": 0.5}, "hard_negative_share is 0.5 without hard_negatives"),
    ],
)
def test_an_option_of_another_kind_of_training_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TrainArguments("model", "data", **options)


@pytest.mark.parametrize("name", ["3b", "7b", "demo", "nano", "nano_robust", "small"])
def test_the_options_of_every_recipe_have_an_effect(name, tmp_path):
    from trl import RewardConfig

    flags = ["--config", str(ROOT / "configs" / f"{name}.yaml"), "--output_dir", str(tmp_path), "--bf16", "False"]
    kinds = (TrainArguments, RewardConfig)
    args, training = parse_trl(kinds, [*flags, "--use_cpu", "True"], prog="train")
    require_supported(training)
    assert args.train in ("head", "lora", "full")


NOWHERE = ["--model_name_or_path", "nowhere/model", "--dataset", "nowhere/data", "--use_cpu", "--bf16", "False"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--max_length", "512"), "max_length: training here does not use it"),
        (("--deepspeed", "zero.json"), "needs a library that is not installed"),
        (("--warmup_ratio", "0.1"), "unknown option --warmup_ratio; did you mean --warmup_steps?"),
        (("--resume_from_checkpoint", "nowhere/checkpoint-9"), "nowhere/checkpoint-9 is not a folder; give"),
        (("--resume_from_checkpoint", ".", "--resume", "True"), "give resume alone for the newest"),
    ],
)
def test_the_script_refuses_them_in_one_line_before_it_loads_anything(flags, message, tmp_path, capsys):
    if flags[0] == "--deepspeed" and importlib.util.find_spec("deepspeed") is not None:
        pytest.skip("deepspeed is installed")
    # The library warns of options of its own before that line.
    line = check_refused(capsys, re.escape(message), main, [*NOWHERE, "--output_dir", str(tmp_path / "run"), *flags])
    assert line.startswith("sdiareward-train: error: ")
    assert not list((tmp_path / "run").glob("[!.]*"))


def test_an_unknown_key_of_a_recipe_is_refused_with_the_nearest(tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text("learning_rat: 1.0e-4\n")
    flags = ["--output_dir", str(tmp_path / "run"), "--config", str(tmp_path / "recipe.yaml")]
    line = check_refused(
        capsys, "unknown keys ..learning_rat..; did you mean 'learning_rate'", main, [*NOWHERE, *flags]
    )
    assert len(line) < 200


@pytest.mark.parametrize(
    ("mode", "num_pairs", "given", "expected"),
    [
        ("head", 20, {}, (1e-3, 100)),
        ("head", 2_000, {}, (1e-3, 3)),
        ("head", 20_000, {}, (1e-3, 3)),
        ("lora", 20, {}, (2e-4, 67)),
        ("lora", 20_000, {}, (2e-4, 1)),
        ("full", 20, {}, (1e-4, 34)),
        ("full", 20_000, {}, (1e-4, 1)),
        ("head", 20, {"gradient_accumulation_steps": 2}, (1e-3, 150)),
        ("head", 20, {"learning_rate": 2e-5, "num_train_epochs": 1}, (2e-5, 1)),
        ("full", 20, {"learning_rate": 0.0}, (0.0, 34)),
    ],
)
def test_the_schedule_fits_what_is_trained_and_the_number_of_pairs(mode, num_pairs, given, expected, tmp_path):
    args = RewardTrainingConfig(output_dir=str(tmp_path), report_to="none", use_cpu=True, **given)
    notice = choose_schedule(args, mode, num_pairs)
    assert (args.learning_rate, args.num_train_epochs) == expected
    assert (notice is None) == ("num_train_epochs" in given)


@pytest.mark.parametrize("mode", ["head", "lora", "full"])
def test_the_guide_has_the_schedules_that_a_run_chooses(mode, tmp_path):
    guide = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    (row,) = [line for line in guide.splitlines() if line.startswith(f"| `{mode}` | 0.")]
    rate, _, *schedules = (cell.strip() for cell in row.strip("|").split("|")[1:])
    for num_pairs, written in zip((20, 20_000), schedules, strict=True):
        args = RewardTrainingConfig(output_dir=str(tmp_path), report_to="none", use_cpu=True)
        choose_schedule(args, mode, num_pairs)
        steps = args.num_train_epochs * -(-num_pairs // args.per_device_train_batch_size)
        assert float(rate) == args.learning_rate
        assert [int(part.split()[0].replace(",", "")) for part in written.split(", ")] == [
            args.num_train_epochs,
            steps,
        ]
