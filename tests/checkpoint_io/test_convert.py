import json

import jinja2
import pytest
import torch
from safetensors.torch import load_file
from support import tiny_model
from support.official_layout import official_tensors, write_official
from transformers import AutoConfig, AutoModel

from sdiareward.chat_sdiareward import render_dialogue
from sdiareward.checkpoint_io.convert import convert_checkpoint, export_checkpoint, read_config
from sdiareward.checkpoint_io.files import save_checkpoint
from sdiareward.cli import main
from sdiareward.common.package import NANO
from sdiareward.loading_sdiareward import to_native_key, to_official_key
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor


PROMPTS = {"joint": "\nYou judge.\n\n"}


@pytest.fixture(scope="module")
def official(tmp_path_factory):
    return write_official(tmp_path_factory.mktemp("source") / "official")


@pytest.fixture(scope="module")
def attention(tmp_path_factory):
    return write_official(tmp_path_factory.mktemp("source") / "attention", "attention", max_shard_size="300KB")


def load_all(folder):
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def same_tensors(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def as_ours(tensors):
    return {to_native_key(name): tensor for name, tensor in tensors.items() if to_native_key(name) is not None}


def test_a_converted_checkpoint_has_the_tensors_of_its_source_bit_by_bit(attention, tmp_path):
    convert_checkpoint(attention, tmp_path / "ours", prompts=PROMPTS)
    assert same_tensors(load_all(tmp_path / "ours"), as_ours(official_tensors("attention")))
    loaded = AutoModel.from_pretrained(tmp_path / "ours", trust_remote_code=True)
    assert (loaded.config.pooling_mode, loaded.config.max_turn_s) == ("attention", 300.0)
    assert same_tensors(loaded.state_dict(), as_ours(official_tensors("attention")))


@pytest.mark.slow
def test_another_dtype_is_that_of_the_backbone_alone(official, tmp_path):
    convert_checkpoint(official, tmp_path / "ours", dtype="bfloat16")
    for name, tensor in load_all(tmp_path / "ours").items():
        stored = official_tensors()[to_official_key(name)]
        assert torch.equal(tensor, stored if name == "score.weight" else stored.bfloat16()), name
    assert SDiaRewardModel.from_pretrained(tmp_path / "ours").dtype == torch.bfloat16
    with pytest.raises(ValueError, match="dtype is 'int8'; choose one of float64, float32, float16, bfloat16"):
        convert_checkpoint(official, tmp_path / "other", dtype="int8")


def cut_short(folder):
    path = write_official(folder) / "model.safetensors"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)


NORM = "model.norm.weight"
OTHER_SHAPE = {NORM: torch.zeros(63)}
INCOMPLETE = {
    "missing": (lambda folder: write_official(folder, without=[NORM]), r"lacks 1 .*\(model.norm"),
    "another shape": (
        lambda folder: write_official(folder, extra=OTHER_SHAPE),
        r"norm.weight has .*\[63\].*\[64\]",
    ),
    "cut short": (cut_short, "cannot be read as safetensors .*; download it again"),
}


@pytest.mark.parametrize("problem", INCOMPLETE)
def test_an_incomplete_source_is_refused_before_anything_is_written(problem, tmp_path):
    spoil, message = INCOMPLETE[problem]
    spoil(tmp_path / "source")
    with pytest.raises((ValueError, OSError), match=message):
        convert_checkpoint(tmp_path / "source", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_a_calibration_is_kept_while_rewards_stay_the_same(caplog, tmp_path):
    given = read_config(NANO).calibration
    assert given is not None
    assert read_config(NANO, max_turn_s=6.0).calibration == given
    assert read_config(NANO, pooling_mode="last_token").calibration is None
    assert "a new pooling_mode changes the rewards: the calibration is removed." in caplog.text
    export_checkpoint(NANO, tmp_path / "released", layout="official")
    assert read_config(tmp_path / "released").calibration == given
    assert read_config(tmp_path / "released", max_turn_s=3.0).calibration is None


@pytest.mark.parametrize(("layout", "pooling_mode"), [("official", "attention"), ("vllm", "last_token")])
def test_an_exported_checkpoint_comes_back_as_it_was(layout, pooling_mode, make_tiny_model, tiny_processor, tmp_path):
    model = make_tiny_model(pooling_mode, prompts=PROMPTS, prompt_version="7", max_turn_s=9.0)
    save_checkpoint(model, tiny_processor, tmp_path / "ours")
    (tmp_path / "ours" / "training_pairs.json").write_text("{}")
    export_checkpoint(tmp_path / "ours", tmp_path / "exported", layout=layout)
    convert_checkpoint(tmp_path / "exported", tmp_path / "back")
    assert (tmp_path / "back" / "training_pairs.json").read_text() == "{}"
    back = SDiaRewardModel.from_pretrained(tmp_path / "back")
    assert same_tensors(back.state_dict(), model.state_dict())
    kept = ("pooling_mode", "prompts", "prompt_version", "max_turn_s", "audio_token_id", "sampling_rate")
    assert {name: getattr(back.config, name) for name in kept} == {name: getattr(model.config, name) for name in kept}
    for part in ("audio_config", "text_config"):
        parts = [getattr(config, part).to_diff_dict() for config in (back.config, model.config)]
        for fields in parts:
            for name in ("tie_word_embeddings", "dtype", "id2label", "label2id", "problem_type"):
                fields.pop(name, None)
            fields.get("rope_parameters", {}).pop("type", None)
        assert parts[0] == parts[1]


def test_the_authors_layout_has_their_names_and_their_configuration(official, fixtures_dir, tmp_path):
    export_checkpoint(official, tmp_path / "exported", layout="official")
    left_out = ("visual.", "lm_head.")
    expected = {name: tensor for name, tensor in official_tensors().items() if not name.startswith(left_out)}
    assert same_tensors(load_all(tmp_path / "exported"), expected)
    exported = json.loads((tmp_path / "exported" / "config.json").read_text())
    recorded = json.loads((fixtures_dir / "official_config.json").read_text())
    # Which version wrote it, and what belongs to no dialogue or follows from another field.
    for name in ("transformers_version", "vision_config"):
        recorded.pop(name)
    recorded["audio_config"].pop("num_hidden_layers")
    for part in ("audio_config", "text_config"):
        fields = recorded.pop(part)
        assert {name: exported[part][name] for name in fields} == fields
    assert {name: exported[name] for name in recorded} == recorded


def test_the_layout_of_vllm_has_a_classifier_with_one_label_no_activation_and_our_chat_template(
    official, tiny_processor, make_dialogue, tmp_path
):
    export_checkpoint(official, tmp_path / "exported", layout="vllm")
    tensors = load_all(tmp_path / "exported")
    assert tensors.pop("language_model.score.weight").shape == (1, 64)
    assert {name.split(".")[0] for name in tensors} == {"thinker"}
    assert {name.split(".")[1] for name in tensors} == {"model", "audio_tower"}
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert config["model_type"] == "qwen2_5_omni"
    assert config["architectures"] == ["Qwen2_5OmniForConditionalGeneration"]
    for place in (config, config["thinker_config"]["text_config"]):
        assert (place["problem_type"], place["id2label"]) == ("regression", {"0": "reward"})
    kinds = [module["type"].split(".")[-1] for module in json.loads((tmp_path / "exported/modules.json").read_text())]
    pooling = json.loads((tmp_path / "exported" / "1_Pooling" / "config.json").read_text())
    assert kinds == ["Transformer", "Pooling"]
    assert [name for name, value in pooling.items() if value is True] == ["pooling_mode_mean_tokens"]
    loaded = AutoConfig.from_pretrained(tmp_path / "exported")
    assert (loaded.num_labels, loaded.get_text_config().num_labels) == (1, 1)
    dialogue = tiny_processor.with_prompt(make_dialogue())
    template = jinja2.Template((tmp_path / "exported" / "chat_template.jinja").read_text())
    expected = render_dialogue(dialogue, tiny_processor.tokenizer)[0]
    assert template.render(messages=dialogue.to_messages()) == expected


def test_a_model_that_stacks_vectors_is_converted_and_not_exported(make_tiny_model, tmp_path):
    make_tiny_model(stack_factor=4).save_pretrained(tmp_path / "model")
    tiny_model.make_processor(stack_factor=4).save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="joins 4 vectors of the audio tower into one token"):
        export_checkpoint(tmp_path / "model", tmp_path / "exported", layout="vllm")
    convert_checkpoint(tmp_path / "model", tmp_path / "converted")
    assert SDiaRewardProcessor.from_pretrained(tmp_path / "converted").stack_factor == 4
    assert SDiaRewardModel.from_pretrained(tmp_path / "converted").config.stack_factor == 4


def test_the_reward_scale_goes_into_the_exported_head(make_tiny_model, tiny_processor, make_dialogue, tmp_path):
    model = make_tiny_model(reward_scale=0.25)
    save_checkpoint(model, tiny_processor, tmp_path / "ours")
    export_checkpoint(tmp_path / "ours", tmp_path / "exported", layout="official")
    exported = SDiaRewardModel.from_pretrained(tmp_path / "exported").eval()
    assert exported.config.reward_scale == 1.0
    assert torch.equal(exported.score.weight, model.score.weight * 0.25)
    inputs = tiny_processor(make_dialogue())
    with torch.inference_mode():
        torch.testing.assert_close(exported(**inputs).logits, model(**inputs).logits, rtol=0, atol=1e-6)


def test_the_commands_convert_and_export(official, tmp_path, capsys):
    (tmp_path / "prompt.txt").write_text("Judge.")
    ours, exported = tmp_path / "ours", tmp_path / "exported"
    options = ["--prompt-file", str(tmp_path / "prompt.txt"), "--pooling-mode", "last_token", "--dtype", "float16"]
    assert main(["build", "convert", str(official), str(ours), *options, "--max-shard-size", "300KB"]) == 0
    assert capsys.readouterr().out == f"{ours}\n"
    assert main(["build", "convert", str(ours), str(exported), "--to", "vllm"]) == 0
    config = json.loads((exported / "config.json").read_text())
    kept = config["sdiareward"]
    assert (kept["pooling_mode"], kept["prompts"]["joint"], config["dtype"]) == ("last_token", "Judge.", "float16")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["SOURCE", "SOURCE"], "not an empty folder"),
        (["ATTENTION", "OUT", "--to", "vllm"], "pooling is attention; vLLM supports only"),
        (["SOURCE", "SOURCE", "--to", "vllm"], "not an empty folder"),
        (["SOURCE", "OUT", "--to", "vllm", "--max_turn_s", "9"], "max_turn_s has no effect with --to vllm"),
    ],
)
def test_a_command_that_cannot_work_reports_the_reason_in_one_line(
    arguments, message, official, attention, tmp_path, capsys
):
    places = {"SOURCE": str(official), "ATTENTION": str(attention), "OUT": str(tmp_path / "out")}
    assert main(["build", "convert", *(places.get(argument, argument) for argument in arguments)]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out").exists()


def test_a_backbone_without_a_head_gets_a_new_one_at_zero(fixtures_dir, tmp_path, caplog):
    source = fixtures_dir / "base_tiny"
    found = convert_checkpoint(source, tmp_path / "out", pooling_mode="attention", max_turn_s=12.0)
    assert "has no score head" in caplog.text
    expected = SDiaRewardModel.from_backbone(source, pooling_mode="attention")
    model, processor = SDiaRewardModel.from_pretrained(found), SDiaRewardProcessor.from_pretrained(found)
    assert model.config.max_turn_s == processor.max_turn_s == 12.0
    assert not model.score.weight.any()
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in expected.state_dict().items())
