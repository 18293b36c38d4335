"""A training on the words of a part of the dialogues, and what it orders."""

import json

import datasets
import pytest
from support.labelled import add_labels

from benchmarks import learning_curve


TALK = [
    ("user", "how are you"),
    ("assistant", "very well thanks"),
    ("user", "and work"),
    ("assistant", "busy as ever"),
]


FOLDER = """---
configs:
- config_name: joint
  data_files:
  - {split: train, path: train.parquet}
  - {split: validation, path: validation.parquet}
---
"""


def make_pairs(count, first=0):
    rows = []
    for number in range(first, first + count):
        labels = {"pair_id": f"pair {number}", "criterion": "joint", "group_id": f"group {number // 2}"}
        chosen = [{"role": role, "content": f"{words} {number}"} for role, words in TALK]
        rows.append({**labels, "source": "talks", "chosen": chosen, "rejected": chosen[:2]})
    return datasets.Dataset.from_list(rows)


def test_a_smaller_share_is_part_of_a_larger_one_and_groups_stay_whole():
    pairs = make_pairs(16)
    few, more, all_of_them = (learning_curve.draw_dialogues(pairs, share)["pair_id"] for share in (0.2, 0.5, 1.0))
    # Of eight groups: two, four and all.
    assert (len(few), len(more), all_of_them) == (4, 8, pairs["pair_id"])
    assert set(few) < set(more)
    assert {int(name.split()[1]) // 2 for name in few} == {int(name.split()[1]) // 2 for name in few[::2]}


def test_every_share_has_about_as_many_pairs(tmp_path):
    found = [
        learning_curve.write_pairs(make_pairs(16), share, tmp_path / f"{share}.parquet") for share in (0.25, 0.5, 1)
    ]
    assert [each["num_groups"] for each in found] == [2, 4, 8]
    assert [each["num_dialogues"] for each in found] == [4, 8, 16]
    # Of four kinds; where the broken dialogue is the same, there is no pair.
    assert all(56 <= each["num_pairs"] <= 64 for each in found)
    written = datasets.Dataset.from_parquet(str(tmp_path / "0.25.parquet"))
    assert len(written) == len(set(written["pair_id"])) == found[0]["num_pairs"]


@pytest.mark.parametrize(
    ("kind", "synthesizer", "is_tested"),
    [("order", "recording", True), ("order", "flite", False), ("repetition", "recording", False)],
)
def test_recorded_conversations_of_the_trained_kinds_are_tested(kind, synthesizer, is_tested):
    label = {"primary": "context", "secondary": kind, "synthesizer": synthesizer}
    assert learning_curve.is_tested(label) is is_tested


@pytest.mark.slow
def test_each_share_is_trained_on_and_orders_the_tested_pairs(tiny_checkpoint, tmp_path, capsys):
    label = {"primary": "context", "secondary": "order", "synthesizer": "recording"}
    add_labels(make_pairs(8), [label] * 8).to_parquet(tmp_path / "train.parquet")
    add_labels(make_pairs(4, first=8), [label] * 4).to_parquet(tmp_path / "validation.parquet")
    (tmp_path / "README.md").write_text(FOLDER)
    given = ["--dataset", str(tmp_path), "--tested_on", str(tmp_path)]
    given += ["--model", str(tiny_checkpoint), "--shares", "0.5", "1", "--steps", "1", "--batch_size", "2"]
    learning_curve.main([*given, "--output", str(tmp_path / "result.json")])
    result = json.loads((tmp_path / "result.json").read_text())
    assert [(share["share"], share["num_dialogues"]) for share in result["shares"]] == [(0.5, 4), (1.0, 8)]
    assert all(share["kinds"]["order"]["num_pairs"] == 4 for share in result["shares"])
    assert "accuracy" in result["shares"][0]["kinds"]["order"]["words"]
