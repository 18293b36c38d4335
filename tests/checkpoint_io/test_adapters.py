import json
import shutil

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from support.tiny_model import save_adapters
from transformers import AutoModel

from sdiareward.checkpoint_io.adapters import add_adapters, continue_adapters, load_adapted
from sdiareward.checkpoint_io.models import fingerprint_model
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.scoring.scorer import Scorer


@pytest.fixture
def adapted(tmp_path, tiny_checkpoint, make_tiny_model, tiny_processor):
    """Return a model with adapters that are not at zero, and the folder they were saved in."""
    model = make_tiny_model()
    model.name_or_path = str(tiny_checkpoint)
    folder = tmp_path / "adapter"
    return save_adapters(add_adapters(model, r=4, alpha=8), tiny_processor, folder), folder


def rewards(model, processor, make_dialogue):
    inputs = processor([make_dialogue(0.3, 0.2)], criterion="modality")
    with torch.no_grad():
        return model(**inputs).logits.item()


def test_adapters_and_head_come_back_merged_or_to_be_trained_further(
    adapted, tiny_processor, make_dialogue, make_tiny_model
):
    model, folder = adapted
    expected = rewards(model, tiny_processor, make_dialogue)
    assert abs(expected - rewards(make_tiny_model(), tiny_processor, make_dialogue)) > 1e-3
    loaded, further = load_adapted(folder).eval(), continue_adapters(make_tiny_model(), folder)
    assert not any("lora" in name for name, _ in loaded.named_parameters())
    trainable = [{n: p for n, p in each.named_parameters() if p.requires_grad} for each in (model, further)]
    assert trainable[0].keys() == trainable[1].keys()
    for each in (loaded, further.eval()):
        assert rewards(each, tiny_processor, make_dialogue) == pytest.approx(expected, abs=1e-5)
    found = Scorer.from_pretrained(folder, device="cpu").score([make_dialogue(0.3, 0.2)], "modality")
    assert found == pytest.approx([expected], abs=1e-5)
    other = Scorer.from_pretrained(folder, device="cpu", prompts={"modality": "Say something else."})
    assert other.score([make_dialogue(0.3, 0.2)], "modality") != found


def test_adapters_on_a_backbone_bring_their_head(fixtures_dir, tmp_path, make_dialogue):
    from sdiareward.processing_sdiareward import SDiaRewardProcessor

    base = str(fixtures_dir / "base_tiny")
    model = add_adapters(SDiaRewardModel.from_backbone(base, pooling_mode="attention"), r=2, alpha=4)
    processor = SDiaRewardProcessor.from_backbone(base)
    save_adapters(model, processor, tmp_path)
    loaded = load_adapted(tmp_path).eval()
    assert loaded.config.pooling_mode == "attention"
    expected = rewards(model, processor, make_dialogue)
    assert expected != 0
    assert rewards(loaded, processor, make_dialogue) == pytest.approx(expected, abs=1e-5)


def test_a_projection_trained_beside_adapters_is_in_float32_and_comes_back(
    tmp_path, tiny_checkpoint, make_tiny_model, tiny_processor
):
    model = make_tiny_model().to(torch.bfloat16)
    model.name_or_path = str(tiny_checkpoint)
    model = add_adapters(model, r=4, alpha=8, train_projection=True)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    projection = {name: parameter for name, parameter in trained.items() if "audio_tower.proj" in name}
    assert len(projection) == 2
    assert {parameter.dtype for parameter in projection.values()} == {torch.float32}
    save_adapters(model, tiny_processor, tmp_path)
    loaded = load_adapted(tmp_path, dtype=torch.bfloat16).eval()
    found = loaded.model.audio_tower.proj.weight.detach().float()
    expected = next(parameter for name, parameter in projection.items() if name.endswith("weight"))
    torch.testing.assert_close(found, expected.detach(), rtol=0, atol=0.01)
    further = continue_adapters(make_tiny_model().to(torch.bfloat16), tmp_path)
    trained = {name: p.dtype for name, p in further.named_parameters() if p.requires_grad and "audio_tower" in name}
    assert len(trained) == 2 and set(trained.values()) == {torch.float32}


P = "base_model.model."
WRONG = {
    "without the prefix of PEFT": (lambda t: {name.removeprefix(P): v for name, v in t.items()}, {}, "without"),
    "one tensor too many": (lambda t: {**t, P + "new.weight": torch.zeros(2)}, {}, "new.weight"),
    "no head": (lambda t: {name: v for name, v in t.items() if "score" not in name}, {}, "score.weight"),
    "no adapters": (lambda t: {name: v for name, v in t.items() if "lora" not in name}, {}, "lora_A"),
    "another rank": (dict, {"r": 2}, "lora_A"),
    "another hidden size": (lambda t: {n: v[:, :16] if "score" in n else v for n, v in t.items()}, {}, "score.weight"),
}


@pytest.mark.parametrize("name", WRONG)
def test_adapters_that_do_not_fit_are_refused_by_the_name_of_a_tensor(name, adapted, make_tiny_model, tmp_path):
    change, settings, tensor = WRONG[name]
    folder = adapted[1]
    save_file(change(load_file(folder / "adapter_model.safetensors")), folder / "adapter_model.safetensors")
    config = folder / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **settings}))
    bare = shutil.copytree(folder, tmp_path / "bare", ignore=shutil.ignore_patterns("config.json"))
    doors = (load_adapted, Scorer.from_pretrained, lambda path: continue_adapters(make_tiny_model(), path))
    for load in doors:
        with pytest.raises(ValueError, match=f"adapter.*{tensor}"):
            load(folder)
    # The integration of transformers, which a folder without a configuration of ours takes.
    with pytest.raises((ValueError, RuntimeError)):
        AutoModel.from_pretrained(bare)


def test_adapters_without_a_head_need_a_base_with_one(fixtures_dir, tmp_path):
    base = str(fixtures_dir / "base_tiny")
    model = SDiaRewardModel.from_backbone(base)
    get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(str(tmp_path))
    model.config.save_pretrained(tmp_path)
    for load in (load_adapted, lambda path: continue_adapters(SDiaRewardModel.from_backbone(base), path)):
        with pytest.raises(ValueError, match=r"score\.weight"):
            load(tmp_path)


def test_a_base_may_be_given_or_named_by_its_place_beside_the_adapters_or_by_its_name_in_the_package(
    adapted, tiny_checkpoint, tmp_path, tiny_processor, make_dialogue, monkeypatch
):
    model, folder = adapted
    shutil.copytree(tiny_checkpoint, tmp_path / "base")
    config = folder / "adapter_config.json"
    monkeypatch.setattr("sdiareward.checkpoint_io.models.NANO", tiny_checkpoint)
    expected = pytest.approx(rewards(model, tiny_processor, make_dialogue), abs=1e-5)
    fingerprints = set()
    settings = json.loads(config.read_text())
    for named, message in ((str(tmp_path / "gone"), "gone"), (None, "adapter")):
        config.write_text(json.dumps({**settings, "base_model_name_or_path": named}))
        with pytest.raises((OSError, ValueError), match=message):
            load_adapted(folder)
        loaded = load_adapted(folder, base_model=tiny_checkpoint).eval()
        assert rewards(loaded, tiny_processor, make_dialogue) == expected
    for named in ("../base", "nano"):
        config.write_text(json.dumps({**settings, "base_model_name_or_path": named}))
        assert rewards(load_adapted(folder).eval(), tiny_processor, make_dialogue) == expected
        fingerprints.add(fingerprint_model(str(folder)))
        (tmp_path / "base" / "model.safetensors").write_bytes(b"other")
    assert len(fingerprints) == 2
