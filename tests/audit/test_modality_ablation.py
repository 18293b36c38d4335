import json

import numpy as np
import pytest

from sdiareward.audit.modality_ablation import AUDIO_ONLY, BOTH, CONDITIONS, TEXT_ONLY, describe_conditions
from sdiareward.perturbations.decoded_pairs import AuditPair, Turn, to_messages
from sdiareward.scoring.scorer import Scorer


def turns(*words_and_levels, num_samples=1600):
    return [
        Turn(("user", "assistant")[number % 2], words, np.full(num_samples, level, dtype=np.float32))
        for number, (words, level) in enumerate(words_and_levels)
    ]


def pair(name, chosen, rejected, *, subset="semi_wild", group=None):
    criterion = "colloquialness" if subset == "colloquialness" else "modality"
    return AuditPair(name, criterion, subset, "source", "piper", group, None, chosen, rejected)


def loudness_and_words(dialogues, criteria):
    """A reward that adds up: the level of each recording, and a hundredth for each character."""
    items = [[item for message in dialogue for item in message["content"]] for dialogue in dialogues]
    return [
        sum(float(item["audio"]["array"][0]) if "audio" in item else len(item["text"]) / 100 for item in of_dialogue)
        for of_dialogue in items
    ]


def measure(pairs, rewards, **options):
    """Score pairs under every condition and return the rows by column."""
    scores = {
        name: {
            pair.pair_id: dict(
                zip(present(pair), rewards(list(present(pair).values()), [pair.criterion] * 2), strict=True)
            )
            for pair in pairs
        }
        for name, present in CONDITIONS.items()
    }
    labels = [{name: getattr(pair, name) for name in ("pair_id", "subset", "group_id")} for pair in pairs]
    return {row["column"]: row for row in describe_conditions(labels, scores, num_bootstrap=20, **options)}


@pytest.fixture
def pairs():
    """Margins by sound 0.25 and 0.5, by words 0 and 0.05; the second pair's words are the other way round."""
    return [
        pair("a", turns(("yes", 0.25), ("no", 0.5)), turns(("yes", 0.25), ("no", 0.25)), group="g"),
        pair(
            "b",
            turns(("yes", 0.5), ("no", 0.5)),
            turns(("yes", 0.25), ("perhaps", 0.25)),
            subset="colloquialness",
            group="h",
        ),
    ]


def test_sound_and_words_are_left_out_of_every_turn():
    dialogue = turns(("yes", 0.25), ("no", 0.5))
    one = pair("a", dialogue, dialogue)
    kinds = {
        name: [[item["type"] for item in message["content"]] for message in present(one)["chosen"]]
        for name, present in CONDITIONS.items()
    }
    assert kinds == {
        BOTH: [["text", "audio"]] * 2,
        AUDIO_ONLY: [["audio"]] * 2,
        TEXT_ONLY: [["text"]] * 2,
    }
    wordless = turns(("yes", 0.25), ("", 0.5))
    assert CONDITIONS[TEXT_ONLY](pair("a", dialogue, wordless)) == "has a turn without words"


def test_the_share_of_the_margin_that_stays_is_that_of_the_sums(pairs):
    rows = measure(pairs, loudness_and_words)
    assert list(rows) == ["semi_wild", "colloquialness", "modality_micro", "overall_micro"]
    of_all = rows["overall_micro"]["conditions"]
    # Margins with both: 0.25 and 0.5 - 0.05.
    assert of_all[BOTH]["margin_kept"] == 1.0
    assert of_all[AUDIO_ONLY]["margin_kept"] == pytest.approx(0.75 / 0.7)
    assert of_all[TEXT_ONLY]["margin_kept"] == pytest.approx(-0.05 / 0.7)
    assert of_all[TEXT_ONLY]["mean_margin"] == pytest.approx(-0.025)
    of_script = rows["colloquialness"]["conditions"]
    assert of_script[AUDIO_ONLY]["margin_kept"] == pytest.approx(0.5 / 0.45)
    assert of_script[TEXT_ONLY]["margin_kept"] == pytest.approx(-0.05 / 0.45)


def test_equal_words_tie_and_wrong_order_without_sound_is_wrong(pairs):
    rows = measure(pairs, loudness_and_words)
    accuracy = {name: found["accuracy"] for name, found in rows["overall_micro"]["conditions"].items()}
    assert accuracy == {BOTH: 1.0, AUDIO_ONLY: 1.0, TEXT_ONLY: 0.0}
    ties = {name: found["num_ties"] for name, found in rows["overall_micro"]["conditions"].items()}
    assert ties == {BOTH: 0, AUDIO_ONLY: 0, TEXT_ONLY: 1}
    assert rows["semi_wild"]["conditions"][TEXT_ONLY]["margin_kept"] == 0.0


def test_baselines_stand_beside_on_the_same_pairs(pairs):
    acoustic = {"a": {"chosen": 0.0, "rejected": 1.0}, "b": {"chosen": 1.0, "rejected": 0.0}}
    rows = measure(pairs, loudness_and_words, baselines={"acoustic": acoustic})
    accuracy = {column: row["baselines"]["acoustic"]["accuracy"] for column, row in rows.items()}
    assert accuracy == {"semi_wild": 0.0, "colloquialness": 1.0, "modality_micro": 0.0, "overall_micro": 0.5}
    json.dumps(rows)


def test_pairs_without_any_margin_keep_no_share_of_it():
    same = turns(("yes", 0.25), ("no", 0.5))
    conditions = measure([pair("a", same, same)], loudness_and_words)["overall_micro"]["conditions"]
    assert conditions[AUDIO_ONLY]["margin_kept"] is conditions[AUDIO_ONLY]["margin_kept_interval"] is None
    assert conditions[BOTH]["num_ties"] == 1


def test_a_model_takes_dialogues_without_sound_and_without_words(make_tiny_model, tiny_processor, make_tone):
    def spoken(seed, *words):
        return [
            Turn(("user", "assistant")[number % 2], text, make_tone(0.3, 200.0 + 90 * number + 50 * seed, seed))
            for number, text in enumerate(words)
        ]

    one = pair("a", spoken(1, "so, um, hello", "yes"), spoken(2, "good day", "sir"))
    scorer = Scorer(make_tiny_model(), tiny_processor)
    conditions = measure([one], scorer.score)["semi_wild"]["conditions"]
    expected = scorer.score([to_messages(side, audio=False) for side in (one.chosen, one.rejected)], "modality")
    assert conditions[TEXT_ONLY]["mean_margin"] == pytest.approx(expected[0] - expected[1], abs=1e-6)
    assert len({found["mean_margin"] for found in conditions.values()}) == 3
