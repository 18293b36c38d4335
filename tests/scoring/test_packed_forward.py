import numpy as np
import pytest
import torch
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniAudioAttention

from sdiareward.scoring import packed_attention, packed_forward
from sdiareward.scoring.batching import DialoguePreparer, Message, build_prefix_tree
from sdiareward.scoring.packed_attention import PackedLayout
from sdiareward.scoring.packed_forward import encode_clips, pool_packed, run_packed


@pytest.fixture(scope="module")
def model(make_tiny_model):
    return make_tiny_model()


@pytest.fixture(scope="module")
def mels():
    """Clips of one frame short of a window, exactly one, a bit more, several, and the shortest there is."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(128, frames, generator=generator) for frames in (19, 20, 23, 87, 3, 40)]


@pytest.fixture(scope="module")
def batch(tiny_processor, make_dialogue):
    """Three dialogues, the first two with the same first turn, ready for the model."""
    first, second = make_dialogue(0.4, 0.3), make_dialogue(0.4, 0.3)
    second[1] = make_dialogue(0.2, 0.5, text="no, wait")[1]
    dialogues = [first, second, make_dialogue(0.2, 0.3, 0.2, 0.1, text="well")]
    return dialogues, DialoguePreparer(tiny_processor)(range(3), dialogues, ["joint"] * 3)


def run(model, batch, share=True, layer=-1):
    segments, last = build_prefix_tree(batch.dialogues, share)
    digests = [digest for segment in segments for message in segment.messages for digest in message.clips]
    with torch.inference_mode():
        hidden, layout = run_packed(model, segments, encode_clips(model, [batch.mels[d] for d in digests]), layer)
    return hidden, layout, last


def test_the_layout_holds_where_segments_lie_and_which_precede_them():
    layout = PackedLayout([3, 2, 4], [None, 0, 1])
    assert (layout.starts, layout.paths, layout.num_before) == ([0, 3, 5], [[0], [0, 1], [0, 1, 2]], [0, 3, 5])
    assert layout.compute_positions().tolist() == list(range(9))
    branching = PackedLayout([3, 2, 4], [None, 0, 0])
    assert branching.compute_positions().tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 6]
    assert branching.take_along(torch.arange(9), 2, 0).tolist() == [0, 1, 2, 5, 6, 7, 8]


def test_a_variable_length_kernel_gets_the_keys_of_each_segment():
    rows, query_ends, key_ends, longest_query, longest_key = PackedLayout([3, 2, 4], [None, 0, 0]).prepare_varlen(
        torch.device("cpu")
    )
    assert rows.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2, 5, 6, 7, 8]
    assert (query_ends.tolist(), key_ends.tolist()) == ([0, 3, 5, 9], [0, 3, 8, 15])
    assert (longest_query, longest_key) == (4, 7)
    assert PackedLayout([3, 2], [None, None]).prepare_varlen(torch.device("cpu"))[0] is None


def attend_by_its_description(query, key, value, query_bounds, key_bounds, window_size, scale):
    """Compute what PyTorch's documentation says of its variable-length function, which runs on a GPU alone."""
    assert query.shape[1] % key.shape[1] == 0
    outputs = []
    bounds = zip(query_bounds, query_bounds[1:], key_bounds, key_bounds[1:], strict=False)
    for query_start, query_end, key_start, key_end in bounds:
        heads = query.shape[1] // key.shape[1]
        parts = query[query_start:query_end], key[key_start:key_end], value[key_start:key_end]
        queries, keys, values = (part.transpose(0, 1) for part in parts)
        keys, values = keys.repeat_interleave(heads, dim=0), values.repeat_interleave(heads, dim=0)
        # The window ends at the last key for the last query.
        mask = torch.ones(queries.shape[1], keys.shape[1], dtype=torch.bool)
        mask = mask.tril(keys.shape[1] - queries.shape[1]) if window_size == (-1, 0) else mask
        attended = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, mask, scale=scale)
        outputs.append(attended.transpose(0, 1))
    return torch.cat(outputs)


def with_enable_gqa(q, k, v, q_bounds, k_bounds, max_q, max_k, *, scale, window_size, enable_gqa=False):
    assert enable_gqa == (q.shape[1] != k.shape[1])
    return attend_by_its_description(q, k, v, q_bounds, k_bounds, window_size, scale)


def without_enable_gqa(q, k, v, q_bounds, k_bounds, max_q, max_k, *, scale, window_size):
    return attend_by_its_description(q, k, v, q_bounds, k_bounds, window_size, scale)


@pytest.mark.parametrize("function", [with_enable_gqa, without_enable_gqa])
def test_a_variable_length_kernel_gives_the_hidden_states_of_sdpa(function, model, batch, monkeypatch):
    expected, _, _ = run(model, batch[1])
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", function)
    monkeypatch.setattr(packed_attention, "has_varlen", lambda *_: True)
    assert packed_attention._varlen_agrees(torch.device("cpu"), torch.float32)
    found, _, _ = run(model, batch[1])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_the_audio_towers_vectors_are_those_of_the_library(model, mels):
    encoded = encode_clips(model, mels)
    for mel, vectors in zip(mels, encoded, strict=True):
        expected = model.encode_audio(mel[None], torch.ones(1, mel.shape[1], dtype=torch.long))
        torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=0)


def test_audio_windows_do_not_attend_to_each_other(model, mels, monkeypatch):
    expected = encode_clips(model, mels)[3]
    monkeypatch.setattr(
        packed_forward, "compute_window_lengths", lambda num_frames, n_window: [sum((n + 1) // 2 for n in num_frames)]
    )
    assert (encode_clips(model, mels[3:4])[0] - expected).abs().max() > 1e-3


def test_window_lengths_are_the_librarys_for_every_length_of_a_clip(model):
    seen = []
    hook = Qwen2_5OmniAudioAttention.forward

    def spy(self, hidden_states, cu_seqlens, **kwargs):
        seen.append(cu_seqlens.diff().tolist())
        return hook(self, hidden_states, cu_seqlens, **kwargs)

    for frames in (3, 19, 20, 21, 22, 39, 40, 41, 61):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Qwen2_5OmniAudioAttention, "forward", spy)
            model.encode_audio(torch.zeros(1, 128, frames), torch.ones(1, frames, dtype=torch.long))
        assert packed_forward.compute_window_lengths([frames], model.model.audio_tower.n_window) == seen[-1]


@pytest.mark.parametrize("share", [True, False])
def test_hidden_states_are_those_of_each_dialogue_alone(model, batch, tiny_processor, share):
    dialogues, prepared = batch
    hidden, layout, last = run(model, prepared, share)
    for dialogue, index in zip(dialogues, last, strict=True):
        inputs = tiny_processor(dialogue)
        with torch.inference_mode():
            embeds = model.embed(inputs["input_ids"], inputs["input_features"], inputs["feature_attention_mask"])
            expected = model.model.language_model(inputs_embeds=embeds).last_hidden_state[0]
        torch.testing.assert_close(layout.take_along(hidden, index, 0), expected, atol=1e-5, rtol=0)


def test_a_shared_prefix_is_computed_once(model, batch):
    _, prepared = batch
    shared, alone = run(model, prepared)[1], run(model, prepared, share=False)[1]
    system, first_turn = (len(message.input_ids) for message in prepared.dialogues[0][:2])
    assert sum(alone.lengths) - sum(shared.lengths) == 2 * system + first_turn


@pytest.mark.parametrize("pooling_mode", ["mean", "attention", "last_token"])
def test_pooling_is_that_of_the_model(make_tiny_model, batch, tiny_processor, pooling_mode):
    model = make_tiny_model(pooling_mode)
    dialogues, prepared = batch
    hidden, layout, last = run(model, prepared)
    with torch.inference_mode():
        pooled = pool_packed(model, hidden, layout, last)
        expected = torch.cat([model(**tiny_processor(dialogue)).pooled for dialogue in dialogues])
    torch.testing.assert_close(pooled, expected, atol=1e-5, rtol=0)


def test_a_long_segment_after_a_shared_prefix_attends_in_blocks(model, monkeypatch):
    rng = np.random.default_rng(0)
    beginning, *rests = (Message(rng.integers(0, 600, length)) for length in (30, 70, 45))
    dialogues = [[beginning, rest] for rest in rests]
    monkeypatch.setattr(packed_attention, "_BLOCK_TOKENS", 16)
    segments, last = build_prefix_tree(dialogues)
    with torch.inference_mode():
        hidden, layout = run_packed(model, segments, [])
        for dialogue, index in zip(dialogues, last, strict=True):
            ids = torch.from_numpy(np.concatenate([message.input_ids for message in dialogue]))[None]
            expected = model.model.language_model(input_ids=ids).last_hidden_state[0]
            torch.testing.assert_close(layout.take_along(hidden, index, 0), expected, atol=1e-5, rtol=0)


def test_hidden_states_of_other_layers_are_those_of_each_dialogue(model, batch):
    _, prepared = batch
    embeddings, _, _ = run(model, prepared, layer=0)
    middle, layout, last = run(model, prepared, layer=1)
    alone, layout_alone, last_alone = run(model, prepared, share=False, layer=1)
    assert not torch.allclose(embeddings, middle, atol=1e-3)
    torch.testing.assert_close(layout.take_along(middle, last[1], 0), layout_alone.take_along(alone, last_alone[1], 0))


def test_gradients_pass_through_a_packed_batch(model, batch, tiny_processor):
    dialogues, prepared = batch
    segments, last = build_prefix_tree(prepared.dialogues)
    digests = [digest for segment in segments for message in segment.messages for digest in message.clips]
    weight = model.model.language_model.layers[0].mlp.up_proj.weight
    gradients = []
    hidden, layout = run_packed(model, segments, encode_clips(model, [prepared.mels[d] for d in digests]))
    gradients += torch.autograd.grad(pool_packed(model, hidden, layout, last).square().sum(), weight)
    gradients += torch.autograd.grad(
        sum(model(**tiny_processor(dialogue)).pooled.square().sum() for dialogue in dialogues), weight
    )
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("with_gradient", [True, False])
def test_short_rows_that_are_trained_attend_in_float32(monkeypatch, with_gradient):
    seen = []
    attend = packed_attention.scaled_dot_product_attention

    def spy(query, key, value, **options):
        seen.append((query.shape[2], query.dtype, key.dtype, value.dtype))
        return attend(query, key, value, **options)

    monkeypatch.setattr(packed_attention, "scaled_dot_product_attention", spy)
    monkeypatch.setattr(packed_attention, "_FLOAT32_TOKENS", 4)
    lengths, parents = [3, 4, 6], [None, 0, 0]
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, heads, 13, 8, generator=generator).bfloat16().requires_grad_() for heads in (4, 2, 2)
    )
    with torch.set_grad_enabled(with_gradient), torch.autocast("cpu", torch.bfloat16):
        layout = PackedLayout(lengths, parents)
        found, _ = packed_attention._attend_segments(None, query, key, value, None, layout=layout, scaling=0.3)
    short = torch.float32 if with_gradient else torch.bfloat16
    assert seen == [(3, *[short] * 3), (4, *[short] * 3), (6, *[torch.bfloat16] * 3)]
    assert found.dtype == torch.bfloat16
    if with_gradient:
        found.float().square().sum().backward()
        gradient = query.grad.float()
        query.grad = None
        exact, _ = packed_attention._attend_segments(
            None, query.float(), key.float(), value.float(), None, layout=PackedLayout(lengths, parents), scaling=0.3
        )
        exact.square().sum().backward()
        torch.testing.assert_close(found.float(), exact, atol=2e-2, rtol=0)
        torch.testing.assert_close(gradient, query.grad.float(), atol=5e-2, rtol=0)
