import contextlib
import inspect
import math
import re
import shutil

import datasets
import pytest
import soundfile
import torch
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback
from trl import RewardTrainer

from sdiareward.common.errors import UserError
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.pairs.messages import turns_to_messages
from sdiareward.pairs.schema import SIDES
from sdiareward.scoring.feature_cache import FeatureCache
from sdiareward.scoring.scorer import Scorer
from sdiareward.training.arguments import SDiaRewardModelConfig, SDiaRewardScriptArguments
from sdiareward.training.batches import FeatureCollator, PairCollator, compute_packed_rewards
from sdiareward.training.precompute import cache_pairs, precompute_pairs
from sdiareward.training.setup import SDiaRewardHead, load_model, prepare_for_training, set_up
from sdiareward.training.trainer import SDiaRewardTrainer


TEXT = datasets.Value("string")


@pytest.fixture(name="pairs")
def tones(tone_pairs):
    return tone_pairs


@pytest.fixture
def reward_config(tmp_path):
    from trl import RewardConfig

    def make(**changes):
        options = {"output_dir": str(tmp_path / "run"), "per_device_train_batch_size": 4, "max_steps": 1}
        options |= {"learning_rate": 1e-2, "center_rewards_coefficient": 0.01, "gradient_checkpointing": False}
        options |= {"use_cpu": True, "bf16": False, "report_to": "none", "logging_steps": 1, "save_strategy": "no"}
        return RewardConfig(**{**options, "disable_tqdm": True, **changes})

    return make


@pytest.fixture
def rows(tmp_path, pairs, tiny_processor):
    return precompute_pairs(pairs, tiny_processor, tmp_path / "rows", split="train")[0]


@pytest.fixture
def make_trainer(make_tiny_model, tiny_processor, rows, reward_config):
    def make(model=None, train_dataset=None, eval_dataset=None, batch_tokens=None, **changes):
        return SDiaRewardTrainer(
            model or make_tiny_model(),
            reward_config(**changes),
            processing_class=tiny_processor,
            batch_tokens=batch_tokens,
            train_dataset=train_dataset or rows,
            eval_dataset=eval_dataset,
        )

    return make


@pytest.fixture
def padded_rewards(tiny_processor):
    """Return a function giving the rewards of some pairs through the model's own forward, `(num_pairs, 2)`."""

    def rewards(model, pairs):
        dialogues = [turns_to_messages(row[side]) for side in SIDES for row in pairs]
        inputs = tiny_processor(dialogues, criterion=[row["criterion"] for row in pairs] * 2)
        with torch.no_grad():
            return model(**inputs).logits.view(2, -1).T

    return rewards


def by_hand(rewards):
    losses = [math.log1p(math.exp(bad - good)) + 0.01 * (good + bad) ** 2 for good, bad in rewards.tolist()]
    return sum(losses) / len(losses)


def test_the_loss_is_bradley_terry_plus_centering_by_hand_and_smoothed_labels_cost_a_share_of_the_margin(
    make_trainer, make_tiny_model, tiny_processor, rows, padded_rewards
):
    rewards = padded_rewards(make_tiny_model(), list(rows))
    trainer = make_trainer(label_smoothing_factor=0.1)
    losses = {}
    for is_training in (True, False):
        trainer.model.train(is_training)
        losses[is_training] = trainer.compute_loss(trainer.model, PairCollator(tiny_processor)(list(rows))).item()
    # -(1 - s) log sigmoid(m) - s log sigmoid(-m), with s = 0.1.
    assert losses[False] == pytest.approx(by_hand(rewards), abs=1e-6)
    margin = (rewards[:, 0] - rewards[:, 1]).mean().item()
    assert losses[True] == pytest.approx(by_hand(rewards) + 0.1 * margin, abs=1e-6)


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("batch_tokens", "checkpointing"), [(1, False), (1500, True), (10**6, False)])
def test_a_step_has_the_same_gradient_for_any_micro_batches(
    batch_tokens, checkpointing, make_trainer, make_tiny_model, tiny_processor, rows, padded_rewards
):
    reference = make_tiny_model().train()
    dialogues = [turns_to_messages(row[side]) for side in SIDES for row in rows]
    inputs = tiny_processor(dialogues, criterion=list(rows["criterion"]) * 2)
    chosen, rejected = reference(**inputs).logits.squeeze(-1).chunk(2)
    loss = -torch.nn.functional.logsigmoid(chosen - rejected).mean() + 0.01 * ((chosen + rejected) ** 2).mean()
    loss.backward()

    trainer = make_trainer(batch_tokens=batch_tokens, gradient_checkpointing=checkpointing)
    if checkpointing:
        trainer.model.gradient_checkpointing_enable({"use_reentrant": False})
    # As the library's loop does.
    trainer.current_gradient_accumulation_steps = 1
    micro_batches = trainer.split_micro_batches(PairCollator(tiny_processor)(list(rows))["pairs"])
    assert len(micro_batches) == 1 or batch_tokens < 10**6
    got = trainer.training_step(trainer.model, PairCollator(tiny_processor)(list(rows)))
    assert got.item() == pytest.approx(loss.item(), abs=1e-6)
    expected, found = gradients(reference), gradients(trainer.model)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def train_with(make_trainer, **options):
    trainer = make_trainer(max_steps=-1, num_train_epochs=2, optim="sgd", **options)
    trainer.train()
    return trainer.state, {name: parameter.detach() for name, parameter in trainer.model.named_parameters()}


@pytest.mark.slow
def test_accumulated_batches_train_as_one_larger_batch_does(make_trainer, make_tiny_model):
    larger, expected = train_with(make_trainer, per_device_train_batch_size=3)
    state, found = train_with(make_trainer, per_device_train_batch_size=1, gradient_accumulation_steps=3)
    # Four pairs: a step of three and one of the rest in each epoch.
    assert (state.global_step, larger.global_step) == (4, 4)
    for name in ("loss", "grad_norm", "accuracy", "learning_rate"):
        curves = [[line[name] for line in each.log_history if name in line] for each in (larger, state)]
        assert curves[0] == curves[1] and len(curves[0]) == 4
    initial = dict(make_tiny_model().named_parameters())
    assert any(not torch.equal(initial[name], tensor) for name, tensor in expected.items())
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.slow
def test_pairs_need_no_preparation(make_trainer, pairs, rows):
    audio = datasets.Audio(sampling_rate=16_000)
    columns = {**pairs.features, **{side: [{"role": TEXT, "text": TEXT, "audio": audio}] for side in SIDES}}
    given = pairs.cast(datasets.Features(columns)).add_column("length", ["a column of the user"] * 4)
    trainer = make_trainer(train_dataset=given, eval_dataset={"held_out": given})
    assert trainer.train_dataset["length"] == rows["length"]
    trainer.train()
    prepared = make_trainer(eval_dataset={"held_out": rows})
    prepared.train()
    for name, parameter in prepared.model.named_parameters():
        assert torch.equal(parameter, trainer.model.get_parameter(name)), name
    assert trainer.evaluate(given)["eval_loss"] == pytest.approx(prepared.evaluate(rows)["eval_loss"], abs=1e-6)
    assert (trainer.predict(given).predictions == prepared.predict(rows).predictions).all()


def test_data_that_cannot_be_trained_on_are_refused_with_what_to_do(make_trainer, pairs, rows):
    with pytest.raises(ValueError, match="'train' is streamed .IterableDataset.*; load it without streaming"):
        make_trainer(train_dataset=pairs.to_iterable_dataset())
    with pytest.raises(ValueError, match=r"'train' has columns \['chosen', 'criterion'\]; pairs also need"):
        make_trainer(train_dataset=pairs.remove_columns("rejected"))


@pytest.mark.slow
def test_the_weights_of_another_model_are_not_resumed_from(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=2, save_strategy="steps", save_steps=1)
    trainer.train()
    path = tmp_path / "run" / "checkpoint-1" / "model.safetensors"
    tensors = load_file(path)
    del tensors["score.weight"]
    save_file(tensors, path)
    with pytest.raises(UserError, match="of another model: it lacks 1 tensors and has 0 others, such as score.weight"):
        make_trainer(max_steps=2).train(resume_from_checkpoint=str(path.parent))


@pytest.mark.slow
def test_a_loss_that_is_not_finite_stops_with_the_pairs(make_trainer, rows):
    trainer = make_trainer(batch_tokens=1)
    with torch.no_grad():
        trainer.model.score.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"step 1: the loss is nan on the pairs row \d; look at"):
        trainer.train()


def test_encoding_clips_before_training_changes_no_reward(
    make_tiny_model, tiny_processor, pairs, tmp_path, padded_rewards
):
    model = make_tiny_model()
    expected = padded_rewards(model, list(pairs))
    encoded, skipped = precompute_pairs(pairs, tiny_processor, tmp_path, split="train", model=model)
    assert skipped == []
    inputs = PairCollator(tiny_processor)(list(encoded))["pairs"].make_inputs()
    assert "mels" not in inputs
    with torch.no_grad():
        rewards = model(compute=compute_packed_rewards, **inputs).logits.view(2, -1).T
    # The vectors are stored in float16.
    torch.testing.assert_close(rewards, expected, rtol=0, atol=5e-3)


def test_the_evaluation_measures_what_the_model_says(make_trainer, make_tiny_model, rows, padded_rewards):
    expected = padded_rewards(make_tiny_model(), list(rows))
    # The last batch is smaller than the others.
    metrics = make_trainer(eval_dataset=rows, per_device_eval_batch_size=3).evaluate()
    assert metrics["eval_loss"] == pytest.approx(by_hand(expected), abs=1e-5)
    assert metrics["eval_margin"] == pytest.approx((expected[:, 0] - expected[:, 1]).mean().item(), abs=1e-5)
    assert metrics["eval_accuracy"] == pytest.approx((expected[:, 0] > expected[:, 1]).float().mean().item())


# What a mode trains, and a part of it that one step changes beside the score.
TRAINED = [
    ({"freeze_backbone": True}, ("score.",), "score."),
    ({"use_peft": True}, ("language_model.*lora_", "score."), "lora_"),
    ({}, ("score.", "language_model", "audio_tower.proj"), "language_model"),
    ({"freeze_audio_tower": False, "freeze_text_model": True}, ("score.", "audio_tower"), "conv1"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("options", "trained", "some"), TRAINED)
def test_one_step_changes_exactly_what_the_mode_trains(options, trained, some, make_tiny_model, make_trainer):
    model = prepare_for_training(make_tiny_model(), SDiaRewardModelConfig(**options))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    make_trainer(model, max_steps=2).train()
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(before[name], parameter)}
    assert all(any(re.search(part, name) for part in trained) for name in changed)
    assert all(any(part in name for name in changed) for part in ("score", some))


@pytest.mark.slow
def test_the_metrics_have_the_names_of_trl_and_the_progress_bar_shows_them(make_trainer, capsys):
    trainer = make_trainer(disable_tqdm=False)
    trainer.train()
    bar = capsys.readouterr().err
    assert all(f"{name}=" in bar for name in ("reward", "margin", "accuracy", "tokens/s"))
    log = trainer.state.log_history[0]
    assert {"accuracy", "margin", "mean_reward", "min_reward", "max_reward", "num_tokens"} <= set(log)
    assert log["tokens_per_second"] > 0
    assert log["num_tokens"] == sum(trainer.train_dataset["length"])


@pytest.mark.parametrize("form", [list, datasets.Dataset.from_list])
def test_the_trainer_is_called_as_that_of_trl_with_names_and_rows_of_paths(
    form, tiny_checkpoint, make_tone, reward_config, tmp_path, monkeypatch
):
    from peft import LoraConfig

    first, ours = (
        list(inspect.signature(kind.__init__).parameters)[:7] for kind in (RewardTrainer, SDiaRewardTrainer)
    )
    assert first == ours
    monkeypatch.chdir(tmp_path)
    for name, frequency_hz in {"user": 300.0, "a": 200.0, "b": 900.0}.items():
        soundfile.write(f"{name}.wav", make_tone(0.3, frequency_hz), 16_000)
    row = {"prompt": "user.wav", "chosen": "a.wav", "rejected": "b.wav", "criterion": "modality"}
    others = [{**row, "chosen": "gone.wav"}, {**row, "chosen": "b.wav", "rejected": "a.wav"}]
    parts = {"train_dataset": form([row, *others])}
    parts |= {"eval_dataset": form([row]), "callbacks": [TrainerCallback()]}
    adapters = LoraConfig(r=2)
    trainer = SDiaRewardTrainer(
        model=str(tiny_checkpoint), args=reward_config(), processing_class=None, peft_config=adapters, **parts
    )
    trained = {name for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    assert any("lora_A" in name for name in trained) and any("score" in name for name in trained)
    assert all("lora_" in name or "score" in name for name in trained)
    assert trainer.train().global_step == 1 and [pair.item for pair in trainer.skipped_pairs] == ["row 1"]
    assert 0 <= trainer.evaluate()["eval_accuracy"] <= 1
    # A model by name is trained in float32, up to its audio tower.
    whole = SDiaRewardTrainer(str(tiny_checkpoint), reward_config(), train_dataset=form([row]))
    frozen = {
        name.partition(".layers")[0] for name, weight in whole.model.named_parameters() if not weight.requires_grad
    }
    assert frozen and all("audio_tower" in name for name in frozen)


def test_small_updates_are_not_lost_where_autocast_computes_in_bfloat16(tiny_checkpoint, pairs, reward_config):
    # A step of AdamW at this rate is less than half a step of bfloat16 for a weight of one.
    config = reward_config(bf16=True, learning_rate=1e-5)
    args, model_args = SDiaRewardScriptArguments("pairs"), SDiaRewardModelConfig()
    ready = set_up(args, config, model_args, str(tiny_checkpoint), {"train": pairs})
    trained = {name: weight for name, weight in ready.model.named_parameters() if weight.requires_grad}
    norm = "model.language_model.norm.weight"
    before = trained[norm].detach().clone()
    assert {weight.dtype for weight in trained.values()} == {torch.float32}
    trainer = SDiaRewardTrainer(
        ready.model, config, ready.collator, ready.splits["train"], processing_class=ready.processor
    )
    computed = set()
    projection = ready.model.model.language_model.layers[0].mlp.down_proj
    projection.register_forward_hook(lambda module, inputs, output: computed.add(output.dtype))
    trainer.train()
    assert computed == {torch.bfloat16}
    assert (trained[norm] - before).abs().median().item() == pytest.approx(1e-5, rel=0.1)


def test_adapters_are_spared_casts_that_autocast_undoes(make_tiny_model, make_trainer, monkeypatch):
    weights, seen = [], set()
    for keep in (None, lambda model, is_autocast: contextlib.nullcontext()):
        if keep:
            monkeypatch.setattr("sdiareward.training.trainer.keep_input_dtype", keep)
        torch.manual_seed(0)
        model = prepare_for_training(make_tiny_model(), SDiaRewardModelConfig(use_peft=True))
        # Between the products of a block the numbers are in bfloat16.
        factor = next(module for name, module in model.named_modules() if name.endswith("down_proj.lora_A.default"))
        factor.register_forward_pre_hook(
            lambda module, inputs, cast=keep is not None: seen.add((cast, inputs[0].dtype))
        )
        make_trainer(model, bf16=True, max_steps=2).train()
        weights.append({name: each.detach().clone() for name, each in model.named_parameters() if "lora_" in name})
        layer = next(module for module in model.modules() if hasattr(module, "cast_input_dtype_enabled"))
        assert layer.cast_input_dtype_enabled
    assert (True, torch.float32) in seen and (False, torch.bfloat16) in seen
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())


CACHE_OPTIONS = {"mean": {}, "attention": {"per_token": True, "stored_dtype": "float32"}}


@pytest.mark.slow
@pytest.mark.parametrize("mode", CACHE_OPTIONS)
def test_a_head_on_cached_features_learns_what_it_learns_through_the_backbone(
    mode, make_tiny_model, make_trainer, tiny_processor, pairs, rows, reward_config, tmp_path
):
    options = {"max_steps": 6, "per_device_train_batch_size": 2, "seed": 3, "eval_strategy": "steps", "eval_steps": 3}
    args = SDiaRewardModelConfig(freeze_backbone=True)
    through = make_trainer(prepare_for_training(make_tiny_model(mode), args), eval_dataset=rows, **options)
    through.train()

    model = make_tiny_model(mode)
    cache = FeatureCache(
        tmp_path / "cache", model.config, tiny_processor, model_revision="tiny", **CACHE_OPTIONS[mode]
    )
    cached_rows, skipped = cache_pairs({"train": pairs}, cache, lambda: Scorer(model, tiny_processor))
    head = SDiaRewardHead(model.config)
    head.load_state_dict({name: t for name, t in model.state_dict().items() if name.startswith(("score", "pooler"))})
    cached = SDiaRewardTrainer(
        head,
        reward_config(**options),
        processing_class=tiny_processor,
        train_dataset=cached_rows["train"],
        eval_dataset=cached_rows["train"],
        data_collator=FeatureCollator(cache),
    )
    cached.train()

    assert skipped == []
    for name in ("loss", "grad_norm", "margin", "eval_loss", "eval_accuracy"):
        curves = [[log[name] for log in trainer.state.log_history if name in log] for trainer in (through, cached)]
        assert len(curves[0]) == (2 if name.startswith("eval") else 6)
        assert curves[1] == pytest.approx(curves[0], abs=1e-5)
    for name, parameter in head.named_parameters():
        # A softmax does not see a bias: its gradient is rounding, of which Adam makes steps.
        if name != "pooler.attn.bias":
            torch.testing.assert_close(parameter, through.model.get_parameter(name), rtol=0, atol=1e-5)


def test_the_head_of_a_released_checkpoint_is_loaded_under_native_names(fixtures_dir, tmp_path):
    backbone = load_file(fixtures_dir / "base_tiny" / "model.safetensors")
    tensors = {name.removeprefix("thinker."): tensor for name, tensor in backbone.items() if "thinker." in name}
    weight = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
    shutil.copytree(fixtures_dir / "base_tiny", tmp_path / "released")
    shutil.copy(fixtures_dir / "official_config.json", tmp_path / "released" / "config.json")
    save_file({**tensors, "score_head.weight": weight}, tmp_path / "released" / "model.safetensors")
    head, processor = load_model(str(tmp_path / "released"), torch.float32, head_only=True)
    assert torch.equal(head.score.weight, weight)
    assert processor.max_turn_s == head.config.max_turn_s == 300.0


@pytest.mark.parametrize(
    ("changes", "tensor"),
    [
        ({"score.weight": torch.zeros(1, 16)}, "score.weight"),
        ({"score.weight": None}, "score.weight|score_head.weight"),
        ({"pooler.attn.weight": torch.zeros(1, 32), "pooler.attn.bias": torch.zeros(1)}, "pooler.attn"),
    ],
)
def test_a_head_that_does_not_fit_is_refused_by_the_name_of_its_tensor(changes, tensor, tiny_checkpoint, tmp_path):
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "copy")
    tensors = {**load_file(folder / "model.safetensors"), **changes}
    kept = {name: value for name, value in tensors.items() if value is not None}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    assert SDiaRewardHead.from_pretrained(tiny_checkpoint).score.weight.any()
    for kind in (SDiaRewardHead, SDiaRewardModel):
        with pytest.raises(ValueError, match=tensor):
            kind.from_pretrained(folder)
