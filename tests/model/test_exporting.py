"""With the vectors of the audio tower given, the model is one graph."""

import pytest
import torch


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def inputs(tiny_processor, make_dialogue, make_tiny_model):
    """Padding on the left, on the right and none."""
    batch = tiny_processor([make_dialogue(0.5, 0.3), make_dialogue(0.2, 0.4)], padding_side="left")
    with torch.no_grad():
        features = make_tiny_model().encode_audio(batch["input_features"], batch["feature_attention_mask"])
    return {
        "input_ids": batch["input_ids"],
        "attention_mask": batch["attention_mask"],
        "audio_features": features,
    }


@pytest.mark.parametrize("pooling_mode", ["mean", "attention", "last_token"])
def test_an_exported_model_scores_as_the_model(pooling_mode, make_tiny_model, inputs):
    model = make_tiny_model(pooling_mode)
    with torch.no_grad():
        exported = torch.export.export(model, args=(), kwargs=inputs, strict=False).module()
        expected = model(**inputs).logits
        torch.testing.assert_close(exported(**inputs).logits, expected)
        # Neither the mask nor the tokens are constants of the graph.
        changed = {**inputs, "attention_mask": inputs["attention_mask"].clone()}
        changed["attention_mask"][0, :5] = 0
        torch.testing.assert_close(exported(**changed).logits, model(**changed).logits)
        assert not torch.allclose(model(**changed).logits, expected, atol=1e-7, rtol=0)


def test_the_whole_model_compiles_to_one_graph(make_tiny_model, inputs):
    model = make_tiny_model()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(**inputs).logits, model(**inputs).logits)
