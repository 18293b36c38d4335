import json

import pytest

from sdiareward.configuration_sdiareward import DEFAULT_PROMPTS, SDiaRewardConfig, name_prompts


OTHER_THAN_DEFAULT = {
    "pooling_mode": "attention",
    "prompts": {"joint": "Judge this."},
    "prompt_version": "7",
    "max_turn_s": 12.5,
    "sampling_rate": 8000,
    "stack_factor": 4,
    "reward_scale": 0.25,
}


def test_every_field_that_changes_a_reward_survives_saving_and_loading(tmp_path):
    SDiaRewardConfig(**OTHER_THAN_DEFAULT).save_pretrained(tmp_path)
    loaded = SDiaRewardConfig.from_pretrained(tmp_path)
    assert {name: getattr(loaded, name) for name in OTHER_THAN_DEFAULT} == OTHER_THAN_DEFAULT


def test_defaults_are_written_out_so_that_a_later_default_does_not_change_a_checkpoint(tmp_path):
    SDiaRewardConfig().save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert OTHER_THAN_DEFAULT.keys() <= saved.keys()
    assert saved["prompts"] == DEFAULT_PROMPTS


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"pooling_mode": "max"}, "'max'"),
        ({"prompts": {}}, "{}"),
        ({"prompts": {"joint": " "}}, "' '"),
        ({"prompt_version": ""}, "prompt_version"),
        ({"max_turn_s": 0}, "max_turn_s is 0"),
        ({"max_turn_s": float("nan")}, "nan"),
        ({"max_turn_s": 3600.5}, "max_turn_s is 3600.5; give a positive number of seconds up to 3600"),
        ({"stack_factor": 0}, "stack_factor is 0; give a whole number from 1 to 64"),
        ({"stack_factor": 65}, "65"),
        ({"sampling_rate": -1}, "-1"),
        ({"reward_scale": 0.0}, "reward_scale is 0.0"),
        ({"id2label": {0: "a", 1: "b"}}, "num_labels is 2"),
    ],
)
def test_a_value_out_of_range_is_refused_with_what_was_found(fields, found):
    with pytest.raises(ValueError, match=found.replace("{", r"\{")):
        SDiaRewardConfig(**fields)


def test_a_field_overridden_on_loading_is_validated_too(tmp_path):
    SDiaRewardConfig().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="pooling_mode is 'max'; choose one of mean, attention, last_token"):
        SDiaRewardConfig.from_pretrained(tmp_path, pooling_mode="max")


def test_prompts_overridden_on_loading_are_named_after_their_content(tmp_path):
    SDiaRewardConfig(prompts={"joint": "Judge."}, prompt_version="7").save_pretrained(tmp_path)
    versions = [
        SDiaRewardConfig.from_pretrained(tmp_path, **options).prompt_version
        for options in (
            {"prompts": {"joint": "Other."}},
            {"prompts": {"joint": "Other "}},
            {"prompts": {"joint": "Judge."}},
            {"prompts": {"joint": "Other."}, "prompt_version": "8"},
        )
    ]
    assert versions[0] == name_prompts({"joint": "Other."}) != versions[1]
    assert versions[2:] == ["7", "8"]
    assert versions[0].startswith("custom-")


def test_the_configuration_of_another_kind_of_model_is_refused():
    with pytest.raises(ValueError, match="model_type is 'bert'; give a checkpoint of 'sdiareward' or of the authors"):
        SDiaRewardConfig.from_dict({"model_type": "bert", "hidden_size": 8})
