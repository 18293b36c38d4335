import json
from collections import Counter

import pytest
import soundfile
from support import wavreward_eval_world

from sdiareward.cli import main
from sdiareward.evaluation.human.study import Study
from sdiareward.judges.wavreward.ab_study import (
    pair_scores,
    sample_ab_study,
    score_ab_study,
)
from sdiareward.judges.wavreward.scores import read_samples


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return wavreward_eval_world.write_chatreward(tmp_path_factory.mktemp("chatreward"), num_test=3)


def write_evaluation(folder, data, predict):
    """Write what `evaluate` leaves; `predict` gives the score of a sample by its labels."""
    folder.mkdir()
    labels = read_samples(data, "test").labels
    lines = [json.dumps({**label, "predicted": predict(label)}) + "\n" for label in labels]
    (folder / "predictions.jsonl").write_text("".join(lines))
    config = {"dataset": str(data), "split": "test", "out_of_domain": None}
    (folder / "results.json").write_text(json.dumps({"config": config}))
    return folder


@pytest.fixture
def evaluations(tmp_path, data):
    """A judge that is always right, and one that says 3 but for one sample without a score."""
    right = write_evaluation(tmp_path / "right", data, lambda label: label["score"])
    silent = "content-3-1"
    threes = write_evaluation(tmp_path / "threes", data, lambda label: None if label["sample_id"] == silent else 3)
    return right, threes


def draw(evaluations, output, *more):
    arguments = ["human", "ab", *map(str, evaluations), "--output_dir", str(output), *more]
    assert main(arguments) == 0
    return [json.loads((output / name).read_text()) for name in ("study.json", "key.json")]


def test_samples_with_different_scores_are_drawn_and_others_counted(evaluations, tmp_path, capsys):
    _, key = draw(evaluations, tmp_path / "study")
    # 36 samples: 12 of score 3, where both say 3, and one without a score.
    assert (key["num_shared"], key["num_equal"], key["num_without_score"], len(key["items"])) == (36, 12, 1, 23)
    assert all(truth["first"] != truth["second"] for truth in key["items"].values())
    letters = Counter(truth["chosen_is"] for truth in key["items"].values())
    assert abs(letters["a"] - letters["b"]) <= 1
    assert capsys.readouterr().out.splitlines()[:2] == [
        "36 samples scored by both judges, 23 to draw from",
        "age 6, content 5, implicit 6, volume 6",
    ]
    _, key = draw(evaluations, tmp_path / "all", "--all")
    assert (len(key["items"]), key["num_equal"]) == (35, 0)


def test_a_small_study_is_spread_over_columns_and_scenarios_and_repeated_by_its_seed(evaluations, tmp_path):
    def read(name, seed):
        _, key = draw(evaluations, tmp_path / name, "--size", "8", "--seed", seed)
        return key, {path.name: path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()}

    key, files = read("one", "3")
    assert set(Counter(truth["subset"] for truth in key["items"].values()).values()) == {2}
    assert len({truth["scenario_id"] for truth in key["items"].values()}) == 8
    assert files == read("two", "3")[1]
    assert files.keys() & read("three", "4")[1].keys() == {"study.json", "key.json"}


def test_raters_hear_one_recording_and_see_two_scores_but_no_judge(evaluations, tmp_path):
    study, key = draw(evaluations, tmp_path / "study", "--size", "8")
    assert study["form"] == "scores"
    for item in study["items"]:
        truth = key["items"][item["item"]]
        shown = {letter: item[letter][0]["text"] for letter in "ab"}
        assert shown[truth["chosen_is"]] == f"{truth['first']} of 5"
        assert sorted(shown.values()) == sorted(f"{truth[judge]} of 5" for judge in ("first", "second"))
        [turn] = item["context"]
        array, rate_hz = soundfile.read(tmp_path / "study" / "audio" / turn["audio"])
        assert (array.size / rate_hz, turn["duration_s"]) == (1.5, 1.5)
        assert turn["text"].startswith("Question: what time is it in town") and "\nAnswer: " in turn["text"]
    seen = json.dumps({**study, "texts": None})
    for word in ("chosen", "first", "second", "judge", "right", "threes", "content-", "scenario", "gold"):
        assert word not in seen


def rate(folder, rater, choose):
    """Answer every item of a study as its page does; `choose` gets its entry of the key."""
    study, key = Study(folder), json.loads((folder / "key.json").read_text())
    for item in study.content["items"]:
        study.save(rater, item=item["item"], choice=choose(key["items"][item["item"]]), heard=["context"])


def test_the_command_prints_the_share_of_answers_that_prefer_the_first_judge(evaluations, tmp_path, capsys):
    study = tmp_path / "study"
    draw(evaluations, study, "--size", "8")
    rate(study, "ann", lambda truth: truth["chosen_is"])
    rate(study, "bob", lambda truth: "tie")
    # On half of the items A is the first judge.
    rate(study, "cy", lambda truth: "a")
    capsys.readouterr()
    assert main(["human", "score", str(study)]) == 0
    results = json.loads((study / "results.json").read_text())
    overall = results["overall"]
    assert (overall["num_answers"], *(overall[name]["num"] for name in ("win", "lose", "tie"))) == (24, 12, 4, 8)
    assert (overall["win"]["share"], overall["decided"]["share"], overall["decided"]["num_answers"]) == (0.5, 0.75, 16)
    assert overall["decided"]["num_scenarios"] == 8
    assert results["by_majority"] == {"win": 4, "lose": 0, "tie": 4}
    assert set(results["columns"]) == {"content", "age", "volume", "implicit"}
    assert (results["raters"]["ann"]["agreement"], results["raters"]["ann"]["num_not_heard"]) == (1.0, 0)
    report = (study / "results.md").read_text()
    assert capsys.readouterr().out == report and "4 samples won, 0 lost, 4 tied" in report


def test_a_study_without_samples_is_refused(evaluations, tmp_path, data, capsys):
    right, threes = evaluations
    for second, message in ((right, "the two judges agree on all samples"), (tmp_path, "has no predictions.jsonl")):
        assert main(["human", "ab", str(right), str(second), "--output_dir", str(tmp_path / "none")]) == 2
        assert message in capsys.readouterr().err
    pairs, _ = pair_scores([wavreward_eval_world.prediction(77, 5, 5)], [wavreward_eval_world.prediction(77, 5, 3)])
    with pytest.raises(ValueError, match="1 of 1 samples are not in the data"):
        sample_ab_study(pairs, read_samples(data, "test"), tmp_path / "x", seed=0, size=1, judges=("a", "b"))
    draw((right, threes), tmp_path / "study", "--size", "1")
    with pytest.raises(FileNotFoundError, match="has no answers"):
        score_ab_study(tmp_path / "study")
