"""The Makefile that measures the small checkpoint."""

import re
import shlex
import subprocess
from importlib.util import find_spec

import pytest
from support.paths import ROOT

from benchmarks.guides.rendering import TEMPLATES


# Measured on the backbone that was never trained for a reward, and by the training itself.
OF_NO_CHECKPOINT = {"left_out_heads.json", "small/alignment.json", "small/run.json"}


@pytest.fixture(scope="module")
def commands():
    command = ["make", "--dry-run", "--always-make", "--file", "benchmarks/small.mk"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return [shlex.split(line) for line in done.stdout.replace("\\\n", " ").splitlines()]


def test_it_writes_all_that_the_page_reads(commands):
    page = (TEMPLATES / "results_small.md.jinja").read_text(encoding="utf-8")
    read = set(re.findall(r'read\("([\w/.]+)"\)', page)) - OF_NO_CHECKPOINT
    words = {word for command in commands for word in command}
    written = {word.rsplit("/", 1)[-1] for word in words if word.endswith(".json")}
    # These two write where the page reads.
    written |= {f"{name}.json" for name in ("families", "hearing") if f"benchmarks.{name}" in words}
    assert read and read <= written


def test_every_model_is_scored_in_both_dtypes_and_compared(commands):
    folders = {command[command.index("--output_dir") + 1] for command in commands if "--output_dir" in command}
    [compared] = [command for command in commands if "benchmarks.dtype_flips" in command]
    named = [pair.split("=")[1].split(",") for pair in compared[compared.index("--evaluations") + 1 :]]
    assert len(named) == 4
    assert {folder for pair in named for folder in pair} <= folders


def test_what_is_drawn_is_there_before_it_is_scored():
    command = ["make", "--dry-run", "--always-make", "--file", "benchmarks/small.mk", "runs/small_done/flips"]
    words = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    for pairs in ("runs/paper.parquet", "runs/joint.parquet", "runs/families.parquet"):
        uses = [before for before, word in zip(words, words[1:], strict=False) if word == pairs]
        assert uses[0] == "--output" and "--dataset" in uses


def test_the_modules_and_configurations_are_there(commands):
    words = {word for command in commands for word in command}
    modules = {word for word in words if re.fullmatch(r"benchmarks\.\w+", word)}
    assert len(modules) == 4 and all(find_spec(module) for module in modules)
    assert all((ROOT / word).exists() for word in words if word.startswith(("configs/", "examples/", "checkpoints/")))
