import csv

import pytest

from sdiareward.dataset_builder.chatreward.builder import (
    compute_gold_score,
    measure_agreement,
    read_ratings,
)
from sdiareward.dataset_builder.chatreward.filters import word_error_rate


WORDS = [f"word{letter}" for letter in "abcdefghijklmnopqrst"]


@pytest.mark.parametrize(
    ("said", "heard", "language", "expected"),
    [
        ("I can't find twenty five keys.", "i can not find 25 keys", "en", 0.0),
        # One wrong, missing or additional word in twenty.
        (" ".join(WORDS), " ".join([*WORDS[:-1], "other"]), "en", 0.05),
        (" ".join(WORDS), " ".join(WORDS[:-1]), "en", 0.05),
        (" ".join(WORDS), " ".join([*WORDS, "more"]), "en", 0.05),
        # Chinese is counted by character.
        ("你好吗?", "你好 妈", "zh-CN", 1 / 3),
    ],
)
def test_word_error_rates(said, heard, language, expected):
    assert word_error_rate(said, heard, language) == pytest.approx(expected)


def write_ratings(path, *rows, header=("sample_id", "rater", "score")):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def test_ratings_are_read_and_bad_rows_are_reported_by_line(tmp_path):
    path = write_ratings(
        tmp_path / "ratings.csv",
        *[("a", "ann", 4), ("b", "ann", 1), ("a", "ben", 5), ("x", "ann", 5), ("a", "ann", 2)],
        *[("a", "cem", "five"), ("b", "", 3), ("b", "ben", 6)],
    )
    ratings, _, skipped = read_ratings(path, {"a", "b"})
    assert ratings == {"a": {"ann": 4, "ben": 5}, "b": {"ann": 1}}
    kinds = ("unknown_sample", "rated_twice", "bad_score", "missing_rater", "bad_score")
    assert [(skip.item, skip.kind) for skip in skipped] == [
        (f"ratings.csv line {n}", k) for n, k in enumerate(kinds, 5)
    ]
    path = write_ratings(
        tmp_path / "wrong.csv",
        *[("a", "ann", 4, ""), ("a", "ben", "", "speech"), ("b", "ann", 1, "noise"), ("b", "ben", 2, None)],
        header=("sample_id", "rater", "score", "wrong"),
    )
    ratings, rejected, skipped = read_ratings(path, {"a", "b"})
    # One rater suffices, whatever others score.
    assert (ratings, [(skip.item, skip.kind) for skip in rejected]) == ({"b": {"ben": 2}}, [("a", "wrong_speech")])
    assert [(skip.item, skip.kind) for skip in skipped] == [("wrong.csv line 4", "bad_wrong")]


def test_agreement_counts_changes_and_wide_ranges():
    ratings = {"a": {"ann": 5, "ben": 4, "cem": 4}, "b": {"ann": 1, "ben": 3}, "c": {"ann": 1}}
    counts = {"rated": 3, "ratings": 6, "raters": 3, "changed": 2, "changes": {"1 -> 2": 1, "5 -> 4": 1}}
    ranges = {"mean_range": 1.5, "wide": 1, "disagreements": ["b"]}
    assert measure_agreement({"a": 5, "b": 1, "c": 1, "d": 3}, ratings) == counts | ranges
    assert measure_agreement({"c": 1}, {"c": {"ann": 1}})["mean_range"] is None
    # The median; a half is rounded up.
    assert [compute_gold_score(scores) for scores in ([5, 4, 4], [3, 4], [1, 2, 3, 3], [1, 5])] == [4, 4, 3, 3]
