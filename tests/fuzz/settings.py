"""Targets that read settings and checkpoints: YAML, prompts, configurations, headers of tensors."""

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from fuzz.running import FIXTURES, Target, World
from fuzz.sources import model_bin
from fuzz.values import changed, damaged, damaged_texts, json_texts, texts
from hypothesis import strategies as st
from support.paths import ROOT

from sdiareward.checkpoint_io import whisper
from sdiareward.checkpoint_io.tensor_files import read_header
from sdiareward.common.settings import read_mapping
from sdiareward.common.yaml_files import parse_yaml
from sdiareward.configuration_sdiareward import SDiaRewardConfig
from sdiareward.dataset_builder.pipeline.settings import read_settings
from sdiareward.dataset_builder.recipes.chatreward.settings import read_config
from sdiareward.dataset_builder.settings import read_build_config
from sdiareward.judges.wavreward.prompts import JudgingPrompt, read_judging_prompt
from sdiareward.judges.zero_shot.settings import choose_judge
from sdiareward.layouts_sdiareward import list_tensors, read_processor_fields
from sdiareward.pairs.prompts import read_prompt_file, read_prompts


# Texts that break `yaml.safe_load` alone, and a few lines that stand for a billion values.
_YAML = (
    *("!!timestamp x", "!!bool 2", "!!int ''", "!!float a", "!!binary é", "2001-99-99", "? [a]\n: 1", "a: &a [*a]"),
    *(
        "{" * 3000,
        "- " * 3000,
        "!!python/object/apply:os.system [id]",
        "<<: 1",
        "a: .nan",
        "1_000: 0b",
        "%YAML 9.9\n---\n",
    ),
    "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
)
_CONFIGS = {
    name: yaml.safe_load((ROOT / "configs" / f"{name}.yaml").read_text(encoding="utf-8"))
    for name in ("data_full", "demo_data", "pipeline_offline", "judges", "chatreward_tiny")
}


@st.composite
def yaml_texts(draw: Any, good: Any) -> str:
    """Return YAML: of valid settings with changes, damaged as text, or malicious."""
    text = yaml.safe_dump(draw(changed(good).map(_without_surrogates)), allow_unicode=True)
    kind = draw(st.integers(0, 9))
    return text if kind < 6 else draw(damaged_texts(text)) if kind < 8 else draw(st.sampled_from(_YAML))


def _without_surrogates(value: Any) -> Any:
    return json.loads(json.dumps(value).replace("\\ud", "\\u0"))


def _parse_yaml(world: World, text: str) -> None:
    value = parse_yaml(text, "text")
    assert len(repr(value)) < 100 * (len(text) + 1000)


def _file_target(name: str, good: Any, suffix: str, read: Callable[[Path], Any]) -> Target:
    cases = (lambda _: yaml_texts(good)) if suffix == "yaml" else (lambda _: json_texts(good))
    file = f"{name.replace(' ', '_')}.{suffix}"
    return Target(name, "settings", cases, lambda world, text: read(world.write(file, text)))


def _choose_judges(path: Path) -> None:
    for name in read_mapping(path):
        choose_judge(str(name), path)


def _make_config(world: World, content: Any) -> None:
    if not isinstance(content, Mapping):
        return
    config = SDiaRewardConfig.from_dict(dict(content))
    assert config.num_labels == 1 and config.prompts
    json.loads(config.to_json_string())


def _tensors(header: Any) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(64)


_HEADER = {
    "__metadata__": {"format": "pt"},
    "score.weight": {"dtype": "F32", "shape": [1, 8], "data_offsets": [0, 32]},
    "model.x": {"dtype": "BF16", "shape": [4, 4], "data_offsets": [32, 64]},
}
_INDEX = {"metadata": {"total_size": 64}, "weight_map": {"score.weight": "model-00001-of-00001.safetensors"}}


def _tensor_files(_: World) -> st.SearchStrategy[bytes]:
    return changed(_HEADER).map(_tensors) | damaged(_tensors(_HEADER))


def _read_header(world: World, data: bytes) -> None:
    path = world.write("checkpoint/model.safetensors", data)
    assert set(read_header(path)) == list_tensors(path.parent)


def _read_index(world: World, text: str) -> None:
    path = world.write("sharded/model.safetensors.index.json", text)
    assert all(isinstance(name, str) for name in list_tensors(path.parent))


def _read_processor_fields(world: World, text: str) -> None:
    path = world.write("config/config.json", text)
    read_processor_fields(path.parent)


def _read_variables(world: World, data: bytes) -> None:
    found = whisper.read_ctranslate2(world.write("model.bin", data))
    assert sum(value.nbytes for value in found.values()) <= len(data)


def _read_encoder(world: World, data: bytes) -> None:
    whisper.load_whisper_encoder_weights(world.write("whisper/model.bin", data).parent)


def _encoder_bin(_: World) -> st.SearchStrategy[bytes]:
    names = (
        "encoder/layer_0/self_attention/linear_0/weight",
        "encoder/layer_0/ffn/linear_9/bias",
        "encoder/conv1/bias",
    )
    return st.sampled_from(names).flatmap(
        lambda name: damaged(model_bin(name, np.ones((6, 2), np.float16)), model_bin(name, np.ones(4, np.float16)))
    )


_PROMPTS = {"modality": "Judge the sound.", "joint": "Judge."}
_OWN_CONFIG = json.loads((ROOT / "checkpoints" / "nano" / "config.json").read_text(encoding="utf-8"))
_OFFICIAL_CONFIG = json.loads((FIXTURES / "official_config.json").read_text(encoding="utf-8"))

TARGETS = (
    Target("YAML", "settings", lambda _: yaml_texts(_CONFIGS["judges"]) | texts(), _parse_yaml),
    _file_target("build settings", _CONFIGS["demo_data"], "yaml", lambda path: read_build_config(path, {})),
    _file_target("pipeline settings", _CONFIGS["pipeline_offline"], "yaml", read_settings),
    _file_target("judge settings", _CONFIGS["judges"], "yaml", _choose_judges),
    _file_target("chatreward settings", _CONFIGS["chatreward_tiny"], "yaml", read_config),
    _file_target("judging prompt", asdict(JudgingPrompt()), "json", read_judging_prompt),
    _file_target("prompts", _PROMPTS, "json", read_prompts),
    _file_target("named prompts", {"script_speaking": "Say $max_words words."}, "yaml", read_prompt_file),
    Target("own configuration", "settings", lambda _: changed(_OWN_CONFIG), _make_config),
    Target("foreign configuration", "settings", lambda _: changed(_OFFICIAL_CONFIG), _make_config),
    Target(
        "config.json",
        "settings",
        lambda _: json_texts(_OFFICIAL_CONFIG),
        _read_processor_fields,
        (ValueError, OSError),
    ),
    Target("safetensors header", "settings", _tensor_files, _read_header),
    Target("safetensors index", "settings", lambda _: json_texts(_INDEX), _read_index),
    Target("CTranslate2 model.bin", "settings", lambda _: damaged(model_bin()), _read_variables),
    Target("Whisper in CTranslate2", "settings", _encoder_bin, _read_encoder),
)
