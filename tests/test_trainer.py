import json
import math

import datasets
import pytest
import torch

from sdiareward.dataset_builder.channel import encode
from sdiareward.scoring import Scorer
from sdiareward.train import TrainArguments, load_model, main, prepare_for_training
from sdiareward.trainer import PairCollator, SDiaRewardTrainer, encode_pairs


pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def pairs(make_tone):
    """Four pairs: the chosen side is a tone that the rejected side lacks."""

    def side(row, frequency_hz):
        turns = []
        for turn, role in enumerate(("user", "assistant")):
            wav = encode(make_tone(0.2 + 0.1 * row, frequency_hz + 40 * turn, row), 16_000, "WAV", "PCM_16", None)
            turns.append({"role": role, "text": f"line {row}", "audio": {"bytes": wav, "path": None}})
        return turns

    rows = [
        {
            "chosen": side(row, 200.0),
            "rejected": side(row, 900.0),
            "criterion": ("modality", "colloquialness")[row % 2],
        }
        for row in range(4)
    ]
    return datasets.Dataset.from_list(rows)


@pytest.fixture
def reward_config(tmp_path):
    from trl import RewardConfig

    def make(**changes):
        options = {
            "output_dir": str(tmp_path / "run"),
            "per_device_train_batch_size": 4,
            "max_steps": 1,
            "learning_rate": 1e-2,
            "center_rewards_coefficient": 0.01,
            "gradient_checkpointing": False,
            "use_cpu": True,
            "bf16": False,
            "report_to": "none",
            "logging_steps": 1,
            "save_strategy": "no",
            "disable_tqdm": True,
        }
        return RewardConfig(**{**options, **changes})

    return make


@pytest.fixture
def make_trainer(make_tiny_model, tiny_processor, pairs, reward_config):
    def make(model=None, train_dataset=None, **changes):
        return SDiaRewardTrainer(
            model or make_tiny_model(), tiny_processor, reward_config(**changes), train_dataset=train_dataset or pairs
        )

    return make


def test_the_loss_is_bradley_terry_plus_centering_by_hand(make_trainer, tiny_processor, pairs):
    trainer = make_trainer()
    batch = PairCollator(tiny_processor)([pairs[0], pairs[1]])
    rewards = trainer.model(**batch).logits.squeeze(-1).tolist()
    expected = 0.0
    for chosen, rejected in zip(rewards[:2], rewards[2:], strict=True):
        expected += (math.log1p(math.exp(rejected - chosen)) + 0.01 * (chosen + rejected) ** 2) / 2
    assert trainer.compute_loss(trainer.model, dict(batch)).item() == pytest.approx(expected, rel=1e-5)


def test_swapping_chosen_and_rejected_flips_the_margin(make_trainer, tiny_processor, pairs):
    trainer = make_trainer()
    margins = []
    for rows in ([pairs[0]], [{**pairs[0], "chosen": pairs[0]["rejected"], "rejected": pairs[0]["chosen"]}]):
        chosen, rejected = trainer.model(**PairCollator(tiny_processor)(rows)).logits.squeeze(-1).tolist()
        margins.append(chosen - rejected)
    assert abs(margins[0]) > 1e-4
    assert margins[0] == pytest.approx(-margins[1], abs=1e-5)


def test_encoding_ahead_changes_neither_inputs_nor_rewards(make_tiny_model, tiny_processor, pairs):
    model = make_tiny_model()
    collate = PairCollator(tiny_processor)
    encoded = encode_pairs(pairs, model, tiny_processor, batch_size=3)
    direct, ahead = collate(list(pairs)), collate(list(encoded))
    assert "input_features" not in ahead
    with torch.no_grad():
        rewards = [model(**batch).logits for batch in (direct, ahead)]
    # The encoding is kept in float16.
    torch.testing.assert_close(*rewards, rtol=0, atol=5e-3)
    assert encoded["length"] == [max(len(row["chosen_ids"]), len(row["rejected_ids"])) for row in encoded]


TRAINABLE = {
    "head": ("score.",),
    "lora": ("lora_", "score."),
    "full": ("score.", "language_model", "audio_tower.proj"),
}


@pytest.mark.parametrize("mode", TRAINABLE)
def test_one_step_changes_exactly_what_the_mode_trains(mode, make_tiny_model, make_trainer):
    args = TrainArguments("unused", "unused", train=mode)
    model = prepare_for_training(make_tiny_model(), args)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    make_trainer(model, max_steps=2).train()
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(before[name], parameter)}
    assert changed
    assert all(any(part in name for part in TRAINABLE[mode]) for name in changed)
    assert any("score" in name for name in changed)
    if mode == "lora":
        assert not any("audio_tower" in name for name in changed)


def test_full_training_can_include_the_audio_tower(make_tiny_model, make_trainer):
    args = TrainArguments("unused", "unused", train="full", freeze_audio_tower=False)
    model = prepare_for_training(make_tiny_model(), args)
    before = model.model.audio_tower.conv1.weight.detach().clone()
    make_trainer(model).train()
    assert not torch.equal(before, model.model.audio_tower.conv1.weight)


def test_the_metrics_have_the_names_of_trl(make_trainer):
    trainer = make_trainer()
    trainer.train()
    assert {"accuracy", "margin", "mean_reward", "min_reward", "max_reward", "num_tokens"} <= set(
        trainer.state.log_history[0]
    )


@pytest.fixture
def data_folder(tmp_path, pairs):
    folder = tmp_path / "pairs"
    folder.mkdir()
    for split in ("train", "validation"):
        pairs.to_parquet(folder / f"{split}.parquet")
    return folder


@pytest.fixture
def run_script(tmp_path, tiny_checkpoint, data_folder):
    def run(*flags):
        options = {
            "model_name_or_path": tiny_checkpoint,
            "dataset": data_folder,
            "output_dir": tmp_path / "run",
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "report_to": "none",
            "per_device_train_batch_size": 2,
            "learning_rate": 1e-2,
            "eval_strategy": "steps",
            "eval_steps": 2,
            "save_steps": 2,
            "logging_steps": 1,
            "disable_tqdm": True,
        }
        command = [text for key, value in options.items() for text in (f"--{key}", str(value))]
        main([*command, *flags])
        return tmp_path / "run"

    return run


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_the_script_saves_a_whole_checkpoint_that_scores(mode, run_script, make_dialogue, tiny_checkpoint):
    folder = run_script("--train", mode, "--num_train_epochs", "2", "--load_best_model_at_end", "True")
    dialogue = make_dialogue(0.3, 0.2)
    rewards = [Scorer.from_pretrained(path).score([dialogue], "modality")[0] for path in (folder, tiny_checkpoint)]
    assert rewards[0] != rewards[1]
    run = json.loads((folder / "run.json").read_text())
    assert run["arguments"]["train"] == mode
    assert run["training"]["learning_rate"] == 1e-2
    assert run["versions"]["trl"]


def test_a_run_goes_on_from_its_newest_checkpoint(run_script):
    folder = run_script("--num_train_epochs", "1")
    first = json.loads((folder / "run.json").read_text())["history"]
    run_script("--num_train_epochs", "2", "--resume", "True")
    second = json.loads((folder / "run.json").read_text())["history"]
    steps = [entry["step"] for entry in second if "loss" in entry]
    assert steps == [1, 2, 3, 4]
    assert second[0] == first[0]


def test_an_unknown_key_fails(run_script, capsys):
    with pytest.raises((SystemExit, ValueError)):
        run_script("--learning_rat", "0.1")


def test_an_omni_backbone_gets_a_new_head(fixtures_dir, reward_config):
    model, processor = load_model(
        TrainArguments(str(fixtures_dir / "base_tiny"), "unused", pooling_mode="attention"), reward_config()
    )
    assert model.config.pooling_mode == "attention"
    assert not model.score.weight.any()
    assert processor.max_turn_s == model.config.max_turn_s
