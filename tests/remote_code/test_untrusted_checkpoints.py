"""Checkpoints from strangers: no pickle is read, and no more memory taken than the files hold."""

import ast
import json
import resource
import shutil
import struct
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.paths import ROOT

from sdiareward.checkpoint_io.adapters import load_adapted, reject_custom_adapters
from sdiareward.checkpoint_io.tensor_files import read_header
from sdiareward.configuration_sdiareward import SDiaRewardConfig
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor


# Modules by which Python objects, and with them code, come out of files.
LOADERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle"}
# Functions that do the same; `np.load` does only if it is told to, by `allow_pickle`.
CALLS = {"load": {"torch", "yaml"}, "read_pickle": {"pd", "pandas"}}
CALLS |= dict.fromkeys(("full_load", "unsafe_load", "load_all", "full_load_all", "unsafe_load_all"), {"yaml"})
LAYERS = ["full_attention"] * 200


@pytest.fixture
def checkpoint(tiny_checkpoint, tmp_path):
    return shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")


def change(folder, file, **values):
    path = folder / file
    content = json.loads(path.read_text())
    for name, value in values.items():
        place, _, key = name.rpartition("__")
        (content[place] if place else content)[key] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt", "model.pkl"])
def test_weights_that_are_pickles_are_refused_with_the_reason_and_never_opened(name, checkpoint, bomb):
    content, trace = bomb
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / name).write_bytes(content)
    with pytest.raises(FileNotFoundError, match="only safetensors are read.*can run code"):
        SDiaRewardModel.from_pretrained(checkpoint)
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
    with pytest.raises(ValueError, match="files of a checkpoint lie beside its index and are safetensors"):
        SDiaRewardModel.from_pretrained(checkpoint)
    assert not trace.exists()


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": {"a": 1}}', "[" * 100_000, "\x00"])
def test_an_index_that_is_none_is_refused(content, checkpoint):
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ValueError, match="is no index of safetensors files"):
        SDiaRewardModel.from_pretrained(checkpoint)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("text_config__num_hidden_layers", 10**6),
        ("text_config__num_hidden_layers", 10**12),
        ("text_config__hidden_size", 10**9),
        ("text_config__vocab_size", 5 * 10**9),
        ("text_config__intermediate_size", 2**40),
        ("text_config__num_attention_heads", -1),
        ("text_config__num_hidden_layers", 1.5),
        ("text_config__hidden_size", "32"),
        ("audio_config__encoder_layers", 10**6),
        ("audio_config__num_hidden_layers", 10**6),
        ("audio_config__max_source_positions", 10**10),
        ("audio_config__num_mel_bins", 10**8),
        # A name would be made for each.
        ("num_labels", 10**9),
        ("text_config__num_labels", 10**9),
        ("audio_config__num_labels", 10**9),
        ("vision_config__num_labels", 10**9),
        # The sound of which hours would be decoded and resampled at once.
        ("max_turn_s", 1e9),
        ("text_config", [1]),
        ("_attn_implementation", "somebody/kernels"),
    ],
)
def test_a_configuration_that_asks_for_too_much_is_refused_before_anything_is_built(name, value, checkpoint):
    change(checkpoint, "config.json", **{name: value})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=name.rpartition("__")[2]):
        SDiaRewardConfig.from_pretrained(checkpoint)
    with pytest.raises(ValueError, match=name.rpartition("__")[2]):
        SDiaRewardModel.from_pretrained(checkpoint)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_thinker_within_another_configuration_is_looked_at_too(fixtures_dir, tmp_path):
    base = shutil.copytree(fixtures_dir / "base_tiny", tmp_path / "base")
    content = json.loads((base / "config.json").read_text())
    nested = content if "thinker_config" in content else {"model_type": "qwen2_5_omni", "thinker_config": content}
    nested["thinker_config"]["text_config"]["num_hidden_layers"] = 10**6
    (base / "config.json").write_text(json.dumps(nested))
    with pytest.raises(ValueError, match="num_hidden_layers is 1000000; a whole number up to 512"):
        SDiaRewardModel.from_backbone(base)
    with pytest.raises(ValueError, match="thinker_config is a list"):
        SDiaRewardConfig.from_dict({"model_type": "qwen2_5_omni", "thinker_config": []})


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [{"num_hidden_layers": 200, "layer_types": LAYERS}, {"vocab_size": 2**22}])
def test_sizes_that_the_files_do_not_hold_are_refused_before_memory_is_taken(sizes, checkpoint):
    sizes = {"intermediate_size": 2**20, **sizes}
    change(checkpoint, "config.json", **{f"text_config__{name}": value for name, value in sizes.items()})
    code = (
        "import resource, sys, torch\n"
        "from sdiareward.modeling_sdiareward import SDiaRewardModel\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    SDiaRewardModel.from_pretrained(sys.argv[1])\n"
        "except ValueError as error:\n    print(str(error)[:500].replace(chr(10), ' '))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(checkpoint)],
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    reason, grown_kib = done.stdout.splitlines()
    assert "lacks" in reason or "its configuration asks for" in reason
    # Tens of gigabytes were asked for.
    assert int(grown_kib) < 200_000


def test_a_feature_extractor_that_asks_for_too_much_is_refused(checkpoint):
    (file,) = (name for name in ("processor_config.json",) if (checkpoint / name).is_file())
    content = json.loads((checkpoint / file).read_text())
    for name, value in (("n_fft", 10**9), ("feature_size", 10**7), ("hop_length", 0), ("sampling_rate", 2**31)):
        (checkpoint / file).write_text(
            json.dumps({**content, "feature_extractor": {**content["feature_extractor"], name: value}})
        )
        with pytest.raises(ValueError, match=f"{name} of the feature extractor is {value}"):
            SDiaRewardProcessor.from_pretrained(checkpoint)
    other = {**content["feature_extractor"], "feature_extractor_type": "ClapFeatureExtractor"}
    (checkpoint / file).write_text(json.dumps({**content, "feature_extractor": other}))
    with pytest.raises(ValueError, match="only WhisperFeatureExtractor is used here"):
        SDiaRewardProcessor.from_pretrained(checkpoint)


def test_a_tokenizer_with_code_of_its_own_is_refused_without_a_question(checkpoint, tmp_path):
    (checkpoint / "evil.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')\nclass Evil: pass\n")
    change(checkpoint, "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]})
    change(checkpoint, "tokenizer_config.json", tokenizer_class="Evil")
    with pytest.raises(ValueError, match="trust_remote_code"):
        SDiaRewardProcessor.from_pretrained(checkpoint)
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("kind", ["T5Tokenizer", "T5TokenizerFast", "LlamaTokenizer", 3])
def test_a_tokenizer_of_another_kind_is_refused(kind, checkpoint):
    """Some make as many tokens as their file says: `extra_ids` of T5's."""
    change(checkpoint, "tokenizer_config.json", tokenizer_class=kind, extra_ids=10**9)
    for load in (SDiaRewardProcessor.from_pretrained, SDiaRewardProcessor.from_backbone):
        with pytest.raises(ValueError, match="its tokenizer is a .*only Qwen2Tokenizer, .* are used here"):
            load(checkpoint)


def test_settings_of_a_tokenizer_that_are_none_are_refused(checkpoint):
    (checkpoint / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"tokenizer_config.json is no JSON object"):
        SDiaRewardProcessor.from_pretrained(checkpoint)


@pytest.fixture
def adapters(tmp_path, tiny_checkpoint):
    folder = tmp_path / "adapters"
    folder.mkdir()
    config = {
        "peft_type": "LORA",
        "r": 4,
        "base_model_name_or_path": str(tiny_checkpoint),
        "target_modules": ["q_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file({"a": torch.zeros(1)}, folder / "adapter_model.safetensors")
    return folder


def test_adapters_that_are_pickles_are_refused_and_never_opened(adapters, bomb, tiny_checkpoint):
    content, trace = bomb
    assert reject_custom_adapters(adapters) == str(tiny_checkpoint)
    (adapters / "adapter_model.safetensors").unlink()
    (adapters / "adapter_model.bin").write_bytes(content)
    with pytest.raises(FileNotFoundError, match="holds no adapter_model.safetensors.*can run code"):
        load_adapted(adapters)
    assert not trace.exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"r": 10**9}, "ranks"),
        ({"rank_pattern": {"q_proj": 10**9}}, "ranks"),
        ({"peft_type": "PREFIX_TUNING"}, "peft_type LORA"),
        ({"megatron_config": {"a": 1}, "megatron_core": "os"}, "megatron_config"),
        ({"layer_replication": [[0, 2]] * 10_000}, "sets layer_replication"),
        ({"exclude_modules": "(a+)+$"}, "sets exclude_modules"),
        ({"corda_config": {"cache_file": "x.pt"}}, "sets corda_config"),
        ({"target_modules": "(a+)+$"}, "names the module"),
        ({"rank_pattern": {"(a+)+$": 2}}, "names the module"),
    ],
)
def test_adapters_that_ask_for_too_much_are_refused(values, message, adapters):
    change(adapters, "adapter_config.json", **values)
    with pytest.raises(ValueError, match=message):
        load_adapted(adapters)


def test_a_judge_is_loaded_from_safetensors_alone_and_no_larger_than_its_files(tiny_judge, tmp_path, bomb):
    from sdiareward.judges.thinker import load_thinker_model

    content, trace = bomb
    judge = shutil.copytree(tiny_judge, tmp_path / "judge")
    change(judge, "config.json", text_config__num_hidden_layers=200)
    with pytest.raises(ValueError, match="configuration is invalid .*num_hidden_layers"):
        load_thinker_model(judge)
    change(judge, "config.json", text_config__layer_types=LAYERS)
    with pytest.raises(ValueError, match="holds .* values and its configuration requires"):
        load_thinker_model(judge)
    (judge / "model.safetensors").unlink()
    (judge / "pytorch_model.bin").write_bytes(content)
    with pytest.raises((OSError, ValueError), match="safetensors"):
        load_thinker_model(judge)
    assert not trace.exists()


def header(**tensors):
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<Q", 2**62),
        struct.pack("<Q", 99_999_999) + b"{}",
        header(a={"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}),
        header(a={"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}) + bytes(8),
        header(a={"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}) + bytes(8),
        header(a={"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}) + bytes(8),
        header(a={"dtype": "F32", "data_offsets": [0, 8]}) + bytes(8),
        header(a={"dtype": "F32", "shape": "x", "data_offsets": "yz"}) + bytes(8),
        header(a=[1]),
        b"[" * 1000,
    ],
)
def test_a_lying_header_of_safetensors_is_refused_by_both_readers(content, checkpoint):
    path = checkpoint / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        read_header(path)
    with pytest.raises(ValueError, match="cannot be read as safetensors"):
        SDiaRewardModel.from_pretrained(checkpoint)


def modules():
    """Return the package's own modules that travel or are installed."""
    skipped = {"tests", "runs", "build", "dist", "benchmarks", ".venv", ".venv-datasets3", "checkpoints"}
    return [path for path in sorted(ROOT.rglob("*.py")) if path.relative_to(ROOT).parts[0] not in skipped]


def forbidden(tree):
    """Yield what in a module could make objects of a file's choosing."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        yield from (name for name in names if name.partition(".")[0] in LOADERS)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            if owner in CALLS.get(node.func.attr, ()):
                yield f"{owner}.{node.func.attr}"
            yield from (
                keyword.arg
                for keyword in node.keywords
                if keyword.arg == "allow_pickle" and getattr(keyword.value, "value", True)
            )


@pytest.mark.slow
def test_nothing_in_the_package_reads_a_pickle():
    found = {str(path.relative_to(ROOT)): list(forbidden(ast.parse(path.read_text()))) for path in modules()}
    assert len(found) > 200
    assert {name: what for name, what in found.items() if what} == {}


def test_the_search_for_pickles_finds_them():
    code = "import pickle\nfrom joblib import load\ntorch.load(x)\nnp.load(x, allow_pickle=True)\npd.read_pickle(y)"
    assert sorted(forbidden(ast.parse(code))) == [
        "allow_pickle", "joblib", "pd.read_pickle", "pickle", "torch.load",
    ]  # fmt: skip


@pytest.mark.slow
def test_every_model_is_loaded_from_safetensors_alone():
    """Models of `transformers` itself are asked for safetensors; those of ours ask for them themselves."""
    own = {"SDiaRewardModel", "SDiaRewardHead", "Scorer", "Thinker", "WavRewardJudge"}
    unsafe = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            is_load = isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "from_pretrained"
            name = getattr(getattr(node.func, "value", None), "id", "") if is_load else ""
            is_model = name.endswith(("Model", "ForConditionalGeneration", "ForCausalLM")) and name not in own
            if is_model and name != "PeftModel" and "use_safetensors" not in {key.arg for key in node.keywords}:
                unsafe.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert unsafe == []
