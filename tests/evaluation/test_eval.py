import dataclasses
import io
import json
import re
import shutil
import types

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from support.paths import ROOT
from support.refusals import check_refused

import sdiareward.scoring.scorer
from sdiareward import eval as evaluation
from sdiareward.audio_sdiareward import Heard, is_silent
from sdiareward.checkpoint_io.training_record import write_pairs_record
from sdiareward.common import parts
from sdiareward.common.package import NANO
from sdiareward.evaluation.calibrate import find_calibration_warnings
from sdiareward.evaluation.held_out import find_heard
from sdiareward.evaluation.results_files import read_evaluation
from sdiareward.pairs import labels
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.schema import features
from sdiareward.scoring.scorer import Features


RATE = 16_000
# Eight test pairs: (subset, synthesizer, whether both sides say the same).
TEST_PAIRS = [
    ("wild", "known", True),
    ("wild", "new", True),
    ("semi_wild", "known", True),
    ("semi_wild", "new", True),
    ("scripted", "known", True),
    ("scripted", "known", True),
    ("colloquialness", "known", False),
    ("colloquialness", "known", False),
]


def audio(seed, *, noise):
    generator = np.random.default_rng(seed)
    time_s = np.arange(int(0.3 * RATE)) / RATE
    signal = 0.1 * np.sin(2 * np.pi * generator.uniform(90, 250) * time_s) + noise * generator.normal(size=len(time_s))
    buffer = io.BytesIO()
    soundfile.write(buffer, signal, RATE, format="FLAC")
    return {"bytes": buffer.getvalue(), "path": None}


def side(seed, text, *, noise):
    return [
        {"role": role, "text": text, "audio": audio(seed + number, noise=noise), "duration_s": 0.3}
        for number, role in enumerate(("user", "assistant"))
    ]


def pair(split, number, subset, synthesizer, same_text):
    seed = 100 * number + (split == "test")
    return {
        "pair_id": f"{split}-{number}",
        "criterion": "colloquialness" if subset == "colloquialness" else "modality",
        "subset": subset,
        "source": "made_up",
        "primary": None,
        "secondary": None,
        "chosen": side(seed, f"um number {number} yeah", noise=0.002),
        "rejected": side(
            seed + 10, f"um number {number} yeah" if same_text else f"indeed number {number}", noise=0.02
        ),
        "synthesizer": synthesizer,
        "group_id": f"{split}-group-{number}",
        "quality": None,
        "language": "en",
        "license": "CC0-1.0",
    }


def tone(duration_s, level=0.1):
    buffer = io.BytesIO()
    soundfile.write(buffer, level * np.sin(np.arange(int(duration_s * RATE)) / 9), RATE, format="FLAC")
    return {"bytes": buffer.getvalue(), "path": None}


def write_split(folder, split, rows):
    folder.mkdir(exist_ok=True)
    schema = features().arrow_schema
    columns = {name: [row.get(name) for row in rows] for name in schema.names}
    pq.write_table(pa.table(columns, schema=schema), folder / f"{split}.parquet")


@pytest.fixture
def dataset(tmp_path):
    folder = tmp_path / "pairs"
    subsets = ["wild", "semi_wild", "scripted", "colloquialness"] * 2
    train = [
        pair("train", number, subset, "known", subset != "colloquialness") for number, subset in enumerate(subsets)
    ]
    write_split(folder, "train", train)
    write_split(folder, "test", [pair("test", number, *what) for number, what in enumerate(TEST_PAIRS)])
    return folder


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


class StubScorer:
    """Prefers the chosen side by its noise floor; fails after `dies_after` rewards, as a killed run does."""

    dies_after = None
    num_scored = 0

    def __init__(self):
        self.audio_s = 0.0
        self.processor = types.SimpleNamespace(max_turn_s=0.3)

    def iter_features(self, dialogues, criterion, *, groups, skipped):
        assert len(dialogues) == len(criterion) == len(groups)
        # Not in order, and both sides of a pair apart.
        for count, index in enumerate(sorted(range(len(dialogues)), key=lambda index: (index % 2, -index))):
            if count == StubScorer.dies_after and StubScorer.num_scored > count:
                raise KeyboardInterrupt
            StubScorer.num_scored += 1
            try:
                sounds = [soundfile.read(io.BytesIO(turn.audio.source["bytes"])) for turn in dialogues[index].turns]
            except soundfile.LibsndfileError as error:
                skipped[index] = f"turn 1: cannot be decoded ({error})"
                continue
            durations_s = [len(sound) / rate for sound, rate in sounds]
            self.audio_s += sum(durations_s)
            cut = tuple(turn for turn, duration_s in enumerate(durations_s, start=1) if duration_s > 0.3)
            silent = tuple(turn for turn, (sound, _) in enumerate(sounds, start=1) if is_silent(sound))
            heard = Heard(sum(durations_s), sum(min(each, 0.3) for each in durations_s), len(sounds), cut, silent)
            yield index, Features(np.zeros(1), -float(np.abs(np.diff(sounds[0][0])).mean()), heard=heard)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def stub_scorer(monkeypatch):
    monkeypatch.setattr(StubScorer, "dies_after", None)
    monkeypatch.setattr(StubScorer, "num_scored", 0)
    monkeypatch.setattr(sdiareward.scoring.scorer.Scorer, "from_pretrained", lambda *args, **kwargs: StubScorer())


@pytest.fixture
def run(stub_scorer, dataset, checkpoint, tmp_path):
    def run(*flags):
        out = tmp_path / "out"
        required = ["--model", str(checkpoint), "--dataset", str(dataset), "--output_dir", str(out)]
        code = evaluation.main([*required, "--num_bootstrap", "50", *flags])
        return code, out

    return run


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_an_evaluation_writes_scores_results_report_and_figure(run, capsys):
    code, out = run()
    assert code == 0
    assert {line["pair_id"] for line in lines(out / "scores.jsonl")} == {f"test-{number}" for number in range(8)}
    line = lines(out / "scores.jsonl")[0]
    assert line["margin"] == line["chosen"] - line["rejected"]
    assert {"criterion", "subset", "source", "synthesizer", "group_id"} <= set(line)
    results = json.loads((out / "results.json").read_text())
    assert results["accuracies"]["model"]["overall_macro"] == 1.0
    assert results["accuracies"]["acoustic"]["modality_micro"] == 1.0
    assert results["accuracies"]["text"]["modality_micro"] == 0.0
    assert results["accuracies"]["text"]["num_ties"]["modality_micro"] == 6
    assert results["accuracies"]["text"]["colloquialness"] == 1.0
    assert results["left_out_synthesizers"] == ["new"]
    assert results["timing"]["audio_s"] == pytest.approx(8 * 4 * 0.3)
    assert results["timing"]["real_time_factor"] > 0
    assert results["config"]["seed"] == 0
    assert "torch" in results["versions"]
    assert (out / "rewards.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "results.md").read_text() in capsys.readouterr().out
    assert not list(out.glob(".*"))


@pytest.mark.slow
def test_a_killed_run_goes_on_without_scoring_or_counting_anything_twice(run, monkeypatch):
    monkeypatch.setattr(parts, "_MIN_ITEMS", 3)
    monkeypatch.setattr(StubScorer, "dies_after", 5)
    assert run("--no_baselines")[0] == 130
    monkeypatch.setattr(StubScorer, "dies_after", None)
    monkeypatch.setattr(StubScorer, "num_scored", 0)
    # The first part of three pairs was written when the run died.
    _, out = run("--no_baselines")
    assert StubScorer.num_scored == 10
    assert sorted(line["pair_id"] for line in lines(out / "scores.jsonl")) == [f"test-{number}" for number in range(8)]
    results = json.loads((out / "results.json").read_text())
    assert results["accuracies"]["model"]["num_pairs"]["overall_micro"] == 8
    monkeypatch.setattr(StubScorer, "num_scored", 0)
    run("--no_baselines")
    assert StubScorer.num_scored == 0
    assert json.loads((out / "results.json").read_text())["accuracies"] == results["accuracies"]


@pytest.mark.slow
def test_a_table_that_moved_resumes_and_only_a_recording_that_changed_is_scored_again(run, tmp_path, monkeypatch):
    monkeypatch.setattr(StubScorer, "iter_features", score_by_file)
    folder, moved = tmp_path / "own", tmp_path / "moved"
    folder.mkdir()
    for name in "abcd":
        (folder / f"{name}.flac").write_bytes(audio(ord(name), noise=0.01)["bytes"])
    rows = [{"chosen": "a.flac", "rejected": "b.flac"}, {"chosen": "c.flac", "rejected": "d.flac"}]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, out = run("--dataset", str(folder / "pairs.jsonl"))
    first = lines(out / "scores.jsonl")
    assert StubScorer.num_scored == 4
    folder.rename(moved)
    StubScorer.num_scored = 0
    assert run("--dataset", str(moved / "pairs.jsonl"))[0] == 0
    assert StubScorer.num_scored == 0 and lines(out / "scores.jsonl") == first
    (moved / "d.flac").write_bytes(audio(1, noise=0.05)["bytes"])
    assert run("--dataset", str(moved / "pairs.jsonl"))[0] == 0
    assert StubScorer.num_scored == 2
    again = {line["pair_id"]: line for line in lines(out / "scores.jsonl")}
    assert again[first[0]["pair_id"]] == first[0] and set(again) == {line["pair_id"] for line in first}
    assert again[first[1]["pair_id"]] != first[1]


def score_by_file(self, dialogues, criterion, *, groups, skipped):
    for index in range(len(dialogues)):
        StubScorer.num_scored += 1
        source = dialogues[index].turns[0].audio.source
        path = source if isinstance(source, str) else source["path"]
        yield index, Features(np.zeros(1), -float(np.abs(np.diff(soundfile.read(path)[0])).mean()))


@pytest.mark.slow
def test_recordings_mended_under_the_same_ids_are_scored_again(run, dataset):
    _, out = run()
    (shard,) = dataset.rglob("test*.parquet")
    rows = pq.read_table(shard).to_pylist()
    before = {line["pair_id"]: line for line in lines(out / "scores.jsonl")}
    acoustic = json.loads((out / "acoustic.json").read_text())["scores"]
    for row in rows[2:4]:
        row["chosen"], row["rejected"] = row["rejected"], row["chosen"]
    mended = [row["pair_id"] for row in rows[2:4]]
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(shard)), shard)
    StubScorer.num_scored = 0
    run()
    assert StubScorer.num_scored == 4
    after = {line["pair_id"]: line for line in lines(out / "scores.jsonl")}
    assert len(lines(out / "scores.jsonl")) == 8
    again = json.loads((out / "acoustic.json").read_text())["scores"]
    for pair_id, line in before.items():
        sides = ("rejected", "chosen") if pair_id in mended else ("chosen", "rejected")
        assert [after[pair_id][side] for side in ("chosen", "rejected")] == [line[side] for side in sides]
        assert list(again[pair_id].values()) == pytest.approx([acoustic[pair_id][side] for side in sides])


@pytest.mark.slow
def test_baselines_can_be_added_to_a_finished_run_and_are_not_computed_twice(run, monkeypatch):
    _, out = run("--no_baselines")
    assert list(json.loads((out / "results.json").read_text())["accuracies"]) == ["model"]
    run()
    first = json.loads((out / "results.json").read_text())
    monkeypatch.setattr("sdiareward.evaluation.baselines.score_baseline", None)
    run()
    assert json.loads((out / "results.json").read_text())["accuracies"] == first["accuracies"]


@pytest.mark.slow
@pytest.mark.parametrize("change", ["model", "pairs", "dtype"])
def test_a_run_of_another_identity_is_not_resumed(run, checkpoint, change, capsys):
    run("--no_baselines")
    flags = {"model": [], "pairs": ["--limit", "4"], "dtype": ["--dtype", "bfloat16"]}[change]
    if change == "model":
        (checkpoint / "config.json").write_text('{"pooling_mode": "mean"}')
    message = rf"results of another run \({change} was .*another output_dir"
    assert check_refused(capsys, message, run, "--no_baselines", *flags)


@pytest.mark.slow
def test_a_pair_with_bad_audio_is_skipped_recorded_counted_and_fails_a_strict_run(run, dataset, capsys):
    rows = [pair("test", number, *what) for number, what in enumerate(TEST_PAIRS)]
    rows[2]["rejected"][1]["audio"]["bytes"] = b"not audio"
    write_split(dataset, "test", rows)
    code, out = run()
    assert code == 0
    (skipped,) = lines(out / "skipped.jsonl")
    assert skipped["pair_id"] == "test-2"
    assert skipped["kind"] == "unreadable"
    assert skipped["reason"].startswith("rejected: turn 1: cannot be decoded")
    results = json.loads((out / "results.json").read_text())
    assert results["num_skipped"]["semi_wild"] == 1
    assert {result["num_pairs"]["semi_wild"] for result in results["accuracies"].values()} == {1}
    assert "1 pairs were skipped" in capsys.readouterr().out
    assert run("--strict")[0] == 1


@pytest.mark.slow
def test_recordings_that_the_model_hears_in_part_are_counted_in_results_and_on_the_page(run, dataset):
    rows = [pair("test", number, *what) for number, what in enumerate(TEST_PAIRS)]
    rows[3]["rejected"][0]["audio"] = tone(0.4)
    rows[3]["rejected"][1]["audio"] = tone(0.5)
    rows[2]["chosen"][1]["audio"] = tone(0.3, 0.0)
    write_split(dataset, "test", rows)
    _, out = run("--no_baselines", "--report")
    cut = json.loads((out / "results.json").read_text())["cut"]
    assert cut == {
        **{"max_turn_s": 0.3, "num_recordings": 32, "num_cut": 2, "num_pairs": 1},
        **{"given_s": pytest.approx(32 * 0.3 + 0.3), "heard_s": pytest.approx(32 * 0.3)},
        "silent_turns": ["test-2 chosen turn 2"],
    }
    cut_sentence = "2 of 32 recordings, in 1 pairs, are longer than 0.3 s: the model heard the first 0.3 s of each"
    for sentence in (cut_sentence, "Nothing was heard in 1 turns (test-2 chosen turn 2)."):
        assert sentence in (out / "results.md").read_text()
        assert sentence in (out / "report" / "index.html").read_text()


def test_a_run_in_which_nothing_can_be_scored_says_the_first_reason(run, dataset, capsys):
    row = pair("test", 0, *TEST_PAIRS[0])
    row["chosen"][0]["audio"]["bytes"] = b""
    write_split(dataset, "test", [row])
    assert check_refused(capsys, "the first: chosen: turn 1: .*skipped.jsonl", run, "--no_baselines")


def write_unlabelled(folder, num_pairs=4, name="own.jsonl"):
    """Write pairs of two paths a side and nothing else; return the table."""
    folder.mkdir(exist_ok=True)
    rows = []
    for number in range(num_pairs):
        for side, noise in (("chosen", 0.002), ("rejected", 0.02)):
            (folder / f"{number}-{side}.flac").write_bytes(audio(number, noise=noise)["bytes"])
        rows.append({side: f"{number}-{side}.flac" for side in ("chosen", "rejected")})
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / name


class PathScorer(StubScorer):
    """Prefers the chosen side by its file's name."""

    def iter_features(self, dialogues, criterion, *, groups, skipped):
        assert set(criterion) == {"joint"}
        for index, dialogue in enumerate(dialogues):
            yield index, Features(np.zeros(1), float("chosen" in dialogue.turns[0].audio.source["path"]))


@pytest.mark.slow
def test_own_pairs_without_labels_have_one_column_and_no_baselines(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sdiareward.scoring.scorer.Scorer, "from_pretrained", lambda *args, **kwargs: PathScorer())
    own = write_unlabelled(tmp_path / "own")
    code, out = run("--dataset", str(own), "--report")
    printed = capsys.readouterr().out
    assert code == 0
    assert f"- Without baselines: {own} is one split; --baseline_data names pairs to fit them on." in printed
    (head,) = [line for line in printed.splitlines() if line.startswith("| ") and "all" in line]
    assert [cell.strip() for cell in head.strip("|").split("|")] == ["", "all"]
    assert not any(title in printed for title in ("wild", "scripted", "micro", "colloq"))
    report = json.loads((out / "report" / "report.json").read_text())
    assert (report["columns"], report["num_pairs"]) == (["overall_micro"], 4)
    assert report["accuracies"]["model"]["overall_micro"] == 1.0
    page = (out / "report" / "index.html").read_text()
    assert "<dt>all</dt>" in page
    assert not any(title in page for title in (">wild<", "modality micro", "overall micro", "overall macro"))


def test_baselines_are_fitted_on_other_data_and_few_pairs_are_reported(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sdiareward.scoring.scorer.Scorer, "from_pretrained", lambda *args, **kwargs: PathScorer())
    own, other = write_unlabelled(tmp_path / "own"), write_unlabelled(tmp_path / "other", 6)
    code, out = run("--dataset", str(own), "--baseline_data", str(other))
    assert code == 0
    assert "fitted on few pairs (6 of joint): read nothing into their numbers" in capsys.readouterr().out
    results = json.loads((out / "results.json").read_text())
    assert results["baselines"]["acoustic"]["num_train"] == {"joint": 6}
    assert check_refused(capsys, "share 4 pair_id", run, "--dataset", str(own), "--baseline_data", str(own))


@pytest.mark.slow
def test_held_out_is_what_the_training_of_the_model_did_not_hear(run, checkpoint, capsys):
    (checkpoint / "run.json").write_text(json.dumps({"trained_on": {"num_pairs": 3, "synthesizers": ["new"]}}))
    _, out = run("--no_baselines")
    results = json.loads((out / "results.json").read_text())
    assert (results["left_out_synthesizers"], results["heard_from"]) == (["known"], "model")
    assert "Held out of the model's training: known." in capsys.readouterr().out
    # A model that does not tell: the data set's training split does, and is named.
    (checkpoint / "run.json").unlink()
    shutil.rmtree(out)
    _, out = run()
    results = json.loads((out / "results.json").read_text())
    assert (results["left_out_synthesizers"], results["heard_from"]) == (["new"], "split")
    assert "Held out of the split train, as the model's training is not known: new." in capsys.readouterr().out


def test_the_published_evaluation_of_a_model_tells_what_it_heard(tmp_path):
    heard, _, heard_from = find_heard(str(NANO), None)
    assert "flite" in heard and "hibari" not in heard and heard_from == "model"
    assert find_heard(str(tmp_path), None) == (None, None, None)
    # Training pairs without the column do not tell either.
    (tmp_path / "run.json").write_text(json.dumps({"trained_on": {"num_pairs": 3, "synthesizers": None}}))
    assert find_heard(str(tmp_path), None)[0] is None


@pytest.mark.slow
def test_a_limit_is_spread_over_subsets_by_seed(run):
    _, out = run("--no_baselines", "--limit", "4")
    first = {line["pair_id"]: line["subset"] for line in lines(out / "scores.jsonl")}
    assert set(first.values()) == {"wild", "semi_wild", "scripted", "colloquialness"}
    draws = set()
    for seed in range(4):
        shutil.rmtree(out)
        run("--no_baselines", "--limit", "4", "--seed", str(seed))
        draws.add(frozenset(line["pair_id"] for line in lines(out / "scores.jsonl")))
    assert frozenset(first) in draws and len(draws) > 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--split", "no"], "^sdiareward-eval: error: .*pairs.*no"),
        (["--dataset_config", "no"], "^sdiareward-eval: error: .*pairs.*no"),
        (["--dataset", "no.jsonl"], "no.jsonl"),
        (["--train_split", "test"], "share 8 pair_id"),
        (["--train_split", "trian"], "trian"),
        (["--splt", "test"], "Unknown option: --splt. Did you mean --split"),
        (["--compare", "other"], "add --report"),
        (["--report", "--compare", "other"], "other: has no scores.jsonl"),
    ],
)
def test_a_mistake_is_refused_by_name_before_anything_is_scored(run, capsys, flags, message):
    assert check_refused(capsys, message, run, *flags)
    assert StubScorer.num_scored == 0


def test_flags_override_the_yaml_and_unknown_keys_fail(run, dataset, checkpoint, tmp_path, capsys):
    config = tmp_path / "eval.yaml"
    config.write_text("split: nowhere\nbaselines: false\nlimit: 2\n")
    _, out = run("--config", str(config), "--split", "test")
    results = json.loads((out / "results.json").read_text())
    assert (results["config"]["split"], results["config"]["limit"]) == ("test", 2)
    config.write_text("splt: test\n")
    assert check_refused(capsys, f"splt.*{config}.*Did you mean --split", run, "--config", str(config))


@pytest.mark.slow
def test_a_reward_that_is_not_a_number_stops_the_run_unless_it_is_to_count_as_wrong(run, monkeypatch, capsys):
    def broken(self, dialogues, criterion, **options):
        rewards = [float("nan"), *range(-1, -len(dialogues), -1)]
        yield from ((index, Features(np.zeros(1), reward)) for index, reward in enumerate(rewards))

    monkeypatch.setattr(StubScorer, "iter_features", broken)
    assert check_refused(capsys, "1 pairs have a reward that is missing or not finite", run, "--no_baselines")
    _, out = run("--no_baselines", "--nan", "wrong")
    results = json.loads((out / "results.json").read_text())
    assert results["accuracies"]["model"]["num_invalid"]["wild"] == 1
    assert results["accuracies"]["model"]["overall_micro"] == 7 / 8


@pytest.mark.slow
def test_a_real_model_is_evaluated_from_start_to_end_whatever_the_size_of_a_batch(dataset, tiny_checkpoint, tmp_path):
    rewards = []
    for batch_tokens in (1, 100_000):
        out = tmp_path / f"out-{batch_tokens}"
        flags = ["--model", tiny_checkpoint, "--dataset", dataset, "--output_dir", out, "--batch_tokens", batch_tokens]
        assert evaluation.main([str(flag) for flag in [*flags, "--device", "cpu", "--strict"]]) == 0
        rewards.append([[line["chosen"], line["rejected"]] for line in lines(out / "scores.jsonl")])
        assert set(json.loads((out / "results.json").read_text())["accuracies"]) == {"model", "acoustic", "text"}
    assert np.ptp(rewards[0]) > 0
    assert np.array(rewards[1]) == pytest.approx(np.array(rewards[0]), abs=1e-4)


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
    expected = ["all", "wild", "semi_wild", "scripted"]
    assert [each["subset"] for each in labels.describe_pairs(datasets.Dataset.from_list(rows))] == expected
    assert [each["subset"] for each in labels.describe_origins(rows)] == expected
    misspelt = [{"pair_id": "a", "subset": "wlid"}]
    for broken, message in ((misspelt, "row 0: subset is 'wlid'; give one of wild"), ([rows[0]] * 2, "rows 0 and 1")):
        with pytest.raises(ValueError, match=message):
            labels.describe_pairs(datasets.Dataset.from_list(broken))


@pytest.mark.slow
def test_a_page_is_written_from_a_finished_run_beside_another_one_and_a_training_log(run, tmp_path, capsys):
    _, out = run("--no_baselines")
    other = tmp_path / "other"
    shutil.copytree(out, other)
    history = [{"step": 10, "mean_reward": 0.5, "margin": 1.0}]
    log = tmp_path / "run.json"
    log.write_text(json.dumps({"training": {"center_rewards_coefficient": 0.01}, "history": history}))
    StubScorer.num_scored = 0
    run("--report", "--compare", str(other), "--training", str(log))
    assert StubScorer.num_scored == 0
    assert f"Page: {out / 'report' / 'index.html'}" in capsys.readouterr().out
    report = json.loads((out / "report" / "report.json").read_text())
    assert [row["kind"] for row in report["scorers"]] == ["model", "compared", "baseline", "baseline"]
    assert report["comparisons"][0]["difference"] == 0
    assert [row["num_pairs"] for row in json.loads((out / "results.json").read_text())["disagreements"]] == [0]
    assert report["training"][0]["train"] == [{"step": 10, "chosen": 1.0, "rejected": 0.0, "margin": 1.0}]
    assert (out / "report" / "index.html").read_text().count("data:audio/mpeg;base64,") == 8 * 4


def test_the_guide_names_every_flag_and_its_python_runs():
    guide = (ROOT / "docs" / "evaluation.md").read_text()
    for field in dataclasses.fields(evaluation.EvalArguments):
        flag = {"dataset_name": "dataset_config"}.get(field.name, field.name)
        assert f"`--{flag}" in guide, flag
    (example,) = re.findall(r"## From Python\n\n```python\n(.*?)```", guide, re.DOTALL)
    found = {}
    exec(compile(example, "evaluation.md", "exec"), found)
    assert found["temperature"] > 0
    assert found["found"]["num_only_first"] == 1


def test_pairs_that_were_trained_on_are_counted_and_named_beside_the_accuracy(run, dataset, checkpoint, capsys):
    (table,) = dataset.glob("test*.parquet")
    rows = [{**row, "group_id": None} for row in pq.read_table(table).to_pylist()]
    rows[4]["group_id"] = "call"
    others = [{**pair("train", 50 + number, "wild", "known", True), "group_id": None} for number in range(5)]
    # Pair 0 as it is, pair 1 renamed, swapped and under another criterion; of 2 the id, of 3 a side, of 4 the call, of
    # 5 the prompt, of 6 the recording of an answer.
    renamed = {**rows[1], "pair_id": "x", "criterion": "joint", "subset": "all"}
    renamed |= {"chosen": rows[1]["rejected"], "rejected": rows[1]["chosen"]}
    changed = [{"pair_id": "test-2"}, {"chosen": rows[3]["chosen"]}, {"group_id": "call"}]
    prompt, answer = rows[5]["rejected"][0], {**rows[6]["chosen"][1], "text": "other words"}
    changed += [{"rejected": [prompt, others[3]["chosen"][1]]}, {"chosen": [others[4]["chosen"][0], answer]}]
    trained = [rows[0], renamed, *({**row, **change} for row, change in zip(others, changed, strict=True))]
    write_split(dataset.with_name("trained"), "train", trained)
    write_split(dataset, "test", rows)
    _, out = run("--no_baselines")
    assert "training pairs of this model are not recorded" in capsys.readouterr().out
    write_pairs_record(checkpoint, load_pairs(dataset.with_name("trained"), "train"), [], is_trained=False)
    expected = {"content": ["test-0", "test-1"], "pair_id": ["test-2"], "side": ["test-3"], "group_id": ["test-4"]}
    expected |= {"prompt": ["test-5"], "recording": ["test-6"]}
    single = ("--dataset", str(table), "--output_dir", str(dataset / "out"))
    for flags, folder in (((), out), (single, dataset / "out")):
        run("--no_baselines", "--report", *flags)
        results = json.loads((folder / "results.json").read_text())
        assert {name: results["overlap"][name] for name in expected} == expected
        assert results["overlap"]["others"]["num_pairs"] == 1
        for text in (capsys.readouterr().out, (folder / "report" / "index.html").read_text()):
            assert "2 trained on, with the same words and recordings" in text
            # A file has no split called test.
            assert ("split test" in text) == (flags == ())
    assert "trained on" in " ".join(find_calibration_warnings(read_evaluation(out), checkpoint))
    assert run(*single, "--split", "test")[0] == 2
