"""Training on a file of pairs, with the options that the machine needs; what it prints when it ends or is stopped."""

import json
import re
import warnings

import pytest
import torch
from transformers import TrainerCallback

from sdiareward.checkpoint_io.training_record import read_pairs_record
from sdiareward.evaluation.held_out import find_overlap
from sdiareward.pairs.labels import describe_pairs
from sdiareward.pairs.loading import load_pairs
from sdiareward.train import main
from sdiareward.training.held_out import load_splits
from sdiareward.training.trainer import EpochOfSampler


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
    """Return a function that trains for two steps; no option tells what the machine has."""
    monkeypatch.setattr("sdiareward.training.options.is_torch_bf16_gpu_available", lambda: False)

    def run(*flags):
        places = ["--model", tiny_checkpoint, "--dataset", own_pairs, "--output_dir", tmp_path / "run"]
        options = ["--max_steps", "2", "--save_steps", "1", "--report_to", "none", "--activation_checkpointing", "no"]
        return main([*map(str, places), *options, *flags])

    return run


def test_missing_pairs_are_reported_before_a_model_is_made(train, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sdiareward.training.run_folder.resolve_base_model", None)
    assert train("--dataset", str(tmp_path / "none.parquet")) == 2
    assert "none.parquet: no such file" in capsys.readouterr().err


@pytest.mark.slow
def test_a_file_is_trained_on_without_further_options_and_the_end_says_what_is_next(
    train, own_pairs, tmp_path, capsys
):
    assert train() == 0
    printed = capsys.readouterr()
    out = tmp_path / "run"
    model, accuracy, margin, following = printed.out.splitlines()[-4:]
    assert model == f"Model: {out}, after step 2"
    number = r"[01]\.\d{4}"
    pattern = rf"Validation accuracy: ({number}) on 2 pairs of 1 group, no interval; {number} before .*"
    found = re.fullmatch(pattern, accuracy)
    assert re.fullmatch(r"Validation margin: [+-]\d\.\d{3} on average; [+-]\d\.\d{3} before training", margin)
    history = json.loads((out / "run.json").read_text())["history"]
    assert float(found[1]) == pytest.approx(history[-1]["eval_accuracy"])
    next_run = f"sdiareward eval --model {out} --dataset OTHER_PAIRS --output_dir {out}-eval --report"
    assert following == f"Next: {next_run}"
    # What it heard is recorded for later evaluations, and is on its card.
    record = {"num_pairs": 6, "synthesizers": ["bell", "chime"], "sources": None, "licenses": ["CC0-1.0"]}
    assert json.loads((out / "run.json").read_text())["trained_on"] == record
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
    assert "2 of its 8 pairs are held out for validation" in printed.err
    assert "training in float32 on " in printed.err
    assert re.search(r"^steps: ", printed.err.replace("\r", "\n"), re.MULTILINE)


@pytest.mark.slow
def test_the_accuracy_is_that_of_the_model_that_is_kept(train, capsys):
    flags = ["--eval_strategy", "steps", "--eval_steps", "1", "--load_best_model_at_end", "True"]
    assert train(*flags, "--learning_rate", "0") == 0
    # Nothing was learnt, so the first evaluation is the best one.
    assert ", from step 1 of 2\nValidation accuracy: " in capsys.readouterr().out


@pytest.mark.slow
def test_to_resume_from_nothing_is_reported_and_begins(train, tmp_path, capsys):
    assert train("--resume") == 0
    notice = f"--resume: {tmp_path / 'run'} holds no checkpoint; training begins at step 0"
    assert notice in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        ((), "stopped at step 1; resume with --resume, from checkpoint-1."),
        (
            ("--save_strategy", "no"),
            "stopped at step 1, before its first checkpoint (save_steps is 1); start it again.",
        ),
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
    assert error.rstrip().splitlines()[-1].endswith(f"sdiareward-train: {remedy}") and "Traceback" not in error


def test_groups_are_held_out_whole_and_by_the_seed(own_pairs):
    drawn = set()
    for seed in range(4):
        splits, notices = load_splits(str(own_pairs), share=0.3, seed=seed)
        groups = {name: set(rows["group_id"]) for name, rows in splits.items()}
        assert (len(groups["train"]), len(groups["validation"])) == (2, 2)
        assert not groups["train"] & groups["validation"]
        assert len(splits["train"]) + len(splits["validation"]) == 8
        assert load_splits(str(own_pairs), share=0.3, seed=seed)[1] == notices
        drawn.add(tuple(sorted(groups["validation"])))
    assert len(drawn) > 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_precision_is_chosen_by_the_machine_unless_it_is_given(tmp_path):
    from sdiareward.training.options import OptionError, RewardTrainingConfig, describe_choices

    places = {"output_dir": str(tmp_path), "report_to": "none"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        chosen = RewardTrainingConfig(**places)
    assert chosen.activation_checkpointing
    assert (chosen.bf16, len(describe_choices(chosen))) == (False, 1)
    given = RewardTrainingConfig(**places, bf16=False)
    assert (given.bf16, describe_choices(given)) == (False, [])
    assert RewardTrainingConfig(**places, bf16=True, use_cpu=True).bf16
    with pytest.raises(OptionError, match="has no GPU that computes in bfloat16; add --bf16 False"):
        RewardTrainingConfig(**places, bf16=True)
