"""The ways to run a model besides the `Scorer`: the pipeline, offloaded, exported."""

import pytest
import torch
from accelerate import cpu_offload, disk_offload
from transformers import pipeline as make_pipeline

from sdiareward.chat_sdiareward import DialogueError
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.pipeline_sdiareward import SDiaRewardPipeline
from sdiareward.scoring.outcomes import SAVED_FLOAT32
from sdiareward.scoring.scorer import Scorer


@pytest.fixture(scope="module")
def parts(make_tiny_model, tiny_processor):
    model = make_tiny_model()
    pipeline = SDiaRewardPipeline(model=model, processor=tiny_processor, task="audio-classification", device="cpu")
    return pipeline, Scorer(model, tiny_processor)


def test_the_pipeline_gives_the_rewards_of_the_scorer(parts, make_dialogue):
    pipeline, scorer = parts
    dialogues = [make_dialogue(0.5, 0.3), make_dialogue(0.2, 0.4, text="no"), make_dialogue(0.3, 0.3, text="oh")]
    for criterion, batch_size in (("modality", None), (["joint", "modality", "colloquialness"], 2)):
        results = pipeline(dialogues, criterion, batch_size=batch_size)
        assert {result["label"] for result in results} == {"reward"}
        expected = scorer.score(dialogues, criterion)
        assert [result["score"] for result in results] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "task", ["text-classification", "sentiment-analysis", "zero-shot-classification", "feature-extraction"]
)
def test_a_pipeline_that_would_read_texts_is_ours_and_refuses_them(task, tiny_checkpoint):
    given = {"candidate_labels": ["good", "bad"]} if task == "zero-shot-classification" else {}
    reward = make_pipeline(task, model=str(tiny_checkpoint), trust_remote_code=True, device="cpu")
    # Of the checkpoint's own code: another class of the same name.
    with pytest.raises(ValueError, match="this model scores dialogues, not a str; give"):
        reward("hello", **given)


def test_bad_dialogues_and_options_are_named(parts, make_dialogue):
    for given in ("hello", b"RIFF", [], {"text": "hello"}, None):
        with pytest.raises(DialogueError, match=r"scores dialogues, not a .*; give \[\{'role': 'user', 'content'"):
            parts[0](given)
    for dialogues, options, kind, message in (
        ([make_dialogue(), make_dialogue()[:1]], {}, DialogueError, "dialogue 2: has 1 turns and ends with the user"),
        (["one.wav", "two.wav"], {}, DialogueError, "dialogue 1: is a str; give a list of turns"),
        (make_dialogue(), {"criterion": "warmth"}, ValueError, "criterion is 'warmth'"),
        (make_dialogue(), {"top_k": 2}, TypeError, "takes no top_k"),
    ):
        with pytest.raises(kind, match=message):
            parts[0](dialogues, **options)


def to_cpu(model, folder):
    return cpu_offload(model, execution_device=torch.device("cpu"))


def to_disk(model, folder):
    return disk_offload(model, folder, execution_device=torch.device("cpu"))


def audio_tower_to_disk(model, folder):
    places = {"model.audio_tower": "disk", "model.language_model": "cpu", "score": "cpu", "pooler": "cpu"}
    return SDiaRewardModel.from_pretrained(model.config.name_or_path, device_map=places, offload_folder=folder)


@pytest.mark.parametrize("offload", [to_cpu, to_disk, audio_tower_to_disk])
def test_an_offloaded_model_scores_as_one_in_memory(offload, tiny_checkpoint, tiny_processor, make_dialogue, tmp_path):
    dialogues = [make_dialogue(0.5, 0.3), make_dialogue(0.2, 0.4)]
    model = SDiaRewardModel.from_pretrained(tiny_checkpoint)
    expected = Scorer(model, tiny_processor).score(dialogues)
    model = offload(model, tmp_path)
    assert next(model.parameters()).device.type == "meta"
    assert model.device.type == "cpu"
    for pack in (True, False):
        assert Scorer(model, tiny_processor, pack=pack).score(dialogues) == pytest.approx(expected, abs=SAVED_FLOAT32)


@pytest.mark.slow
def test_with_the_vectors_of_the_audio_tower_the_model_is_one_graph(make_tiny_model, tiny_processor, make_dialogue):
    model = make_tiny_model("last_token")
    # Padding on the left, on the right and none.
    inputs = dict(tiny_processor([make_dialogue(0.5, 0.3), make_dialogue(0.2, 0.4)], padding_side="left"))
    with torch.no_grad():
        mels = inputs.pop("input_features"), inputs.pop("feature_attention_mask")
        inputs["audio_features"] = model.encode_audio(*mels)
        exported = torch.export.export(model, args=(), kwargs=inputs, strict=False).module()
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        expected = model(**inputs).logits
        torch.testing.assert_close(exported(**inputs).logits, expected)
        torch.testing.assert_close(compiled(**inputs).logits, expected)
        # Neither the mask nor the tokens are constants of the graph.
        inputs["attention_mask"][0, :5] = 0
        torch.testing.assert_close(exported(**inputs).logits, model(**inputs).logits)
        assert not torch.allclose(model(**inputs).logits, expected, atol=1e-7, rtol=0)
