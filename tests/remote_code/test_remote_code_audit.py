"""What the code that travels with a checkpoint imports, and what it does while a checkpoint is loaded and used."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile
from support.paths import ROOT

from sdiareward.checkpoint_io.files import REMOTE_CODE


pytestmark = pytest.mark.slow


# What a checkpoint needs to be loaded; safetensors is what transformers reads its weights with.
AT_IMPORT = {"numpy", "safetensors", "torch", "transformers"}
# To read a recording that was given as a file, and only then.
FOR_AUDIO = {"soundfile", "soxr"}
STANDARD = {
    "__future__",
    "collections",
    "contextlib",
    "copy",
    "dataclasses",
    "functools",
    "hashlib",
    "io",
    "itertools",
    "json",
    "logging",
    "math",
    "os",
    "pathlib",
    "re",
    "typing",
}
# Runs with the remote code alone. Whatever is done by it, and not by a library that it calls, is printed.
AUDITED = """
import json, sys, sysconfig
import numpy as np, torch
import transformers.models.qwen2_5_omni.modeling_qwen2_5_omni, transformers.models.whisper.feature_extraction_whisper
from transformers import AutoConfig, AutoModel, AutoProcessor
assert "sdiareward" not in sys.modules

STANDARD = (sysconfig.get_path("stdlib"), "<frozen")
SILENT = ("object.", "sys.", "marshal.", "code.", "gc.", "builtins.id", "os.listdir", "os.scandir", "time.")
own, anywhere, running = [], [], []

def hook(event, arguments):
    if running or event.startswith(SILENT):
        return
    running.append(event)
    try:
        note(event, arguments)
    finally:
        running.clear()

def note(event, arguments):
    if event.startswith(("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.fork", "urllib.")):
        anywhere.append(event)
    frame, passed = sys._getframe(2), []
    while frame is not None and frame.f_code.co_filename.startswith(STANDARD):
        if "site-packages" in frame.f_code.co_filename:
            break
        passed.append(frame.f_code.co_filename)
        frame = frame.f_back
    file = frame.f_code.co_filename if frame is not None else ""
    if "transformers_modules" not in file:
        return
    if event == "import":
        own.append([event, str(arguments[0]).partition(".")[0], file.rpartition("/")[2]])
    elif any("importlib" in name for name in passed) or (passed and passed[0].endswith("dataclasses.py")):
        return
    else:
        own.append([event, str(arguments[0] if arguments else "").rpartition("/")[2], file.rpartition("/")[2]])

sys.addaudithook(hook)
rewards = []
for folder in sys.argv[3:]:
    model = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
    processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)
    for audio in (np.load(sys.argv[1]), sys.argv[2]):
        content = [{"type": "text", "text": "hello"}, {"type": "audio", "audio": audio}]
        messages = [{"role": role, "content": content} for role in ("user", "assistant")]
        with torch.inference_mode():
            rewards.append(model(**processor(messages)).logits.item())
print(json.dumps({"own": own, "anywhere": anywhere, "rewards": rewards}))
"""


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


@pytest.mark.parametrize("name", sorted(REMOTE_CODE))
def test_remote_code_imports_torch_transformers_and_its_siblings_alone(name):
    first, later = imports_of(ROOT / name)
    siblings = {f".{Path(file).stem}" for file in REMOTE_CODE}
    assert first <= AT_IMPORT | STANDARD | siblings
    assert later <= FOR_AUDIO | siblings


@pytest.mark.parametrize("name", sorted(REMOTE_CODE))
def test_remote_code_calls_nothing_that_runs_what_it_is_given(name):
    tree = ast.parse((ROOT / name).read_text())
    called = {
        node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert called.isdisjoint({"eval", "exec", "compile", "__import__", "breakpoint", "input"})


@pytest.fixture(scope="module")
def audited(tmp_path_factory, tiny_checkpoint, make_tiny_model, tiny_processor, make_tone):
    """Return what the remote code did by itself: a checkpoint of one file and one of several were loaded and used."""
    import numpy as np

    folder = tmp_path_factory.mktemp("audited")
    np.save(folder / "clip.npy", make_tone(0.3))
    soundfile.write(folder / "clip.flac", make_tone(0.3), 16_000)
    make_tiny_model().save_pretrained(folder / "sharded", max_shard_size="40KB")
    tiny_processor.save_pretrained(folder / "sharded")
    assert (folder / "sharded" / "model.safetensors.index.json").is_file()
    environment = {**os.environ, "HF_MODULES_CACHE": str(folder / "modules"), "HF_HUB_OFFLINE": "1"}
    files = [folder / "clip.npy", folder / "clip.flac", tiny_checkpoint, folder / "sharded"]
    command = [sys.executable, "-I", "-c", AUDITED, *map(str, files)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_audited_process_did_load_and_score(audited):
    first, second, third, fourth = audited["rewards"]
    assert first == third
    assert second == fourth
    # Coded and read again, at 16 bits.
    assert first == pytest.approx(second, abs=0.05)


def test_remote_code_opens_no_file_but_the_index_of_its_checkpoint_and_a_recording_given(audited):
    done = {(event, name) for event, name, _ in audited["own"] if event != "import"}
    assert done == {("open", "model.safetensors.index.json"), ("open", "clip.flac")}


def test_remote_code_imports_what_it_says_when_it_runs(audited):
    imported = {name for event, name, _ in audited["own"] if event == "import"}
    assert imported <= AT_IMPORT | FOR_AUDIO | STANDARD | {"transformers_modules"}
    assert "transformers_modules" in imported


def test_no_connection_is_made_and_no_process_started_by_anyone(audited):
    assert audited["anywhere"] == []
