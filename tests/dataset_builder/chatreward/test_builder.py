import json
import pickle
import re
from dataclasses import replace

import pytest
from support.paths import CONFIGS

from sdiareward.audio_sdiareward import read_audio
from sdiareward.common.parts import run_here
from sdiareward.dataset_builder import shards
from sdiareward.dataset_builder.__main__ import main
from sdiareward.dataset_builder.chatreward import voices
from sdiareward.dataset_builder.chatreward.builder import Recorder, build
from sdiareward.dataset_builder.chatreward.scenarios import features, load_samples, read_scenarios
from sdiareward.dataset_builder.chatreward.voices import ChatRewardConfig, WordErrors, read_config, word_error_rate
from sdiareward.dataset_builder.synthesis import Engine
from sdiareward.pairs.schema import make_stable_id


pytestmark = pytest.mark.slow


SCENARIOS = {scenario.scenario_id: scenario for scenario in read_scenarios()}
FAST = {"casts": ["espeak-ng"], "max_wer": None, "min_s": 1.0, "max_s": 60.0, "test": 0.5, "num_workers": 1}
FEW = ("content-text-01", "generation-gender-01", "implicit-audio-02", "implicit-volume-01")


@pytest.fixture(scope="module")
def make_config(tmp_path_factory, events):
    """Return a function that makes a configuration of four scenarios, two of which go to test."""
    path = tmp_path_factory.mktemp("scenarios") / "few.jsonl"
    path.write_text("\n".join(json.dumps(SCENARIOS[name].as_row()) for name in FEW), encoding="utf-8")
    given = {"scenarios": str(path), "events": events, **FAST}
    return lambda output, **changes: ChatRewardConfig(str(output), **{**given, **changes})


@pytest.fixture(scope="module")
def built(tmp_path_factory, make_config):
    """Return the folder of a build that was interrupted and resumed, its report, and the scenarios that it made."""
    folder, recorded, original = tmp_path_factory.mktemp("built") / "chatreward", [], Recorder.record

    def record(self, scenario, split):
        recorded.append(scenario.scenario_id)
        if len(recorded) == 3:
            raise KeyboardInterrupt
        return original(self, scenario, split)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "record", record)
        patch.setattr(shards, "Processes", lambda _: lambda *work: run_here(*pickle.loads(pickle.dumps(work))))
        with pytest.raises(KeyboardInterrupt):
            build(make_config(folder))
        report = build(make_config(folder, num_workers=2))
    return folder, report, recorded


def read_all(folder):
    return [row for split in ("train", "test") for row in load_samples(folder, split)]


def test_three_samples_of_every_scenario_are_written_and_none_is_in_two_splits(built):
    folder, report, _ = built
    train, test = (load_samples(folder, split) for split in ("train", "test"))
    assert len(train) == len(test) == 6
    assert train.column_names == list(features())
    assert not set(train["scenario_id"]) & set(test["scenario_id"])
    rows = read_all(folder)
    assert sorted(row["score"] for row in rows) == [1] * 4 + [3] * 4 + [5] * 4
    assert len({row["sample_id"] for row in rows}) == 12
    assert report["skipped"] == [] and report["scenarios"] == {"read": 4, "train": 2, "test": 2}
    # The question, a second of silence, and the answer.
    array, start = read_audio(rows[0]["audio"]), round(rows[0]["question_s"] * 16_000)
    assert len(array) / 16_000 == pytest.approx(rows[0]["question_s"] + 1.0 + rows[0]["response_s"], abs=1e-4)
    assert array[:start].any() and not array[start : start + 16_000].any()
    assert sum(count["samples"] for count in report["samples"]) == 12
    assert {count["attribute"] for count in report["samples"]} == {"audio", "content", "gender", "volume"}
    card = (folder / "README.md").read_text()
    assert "path: data/train-*.parquet" in card and "language:\n- en\n" in card
    assert re.search(r"\| (train|test) \| volume \| 3 \|", card)


def test_an_interrupted_build_resumes_and_a_finished_one_is_not_repeated(built, make_config, monkeypatch, caplog):
    folder, report, recorded = built
    # The third was interrupted.
    assert len(recorded) == 5 and set(recorded) == set(FEW) and not (folder / ".parts").exists()
    monkeypatch.setattr(Recorder, "record", lambda *args: pytest.fail("it is recorded again"))
    assert build(make_config(folder)) == report and "is up to date" in caplog.text


def test_an_engine_that_is_left_out_speaks_in_the_test_split_alone(make_config, tmp_path, monkeypatch, make_tone):
    monkeypatch.setattr(Engine, "speak", lambda *args, **options: make_tone(1.0))
    monkeypatch.setattr(voices, "require_plausible", lambda *args, **options: None)
    config = make_config(tmp_path, casts=("espeak-ng", "neural"), left_out=("hibari", "piper"))
    key, names = "implicit-volume-01", ("espeak-ng", "neural")
    seed = next(s for s in range(20) if min(names, key=lambda name: make_stable_id(s, key, name)) == "neural")
    recorder = Recorder(replace(config, seed=seed))
    train, test = (recorder.record(SCENARIOS[key], split)[0] for split in ("train", "test"))
    assert {test[0]["synthesizer"], test[0]["question_synthesizer"]} == {"hibari", "piper"}
    assert {row[name] for row in train for name in ("synthesizer", "question_synthesizer")} == {"espeak-ng"}
    assert [row["sample_id"] for row in train] == [row["sample_id"] for row in test]


def test_a_line_that_is_not_understood_is_rejected_and_tried_with_the_next_voice(make_config, tmp_path, monkeypatch):
    rates = {True: 0.06, False: 0.04}
    monkeypatch.setattr(WordErrors, "rate", lambda self, text, *_: rates[text.endswith("loudly.")])
    rows, notes = Recorder(make_config(tmp_path, max_wer=0.05)).record(SCENARIOS["understanding-volume-01"], "train")
    assert [(row["score"], row["response_wer"]) for row in rows] == [(5, 0.04), (1, 0.04)]
    found = [[(skip["item"], skip["kind"]) for skip in notes[kind]] for kind in ("skipped", "rejected")]
    assert found == [[("understanding-volume-01 3", "wer")] * count for count in (1, 2)]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"casts": ("openai-speech",)}, "endpoint"),
        ({"test": 1.0}, "test"),
        ({"min_s": 9.0, "max_s": 3.0}, "min_s"),
        ({"left_out": ("espeak-ng",)}, "left_out"),
    ],
)
def test_an_invalid_setting_is_refused(changes, named, make_config):
    with pytest.raises(ValueError, match=named):
        make_config("out", **changes).read_casts()


def test_expert_scores_are_merged_into_a_new_folder_and_bad_rows_are_reported_by_line(built, tmp_path, capsys):
    folder, report, _ = built
    rows = {row["sample_id"]: row for row in read_all(folder)}
    a, b, c = (next(name for name, row in rows.items() if row["score"] == score) for score in (5, 3, 1))
    good = [f"{a},ann,4,", f"{a},ben,5,", f"{a},cem,4,", f"{b},ann,3,", f"{b},ben,5,", f"{c},ben,,text", f"{c},ann,1,"]
    bad = {f"{a},ann,2,": "rated_twice", "none,ann,1,": "unknown_sample", f"{b},,3,": "missing_rater"}
    bad |= {f"{b},cem,6,": "bad_score", f"{b},cem,five,": "bad_score", f"{b},cem,1,noise": "bad_wrong"}
    ratings, output = tmp_path / "ratings.csv", tmp_path / "rated"

    def rate(lines, output):
        ratings.write_text("\n".join(["sample_id,rater,score,wrong", *lines, ""]))
        return main(["chatreward", "rate", str(folder), "--ratings", str(ratings), "--output_dir", str(output)])

    assert rate([*good, *bad], output) == 0
    assert "line 10: sample_id 'none' is not in the data set" in capsys.readouterr().out
    rated = {row["sample_id"]: row for row in read_all(output)}
    # The median, a half rounded up; one rater who rejects a sample suffices.
    assert rated[a] == {**rows[a], "score": 4, "expert_scores": [4, 5, 4]}
    assert rated[b] == {**rows[b], "score": 4, "expert_scores": [3, 5]}
    assert set(rated) == set(rows) - {c} and len(rows) - 1 == sum(rated[name] == rows[name] for name in rated) + 2
    found = json.loads((output / "report.json").read_text())
    kinds = [(f"ratings.csv line {number}", kind) for number, kind in enumerate(bad.values(), start=9)]
    assert [(row["item"], row["kind"]) for row in found["bad_rows"]] == kinds
    assert found["rejected_by_experts"] == [{"item": c, "kind": "wrong_text", "reason": "ben rejects it."}]
    counts = {"rated": 2, "ratings": 5, "raters": 3, "changed": 2, "changes": {"3 -> 4": 1, "5 -> 4": 1}}
    ranges = {"mean_range": 1.5, "wide": 1, "disagreements": [b], "rejected": 1}
    assert found["experts"] == counts | ranges and found["build_id"] != report["build_id"]
    assert rate([f"{name},ann,,sample" for name in rows], tmp_path / "none") == 2 and not (tmp_path / "none").exists()
    assert rate(good, folder) == 2


def test_word_error_rates_are_of_unified_spellings_and_of_chinese_characters():
    assert word_error_rate("I can't find twenty five keys.", "i can not find 25 keys", "en") == 0
    for said, heard, language in (("one wrong word", "one long word", "en"), ("你好吗?", "你好 妈", "zh-CN")):
        assert word_error_rate(said, heard, language) == pytest.approx(1 / 3)


@pytest.mark.parametrize("name", ["chatreward", "chatreward_paper"])
def test_every_configuration_is_understood(name, monkeypatch, tmp_path):
    (tmp_path / "runs/audio/events").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    config = read_config(CONFIGS / f"{name}.yaml", {"num_workers": 3})
    assert (config.num_workers, config.asr.prompt) == (3, "") and config.casts
