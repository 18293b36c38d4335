import math

import pytest
import torch

from sdiareward.configuration_sdiareward import POOLING_MODES
from sdiareward.modeling_sdiareward import SDiaRewardModel, SDiaRewardPooler


HIDDEN = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [5.0, 1.0]], [[1.0, 2.0], [3.0, 6.0], [100.0, 100.0]]])
RIGHT_PADDED = torch.tensor([[1, 1, 1], [1, 1, 0]])


def make_pooler(pooling_mode):
    pooler = SDiaRewardPooler(2, pooling_mode)
    if pooling_mode == "attention":
        with torch.no_grad():
            pooler.attn.weight.copy_(torch.tensor([[1.0, 0.0]]))
            pooler.attn.bias.fill_(0.5)
    return pooler


def softmax_mean(rows):
    weights = [math.exp(row[0] + 0.5) for row in rows]
    return [sum(w * row[k] for w, row in zip(weights, rows, strict=True)) / sum(weights) for k in range(2)]


EXPECTED = {
    "mean": [[3.0, 3.0], [2.0, 4.0]],
    "attention": [softmax_mean([(1, 2), (3, 6), (5, 1)]), softmax_mean([(1, 2), (3, 6)])],
    "last_token": [[5.0, 1.0], [3.0, 6.0]],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pooling_mode", POOLING_MODES)
def test_pooled_values_are_those_computed_by_hand_in_float32(pooling_mode, dtype):
    pooled = make_pooler(pooling_mode)(HIDDEN.to(dtype), RIGHT_PADDED)
    torch.testing.assert_close(pooled, torch.tensor(EXPECTED[pooling_mode]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("pooling_mode", POOLING_MODES)
def test_left_padding_gives_the_values_of_right_padding(pooling_mode):
    hidden = HIDDEN.clone()
    hidden[1] = HIDDEN[1].roll(1, dims=0)
    pooled = make_pooler(pooling_mode)(hidden, torch.tensor([[1, 1, 1], [0, 1, 1]]))
    torch.testing.assert_close(pooled, torch.tensor(EXPECTED[pooling_mode]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("pooling_mode", POOLING_MODES)
def test_a_row_of_padding_only_pools_to_zeros_even_from_nan(pooling_mode):
    hidden = HIDDEN.clone()
    hidden[1] = float("nan")
    pooled = make_pooler(pooling_mode)(hidden, torch.tensor([[1, 1, 1], [0, 0, 0]]))
    assert pooled[1].tolist() == [0.0, 0.0]
    assert pooled[0].tolist() == pytest.approx(EXPECTED[pooling_mode][0])


@pytest.mark.parametrize("pooling_mode", POOLING_MODES)
def test_gradient_reaches_attended_tokens_and_no_padding(pooling_mode):
    hidden = HIDDEN.clone().requires_grad_()
    make_pooler(pooling_mode)(hidden, RIGHT_PADDED).pow(2).sum().backward()
    reached = hidden.grad.abs().sum(-1) > 0
    assert not reached[1, 2]
    assert reached[:, :2].all() or pooling_mode == "last_token"
    assert reached[0, 2] and reached[1, 1]


def test_a_new_attention_pooler_starts_as_mean_pooling(tiny_config):
    model = SDiaRewardModel(tiny_config(pooling_mode="attention"))
    hidden, mask = torch.randn(2, 5, 32), torch.ones(2, 5)
    torch.testing.assert_close(model.pooler(hidden, mask), hidden.mean(1), rtol=0, atol=1e-6)
