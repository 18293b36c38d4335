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
    "no command": ("", "no command is given; the commands are score, compare, build"),
    "misspelt command": ("scroe a.json", "unknown command 'scroe'; did you mean score"),
    "foreign command": ("frobnicate", "unknown command 'frobnicate'; the commands are score"),
    "misspelt flag of the tool": ("--versoin", "Unknown command .--versoin."),
    # score
    "nothing to score": ("score", "give either a dialogue's file or --dataset"),
    "misspelt flag": ("score d.json --criterio joint", "Unknown option: --criterio. Did you mean --criterion"),
    "flag without its value": ("score d.json --criterion", "--criterion requires an argument"),
    "word for a number": ("score --dataset pairs --output_dir {o} --limit ten", "--limit: unable to convert .ten."),
    "missing dialogue": ("score none.json", "none.json: no such file or folder"),
    "recording as a dialogue": ("score a.wav", "a.wav: "),
    "table as a dialogue": ("score flat.jsonl", "flat.jsonl"),
    "empty folder": ("score empty", "empty: "),
    "unknown criterion": ("score d.json --criterion beauty", "criterion is 'beauty'; this model knows"),
    "misspelt model": ("score d.json --model tinny", "tinny: no such file or folder; did you mean tiny"),
    "misspelt folder of a model": (
        "score d.json --model modles/tiny",
        "modles/tiny: no such file or folder; did you mean models/tiny",
    ),
    "model in a folder that exists": ("score d.json --model models/none", "models/none: no such file or folder"),
    "model below here": ("score d.json --model ./none", "./none: no such file or folder"),
    "model in the home": ("score d.json --model ~/none", "~/none: no such file or folder"),
    "recording as a model": ("score d.json --model a.wav", "model a.wav: cannot be loaded"),
    "unknown dtype": ("score d.json --dtype float99", "`dtype` provided"),
    "absent device": ("score d.json --device cuda:99", "cannot be loaded"),
    "data set without an output": ("score --dataset pairs", "--dataset needs --output_dir"),
    "missing data set": (
        "score --dataset paris --output_dir {o}",
        "paris: no such file or folder; did you mean pairs",
    ),
    "missing table": ("score --dataset none.parquet --output_dir {o}", "none.parquet: no such file of rows"),
    "one of several splits": (
        "score --dataset pairs --output_dir {o}",
        "split is None; this data set has test, train, validation",
    ),
    "unknown split": ("score --dataset pairs --split tset --output_dir {o}", "split is 'tset'"),
    "recording as a data set": ("score --dataset a.wav --output_dir {o}", "a.wav: is not a table of rows"),
    "table of texts": ("score --dataset texts.jsonl --output_dir {o}", "texts.jsonl: has columns"),
    "table of numbers": (
        "score --dataset numbers.jsonl --output_dir {o}",
        "the first: chosen: is a int; give a list of turns",
    ),
    "rows without recordings": (
        "score --dataset unusable.jsonl --output_dir {o}",
        "none of 2 rows could be scored; the first: .*nowhere.wav",
    ),
    "limit of no rows": ("score --dataset pairs --output_dir {o} --limit 0", "Invalid value .0. for --limit"),
    "missing settings": ("score --config none.yaml", "none.yaml"),
    "unknown setting": ("score --config wrong.yaml", ".datset.. from wrong.yaml. Did you mean --dataset"),
    "settings that are no YAML": ("score --config broken.yaml", "broken.yaml"),
    "file and data set": ("score a.json --dataset b", "give either a dialogue's file or --dataset"),
    "JSON of a data set": ("score --dataset b --output_dir {o} --json", "--json is for files of dialogues"),
    "limit of a file": ("score a.json --limit 3 --strict", "--limit, --strict needs --dataset"),
    "actors without Ray": ("score --dataset b --output_dir {o} --num-actors 2", "--num_actors needs --engine ray"),
    "folder of a dialogue": (
        "score wavs --output_dir {o}",
        "wavs: is one dialogue, or holds none; --output_dir is for",
    ),
    "split of a file": (
        "score --dataset flat.jsonl --output_dir {o} --split test",
        "is one file, which has no splits",
    ),
    "no prompts": ("score --dataset b --output_dir {o} --prompt-file none.txt", "none.txt: no such prompt file"),
    "name that is too long": (f"score {'n' * 300}", "File name too long"),
    # compare
    "nothing to compare": ("compare", "SYSTEMS requires an argument"),
    "one system": ("compare none", "none"),
    "missing system": ("compare none/none nowhere/none", "none/none"),
    # build
    "build without settings": ("build --strict", "--config requires an argument"),
    "misspelt builder command": ("build fliter --config x", "unknown command 'fliter'; did you mean filter"),
    "missing settings of a build": ("build --config none.yaml", "none.yaml"),
    "unknown setting of a build": ("build --config wrong.yaml", "wrong.yaml"),
    "fetch of nothing": ("build fetch --config wrong.yaml", "exactly one of youtube, scripts and chatreward"),
    "filter of nothing": ("build filter --folder none --output_dir {o}", "none"),
    "benchmark of nothing": ("build bench none --output_dir {o}", "none"),
    "release of nothing": ("build release none --output_dir {o}", "none"),
    "reconstruction of nothing": ("build reconstruct none --output_dir {o}", "none"),
    "statistics of nothing": ("build stats none", "none"),
    "ChatReward without settings": ("build chatreward --config none.yaml", "none.yaml"),
    # train
    "training without data": ("train --output_dir {o}", "--dataset_name is missing"),
    "misspelt option of TRL": ("train --dataset_name pairs --learning_rat 1", "did you mean --learning_rate"),
    "training on missing data": (
        "train --dataset_name paris --output_dir {o}",
        "paris: no such file or folder; did you mean pairs",
    ),
    "building an unknown model": ("build-model smaal {o}", "Invalid value .smaal.*Did you mean .small."),
    "building from a missing language model": (
        "build-model small {o} --untrained --language_model none/none.gguf",
        "none/none.gguf: no such file",
    ),
    "training on a recording": ("train --dataset_name a.wav --output_dir {o}", "a.wav: is not a table of rows"),
    "training on a folder of recordings": ("train --dataset_name wavs --output_dir {o}", "wavs"),
    "training on numbers": (
        "train --dataset_name numbers.jsonl --output_dir {o}",
        "numbers.jsonl: chosen is int64; give the path of a recording, or a list of turns",
    ),
    "training on paths to nothing": (
        "train --dataset_name gone.jsonl --output_dir {o}",
        "The first, row 0: chosen, .*/nowhere.wav",
    ),
    "training on one pair": (
        "train --dataset_name one.jsonl --output_dir {o}",
        "two groups that share nothing are needed, one of them to validate on",
    ),
    "training on unusable pairs": (
        "train --dataset_name unusable.jsonl --output_dir {o}",
        "can be used; .*nowhere.wav",
    ),
    "no validation split": ("train --dataset_name trainonly --output_dir {o}", "split is 'validation'"),
    "splits that share pairs": (
        "train --dataset_name shared --output_dir {o}",
        "'train' and 'validation' share 4 pairs, such as",
    ),
    "training a missing model": (
        "train --dataset_name pairs --model_name_or_path tinny --output_dir {o}",
        "did you mean tiny",
    ),
    "an option that TRL does not have": (
        "train --dataset_name pairs --trian_projection --output_dir {o}",
        "unknown option --trian_projection; did you mean --train_projection",
    ),
    "unknown pooling": (
        "train --dataset_name pairs --pooling_mode max --output_dir {o}",
        "argument --pooling_mode.*: invalid choice: 'max'",
    ),
    "share of nothing": (
        "train --dataset_name pairs --validation_share 2 --output_dir {o}",
        "it must be between 0 and 1",
    ),
    "validation on nothing": (
        "train --dataset_name pairs --max_eval_samples 0 --output_dir {o}",
        "max_eval_samples is 0; it must be at least 1",
    ),
    "no patience": (
        "train --dataset_name pairs --early_stopping_patience 0 --output_dir {o}",
        "early_stopping_patience is 0; it must be at least 1",
    ),
    "Liger": (
        "train --dataset_name pairs --use_liger_kernel True --output_dir {o}",
        "use_liger_kernel: training here does not use it; omit it",
    ),
    "DeepSpeed": (
        "train --dataset_name pairs --deepspeed zero.json --output_dir {o}",
        "needs a library that is not installed",
    ),
    "missing checkpoint": (
        "train --dataset_name pairs --resume_from_checkpoint ./none --output_dir {o}",
        "none is not a folder",
    ),
    "bfloat16 on a CPU": (
        "train --dataset_name pairs --bf16 True --output_dir {o}",
        "bf16 is True, but this machine has no GPU",
    ),
    # eval
    "evaluation without an output": ("eval --dataset pairs", "--output_dir requires an argument"),
    "evaluation of missing data": ("eval --dataset paris --output_dir {o}", "did you mean pairs"),
    "evaluation of a missing model": ("eval --dataset pairs --model tinny --output_dir {o}", "did you mean tiny"),
    "evaluation of an unknown split": ("eval --dataset pairs --split tset --output_dir {o}", "split is 'tset'"),
    "evaluation of the training split": (
        "eval --dataset pairs --train_split test --output_dir {o}",
        "share 4 pair_id",
    ),
    "evaluation of a recording": ("eval --dataset a.wav --output_dir {o}", "a.wav: is not a table of rows"),
    "evaluation of numbers": (
        "eval --dataset numbers.jsonl --no_baselines --output_dir {o}",
        "numbers.jsonl: chosen is int64; give the path of a recording, or a list of turns",
    ),
    "model and judge": (
        "eval --dataset pairs --model tiny --judge replay --output_dir {o}",
        "give either a model or a judge",
    ),
    "comparison without a page": ("eval --dataset pairs --compare x --output_dir {o}", "add --report"),
    "output that is a file": ("eval --dataset pairs --output_dir a.wav", "a.wav"),
    # audit
    "audit of missing data": ("audit --dataset paris --output_dir {o}", "did you mean pairs"),
    "unknown perturbation": (
        "audit --dataset pairs --nuisances nosie --output_dir {o}",
        "--nuisances: 'nosie' is none of",
    ),
    "unknown check": ("audit --dataset pairs --fail_on x.y --output_dir {o}", "there is no check 'x.y'"),
    "missing earlier audit": ("audit --dataset pairs --against none.json --output_dir {o}", "none.json"),
    # calibrate, human
    "calibration of no evaluation": ("calibrate tiny none --output_dir {o}", "none: has no scores.jsonl"),
    "calibration without a place": ("calibrate tiny none", "give either --output_dir"),
    "study of no evaluation": ("human sample none --output_dir {o}", "none: has no scores.jsonl"),
    "rating of no study": ("human rate none --rater ann", "none"),
    "agreement of no study": ("human score none", "none"),
    "scores of no evaluations": ("human ab none nowhere --output_dir {o}", "none"),
    # judge, wavreward
    "unknown judge": ("judge eval --judge nobody --dataset pairs --output_dir {o}", "has no judge 'nobody'"),
    "missing file of judges": ("judge list --judges_file none.yaml", "none.yaml"),
    "WavReward without a model": ("wavreward eval --dataset none --output_dir {o}", "give a model or a judge"),
    "reasoning of no evaluation": (
        "wavreward reasoning --predictions none --dataset none --judge gpt-4o-audio",
        "none",
    ),
    "misspelt option of GRPO": ("wavreward grpo --dataset none --num_generation 2", "did you mean --num_generations"),
    "WavReward on missing data": ("wavreward sft --dataset ./none --output_dir {o} --use_cpu --bf16 False", "none"),
    # serve, demo, push, convert, export, env
    "serving a missing model": ("serve --model ./none", "none"),
    "serving without a key": ("serve --api_key_file none.txt", "none.txt"),
    "demo of a missing model": ("demo --model ./none", "none"),
    "push of a missing folder": ("push model none ORG/x", "none"),
    "push of a missing data set": ("push dataset none ORG/x", "none"),
    "conversion of a missing checkpoint": ("convert ./none {o}", "no such file or folder"),
    "export in no layout": ("export tiny {o}", "--layout requires an argument"),
    "export of a missing checkpoint": ("export ./none {o} --layout vllm", "no such file or folder"),
    "options of env, which has none": ("env --model tiny", "--model"),
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
        "trainonly": ("train",),
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
    (folder / "broken.yaml").write_text("dataset: [pairs\n")
    return folder


@pytest.mark.parametrize(("words", "message"), USES.values(), ids=USES)
def test_a_wrong_use_ends_with_status_two_and_one_line(words, message, world, tmp_path, monkeypatch, capfd):
    if "--bf16 True" in words and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.chdir(world)
    try:
        status = main(words.format(o=tmp_path / "o").split())
    except SystemExit as ended:
        status = ended.code
    error = capfd.readouterr().err
    assert status == 2, error
    assert "Traceback" not in error
    *before, line = error.rstrip("\n").split("\n")
    assert [text for text in before if not _HARMLESS.search(text)] == []
    assert re.match(r"sdiareward[\w -]*: error: ", line) and re.search(message, line), line


def test_every_command_has_a_wrong_use():
    assert {words.split()[0] for words, _ in USES.values() if words} >= {name for name in APP if name[0] != "-"}
