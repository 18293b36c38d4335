"""What a sequence classifier of transformers takes and returns: loss, hidden states, attentions, embeddings."""

import pytest
import torch


@pytest.fixture
def inputs(tiny_processor, make_dialogue):
    return tiny_processor([make_dialogue(0.5, 0.3), make_dialogue(0.2, 0.4, text="no")])


def test_labels_give_the_mean_squared_error_of_the_rewards(make_tiny_model, inputs):
    model = make_tiny_model()
    plain = model(**inputs)
    first, second = plain.logits.squeeze(-1).tolist()
    for labels in (torch.tensor([1.0, -2.0]), torch.tensor([[1], [-2]])):
        loss = model(**inputs, labels=labels).loss
        assert loss.item() == pytest.approx(((first - 1) ** 2 + (second + 2) ** 2) / 2, rel=1e-6)
        loss.backward()
    assert plain.loss is None and list(plain) == ["logits", "pooled"]
    assert all(map(torch.equal, model(**inputs, return_dict=False), plain.to_tuple()))
    with pytest.raises(ValueError, match=r"labels are of shape \[1\] for 2 dialogues"):
        model(**inputs, labels=torch.tensor([1.0]))


def test_attentions_are_returned_where_they_are_computed(make_tiny_model, inputs):
    model = make_tiny_model()
    with pytest.raises(ValueError, match="'sdpa', which returns no attentions; load with 'eager'"):
        model(**inputs, output_attentions=True)
    model.set_attn_implementation("eager")
    output = model(**inputs, output_attentions=True)
    batch, length = inputs["input_ids"].shape
    assert [tuple(weights.shape) for weights in output.attentions] == [(batch, 2, length, length)] * 2


def test_embeddings_in_the_place_of_tokens_give_the_same_reward(make_tiny_model, inputs):
    model = make_tiny_model()
    expected = model(**inputs).logits
    rest = dict(inputs)
    embeds = model.get_input_embeddings()(rest.pop("input_ids"))
    assert torch.equal(model(inputs_embeds=embeds, **rest).logits, expected)
    whole = model.embed(inputs["input_ids"], inputs["input_features"], inputs["feature_attention_mask"])
    assert torch.equal(model(inputs_embeds=whole, attention_mask=inputs["attention_mask"]).logits, expected)
    with pytest.raises(TypeError, match="both are given"):
        model(inputs_embeds=embeds, **inputs)


WITHOUT = ["input_features", "placeholders", "attention_mask left", "attention_mask right", "feature_attention_mask"]


@pytest.mark.parametrize("without", WITHOUT)
def test_inputs_that_do_not_belong_together_are_refused(make_tiny_model, tiny_processor, make_dialogue, without):
    model = make_tiny_model()
    dialogues = [make_dialogue(0.5, 0.3), make_dialogue(0.2, 0.4, text="no")]
    inputs = dict(tiny_processor(dialogues, padding_side=without.split()[-1] if " " in without else "right"))
    if without == "placeholders":
        inputs["input_ids"][inputs["input_ids"] == model.config.audio_token_id] = 7
    else:
        del inputs[without.split()[0]]
    message = "attention_mask" if "mask" in without else "audio placeholders"
    with pytest.raises(ValueError, match=message):
        model(**inputs)
    inputs["inputs_embeds"] = model.get_input_embeddings()(inputs.pop("input_ids"))
    with pytest.raises(ValueError, match=message):
        model(**inputs)


@pytest.mark.parametrize("pad", [{}, {"text": None, "top": 640}, {"text": None, "top": None}], ids=str)
def test_padding_is_known_where_the_configuration_names_it(make_tiny_model, inputs, pad):
    model = make_tiny_model()
    if pad:
        model.config.get_text_config().pad_token_id, model.config.pad_token_id = pad["text"], pad["top"]
    del inputs["attention_mask"]
    if pad.get("top", 640) is None:
        model(**inputs)
    else:
        with pytest.raises(ValueError, match="attention_mask"):
            model(**inputs)


def test_position_ids_are_used(make_tiny_model, inputs):
    model = make_tiny_model()
    inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
    positions = torch.arange(inputs["input_ids"].shape[1]).expand_as(inputs["input_ids"])
    expected = model(**inputs).logits
    torch.testing.assert_close(model(**inputs, position_ids=positions).logits, expected)
    assert not torch.allclose(model(**inputs, position_ids=3 * positions).logits, expected)


def test_what_would_be_ignored_is_refused(make_tiny_model, inputs, tiny_config):
    with pytest.raises(ValueError, match="a reward is a 'regression'"):
        tiny_config(problem_type="multi_label_classification")
    with pytest.raises(TypeError, match="forward takes no past_key_values, pixel_values"):
        make_tiny_model()(**inputs, past_key_values=[], pixel_values=torch.zeros(1))
    make_tiny_model()(**inputs, past_key_values=None, use_cache=False)
