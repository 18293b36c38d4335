"""Pairs are read once before training: lengths, clips that are encoded, and the pairs that cannot be used."""

from io import BytesIO

import datasets
import numpy as np
import pytest
import soundfile
import torch
from support.tiny_model import make_processor

from sdiareward.pairs.messages import turns_to_messages
from sdiareward.pairs.schema import SIDES
from sdiareward.scoring.feature_cache import FeatureCache
from sdiareward.scoring.scorer import Scorer
from sdiareward.training.batches import PairCollator
from sdiareward.training.precompute import cache_pairs, precompute_pairs


def broken(pairs, row, side):
    rows = pairs.to_list()
    rows[row][side][1]["audio"]["bytes"] = b"no sound"
    return datasets.Dataset.from_list(rows).add_column("pair_id", [f"pair {number}" for number in range(len(rows))])


def test_every_pair_is_read_once_and_its_length_is_that_of_both_sides(
    tone_pairs, tiny_processor, make_tiny_model, tmp_path, monkeypatch
):
    options = {"split": "train", "model": make_tiny_model()}
    state = torch.get_rng_state()
    rows, skipped = precompute_pairs(tone_pairs, tiny_processor, tmp_path, **options, model_revision="a")
    assert skipped == []
    # What is drawn later, such as adapters, does not depend on what was read.
    assert torch.equal(torch.get_rng_state(), state)
    assert rows["row"] == [0, 1, 2, 3]
    assert rows["pair_id"] == [f"row {number}" for number in range(4)]
    for row, length in zip(tone_pairs, rows["length"], strict=True):
        sides = (tiny_processor.prepare(turns_to_messages(row[side]), row["criterion"]) for side in SIDES)
        assert length == sum(len(side.input_ids) for side in sides)
    monkeypatch.setattr("sdiareward.training.precompute.encode_clips", None)
    again, _ = precompute_pairs(tone_pairs, tiny_processor, tmp_path, **options, model_revision="a")
    assert again.to_list() == rows.to_list()
    with pytest.raises(TypeError):
        precompute_pairs(tone_pairs, tiny_processor, tmp_path, **options, model_revision="b")


def test_a_pair_that_cannot_be_read_is_skipped_with_its_reason(tone_pairs, tiny_processor, make_tiny_model, tmp_path):
    pairs, model = broken(tone_pairs, 2, "rejected"), make_tiny_model()
    rows, (skipped,) = precompute_pairs(pairs, tiny_processor, tmp_path, split="validation", model=model)
    assert rows["pair_id"] == ["pair 0", "pair 1", "pair 3"]
    assert (skipped.split, skipped.row, skipped.item) == ("validation", 2, "pair 2")
    assert skipped.reason.startswith("rejected, ")
    assert "cannot be decoded" in skipped.reason
    # Nor is a broken pair passed on to the model.
    assert len(PairCollator(tiny_processor)(list(rows))["pairs"]) == 3
    with pytest.raises(ValueError, match="none of the 1 pairs of 'test' can be used; check their recordings"):
        precompute_pairs(pairs.select([2]), tiny_processor, tmp_path, split="test", model=model)


def test_pairs_with_a_longer_side_are_skipped(tone_pairs, tiny_processor, tmp_path):
    options = {"processor": tiny_processor, "folder": tmp_path, "split": "train"}
    rows, _ = precompute_pairs(tone_pairs, **options)
    longest = max(rows["length"]) // 2
    kept, skipped = precompute_pairs(tone_pairs, **options, max_length=longest - 1)
    assert 0 < len(kept) < len(rows) and {pair.kind for pair in skipped} == {"too_long"}
    assert f"max_length is {longest - 1}" in skipped[0].reason


def test_other_processes_read_the_same(tone_pairs, tiny_processor, make_tiny_model, tmp_path):
    # More than one batch, so that both processes have work.
    pairs = broken(datasets.concatenate_datasets([tone_pairs] * 5), 9, "chosen")
    model = make_tiny_model()
    alone, shared = (
        precompute_pairs(pairs, tiny_processor, tmp_path / name, split="train", model=model, num_workers=num_workers)
        for name, num_workers in (("alone", 0), ("shared", 2))
    )
    assert shared[0].to_list() == alone[0].to_list()
    assert shared[1] == alone[1] and [pair.row for pair in shared[1]] == [9]


def test_a_recording_mended_under_the_same_path_is_read_again(tone_pairs, tiny_processor, make_tiny_model, tmp_path):
    turns = [(side, number) for side in SIDES for number in range(2)]
    rows = tone_pairs.select([0]).to_list()
    for side, number in turns:
        audio = rows[0][side][number]["audio"]
        (tmp_path / f"{side}{number}.wav").write_bytes(audio["bytes"])
        rows[0][side][number]["audio"] = {"bytes": None, "path": str(tmp_path / f"{side}{number}.wav")}
    pairs, model = datasets.Dataset.from_list(rows), make_tiny_model()

    def vectors():
        found, _ = precompute_pairs(pairs, tiny_processor, tmp_path / "out", split="train", model=model)
        return found.remove_columns("row").to_list()

    before = vectors()
    assert vectors() == before
    (tmp_path / "chosen1.wav").write_bytes((tmp_path / "rejected1.wav").read_bytes())
    assert vectors() != before


def test_a_recording_that_disappears_after_it_was_read_is_named(tone_pairs, tiny_processor, tmp_path):
    rows, _ = precompute_pairs(tone_pairs, tiny_processor, tmp_path, split="train")
    row = {**rows[1], "chosen": [{**turn, "audio": {"bytes": b"", "path": None}} for turn in rows[1]["chosen"]]}
    with pytest.raises(ValueError, match="pair row 1, chosen: "):
        PairCollator(tiny_processor)([row])


HEARD_S = 0.3


def store(array, form):
    file = BytesIO()
    # Whole numbers, which both formats keep as they are.
    soundfile.write(file, np.round(array * 20_000).astype(np.int16), 16_000, format=form, subtype="PCM_16")
    return file.getvalue()


@pytest.fixture
def pairs(make_tone):
    """Return a function that makes rows by name; the model hears 0.3 s of each turn."""
    sound, other = make_tone(0.5), make_tone(0.5, 700.0)
    ending = np.concatenate([sound[:4800], other[4800:]])

    def side(answer, text="yes", role="assistant", form="WAV", user=sound):
        turns = [("user", "so", user, "WAV"), (role, text, answer, form)]
        return [
            {"role": who, "text": words, "audio": {"bytes": store(array, kind), "path": None}}
            for who, words, array, kind in turns
        ]

    rows = {
        "one file": (side(sound), side(sound)),
        "one beginning": (side(sound), side(ending)),
        "another file format": (side(sound), side(sound, form="FLAC")),
        "cut context": (side(other, user=sound), side(other, user=ending)),
        "other sound": (side(sound), side(other)),
        "other text": (side(sound), side(sound, text="no")),
        "other first sample": (side(sound), side(np.concatenate([sound[:1] + 0.01, sound[1:]]))),
        "other end of what is heard": (side(sound), side(np.concatenate([sound[:4700], other[4700:]]))),
        "other order": (side(other, user=sound), side(sound, user=other)),
    }
    return datasets.Dataset.from_list(
        [{"pair_id": name, "chosen": chosen, "rejected": rejected} for name, (chosen, rejected) in rows.items()]
    )


EQUAL = ["one file", "one beginning", "another file format", "cut context"]


def read_ahead(pairs, model, processor, folder, split):
    return precompute_pairs(pairs, processor, folder, split=split)


def encode_ahead(pairs, model, processor, folder, split):
    return precompute_pairs(pairs, processor, folder, split=split, model=model)


def cache_features(pairs, model, processor, folder, split):
    cache = FeatureCache(folder, model.config, processor, model_revision="a", per_token=True)
    rows, skipped = cache_pairs({split: pairs}, cache, lambda: Scorer(model, processor))
    return rows[split], skipped


@pytest.mark.parametrize("read", [read_ahead, encode_ahead, cache_features])
def test_pairs_with_equal_sides_are_skipped(read, pairs, make_tiny_model, tmp_path):
    model = make_tiny_model(pooling_mode="attention", max_turn_s=HEARD_S)
    processor = make_processor(max_turn_s=HEARD_S)
    for split in ("train", "train", "validation"):
        rows, skipped = read(pairs, model, processor, tmp_path, split)
        assert [(pair.item, pair.kind, pair.split) for pair in skipped] == [(n, "equal_sides", split) for n in EQUAL]
        assert all("equal" in pair.reason for pair in skipped)
        assert list(rows["pair_id"]) == [name for name in pairs["pair_id"] if name not in EQUAL]
        # Four turns of each pair are longer than the model hears.
        assert set(rows["num_cut"]) == {4}
    sides = {"chosen": "rejected", "rejected": "chosen"}
    swapped, _ = read(pairs.rename_columns(sides), model, processor, tmp_path / "swapped", split)
    assert len({*rows["content"], *swapped["content"]}) == 2 * len(rows)
