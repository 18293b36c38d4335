"""Wrong uses of every command end with status 2 and one line that tells what to do."""

import json
import re

import pytest
import soundfile
import torch

from sdiareward.cli import APP, main


# What a wrong use may print besides its line: progress, notices, warnings that libraries log.
_HARMLESS = re.compile(r"%\||examples/s|it/s|^sdiareward: notice: |^\s*$|^Writing |^Loading ")

USES = {
    # The tool.
    "": "no command is given; the commands are score, compare, serve",
    "scroe a.json": "unknown command 'scroe'; did you mean score",
    "frobnicate": "unknown command 'frobnicate'; the commands are score",
    "--versoin": "Unknown command .--versoin.",
    # score
    "score": "give either a dialogue's file or --dataset",
    "score d.json --criterio joint": "Unknown option: --criterio. Did you mean --criterion",
    "score d.json --criterion": "--criterion requires an argument",
    "score --dataset pairs {o} --max_samples ten": "--max_samples: unable to convert .ten.",
    "score none.json": "none.json: no such file or folder",
    "score a.wav": "a.wav: ",
    "score flat.jsonl": "flat.jsonl",
    "score empty": "empty: ",
    "score d.json --criterion beauty": "criterion is 'beauty'; this model knows",
    "score d.json --model tinny": "tinny: no such file or folder; did you mean tiny",
    "score d.json --model modles/tiny": "modles/tiny: no such file or folder; did you mean models/tiny",
    "score d.json --model models/none": "models/none: no such file or folder",
    "score d.json --model ./none": "./none: no such file or folder",
    "score d.json --model ~/none": "~/none: no such file or folder",
    "score d.json --model a.wav": "model a.wav: cannot be loaded",
    "score d.json --dtype float99": "`dtype` provided",
    "score d.json --device cuda:99": "cannot be loaded",
    "score --dataset pairs --engine ray": "several processes need --output_dir",
    "score --dataset paris {o}": "paris: no such file or folder; did you mean pairs",
    "score --dataset none.parquet {o}": "none.parquet: no such file of rows",
    "score --dataset pairs {o}": "split is None; this data set has test, train, validation",
    "score --dataset pairs --split tset {o}": "split is 'tset'",
    "score --dataset a.wav {o}": "a.wav: is not a table of rows",
    "score --dataset texts.jsonl {o}": "texts.jsonl: has columns",
    "score --dataset numbers.jsonl {o}": "the first: chosen: is a int; give a list of turns",
    "score --dataset unusable.jsonl {o}": "none of 2 rows could be scored; the first: .*nowhere.wav",
    "score --dataset pairs {o} --max_samples 0": "Invalid value .0. for --max_samples",
    "score --config none.yaml": "none.yaml",
    "score --config wrong.yaml": ".datset.. from wrong.yaml. Did you mean --dataset",
    "score --config broken.yaml": "broken.yaml",
    "score a.json --dataset b": "give either a dialogue's file or --dataset",
    "score --dataset b {o} --json": "--json is for single dialogues",
    "score a.json --max_samples 3 --strict": "--max_samples, --strict needs --dataset",
    "score --dataset b {o} --num-actors 2": "--num_actors needs --engine ray",
    "score wavs {o}": "wavs: not a folder of dialogues, which --output_dir needs",
    "score --dataset flat.jsonl {o} --split test": "is one file, which has no splits",
    "score --dataset b {o} --prompt-file none.txt": "none.txt: no such prompt file",
    f"score {'n' * 300}": "File name too long",
    # compare
    "compare": "SYSTEMS requires an argument",
    "compare none": "none",
    "compare none/none nowhere/none": "none/none",
    # build
    "build --strict": "--config requires an argument",
    "build fliter --config x": "unknown command 'fliter'; did you mean filter",
    "build --config none.yaml": "none.yaml",
    "build --config wrong.yaml": "wrong.yaml",
    "build fetch --config wrong.yaml": "exactly one of youtube, scripts and chatreward",
    "build filter none {o}": "none",
    "build bench none {o}": "none",
    "build release none {o}": "none",
    "build reconstruct none {o}": "none",
    "build stats none": "none",
    "build chatreward --config none.yaml": "none.yaml",
    # train
    "train {o}": "--dataset is missing",
    "train --dataset pairs --learning_rat 1": "did you mean --learning_rate",
    "train --dataset paris {o}": "paris: no such file or folder; did you mean pairs",
    "train --dataset a.wav {o}": "a.wav: is not a table of rows",
    "train --dataset wavs {o}": "wavs",
    "train --dataset numbers.jsonl {o}": "numbers.jsonl: chosen is int64; give the path of a recording",
    "train --dataset gone.jsonl --criterion joint {o}": "The first, row 0: chosen, .*/nowhere.wav",
    "train --dataset one.jsonl --criterion joint {o}": "two groups that share nothing are needed",
    "train --dataset unusable.jsonl --criterion joint {o}": "can be used; .*nowhere.wav",
    "train --dataset one.jsonl {o}": "has no column criterion",
    "train --dataset shared {o}": "'train' and 'validation' share 4 pairs, such as",
    "train --dataset_name pairs --model_name_or_path tinny {o}": "did you mean tiny",
    "train --dataset pairs --trian_projection {o}": "did you mean --train_projection",
    "train --dataset pairs --pooling_mode max {o}": "argument --pooling_mode.*: invalid choice: 'max'",
    "train --dataset pairs --validation_share 2 {o}": "it must be between 0 and 1",
    "train --dataset pairs --max_eval_samples 0 {o}": "max_eval_samples is 0; it must be at least 1",
    "train --dataset pairs --early_stopping_patience 0 {o}": "early_stopping_patience is 0; it must be",
    "train --dataset pairs --use_liger_kernel True {o}": "use_liger_kernel: training here does not use it",
    "train --dataset pairs --deepspeed zero.json {o}": "needs a library that is not installed",
    "train --dataset pairs --resume_from_checkpoint ./none {o}": "none is not a folder",
    "train --dataset pairs --bf16 True {o}": "bf16 is True, but this machine has no GPU",
    # eval
    "eval --dataset pairs": "--output_dir requires an argument",
    "eval --dataset paris {o}": "did you mean pairs",
    "eval --dataset pairs --model tinny {o}": "did you mean tiny",
    "eval --dataset pairs --split tset {o}": "split is 'tset'",
    "eval --dataset pairs --train_split test {o}": "train_split is a key of the YAML file of --config",
    "eval --dataset pairs --criterion fun {o}": "criterion is .fun.; this model knows",
    "eval --dataset a.wav {o}": "a.wav: is not a table of rows",
    "eval --dataset numbers.jsonl --no_baselines {o}": "numbers.jsonl: chosen is int64; give the path of a recording",
    "eval --dataset pairs --model tiny --judge replay {o}": "give either a model or a judge",
    "eval --dataset pairs --compare x {o}": "add --report",
    "eval --dataset pairs --output_dir a.wav": "a.wav",
    # audit
    "audit --dataset paris {o}": "did you mean pairs",
    "audit --dataset pairs --perturbations nosie {o}": "--perturbations: 'nosie' is not one of",
    "audit --dataset pairs --fail_on x.y {o}": "there is no check 'x.y'",
    "audit --dataset pairs --against none.json {o}": "none.json",
    "eval --dataset pairs --judge replay --calibrate c {o}": "calibrate is for a model",
    # human
    "human sample none {o}": "none: has no scores.jsonl",
    "human rate none --rater ann": "none",
    "human score none": "none",
    "human ab none nowhere {o}": "none",
    # eval and train with judges and recipes
    "eval --judge nobody --dataset pairs {o}": "has no judge 'nobody'",
    "eval --judge list --judges_file none.yaml": "none.yaml",
    "eval --recipe wavrewrad": "give --recipe=wavreward or --recipe=wavreward_reasoning",
    "eval --recipe wavreward --dataset none {o}": "give a model or a judge",
    "eval --recipe=wavreward_reasoning --predictions none --dataset none --judge gpt-4o-audio": "none",
    "train --config recipe.yaml": "give --recipe=wavreward_sft or --recipe=wavreward_grpo",
    "train --recipe wavreward_grpo --dataset none --num_generation 2": "did you mean --num_generations",
    "train --recipe wavreward_sft --dataset ./none {o} --use_cpu --bf16 False": "none",
    # serve, demo, push, convert, env
    "serve --model ./none": "none",
    "serve --api_key_file none.txt": "none.txt",
    "demo --model ./none": "none",
    "push model none ORG/x": "none",
    "push dataset none ORG/x": "none",
    "build convert ./none {path}": "no such file or folder",
    "build convert tiny {path} --to vlm": "Invalid value .vlm.",
    "build convert ./none {path} --to vllm": "no such file or folder",
    "env --model tiny": "--model",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory, tone_pairs, tiny_checkpoint, make_tone):
    """Return a folder with a checkpoint, pairs, recordings, and tables that are none of these."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "tiny").symlink_to(tiny_checkpoint)
    (folder / "models").mkdir()
    (folder / "models" / "tiny").symlink_to(tiny_checkpoint)
    labelled = tone_pairs.add_column("subset", ["wild"] * 4)
    for name, splits in {
        "pairs": ("train", "validation", "test"),
        "shared": ("train", "validation"),
    }.items():
        (folder / name).mkdir()
        for split in splits:
            ids = [f"{'' if name == 'shared' else split}{row}" for row in range(4)]
            labelled.add_column("pair_id", ids).to_parquet(folder / name / f"{split}.parquet")
    (folder / "wavs").mkdir()
    (folder / "empty").mkdir()
    for number, path in enumerate(("a.wav", "wavs/1.wav", "wavs/2.wav")):
        soundfile.write(folder / path, make_tone(0.5, 200.0 + 50 * number, number), 16_000)
    (folder / "d.json").write_text(json.dumps([{"role": role, "audio": "a.wav"} for role in ("user", "assistant")]))
    side = [{"role": role, "text": "a", "audio": "nowhere.wav"} for role in ("user", "assistant")]
    tables = {
        "flat": [{"chosen": "a.wav", "rejected": "wavs/1.wav"}] * 2,
        "gone": [{"chosen": "nowhere.wav", "rejected": "a.wav"}, {"chosen": "wavs/1.wav", "rejected": "nowhere.wav"}],
        "numbers": [{"chosen": 1, "rejected": 2}] * 2,
        "texts": [{"text": "a"}],
        "unusable": [{"chosen": side, "rejected": side, "subset": "wild"}] * 2,
        "one": [{"chosen": side, "rejected": side}],
    }
    for name, rows in tables.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "wrong.yaml").write_text("datset: pairs\n")
    (folder / "recipe.yaml").write_text("recipe: none\n")
    (folder / "broken.yaml").write_text("dataset: [pairs\n")
    return folder


@pytest.mark.parametrize(("words", "message"), USES.items(), ids=USES)
def test_a_wrong_use_ends_with_status_two_and_one_line(words, message, world, tmp_path, monkeypatch, capfd):
    if "--bf16 True" in words and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.chdir(world)
    try:
        status = main(words.format(o=f"--output_dir {tmp_path / 'o'}", path=tmp_path / "o").split())
    except SystemExit as ended:
        status = ended.code
    error = capfd.readouterr().err
    assert status == 2, error
    assert "Traceback" not in error
    *before, line = error.rstrip("\n").split("\n")
    assert [text for text in before if not _HARMLESS.search(text)] == []
    assert re.match(r"sdiareward[\w =-]*: error: ", line) and re.search(message, line), line


def test_every_command_has_a_wrong_use():
    assert {words.split()[0] for words in USES if words} >= {name for name in APP if name[0] != "-"}
