import json

import pytest
from support.refusals import check_refused

from sdiareward.configuration_sdiareward import DEFAULT_PROMPTS, SDiaRewardConfig, name_prompts
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.train import main
from sdiareward.training.prompts import apply_heard


OWN = "You evaluate dialogues.\n"


@pytest.fixture
def prompt_file(tmp_path):
    path = tmp_path / "prompts.yaml"
    path.write_text(f"reward_modality: |\n  {OWN}")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["head", "lora", "full"])
def test_training_saves_its_prompts_with_the_checkpoint(mode, make_flags, prompt_file, tmp_path, capsys):
    output = tmp_path / "out"
    options = {"train": mode, "prompt_file": prompt_file, "max_turn_s": 0.25}
    given = make_flags(output, **options, max_steps=1, save_steps=1, batch_tokens=1200)
    assert main(given) == 0
    prompts = {**DEFAULT_PROMPTS, "modality": OWN}
    for loaded in (SDiaRewardModel.from_pretrained(output).config, SDiaRewardProcessor.from_pretrained(output)):
        assert loaded.prompts == prompts
        assert loaded.prompt_version == name_prompts(prompts)
        assert loaded.max_turn_s == 0.25
    assert json.loads((output / "run.json").read_text())["arguments"]["prompt_file"] == str(prompt_file)
    if mode == "lora":
        # Adapters that are trained further keep what they were trained to hear.
        further = {"train": mode, "adapter_name_or_path": output / "adapter", "max_steps": 1, "batch_tokens": 1200}
        assert main(make_flags(tmp_path / "further", **further)) == 0
        config = SDiaRewardConfig.from_pretrained(tmp_path / "further")
        assert (config.prompts, config.max_turn_s) == (prompts, 0.25)
    prompt_file.write_text("reward_modality: Something else.")
    assert check_refused(capsys, "prompt_file", main, [*given, "--resume", "True"])


def test_prompts_replace_only_the_criteria_that_they_name(tiny_checkpoint):
    config = SDiaRewardConfig.from_pretrained(tiny_checkpoint)
    processor = SDiaRewardProcessor.from_pretrained(tiny_checkpoint)
    before = dict(config.prompts), config.prompt_version
    apply_heard(config, processor, None)
    apply_heard(config, processor, {"modality": config.prompts["modality"]})
    assert (config.prompts, config.prompt_version) == before
    apply_heard(config, processor, {"modality": OWN})
    assert config.prompts == processor.prompts == {**before[0], "modality": OWN}
    assert config.prompt_version == processor.prompt_version == name_prompts(config.prompts)
