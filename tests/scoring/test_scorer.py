import copy
import math
import pickle
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from support.tiny_model import make_processor

from sdiareward.chat_sdiareward import DialogueError
from sdiareward.scoring import scorer as scoring
from sdiareward.scoring.reward_function import reward_fn
from sdiareward.scoring.scorer import Scorer, has_bfloat16


@pytest.fixture(scope="module")
def scorer(make_tiny_model, tiny_processor):
    return Scorer(make_tiny_model(), tiny_processor, batch_tokens=1500)


@pytest.fixture(scope="module")
def dialogues(make_dialogue):
    seconds = ((0.2, 0.3), (0.9, 0.4, 0.2, 0.2), (0.1, 0.1), (0.5, 0.5))
    return [make_dialogue(*each) for each in seconds]


@pytest.fixture(scope="module")
def rewards(scorer, dialogues):
    return scorer.score(dialogues)


OPTIONS = (
    {"batch_tokens": 1},
    {"batch_tokens": 100_000},
    {"share_prefixes": False},
    {"share_clips": False},
    {"pack": False},
    {"num_workers": 2},
    {"pack": False, "share_clips": False, "num_workers": 1, "batch_tokens": 2000},
)


@pytest.mark.parametrize("pooling_mode", ["mean", "attention", "last_token"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_no_speed_up_changes_a_reward(make_tiny_model, tiny_processor, dialogues, pooling_mode, options):
    model = make_tiny_model(pooling_mode)
    with torch.inference_mode():
        expected = [model(**tiny_processor(dialogue)).logits.item() for dialogue in dialogues]
    assert Scorer(model, tiny_processor, **options).score(dialogues) == pytest.approx(expected, abs=1e-5)


def make(scorer, **options):
    return Scorer(scorer.model, scorer.processor, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda scorer, given: scorer.score(given, ["joint"]), "1 criteria for 4 dialogues"),
        (lambda scorer, given: scorer.score(given, groups=["a"]), "1 groups for 4 dialogues"),
        (lambda scorer, given: scorer.score([given[0], []]), "has no turns"),
        (lambda scorer, given: next(make(scorer, pack=False).iter_features(given, per_token=True)), "require pack="),
        (lambda scorer, given: make(scorer, batch_tokens=0), "batch_tokens is 0"),
        (lambda scorer, given: make(scorer, num_workers=-1), "num_workers -1"),
        (lambda scorer, given: Scorer(scorer.model, make_processor(max_turn_s=5.0)), "max_turn_s is .* but"),
        (lambda scorer, given: Scorer(scorer.model, make_processor(prompts={"joint": "O"})), "prompts is .* but"),
    ],
)
def test_what_does_not_fit_is_refused(scorer, dialogues, call, message):
    with pytest.raises(ValueError, match=message):
        call(scorer, dialogues)


def test_a_reward_that_is_not_finite_is_an_error_of_its_dialogue(make_tiny_model, tiny_processor, dialogues):
    model = make_tiny_model()
    torch.nn.init.constant_(model.score.weight, math.nan)
    broken, skipped = Scorer(model, tiny_processor), {}
    with pytest.raises(DialogueError, match="its reward is nan; score with dtype float32"):
        broken.score(dialogues)
    assert list(broken.iter_scores(dialogues, skipped=skipped)) == []
    assert sorted(skipped) == [0, 1, 2, 3]


class Counted(list):
    """Dialogues that count how often each is taken."""

    def __init__(self, dialogues):
        super().__init__(dialogues)
        self.taken = []

    def __getitem__(self, index):
        self.taken.append(index)
        return super().__getitem__(index)


@pytest.mark.parametrize(("share_clips", "expected"), [(True, 4), (False, 6)])
def test_a_clip_is_encoded_once_however_often_it_occurs(
    make_tiny_model, tiny_processor, make_dialogue, monkeypatch, share_clips, expected
):
    counts, encode = [], scoring.encode_clips
    monkeypatch.setattr(scoring, "encode_clips", lambda model, mels: counts.append(len(mels)) or encode(model, mels))
    given = [make_dialogue(0.2, 0.3), make_dialogue(0.2, 0.4), make_dialogue(0.2, 0.5)]
    scorer = Scorer(make_tiny_model(), tiny_processor, batch_tokens=1, share_prefixes=False, share_clips=share_clips)
    scorer.score(given)
    assert sum(counts) == expected
    scorer.score(given[:1])
    assert sum(counts) == (expected if share_clips else expected + 2)


def test_a_group_is_computed_in_one_batch_and_equal_dialogues_in_it_tie_exactly(
    make_tiny_model, tiny_processor, make_dialogue, scorer, dialogues
):
    given = [make_dialogue(0.1 * n, 0.2) for n in (1, 9, 2, 8, 3, 7)]
    alone = Scorer(make_tiny_model(), tiny_processor, batch_tokens=1)
    order = [index for index, _ in alone.iter_scores(given, groups=["a", "b", "c", "a", "b", "c"])]
    assert order == [1, 4, 0, 3, 2, 5]
    copies = [dialogue for dialogue in dialogues for _ in range(3)]
    found = scorer.score(copies, groups=[number // 3 for number in range(len(copies))])
    assert [len(set(found[first : first + 3])) for first in range(0, len(found), 3)] == [1] * len(dialogues)
    assert len(set(found)) == len(dialogues)


def test_bad_dialogues_are_skipped_with_their_reasons_and_the_others_scored(scorer, dialogues, rewards):
    reply, skipped = dialogues[0][1], {}
    short, broken = (
        [{"role": "user", "content": [{"type": "audio", "audio": audio}]}, reply]
        for audio in ({"array": [0.0], "sampling_rate": 16_000}, b"no audio")
    )
    # Also without the assistant's turn, and with more turns than are scored.
    given = [short, dialogues[0], broken, [], dialogues[1], [{"role": "user"}], dialogues[0][:1], dialogues[0] * 9]
    assert dict(scorer.iter_scores(given, skipped=skipped)) == pytest.approx({1: rewards[0], 4: rewards[1]}, abs=1e-5)
    assert sorted(skipped) == [0, 2, 3, 5, 6, 7]
    assert skipped[0].startswith("turn 1: lasts 0.1 ms")
    assert "cannot be decoded" in skipped[2] and "has no turns" in skipped[3]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_dialogues_are_taken_once_and_when_they_are_needed(
    make_tiny_model, tiny_processor, make_dialogue, monkeypatch, num_workers
):
    monkeypatch.setattr(scoring, "_PLANNED_AT_A_TIME", 2)
    given = Counted([make_dialogue(0.1, 0.1) for _ in range(16)])
    scorer = Scorer(make_tiny_model(), tiny_processor, batch_tokens=1, num_workers=num_workers)
    scores = scorer.iter_scores(given)
    assert given.taken == []
    next(scores)
    assert max(given.taken) < 8
    scores.close()
    given.taken.clear()
    assert len(list(scorer.iter_scores(given))) == 16
    assert sorted(given.taken) == list(range(16))


def test_features_are_what_the_head_makes_rewards_from(scorer, dialogues, rewards, tiny_processor):
    for index, features in scorer.iter_features(dialogues, per_token=True):
        assert features.reward == pytest.approx(rewards[index], abs=1e-5)
        made = scorer.model.reward(torch.from_numpy(features.pooled)[None]).item()
        assert made == pytest.approx(rewards[index], abs=1e-5)
        assert features.hidden_states.shape == (tiny_processor.num_tokens(dialogues[index]), 32)
        assert features.hidden_states.mean(axis=0) == pytest.approx(features.pooled, abs=1e-5)


def test_a_loaded_checkpoint_gives_the_rewards_of_the_model_saved(tiny_checkpoint, dialogues, rewards):
    ours = Scorer.from_pretrained(tiny_checkpoint, device_map={"": "cpu"})
    assert not ours.model.training and ours.score(dialogues) == pytest.approx(rewards, abs=1e-5)
    other = Scorer.from_pretrained(tiny_checkpoint, device="cpu", prompts={"joint": "Is it any good?"})
    with_own_system_turn = [[{"role": "system", "content": "Is it any good?"}, *dialogue] for dialogue in dialogues]
    assert other.score(dialogues) == pytest.approx(ours.score(with_own_system_turn), abs=1e-5)
    assert other.score(dialogues, "modality") == pytest.approx(ours.score(dialogues, "modality"), abs=1e-5)
    version = other.model.config.prompt_version
    assert version == other.processor.prompt_version and version.startswith("custom-")
    same = Scorer.from_pretrained(tiny_checkpoint, device="cpu", prompts={"joint": ours.processor.prompts["joint"]})
    assert same.model.config.prompt_version == same.processor.prompt_version == ours.processor.prompt_version
    with pytest.raises(ValueError, match="must be non-empty strings"):
        Scorer.from_pretrained(tiny_checkpoint, device="cpu", prompts={"joint": ""})


def test_a_backbone_in_bfloat16_keeps_its_head_in_float32(tiny_checkpoint, dialogues, rewards):
    half = Scorer.from_pretrained(tiny_checkpoint, device="cpu", dtype="bfloat16")
    assert (half.model.dtype, half.model.score.weight.dtype) == (torch.bfloat16, torch.float32)
    found = half.score(dialogues)
    assert found == pytest.approx(rewards, abs=0.1)
    assert len({round(reward, 6) for reward in found}) == len(dialogues)


@pytest.mark.skipif(not has_bfloat16("cpu"), reason="needs a CPU with products in bfloat16")
def test_fast_rounds_products_and_nothing_between_them(tiny_checkpoint, dialogues, rewards):
    fast = Scorer.from_pretrained(tiny_checkpoint, device="cpu", dtype="fast")
    layer, seen = fast.model.model.language_model.layers[0], {}
    layer.register_forward_hook(lambda module, inputs, output: seen.update(residual=output.dtype))
    layer.mlp.down_proj.register_forward_hook(lambda module, inputs, output: seen.update(product=output.dtype))
    assert fast.score(dialogues) == pytest.approx(rewards, abs=0.01)
    assert seen == {"residual": torch.float32, "product": torch.bfloat16}
    assert layer.mlp.down_proj.weight.dtype == torch.bfloat16
    assert (fast.model.score.weight.dtype, fast.dtype) == (torch.float32, "fast")
    unpacked = Scorer(fast.model, fast.processor, pack=False, mixed_precision=True)
    assert unpacked.score(dialogues) == pytest.approx(fast.score(dialogues), abs=0.01)


def test_fast_is_float32_where_the_hardware_has_no_bfloat16(tiny_checkpoint, dialogues, rewards, monkeypatch):
    monkeypatch.setattr(scoring, "has_bfloat16", lambda device_type: False)
    plain = Scorer.from_pretrained(tiny_checkpoint, device="cpu", dtype="fast")
    assert plain.dtype == "float32"
    assert plain.score(dialogues) == pytest.approx(rewards, abs=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_compiled_blocks_give_the_same_rewards(make_tiny_model, tiny_processor, dialogues, rewards):
    compiled = Scorer(make_tiny_model(), tiny_processor, compile=True)
    assert compiled.score(dialogues[:2]) == pytest.approx(rewards[:2], abs=1e-5)


@pytest.mark.parametrize("kind", ["stacked", "eager"])
def test_rewards_of_threads_are_those_of_one_thread(make_tiny_model, make_dialogue, monkeypatch, request, kind):
    # Threads interrupt each other at almost every step; clips come and go while others read them.
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)
    monkeypatch.setattr(scoring, "_CLIP_CACHE_BYTES", 5000)
    fields = {"stack_factor": 2} if kind == "stacked" else {}
    model, processor = make_tiny_model(**fields), make_processor(**fields)
    if kind == "eager":
        model.set_attn_implementation("eager")
    towers = model.model.language_model, model.model.audio_tower
    kinds = [tower.config._attn_implementation for tower in towers]
    scorers = [Scorer(model, processor, batch_tokens=600), Scorer(model, processor, num_workers=1, share_clips=False)]
    batches = [[make_dialogue(0.1 + 0.1 * (n % 5), 0.2), make_dialogue(0.3, 0.1 + 0.1 * (n % 3))] for n in range(8)]
    alone = [Scorer(model, processor).score(batch) for batch in batches]

    def compute_padded(batch):
        with torch.inference_mode():
            return model(**processor(batch)).logits.squeeze(-1).tolist()

    calls = [*(scorer.score for scorer in scorers), compute_padded]
    with ThreadPoolExecutor(6) as pool:
        runs = [pool.submit(call, batch) for batch in batches for call in calls]
    for number, run in enumerate(runs):
        assert run.result() == pytest.approx(alone[number // len(calls)], abs=1e-6)
    assert kinds == [tower.config._attn_implementation for tower in towers]


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_gives_the_same_rewards(make_tiny_model, tiny_processor, dialogues, clone):
    original = Scorer(make_tiny_model(), tiny_processor)
    expected = original.score(dialogues)
    scorer = clone(reward_fn(original)).scorer
    assert scorer.score(dialogues) == pytest.approx(expected, abs=1e-6)
    assert scorer._encoded is scorer._prepare.encoded
    assert len(scorer._encoded) > 0
