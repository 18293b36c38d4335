import json
import os
import re
import sys

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
import torch
from support import forked
from support.keys import write_keys
from support.systems_world import write_system

from sdiareward.cli import main
from sdiareward.pairs.content import stamp_file
from sdiareward.pairs.labels import describe_pairs, sample_rows
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.messages import read_dialogue
from sdiareward.pairs.rows import open_rows
from sdiareward.perturbations.channel import encode
from sdiareward.scoring import dataset as scoring_dataset
from sdiareward.scoring.model_spec import ModelSpec
from sdiareward.scoring.scorer import Scorer


CRITERIA = ("modality", "colloquialness", None)
SIDES = ("chosen", "rejected")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture(scope="module")
def make_pair(make_tone):
    """Return a function giving a row of a pair of two turns each, of 0.1 to 0.3 s."""

    def turn(role, text, seed):
        tone = make_tone(0.1 * (1 + seed % 3), 100.0 + 10 * seed, seed)
        audio = {"bytes": encode(tone, 16_000, "WAV", "PCM_16", None), "path": None}
        return {"role": role, "text": text, "audio": audio}

    def make(number):
        sides = {
            side: [turn("user", f"hello {number}", number), turn("assistant", side, number + k)]
            for k, side in enumerate(SIDES)
        }
        return {"pair_id": f"pair-{number}", "criterion": CRITERIA[number % 3], **sides}

    return make


@pytest.fixture
def write_rows(tmp_path):
    """Return a function writing rows to a Parquet file of small row groups."""

    def write(rows, name="pairs.parquet", row_group_size=4, **options):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name, row_group_size=row_group_size, **options)
        return tmp_path / name

    return write


@pytest.fixture
def score(tiny_checkpoint, tmp_path, capsys):
    """Return a function scoring a data set into `out` and giving exit code, standard output and standard error."""

    def run(dataset, *flags):
        required = ["--dataset", str(dataset), "--output_dir", str(tmp_path / "out"), "--model", str(tiny_checkpoint)]
        code = main(["score", *required, *map(str, flags)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def scorer(tiny_checkpoint):
    return Scorer.from_pretrained(tiny_checkpoint)


def expected(scorer, rows):
    """Return the rewards of both sides of every row, one dialogue at a time."""
    return [[scorer.score([row[side]], row["criterion"] or "joint")[0] for side in SIDES] for row in rows]


def scores(tmp_path):
    return pq.read_table(tmp_path / "out" / "scores.parquet").to_pylist()


def rewards_in(tmp_path):
    return np.array([[row[side] for side in SIDES] for row in scores(tmp_path)])


def scored_rows(tmp_path):
    """Return the row of each record with rewards in all parts, also of those that a newer one replaces."""
    parts = (tmp_path / "out" / "parts").glob("*.parquet")
    records = [record for path in parts for record in pq.read_table(path).to_pylist()]
    return sorted(record["item"] for record in records if record["reason"] is None)


def test_pairs_get_the_rewards_of_their_sides_and_a_summary(score, write_rows, make_pair, make_tone, scorer, tmp_path):
    rows = [make_pair(number) for number in range(7)]
    long = encode(make_tone(31.0), 16_000, "WAV", "PCM_16", None)
    rows[0]["rejected"][1]["audio"]["bytes"] = long
    code, out, _ = score(write_rows(rows))
    found = scores(tmp_path)
    assert code == 0
    assert [(row["row"], row["pair_id"]) for row in found] == [(k, f"pair-{k}") for k in range(7)]
    assert list(found[0])[2:] == [*SIDES, "margin", "given_s", "heard_s", "num_cut", "silent_turns"]
    rewards, margins = rewards_in(tmp_path), np.array([row["margin"] for row in found])
    np.testing.assert_allclose(rewards, expected(scorer, rows), atol=1e-5)
    np.testing.assert_array_equal(margins, rewards[:, 0] - rewards[:, 1])
    assert (tmp_path / "out" / "skipped.jsonl").read_text() == ""
    printed = [line.split() for line in out.splitlines()]
    quantiles = [margins.mean(), *np.quantile(margins, [0.05, 0.25, 0.5, 0.75, 0.95])]
    assert ["mean", "5%", "25%", "median", "75%", "95%"] in printed
    assert ["margin", *(f"{value:+.3f}" for value in quantiles)] in printed
    assert f"7 of 7 rows, {37.0 / 3600:.2f} h" in out and "1 turns cut: this model hears their first 30 s" in out
    assert f"chosen > rejected in {(margins > 0).sum()} of 7 rows (" in out
    assert out.splitlines()[-1] == f"Table: {tmp_path / 'out' / 'scores.parquet'}"
    written = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert written["versions"]["torch"] == torch.__version__
    summary = written["summary"]
    # Turns of 0.1, 0.1, 0.1 and 0.2 s, the last of row 0 replaced; a step further 0.2, 0.2, 0.2, 0.3; and 0.3, 0.3,
    # 0.3, 0.1.
    assert summary["audio_s"] == pytest.approx(3 * 0.5 + 2 * 0.9 + 2 * 1.0 - 0.2 + 30)
    assert (summary["num_scored"], summary["num_new"], summary["num_ties"]) == (7, 7, 0)
    assert summary["num_right"] == (margins > 0).sum() and summary["real_time_factor"] > 0
    assert summary["rewards"]["margin"]["median"] == pytest.approx(np.median(margins))


def test_a_folder_of_dialogues_is_a_data_set(scorer, tmp_path, tiny_checkpoint, capsys, caplog):
    write_system(tmp_path / "a", 0, 3)
    (tmp_path / "a" / "d01" / "1.wav").unlink()
    (tmp_path / "a" / "broken.json").write_text("{")
    command = ["score", str(tmp_path / "a"), "--output_dir", str(tmp_path / "out"), "--model", str(tiny_checkpoint)]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "2 of 4 rows" in out
    assert "row 1: messages: has 1 turns and ends with the user" in out
    assert "broken.json: is not valid JSON" in caplog.text
    found = scores(tmp_path)
    assert [row["id"] for row in found] == ["d00", "d02"]
    assert found[1]["reward"] == pytest.approx(scorer.score([read_dialogue(tmp_path / "a" / "d02")])[0], abs=1e-5)
    assert main(command) == 0
    assert "0 of them scored now" in capsys.readouterr().out


def test_a_criterion_and_prompts_that_are_given_hold_for_every_row(
    score, write_rows, make_pair, tiny_checkpoint, tmp_path
):
    (tmp_path / "prompts.json").write_text(json.dumps({"modality": "Judge the sound."}))
    prompted = Scorer.from_pretrained(tiny_checkpoint, prompts={"modality": "Judge the sound."})
    rows = [make_pair(number) for number in range(2)]
    score(write_rows(rows), "--criterion", "modality", "--prompt-file", tmp_path / "prompts.json")
    given = [row | {"criterion": "modality"} for row in rows]
    before = scores(tmp_path)
    np.testing.assert_allclose(rewards_in(tmp_path), expected(prompted, given), atol=1e-5)
    code, _, err = score(tmp_path / "pairs.parquet", "--criterion", "modality")
    assert code == 2 and "is None" in err and scores(tmp_path) == before


def test_dialogues_in_json_lines_are_scored_with_paths_under_the_audio_root(score, make_tone, scorer, tmp_path):
    for root, first in (("one", 200.0), ("two", 300.0)):
        (tmp_path / root).mkdir()
        for number in range(2):
            soundfile.write(tmp_path / root / f"{number}.wav", make_tone(0.2, first + number), 16_000)
    turns = [{"role": role, "text": role, "audio": f"{k}.wav"} for k, role in enumerate(("user", "assistant"))]
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"id": 5, "dialogue": turns}))
    # Recordings of the same names under another root are others.
    for root in ("one", "two"):
        code, out, _ = score(path, "--audio-root", tmp_path / root)
        heard = [{**turn, "audio": str(tmp_path / root / turn["audio"])} for turn in turns]
        [found] = scores(tmp_path)
        assert code == 0 and "1 of them scored now" in out
        assert (found["row"], found["id"]) == (0, 5)
        assert found["reward"] == pytest.approx(scorer.score([heard])[0], abs=1e-5)
        assert "0 of them scored now" in score(path, "--audio-root", tmp_path / root)[1]


def test_bad_rows_are_skipped_with_reasons_and_tried_again(score, write_rows, make_pair, tmp_path):
    rows = [make_pair(number) for number in range(6)]
    rows[1]["chosen"] = None
    rows[2]["rejected"][1]["audio"] = {"bytes": None, "path": str(tmp_path / "late.wav")}
    rows[3]["criterion"] = "beauty"
    rows[4]["chosen"][0]["audio"] = {"bytes": b"no audio", "path": None}
    path = write_rows(rows)
    code, out, _ = score(path, "--strict")
    assert code == 1
    assert "2 of 6 rows" in out and re.search(r"4 skipped:\n  row 1: chosen: is missing; give a list of turns", out)

    def read_skipped():
        return [json.loads(line) for line in (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()]

    skipped = read_skipped()
    assert [(line["row"], line["pair_id"]) for line in skipped] == [(k, f"pair-{k}") for k in (1, 2, 3, 4)]
    found = ("chosen: is missing", "rejected: turn 2: .*late.wav: no such", "'beauty'", "turn 1: cannot be decoded")
    assert all(re.search(wanted, line["reason"]) for wanted, line in zip(found, skipped, strict=True))
    assert [row["row"] for row in scores(tmp_path)] == [0, 5]
    (tmp_path / "late.wav").write_bytes(rows[2]["rejected"][0]["audio"]["bytes"])
    code, out, _ = score(path)
    assert code == 0 and "1 of them scored now" in out
    assert [row["row"] for row in scores(tmp_path)] == [0, 2, 5]
    assert [line["row"] for line in read_skipped()] == [1, 3, 4]
    assert scored_rows(tmp_path) == [0, 2, 5]
    code, _, err = score(write_rows(rows[1:2], "bad.parquet"), "--output_dir", tmp_path / "bad")
    assert code == 2 and "none of 1 rows could be scored; the first: chosen: is missing" in err


def test_a_limit_draws_the_rows_that_an_evaluation_draws_and_scores_none_again(
    score, write_rows, make_pair, tmp_path, monkeypatch
):
    subsets = ("wild", "wild", "wild", "wild", "semi_wild", "scripted")
    rows = [
        {**make_pair(number), "subset": subset, "group_id": f"g{number // 2}", "synthesizer": f"s{number % 2}"}
        for number, subset in enumerate(subsets)
    ]
    path = tmp_path / "pairs.jsonl"
    for number, turn in enumerate(turn for row in rows for side in SIDES for turn in row[side]):
        (tmp_path / f"{number}.wav").write_bytes(turn["audio"]["bytes"])
        turn["audio"] = f"{number}.wav"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for seed in range(2):
        code, out, _ = score(path, "--max_samples", 3, *write_keys(tmp_path, seed=seed))
        assert code == 0 and "3 of 3 rows" in out
        drawn = [row["row"] for row in scores(tmp_path)]
        assert drawn == sorted(sample_rows(describe_pairs(load_pairs(path, "train")), 3, seed))
        assert {subsets[row] for row in drawn} == set(subsets)
    # Foreign labels are no error.
    foreign = [{**make_pair(number), "subset": "mine", "group_id": number, "category": 3} for number in range(4)]
    other = ["--output_dir", tmp_path / "foreign", "--max_samples", 2]
    assert "2 of 2 rows" in score(write_rows(foreign, "foreign.parquet"), *other)[1]
    # Scores of other draws are kept, and a kill in the middle of a part leaves what is not read.
    (tmp_path / "out" / "parts" / ".part-000001.parquet.tmp").write_bytes(b"PAR1")
    score(path)
    assert scored_rows(tmp_path) == list(range(6))
    monkeypatch.setattr(ModelSpec, "load", lambda *args: pytest.fail("the model was loaded"))
    assert "0 of them scored now" in score(path, "--max_samples", 3)[1]


def test_only_rows_that_have_changed_are_scored_again(score, write_rows, make_pair, scorer, tmp_path):
    rows = [make_pair(number) for number in range(4)]
    path = write_rows(rows)
    score(path)
    before = rewards_in(tmp_path)
    rows[2] = {**rows[2], "chosen": make_pair(8)["chosen"]}
    rows[3] = {**rows[3], "criterion": "colloquialness"}
    rows.append(make_pair(6))
    write_rows(rows)
    assert "3 of them scored now" in score(path)[1]
    np.testing.assert_allclose(rewards_in(tmp_path), expected(scorer, rows), atol=1e-5)
    assert (rewards_in(tmp_path)[:2] == before[:2]).all()
    assert scored_rows(tmp_path) == [0, 1, 2, 2, 3, 3, 4]


def test_recordings_mended_under_the_same_paths_are_scored_again(score, write_rows, make_pair, tmp_path, monkeypatch):
    rows = [make_pair(number) for number in range(3)]
    for row in rows:
        for side in SIDES:
            for number, turn in enumerate(row[side]):
                name = f"{row['pair_id']}-{side}-{number}.wav"
                (tmp_path / name).write_bytes(turn["audio"]["bytes"])
                turn["audio"] = {"bytes": None, "path": name}
    path = write_rows(rows)
    score(path)
    before = rewards_in(tmp_path)
    # Both sides of one pair are exchanged, as of a build with swapped labels.
    for number in range(2):
        chosen, rejected = (tmp_path / f"pair-2-{side}-{number}.wav" for side in SIDES)
        chosen.rename(tmp_path / "kept"), rejected.rename(chosen), (tmp_path / "kept").rename(rejected)
    assert "1 of them scored now" in score(path)[1]
    # The texts of the assistant, "chosen" and "rejected", have stayed.
    kept = rewards_in(tmp_path)
    assert (kept[:2] == before[:2]).all() and (kept[2] != before[2]).all()
    # Rows in the same files are not read again; copied files are read, and found equal.
    with monkeypatch.context() as patch:
        patch.setattr(scoring_dataset, "read_block", lambda *_: pytest.fail("a row was read"))
        assert "0 of them scored now" in score(path)[1]
    os.utime(path)
    # What cannot be read now was scored when it could be.
    (tmp_path / "pair-1-chosen-0.wav").unlink()
    assert "0 of them scored now" in score(path)[1]
    assert (rewards_in(tmp_path) == kept).all()


@pytest.mark.slow
def test_two_processes_share_the_rows_that_one_left(score, write_rows, make_pair, scorer, tiny_checkpoint, tmp_path):
    rows = [make_pair(number) for number in range(9)]
    path = write_rows(rows)
    score(path, "--max_samples", 4)
    command = ["-m", "sdiareward.cli", "score", "--dataset", str(path), "--output_dir", str(tmp_path / "out")]
    log = tmp_path / "log.txt"
    with log.open("w") as file:
        command = [sys.executable, *command, "--model", str(tiny_checkpoint), "--device", "cpu", "--batch-tokens", "1"]
        ranks = forked.start_ranks(command, 2, stdout=file, stderr=file)
        assert [rank.wait() for rank in ranks] == [0, 0], log.read_text()
    assert log.read_text().count("of them scored now") == 1
    assert "5 of them scored now" in log.read_text()
    assert scored_rows(tmp_path) == list(range(9))
    np.testing.assert_allclose(rewards_in(tmp_path), expected(scorer, rows), atol=1e-5)


def test_parquet_is_read_across_row_groups_and_files_with_gaps(write_rows, tmp_path):
    rows = [{"messages": [{"role": "user", "text": str(number)}], "id": number} for number in range(50)]
    files = [write_rows(rows[:23], "data/train-0.parquet", 5), write_rows(rows[23:], "data/train-1.parquet", 20)]
    opened = open_rows(tmp_path / "data")
    assert (opened.num_rows, list(opened.features)) == (50, ["messages", "id"])
    for numbers in ([0, 1, 4, 5, 22, 23, 44], [45, 49], [3]):
        table = opened.read(numbers, ["id", "messages"])
        assert table["id"].to_pylist() == numbers
        assert [turns[0]["text"] for turns in table["messages"].to_pylist()] == list(map(str, numbers))
    assert opened.tables == [stamp_file(file) for file in files]
    with pytest.raises(IndexError, match="row 50 of 50"):
        opened.read([50], ["id"])
    write_rows([{"b": 1}], "data/train-1.parquet")
    with pytest.raises(ValueError, match=r"train-1\.parquet: has columns \['b'\]"):
        open_rows(tmp_path / "data")
    write_rows(rows[:1], "data/test.parquet")
    with pytest.raises(ValueError, match="split is None; this data set has test, train: give one"):
        open_rows(tmp_path / "data")
    saved = datasets.DatasetDict({"validation": datasets.Dataset.from_list([{"id": k} for k in range(4)])})
    saved.save_to_disk(tmp_path / "saved")
    opened = open_rows(tmp_path / "saved")
    assert opened.read([1, 3], ["id"])["id"].to_pylist() == [1, 3]
    assert opened.tables == open_rows(tmp_path / "saved", "validation").tables != []
