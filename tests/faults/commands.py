"""The commands under test, their inputs, and the results that must survive a fault.

Every command has `arguments(output)`; `result(output)`, which must be the same after a disturbed and an undisturbed
run; `num_finished(output)`, the number of finished parts on disk; `num_made(output, done)`, the number of parts that
the last run made; and `source`, a file that it reads.
"""

import hashlib
import json
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import yaml

from benchmarks.bad_input import make_line, read_speech, write
from sdiareward.dataset_builder.formats.shards import read_rows
from sdiareward.pairs.schema import SIDES
from sdiareward.training.resuming import find_newest_checkpoint


RATE = 16_000
NUM_DIALOGUES = 12
_TRAINING = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "num_train_epochs": 2,
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "learning_rate": 1e-2,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "save_steps": 1,
    "logging_steps": 1,
    "disable_tqdm": True,
    "resume": True,
}
# Fields of results.json that may differ between runs.
_NOT_COMPARED = {"timing", "versions", "python", "machine", "git_revision"}


def digest(content):
    """Return a short hash."""
    return hashlib.sha256(content).hexdigest()[:16]


def digests(folder, pattern="*"):
    """Return the hash of every file of a folder by its name."""
    files = sorted(path for path in folder.rglob(pattern) if path.is_file())
    return {str(path.relative_to(folder)): digest(path.read_bytes()) for path in files}


def read_lines(path):
    """Return the objects of a JSON lines file without an incomplete last line; none if there is no such file."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


class World:
    """A few short dialogues cut from a bundled recording, and the pairs built from them.

    Args:
        folder (`Path`): Folder to create.
        checkpoint (`Path`): A tiny model.
    """

    def __init__(self, folder, checkpoint):
        self.folder, self.checkpoint = folder, checkpoint
        self.recordings, self.built, self.pairs = (folder / name for name in ("recordings", "built", "pairs"))
        self.recordings.mkdir(parents=True)
        speech, lines = read_speech(), []
        for number in range(NUM_DIALOGUES):
            start = number * RATE // 16
            write(self.recordings / f"{number}.wav", speech[start : start + round(0.6 * RATE)])
            lines.append(json.dumps(make_line(f"call-{number}", f"{number}.wav", text=f"line {number}")))
        (self.recordings / "manifest.jsonl").write_text("\n".join(lines) + "\n")

    def add_pairs(self, built):
        """Copy a built data set, and write its clips to files that rows refer to.

        Args:
            built (`Path`): Output folder of the builder.
        """
        shutil.copytree(built, self.built)
        clips = self.folder / "clips"
        clips.mkdir()
        self.pairs.mkdir()
        for split, row in read_rows(self.built):
            for side in SIDES:
                for place, turn in enumerate(row[side]):
                    clip = clips / f"{row['pair_id']}-{side}-{place}.wav"
                    clip.write_bytes(turn["audio"]["bytes"])
                    row[side][place] = {"role": turn["role"], "text": turn["text"], "audio": str(clip)}
            kept = ("pair_id", "criterion", "subset", "source", "synthesizer", "group_id", *SIDES)
            with (self.pairs / f"{split}.jsonl").open("a") as file:
                file.write(json.dumps({name: row[name] for name in kept}) + "\n")

    def clip(self, split):
        """Return the recording of the last pair of a split."""
        return Path(read_lines(self.pairs / f"{split}.jsonl")[-1]["rejected"][0]["audio"])


class Build:
    name, module = "build", "sdiareward.dataset_builder.__main__"

    def __init__(self, world):
        self.world = world
        self.source = world.recordings / f"{NUM_DIALOGUES - 1}.wav"

    def arguments(self, output):
        settings = {
            "output_dir": str(output / "sdiareward"),
            "sources": [{"name": "folder", "path": str(self.world.recordings)}],
            "synthesizers": {"modality": {"seen": ["hibari"]}},
            "test": 0.3,
            "validation": 0.2,
            "num_workers": 1,
        }
        config = self.world.folder / "build.yaml"
        config.write_text(yaml.safe_dump(settings))
        return ["build", "--config", config]

    def result(self, output):
        return digests(output)

    def num_finished(self, output):
        if (output / "sdiareward" / "report.json").exists() and not (output / "sdiareward" / ".parts").exists():
            return NUM_DIALOGUES
        return len(list((output / "sdiareward" / ".parts").glob("*.parquet")))

    def num_made(self, output, done):
        """Return the number of pairs the last run made, from its progress bar."""
        found = re.findall(r"pairs: .*?(\d+)/(\d+) \[", done.err)
        return int(found[-1][0]) if found else 0


class Train:
    name, module = "train", "sdiareward.train"

    def __init__(self, world):
        self.world = world
        self.source = world.clip("train")

    def arguments(self, output):
        options = {"model_name_or_path": self.world.checkpoint, "dataset": self.world.pairs, **_TRAINING}
        return [text for name, value in {**options, "output_dir": output}.items() for text in (f"--{name}", value)]

    def result(self, output):
        history = json.loads((output / "run.json").read_text())["history"]
        losses = [{name: line[name] for name in ("step", "loss", "eval_loss") if name in line} for line in history]
        return {
            "files": sorted(digests(output)),
            "weights": digests(output, "model.safetensors"),
            "described": {name: value for name, value in digests(output, "*config.json").items() if "/" not in name},
            "skipped": read_lines(output / "skipped.jsonl"),
            "losses": [line for line in losses if len(line) > 1],
        }

    def num_finished(self, output):
        newest = find_newest_checkpoint(output)
        return int(newest.name.partition("-")[2]) if newest else 0

    def num_made(self, output, done):
        """Return the number of steps of the last run: its checkpoints are younger than its start."""
        states = output.glob("checkpoint-*/trainer_state.json")
        return sum(state.stat().st_mtime > done.start for state in states)


class Evaluate:
    name, module = "evaluate", "sdiareward.eval"

    def __init__(self, world):
        self.world = world
        self.source = world.clip("test")

    def arguments(self, output):
        options = {"model": self.world.checkpoint, "dataset": self.world.pairs, "output_dir": output}
        options |= {"num_bootstrap": 20, "batch_tokens": 1, "device": "cpu"}
        return [text for name, value in options.items() for text in (f"--{name}", value)]

    def result(self, output):
        results = json.loads((output / "results.json").read_text())
        return {
            # A killed session is not timed.
            "files": sorted(digests(output).keys() - {"sessions.jsonl"}),
            "scores": sorted(read_lines(output / "scores.jsonl"), key=lambda line: line["pair_id"]),
            "skipped": read_lines(output / "skipped.jsonl"),
            "results": {name: value for name, value in results.items() if name not in _NOT_COMPARED},
            "baselines": {name: json.loads((output / f"{name}.json").read_text()) for name in ("acoustic", "text")},
        }

    def num_finished(self, output):
        return len(read_lines(output / "scores.jsonl"))

    def num_made(self, output, done):
        """Return the number of pairs the last run scored."""
        sessions = read_lines(output / "sessions.jsonl")
        is_new = sessions and (output / "sessions.jsonl").stat().st_mtime > done.start
        return sessions[-1]["num_pairs"] if is_new else 0


class Score:
    name, module = "score", "sdiareward.cli"

    def __init__(self, world):
        self.world = world
        self.source = world.clip("train")

    def arguments(self, output):
        data = ["--dataset", self.world.pairs, "--split", "train", "--output", output]
        return ["score", *data, "--model", self.world.checkpoint, "--device", "cpu", "--batch-tokens", "1"]

    def result(self, output):
        return {
            "files": sorted(name for name in digests(output) if not name.startswith("partial/")),
            "scores": pq.read_table(output / "scores.parquet").to_pylist(),
            "skipped": read_lines(output / "skipped.jsonl"),
            "rows": sorted(record["row"] for record in self._records(output) if "rewards" in record),
        }

    def _records(self, output):
        return [record for path in sorted((output / "partial").glob("*.jsonl")) for record in read_lines(path)]

    def num_finished(self, output):
        return len({record["row"] for record in self._records(output) if "rewards" in record})

    def num_made(self, output, done):
        return json.loads((output / "summary.json").read_text())["summary"]["num_new"]


class Push:
    name, module = "push", "sdiareward.cli"

    def __init__(self, world, hub):
        self.world, self.hub = world, hub
        self.source = sorted(world.built.glob("data/*/*.parquet"))[-1]

    def arguments(self, output):
        return ["push", "dataset", self.world.built, "ORG/pairs", "--yes", "--work-dir", output]

    def result(self, output):
        repository = self.hub.store.repositories["dataset", "ORG/pairs"]
        files = repository.files("main")
        content = {path: self.hub.store.objects[b.sha256] if b.sha256 else b.content for path, b in files.items()}
        return {
            "commit": repository.find("main"),
            "num_commits": len(repository.commits),
            "published": {path: digest(text) for path, text in sorted(content.items())},
            "work": digests(output),
        }

    def num_finished(self, output):
        # Only what was pushed: models of other commands lie there too.
        return len(self.hub.store.times_sent)

    def num_made(self, output, done):
        return sum(request.method == "PUT" for request in self.hub.requests if request.path.startswith("/objects"))


def make_commands(world, hub):
    """Return the commands by name."""
    commands = (Build(world), Train(world), Evaluate(world), Score(world), Push(world, hub))
    return {command.name: command for command in commands}
