import multiprocessing
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.tiny_model import make_processor

from sdiareward.scoring import feature_cache
from sdiareward.scoring.feature_cache import FeatureCache
from sdiareward.scoring.scorer import Scorer


@pytest.fixture(scope="module")
def scorer(make_tiny_model, tiny_processor):
    return Scorer(make_tiny_model(), tiny_processor)


@pytest.fixture
def open_cache(tmp_path, scorer):
    def make(config=None, processor=None, **options):
        parts = config or scorer.model.config, processor or scorer.processor
        return FeatureCache(tmp_path / "cache", *parts, **{"model_revision": "abc", **options})

    return make


@pytest.fixture(scope="module")
def dialogues(make_dialogue):
    return [make_dialogue(0.3, 0.2, text=f"dialogue {index}") for index in range(4)]


def test_a_cached_vector_is_the_one_the_scorer_computes(scorer, open_cache, dialogues, make_tiny_model):
    keys = open_cache().fill(scorer, dialogues, "modality")
    cache = open_cache()
    for index, features in scorer.iter_features(dialogues, "modality"):
        assert cache[keys[index]].dtype == torch.float32
        assert cache[keys[index]].tolist() == [features.pooled.tolist()]
    # Another pooling has a place of its own in the folder.
    last = make_tiny_model("last_token")
    cache = open_cache(last.config)
    (key,) = cache.fill(Scorer(last, scorer.processor), dialogues[:1], "modality")
    assert len(cache) == 1 and key not in keys and not torch.equal(cache[key], open_cache()[keys[0]])


@pytest.mark.parametrize(("stored_dtype", "tolerance"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_hidden_states_are_stored_to_the_precision_of_their_dtype(
    stored_dtype, tolerance, scorer, open_cache, dialogues
):
    cache = open_cache(per_token=True, stored_dtype=stored_dtype)
    keys = cache.fill(scorer, dialogues)
    for index, features in scorer.iter_features(dialogues, per_token=True):
        kept = cache[keys[index]]
        assert kept.dtype == getattr(torch, stored_dtype)
        assert cache.num_rows(keys[index]) == len(features.hidden_states)
        np.testing.assert_allclose(kept.float().numpy(), features.hidden_states, rtol=tolerance, atol=1e-7)


def test_a_bfloat16_backbone_loses_nothing_by_default(make_tiny_model, tiny_processor, open_cache, dialogues):
    scorer = Scorer(make_tiny_model().to(torch.bfloat16), tiny_processor)
    cache = open_cache(per_token=True, dtype="bfloat16")
    keys = cache.fill(scorer, dialogues[:1])
    ((_, features),) = scorer.iter_features(dialogues[:1], per_token=True)
    assert cache[keys[0]].float().tolist() == features.hidden_states.tolist()


CHANGES = {
    "louder": lambda turns: turns[1]["content"][1].update(audio=turns[1]["content"][1]["audio"] * 1.01),
    "other word": lambda turns: turns[1]["content"][0].update(text="hm"),
    "swapped roles": lambda turns: [turn.update(role=("assistant", "user")[k]) for k, turn in enumerate(turns)],
    "audio first": lambda turns: turns[0]["content"].reverse(),
    "own system turn": lambda turns: turns.insert(0, {"role": "system", "content": "Judge."}),
}
OPTIONS = (
    {"model_revision": "abd"},
    {"per_token": True},
    {"dtype": "bfloat16"},
    {"per_token": True, "stored_dtype": "float32"},
    {"prompts": {"joint": "Judge it."}},
    {"prompt_version": "2"},
    {"max_turn_s": 5.0},
)


def test_the_key_changes_with_what_is_heard_and_read_and_with_what_computes_it(open_cache, make_dialogue, tiny_config):
    keys = [open_cache().key(make_dialogue(0.3, 0.2))]
    for change in CHANGES.values():
        dialogue = make_dialogue(0.3, 0.2)
        change(dialogue)
        keys.append(open_cache().key(dialogue))
    for options in OPTIONS:
        if not options.keys().isdisjoint(("prompts", "prompt_version", "max_turn_s")):
            options = {"processor": make_processor(**options)}
        keys.append(open_cache(**options).key(make_dialogue(0.3, 0.2)))
    last = tiny_config(pooling_mode="last_token")
    keys.append(open_cache(last).key(make_dialogue(0.3, 0.2)))
    assert len(set(keys)) == len(keys)
    per_token = open_cache(last, per_token=True).key(make_dialogue(0.3, 0.2))
    assert per_token == open_cache(per_token=True).key(make_dialogue(0.3, 0.2))


def test_only_what_is_missing_is_computed_and_each_dialogue_once(scorer, open_cache, dialogues, monkeypatch):
    computed, iter_features = [], scorer.iter_features

    def count(dialogues, *args, **kwargs):
        computed.append(len(dialogues))
        return iter_features(dialogues, *args, **kwargs)

    monkeypatch.setattr(scorer, "iter_features", count)
    open_cache().fill(scorer, dialogues[:2])
    keys = open_cache().fill(scorer, [dialogues[3], *dialogues, dialogues[3]])
    open_cache().fill(scorer, dialogues)
    assert computed == [2, 2, 0]
    assert len(open_cache()) == 4
    assert keys[0] == keys[4] == keys[5]


def test_a_bad_dialogue_is_skipped_with_its_reason_and_the_others_are_computed(
    make_tiny_model, tiny_processor, open_cache, dialogues, monkeypatch
):
    short = [{"role": "user", "content": [{"audio": np.zeros(10, np.float32)}]}, dialogues[0][1]]
    absent = [{"role": "user", "content": [{"audio": "nowhere.wav"}]}, dialogues[0][1]]
    scorer, skipped, cache = Scorer(make_tiny_model(), tiny_processor, batch_tokens=1), {}, open_cache()
    keys = cache.fill(scorer, [dialogues[0], short, absent, dialogues[1], short], skipped=skipped)
    assert sorted(skipped) == [1, 2, 4]
    assert "0.6 ms" in skipped[1] and skipped[4] == skipped[1]
    assert "nowhere.wav: no such audio file" in skipped[2]
    assert [key in cache for key in keys] == [True, False, False, True, False]
    with pytest.raises(FileNotFoundError, match=r"nowhere\.wav"):
        cache.fill(scorer, [absent])
    # What is computed before an error is kept.
    monkeypatch.setattr("sdiareward.scoring.scorer._PLANNED_AT_A_TIME", len(dialogues) - 2)
    with pytest.raises(ValueError, match="lasts 0.6 ms"):
        cache.fill(scorer, [*dialogues, short])
    assert len(open_cache()) == len(cache) == 4


def test_a_scorer_that_computes_something_else_is_refused(scorer, open_cache, tiny_config, dialogues):
    with pytest.raises(ValueError, match="pooling_mode is 'last_token' in the cache but 'mean' in the scorer"):
        open_cache(tiny_config(pooling_mode="last_token")).fill(scorer, dialogues)
    with pytest.raises(ValueError, match="dtype is 'bfloat16' in the cache but 'float32' in the scorer"):
        open_cache(dtype="bfloat16").fill(scorer, dialogues)
    with pytest.raises(KeyError, match=r"'model_revision': 'abc'.* lacks feature 77; call fill"):
        open_cache()["77"]


def test_writers_and_a_reader_share_a_folder(open_cache, monkeypatch):
    monkeypatch.setattr(feature_cache, "_VECTORS_A_PART", 5)

    def write(numbers):
        vectors = ((f"{n:032x}", SimpleNamespace(pooled=np.full(64, n, dtype=np.float32))) for n in numbers)
        open_cache()._write(vectors)

    context, reader = multiprocessing.get_context("fork"), open_cache()
    processes = [context.Process(target=write, args=(range(start, 60, 2),)) for start in (0, 1)]
    for process in processes:
        process.start()
    write(range(20))
    while any(process.is_alive() for process in processes):
        reader.refresh()
        assert all(reader[key][0, 0] == int(key, 16) for key in (f"{n:032x}" for n in range(60)) if key in reader)
    assert [process.exitcode for process in processes] == [0, 0]
    reader.refresh()
    assert len(reader) == 60
    assert pickle.loads(pickle.dumps(reader))[f"{5:032x}"][0, 0] == 5


def test_a_value_beyond_the_stored_dtype_is_an_error(open_cache):
    values = ((name, SimpleNamespace(pooled=np.full(4, value, np.float32))) for name, value in (("a", 1), ("b", 7e4)))
    with pytest.raises(ValueError, match=r"holds 70000, which is not finite in torch\.float16"):
        open_cache(stored_dtype="float16")._write(values)
    assert len(open_cache(stored_dtype="float16")) == 1
