"""Pairs whose sides are equal as the model hears them, in both ways to read pairs before training."""

import json
from io import BytesIO

import datasets
import numpy as np
import pytest
import soundfile
from support.tiny_model import make_processor

from sdiareward.scoring.feature_cache import FeatureCache
from sdiareward.scoring.scorer import Scorer
from sdiareward.training.head import cache_pairs
from sdiareward.training.precompute import precompute_pairs


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
    cache = FeatureCache(
        folder, model.config, processor, model_revision="a", per_token=model.config.pooling_mode == "attention"
    )
    rows, skipped = cache_pairs({split: pairs}, cache, lambda: Scorer(model, processor))
    return rows[split], skipped


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("pooling_mode", ["mean", "attention"])
@pytest.mark.parametrize("read", [read_ahead, encode_ahead, cache_features])
def test_pairs_with_equal_sides_are_skipped(read, pooling_mode, split, pairs, make_tiny_model, tmp_path):
    model = make_tiny_model(pooling_mode=pooling_mode, max_turn_s=HEARD_S)
    processor = make_processor(max_turn_s=HEARD_S)
    for _ in range(2):
        rows, skipped = read(pairs, model, processor, tmp_path, split)
        assert [(pair.item, pair.kind, pair.split) for pair in skipped] == [(n, "equal_sides", split) for n in EQUAL]
        assert all("equal" in pair.reason for pair in skipped)
        assert list(rows["pair_id"]) == [name for name in pairs["pair_id"] if name not in EQUAL]
        # Four turns of each pair are longer than the model hears.
        assert set(rows["num_cut"]) == {4}
    sides = {"chosen": "rejected", "rejected": "chosen"}
    swapped, _ = read(pairs.rename_columns(sides), model, processor, tmp_path / "swapped", split)
    assert len({*rows["content"], *swapped["content"]}) == 2 * len(rows)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["head", "full"])
def test_a_run_counts_equal_pairs_and_cut_turns(mode, pairs, make_flags, tmp_path, capsys):
    from sdiareward.train import main

    folder, output = tmp_path / "pairs", tmp_path / "out"
    for split in ("train", "validation"):
        rows = pairs.map(lambda row, split=split: {"pair_id": f"{split} {row['pair_id']}"})
        (folder / split).parent.mkdir(exist_ok=True)
        rows.to_parquet(folder / f"{split}.parquet")
    flags = {"train": mode, "dataset": folder, "num_train_epochs": 2, "max_turn_s": HEARD_S}
    assert main(make_flags(output, **flags)) == 0
    printed = capsys.readouterr().out
    assert "Skipped: 8 pairs" in printed
    assert "Cut: 40 turns, of which this model hears the first 0.3 s" in printed
    kinds = [json.loads(line)["kind"] for line in (output / "skipped.jsonl").read_text().splitlines()]
    assert kinds == ["equal_sides"] * 8
    run = json.loads((output / "run.json").read_text())
    assert (run["num_cut_turns"], run["trained_on"]["num_pairs"]) == (40, 5)
    assert len(json.loads((output / "training_pairs.json").read_text())["pair_id"]) == 5
