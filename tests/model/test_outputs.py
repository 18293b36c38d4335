"""What a sequence classifier of transformers takes and returns: loss, hidden states, attentions, embeddings."""

import pytest
import torch
from torch import nn


@pytest.fixture
def inputs(tiny_processor, make_dialogue):
    return tiny_processor([make_dialogue(0.5, 0.3), make_dialogue(0.2, 0.4, text="no")])


def test_labels_give_the_mean_squared_error_of_the_rewards(make_tiny_model, inputs):
    output = make_tiny_model()(**inputs, labels=torch.tensor([1.0, -2.0]))
    first, second = output.logits.squeeze(-1).tolist()
    assert output.loss.item() == pytest.approx(((first - 1) ** 2 + (second + 2) ** 2) / 2, rel=1e-6)
    output.loss.backward()


@pytest.mark.parametrize("labels", [torch.tensor([[1], [-2]]), torch.tensor([1, -2])])
def test_labels_may_be_whole_numbers_and_a_column(labels, make_tiny_model, inputs):
    model = make_tiny_model()
    expected = model(**inputs, labels=torch.tensor([1.0, -2.0])).loss
    assert model(**inputs, labels=labels).loss == expected


def test_without_labels_there_is_no_loss(make_tiny_model, inputs):
    output = make_tiny_model()(**inputs)
    assert output.loss is None
    assert list(output) == ["logits", "pooled"]


def test_labels_of_another_number_are_refused(make_tiny_model, inputs):
    with pytest.raises(ValueError, match=r"labels are of shape \[1\] for 2 dialogues"):
        make_tiny_model()(**inputs, labels=torch.tensor([1.0]))


def test_a_problem_other_than_regression_is_refused(tiny_config):
    with pytest.raises(ValueError, match="a reward is a 'regression'"):
        tiny_config(problem_type="multi_label_classification")


def test_the_pooled_vector_is_the_pooled_last_hidden_state(make_tiny_model, inputs):
    output = make_tiny_model()(**inputs, output_hidden_states=True)
    assert len(output.hidden_states) == 3
    mask = inputs["attention_mask"].unsqueeze(-1)
    mean = (output.hidden_states[-1] * mask).sum(1) / mask.sum(1)
    torch.testing.assert_close(output.pooled, mean)


def test_attentions_are_returned_where_they_are_computed(make_tiny_model, inputs):
    model = make_tiny_model()
    with pytest.raises(ValueError, match="'sdpa', which returns no attentions; load with 'eager'"):
        model(**inputs, output_attentions=True)
    model.set_attn_implementation("eager")
    output = model(**inputs, output_attentions=True)
    batch, length = inputs["input_ids"].shape
    assert [tuple(weights.shape) for weights in output.attentions] == [(batch, 2, length, length)] * 2


def test_a_tuple_is_returned_on_request(make_tiny_model, inputs):
    model = make_tiny_model()
    logits, pooled = model(**inputs, return_dict=False)
    expected = model(**inputs)
    assert torch.equal(logits, expected.logits)
    assert torch.equal(pooled, expected.pooled)


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


def test_position_ids_are_used(make_tiny_model, inputs):
    model = make_tiny_model()
    inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
    positions = torch.arange(inputs["input_ids"].shape[1]).expand_as(inputs["input_ids"])
    expected = model(**inputs).logits
    torch.testing.assert_close(model(**inputs, position_ids=positions).logits, expected)
    assert not torch.allclose(model(**inputs, position_ids=3 * positions).logits, expected)


def test_what_would_be_ignored_is_refused(make_tiny_model, inputs):
    with pytest.raises(TypeError, match="forward takes no past_key_values, pixel_values"):
        make_tiny_model()(**inputs, past_key_values=[], pixel_values=torch.zeros(1))
    make_tiny_model()(**inputs, past_key_values=None, use_cache=False)


@pytest.mark.slow
def test_the_trainer_of_transformers_learns_from_labels(make_tiny_model, inputs, tmp_path):
    from transformers import Trainer, TrainingArguments

    model = make_tiny_model()
    rows = [{name: tensor[:1, :20] for name, tensor in inputs.items() if tensor.ndim == 2} for _ in range(4)]
    rows = [{"input_ids": row["input_ids"][0].clamp(max=600), "labels": 5.0} for row in rows]
    arguments = TrainingArguments(
        tmp_path, max_steps=3, learning_rate=0.1, use_cpu=True, report_to=[], save_strategy="no", logging_steps=1
    )
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before / 2
    assert trainer.predict(rows).predictions.shape == (4, 1)


def test_dynamic_quantisation_scores(make_tiny_model, inputs):
    for pooling_mode in ("mean", "attention"):
        model = make_tiny_model(pooling_mode)
        quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
        for layer in (quantised.model.language_model.layers[0].mlp.down_proj, quantised.model.audio_tower.proj):
            assert type(layer).__module__.startswith("torch.ao")
        with torch.no_grad():
            torch.testing.assert_close(quantised(**inputs).logits, model(**inputs).logits, rtol=0.1, atol=0.1)
