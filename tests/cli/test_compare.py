"""`sdiareward compare` from folders and tables to files, with a model of a few thousand parameters."""

import json
import re
import shutil
from itertools import product
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import soundfile
from support.paths import ROOT
from support.systems_world import write_system, write_tone

import sdiareward
from sdiareward.chat_sdiareward import make_dialogue
from sdiareward.cli import main
from sdiareward.common.package import NANO
from sdiareward.evaluation import comparison
from sdiareward.evaluation.comparison import measure_dialogue
from sdiareward.evaluation.comparison_page import choose_examples
from sdiareward.evaluation.verdicts import MATCHED_DBFS, count_wins, describe_accuracy, list_limits, phrase_verdict
from sdiareward.pairs.messages import read_dialogue
from sdiareward.scoring.scorer import Scorer


NASTY = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def own_place(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    # Figures are drawn for `two`.
    monkeypatch.setattr("sdiareward.evaluation.report.figures.save_figure", lambda *_: b"")


@pytest.fixture(scope="module")
def systems(tmp_path_factory):
    """Return the folders of three systems; the first has a dialogue of its own, the second a broken one."""
    folder = tmp_path_factory.mktemp("systems")
    found = [write_system(folder / name, number) for number, name in enumerate("abc")]
    write_system(folder / "a", 0, 1, first=90)
    for name in "abc":
        shutil.copytree(folder / name / "d00", folder / name / "d50")
        (folder / name / "d00" / "1.txt").write_text(NASTY)
    (folder / "b" / "d50" / "1.wav").write_bytes(b"no sound")
    return found


@pytest.fixture
def compare(tiny_checkpoint, capsys):
    """Return a function running `sdiareward compare` and giving exit code, standard output and standard error."""

    def run(*arguments):
        code = main(["compare", *map(str, arguments), "--model", str(tiny_checkpoint), "--num_bootstrap", "50"])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def two(systems, tiny_checkpoint, tmp_path_factory):
    """Return a finished comparison of two systems."""
    folder = tmp_path_factory.mktemp("two")
    options = {"model": tiny_checkpoint, "criterion": "modality", "num_bootstrap": 50}
    return sdiareward.compare(*systems[:2], output_dir=folder / "out", **options)


def test_the_files_hold_the_rewards_of_single_dialogues_and_the_page_plays_them(two, systems, tiny_checkpoint):
    folder, scorer = Path(two.output_dir), Scorer.from_pretrained(tiny_checkpoint)
    names = [f"d{number:02}" for number in range(6)]
    rewards = [scorer.score([read_dialogue(system / name) for name in names], "modality") for system in systems[:2]]
    table = two.dialogues.pivot(index="system", columns="dialogue", values="reward")
    np.testing.assert_allclose(table.loc[["a", "b"], names].to_numpy(), rewards, atol=1e-5)
    [pair] = two.pairs
    # The first is the one that wins more often.
    if pair["first"] == "b":
        rewards.reverse()
    assert {pair["first"], pair["second"]} == {"a", "b"} and pair["num_first"] >= pair["num_second"]
    assert pair["num_first"] == np.greater(*rewards).sum() and pair["num_second"] == np.less(*rewards).sum()
    assert pair["mean_margin"] == pytest.approx(np.subtract(*rewards).mean(), abs=1e-5)
    report, page = json.loads((folder / "compare.json").read_text()), Path(two.page).read_text()
    assert (report["verdict"], report["pairs"], report["ranking"]) == (two.verdict, two.pairs, [])
    assert report["num_dialogues"] == 6 and "excludes 50%" in report["rule"]
    assert pd.read_parquet(folder / "compare.parquet").equals(two.dialogues.reset_index(drop=True))
    assert list(two.dialogues.columns)[:5] == ["dialogue", "group_id", "system", "criterion", "reward"]
    files = ["index.html", "level_db_modality.svg", "margins_modality_1.svg"]
    assert sorted(path.name for path in (folder / "report").iterdir()) == files
    assert two.unmatched == [{"dialogue": "d90", "missing_in": ["b"]}] and '"#skipped"' in page
    [broken] = two.skipped
    assert (broken["system"], broken["dialogue"]) == ("b", "d50")
    assert re.search(r"turn 2: .*d50/1\.wav.*cannot be decoded", broken["reason"])
    assert page.index(two.verdict[:20]) < page.index("<table>")
    assert NASTY not in page and "&lt;script&gt;alert(1)" in page
    # Six dialogues, two systems, two turns.
    assert page.count("<audio controls") == 24 and page.count('src="data:audio/mpeg;base64,') == 24
    shown = two._repr_html_()
    assert repr(two) == f"Comparison({two.verdict.splitlines()[0]})"
    assert "<table>" in shown and two.limits[0].split()[0] in shown and NASTY not in shown


def test_a_terminal_shows_the_verdict_first_and_where_the_page_is(compare, systems, two):
    code, out, _ = compare(*systems[:2], "--criterion", "modality", "--output_dir", two.output_dir)
    assert code == 0
    assert out.splitlines()[0] == two.verdict
    assert f"Page: {two.output_dir}/report/index.html" in out
    assert "1 dialogues are not in all systems and were skipped: d90 (not in b)" in out
    assert re.search(r"b, d50: .*cannot be decoded", out)
    assert "A difference is clear only if" in out and "modality: how a dialogue sounds" in out


@pytest.mark.slow
def test_three_systems_under_every_criterion_are_ranked(compare, systems):
    code, out, err = compare(*systems, "--criterion", "all", "--embed_audio", "none")
    assert code == 0, err
    report = json.loads(Path("compare-a-b-c/compare.json").read_text())
    assert report["criteria"] == ["modality", "colloquialness", "joint"]
    assert len(report["pairs"]) == 9 and len(report["ranking"]) == 9
    order = [row["system"] for row in report["ranking"] if row["criterion"] == "joint"]
    num_clear = sum(pair["is_clear"] for pair in report["pairs"] if pair["criterion"] == "joint")
    assert f"joint: Ranking, best first: {', '.join(order)}; {num_clear} of 3 differences are clear." in out
    assert any("3 pairs of systems" in line for line in report["limits"])


def test_a_table_of_all_systems_and_their_folders_are_told_the_same(compare, systems, two):
    rows = []
    for number, system in product(range(6), systems[:2]):
        folder = system / f"d{number:02}"
        turns = [{"role": "user", "audio": str(folder / "0.wav")}]
        turns.append({"role": "assistant", "audio": str(folder / "1.wav"), "text": (folder / "1.txt").read_text()})
        rows.append({"system": system.name, "id": folder.name, "group_id": f"g{number // 3}", "turns": turns})
    Path("all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--criterion", "modality", "--audio_root", systems[0].parent, "--output_dir", "out"]
    code, out, err = compare("all.jsonl", *options)
    assert code == 0, err
    found = json.loads(Path("out/compare.json").read_text())
    for name in ("num_first", "num_second", "mean_margin"):
        assert found["pairs"][0][name] == pytest.approx(two.pairs[0][name])
    assert found["num_groups"] == 2
    assert "Only 6 dialogues of 2 groups were compared" in out


@pytest.mark.slow
def test_limits_name_cuts_levels_lengths_and_turns_of_the_user(compare, systems):
    shutil.copytree(systems[0], "loud")
    for number in range(6):
        write_tone(Path(f"loud/d{number:02}/1.wav"), 31.0 if number == 0 else 1.5, 200.0 + number, amplitude=0.9)
    write_tone(Path("loud/d01/0.wav"), 0.2, 900.0)
    code, out, err = compare(systems[0], "loud", "--output_dir", "out", "--embed_audio", "none")
    assert code == 0, err
    assert "loud: 1 of 16 turns are cut. This model hears their first 30 s; 1 of " in out
    assert re.search(r"loud has longer answers in 6, by \d\.\d s on average", out)
    assert re.search(r"loud has louder answers in 6, by \d\.\d dB on average; compare with --match_level", out)
    assert "turns differ between systems in 1 of 8 dialogues, such as d01" in out
    assert "This checkpoint has no results.json" in out


@pytest.mark.parametrize(
    ("kind", "reason"), [("soft", "louder answers"), ("short", "more turns"), ("words", "more transcripts")]
)
def test_a_clear_win_of_another_level_or_number_of_turns_is_not_called_clear(compare, kind, reason, monkeypatch):
    """The rewards are made up: the first system always wins."""
    write_system(Path("a"), 0)
    for folder in Path("a").iterdir():
        for place in (0, 1):
            shutil.copy(folder / f"{place}.wav", folder / f"{place + 2}.wav")
    shutil.copytree("a", "b")
    lost = {"short": "[23].wav", "words": "1.txt", "soft": "none"}[kind]
    for path in Path("b").glob(f"*/{lost}"):
        path.unlink()
    for sound in Path("b").rglob("*.wav") if kind == "soft" else ():
        soundfile.write(sound, 0.5 * soundfile.read(sound)[0], 16_000, subtype="FLOAT")

    def score(job, criteria, measured, skipped):
        number = measured["dialogue"].str[1:].astype(float)
        return measured.assign(criterion="joint", reward=(number + 1).where(measured["system"] == "a", 0.0))

    real = comparison.score_systems
    monkeypatch.setattr(comparison, "score_systems", score)
    code, out, err = compare("a", "b", "--output_dir", "out", "--embed_audio", "none")
    assert code == 0, err
    assert out.startswith("a scores higher than b in 6 of 6 dialogues") and " may explain it: " in out
    assert f"a has {reason} in 6" in out.splitlines()[0] and "only 6 dialogues" in out.splitlines()[0]
    [pair] = json.loads(Path("out/compare.json").read_text())["pairs"]
    assert not pair["is_clear"] and pair["p_value"] < 0.05
    if kind == "soft":
        # At one level, what remains is the win.
        code, out, err = compare("a", "b", "--output_dir", "matched", "--match_level", "--embed_audio", "none")
        assert code == 0, err
        assert out.startswith("a sounds more like a real conversation than b in 6 of 6")
        assert "All recordings were brought to -26 dBFS" in Path("matched/report/index.html").read_text()
        monkeypatch.setattr(comparison, "score_systems", real)
        assert compare("a", "b", "--output_dir", "scored", "--match_level", "--embed_audio", "none")[0] == 0
        [pair] = json.loads(Path("scored/compare.json").read_text())["pairs"]
        assert abs(pair["mean_margin"]) < 1e-4 and not pair["is_clear"]
        code, _, err = compare("a", "b", "--output_dir", "scored")
        assert code == 2 and "match_level" in err


def test_the_accuracy_of_the_checkpoint_is_reported(tmp_path):
    evaluation = json.loads((NANO / "results.json").read_text())
    line = describe_accuracy(str(NANO), ["modality"])
    accuracy = 100 * evaluation["accuracies"]["model"]["modality_micro"]
    assert f"right on {accuracy:.2f}%" in line and "colloquialness" not in line
    assert describe_accuracy(str(NANO), ["joint"]).endswith("It was not measured under joint.")
    for row in evaluation["by_synthesizer"]:
        row["model"]["accuracy"] = 0.0
    (tmp_path / "results.json").write_text(json.dumps({**evaluation, "overlap": None}))
    line = describe_accuracy(str(tmp_path), ["modality"])
    assert ", 0.00% of those by synthesizers held out of training." in line
    assert line.endswith("it may have been trained on these pairs.")


def test_silence_and_low_sampling_rates_limit_a_verdict():
    equal = dict.fromkeys(("num_cut", "num_turns", "cut_s", "audio_s", "num_silent"), 0)
    equal |= {"criterion": "joint", "user_hash": "", "lowest_rate": 16_000, "highest_rate": 16_000}
    rows = [{**equal, "dialogue": name, "group_id": name, "system": of} for name in "klmnopqrstuv" for of in "ab"]
    table = pd.DataFrame(rows).astype({"lowest_rate": "Int64", "highest_rate": "Int64"})

    def find(model="."):
        return list_limits(model, table, [], 6.0, False)

    assert find(str(NANO))[0].text.startswith("nano is a demonstration") and len(find()) == 1
    table.loc[[5, 7], "num_silent"], table.loc[9, "lowest_rate"] = 1, 8_000
    table.loc[[0, 1], ["lowest_rate", "highest_rate"]] = pd.NA
    silent, rates, _ = find()
    assert silent.text.startswith("b: nothing is heard in an answer of 2 of 12 dialogues, such as m; ")
    assert rates.text.startswith("b: recordings are at 8000 to 16000 Hz; in 1 of 12 dialogues one is below")
    assert silent.system == rates.system == "b" and silent.short == "silent answers of b in 2"


def verdict(num_first, num_second, num_ties=0, names="AB", criterion="modality", groups=None, limits=(), follows=()):
    margins = [1.0] * num_first + [-1.0] * num_second + [0.0] * num_ties
    found = count_wins(margins, groups or range(len(margins)))
    pair = {"criterion": criterion, "first": names[0], "second": names[1], "follows": dict(follows), **found}
    return phrase_verdict(pair, limits)


def test_a_verdict_names_the_better_system_its_share_and_what_limits_it():
    text = verdict(37, 3)
    assert text.startswith("A sounds more natural than B in 37 of 40 dialogues (92.5%, 95% interval 7")
    assert text.endswith(" over 40 dialogues, sign test p < 0.001).")
    guide = " ".join((ROOT / "docs" / "compare.md").read_text(encoding="utf-8").split())
    assert f'"{verdict(37, 3, names="ba", criterion="joint")[:-1]}"' in guide
    assert verdict(22, 18).startswith("No clear difference between A and B: A sounds more natural in 22 of 40")
    assert verdict(0, 0, 5) == "No clear difference between A and B: their rewards are equal in all 5 dialogues."
    assert "in 30 of 40 dialogues, 6 tied (win rate 82.5%, " in verdict(30, 4, 6)
    assert "(75.0%, no interval over 1 group, sign test p = 1.000)" in verdict(3, 1, groups=["a"] * 4)
    follows = {"is_suspect": False, "is_systematic": True, "mean_difference": 1.0, "num_first": 9}
    text = verdict(26, 0, limits=["only 5 dialogues", "B cut"], follows={"level_db": follows})
    assert text.startswith("A scores higher than B in 26 of 26") and text.endswith(
        "; limits: only 5 dialogues, B cut."
    )
    assert "level may explain it: A has louder answers in 9, by 1.0 dB" in text


def spoken(role, array, rate=16_000):
    return {"role": role, "content": [{"type": "audio", "audio": {"array": array, "sampling_rate": rate}}]}


def measure(*messages, max_turn_s=1.0, **options):
    return measure_dialogue(make_dialogue(list(messages)), max_turn_s, **options)


def test_length_level_rates_and_cuts_are_measured_of_what_the_model_hears(make_tone):
    half = np.resize(np.array([0.5, -0.5], dtype=np.float32), 16_000)
    answer, late = np.concatenate([half, np.zeros(8_000, np.float32)]), np.concatenate([np.zeros(16_000), half])
    found = measure(spoken("user", half), spoken("assistant", answer))
    expected = {"num_turns": 2, "num_cut": 1, "audio_s": 2.5, "cut_s": 0.5, "answer_s": 1.5, "heard_answer_s": 1.0}
    assert {name: found[name] for name in expected} == expected and found["num_silent"] == 0
    assert found["level_dbfs"] == pytest.approx(20 * np.log10(0.5), abs=1e-6)
    assert measure(spoken("user", half), spoken("assistant", late))["num_silent"] == 1
    assert found["user_hash"] == measure(spoken("user", half), spoken("assistant", half))["user_hash"]
    assert found["user_hash"] != measure(spoken("user", answer), spoken("assistant", answer))["user_hash"]
    tone = make_tone(0.5)
    found = measure(spoken("user", tone), spoken("assistant", tone, 8_000), max_turn_s=6.0, match_level=True)
    assert (found["lowest_rate"], found["highest_rate"]) == (8_000, 16_000)
    assert found["level_dbfs"] == pytest.approx(MATCHED_DBFS, abs=0.01)


def test_examples_are_the_clearest_and_the_closest_and_none_is_both():
    rewards = np.stack([np.zeros(40), np.arange(40.0)], axis=1)
    assert choose_examples(rewards) == (list(range(39, 29, -1)), list(range(10)))
    assert choose_examples(rewards[:15]) == ([14, 13, 12, 11, 10, 9, 8, 7], [0, 1, 2, 3, 4, 5, 6])
    assert choose_examples(rewards[:1]) == ([0], [])


def test_a_call_without_a_folder_leaves_nothing_and_equal_systems_do_not_differ(systems, tiny_checkpoint, tmp_path):
    shutil.copytree(systems[0], "copy")
    found = sdiareward.compare(systems[0], "copy", model=tiny_checkpoint, criterion="modality", num_bootstrap=50)
    expected = "No clear difference between a and copy: their rewards are equal in all 8 dialogues; limits: "
    assert found.verdict.startswith(expected) and (found.output_dir, found.page) == (None, None)
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("a", "a: is a single system; give a second folder or table"),
        ("a none", "none: no such file or folder"),
        ("a a", "is given twice"),
        ("a a/d00/0.wav", "a/d00/0.wav: is not a table of rows"),
        ("a b --user_turns none", "none: no such folder"),
        ("a b/d00", r"d00: its recordings, such as 0\.wav, name no user's turn"),
        ("a empty", "empty: has no dialogues"),
        ("a other", "no dialogue is in all of 2 systems: a has d00, d01, d02; other has z"),
        ("a broken", r"none of 1 dialogues can be compared; broken, d00: .*cannot be decoded"),
        ("a b --criterion humor", "criterion is 'humor'; this model knows colloquialness, joint"),
        ("a b --pattern {name}.wav", r"pattern is '\{name\}\.wav'"),
    ],
)
def test_a_mistake_ends_in_one_line(compare, systems, arguments, problem):
    for name in ("a", "b"):
        Path(name).symlink_to(systems[0].parent / name)
    Path("empty").mkdir()
    write_system(Path("other"), 0, 1)
    Path("other/d00").rename("other/z")
    write_system(Path("broken"), 0, 1)
    Path("broken/d00/1.wav").write_bytes(b"no sound")
    code, out, err = compare(*arguments.split())
    assert (code, out, "Traceback" in err) == (2, "", False)
    last = err.splitlines()[-1]
    assert last.startswith("sdiareward compare: error: ") and re.search(problem, last), last


def test_other_systems_in_a_folder_and_all_criteria_in_processes_are_refused(compare, systems, two, monkeypatch):
    code, _, err = compare(systems[0], systems[2], "--criterion", "modality", "--output_dir", two.output_dir)
    assert code == 2 and "systems was" in err.splitlines()[-1] and "use another output_dir" in err.splitlines()[-1]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    code, _, err = compare(*systems[:2], "--criterion", "all")
    assert code == 2
    assert "run each criterion into one output_dir, then all in a single process" in err
