import json

import pytest
import soundfile
from support import wavreward_eval_world
from support.refusals import check_refused

from sdiareward.cli import main
from sdiareward.common.files import unseal
from sdiareward.judges.wavreward.judge import Judgement
from sdiareward.judges.wavreward.predictions import Asking, predict, read_predictions
from sdiareward.judges.wavreward.scores import predict_scores, read_out_of_domain, read_samples


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return wavreward_eval_world.write_chatreward(tmp_path_factory.mktemp("chatreward"))


def write_recordings(folder):
    """Write three recordings and the list of their scores."""
    folder.mkdir()
    for number, level in enumerate((0.2, 0.05, 0.01)):
        soundfile.write(folder / f"{number}.wav", wavreward_eval_world.noise(level, number), 16_000)
    (folder / "scores.csv").write_text("file,score\n0.wav,5\n1.wav,3\n2.wav,1\n")
    return folder


@pytest.fixture
def outside(tmp_path):
    return write_recordings(tmp_path / "recordings")


class LoudnessJudge:
    """Score by how loud the end of a recording is; write down what was asked for."""

    def __init__(self, stop_after=None):
        self.calls = []
        self.stop_after = stop_after

    def judge(self, recordings, *, num_samples, temperature, expected, max_new_tokens, seed):
        if self.stop_after is not None and len(self.calls) >= self.stop_after:
            raise KeyboardInterrupt
        self.calls.append((len(recordings), seed))
        return [self._judgement(array, seed) for array in recordings]

    def _judgement(self, array, seed):
        level = array[-1600:].std()
        score = 5 if level > 0.1 else 3 if level > 0.02 else 1
        return Judgement(score, None, (score,), (f"{score} with seed {seed}",), True, 4, 0.1)


def many_samples(folder, count):
    rows = wavreward_eval_world.make_scenarios(range(-(-count // 3)), (("content", None),))[:count]
    wavreward_eval_world.write_split(folder, "test", rows)
    return read_samples(folder, "test")


def test_samples_have_labels_and_encoded_audio(data):
    samples = read_samples(data, "test")
    assert len(samples) == 12
    assert samples.labels[0]["sample_id"] == "content-3-5"
    assert samples.labels[0]["duration_s"] == 1.5
    assert samples[0]["audio"]["bytes"]
    assert [label["score"] for label in samples.take_first(2).labels] == [5, 3]


def test_a_prediction_holds_the_labels_and_the_judgement_of_a_sample(tmp_path, data):
    found, skipped = predict(LoudnessJudge, read_samples(data, "test"), tmp_path / "predictions.jsonl", Asking())
    assert skipped == []
    assert [record["predicted"] for record in found] == [record["score"] for record in found]
    assert set(found[0]) == {
        *("sample_id", "scenario_id", "part", "attribute", "category", "score", "duration_s"),
        *("predicted", "expected_score", "scores", "text", "follows_format", "num_tokens", "seconds"),
        *("num_cut", "problem", "changed_parameters"),
    }
    lines = (tmp_path / "predictions.jsonl").read_text().splitlines()
    assert [json.loads(unseal(line.encode())) for line in lines] == found


def test_a_resumed_run_scores_the_missing_samples_and_gives_the_same_result(tmp_path):
    samples = many_samples(tmp_path / "data", 80)
    whole, _ = predict(LoudnessJudge, samples, tmp_path / "whole.jsonl", Asking(seed=7))
    path = tmp_path / "stopped.jsonl"
    with pytest.raises(KeyboardInterrupt):
        predict(lambda: LoudnessJudge(stop_after=2), samples, path, Asking(seed=7))
    # The kill tore the last line as well.
    path.write_text(path.read_text()[:-9])
    judge = LoudnessJudge()
    found, _ = predict(lambda: judge, samples, path, Asking(seed=7))
    assert found == whole
    # The second chunk is asked again whole, with its own seed; the first is not.
    assert judge.calls == [(32, 39), (16, 71)]
    assert len(path.read_text().splitlines()) == 80


def test_a_finished_run_loads_no_judge(tmp_path, data):
    def load():
        raise AssertionError("the judge was loaded")

    samples = read_samples(data, "test")
    first = predict(LoudnessJudge, samples, tmp_path / "predictions.jsonl", Asking())
    assert predict(load, samples, tmp_path / "predictions.jsonl", Asking()) == first


def test_an_unreadable_recording_is_skipped_with_its_reason(tmp_path):
    rows = wavreward_eval_world.make_scenarios([0], (("content", None),))
    rows[1]["audio"] = {"bytes": b"no audio", "path": None}
    wavreward_eval_world.write_split(tmp_path / "data", "test", rows)
    samples = read_samples(tmp_path / "data", "test")
    judge = LoudnessJudge()
    for _ in range(2):
        found, skipped = predict(lambda: judge, samples, tmp_path / "predictions.jsonl", Asking())
    assert [record["score"] for record in found] == [5, 1]
    assert [record["sample_id"] for record in skipped] == ["content-0-3"]
    assert skipped[0]["kind"] == "unreadable"
    assert "cannot be decoded" in skipped[0]["reason"]
    assert len((tmp_path / "skipped_predictions.jsonl").read_text().splitlines()) == 1
    assert len(judge.calls) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 0}, "num_samples"),
        ({"temperature": -1.0}, "temperature"),
        ({"num_samples": 2}, "without a temperature"),
    ],
)
def test_invalid_sampling_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Asking(**options)


def test_out_of_domain_recordings_are_read_from_csv_or_json_lines(outside):
    samples = read_out_of_domain(outside, "test")
    assert [(label["sample_id"], label["score"]) for label in samples.labels] == [
        ("0.wav", 5),
        ("1.wav", 3),
        ("2.wav", 1),
    ]
    assert samples.labels[0]["duration_s"] == pytest.approx(0.2)
    (outside / "scores.csv").unlink()
    (outside / "scores.jsonl").write_text('{"file": "2.wav", "score": 2, "scenario_id": "s"}\n')
    assert read_out_of_domain(outside, "test").labels[0] == {
        "sample_id": "2.wav",
        "scenario_id": "s",
        **dict.fromkeys(("part", "attribute", "category")),
        "score": 2,
        "duration_s": pytest.approx(0.2),
    }


def test_a_scenario_may_have_the_number_zero(outside):
    (outside / "scores.csv").unlink()
    entries = [
        {"file": f"{number}.wav", "score": 2, "scenario_id": scenario} for number, scenario in enumerate([0, "", 1])
    ]
    (outside / "scores.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert [label["scenario_id"] for label in read_out_of_domain(outside, "test").labels] == ["0", None, "1"]


def test_out_of_domain_samples_may_be_another_data_set(data):
    assert len(read_out_of_domain(data, "test")) == 12


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("scores.csv", "file,score\n0.wav,5\n1.wav,7\n", "entry 2: its score is 7"),
        ("scores.csv", "file,score\n0.wav,good\n", "entry 1: its score is 'good'"),
        ("scores.csv", "file,score\nnone.wav,5\n", "none.wav does not exist"),
        ("scores.csv", "name,score\n0.wav,5\n", "entry 1: has no file"),
        ("scores.csv", "file,score\n", "lists no recording"),
        ("scores.csv", "file,score\n0.wav,5\n0.wav,4\n", "sample 0.wav is listed twice"),
        ("scores.jsonl", '{"file": "0.wav", "score": 5}\n{"file"\n', "several lists"),
        ("only.jsonl", '{"file": "0.wav", "score": 5}\n{"file"\n', "entry 2: not JSON"),
        ("only.jsonl", '{"file": "0.wav", "score": 2.5}\n', "entry 1: its score is 2.5"),
    ],
)
def test_an_invalid_list_is_refused_with_its_entry(outside, name, text, message):
    if name.startswith("only"):
        (outside / "scores.csv").unlink()
    (outside / name).write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_out_of_domain(outside, "test")


def test_the_baselines_find_scores_that_words_and_loudness_reveal(data):
    train, test = read_samples(data, "train"), read_samples(data, "test")
    gold = [label["score"] for label in test.labels]
    assert predict_scores("most_frequent", train, test) == [1] * 12
    assert predict_scores("acoustic", train, test) == gold
    # Answers of 5 and 3 have the same words here: reading cannot tell them apart.
    text = predict_scores("text", train, test)
    assert [score == 1 for score in text] == [score == 1 for score in gold]
    assert len({score for score in text if score != 1}) == 1


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory, data, tiny_judge):
    """Evaluate a random judge of a few thousand parameters; give the arguments and the folder."""
    folder = tmp_path_factory.mktemp("evaluated")
    outside = write_recordings(folder / "recordings")
    arguments = ["--model", tiny_judge, "--dataset", data, "--output_dir", folder / "eval"]
    arguments += ["--out_of_domain", outside, "--max_new_tokens", 4, "--num_bootstrap", 50, "--no-reasoning"]
    arguments = [str(argument) for argument in arguments]
    assert main(["wavreward", "eval", *arguments]) == 0
    return arguments, folder / "eval"


def test_the_command_evaluates_a_real_thinker_and_resumes(evaluated, capsys):
    arguments, folder = evaluated
    results = json.loads((folder / "results.json").read_text())
    assert list(results["scorers"]) == ["judge", "most_frequent", "text", "acoustic"]
    judge = results["scorers"]["judge"]
    assert (judge["overall_micro"]["num_samples"], judge["columns"]["out_of_domain"]["num_samples"]) == (12, 3)
    assert results["scorers"]["acoustic"]["overall_micro"]["accuracy"] == 1.0
    assert results["scorers"]["acoustic"]["columns"]["out_of_domain"] is None
    assert results["scorers"]["most_frequent"]["columns"]["out_of_domain"]["accuracy"] == pytest.approx(1 / 3)
    assert results["run"]["reasoning"] is False
    lines = {name: (folder / name).read_text().splitlines() for name in ("predictions.jsonl", "out_of_domain.jsonl")}
    assert [len(found) for found in lines.values()] == [12, 3]
    assert read_predictions(folder) == [json.loads(unseal(line.encode())) for line in lines["predictions.jsonl"]]
    (folder / "predictions.jsonl").write_text("\n".join(lines["predictions.jsonl"][:5]) + "\n")
    assert main(["wavreward", "eval", *arguments]) == 0
    again = json.loads((folder / "results.json").read_text())
    for name in ("columns", "overall_micro", "overall_macro"):
        assert again["scorers"]["judge"][name] == judge[name]
    assert capsys.readouterr().out.endswith((folder / "results.md").read_text())


def test_the_report_names_columns_counts_and_absent_columns(evaluated):
    report = (evaluated[1] / "results.md").read_text()
    head = next(line for line in report.splitlines() if line.startswith("|"))
    columns = ["content", "age", "volume", "implicit", "out of domain", "micro", "macro", "macro with out of domain"]
    assert [cell.strip() for cell in head.strip("|").split("|")] == ["", *columns]
    assert "| samples | 3 | 3 | 3 | 3 | 3 | 12 |  |  |" in report
    # No answer of four tokens has a score.
    assert "| **judge** | - | - | - | - | - | - | - | - |" in report
    assert "| cut | 3 | 3 | 3 | 3 | 3 | 12 |  |  |" in report and "12 of these were cut at the token limit" in report
    assert "| **acoustic** | 100.00 | 100.00 | 100.00 | 100.00 | - | 100.00 | 100.00 | - |" in report
    assert "No samples of accent, language, gender, emotion, pitch, speed, audio" in report
    assert "Baselines were fitted on 36 training samples" in report
    assert "## Scores of the judge, out of domain" in report


def test_a_run_with_other_settings_is_refused_in_the_same_folder(evaluated, capsys):
    arguments, _ = evaluated
    message = "results of another run .*max_new_tokens was 4, is 5"
    assert check_refused(capsys, message, main, [*arguments, "--max_new_tokens", "5"])


def test_a_training_split_that_shares_scenarios_is_refused(tmp_path, data, tiny_judge, capsys):
    arguments = ["--model", tiny_judge, "--dataset", data, "--output_dir", tmp_path / "eval"]
    arguments += ["--max_new_tokens", 1, "--limit", 3, "--train_split", "test"]
    assert check_refused(
        capsys, "share 1 scenarios, such as 'content-3'", main, [str(argument) for argument in arguments]
    )


def test_predictions_of_an_unfinished_evaluation_are_refused(tmp_path):
    (tmp_path / "predictions.jsonl").write_text("")
    with pytest.raises(FileNotFoundError, match="has no results.json"):
        read_predictions(tmp_path)
