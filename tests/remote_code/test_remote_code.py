import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support import forked
from support.paths import ROOT

from sdiareward.checkpoint_io.files import REMOTE_CODE


pytestmark = pytest.mark.slow


REMOTE_FILES = set(REMOTE_CODE)
SCRIPT = """
import json, sys
import numpy as np, torch
sys.modules["sdiareward"] = None  # It cannot be imported.
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoProcessor, pipeline
folder, clip = sys.argv[1], np.load(sys.argv[2])
for auto_class in (AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoProcessor):
    try:
        auto_class.from_pretrained(folder)
    except ValueError as error:
        assert "trust_remote_code" in str(error), error
    else:
        raise AssertionError(auto_class)
print()  # After the questions of the library.
content = [{"type": "text", "text": "hello"}, {"type": "audio", "audio": clip}]
messages = [{"role": role, "content": content} for role in ("user", "assistant")]
assert AutoConfig.from_pretrained(folder, trust_remote_code=True).max_turn_s == 30.0
processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)
for auto_class in (AutoModel, AutoModelForSequenceClassification):
    model = auto_class.from_pretrained(folder, trust_remote_code=True).eval()
    with torch.inference_mode():
        print(json.dumps(model(**processor(messages)).logits.item()))
for task in ("audio-classification", "text-classification"):
    reward = pipeline(task, model=folder, trust_remote_code=True, device="cpu")
    print(json.dumps(reward(messages)["score"]))
    try:
        reward("hello")
    except ValueError as error:
        assert "this model scores dialogues, not a str; give [{'role': 'user'" in str(error), error
    else:
        raise AssertionError(task)
model.save_pretrained(sys.argv[3])
processor.save_pretrained(sys.argv[3])
"""


def test_a_checkpoint_loads_and_scores_where_the_package_is_not_but_runs_no_code_unasked(
    tiny_checkpoint, tiny_processor, make_tiny_model, make_tone, tmp_path
):
    clip = make_tone(0.5)
    np.save(tmp_path / "clip.npy", clip)
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-I", "-c", SCRIPT, tiny_checkpoint, tmp_path / "clip.npy", tmp_path / "again"]
    options = {"cwd": tmp_path, "env": environment, "stdin": subprocess.DEVNULL}
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    content = [{"type": "text", "text": "hello"}, {"type": "audio", "audio": clip}]
    with torch.inference_mode():
        batch = tiny_processor([{"role": role, "content": content} for role in ("user", "assistant")])
        expected = make_tiny_model()(**batch).logits.item()
    assert [json.loads(line) for line in done.stdout.splitlines()[-4:]] == pytest.approx([expected] * 4, abs=1e-6)
    assert auto_map(tmp_path / "again") == auto_map(tiny_checkpoint)
    assert {file.name for file in (tmp_path / "again").glob("*.py")} == REMOTE_FILES


def auto_map(folder):
    return json.loads((folder / "config.json").read_text())["auto_map"]


def test_a_checkpoint_carries_its_code_and_names_its_classes(tiny_checkpoint):
    assert {file.name for file in tiny_checkpoint.glob("*.py")} == REMOTE_FILES
    assert auto_map(tiny_checkpoint) == {
        "AutoConfig": "configuration_sdiareward.SDiaRewardConfig",
        "AutoModel": "modeling_sdiareward.SDiaRewardModel",
        "AutoModelForSequenceClassification": "modeling_sdiareward.SDiaRewardModel",
    }
    processor = json.loads((tiny_checkpoint / "processor_config.json").read_text())
    assert processor["auto_map"] == {"AutoProcessor": "processing_sdiareward.SDiaRewardProcessor"}


def test_with_the_package_imported_the_auto_classes_need_no_remote_code(tiny_checkpoint):
    # In a fork: where a checkpoint's own code was loaded before, the library knows that as its class.
    code = (
        "import sys\n"
        "from transformers import AutoModelForSequenceClassification, AutoProcessor, pipeline\n"
        "from sdiareward.modeling_sdiareward import SDiaRewardModel\n"
        "processor = AutoProcessor.from_pretrained(sys.argv[1])\n"
        "from sdiareward import SDiaRewardPipeline, SDiaRewardProcessor\n"
        "assert type(processor) is SDiaRewardProcessor\n"
        "options = {'model': sys.argv[1], 'pipeline_class': SDiaRewardPipeline, 'device': 'cpu'}\n"
        "reward = pipeline('audio-classification', **options)\n"
        "assert type(reward.model) is SDiaRewardModel\n"
        "print(type(AutoModelForSequenceClassification.from_pretrained(sys.argv[1])) is SDiaRewardModel)"
    )
    done = forked.run([sys.executable, "-c", code, str(tiny_checkpoint)])
    assert done.stdout == "True\n", done.stderr


def imports_of(path):
    """Return what a file imports when it is imported, and what only its functions do; siblings by their module."""
    found = {True: set(), False: set()}
    tree = ast.parse(path.read_text())
    inner = {id(node) for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) for node in ast.walk(each)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found[id(node) not in inner] |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            name = f".{node.module}" if node.level else node.module.partition(".")[0]
            found[id(node) not in inner].add(name)
    return found[True], found[False]


@pytest.mark.parametrize("name", REMOTE_CODE)
def test_remote_code_imports_torch_transformers_and_its_siblings_alone(name):
    first, later = imports_of(ROOT / name)
    siblings = {f".{Path(file).stem}" for file in REMOTE_CODE}
    assert first - sys.stdlib_module_names <= {"numpy", "safetensors", "torch", "transformers"} | siblings
    # To read a recording that was given as a file.
    assert later - sys.stdlib_module_names <= {"soundfile", "soxr"} | siblings
