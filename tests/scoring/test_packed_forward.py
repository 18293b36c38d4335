"""Batches: how they are planned, which prefixes they share, and that a packed pass computes what the model does."""

import numpy as np
import pytest
import torch

from sdiareward.scoring import packed_attention, packed_forward
from sdiareward.scoring.batching import DialoguePreparer, Message, build_prefix_tree, count_tokens, plan_batches
from sdiareward.scoring.packed_attention import PackedLayout, attend_segments
from sdiareward.scoring.packed_forward import encode_clips, pool_packed, run_packed


START, BOS, AUDIO, EOS = 1, 2, 3, 4


def message(*ids, clips=()):
    return Message(np.array([START, *ids]), tuple(clips))


A, B, C, D, E = (message(number) for number in range(5, 10))
SPOKEN = [[message(BOS, AUDIO, EOS, clips=[digest])] for digest in (b"one", b"other")]
# Dialogues, parent and number of messages of each segment, last segment of each dialogue.
TREES = {
    "nothing shared": ([[A, B], [C]], [(None, 2), (None, 1)], [0, 1]),
    "a prefix": ([[A, B, C], [A, B, D, E]], [(None, 2), (0, 1), (0, 2)], [1, 2]),
    "a dialogue as a prefix, and equal ones": ([[A, B], [A, B, C], [A, B]], [(None, 2), (0, 1)], [0, 1, 0]),
    "a longer prefix of some": (
        [[A, B, C], [A, D], [A, B, E]],
        [(None, 1), (0, 1), (0, 1), (1, 1), (1, 1)],
        [3, 2, 4],
    ),
    "equal words in another voice": (SPOKEN, [(None, 1), (None, 1)], [0, 1]),
    "no dialogues": ([], [], []),
}


@pytest.mark.parametrize(("dialogues", "segments", "last"), TREES.values(), ids=TREES)
def test_a_shared_prefix_is_one_segment_and_the_parent_of_the_rest(dialogues, segments, last):
    found, found_last = build_prefix_tree(dialogues)
    assert ([(each.parent, len(each.messages)) for each in found], found_last) == (segments, last)
    alone, _ = build_prefix_tree(dialogues, share_prefixes=False)
    assert [(each.parent, len(each.messages)) for each in alone] == [(None, len(each)) for each in dialogues]


SINGLE = [[index] for index in range(5)]


@pytest.mark.parametrize(
    ("lengths", "groups", "budget", "padded", "batches"),
    [
        ([10, 40, 20, 30, 50], SINGLE, 60, False, [[4], [1], [3, 2, 0]]),
        ([10, 40, 20, 30, 50], SINGLE, 1, False, [[4], [1], [3], [2], [0]]),
        ([10, 40, 20, 30, 50], SINGLE, 1000, False, [[4, 1, 3, 2, 0]]),
        ([10, 50, 40, 5], [[0, 1], [2, 3]], 60, False, [[0, 1], [2, 3]]),
        ([10, 50, 40, 5], [[2, 3], [0, 1]], 20, False, [[0, 1], [2, 3]]),
        # Padded, 100 and 95 waste 5 of 200; with 80 it would be 25 of 300.
        ([100, 95, 80, 79], SINGLE[:4], 1000, True, [[0, 1], [2, 3]]),
        ([100, 95, 80, 79], SINGLE[:4], 199, True, [[0], [1], [2, 3]]),
        ([], [], 100, False, []),
    ],
)
def test_batches_are_filled_longest_first_with_whole_groups_up_to_the_budget(lengths, groups, budget, padded, batches):
    assert list(plan_batches(lengths, groups, budget, padded=padded)) == batches


@pytest.fixture(scope="module")
def model(make_tiny_model):
    return make_tiny_model()


@pytest.fixture(scope="module")
def mels():
    """Clips of one frame short of a window, exactly one, a bit more, several, and the shortest there is."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(128, frames, generator=generator) for frames in (19, 20, 23, 87, 3, 40)]


@pytest.fixture(scope="module")
def dialogues(make_dialogue):
    """Three dialogues, the first two with the same first turn."""
    first, second = make_dialogue(0.4, 0.3), make_dialogue(0.4, 0.3)
    second[1] = make_dialogue(0.2, 0.5, text="no, wait")[1]
    return [first, second, make_dialogue(0.2, 0.3, 0.2, 0.1, text="well")]


@pytest.fixture(scope="module")
def batch(tiny_processor, dialogues):
    prepare = DialoguePreparer(tiny_processor)
    return prepare.join(prepare.read_each(range(3), dialogues, ["joint"] * 3)[0])


def run(model, batch, share=True, with_gradient=False):
    segments, last = build_prefix_tree(batch.dialogues, share)
    digests = [digest for segment in segments for message in segment.messages for digest in message.clips]
    with torch.inference_mode(not with_gradient):
        hidden, layout = run_packed(model, segments, encode_clips(model, [batch.mels[d] for d in digests]))
    return hidden, layout, last


def attend_varlen(query, key, value, query_bounds, key_bounds, *longest, window_size, scale, enable_gqa=False):
    """Compute what PyTorch's documentation says of its variable-length function, which runs on a GPU alone."""
    assert enable_gqa == (query.shape[1] != key.shape[1])
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


def test_a_variable_length_kernel_gives_the_hidden_states_of_sdpa(model, batch, monkeypatch):
    expected, _, _ = run(model, batch)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", attend_varlen)
    monkeypatch.setattr(packed_attention, "has_varlen", lambda *_: True)
    assert packed_attention.varlen_agrees(torch.device("cpu"), torch.float32)
    torch.testing.assert_close(run(model, batch)[0], expected, atol=1e-5, rtol=0)


def test_the_audio_towers_vectors_are_those_of_the_library(model, mels, monkeypatch):
    encoded = encode_clips(model, mels)
    for mel, vectors in zip(mels, encoded, strict=True):
        expected = model.encode_audio(mel[None], torch.ones(1, mel.shape[1], dtype=torch.long))
        torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=0)
    # In one window they would attend to each other.
    whole = [(mels[3].shape[1] + 1) // 2]
    monkeypatch.setattr(packed_forward, "compute_window_lengths", lambda num_frames, n_window: whole)
    assert (encode_clips(model, mels[3:4])[0] - encoded[3]).abs().max() > 1e-3


@pytest.mark.parametrize("share", [True, False])
def test_hidden_states_are_those_of_each_dialogue_alone(model, batch, dialogues, tiny_processor, share):
    hidden, layout, last = run(model, batch, share)
    for dialogue, index in zip(dialogues, last, strict=True):
        inputs = tiny_processor(dialogue)
        with torch.inference_mode():
            embeds = model.embed(inputs["input_ids"], inputs["input_features"], inputs["feature_attention_mask"])
            expected = model.model.language_model(inputs_embeds=embeds).last_hidden_state[0]
        torch.testing.assert_close(layout.take_along(hidden, index, 0), expected, atol=1e-5, rtol=0)
    # Shared, the instruction is computed once, not three times, and the first turn of two dialogues once.
    num_saved = 2 * count_tokens(batch.dialogues[0][:1]) + count_tokens(batch.dialogues[0][1:2]) if share else 0
    assert sum(map(count_tokens, batch.dialogues)) - len(hidden) == num_saved


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


def test_gradients_pass_through_a_packed_batch(model, batch, dialogues, tiny_processor):
    weight = model.model.language_model.layers[0].mlp.up_proj.weight
    packed = pool_packed(model, *run(model, batch, with_gradient=True)).square().sum()
    alone = sum(model(**tiny_processor(dialogue)).pooled.square().sum() for dialogue in dialogues)
    found, expected = (torch.autograd.grad(loss, weight)[0] for loss in (packed, alone))
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("with_gradient", [True, False])
def test_short_rows_that_are_trained_attend_in_float32(monkeypatch, with_gradient):
    seen, attend = [], packed_attention.scaled_dot_product_attention

    def spy(query, key, value, **options):
        seen.append((query.shape[2], query.dtype, key.dtype, value.dtype))
        return attend(query, key, value, **options)

    monkeypatch.setattr(packed_attention, "scaled_dot_product_attention", spy)
    monkeypatch.setattr(packed_attention, "_FLOAT32_TOKENS", 4)
    layouts = [PackedLayout([3, 4, 6], [None, 0, 0]) for _ in range(2)]
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(1, heads, 13, 8, generator=generator).bfloat16().requires_grad_() for heads in (4, 2, 2)]
    with torch.set_grad_enabled(with_gradient), torch.autocast("cpu", torch.bfloat16):
        found = attend_segments(*parts, layouts[0], 0.3)
    short = torch.float32 if with_gradient else torch.bfloat16
    assert seen == [(3, *[short] * 3), (4, *[short] * 3), (6, *[torch.bfloat16] * 3)]
    assert found.dtype == torch.bfloat16
    if with_gradient:
        exact = attend_segments(*(part.float() for part in parts), layouts[1], 0.3)
        torch.testing.assert_close(found.float(), exact, atol=2e-2, rtol=0)
        got, wanted = (torch.autograd.grad(each.float().square().sum(), parts[0])[0] for each in (found, exact))
        torch.testing.assert_close(got.float(), wanted.float(), atol=5e-2, rtol=0)
