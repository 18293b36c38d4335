"""Every `accelerate launch` line of the recipes and guides, as far as it goes without GPUs."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest
import transformers.integrations
from accelerate.utils.deepspeed import HfDeepSpeedConfig
from support.launched import read_environment
from support.paths import CONFIGS, ROOT
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

import sdiareward.judges.wavreward.train
import sdiareward.train


_LINE = re.compile(
    r"accelerate launch --config_file configs/(?P<launch>accelerate_\w+\.yaml)"
    r"(?: --num_processes (?P<number>\d+))?[\s\\#]+"
    r"(?:-m sdiareward\.train|train\.py) --config (?P<recipe>configs/[\w-]+\.yaml)"
)
_MENTION = re.compile(r"accelerate_\w+\.yaml")


def list_launches():
    """Return each launch line, and for a recipe each further launch configuration that it names."""
    found = set()
    for path in [*CONFIGS.glob("*.yaml"), *ROOT.glob("docs/*.md")]:
        text = path.read_text(encoding="utf-8")
        for line in _LINE.finditer(text):
            number = int(line["number"] or 4)
            launches = [line["launch"], *(_MENTION.findall(text) if path.parent == CONFIGS else [])]
            found |= {(launch, number, line["recipe"]) for launch in launches}
    return sorted(found)


class ComparedConfig(HfDeepSpeedConfig):
    """transformers' own comparison; its class has this base only where DeepSpeed is installed."""

    trainer_config_process = HfTrainerDeepSpeedConfig.trainer_config_process
    trainer_config_finalize = HfTrainerDeepSpeedConfig.trainer_config_finalize
    fill_match, fill_only = HfTrainerDeepSpeedConfig.fill_match, HfTrainerDeepSpeedConfig.fill_only
    is_auto = HfTrainerDeepSpeedConfig.is_auto

    def __init__(self, config):
        super().__init__(config)
        self.mismatches = []


@pytest.fixture
def launched(monkeypatch):
    """Return a function that sets the environment of a launch; DeepSpeed itself is not needed to compare values."""
    # Reading the arguments would register the configuration for the whole process.
    monkeypatch.setattr(transformers.integrations, "HfDeepSpeedConfig", HfDeepSpeedConfig)

    def set_environment(config):
        for name, value in read_environment(CONFIGS / config).items():
            monkeypatch.setenv(name, value)

    return set_environment


def read_training_arguments(recipe, monkeypatch):
    """Return the arguments with which the command begins to train."""
    started = []
    monkeypatch.setattr(sdiareward.train, "require_model", str)
    for module in (sdiareward.train, sdiareward.judges.wavreward.train):
        monkeypatch.setattr(module, "train", lambda args, training, *_: started.append(training))
        monkeypatch.setattr(module, "lock_folder", lambda _: nullcontext())
    assert sdiareward.train.main(["--config", str(ROOT / recipe), "--use_cpu", "True"]) == 0
    return started[0]


def test_the_launches_of_the_guides_are_found():
    launches = list_launches()
    for recipe in ("configs/wavreward-7b.yaml", "configs/wavreward-7b-sft.yaml"):
        assert ("accelerate_zero3.yaml", 8, recipe) in launches
    for recipe in ("configs/3b.yaml", "configs/7b.yaml"):
        named = {launch for launch, *_, other in launches if other == recipe}
        assert named == {f"accelerate_{name}.yaml" for name in ("zero2", "zero3", "fsdp2")}


@pytest.mark.parametrize(("config", "number", "recipe"), list_launches())
def test_a_recipe_and_its_launch_configuration_agree(config, number, recipe, launched, monkeypatch):
    launched(config)
    monkeypatch.setattr(transformers.TrainingArguments, "world_size", number)
    training = read_training_arguments(recipe, monkeypatch)
    plugin = training.deepspeed_plugin
    assert (plugin is not None) == ("zero" in config)
    assert training.bf16
    if plugin is None:
        return
    # What the trainer does before the first step.
    compared = ComparedConfig(plugin.hf_ds_config.config)
    compared.trainer_config_process(training)
    compared.trainer_config_finalize(training, model=None, num_training_steps=10)
    given = compared.config
    assert given["gradient_accumulation_steps"] == training.gradient_accumulation_steps
    assert given["gradient_clipping"] == training.max_grad_norm
    assert given["bf16"]["enabled"]
    assert plugin.zero_stage == int(re.search(r"zero(\d)", config)[1])


def test_every_recipe_builds_a_folder_of_its_own_name():
    # `datasets` caches a folder under its name: load_dataset("sdiareward") elsewhere would find that build.
    recipes = [*CONFIGS.glob("*.yaml"), *ROOT.glob("examples/*.yaml"), *ROOT.glob("benchmarks/*/*.yaml")]
    folders = re.findall(r"^output_dir: (.+/sdiareward.*)$", "\n".join(map(Path.read_text, recipes)), re.MULTILINE)
    names = [folder.rpartition("/")[2] for folder in folders]
    assert len(names) > 7 and "sdiareward" not in names and len(set(names)) == len(names)
