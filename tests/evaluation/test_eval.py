"""`eval.py` from end to end, with a scorer that hears only the noise."""

import io
import json
import re
import shutil
import types
from functools import partial

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from support.keys import write_keys
from support.refusals import check_refused

import sdiareward.scoring.scorer
from sdiareward import eval as evaluation
from sdiareward.audio_sdiareward import AudioError, Heard, is_silent
from sdiareward.checkpoint_io.training_record import write_pairs_record
from sdiareward.common.package import NANO
from sdiareward.evaluation import scores
from sdiareward.evaluation.calibrate import find_calibration_warnings
from sdiareward.evaluation.scores import read_evaluation
from sdiareward.evaluation.summary import find_heard
from sdiareward.pairs import labels
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.schema import features
from sdiareward.scoring.scorer import Features


RATE = 16_000
# Eight test pairs: (subset, synthesizer).
TEST_PAIRS = [("wild", "known"), ("wild", "new"), ("semi_wild", "known"), ("semi_wild", "new")]
TEST_PAIRS += [("scripted", "known")] * 2 + [("colloquialness", "known")] * 2


def encode(signal):
    buffer = io.BytesIO()
    soundfile.write(buffer, signal, RATE, format="FLAC")
    return {"bytes": buffer.getvalue(), "path": None}


def audio(seed, noise):
    generator, time_s = np.random.default_rng(seed), np.arange(int(0.3 * RATE)) / RATE
    tone = 0.1 * np.sin(2 * np.pi * generator.uniform(90, 250) * time_s)
    return encode(tone + noise * generator.normal(size=len(time_s)))


def tone(duration_s, level=0.1):
    return encode(level * np.sin(np.arange(int(duration_s * RATE)) / 9))


def pair(split, number, subset, synthesizer):
    """Return a pair whose rejected side is noisier; of colloquialness it says something else, too."""
    criterion = "colloquialness" if subset == "colloquialness" else "modality"
    texts, seed = ("um", "um" if criterion == "modality" else "indeed"), 100 * number + (split == "test")
    about = {"pair_id": f"{split}-{number}", "criterion": criterion, "subset": subset, "source": "made_up"}
    for half, (side, text, noise) in enumerate(zip(("chosen", "rejected"), texts, (0.002, 0.02), strict=True)):
        sounds = [audio(seed + 10 * half + turn, noise) for turn in range(2)]
        turn = {"text": f"{text} number {number}", "duration_s": 0.3}
        roles = zip(("user", "assistant"), sounds, strict=True)
        about[side] = [{**turn, "role": role, "audio": sound} for role, sound in roles]
    return {**about, "synthesizer": synthesizer, "group_id": f"{split}-group-{number}", "license": "CC0-1.0"}


def write_split(folder, split, rows):
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=features().arrow_schema), folder / f"{split}.parquet")


def make_test_rows():
    return [pair("test", number, *what) for number, what in enumerate(TEST_PAIRS)]


class StubScorer:
    """Prefers the chosen side by its noise floor."""

    num_scored = 0

    def __init__(self):
        self.audio_s = 0.0
        self.processor = types.SimpleNamespace(max_turn_s=0.3)

    def iter_features(self, dialogues, criterion, *, groups, skipped):
        assert len(dialogues) == len(criterion) == len(groups)
        # Not in order, and both sides of a pair apart.
        for index in sorted(range(len(dialogues)), key=lambda index: (index % 2, -index)):
            StubScorer.num_scored += 1
            try:
                sounds = [clip.read() for turn in dialogues[index].turns for clip in turn.clips]
            except AudioError as error:
                skipped[index] = f"turn 1: {error}"
                continue
            durations_s = [len(sound) / RATE for sound in sounds]
            self.audio_s += sum(durations_s)
            cut = tuple(turn for turn, duration_s in enumerate(durations_s, start=1) if duration_s > 0.3)
            silent = tuple(turn for turn, sound in enumerate(sounds, start=1) if is_silent(sound))
            heard = Heard(sum(durations_s), sum(min(each, 0.3) for each in durations_s), len(sounds), cut, silent)
            yield index, Features(np.zeros(1), -float(np.abs(np.diff(sounds[0])).mean()), heard=heard)


def evaluate(folder, *flags, **keys):
    """Evaluate the stub on `folder/pairs` into `folder/out`; return the exit code and the folder of results."""
    out = folder / "out"
    required = ["--model", folder / "checkpoint", "--dataset", folder / "pairs", "--output_dir", out]
    return evaluation.main([*map(str, required), *write_keys(folder, num_bootstrap=5, **keys), *flags]), out


def make_world(folder):
    subsets = ["wild", "semi_wild", "scripted", "colloquialness"] * 2
    write_split(folder / "pairs", "train", [pair("train", n, subset, "known") for n, subset in enumerate(subsets)])
    write_split(folder / "pairs", "test", make_test_rows())
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "config.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def stubbed(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        patch.setattr(sdiareward.scoring.scorer.Scorer, "from_pretrained", lambda *args, **kwargs: StubScorer())
        yield patch


@pytest.fixture(scope="module")
def made(stubbed, tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("made"))


@pytest.fixture
def world(made, tmp_path, monkeypatch):
    """Return a copy of the pairs and the checkpoint; figures are drawn by other tests."""
    monkeypatch.setattr(StubScorer, "num_scored", 0)
    monkeypatch.setattr("sdiareward.evaluation.evaluation.plot_rewards", lambda records, path: path.touch())
    for name in ("pairs", "checkpoint"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def run(world):
    return partial(evaluate, world)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_results(out):
    return json.loads((out / "results.json").read_text())


@pytest.fixture(scope="module")
def finished(stubbed, tmp_path_factory):
    """Evaluate with everything: a page, another evaluation and a log of training, and recordings of every kind."""
    folder = make_world(tmp_path_factory.mktemp("finished"))
    rows = make_test_rows()
    rows[2]["chosen"][1]["audio"] = tone(0.3, 0.0)
    rows[3]["rejected"][0]["audio"], rows[3]["rejected"][1]["audio"] = tone(0.4), tone(0.5)
    rows[5]["rejected"][1]["audio"]["bytes"] = b"not audio"
    write_split(folder / "pairs", "test", rows)
    code, out = evaluate(folder, "--no_baselines")
    assert code == 0 and list(read_results(out)["accuracies"]) == ["model"]
    shutil.copytree(out, folder / "other")
    log = folder / "run.json"
    history = [{"step": 10, "mean_reward": 0.5, "margin": 1.0}]
    log.write_text(json.dumps({"training": {"center_rewards_coefficient": 0.01}, "history": history}))
    StubScorer.num_scored = 0
    shown = ["--report", "--compare", str(folder / "other")]
    assert evaluate(folder, *shown, "--strict", training=[str(log)]) == (1, out)
    # The broken pair is tried again, no other.
    assert StubScorer.num_scored == 2
    return out


@pytest.mark.slow
def test_an_evaluation_writes_scores_results_and_figure(finished):
    found = lines(finished / "scores.jsonl")
    assert {line["pair_id"] for line in found} == {f"test-{number}" for number in (0, 1, 2, 3, 4, 6, 7)}
    assert all(line["margin"] == line["chosen"] - line["rejected"] for line in found)
    assert {"criterion", "subset", "source", "synthesizer", "group_id"} <= set(found[0])
    results = read_results(finished)
    accuracies = results["accuracies"]
    assert (accuracies["model"]["colloquialness"], accuracies["acoustic"]["wild"]) == (1.0, 1.0)
    assert (accuracies["text"]["modality_micro"], accuracies["text"]["num_ties"]["modality_micro"]) == (0.0, 5)
    assert accuracies["text"]["colloquialness"] == 1.0
    assert results["left_out_synthesizers"] == ["new"] and results["timing"]["real_time_factor"] > 0
    assert results["config"]["seed"] == 0 and "torch" in results["versions"]
    assert (finished / "rewards.png").read_bytes().startswith(b"\x89PNG") and not list(finished.glob(".*"))


@pytest.mark.slow
def test_skipped_cut_and_silent_recordings_and_others_are_in_results_markdown_and_page(finished):
    (skipped,) = lines(finished / "skipped.jsonl")
    assert (skipped["pair_id"], skipped["kind"]) == ("test-5", "unreadable")
    assert skipped["reason"].startswith("rejected: turn 1: ") and "cannot be decoded" in skipped["reason"]
    results = read_results(finished)
    assert results["num_skipped"]["scripted"] == 1
    assert {result["num_pairs"]["scripted"] for result in results["accuracies"].values()} == {1}
    assert results["cut"] == {
        **{"max_turn_s": 0.3, "num_recordings": 28, "num_cut": 2, "num_pairs": 1},
        **{"given_s": pytest.approx(28 * 0.3 + 0.3), "heard_s": pytest.approx(28 * 0.3)},
        "silent_turns": ["test-2 chosen turn 2"],
    }
    cut = "2 of 28 recordings, in 1 pairs, are longer than 0.3 s: the model heard the first 0.3 s of each"
    for sentence in (cut, "Nothing was heard in 1 turns (test-2 chosen turn 2).", "1 pairs were skipped"):
        for name in ("results.md", "report/index.html"):
            assert sentence in (finished / name).read_text()
    report = json.loads((finished / "report" / "report.json").read_text())
    assert [row["kind"] for row in report["scorers"]] == ["model", "compared", "baseline", "baseline"]
    assert report["comparisons"][0]["difference"] == results["disagreements"][0]["num_pairs"] == 0
    assert report["training"][0]["train"] == [{"step": 10, "chosen": 1.0, "rejected": 0.0, "margin": 1.0}]
    assert (finished / "report" / "index.html").read_text().count("data:audio/mpeg;base64,") == 0


def write_unlabelled(folder, num_pairs=4):
    """Write pairs of two paths a side and nothing else; return the table."""
    folder.mkdir(exist_ok=True)
    rows = [{side: f"{number}-{side}.flac" for side in ("chosen", "rejected")} for number in range(num_pairs)]
    for number, row in enumerate(rows):
        for side, noise in (("chosen", 0.002), ("rejected", 0.02)):
            (folder / row[side]).write_bytes(audio(number, noise)["bytes"])
    (folder / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "own.jsonl"


def test_a_table_that_moved_resumes_and_only_a_recording_that_changed_is_scored_again(run, world):
    _, out = run("--dataset", str(write_unlabelled(world / "own", 2)))
    first = lines(out / "scores.jsonl")
    (world / "own").rename(world / "moved")
    StubScorer.num_scored = 0
    assert run("--dataset", str(world / "moved" / "own.jsonl"))[0] == 0
    assert StubScorer.num_scored == 0 and lines(out / "scores.jsonl") == first
    (world / "moved" / "1-rejected.flac").write_bytes(audio(7, 0.05)["bytes"])
    assert run("--dataset", str(world / "moved" / "own.jsonl"))[0] == 0
    again = lines(out / "scores.jsonl")
    assert StubScorer.num_scored == 2 and again[0] == first[0]
    assert again[1]["pair_id"] == first[1]["pair_id"] and again[1]["rejected"] != first[1]["rejected"]


@pytest.mark.slow
def test_baselines_are_computed_once_and_again_of_recordings_that_changed(run, world, monkeypatch):
    def read(out):
        return [list(sides.values()) for sides in json.loads((out / "acoustic.json").read_text())["scores"].values()]

    before = read(run()[1])
    with monkeypatch.context() as patch:
        patch.setattr("sdiareward.evaluation.baselines.score_baseline", None)
        assert run()[0] == 0
    rows = make_test_rows()
    rows[2]["chosen"], rows[2]["rejected"] = rows[2]["rejected"], rows[2]["chosen"]
    write_split(world / "pairs", "test", rows)
    before[2].reverse()
    np.testing.assert_allclose(read(run()[1]), before)


def test_a_run_of_another_identity_is_not_resumed(run, world, capsys):
    run("--no_baselines")
    for change, flags in (("pairs", ["--max_samples", "4"]), ("dtype", ["--dtype", "bfloat16"]), ("model", [])):
        if change == "model":
            (world / "checkpoint" / "config.json").write_text('{"pooling_mode": "mean"}')
        message = rf"results of another run \({change} was .*another output_dir"
        assert check_refused(capsys, message, run, "--no_baselines", *flags)


def test_a_run_in_which_nothing_can_be_scored_says_the_first_reason(run, world, capsys):
    row = make_test_rows()[0]
    row["chosen"][0]["audio"]["bytes"] = b"no"
    write_split(world / "pairs", "test", [row])
    assert check_refused(capsys, "the first: chosen: turn 1: .*skipped.jsonl", run, "--no_baselines")


@pytest.mark.slow
def test_own_pairs_without_labels_have_one_column_and_baselines_only_of_other_data(run, world, capsys):
    own, other = write_unlabelled(world / "own"), write_unlabelled(world / "other", 6)
    _, out = run("--dataset", str(own), "--report")
    printed = capsys.readouterr().out
    assert f"- No baselines: {own} has one split; give pairs to fit them on with the key baseline_data" in printed
    assert re.search(r"\| scorer +\| +all \|", printed)
    assert not any(title in printed for title in ("wild", "scripted", "micro", "colloq"))
    page = (out / "report" / "index.html").read_text()
    assert "<dt>" not in page and not any(title in page for title in (">wild<", "modality micro", "overall "))
    run("--dataset", str(own), baseline_data=str(other))
    assert "fitted on few pairs (6 of joint); ignore their numbers" in capsys.readouterr().out
    assert read_results(out)["baselines"]["acoustic"]["num_train"] == {"joint": 6}
    assert check_refused(capsys, "share 4 pair_id", partial(run, baseline_data=str(own)), "--dataset", str(own))


@pytest.mark.slow
def test_held_out_is_what_the_training_of_the_model_did_not_hear(run, world, capsys):
    record = world / "checkpoint" / "run.json"
    record.write_text(json.dumps({"trained_on": {"num_pairs": 3, "synthesizers": ["new"]}}))
    _, out = run("--no_baselines")
    results = read_results(out)
    assert (results["left_out_synthesizers"], results["heard_from"]) == (["known"], "model")
    assert "Held out of the model's training: known." in capsys.readouterr().out
    # Of a model without a record, the data set's training split counts, and is named.
    record.unlink()
    shutil.rmtree(out)
    # The results beside the model name what it heard, too, and are there for its card.
    beside = world / "checkpoint" / "results.json"
    assert json.loads(beside.read_text()) == results and (world / "checkpoint" / "rewards.png").exists()
    beside.unlink()
    results = read_results(run()[1])
    assert (results["left_out_synthesizers"], results["heard_from"]) == (["new"], "split")
    assert "Held out of the split train, as the model's training is not known: new." in capsys.readouterr().out


def test_the_published_evaluation_of_a_model_tells_what_it_heard(tmp_path):
    heard, _, heard_from = find_heard(str(NANO), None)
    assert "flite" in heard and "hibari" not in heard and heard_from == "model"
    assert find_heard(str(tmp_path), None) == (None, None, None)
    # Training pairs without the column do not tell either.
    (tmp_path / "run.json").write_text(json.dumps({"trained_on": {"num_pairs": 3, "synthesizers": None}}))
    assert find_heard(str(tmp_path), None)[0] is None


def test_a_mistake_is_refused_by_name_before_anything_is_scored(run, capsys):
    assert check_refused(capsys, "Unknown option: --splt. Did you mean --split", run, "--splt", "test")
    assert check_refused(capsys, "other: has no scores.jsonl", run, "--report", "--compare", "other")
    for split, message in (("test", "share 8 pair_id"), ("trian", "trian")):
        assert check_refused(capsys, message, partial(run, train_split=split))
    assert StubScorer.num_scored == 0


def test_a_reward_that_is_not_a_number_stops_the_run_unless_it_is_to_count_as_wrong(run, monkeypatch, capsys):
    def broken(self, dialogues, criterion, **options):
        rewards = [float("nan"), *range(-1, -len(dialogues), -1)]
        yield from ((index, Features(np.zeros(1), reward)) for index, reward in enumerate(rewards))

    monkeypatch.setattr(StubScorer, "iter_features", broken)
    assert check_refused(capsys, "1 pairs have a missing or non-finite reward", run, "--no_baselines")
    accuracies = read_results(run("--no_baselines", nan="wrong")[1])["accuracies"]["model"]
    assert (accuracies["num_invalid"]["wild"], accuracies["overall_micro"]) == (1, 7 / 8)


def test_labels_of_pairs_are_those_of_the_table_else_made_from_it():
    side = [{"role": "user", "text": "hi"}]
    pairs = datasets.Dataset.from_list([{"chosen": side, "rejected": side, "id": "mine", "source": "somewhere"}])
    about = {"criterion": "joint", "subset": "all", "source": "somewhere", "synthesizer": None, "group_id": None}
    assert labels.describe_pairs(pairs) == [{"pair_id": "mine", **about}]
    (label,) = labels.describe_pairs(pairs.remove_columns(["id", "source"]))
    assert re.fullmatch("[0-9a-f]{16}", label["pair_id"])
    # A pair of no subset stays so whatever its source; else the source tells.
    named = [("all", "dailytalk"), *((None, source) for source in ("youtube", "meld", "dailytalk"))]
    rows = [{"pair_id": str(n), "subset": subset, "source": source} for n, (subset, source) in enumerate(named)]
    for found in (labels.describe_pairs(datasets.Dataset.from_list(rows)), labels.describe_origins(rows)):
        assert [each["subset"] for each in found] == ["all", "wild", "semi_wild", "scripted"]
    misspelt = [{"pair_id": "a", "subset": "wlid"}]
    for broken, message in ((misspelt, "row 0: subset is 'wlid'; give one of wild"), ([rows[0]] * 2, "rows 0 and 1")):
        with pytest.raises(ValueError, match=message):
            labels.describe_pairs(datasets.Dataset.from_list(broken))


def test_pairs_that_were_trained_on_are_counted_and_named_beside_the_accuracy(run, world, capsys):
    rows = [{**row, "group_id": None} for row in make_test_rows()]
    rows[4]["group_id"] = "call"
    others = [{**pair("train", 50 + number, "wild", "known"), "group_id": None} for number in range(5)]
    # Pair 0 as it is, pair 1 renamed, swapped and under another criterion; of 2 the id, of 3 a side, of 4 the call, of
    # 5 the prompt, of 6 the recording of an answer.
    renamed = {**rows[1], "pair_id": "x", "criterion": "joint", "subset": "all"}
    renamed |= {"chosen": rows[1]["rejected"], "rejected": rows[1]["chosen"]}
    changed = [{"pair_id": "test-2"}, {"chosen": rows[3]["chosen"]}, {"group_id": "call"}]
    prompt, answer = rows[5]["rejected"][0], {**rows[6]["chosen"][1], "text": "other words"}
    changed += [{"rejected": [prompt, others[3]["chosen"][1]]}, {"chosen": [others[4]["chosen"][0], answer]}]
    trained = [rows[0], renamed, *({**row, **change} for row, change in zip(others, changed, strict=True))]
    write_split(world / "trained", "train", trained)
    write_split(world / "pairs", "test", rows)
    run("--no_baselines")
    assert "training pairs of this model are not recorded" in capsys.readouterr().out
    write_pairs_record(world / "checkpoint", load_pairs(world / "trained", "train"), [], is_trained=False)
    # A single file has no splits.
    file = ("--dataset", str(world / "pairs" / "test.parquet"))
    run("--no_baselines", *file, "--output_dir", str(world / "new"))
    expected = {"content": ["test-0", "test-1"], "pair_id": ["test-2"], "side": ["test-3"], "group_id": ["test-4"]}
    expected |= {"prompt": ["test-5"], "recording": ["test-6"]}
    overlap = read_results(world / "new")["overlap"]
    assert {name: overlap[name] for name in expected} == expected and overlap["others"]["num_pairs"] == 1
    printed = capsys.readouterr().out
    assert "2 of these 8 pairs were training pairs" in printed and "split test" not in printed
    warnings = find_calibration_warnings(read_evaluation(world / "new"), world / "checkpoint")
    assert "were training pairs" in " ".join(warnings)
    assert run(*file, "--split", "test")[0] == 2


@pytest.mark.parametrize(
    ("criteria", "chosen"), [(["modality"], "modality"), (["joint", "modality"], "joint"), (None, "joint")]
)
def test_pairs_without_a_criterion_are_scored_under_the_one_of_the_training(tmp_path, monkeypatch, criteria, chosen):
    if criteria:
        (tmp_path / "run.json").write_text(json.dumps({"trained_on": {"criteria": criteria}}))
    pairs = datasets.Dataset.from_dict({"pair_id": ["p"]})
    named = pairs.add_column("criterion", ["other"])
    read = {"pairs": pairs, "named": named}
    monkeypatch.setattr(scores, "load_pairs", lambda dataset, split, **source: read[dataset])
    source = {}
    found, notice = scores.load_scored_pairs(tmp_path, "pairs", None, source)
    assert found["criterion"] == [source["criterion"]] == [chosen] and f"under {chosen}" in notice
    assert scores.load_scored_pairs(tmp_path, "named", None, {}) == (named, None)
