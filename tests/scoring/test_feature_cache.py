import json
import multiprocessing
import os
import pickle
import signal
import time
import zlib

import numpy as np
import pytest
import torch
from safetensors.torch import save

from sdiareward.perturbations.channel import encode
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring import feature_shards
from sdiareward.scoring.feature_cache import FeatureCache
from sdiareward.scoring.feature_shards import FeatureShards
from sdiareward.scoring.scorer import Scorer


IDENTITY = {"model_revision": "abc"}


@pytest.fixture(scope="module")
def scorer(make_tiny_model, tiny_processor):
    return Scorer(make_tiny_model(), tiny_processor)


@pytest.fixture
def open_cache(tmp_path, scorer):
    def make(config=None, processor=None, **options):
        return FeatureCache(
            tmp_path / "cache",
            config or scorer.model.config,
            processor or scorer.processor,
            **{"model_revision": "abc", **options},
        )

    return make


@pytest.fixture
def dialogues(make_dialogue):
    return [make_dialogue(0.3, 0.2, text=f"dialogue {index}") for index in range(4)]


@pytest.fixture
def computed(scorer, monkeypatch):
    """A list that takes how many dialogues each call of the scorer is given."""
    counts = []
    iter_features = scorer.iter_features

    def counting(dialogues, *args, **kwargs):
        counts.append(len(dialogues))
        return iter_features(dialogues, *args, **kwargs)

    monkeypatch.setattr(scorer, "iter_features", counting)
    return counts


def test_a_cached_vector_is_the_one_the_scorer_computes(scorer, open_cache, dialogues):
    keys = open_cache().fill(scorer, dialogues, "modality")
    cache = open_cache()
    for index, features in scorer.iter_features(dialogues, "modality"):
        assert cache[keys[index]].dtype == torch.float32
        assert cache[keys[index]].tolist() == [features.pooled.tolist()]


@pytest.mark.parametrize(
    ("stored_dtype", "tolerance"), [("float32", 0.0), ("float16", 2.0**-11), ("bfloat16", 2.0**-8)]
)
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


def test_a_layer_of_the_text_model_can_be_stored(scorer, open_cache, dialogues):
    last, embeddings = open_cache(), open_cache(layer=0)
    keys = [cache.fill(scorer, dialogues[:1])[0] for cache in (last, embeddings)]
    assert keys[0] != keys[1]
    ((_, features),) = scorer.iter_features(dialogues[:1], layer=0)
    assert embeddings[keys[1]][0].tolist() == features.pooled.tolist()


CHANGES = {
    "louder": lambda turns: turns[1]["content"][1].update(audio=turns[1]["content"][1]["audio"] * 1.01),
    "other word": lambda turns: turns[1]["content"][0].update(text="hm"),
    "swapped roles": lambda turns: [turn.update(role=("assistant", "user")[k]) for k, turn in enumerate(turns)],
    "audio first": lambda turns: turns[0]["content"].reverse(),
    "own system turn": lambda turns: turns.insert(0, {"role": "system", "content": "Judge."}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_key_changes_with_what_is_heard_and_read(change, open_cache, make_dialogue):
    cache, dialogue = open_cache(), make_dialogue(0.3, 0.2)
    before = cache.key(dialogue)
    change(dialogue)
    assert cache.key(dialogue) != before


@pytest.mark.parametrize(
    "options",
    [
        {"model_revision": "abd"},
        {"layer": 1},
        {"per_token": True},
        {"dtype": "bfloat16"},
        {"per_token": True, "stored_dtype": "float32"},
        {"prompts": {"joint": "Judge."}},
        {"prompt_version": "2"},
        {"max_turn_s": 5.0},
    ],
)
def test_the_key_changes_with_the_model_the_processor_and_the_stored_features(
    options, open_cache, make_dialogue, tiny_processor
):
    dialogue = make_dialogue(0.3, 0.2)
    if not options.keys().isdisjoint(("prompts", "prompt_version", "max_turn_s")):
        parts = tiny_processor.feature_extractor, tiny_processor.tokenizer
        options = {"processor": SDiaRewardProcessor(*parts, **options)}
    assert open_cache(**options).key(dialogue) != open_cache().key(dialogue)
    assert open_cache(**options).key(dialogue) == open_cache(**options).key(dialogue)


def test_the_key_changes_with_the_pooling_and_only_where_vectors_are_pooled(open_cache, tiny_config, make_dialogue):
    dialogue = make_dialogue(0.3, 0.2)
    last = tiny_config(pooling_mode="last_token")
    assert open_cache(last).key(dialogue) != open_cache().key(dialogue)
    assert open_cache(last, per_token=True).key(dialogue) == open_cache(per_token=True).key(dialogue)


def test_a_recording_has_one_key_in_every_form_it_is_given(open_cache, make_tone, tmp_path):
    wav = encode(make_tone(0.3), 16_000, "WAV", "PCM_16", None)
    path = tmp_path / "tone.wav"
    path.write_bytes(wav)
    forms = [path, str(path), wav, {"bytes": wav, "path": None}, {"bytes": None, "path": str(path)}]
    keys = {open_cache().key([{"role": "user", "content": [{"audio": audio}]}]) for audio in forms}
    assert len(keys) == 1


def test_mean_and_last_token_vectors_share_a_folder(make_tiny_model, tiny_processor, open_cache, dialogues):
    vectors = {}
    for mode in ("mean", "last_token"):
        model = make_tiny_model(mode)
        cache = open_cache(model.config)
        (key,) = cache.fill(Scorer(model, tiny_processor), dialogues[:1])
        vectors[mode] = cache[key]
        assert len(cache) == 1
    assert not torch.equal(vectors["mean"], vectors["last_token"])


def test_only_what_is_missing_is_computed_and_each_dialogue_once(scorer, open_cache, dialogues, computed):
    open_cache().fill(scorer, dialogues[:2])
    keys = open_cache().fill(scorer, [dialogues[3], *dialogues, dialogues[3]])
    open_cache().fill(scorer, dialogues)
    assert computed == [2, 2]
    assert len(open_cache()) == 4
    assert keys[0] == keys[4] == keys[5]


def test_a_bad_dialogue_is_skipped_with_its_reason_and_the_others_are_computed(scorer, open_cache, dialogues):
    silent = [{"role": "user", "content": [{"audio": np.zeros(10, np.float32)}]}, dialogues[0][1]]
    absent = [{"role": "user", "content": [{"audio": "nowhere.wav"}]}, dialogues[0][1]]
    skipped = {}
    cache = open_cache()
    keys = cache.fill(scorer, [dialogues[0], silent, absent, dialogues[1], silent], skipped=skipped)
    assert sorted(skipped) == [1, 2, 4]
    assert "0.6 ms" in skipped[1]
    assert skipped[4] == skipped[1]
    assert "nowhere.wav: no such audio file" in skipped[2]
    assert [key in cache for key in keys] == [True, False, False, True, False]
    with pytest.raises(FileNotFoundError, match=r"nowhere\.wav"):
        cache.fill(scorer, [absent])


def test_another_model_finds_nothing_and_the_error_lists_the_cached_features(scorer, open_cache, dialogues):
    (key,) = open_cache().fill(scorer, dialogues[:1])
    with pytest.raises(KeyError, match="holds 0 of model_revision 'other'; others of model_revision 'abc'"):
        open_cache(model_revision="other")[key]


def test_a_scorer_that_computes_something_else_is_refused(scorer, open_cache, tiny_config, dialogues):
    with pytest.raises(ValueError, match="pooling_mode is 'last_token' in the cache but 'mean' in the scorer"):
        open_cache(tiny_config(pooling_mode="last_token")).fill(scorer, dialogues)
    with pytest.raises(ValueError, match="dtype is 'bfloat16' in the cache but 'float32' in the scorer"):
        open_cache(dtype="bfloat16").fill(scorer, dialogues)


def test_an_error_keeps_what_was_computed_before_it(
    open_cache, make_tiny_model, tiny_processor, dialogues, monkeypatch
):
    monkeypatch.setattr("sdiareward.scoring.scorer._PLANNED_AT_A_TIME", len(dialogues))
    scorer, cache = Scorer(make_tiny_model(), tiny_processor, batch_tokens=1), open_cache()
    turns = [(role, np.zeros(400, np.float32) * np.nan) for role in ("user", "assistant")]
    silent = [{"role": role, "content": [{"audio": samples}]} for role, samples in turns]
    with pytest.raises(ValueError, match="NaN"):
        cache.fill(scorer, [*dialogues, silent])
    assert len(open_cache()) == len(cache) == 4


@pytest.fixture
def open_shards(tmp_path):
    return lambda dtype=torch.float32: FeatureShards(tmp_path / "shards", IDENTITY, dtype)


def _features(numbers, width=3584):
    for number in numbers:
        yield f"{number:032x}", torch.full((1, width), float(number))


def test_the_paper_data_would_take_334_megabytes(open_shards, monkeypatch):
    monkeypatch.setattr(feature_shards, "_SHARD_BYTES", 2**20)
    shards, count = open_shards(), 700
    shards.write(_features(range(count)))
    size = sum(path.stat().st_size for path in shards.folder.iterdir())
    vectors_of_the_paper = 11_630 * 2
    assert size / count * vectors_of_the_paper == pytest.approx(334e6, rel=0.01)
    assert len(list(shards.folder.glob("*.safetensors"))) == 10


def _write_until_killed(shards):
    feature_shards._SHARD_BYTES = 10 * 3584 * 4

    def features():
        for key, rows in _features(range(100)):
            if int(key, 16) == 35:
                os.kill(os.getpid(), signal.SIGKILL)
            yield key, rows

    shards.write(features())


def _write_all(shards, numbers):
    feature_shards._SHARD_BYTES = 5 * 3584 * 4
    shards.write(_features(numbers))


def _run(target, *args):
    process = multiprocessing.get_context("fork").Process(target=target, args=args)
    process.start()
    return process


def test_a_killed_writer_leaves_whole_shards_and_the_next_one_resumes(open_shards):
    process = _run(_write_until_killed, open_shards())
    process.join()
    assert process.exitcode == -signal.SIGKILL
    shards = open_shards()
    assert len(shards) == 30
    shards.write((key, rows) for key, rows in _features(range(100)) if key not in shards)
    assert len(open_shards()) == 100
    assert all(open_shards()[f"{number:032x}"][0, -1] == number for number in range(100))


def test_writers_and_a_reader_share_a_folder(open_shards):
    reader = open_shards()
    processes = [_run(_write_all, open_shards(), range(start, 60, 2)) for start in (0, 1)]
    processes.append(_run(_write_all, open_shards(), range(20)))
    while any(process.is_alive() for process in processes):
        reader.refresh()
        for number in range(60):
            if f"{number:032x}" in reader:
                assert reader[f"{number:032x}"][0, 0] == number
    assert [process.exitcode for process in processes] == [0, 0, 0]
    reader.refresh()
    assert len(reader) == 60


def test_an_unfinished_shard_is_not_read_and_an_abandoned_one_is_removed(open_shards):
    shards = open_shards()
    shards.write(_features([1]))
    fresh, old = (shards.folder / f".{name}.safetensors.tmp" for name in ("fresh", "old"))
    for path, age_s in ((fresh, 0), (old, 7200)):
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age_s,) * 2)
    shards = open_shards()
    shards.write(_features([2]))
    assert len(shards) == 2
    assert fresh.exists()
    assert not old.exists()


def test_a_damaged_shard_is_logged_and_its_features_are_missing(open_shards, caplog):
    open_shards().write(_features([1, 2]))
    (path,) = (folder := open_shards().folder).glob("*.safetensors")
    content = path.read_bytes()
    key = content.index(f"{1:032x}".encode())
    for place in (-5, key):
        damaged = bytearray(content)
        damaged[place] ^= 1
        for written in (bytes(damaged), content[:-5]):
            path.write_bytes(written)
            caplog.clear()
            assert len(open_shards()) == 0
            assert str(folder / path.name) in caplog.text
    # An older version had no checksum of the header.
    features = torch.ones(1, 9)
    path.write_bytes(save({"features": features}, {"keys": "a", "crc32": str(zlib.crc32(features.numpy()))}))
    assert len(open_shards()) == 1
    open_shards().write(_features([1]))
    assert len(open_shards()) == 2


def test_a_value_beyond_the_stored_dtype_is_an_error(open_shards):
    shards = open_shards(torch.float16)
    with pytest.raises(ValueError, match=r"holds 70000, which is not finite in torch\.float16"):
        shards.write([("a", torch.ones(1, 4)), ("b", torch.full((1, 4), 70_000.0))])
    assert len(open_shards(torch.float16)) == 1


def test_features_of_several_rows_lie_one_below_the_other(open_shards):
    open_shards().write([("a", torch.ones(2, 3)), ("b", torch.full((1, 3), 2.0)), ("c", torch.full((3, 3), 3.0))])
    shards = open_shards()
    assert [shards[key].tolist() for key in "abc"] == [[[1.0] * 3] * 2, [[2.0] * 3], [[3.0] * 3] * 3]
    assert [shards.num_rows(key) for key in "abc"] == [2, 1, 3]
    assert json.loads((shards.folder / "identity.json").read_text()) == IDENTITY


def test_a_shard_can_be_read_by_whoever_may_read_new_files(open_shards, tmp_path):
    open_shards().write(_features([1]))
    (path,) = open_shards().folder.glob("*.safetensors")
    (tmp_path / "new").touch()
    assert path.stat().st_mode == (tmp_path / "new").stat().st_mode


def test_a_cache_travels_to_another_process(open_shards):
    open_shards().write(_features([5]))
    shards = open_shards()
    assert shards[f"{5:032x}"][0, 0] == 5
    copy = pickle.loads(pickle.dumps(shards))
    assert len(pickle.dumps(shards)) < 1000
    assert copy[f"{5:032x}"][0, 0] == 5
