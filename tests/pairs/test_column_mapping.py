"""Preference sets of others, read by a mapping of their columns; the example has the layout of SpeechJudge-Data."""

import json
from dataclasses import replace

import datasets
import numpy as np
import pytest
from support.mapped_world import MAPPING, write_mapped
from support.systems_world import write_tone

from sdiareward.common.package_files import CONFIGS
from sdiareward.common.user_errors import PairsError
from sdiareward.pairs.column_mapping import read_column_mapping
from sdiareward.pairs.labels import describe_pairs
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.rows import SIDES, open_rows, read_block


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def mapping(tmp_path):
    return write_mapped(tmp_path / "theirs", dev="AB", test=["A", "Tie", "B", "B"])


def clip_of(turns):
    assert [turn["role"] for turn in turns] == ["assistant"]
    return turns[0]["audio"]["path"]


def test_the_preferred_clip_is_the_chosen_side(mapping):
    pairs = load_pairs(mapping, "test")
    assert [(clip_of(pair["chosen"]), clip_of(pair["rejected"])) for pair in pairs] == [
        ("2-A.wav", "2-B.wav"),
        ("4-B.wav", "4-A.wav"),
        ("5-B.wav", "5-A.wav"),
    ]
    recording = (mapping.parent / "clips" / "4-B.wav").read_bytes()
    assert pairs[1]["chosen"][0]["audio"]["bytes"] == recording
    assert [pair["chosen"][0]["text"] for pair in pairs] == ["words of 2", "words of 4", "words of 5"]
    assert [label["pair_id"] for label in describe_pairs(pairs)] == ["2", "4", "5"]
    assert pairs["language"] == ["en2en"] * 3


def test_ties_are_read_by_themselves_in_the_order_of_the_table(mapping):
    ties = load_pairs(mapping, "test", ties=True)
    assert [clip_of(tie[side]) for tie in ties for side in SIDES] == ["3-A.wav", "3-B.wav"]
    assert len(load_pairs(mapping, "validation", ties=True)) == 0


def test_a_split_may_have_another_name(mapping):
    assert load_pairs(mapping, "validation")["pair_id"] == ["0", "1"]


def test_scoring_reads_mapped_rows(mapping):
    rows = open_rows(mapping, "test")
    block = read_block(rows, np.arange(rows.num_rows), SIDES)
    assert [clip_of(block[1][side]) for side in SIDES] == ["4-B.wav", "4-A.wav"]


def test_paths_begin_at_the_table_that_the_mapping_names(tmp_path):
    table = tmp_path / "theirs" / "deep" / "rows.jsonl"
    for name in ("a", "b"):
        write_tone(table.parent / f"{name}.wav")
    table.write_text(json.dumps({"one": "a.wav", "two": "b.wav", "better": 2}) + "\n")
    mapping = tmp_path / "theirs" / "mapping.yml"
    mapping.write_text("{dataset: deep/rows.jsonl, clips: [one, two], label: better, first: 1, second: [2, '2.0']}")
    (pair,) = load_pairs(mapping, "test")
    assert clip_of(pair["chosen"]) == str(table.parent / "b.wav")


def test_a_recording_outside_of_the_data_set_is_refused(tmp_path):
    write_tone(tmp_path / "private" / "a.wav")
    table = tmp_path / "theirs" / "rows.jsonl"
    table.parent.mkdir()
    table.write_text(json.dumps({"one": str(tmp_path / "private" / "a.wav"), "two": "b.wav", "better": 1}) + "\n")
    mapping = tmp_path / "theirs" / "mapping.yaml"
    mapping.write_text("{dataset: rows.jsonl, clips: [one, two], label: better, first: 1, second: 2}")
    with pytest.raises(PairsError, match="outside of the audio root"):
        load_pairs(mapping, "test")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("text: target_text", "text: words", r"mapping\.yaml: the mapping names the columns \['words'\].*audioA"),
        ("ties: Tie", "ties: Neither", r"row 1: naturalness_label is 'Tie'.*\('Neither',\) \(ties\)"),
        ("clips: [audioA, audioB]", "clips: audioA", r"clips is 'audioA'; a list is needed"),
        ("clips: [audioA, audioB]", "clips: [audioA]", r"clips are \('audioA',\); give the names of two columns"),
        ("clips: [audioA, audioB]", "clips: [audioA, chosen]", r"column chosen is bool; a clip is the path"),
        ("second: B", "second: A", r"no label two meanings"),
        ("label: naturalness_label\n", "", r"keys \['label'\] are missing"),
        ("pair_id: index", "id: index", r"columns: unknown keys \['id'\]"),
        ("dataset: mini", "dataset: other.yaml", r"name the tables, not another mapping"),
    ],
)
def test_an_error_names_the_file_and_what_to_do(mapping, old, new, message):
    assert old in MAPPING
    mapping.write_text(MAPPING.replace(old, new))
    with pytest.raises(PairsError, match=message) as error:
        load_pairs(mapping, "test")
    assert str(mapping) in str(error.value)


def test_the_packaged_mapping_of_speechjudge_data_is_the_tested_one(mapping):
    packaged = read_column_mapping(CONFIGS / "speechjudge_data.yaml")
    assert packaged.dataset == "RMSnow/SpeechJudge-Data"
    assert replace(packaged, dataset=read_column_mapping(mapping).dataset) == read_column_mapping(mapping)


def test_a_changed_mapping_is_read_again(mapping):
    before = read_column_mapping(mapping)
    mapping.write_text(MAPPING.replace("first: A\nsecond: B", "first: B\nsecond: A"))
    assert (before.first, read_column_mapping(mapping).first) == ("A", "B")
    assert clip_of(load_pairs(mapping, "test")[0]["chosen"]) == "2-B.wav"
