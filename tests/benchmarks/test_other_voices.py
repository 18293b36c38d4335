"""The probe that is asked about a source and a synthesizer that it did not hear."""

import json
from pathlib import Path

import datasets
import numpy as np
import pytest

from benchmarks import other_voices
from sdiareward import Scorer
from sdiareward.perturbations.channel import encode


RATE = 16_000


def make_pair(number, source, synthesizer, *, chosen, rejected):
    """Return a pair whose sides are tones of so many harmonics."""
    rng, time_s = np.random.default_rng(number), np.arange(RATE // 2) / RATE

    def side(num_harmonics):
        tone = sum(np.sin(2 * np.pi * 150 * order * time_s) / order for order in range(1, num_harmonics + 1))
        noisy = (tone / 6 + rng.normal(0, 0.01, len(tone))).astype(np.float32)
        audio = {"bytes": encode(noisy, RATE, "WAV", "PCM_16", None), "path": None}
        return [{"role": role, "text": "yes", "audio": audio} for role in ("user", "assistant")]

    labels = {"pair_id": f"p{number}", "criterion": "modality", "source": source, "synthesizer": synthesizer}
    return {"chosen": side(chosen), "rejected": side(rejected), **labels}


@pytest.fixture(scope="module")
def scorer(tiny_checkpoint):
    return Scorer.from_pretrained(tiny_checkpoint)


@pytest.fixture
def args():
    return other_voices.Arguments(datasets=[], synthesizer="kokoro", copies=1)


@pytest.fixture(scope="module")
def pairs():
    heard = [make_pair(number, "ab"[number % 2], "piper", chosen=12, rejected=2) for number in range(8)]
    # The other way round: a probe that learned from these would not get all of them wrong.
    new = [make_pair(8 + number, "a", "kokoro", chosen=2, rejected=12) for number in range(3)]
    return datasets.Dataset.from_list(heard + new)


def test_neither_the_source_nor_the_synthesizer_was_learned_from(scorer, pairs, args):
    found = other_voices.measure(scorer, pairs, args)
    # Only "a" has pairs with kokoro; the four pairs of "b" with piper are what is learned from.
    assert list(found) == ["a"]
    assert (found["a"]["num_pairs"], found["a"]["num_learned"]) == (3, 4)
    assert [found["a"][name]["accuracy"] for name in ("pairs", "channels", "voices")] == [0.0, 0.0, 0.0]


def test_no_more_pairs_of_a_source_are_read_than_asked_for(scorer, pairs, args):
    args.num_pairs = 2
    found = other_voices.measure(scorer, pairs, args)
    assert (found["a"]["num_pairs"], found["a"]["num_learned"]) == (2, 2)


def test_a_side_is_the_mean_over_all_that_is_heard_of_it(scorer, pairs):
    (short,) = other_voices.compute_vectors(scorer, pairs.select([0]))
    turn = pairs[0]["chosen"][0]
    (one,) = other_voices.compute_vectors(scorer, [{"chosen": [turn], "rejected": [turn, turn]}])
    # Saying the same twice changes no mean.
    assert np.allclose(one[0], one[1], atol=1e-6)
    assert short.shape == one.shape == (2, scorer.model.config.audio_config.output_dim)
    assert not np.allclose(short[0], short[1], atol=1e-3)


def test_it_takes_two_sources_and_pairs_with_the_synthesizer(scorer, pairs, args):
    with pytest.raises(SystemExit, match="pairs of two sources, and pairs of kokoro, are needed; found"):
        other_voices.measure(scorer, pairs.filter(lambda row: row["source"] == "a"), args)
    args.synthesizer = "festival"
    with pytest.raises(SystemExit, match="pairs of festival"):
        other_voices.measure(scorer, pairs, args)


def test_the_result_is_written_with_its_settings(tiny_checkpoint, pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(other_voices, "load_pairs", lambda folder, split, name: pairs)
    output = tmp_path / "result.json"
    given = ["--datasets", "here", "--synthesizer", "kokoro", "--model", str(tiny_checkpoint), "--copies", "1"]
    other_voices.main([*given, "--output", str(output)])
    found = json.loads(output.read_text(encoding="utf-8"))
    assert found["settings"] == {"synthesizer": "kokoro", "num_pairs": 120, "copies": 1, "seed": 0}
    assert found["model"] == Path(tiny_checkpoint).name and found["sources"]["a"]["num_pairs"] == 3
