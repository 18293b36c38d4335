"""The tables of the guide to the feature cache say what the result file says."""

import json

from sdiareward.cards import render_feature_cache


EMPTY = "<!-- dtypes -->\n<!-- /dtypes -->\n<!-- speed -->\n<!-- /speed -->\n"


def test_the_guide_is_up_to_date():
    guide = render_feature_cache.GUIDE.read_text(encoding="utf-8")
    assert render_feature_cache.render_guide(guide) == guide


def test_the_numbers_are_those_of_the_file(tmp_path):
    dtype = {"max_reward_error": 2e-6, "bytes_a_pair": 1234}
    result = {
        "stored_dtypes": {
            "reward_standard_deviation": 1.5,
            **dict.fromkeys(("float32", "float16"), dtype),
            "bfloat16": {"max_reward_error": 3e-4, "bytes_a_pair": 1234},
        },
        "nano": {
            "pairs": 7,
            "epoch_s": {"backbone": {"median": 20.04}, "mean": {"median": 0.02}, "attention": {"median": 0.1}},
            "times_faster": 1002.0,
            "filling_s": {"mean": 24.4},
        },
        "paper_size": {"pairs": 11630, "hidden_size": 3584, "epoch_s": {"median": 1.44}, "cache_bytes": 334_200_000},
    }
    path = tmp_path / "head_training.json"
    path.write_text(json.dumps({"result": result}))
    text = render_feature_cache.render_guide(EMPTY, path)
    assert "| bfloat16 | 3e-04 | 1,234 |" in text
    assert "standard deviation of 1.50" in text
    assert "| nano, 7 pairs, through the frozen backbone | 20 s |" in text
    assert "| 11,630 pairs at hidden size 3,584, from cached vectors | 1.44 s |" in text
    assert "factor of 1002 in the median" in text and "take 334 MB on disk" in text
