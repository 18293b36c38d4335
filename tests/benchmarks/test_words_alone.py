"""What the words of recorded conversations order without their sound."""

import json

import numpy as np
import pytest
from support.labelled import add_labels

from benchmarks import words_alone
from benchmarks.guides.rendering import render_blocks


def label(primary, secondary, synthesizer="recording"):
    return {"primary": primary, "secondary": secondary, "synthesizer": synthesizer}


def turn(role, text, pitch):
    return {"role": role, "text": text, "audio": {"array": pitch, "sampling_rate": 16_000}}


class CountingScorer:
    """Prefers a long text, but a recording decides where there is one: a fixed rule, so that a hand can count."""

    def score(self, dialogues, criterion):
        assert criterion == "joint"
        return [sum(self._rate(item) for message in each for item in message["content"]) for each in dialogues]

    def _rate(self, item):
        return len(item["text"]) if item["type"] == "text" else 100 * float(item["audio"]["array"][0])


@pytest.mark.parametrize(
    ("pair", "is_used"),
    [
        (label("context", "order"), True),
        (label("context", "order", "flite"), False),
        (label("rhythm", "reading", "flite"), True),
        (label("prosody", "flat", "world"), False),
    ],
)
def test_recorded_conversations_and_rhythm_are_used(pair, is_used):
    assert words_alone.is_used(pair) is is_used


def test_another_transcript_is_not_counted_among_the_answers():
    assert words_alone.name_groups(label("context", "order")) == ["order", words_alone.ALL]
    assert words_alone.name_groups(label("context", "transcript")) == ["transcript"]
    assert words_alone.name_groups(label("rhythm", "reading")) == ["reading"]


def test_words_and_sound_are_measured_apart():
    high, low = np.ones(8, np.float32), np.zeros(8, np.float32)
    pairs = [
        # Words are for the chosen side, the sound against it; then the other way round.
        {
            **label("context", "order"),
            "chosen": [turn("user", "long text", low)],
            "rejected": [turn("user", "x", high)],
        },
        {**label("context", "order"), "chosen": [turn("user", "x", high)], "rejected": [turn("user", "long", low)]},
        {**label("rhythm", "reading"), "chosen": [turn("user", "x", high)], "rejected": [turn("user", "x", low)]},
    ]
    found = words_alone.measure(CountingScorer(), pairs)
    assert {group: row["num_pairs"] for group, row in found.items()} == {"all answers": 2, "order": 2, "reading": 1}
    assert (found["order"]["whole"]["accuracy"], found["order"]["words"]["accuracy"]) == (0.5, 0.5)
    # Equal words are a tie, and a tie is wrong.
    assert (found["reading"]["whole"]["accuracy"], found["reading"]["words"]["accuracy"]) == (1.0, 0.0)


def test_the_guide_shows_words_beside_the_whole():
    share = {"accuracy": 0.5, "interval": [0.25, 0.75]}
    row = {"num_pairs": 4, "whole": share, "words": {**share, "accuracy": 0.25}}
    models = {name: {"near_answer": row} for name in ("small_excerpts", "small_games")}
    result = {"split": "validation", "dtype": "fast", "models": models}
    block = render_blocks("limits_small", {"words_alone.json": result})["words_alone"]
    assert "| near answer | 4 | 50.00 (25.0-75.0) | 25.00 (25.0-75.0) | 50.00 (25.0-75.0) |" in block


def test_the_result_counts_the_pairs_that_are_used_for_each_model(tone_pairs, tiny_checkpoint, tmp_path, capsys):
    labels = [label("context", "order") if number % 2 else label("modality", "") for number in range(len(tone_pairs))]
    pairs = add_labels(tone_pairs, labels)
    pairs.to_parquet(tmp_path / "pairs.parquet")
    output = tmp_path / "result.json"
    models = ["first=" + str(tiny_checkpoint), "again=" + str(tiny_checkpoint)]
    given = ["--dataset", str(tmp_path / "pairs.parquet"), "--output", str(output), "--models", *models]
    words_alone.main([*given, "--dtype", "float32"])
    result = json.loads(output.read_text())
    used = len(pairs) // 2
    assert (result["num_pairs"], result["split"], result["dtype"]) == (used, "validation", "float32")
    assert result["models"]["first"] == result["models"]["again"]
    assert {group: row["num_pairs"] for group, row in result["models"]["first"].items()} == {
        "all answers": used,
        "order": used,
    }
    assert json.loads(capsys.readouterr().out) == result["models"]
