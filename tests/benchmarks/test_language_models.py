"""What untrained language models know of recorded conversations."""

import numpy as np
import pytest
import torch
from support.tiny_model import BASE
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from benchmarks import language_models
from benchmarks.guides.rendering import render_blocks


TURNS = [
    {"role": "user", "text": "is it far"},
    {"role": "assistant", "text": "ten miles"},
    {"role": "user", "text": "is there a bus"},
    {"role": "assistant", "text": "at noon"},
]


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    folder = tmp_path_factory.mktemp("language_model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=704, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(BASE).save_pretrained(folder)
    return language_models.LanguageModel(str(folder))


def test_a_likelihood_is_that_of_each_token_given_all_before_it(judge):
    ids = [judge.tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("user: far\n", " ten miles")]
    table = torch.softmax(judge.model(input_ids=torch.tensor([sum(ids, [])])).logits[0].float(), dim=-1)
    expected = sum(np.log(float(table[len(ids[0]) + n - 1, token])) for n, token in enumerate(ids[1]))
    assert judge.compute_likelihood("user: far\n", " ten miles") == pytest.approx(expected, rel=1e-3)


def test_a_gain_is_the_sum_over_the_answers(judge):
    expected = 0.0
    for before, text in [
        ("user: is it far\n", " ten miles"),
        ("user: is it far\nassistant: ten miles\nuser: is there a bus\n", " at noon"),
    ]:
        expected += judge.compute_likelihood(before + "assistant:", text) - judge.compute_likelihood(
            "assistant:", text
        )
    assert judge.compute_gain(TURNS) == pytest.approx(expected, rel=1e-6)
    assert judge.compute_gain(TURNS[:1]) == 0
    # An answer that nothing stands before is as likely as alone.
    assert judge.compute_gain(TURNS[1:2]) == 0


@pytest.mark.parametrize(
    ("label", "is_used"),
    [
        (("context", "order", "recording"), True),
        (("context", "order", "flite"), False),
        (("context", "transcript", "recording"), False),
        (("context", "repetition", "recording"), False),
        (("rhythm", "reading", "recording"), False),
    ],
)
def test_recorded_pairs_with_other_answers_are_used(label, is_used):
    names = ("primary", "secondary", "synthesizer")
    assert language_models.is_used(dict(zip(names, label, strict=True))) is is_used


def test_pairs_are_counted_by_kind_and_together():
    pairs = [
        {"primary": "context", "secondary": kind, "chosen": chosen, "rejected": 1.0}
        for kind, chosen in [("order", 2.0), ("order", 0.0), ("last_answer", 3.0)]
    ]
    found = language_models.measure(float, pairs, name="tiny")
    assert {name: (row["num_pairs"], row["accuracy"]) for name, row in found.items()} == {
        "all answers": (3, pytest.approx(2 / 3)),
        "last_answer": (1, 1.0),
        "order": (2, 0.5),
    }


def test_the_guide_has_a_column_for_each_model():
    row = {"num_pairs": 4, "accuracy": 0.5, "interval": [0.25, 0.75]}
    models = {name: {"parameters": 134_515_008, "kinds": {"near_answer": row}} for name in ("smollm2-135m", "other")}
    result = {"split": "train", "num_pairs": 4, "models": models}
    block = render_blocks("limits_small", {"language_models.json": result})["language_models"]
    assert "| near answer | 4 | 50.00 (25.0-75.0) | 50.00 (25.0-75.0) |" in block
    assert "smollm2-135m, 135 M" in block
