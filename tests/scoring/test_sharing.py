"""One model and one `Scorer` in many hands: threads, copies, worker processes."""

import copy
import multiprocessing
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support.tiny_model import make_processor

from sdiareward.scoring import scorer as scoring
from sdiareward.scoring.reward_function import async_reward_fn, reward_fn
from sdiareward.scoring.scorer import Scorer


def score_in_process(scorer, dialogues):
    return scorer.score(dialogues)


@pytest.fixture
def often_switched():
    """Let threads interrupt each other at almost every step."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("kind", ["float32", "stacked", "eager"])
def test_rewards_of_threads_are_those_of_one_thread(make_tiny_model, make_dialogue, monkeypatch, often_switched, kind):
    # Clips come and go while others read them.
    monkeypatch.setattr(scoring, "_CLIP_CACHE_BYTES", 5000)
    fields = {"stack_factor": 2} if kind == "stacked" else {}
    model, processor = make_tiny_model(**fields), make_processor(**fields)
    if kind == "eager":
        model.set_attn_implementation("eager")
    scorers = [Scorer(model, processor, batch_tokens=600), Scorer(model, processor, num_workers=1, share_clips=False)]
    kinds = [each.config._attn_implementation for each in (model.model.language_model, model.model.audio_tower)]
    batches = [[make_dialogue(0.1 + 0.1 * (n % 5), 0.2), make_dialogue(0.3, 0.1 + 0.1 * (n % 3))] for n in range(16)]
    alone = [Scorer(model, processor).score(batch) for batch in batches]

    def compute_padded(batch):
        with torch.inference_mode():
            return model(**processor(batch)).logits.squeeze(-1).tolist()

    def compute_of_template(batch):
        inputs = processor.apply_chat_template(batch, tokenize=True, return_dict=True)
        with torch.inference_mode():
            return model(**inputs).logits.squeeze(-1).tolist()

    calls = [*(scorer.score for scorer in scorers), compute_padded, compute_of_template]
    with ThreadPoolExecutor(6) as pool:
        runs = [pool.submit(call, batch) for batch in batches for call in calls]
    for number, run in enumerate(runs):
        assert run.result() == pytest.approx(alone[number // len(calls)], abs=1e-6)
    assert compute_padded(batches[0]) == pytest.approx(alone[0], abs=1e-6)
    assert kinds == [
        each.config._attn_implementation for each in (model.model.language_model, model.model.audio_tower)
    ]
    assert scorers[0].audio_s == pytest.approx(scorers[1].audio_s)


@pytest.mark.parametrize(
    "make", [lambda scorer: scorer, reward_fn, async_reward_fn], ids=["scorer", "rewards", "async"]
)
@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_gives_the_same_rewards(make_tiny_model, tiny_processor, make_dialogue, make, clone):
    original = Scorer(make_tiny_model(), tiny_processor)
    dialogues = [make_dialogue(0.2, 0.3), make_dialogue(0.4, 0.3)]
    expected = original.score(dialogues)
    copied = clone(make(original))
    scorer = getattr(copied, "scorer", copied)
    assert scorer.score(dialogues) == pytest.approx(expected, abs=1e-6)
    assert scorer._encoded is scorer._prepare.encoded
    assert len(scorer._encoded) > 0


@pytest.mark.slow
def test_a_process_that_is_spawned_takes_a_scorer(make_tiny_model, tiny_processor, make_dialogue):
    scorer = Scorer(make_tiny_model(), tiny_processor)
    dialogues = [make_dialogue(0.2, 0.3)]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(score_in_process, (scorer, dialogues))
    assert found == pytest.approx(scorer.score(dialogues), abs=1e-6)
