import json
import random
import statistics
from pathlib import Path

import numpy as np
import pytest
import soundfile
from support.human_world import make_score, write_evaluation, write_pairs

from sdiareward.cli import main
from sdiareward.evaluation.human.study import SIZES, draw_strata, sample_study
from sdiareward.evaluation.scores import read_evaluation
from sdiareward.pairs.loading import load_pairs


SUBSETS = ("wild", "semi_wild", "scripted", "colloquialness")
SMALL = {"high": 3, "low": 3, "random": 3, "wrong": 2}


@pytest.fixture(scope="module")
def scores():
    """160 correct pairs with the margins 1 to 160 in turn over the subsets, 40 wrong ones, one of them a tie."""
    correct = [make_score(number, float(number + 1), SUBSETS[number % 4]) for number in range(160)]
    return correct + [make_score(200 + number, -float(number), SUBSETS[number % 4]) for number in range(40)]


@pytest.fixture(scope="module")
def world(tmp_path_factory, scores):
    """A finished evaluation and its pairs, three of each subset right and one of each wrong."""
    folder = tmp_path_factory.mktemp("world")
    few = [*scores[:12], *scores[-4:]]
    write_pairs(folder / "pairs.parquet", few)
    return write_evaluation(folder / "eval", few, dataset=str(folder / "pairs.parquet"))


@pytest.fixture(scope="module")
def study(world, tmp_path_factory):
    output = tmp_path_factory.mktemp("studies") / "study"
    sample_study(
        read_evaluation(world), load_pairs(world.parent / "pairs.parquet", "test"), output, seed=1, sizes=SMALL
    )
    return output


def read(folder, name):
    return json.loads((folder / name).read_text(encoding="utf-8"))


def ids(stratum):
    return {record["pair_id"] for record in stratum}


def test_strata_have_the_sizes_of_the_paper_hold_what_their_names_say_and_share_no_pair(scores):
    strata = draw_strata(scores, seed=3)
    assert {name: len(records) for name, records in strata.items()} == SIZES
    assert len(set().union(*map(ids, strata.values()))) == 75
    assert all(record["margin"] > 120 for record in strata["high"])
    # The lowest quarter has ten pairs of each subset; the five smallest of each are the 20 smallest.
    assert sorted(record["margin"] for record in strata["low"]) == list(range(1, 21))
    assert all(record["margin"] <= 0 for record in strata["wrong"])
    drawn = draw_strata(random.Random(9).sample(scores, len(scores)), seed=3)
    assert drawn == strata and drawn["random"] != draw_strata(scores, seed=5)["random"]
    # A tie is wrong.
    assert 0.0 in {record["margin"] for record in draw_strata(scores, seed=0, sizes={"wrong": 40})["wrong"]}


def test_the_same_words_are_not_drawn_twice_while_there_are_others(scores):
    # Forty texts, each spoken in five pairs.
    words = {record["pair_id"]: index % 40 for index, record in enumerate(scores)}
    strata = draw_strata(scores, 0, {"high": 8, "random": 20}, words.__getitem__)
    drawn = [words[record["pair_id"]] for stratum in strata.values() for record in stratum]
    assert len(drawn) == len(set(drawn)) == 28
    assert len(draw_strata(scores, 0, {"random": 5}, lambda pair_id: "always")["random"]) == 5


def read_files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_seed_writes_the_same_bytes_and_another_seed_others(world, study, tmp_path):
    pairs = load_pairs(world.parent / "pairs.parquet", "test")
    for seed in (1, 2):
        sample_study(read_evaluation(world), pairs, tmp_path / str(seed), seed=seed, sizes=SMALL)
    same, other = read_files(tmp_path / "1"), read_files(tmp_path / "2")
    assert same == read_files(study) and same.keys() & other.keys() == {"study.json", "key.json"}


def test_raters_get_recordings_with_neutral_names_and_nothing_of_the_truth(study):
    truth, seen = read(study, "key.json")["items"], (study / "study.json").read_text(encoding="utf-8")
    for word in ("chosen", "rejected", "margin", "stratum", "subset", "synthesizer", "pair_id"):
        assert word not in seen
    names = []
    for item in json.loads(seen)["items"]:
        labels, sides = truth[item["item"]], {}
        assert not [name for name in ("stratum", "source", "group_id", "chosen") if f'"{labels[name]}"' in seen]
        for letter in "ab":
            array, rate = soundfile.read(study / "audio" / item[letter][0]["audio"])
            # Whole periods in 0.2 s, so the spectrum has one line: the chosen side is the lower one.
            sides[letter] = np.abs(np.fft.rfft(array)).argmax() * rate / array.size
            assert list(item[letter][0]) == ["role", "text", "audio", "duration_s"]
        assert min(sides, key=sides.get) == labels["chosen_is"]
        # What both sides begin with is context.
        assert [turn["text"] for turn in item["context"]] == ["well, hello"] and len(item["a"]) == len(item["b"]) == 1
        assert ("everyday speech" in item["question"]) == (labels["criterion"] == "colloquialness")
        names += [turn["audio"] for part in ("context", "a", "b") for turn in item[part]]
    letters = [labels["chosen_is"] for labels in truth.values()]
    assert abs(letters.count("a") - letters.count("b")) <= 1
    assert len(names) == len(set(names)) == 3 * len(truth)
    assert {path.name for path in (study / "audio").iterdir()} == set(names)
    assert all(len(Path(name).stem) == 16 and int(Path(name).stem, 16) >= 0 for name in names)


def test_the_command_says_what_was_drawn_and_what_there_is_less_of(world, tmp_path, capsys):
    arguments = ["human", "sample", str(world), "--output_dir", str(tmp_path / "study"), "--seed", "7"]
    assert main([*arguments, "--high", "2", "--low", "2", "--random", "0", "--wrong", "15", "--no-tie"]) == 0
    lines = capsys.readouterr().out.splitlines()
    margins = [r["margin"] for r in read(tmp_path / "study", "key.json")["items"].values() if r["stratum"] == "high"]
    assert lines[0].endswith(f"average margin {statistics.mean(margins):+.3f}")
    assert lines[3].startswith(
        "wrong    4 of 15: there are no more; colloquialness 1, scripted 1, semi_wild 1, wild 1;"
    )
    assert lines[4] == f"{tmp_path / 'study'}: 8 items; keep key.json away from the raters"
    assert read(tmp_path / "study", "study.json")["allow_tie"] is False


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--output_dir", "taken"], "not overwritten"),
        (["--dataset", "none.parquet"], "no such file"),
        (["--dataset", "other.parquet"], "16 of 16 pairs of"),
        (["--high=0", "--low=0", "--random=0", "--wrong=0"], "no pairs to draw"),
    ],
)
def test_what_cannot_be_drawn_is_refused(world, tmp_path, capsys, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path / "other.parquet", [make_score(999, 1.0)])
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "x").touch()
    assert main(["human", "sample", str(world), "--output_dir", "study", *flags]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("study.json"))
