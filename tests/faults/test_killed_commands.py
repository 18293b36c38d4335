"""Each long command, killed after a part of its writes and run again, leaves what an undisturbed run leaves."""

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
from hashlib import sha256

import numpy as np
import pyarrow.parquet as pq
import pytest
import soundfile
import yaml
from support.keys import write_keys
from support.killed import run_command
from support.official_layout import write_official

from sdiareward.dataset_builder.shards import read_rows
from sdiareward.pairs.schema import SIDES


pytestmark = pytest.mark.slow

# Results that depend on the time or on what is scored together.
_CHANGING = {"timing", "versions", "python", "machine", "git_revision", "num_new", "seconds"}
_TRAINING = {
    **{"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none", "disable_tqdm": True},
    **{"num_train_epochs": 2, "learning_rate": 1e-2, "eval_strategy": "steps", "eval_steps": 2, "save_steps": 1},
    **{"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "logging_steps": 1, "resume": True},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory, tiny_checkpoint, make_tone):
    """Return a folder with recordings, a configuration that builds pairs of them, pairs, a model, two systems."""
    root = tmp_path_factory.mktemp("world")
    (root / "recordings").mkdir()
    lines = []
    for number in range(8):
        soundfile.write(root / "recordings" / f"{number}.wav", make_tone(0.5, 150.0 + 20 * number, number), 16_000)
        spans = (("user", 0.0, 0.25), ("assistant", 0.25, 0.5))
        words = {"text": f"line {number}", "audio": f"{number}.wav"}
        turns = [{"role": role, **words, "start_s": start, "end_s": end} for role, start, end in spans]
        lines.append(json.dumps({"id": f"call-{number}", "language": "en", "license": "CC0-1.0", "turns": turns}))
    (root / "recordings" / "manifest.jsonl").write_text("\n".join(lines) + "\n")
    (root / "model").symlink_to(tiny_checkpoint)
    write_official(root / "official", max_shard_size="100KB")
    assert _run(root, _build(root, root / "built")).succeeded
    (root / "pairs").mkdir()
    for split, row in read_rows(root / "built" / "sdiareward"):
        for side in SIDES:
            for place, turn in enumerate(row[side]):
                clip = root / "pairs" / f"{row['pair_id']}-{side}-{place}.wav"
                clip.write_bytes(turn["audio"]["bytes"])
                row[side][place] = {"role": turn["role"], "text": turn["text"], "audio": clip.name}
        kept = ("pair_id", "criterion", "subset", "source", "synthesizer", "group_id", *SIDES)
        with (root / "pairs" / f"{split}.jsonl").open("a") as file:
            file.write(json.dumps({name: row[name] for name in kept}) + "\n")
        for side in SIDES:
            with (root / f"{side}.jsonl").open("a") as file:
                turns = [{**turn, "audio": f"pairs/{turn['audio']}"} for turn in row[side]]
                file.write(json.dumps({"id": row["pair_id"], "turns": turns}) + "\n")
    return root


def _build(root, output):
    settings = {
        "output_dir": str(output / "sdiareward"),
        "sources": [{"name": "folder", "path": str(root / "recordings")}],
        "synthesizers": {"modality": {"seen": ["hibari"]}},
        "test": 0.3,
        "validation": 0.2,
        "num_workers": 1,
    }
    (root / "build.yaml").write_text(yaml.safe_dump(settings))
    return ["build", "--config", root / "build.yaml"]


def _train(root, output):
    options = {"model_name_or_path": root / "model", "dataset_name": root / "pairs", "output_dir": output, **_TRAINING}
    return ["train", *(text for name, value in options.items() for text in (f"--{name}", value))]


def _score(root, output):
    data = ["--dataset", root / "pairs", "--split", "train", "--output_dir", output]
    return ["score", *data, "--model", root / "model", "--device", "cpu", "--batch_tokens", "1"]


def _eval(root, output):
    options = ["--batch_tokens", "1", "--device", "cpu", *write_keys(root, num_bootstrap=20)]
    return ["eval", "--model", root / "model", "--dataset", root / "pairs", "--output_dir", output, *options]


def _audit(root, output):
    options = ["--max_samples", "4", "--perturbations", "gain", "polarity", "--attacks", "silence", "--device", "cpu"]
    return ["audit", "--model", root / "model", "--dataset", root / "pairs", "--output_dir", output, *options]


def _compare(root, output):
    systems = [f"A={root / 'chosen.jsonl'}", f"B={root / 'rejected.jsonl'}", "--criterion", "modality"]
    options = ["--batch_tokens", "1", "--num_bootstrap", "20", "--device", "cpu"]
    return ["compare", *systems, "--model", root / "model", "--output_dir", output, *options]


def _convert(root, output):
    return ["build", "convert", root / "official", output, "--max_shard_size", "100KB"]


# A command, and the files of its result.
COMMANDS = {
    "build": (_build, ["**/*.parquet", "**/report.json"]),
    "train": (_train, ["model.safetensors", "config.json", "skipped.jsonl"]),
    "score": (_score, ["scores.parquet", "skipped.jsonl"]),
    "eval": (_eval, ["results.json", "acoustic.json", "text.json"]),
    "audit": (_audit, ["audit.json"]),
    "compare": (_compare, ["compare.json", "compare.parquet"]),
    "convert": (_convert, ["*.safetensors", "*.json"]),
}


class _Run:
    """A command that has ended in a forked process."""

    def __init__(self, root, arguments, kill_before):
        context = multiprocessing.get_context("forkserver")
        counted = context.Array("q", 3, lock=False)
        texts = [str(argument) for argument in arguments]
        process = context.Process(target=run_command, args=(texts, str(root), kill_before, counted))
        process.start()
        process.join(300)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        self.changes, self.succeeded, self.status = counted[0], bool(counted[1]), process.exitcode


def _run(root, arguments, kill_before=0):
    return _Run(root, arguments, kill_before)


def _read(path):
    """Return the content of a file of results as plain values, numbers to four digits, without what changes."""
    if path.suffix == ".parquet":
        return _plain(pq.read_table(path).to_pylist())
    if path.suffix == ".json":
        return _plain(json.loads(path.read_text()))
    return sha256(path.read_bytes()).hexdigest()


def _plain(value):
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if key not in _CHANGING}
    if isinstance(value, (list, np.ndarray)):
        return [_plain(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _result(output, patterns):
    files = [path for pattern in patterns for path in sorted(output.glob(pattern))]
    assert files
    return {str(path.relative_to(output)): _read(path) for path in files}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_command_resumes_to_the_result_of_an_undisturbed_run(name, world):
    make, patterns = COMMANDS[name]
    output = world / "output"

    def run(kill_before=0):
        return _run(world, make(world, output), kill_before)

    undisturbed = run()
    assert undisturbed.succeeded
    expected = _result(output, patterns)
    shutil.rmtree(output)
    # The second time in what the first one left.
    for share in (0.6, 0.2):
        killed = run(kill_before=max(1, round(share * undisturbed.changes)))
        assert killed.status == -signal.SIGKILL and not killed.succeeded
    resumed = run()
    assert resumed.succeeded
    assert _result(output, patterns) == expected
    # What was done before the kills was not done again; a conversion begins anew.
    assert resumed.changes < undisturbed.changes or name == "convert"
    shutil.rmtree(output)
