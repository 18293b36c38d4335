import hashlib
import io
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
from support.systems_world import write_system

from sdiareward.cli import main
from sdiareward.pairs.content import stamp_file
from sdiareward.pairs.labels import describe_pairs, sample_rows
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.messages import read_dialogue, turns_to_messages
from sdiareward.pairs.rows import open_rows
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
        buffer = io.BytesIO()
        soundfile.write(buffer, make_tone(0.1 * (1 + seed % 3), 100.0 + 10 * seed, seed), 16_000, format="FLAC")
        return {"role": role, "text": text, "audio": {"bytes": buffer.getvalue(), "path": None}}

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

    def write(rows, name="pairs.parquet", row_group_size=4):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name, row_group_size=row_group_size)
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
    return np.array(
        [
            [scorer.score([turns_to_messages(row[side])], row["criterion"] or "joint")[0] for side in SIDES]
            for row in rows
        ]
    )


def scores(tmp_path):
    return pq.read_table(tmp_path / "out" / "scores.parquet").to_pylist()


def scored_rows(tmp_path):
    """Return the row of each record with rewards in all parts, also of those that a newer one replaces."""
    parts = (tmp_path / "out" / "parts").glob("*.parquet")
    records = [record for path in parts for record in pq.read_table(path).to_pylist()]
    return sorted(record["item"] for record in records if record["reason"] is None)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_pairs_get_the_rewards_of_their_sides_in_the_order_of_the_rows(score, write_rows, make_pair, scorer, tmp_path):
    rows = [make_pair(number) for number in range(7)]
    code, out, _ = score(write_rows(rows))
    found = scores(tmp_path)
    assert code == 0
    assert "7 of 7 rows" in out
    assert [(row["row"], row["pair_id"]) for row in found] == [(k, f"pair-{k}") for k in range(7)]
    rewards = np.array([[row[side] for side in SIDES] for row in found])
    np.testing.assert_allclose(rewards, expected(scorer, rows), atol=1e-5)
    np.testing.assert_array_equal([row["margin"] for row in found], rewards[:, 0] - rewards[:, 1])
    assert (tmp_path / "out" / "skipped.jsonl").read_text() == ""
    heard = ["given_s", "heard_s", "num_cut", "silent_turns"]
    assert list(found[0]) == ["row", "pair_id", "chosen", "rejected", "margin", *heard]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    # Three of seven rows have turns of 0.1, 0.1, 0.1 and 0.2 s; two a step further: 0.2, 0.2, 0.2 and 0.3 s; and two
    # 0.3, 0.3, 0.3 and 0.1 s.
    assert summary["summary"]["audio_s"] == pytest.approx(3 * 0.5 + 2 * 0.9 + 2 * 1.0)
    assert (summary["summary"]["num_scored"], summary["summary"]["num_new"]) == (7, 7)
    assert summary["summary"]["real_time_factor"] > 0
    assert summary["versions"]["torch"] == torch.__version__


def test_turns_longer_than_the_model_hears_are_counted(score, write_rows, make_pair, make_tone, tmp_path):
    row = make_pair(0)
    buffer = io.BytesIO()
    soundfile.write(buffer, make_tone(31.0), 16_000, format="FLAC")
    row["rejected"][1]["audio"]["bytes"] = buffer.getvalue()
    assert "1 turns cut: this model hears their first 30 s" in score(write_rows([row]))[1]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())["summary"]
    assert summary["audio_s"] == pytest.approx(0.1 + 0.1 + 0.1 + 30.0)


def test_a_scored_data_set_ends_with_a_summary_of_its_rewards(score, write_rows, make_pair, tmp_path):
    rows = [make_pair(number) for number in range(5)]
    rows[1]["chosen"][0]["audio"]["bytes"] = b"no sound"
    code, out, _ = score(write_rows(rows))
    assert code == 0
    margins = np.array([row["margin"] for row in scores(tmp_path)])
    expected = [margins.mean(), *np.quantile(margins, [0.05, 0.25, 0.5, 0.75, 0.95])]
    lines = [line.split() for line in out.splitlines()]
    assert ["mean", "5%", "25%", "median", "75%", "95%"] in lines
    assert ["margin", *(f"{value:+.3f}" for value in expected)] in lines
    assert f"chosen > rejected in {(margins > 0).sum()} of 4 rows (" in out
    assert re.search(r"1 skipped:\n  row 1: chosen: turn 1: .*cannot be decoded", out)
    assert out.splitlines()[-1] == f"Table: {tmp_path / 'out' / 'scores.parquet'}"
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())["summary"]
    assert summary["rewards"]["margin"]["median"] == pytest.approx(np.median(margins))
    assert (summary["num_right"], summary["num_ties"]) == ((margins > 0).sum(), 0)


def test_a_folder_of_dialogues_is_a_data_set(make_tone, scorer, tmp_path, tiny_checkpoint, capsys, caplog):
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


def test_a_criterion_that_is_given_holds_for_every_row(score, write_rows, make_pair, scorer, tmp_path):
    rows = [make_pair(number) for number in range(2)]
    score(write_rows(rows), "--criterion", "joint")
    rewards = [[row[side] for side in SIDES] for row in scores(tmp_path)]
    np.testing.assert_allclose(rewards, expected(scorer, [row | {"criterion": None} for row in rows]), atol=1e-5)
    assert not np.allclose(rewards, expected(scorer, rows), atol=1e-5)


@pytest.mark.parametrize("column", ["messages", "turns", "dialogue"])
def test_dialogues_in_json_lines_are_scored_with_paths_under_the_audio_root(
    column, score, make_tone, scorer, tmp_path
):
    (tmp_path / "audio").mkdir()
    turns = []
    for number, role in enumerate(("user", "assistant")):
        soundfile.write(tmp_path / "audio" / f"{number}.wav", make_tone(0.2, 200.0 + number), 16_000)
        turns.append({"role": role, "text": f"turn {number}", "audio": f"{number}.wav"})
    rows = [{"id": 5, column: turns_to_messages(turns) if column == "messages" else turns}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, *_ = score(tmp_path / "rows.jsonl", "--audio-root", tmp_path / "audio")
    for turn in turns:
        turn["audio"] = str(tmp_path / "audio" / turn["audio"])
    (reward,) = scorer.score([turns_to_messages(turns)])
    assert code == 0
    [found] = scores(tmp_path)
    assert (found["row"], found["id"], found["reward"]) == (0, 5, pytest.approx(reward, abs=1e-5))


def test_bad_rows_are_skipped_with_reasons_and_tried_again(score, write_rows, make_pair, scorer, tmp_path):
    rows = [make_pair(number) for number in range(6)]
    rows[1]["chosen"] = None
    rows[2]["rejected"][1]["audio"] = {"bytes": None, "path": str(tmp_path / "late.flac")}
    rows[3]["criterion"] = "beauty"
    rows[4]["chosen"][0]["audio"] = {"bytes": b"no audio", "path": None}
    path = write_rows(rows)
    code, out, _ = score(path, "--strict")
    assert code == 1
    assert "2 of 6 rows" in out
    assert "4 skipped" in out
    skipped = lines(tmp_path / "out" / "skipped.jsonl")
    assert [(line["row"], line["pair_id"]) for line in skipped] == [(k, f"pair-{k}") for k in (1, 2, 3, 4)]
    reasons = [line["reason"] for line in skipped]
    assert "chosen: is missing; give a list of turns" in reasons[0]
    assert reasons[1].startswith("rejected: turn 2: ")
    assert "late.flac: no such audio file" in reasons[1]
    assert "criterion is 'beauty'" in reasons[2]
    assert "chosen: turn 1: cannot be decoded" in reasons[3]
    assert [row["row"] for row in scores(tmp_path)] == [0, 5]

    (tmp_path / "late.flac").write_bytes(rows[2]["rejected"][0]["audio"]["bytes"])
    code, out, _ = score(path)
    assert code == 0
    assert "1 of them scored now" in out
    assert [row["row"] for row in scores(tmp_path)] == [0, 2, 5]
    assert [line["row"] for line in lines(tmp_path / "out" / "skipped.jsonl")] == [1, 3, 4]
    assert scored_rows(tmp_path) == [0, 2, 5]


def test_rewards_that_are_no_numbers_are_reasons_to_skip(
    write_rows, make_pair, make_tiny_model, tiny_processor, tmp_path, capsys
):
    model = make_tiny_model()
    model.score.weight.data.fill_(torch.nan)
    model.save_pretrained(tmp_path / "broken")
    tiny_processor.save_pretrained(tmp_path / "broken")
    data = ["--dataset", str(write_rows([make_pair(0)])), "--output_dir", str(tmp_path / "out")]
    assert main(["score", *data, "--model", str(tmp_path / "broken")]) == 2
    assert "none of 1 rows could be scored" in capsys.readouterr().err
    assert "chosen: its reward is nan" in (tmp_path / "out" / "skipped.jsonl").read_text()


def test_what_is_finished_is_not_scored_again_and_a_higher_limit_goes_on(
    score, write_rows, make_pair, scorer, tmp_path, monkeypatch
):
    rows = [make_pair(number) for number in range(5)]
    path = write_rows(rows)
    score(path, "--limit", 3)
    first = scores(tmp_path)
    assert len(first) == 3
    # What a kill in the middle of a part leaves.
    (tmp_path / "out" / "parts" / ".part-000001.parquet.tmp").write_bytes(b"PAR1")
    assert "2 of them scored now" in score(path)[1]
    assert [row for row in scores(tmp_path) if row in first] == first
    monkeypatch.setattr(ModelSpec, "load", lambda *args: pytest.fail("the model was loaded"))
    assert "0 of them scored now" in score(path)[1]
    assert [row["row"] for row in scores(tmp_path)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_a_limit_draws_the_rows_that_an_evaluation_draws(score, write_rows, make_pair, tmp_path, suffix):
    subsets = ("wild", "wild", "wild", "wild", "semi_wild", "scripted")
    rows = [
        {**make_pair(number), "subset": subset, "group_id": f"g{number // 2}", "synthesizer": f"s{number % 2}"}
        for number, subset in enumerate(subsets)
    ]
    path = write_rows(rows)
    if suffix == ".jsonl":
        path = tmp_path / "pairs.jsonl"
        for row in rows:
            for turn in (turn for side in SIDES for turn in row[side]):
                turn["audio"] = write_audio(tmp_path, turn["audio"]["bytes"])
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    draws = []
    for seed in range(4):
        code, out, _ = score(path, "--limit", 3, "--seed", seed)
        assert code == 0 and "3 of 3 rows" in out
        draws.append([row["row"] for row in scores(tmp_path)])
        assert draws[-1] == sorted(sample_rows(describe_pairs(load_pairs(path, "train")), 3, seed))
        assert {subsets[row] for row in draws[-1]} == set(subsets)
    assert len({tuple(draw) for draw in draws}) > 1
    # Scores of other draws are kept.
    assert set(scored_rows(tmp_path)) == {row for draw in draws for row in draw}
    assert "0 of them scored now" in score(path, "--limit", 3)[1]


def write_audio(folder, data):
    name = f"{hashlib.sha256(data).hexdigest()}.flac"
    (folder / name).write_bytes(data)
    return name


def test_rows_with_foreign_labels_or_none_are_drawn(score, write_rows, make_pair, tmp_path):
    foreign = [{**make_pair(number), "subset": "mine", "group_id": number, "category": 3} for number in range(4)]
    for name, rows in {"foreign": foreign, "bare": [make_pair(number) for number in range(4)]}.items():
        code, out, _ = score(write_rows(rows, f"{name}.parquet"), "--limit", 2, "--output_dir", tmp_path / name)
        assert code == 0 and "2 of 2 rows" in out


def test_a_folder_is_not_used_for_other_prompts(score, write_rows, make_pair, tmp_path):
    path = write_rows([make_pair(0), make_pair(1)])
    score(path)
    before = scores(tmp_path)
    (tmp_path / "prompt.txt").write_text("Judge.")
    code, _, err = score(path, "--prompt-file", tmp_path / "prompt.txt")
    assert code == 2
    assert "prompts was None" in err
    assert scores(tmp_path) == before


def rewards_in(tmp_path):
    return np.array([[row[side] for side in SIDES] for row in scores(tmp_path)])


def test_rows_that_have_changed_places_are_scored_again_though_the_footer_is_the_same(
    score, make_pair, scorer, tmp_path
):
    # Recordings of one size, stored as they are: sizes, places and extremes of the columns stay.
    rows = [make_pair(3 * number) for number in range(4)]
    order, path = [2, 1, 0, 3], tmp_path / "pairs.parquet"
    options = {"compression": "none", "use_dictionary": False}
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    before = path.read_bytes()
    score(path)
    pq.write_table(pa.Table.from_pylist([rows[number] for number in order]), path, **options)
    footer = -8 - int.from_bytes(before[-8:-4], "little")
    assert path.read_bytes()[footer:] == before[footer:] and path.read_bytes() != before
    assert "2 of them scored now" in score(path)[1]
    assert [row["pair_id"] for row in scores(tmp_path)] == [f"pair-{3 * number}" for number in order]
    np.testing.assert_allclose(rewards_in(tmp_path), expected(scorer, [rows[number] for number in order]), atol=1e-5)


@pytest.mark.parametrize("change", ["audio", "text", "criterion"])
def test_only_the_row_that_has_changed_is_scored_again(score, write_rows, make_pair, scorer, tmp_path, change):
    rows = [make_pair(number) for number in range(5)]
    path = write_rows(rows)
    score(path)
    before = rewards_in(tmp_path)
    mended = {**rows[3], "chosen": [dict(turn) for turn in rows[3]["chosen"]]}
    if change == "criterion":
        mended["criterion"] = "colloquialness"
    else:
        mended["chosen"][0][change] = make_pair(8)["chosen"][0][change]
    rows[3] = mended
    write_rows([*rows, make_pair(6)])
    assert "2 of them scored now" in score(path)[1]
    np.testing.assert_allclose(rewards_in(tmp_path), expected(scorer, [*rows, make_pair(6)]), atol=1e-5)
    assert (rewards_in(tmp_path)[:3] == before[:3]).all() and rewards_in(tmp_path)[3, 0] != before[3, 0]
    assert scored_rows(tmp_path) == [0, 1, 2, 3, 3, 4, 5]


def test_recordings_of_the_same_names_under_another_root_are_scored_anew(score, make_pair, tmp_path):
    for root, first in (("one", 0), ("two", 2)):
        (tmp_path / root).mkdir()
        for number in range(2):
            data = make_pair(first + number)["chosen"][0]["audio"]["bytes"]
            (tmp_path / root / f"{number}.flac").write_bytes(data)
    turns = [{"role": role, "text": role, "audio": f"{k}.flac"} for k, role in enumerate(("user", "assistant"))]
    path = tmp_path / "table" / "rows.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps({"id": row, "turns": turns}) + "\n" for row in range(2)))
    score(path, "--audio-root", tmp_path / "one")
    before = [row["reward"] for row in scores(tmp_path)]
    assert "0 of them scored now" in score(path, "--audio-root", tmp_path / "one")[1]
    assert "2 of them scored now" in score(path, "--audio-root", tmp_path / "two")[1]
    assert all(row["reward"] != reward for row, reward in zip(scores(tmp_path), before, strict=True))


def test_recordings_mended_under_the_same_paths_are_scored_again(score, write_rows, make_pair, scorer, tmp_path):
    rows = [make_pair(number) for number in range(4)]
    named = json.loads(json.dumps(rows, default=lambda _: None))
    for row, stored in zip(rows, named, strict=True):
        for side in SIDES:
            for number, turn in enumerate(row[side]):
                name = f"{row['pair_id']}-{side}-{number}.flac"
                (tmp_path / name).write_bytes(turn["audio"]["bytes"])
                stored[side][number]["audio"] = {"bytes": None, "path": name}
    path = write_rows(named)
    score(path, "--audio-root", tmp_path)
    before = rewards_in(tmp_path)
    np.testing.assert_allclose(before, expected(scorer, rows), atol=1e-5)
    # Both sides of one pair are exchanged, as of a build with swapped labels.
    for number in range(2):
        chosen, rejected = (tmp_path / f"pair-2-{side}-{number}.flac" for side in SIDES)
        chosen.rename(tmp_path / "kept"), rejected.rename(chosen), (tmp_path / "kept").rename(rejected)
    assert "1 of them scored now" in score(path, "--audio-root", tmp_path)[1]
    # The texts of the assistant, "chosen" and "rejected", have stayed.
    assert (rewards_in(tmp_path)[[0, 1, 3]] == before[[0, 1, 3]]).all()
    assert (rewards_in(tmp_path)[2] != before[2]).all()
    assert "0 of them scored now" in score(path, "--audio-root", tmp_path)[1]
    # What cannot be read now was scored when it could be.
    kept = rewards_in(tmp_path)
    (tmp_path / "pair-1-chosen-0.flac").unlink()
    assert "0 of them scored now" in score(path, "--audio-root", tmp_path)[1]
    assert (rewards_in(tmp_path) == kept).all()


@pytest.mark.slow
def test_rows_in_the_same_files_are_not_read_again(score, write_rows, make_pair, monkeypatch):
    path = write_rows([make_pair(number) for number in range(3)])
    score(path)
    monkeypatch.setattr(scoring_dataset, "read_block", lambda *_: pytest.fail("a row was read"))
    assert "0 of them scored now" in score(path)[1]
    monkeypatch.undo()
    os.utime(path)
    assert "0 of them scored now" in score(path)[1]


def test_a_prompt_file_takes_the_place_of_the_models_prompts(score, write_rows, make_pair, tiny_checkpoint, tmp_path):
    rows = [make_pair(0), make_pair(1)]
    (tmp_path / "prompts.json").write_text(json.dumps({"modality": "Judge the sound."}))
    score(write_rows(rows), "--prompt-file", tmp_path / "prompts.json")
    prompted = Scorer.from_pretrained(tiny_checkpoint, prompts={"modality": "Judge the sound."})
    rewards = [[row[side] for side in SIDES] for row in scores(tmp_path)]
    np.testing.assert_allclose(rewards, expected(prompted, rows), atol=1e-5)


def score_command(tmp_path, checkpoint, dataset, *launcher):
    command = [sys.executable, *launcher, "-m", "sdiareward.cli", "score", "--dataset", str(dataset)]
    return command + ["--output_dir", str(tmp_path / "out"), "--model", str(checkpoint), "--batch-tokens", "1"]


def run_in_background(tmp_path, checkpoint, dataset, *launcher):
    command = score_command(tmp_path, checkpoint, dataset, *launcher)
    with (tmp_path / "log.txt").open("a") as log:
        return forked.Popen(command, stdout=log, stderr=log)


# Without `--multi_gpu`, accelerate starts one process where there are no GPUs.
LAUNCHER = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0")


@pytest.mark.slow
def test_two_processes_share_the_rows_that_one_left(score, write_rows, make_pair, scorer, tiny_checkpoint, tmp_path):
    rows = [make_pair(number) for number in range(9)]
    path = write_rows(rows)
    score(path, "--limit", 4)
    process = run_in_background(tmp_path, tiny_checkpoint, path, *LAUNCHER)
    assert process.wait() == 0, (tmp_path / "log.txt").read_text()
    assert "5 of them scored now" in (tmp_path / "log.txt").read_text()
    assert (tmp_path / "log.txt").read_text().count("of them scored now") == 1
    assert scored_rows(tmp_path) == list(range(9))
    found = scores(tmp_path)
    assert [row["row"] for row in found] == list(range(9))
    np.testing.assert_allclose([[row[side] for side in SIDES] for row in found], expected(scorer, rows), atol=1e-5)


def test_parquet_is_read_across_row_groups_and_files_with_gaps(write_rows, tmp_path):
    rows = [{"messages": [{"role": "user", "text": str(number)}], "id": number} for number in range(50)]
    files = [write_rows(rows[:23], "data/train-0.parquet", 5), write_rows(rows[23:], "data/train-1.parquet", 20)]
    opened = open_rows(tmp_path / "data")
    assert (opened.num_rows, list(opened.features)) == (50, ["messages", "id"])
    for numbers in ([0, 1, 4, 5, 22, 23, 44], [45, 49], [3]):
        table = opened.read(numbers, ["id", "messages"])
        assert table["id"].to_pylist() == numbers
        assert [turns[0]["text"] for turns in table["messages"].to_pylist()] == list(map(str, numbers))
    assert open_rows(files[0]).num_rows == 23
    assert opened.tables == [stamp_file(file) for file in files]
    with pytest.raises(IndexError, match="row 50 of 50"):
        opened.read([50], ["id"])


def test_blocks_hold_fewer_rows_where_rows_are_large(write_rows):
    rows = [{"messages": [{"role": "user", "audio": os.urandom(2**20)}]} for _ in range(3)]
    assert open_rows(write_rows(rows)).block_rows == 127
    assert open_rows(write_rows([{"messages": [{"role": "user"}]}])).block_rows == 512


def test_a_split_is_needed_only_where_there_are_several(write_rows, tmp_path):
    rows = [{"id": 1, "dialogue": [{"role": "user", "text": "a"}]}]
    for split, number in (("train", 1), ("test", 2)):
        write_rows(rows * number, f"data/{split}.parquet")
    with pytest.raises(ValueError, match="split is None; this data set has test, train: give one"):
        open_rows(tmp_path / "data")
    assert open_rows(tmp_path / "data", "test").num_rows == 2


def test_a_data_set_that_datasets_saved_is_read(tmp_path):
    saved = datasets.DatasetDict({"validation": datasets.Dataset.from_list([{"id": k} for k in range(4)])})
    saved.save_to_disk(tmp_path / "saved")
    opened = open_rows(tmp_path / "saved")
    assert opened.read([1, 3], ["id"])["id"].to_pylist() == [1, 3]
    assert opened.tables == open_rows(tmp_path / "saved", "validation").tables != []


def test_files_with_other_columns_are_refused_by_name(write_rows, tmp_path):
    write_rows([{"a": 1}], "data/train-0.parquet")
    write_rows([{"b": 1}], "data/train-1.parquet")
    with pytest.raises(ValueError, match=r"train-1\.parquet: has columns \['b'\]"):
        open_rows(tmp_path / "data")
