"""Runs of the script: what is saved in each mode, what is recorded and printed, and what an interruption leaves."""

import gc
import json
import re
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import datasets
import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from sdiareward.cards import push
from sdiareward.checkpoint_io.models import fingerprint_model
from sdiareward.checkpoint_io.training_record import read_pairs_record
from sdiareward.configuration_sdiareward import DEFAULT_PROMPTS, SDiaRewardConfig, name_prompts
from sdiareward.evaluation.summary import find_overlap
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.pairs.labels import describe_pairs
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.rows import Dialogues
from sdiareward.pairs.schema import SIDES
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring.feature_cache import FeatureCache
from sdiareward.scoring.scorer import Scorer
from sdiareward.train import main
from sdiareward.training import setup
from sdiareward.training.setup import SDiaRewardHead, load_model, resolve_base_model
from sdiareward.training.trainer import EpochOfSampler, SDiaRewardTrainer


@pytest.fixture
def run_script(tmp_path, make_flags):
    def run(*flags, **changes):
        steps = {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2}
        assert main(make_flags(tmp_path / "run", *flags, **{**steps, **changes})) == 0
        return tmp_path / "run"

    return run


def read_run(folder):
    return json.loads((folder / "run.json").read_text())


OWN = "You evaluate dialogues.\n"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["full", "lora", "head"])
def test_a_run_saves_a_whole_checkpoint_with_its_prompts_and_a_card(
    mode, run_script, make_flags, make_dialogue, tiny_checkpoint, tmp_path
):
    (tmp_path / "prompts.yaml").write_text(f"reward_modality: |\n  {OWN}")
    heard = {"prompt_file": tmp_path / "prompts.yaml", "max_turn_s": 0.25, "batch_tokens": 1200}
    folder = run_script(mode=mode, num_train_epochs=1, load_best_model_at_end=True, **heard)
    assert not (folder / "read_ahead").exists()
    places = [folder, tiny_checkpoint, folder / "adapter"] if mode == "lora" else [folder, tiny_checkpoint]
    rewards = [Scorer.from_pretrained(place).score([make_dialogue(0.3, 0.2)], "modality")[0] for place in places]
    assert rewards[0] != rewards[1] and rewards[2:] in ([], [pytest.approx(rewards[0], abs=1e-5)])
    run = read_run(folder)
    assert (run["arguments"]["train"], run["training"]["learning_rate"]) == (mode, 1e-2)
    assert run["versions"]["trl"]
    card = (folder / "README.md").read_text()
    assert f"`train` | {mode}" in card and "0.01" in card and "Not evaluated." in card
    assert "AutoModel.from_pretrained" in card and "None" not in card and "TRL" not in card
    assert not (folder / "adapter" / "README.md").exists()
    prompts = {**DEFAULT_PROMPTS, "modality": OWN}
    for loaded in (SDiaRewardModel.from_pretrained(folder).config, SDiaRewardProcessor.from_pretrained(folder)):
        assert (loaded.prompts, loaded.prompt_version) == (prompts, name_prompts(prompts))
        assert loaded.max_turn_s == 0.25
    if mode == "lora":
        # Adapters that are trained further keep what they were trained to hear, and both runs are recorded.
        further = {"mode": mode, "adapter_name_or_path": folder / "adapter", "max_steps": 1, "learning_rate": 0}
        assert main(make_flags(tmp_path / "further", **further)) == 0
        config = SDiaRewardConfig.from_pretrained(tmp_path / "further")
        assert (config.prompts, config.max_turn_s) == (prompts, 0.25)
        # The first model gives rewards, and nothing is recorded of what it heard.
        assert run["earlier_stages"] == [{}]
        kept = {name: run[name] for name in ("git_revision", "arguments", "trained_on")}
        assert read_run(tmp_path / "further")["earlier_stages"] == [{}, kept]
        start, end = (
            load_file(tmp_path / name / "adapter" / "adapter_model.safetensors") for name in ("run", "further")
        )
        assert all((end[name] == weight).all() for name, weight in start.items())


@pytest.mark.slow
def test_a_head_is_trained_from_a_cache_without_the_backbone_in_memory_and_saved_whole(
    run_script, tmp_path, fixtures_dir, tone_pairs, monkeypatch
):
    loaded, alive = [], []
    load, train = setup.load_model, SDiaRewardTrainer.train

    def remembering(*args, head_only=False, **kwargs):
        parts = load(*args, head_only=head_only, **kwargs)
        if not head_only:
            loaded.append(weakref.ref(parts[0]))
        return parts

    def counting(trainer, *args, **kwargs):
        gc.collect()
        alive.append([model() is not None for model in loaded])
        return train(trainer, *args, **kwargs)

    monkeypatch.setattr(setup, "load_model", remembering)
    monkeypatch.setattr(SDiaRewardTrainer, "train", counting)
    backbone = fixtures_dir / "base_tiny"
    options = {"model_name_or_path": backbone, "pooling_mode": "attention", "from_cache": tmp_path / "cache"}
    folder = run_script(mode="head", num_train_epochs=3, gradient_checkpointing=True, **options)
    # Loaded to compute features and gone before training; loaded to be saved.
    assert alive == [[False]] and len(loaded) == 2
    scorer, head = Scorer.from_pretrained(folder), SDiaRewardHead.from_pretrained(folder)
    assert head.config.pooling_mode == "attention" and head.score.weight.any()
    known = {"model_revision": fingerprint_model(str(backbone)), "per_token": True}
    cache = FeatureCache(tmp_path / "cache", head.config, scorer.processor, **known)
    assert len(cache) == 8
    dialogues, criteria = Dialogues(tone_pairs, range(4)), [name for name in tone_pairs["criterion"] for _ in SIDES]
    with torch.no_grad():
        expected = [
            head(cache[key][None].float(), torch.ones(1, cache.num_rows(key))).logits.item()
            for key in cache.keys(dialogues, criteria)
        ]
    assert scorer.score(dialogues, criteria) == pytest.approx(expected, abs=1e-3)
    assert read_run(folder)["arguments"]["from_cache"] == str(tmp_path / "cache")
    run_script(mode="head", max_steps=1, **options)
    assert len(loaded) == 3


@pytest.mark.slow
def test_a_run_lists_what_it_skips_and_counts_cut_turns(run_script, tone_pairs, data_folder, capsys):
    rows = tone_pairs.to_list()
    rows[1]["rejected"] = rows[1]["chosen"]
    rows[2]["rejected"][1]["audio"]["bytes"] = b"no sound"
    bad = datasets.Dataset.from_list(rows).add_column("pair_id", [f"pair {row}" for row in range(4)])
    bad.to_parquet(data_folder / "train.parquet")
    named = tone_pairs.add_column("pair_id", [f"other {row}" for row in range(4)])
    named.to_parquet(data_folder / "validation.parquet")
    folder = run_script(mode="head", num_train_epochs=1, max_turn_s=0.3)
    printed = capsys.readouterr().out
    found = list(map(json.loads, (folder / "skipped.jsonl").read_text().splitlines()))
    kinds = [(pair["split"], pair["pair_id"], pair["kind"]) for pair in found]
    assert kinds == [("train", "pair 1", "equal_sides"), ("train", "pair 2", "unreadable")]
    run = read_run(folder)
    assert (run["num_skipped_pairs"], run["trained_on"]["num_pairs"]) == (2, 2)
    assert "Skipped: 2 pairs" in printed and f"Cut: {run['num_cut_turns']} turns; this model hears" in printed
    assert run["num_cut_turns"] == 12
    assert len(json.loads((folder / "training_pairs.json").read_text())["pair_id"]) == 2


def test_prompts_replace_only_the_criteria_that_they_name(tiny_checkpoint):
    config = SDiaRewardConfig.from_pretrained(tiny_checkpoint)
    for prompts in (None, {"modality": config.prompts["modality"]}):
        model, _ = load_model(str(tiny_checkpoint), torch.float32, prompts=prompts)
        assert (model.config.prompts, model.config.prompt_version) == (config.prompts, config.prompt_version)
    model, processor = load_model(str(tiny_checkpoint), torch.float32, prompts={"modality": OWN})
    assert model.config.prompts == processor.prompts == {**config.prompts, "modality": OWN}
    assert model.config.prompt_version == processor.prompt_version == name_prompts(processor.prompts)


def test_a_checkpoint_keeps_its_pooling_and_another_one_is_refused(tiny_checkpoint, fixtures_dir):
    assert load_model(tiny_checkpoint, torch.float32)[0].config.pooling_mode == "mean"
    with pytest.raises(ValueError, match="pooling_mode is 'attention', but the head of .* pools by 'mean'; omit it"):
        load_model(tiny_checkpoint, torch.float32, pooling_mode="attention")
    model, processor = load_model(str(fixtures_dir / "base_tiny"), torch.float32, pooling_mode="attention")
    assert model.config.pooling_mode == "attention" and not model.score.weight.any()
    assert processor.max_turn_s == model.config.max_turn_s


def test_a_model_is_loaded_whole_in_a_process_that_trains_under_zero3(tiny_checkpoint, under_zero3):
    from transformers.integrations import deepspeed

    model, _ = load_model(str(tiny_checkpoint), torch.float32)
    stored = load_file(tiny_checkpoint / "model.safetensors")
    assert torch.equal(model.score.weight, stored["score.weight"])
    assert deepspeed.is_deepspeed_zero3_enabled()


@pytest.mark.slow
def test_the_main_process_builds_nano(tmp_path):
    order = []

    @contextmanager
    def main_process_first(local):
        order.append("waited")
        yield
        order.append("resumed")

    # The other process finds what the main one built.
    for process_index in (1, 0):
        training = SimpleNamespace(
            output_dir=str(tmp_path), seed=0, process_index=process_index, main_process_first=main_process_first
        )
        assert resolve_base_model("new-nano", training) == str(tmp_path / "init")
        assert (tmp_path / "init" / "model.safetensors").exists() == (process_index == 0)
    assert order == ["waited", "resumed"] * 2


@pytest.fixture
def own_pairs(tmp_path, tone_pairs):
    """Return a file of pairs: four recordings with two pairs each."""
    rows = tone_pairs.select([0, 0, 1, 1, 2, 2, 3, 3])
    rows = rows.add_column("group_id", [f"g{row // 2}" for row in range(8)])
    rows = rows.add_column("synthesizer", ["bell", "chime"] * 4).add_column("license", ["CC0-1.0"] * 8)
    rows.add_column("pair_id", [f"p{row}" for row in range(8)]).to_parquet(tmp_path / "own.parquet")
    return tmp_path / "own.parquet"


@pytest.fixture
def train(own_pairs, tiny_checkpoint, tmp_path, monkeypatch):
    """Return a function that trains for two steps; no option describes the machine."""
    monkeypatch.setattr("sdiareward.training.arguments.is_torch_bf16_gpu_available", lambda: False)

    def run(*flags):
        places = {"model_name_or_path": tiny_checkpoint, "dataset_name": own_pairs, "output_dir": tmp_path / "run"}
        options = ["--max_steps", "2", "--save_steps", "1", "--report_to", "none", "--activation_checkpointing", "no"]
        return main(
            [*(text for name, place in places.items() for text in (f"--{name}", str(place))), *options, *flags]
        )

    return run


@pytest.mark.slow
def test_a_file_is_trained_on_without_further_options_and_published(train, own_pairs, tmp_path, capsys, monkeypatch):
    published = []

    def publish(plan, repo_id, *, private):
        published.append((repo_id, private, {file.path_in_repo for file in plan.files}))
        return SimpleNamespace(url="https://hub/me/model")

    monkeypatch.setattr(push, "publish", publish)
    assert train("--push_to_hub", "--hub_model_id", "me/model", "--hub_private_repo", "True") == 0
    ((repo_id, is_private, files),) = published
    assert (repo_id, is_private) == ("me/model", True) and {"README.md", "model.safetensors"} <= files
    printed = capsys.readouterr()
    out = tmp_path / "run"
    model, accuracy, margin, following, url = printed.out.splitlines()[-5:]
    assert (model, url) == (f"Model: {out}, after step 2", "https://hub/me/model")
    number = r"[01]\.\d{4}"
    pattern = rf"Validation accuracy: ({number}) on 2 pairs of 1 group, no interval; {number} before .*"
    found = re.fullmatch(pattern, accuracy)
    assert re.fullmatch(r"Validation margin: [+-]\d\.\d{3} on average; [+-]\d\.\d{3} before training", margin)
    assert float(found[1]) == pytest.approx(read_run(out)["history"][-1]["eval_accuracy"])
    next_run = f"sdiareward eval --model {out} --dataset OTHER_PAIRS --output_dir {out}-eval --report"
    assert following == f"Next: {next_run}"
    # What it heard is recorded for later evaluations, and is on its card.
    record = {"num_pairs": 6, "criteria": ["colloquialness", "modality"], "synthesizers": ["bell", "chime"]}
    assert read_run(out)["trained_on"] == {**record, "sources": None, "licenses": ["CC0-1.0"]}
    # An evaluation recognises the pairs, not those that were held out. A checkpoint has the run's record.
    pairs = load_pairs(own_pairs, None)
    for folder in (out, out / "checkpoint-1"):
        scores = {pair_id: {"chosen": 1.0, "rejected": 0.0} for pair_id in pairs["pair_id"]}
        found = find_overlap(str(folder), pairs, describe_pairs(pairs), scores, {})
        assert len(found["content"]) == 6 == len(read_pairs_record(folder)["pair_id"])
        assert not found["is_whole"]
    card = (out / "README.md").read_text()
    assert "| `synthesizers` | bell, chime; not known of the stages before |" in card
    assert "pin_memory" not in printed.err
    assert "2 of its 8 training pairs are held out for validation" in printed.err
    assert "training in float32 on " in printed.err
    assert re.search(r"^steps: ", printed.err.replace("\r", "\n"), re.MULTILINE)


@pytest.mark.slow
def test_the_accuracy_is_that_of_the_model_that_is_kept_and_nothing_to_resume_is_noted(train, tmp_path, capsys):
    flags = ["--eval_strategy", "steps", "--eval_steps", "1", "--load_best_model_at_end", "True", "--resume"]
    assert train(*flags, "--learning_rate", "0") == 0
    printed = capsys.readouterr()
    # Nothing was learnt, so the first evaluation is the best one.
    assert ", from step 1 of 2\nValidation accuracy: " in printed.out
    assert f"--resume: {tmp_path / 'run'} holds no checkpoint; training begins at step 0" in printed.err


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        ((), "; resume with --resume, from checkpoint-1."),
        (("--save_strategy", "no"), ", before its first checkpoint (save_steps is 1); start it again."),
    ],
)
@pytest.mark.slow
def test_an_interruption_says_how_to_resume(train, flags, remedy, monkeypatch, capsys):
    def interrupt(self, args, state, control, **kwargs):
        if state.global_step == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(EpochOfSampler, "on_step_begin", interrupt)
    assert TrainerCallback.on_step_begin is not EpochOfSampler.on_step_begin
    assert train(*flags) == 130
    error = capsys.readouterr().err
    last = error.rstrip().splitlines()[-1]
    assert last.endswith(f"sdiareward train: stopped at step 1{remedy}") and "Traceback" not in error
