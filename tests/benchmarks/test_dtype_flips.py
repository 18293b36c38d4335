"""Two evaluations of one model are compared pair by pair."""

import json

import pytest

from benchmarks import dtype_flips


def write_evaluation(folder, rewards, dtype):
    folder.mkdir()
    records = [
        {"pair_id": name, "chosen": chosen, "rejected": rejected} for name, (chosen, rejected) in rewards.items()
    ]
    (folder / "scores.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    (folder / "results.json").write_text(json.dumps({"config": {"dtype": dtype}}))
    (folder / "identity.json").write_text("{}")
    return folder


def test_flips_are_counted_by_the_exact_margin(tmp_path):
    exact = write_evaluation(
        tmp_path / "a", {"p": (1.0, 0.0), "q": (0.0, 0.5), "r": (0.01, 0.0), "s": (0, 1)}, "float32"
    )
    other = write_evaluation(tmp_path / "b", {"p": (1.0, 1.25), "q": (0, 0.5), "r": (0.0, 0.0), "s": (0, 1)}, "fast")
    output = tmp_path / "found.json"
    dtype_flips.main(["--evaluations", f"nano={exact},{other}", "--output", str(output)])
    found = json.loads(output.read_text())["models"]["nano"]
    assert found["dtypes"] == ["float32", "fast"]
    # A tie is no win.
    assert (found["num_pairs"], found["num_right"], found["num_decided"]) == (4, [2, 0], 3)
    assert (found["num_flipped"], found["num_decided_flipped"], found["largest_flipped_margin"]) == (2, 1, 1.0)
    assert found["moved"]["mean"] == pytest.approx((1.25 + 0.01) / 8)
    assert found["moved"]["most"] == 1.25


def test_the_other_evaluation_may_have_more_pairs(tmp_path):
    one = write_evaluation(tmp_path / "a", {"p": (1.0, 0.0), "s": (0, 1)}, "float32")
    two = write_evaluation(tmp_path / "b", {"q": (1.0, 0.0), "s": (0, 1), "p": (1.0, 0.0)}, "fast")
    assert dtype_flips.compare(one, two)["num_pairs"] == 2


def test_other_pairs_are_refused(tmp_path):
    one = write_evaluation(tmp_path / "a", {"p": (1.0, 0.0)}, "float32")
    two = write_evaluation(tmp_path / "b", {"q": (1.0, 0.0)}, "fast")
    with pytest.raises(ValueError, match="lacks 1 of the 1 pairs"):
        dtype_flips.compare(one, two)
