"""Checkpoints from strangers: no pickle is read, no code runs, and no file outside of the checkpoint is opened."""

import ast
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.paths import ROOT

from sdiareward.checkpoint_io.adapter_files import reject_custom_adapters
from sdiareward.checkpoint_io.adapters import load_adapted
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor


# Modules by which Python objects, and with them code, come out of files.
LOADERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
# Functions that do the same; `np.load` does only if it is told to, by `allow_pickle`.
CALLS = {"load": {"torch", "yaml"}, "read_pickle": {"pd", "pandas"}}
CALLS |= dict.fromkeys(("full_load", "unsafe_load", "load_all", "full_load_all", "unsafe_load_all"), {"yaml"})


@pytest.fixture
def checkpoint(tiny_checkpoint, tmp_path):
    return shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt", "model.pkl"])
def test_weights_that_are_pickles_are_refused_and_never_opened(name, checkpoint, tiny_judge, tmp_path, bomb):
    from sdiareward.judges.thinker import load_thinker_model

    content, trace = bomb
    judge = shutil.copytree(tiny_judge, tmp_path / "judge")
    for folder, load in ((checkpoint, SDiaRewardModel.from_pretrained), (judge, load_thinker_model)):
        (folder / "model.safetensors").unlink()
        (folder / name).write_bytes(content)
        with pytest.raises(OSError, match="safetensors"):
            load(folder)
    assert not trace.exists()


@pytest.mark.parametrize(
    "file", ["pytorch_model.bin", "../other.safetensors", "/etc/x.safetensors", "a\\b.safetensors"]
)
def test_an_index_names_nothing_but_safetensors_beside_it(file, checkpoint, bomb):
    content, trace = bomb
    names = list(load_file(checkpoint / "model.safetensors"))
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "pytorch_model.bin").write_bytes(content)
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, file)}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"model\.safetensors\.index\.json"):
        SDiaRewardModel.from_pretrained(checkpoint)
    assert not trace.exists()


@pytest.mark.parametrize("load", [SDiaRewardProcessor.from_pretrained, SDiaRewardProcessor.from_backbone])
def test_a_tokenizer_with_code_of_its_own_is_refused_without_a_question(load, checkpoint, tmp_path):
    (checkpoint / "evil.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')\nclass Evil: pass\n")
    own = {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}, "tokenizer_class": "Evil"}
    change(checkpoint / "tokenizer_config.json", **own)
    with pytest.raises(ValueError, match="trust_remote_code"):
        load(checkpoint)
    assert not (tmp_path / "trace").exists()


@pytest.fixture
def adapters(tmp_path, tiny_checkpoint):
    folder = tmp_path / "adapters"
    folder.mkdir()
    base = str(tiny_checkpoint)
    config = {"peft_type": "LORA", "r": 4, "base_model_name_or_path": base, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file({"a": torch.zeros(1)}, folder / "adapter_model.safetensors")
    return folder


def test_adapters_that_are_pickles_are_refused_and_never_opened(adapters, bomb, tiny_checkpoint):
    content, trace = bomb
    assert reject_custom_adapters(adapters) == str(tiny_checkpoint)
    (adapters / "adapter_model.safetensors").unlink()
    (adapters / "adapter_model.bin").write_bytes(content)
    with pytest.raises(FileNotFoundError, match="adapter_model.safetensors"):
        load_adapted(adapters)
    assert not trace.exists()


@pytest.mark.parametrize(
    "values",
    [
        {"peft_type": "PREFIX_TUNING"},
        {"megatron_config": {"a": 1}, "megatron_core": "os"},
        {"corda_config": {"cache_file": "x.pt"}},
    ],
)
def test_adapters_that_import_modules_or_read_pickles_are_refused(values, adapters):
    change(adapters / "adapter_config.json", **values)
    with pytest.raises(ValueError, match=r"adapter_config\.json"):
        load_adapted(adapters)


def modules():
    """Return the package's own modules that travel or are installed."""
    skipped = {"tests", "runs", "build", "dist", "benchmarks", ".venv", ".venv-datasets3", "checkpoints"}
    return [path for path in sorted(ROOT.rglob("*.py")) if path.relative_to(ROOT).parts[0] not in skipped]


def forbidden(tree):
    """Yield what in a module could make objects of a file's choosing, or read a model from another kind of file."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        yield from (name for name in names if name.partition(".")[0] in LOADERS)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            options = {keyword.arg: getattr(keyword.value, "value", True) for keyword in node.keywords}
            if owner in CALLS.get(node.func.attr, ()):
                yield f"{owner}.{node.func.attr}"
            if options.get("allow_pickle"):
                yield "allow_pickle"
            # Our own models ask for safetensors themselves.
            is_theirs = owner.endswith(("Model", "ForConditionalGeneration", "ForCausalLM")) and "SDia" not in owner
            if node.func.attr == "from_pretrained" and is_theirs and owner != "PeftModel":
                yield from () if "use_safetensors" in options else [owner]


@pytest.mark.slow
def test_nothing_in_the_package_reads_a_pickle():
    found = {str(path.relative_to(ROOT)): list(forbidden(ast.parse(path.read_text()))) for path in modules()}
    assert len(found) > 100
    assert {name: what for name, what in found.items() if what} == {}
