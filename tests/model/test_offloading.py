"""Models that accelerate offloads score as those in memory."""

import pytest
import torch
from accelerate import cpu_offload, disk_offload

from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.scoring.scorer import Scorer
from sdiareward.scoring.tolerances import SAVED_FLOAT32


def to_cpu(checkpoint, folder):
    model = SDiaRewardModel.from_pretrained(checkpoint)
    cpu_offload(model, execution_device=torch.device("cpu"))
    return model


def to_disk(checkpoint, folder):
    model = SDiaRewardModel.from_pretrained(checkpoint)
    disk_offload(model, folder, execution_device=torch.device("cpu"))
    return model


def audio_tower_to_disk(checkpoint, folder):
    places = {"model.audio_tower": "disk", "model.language_model": "cpu", "score": "cpu", "pooler": "cpu"}
    return SDiaRewardModel.from_pretrained(checkpoint, device_map=places, offload_folder=folder)


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("offload", [to_cpu, to_disk, audio_tower_to_disk])
def test_an_offloaded_model_scores_as_one_in_memory(
    offload, pack, tiny_checkpoint, tiny_processor, make_dialogue, tmp_path
):
    dialogues = [make_dialogue(0.5, 0.3), make_dialogue(0.2, 0.4)]
    expected = Scorer(SDiaRewardModel.from_pretrained(tiny_checkpoint), tiny_processor, pack=pack).score(dialogues)
    model = offload(tiny_checkpoint, tmp_path)
    assert next(model.parameters()).device.type == "meta"
    assert model.device.type == "cpu"
    found = Scorer(model, tiny_processor, pack=pack).score(dialogues)
    assert found == pytest.approx(expected, abs=SAVED_FLOAT32)


def test_a_model_without_tensors_is_on_the_meta_device(tiny_config):
    with torch.device("meta"):
        assert SDiaRewardModel(tiny_config()).device.type == "meta"
