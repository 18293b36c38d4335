import json
from collections import Counter

import pytest
import soundfile
from support import wavreward_eval_world

from sdiareward.cli import main
from sdiareward.evaluation.human.study import Study
from sdiareward.judges.wavreward.ab_study import (
    pair_scores,
    render_ab_study,
    sample_ab_study,
    score_ab_study,
    summarise_ab_study,
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


def rate(study, rater, choose):
    """Answer every item of a study as its page does."""
    study = Study(study)
    for item in study.content["items"]:
        study.save(rater, item=item["item"], choice=choose(item), heard=["context"])


def test_only_samples_with_different_scores_are_drawn_and_others_counted(evaluations, tmp_path, capsys):
    _, key = draw(evaluations, tmp_path / "study")
    # 36 samples: 12 of score 3, where both say 3, and one without a score.
    assert (key["num_shared"], key["num_equal"], key["num_without_score"]) == (36, 12, 1)
    assert len(key["items"]) == 23
    assert all(truth["first"] != truth["second"] for truth in key["items"].values())
    letters = Counter(truth["chosen_is"] for truth in key["items"].values())
    assert abs(letters["a"] - letters["b"]) <= 1
    assert capsys.readouterr().out.splitlines()[:2] == [
        "36 samples scored by both judges, 23 to draw from",
        "age 6, content 5, implicit 6, volume 6",
    ]


def test_a_small_study_is_spread_over_columns_and_scenarios(evaluations, tmp_path):
    _, key = draw(evaluations, tmp_path / "study", "--size", "8", "--seed", "3")
    assert set(Counter(truth["subset"] for truth in key["items"].values()).values()) == {2}
    scenarios = [truth["scenario_id"] for truth in key["items"].values()]
    assert len(set(scenarios)) == len(scenarios)


def test_equal_scores_are_drawn_on_request(evaluations, tmp_path):
    _, key = draw(evaluations, tmp_path / "study", "--all")
    assert (len(key["items"]), key["num_equal"]) == (35, 0)


def test_raters_see_two_scores_of_one_recording_but_no_judge(evaluations, tmp_path):
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
        assert turn["text"].startswith("Question: what time is it in town")
        assert "\nAnswer: " in turn["text"]
    seen = json.dumps({**study, "texts": None})
    for word in ("chosen", "first", "second", "judge", "right", "threes", "content-", "scenario", "gold"):
        assert word not in seen


def test_the_same_seed_writes_the_same_bytes(evaluations, tmp_path):
    def content(name, *more):
        draw(evaluations, tmp_path / name, "--size", "6", *more)
        return {path.name: path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()}

    assert content("one") == content("two")
    assert content("one-more", "--seed", "1").keys() & content("three").keys() == {"study.json", "key.json"}


def test_the_command_prints_the_share_of_answers_that_prefer_the_first_judge(evaluations, tmp_path, capsys):
    study = tmp_path / "study"
    _, key = draw(evaluations, study, "--size", "8")
    first_is = {name: truth["chosen_is"] for name, truth in key["items"].items()}
    rate(study, "ann", lambda item: first_is[item["item"]])
    rate(study, "bob", lambda item: "tie")
    capsys.readouterr()
    assert main(["human", "score", str(study)]) == 0
    results = json.loads((study / "results.json").read_text())
    overall = results["overall"]
    assert (overall["num_answers"], overall["win"]["num"], overall["lose"]["num"], overall["tie"]["num"]) == (
        16,
        8,
        0,
        8,
    )
    assert overall["win"]["share"] == 0.5
    assert (overall["decided"]["share"], overall["decided"]["num_answers"]) == (1.0, 8)
    # Eight scenarios, all won: Wilson's interval of 8 in 8.
    assert overall["decided"]["interval"] == pytest.approx([0.6756, 1.0], abs=1e-4)
    assert results["by_majority"] == {"win": 8, "lose": 0, "tie": 0}
    assert set(results["columns"]) == {"content", "age", "volume", "implicit"}
    assert results["raters"]["ann"]["agreement"] == 1.0
    assert results["raters"]["ann"]["num_not_heard"] == 0
    assert results["inter_rater"]["percent_agreement"] == 0.0
    assert capsys.readouterr().out == (study / "results.md").read_text()
    assert "8 samples won, 0 lost, 0 tied" in (study / "results.md").read_text()


def made_up(choices):
    """A key of two items, first judge A and B, in one scenario each, and answers to them by rater."""
    items = {
        name: {"chosen_is": letter, **wavreward_eval_world.prediction(number, 5, 5), "subset": "content"}
        for number, (name, letter) in enumerate({"i": "a", "j": "b"}.items())
    }
    counts = {"num_shared": 2, "num_equal": 0, "num_without_score": 0}
    key = {"study": "s", "form": "scores", "seed": 0, "judges": ["one", "other"], **counts, "items": items}
    return key, {
        rater: {item: {"choice": choice, "heard": []} for item, choice in given.items()}
        for rater, given in choices.items()
    }


def test_the_letter_of_the_first_judge_decides_wins_and_losses():
    found = summarise_ab_study(*made_up({"ann": {"i": "a", "j": "a"}, "bob": {"i": "a", "j": "tie"}}))
    assert {name: found["overall"][name]["num"] for name in ("win", "lose", "tie")} == {"win": 2, "lose": 1, "tie": 1}
    assert found["overall"]["decided"]["share"] == pytest.approx(2 / 3)
    assert found["by_majority"] == {"win": 1, "lose": 1, "tie": 0}
    assert found["raters"]["ann"]["num_not_heard"] == 2


def test_without_decided_answers_there_is_no_share_of_wins():
    found = summarise_ab_study(*made_up({"ann": {"i": "tie"}}))
    assert found["overall"]["decided"] is None
    assert found["by_majority"] == {"win": 0, "lose": 0, "tie": 1}
    cells = "1 | 0.00 | no interval | 1 | 0.00 | no interval | 1 | 100.00 | no interval | 0 | - | - |"
    assert f"| **all** | 1 | {cells}" in render_ab_study(found)


def test_a_study_without_samples_is_refused(evaluations, tmp_path, data, capsys):
    right, threes = evaluations
    assert main(["human", "ab", str(right), str(right), "--output_dir", str(tmp_path / "same")]) == 2
    assert "the two judges agree on all samples" in capsys.readouterr().err
    assert main(["human", "ab", str(right), str(tmp_path), "--output_dir", str(tmp_path / "none")]) == 2
    assert "has no predictions.jsonl" in capsys.readouterr().err
    pairs, _ = pair_scores([wavreward_eval_world.prediction(77, 5, 5)], [wavreward_eval_world.prediction(77, 5, 3)])
    with pytest.raises(ValueError, match="1 of 1 samples are not in the data"):
        sample_ab_study(pairs, read_samples(data, "test"), tmp_path / "x", seed=0, size=1, judges=("a", "b"))
    draw((right, threes), tmp_path / "study", "--size", "1")
    with pytest.raises(FileNotFoundError, match="holds no answers"):
        score_ab_study(tmp_path / "study")
