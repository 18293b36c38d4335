"""Heads on synthesizers that they were trained without, on a sample of the pairs."""

import json

import pytest
from support.labelled import add_labels

from benchmarks import left_out_heads


def label(criterion="modality", source="asterisk", synthesizer="flite"):
    return {"criterion": criterion, "source": source, "synthesizer": synthesizer}


def test_the_first_pairs_of_each_criterion_source_and_synthesizer_are_drawn():
    labels = [label(), label("joint"), label(), label(), label(synthesizer="piper"), label(source="queen")]
    assert left_out_heads.draw_rows(labels, 2) == [0, 2, 4, 5]
    assert left_out_heads.draw_rows(labels, 0) == []


@pytest.mark.slow
def test_the_result_has_a_head_for_each_synthesizer(tone_pairs, tiny_checkpoint, tmp_path, capsys):
    labels = [label(synthesizer=name) for name in ("flite", "piper", "flite", "piper")]
    for split in left_out_heads.SPLITS:
        pairs = add_labels(tone_pairs, labels).add_column("group_id", [f"{split} {name}" for name in "abcd"])
        pairs.to_parquet(tmp_path / f"{split}.parquet")
    output = tmp_path / "result.json"
    given = ["--dataset", str(tmp_path), "--model", str(tiny_checkpoint), "--min_pairs", "1", "--test", "1"]
    left_out_heads.main([*given, "--output", str(output), "--folder", str(tmp_path / "folds")])
    result = json.loads(output.read_text())
    assert result["num_pairs"] == {"train": 4, "validation": 4, "test": 2}
    assert [fold["name"] for fold in result["folds"]] == [None, "flite", "piper"]
    assert result["model"] == tiny_checkpoint.name
    assert json.loads(capsys.readouterr().out) == result["summary"]
