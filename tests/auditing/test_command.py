"""The command and its page, also in Debian's Chromium at the width of a phone and of a desk."""

import json
import re
import shutil
from pathlib import Path

import datasets
import numpy as np
import pytest
import soundfile
from support.audit_world import make_dataset, write_data
from support.chromium import SIZES, measure_widths, needs_chromium, open_page, requested, started

from sdiareward.auditing.report import MARKS, render_audit_page
from sdiareward.auditing.run import Auditor
from sdiareward.checkpoint_io.training_record import write_pairs_record
from sdiareward.cli import main
from sdiareward.perturbations.attacks import ATTACKS
from sdiareward.perturbations.registry import PERTURBATIONS
from sdiareward.scoring.model_spec import ModelSpec


pytestmark = pytest.mark.slow


# A perturbation with two places to fail, one attack of each kind, and nothing that takes long.
FEW = ("--perturbations", "gain", "polarity", "--attacks", "foreign_ending", "written_demand", "repeated_turns")
# What is there of the whole audit, so that nothing is scored and little is drawn.
LITTLE = ("--parts", "perturbations", "attacks", "--perturbations", "polarity", "--attacks", "foreign_ending")
SCRIPT = "<script>document.title = 'hit'</script><img src=x onerror=\"document.title='hit'\">"


@pytest.fixture(scope="module")
def data(make_tone, tmp_path_factory):
    return write_data(make_tone, tmp_path_factory.mktemp("audit") / "pairs")


@pytest.fixture(scope="module")
def run(tiny_checkpoint, data):
    """Return a function that audits the tiny checkpoint and gives the exit status."""

    def audit(folder, *arguments, model=tiny_checkpoint, dataset=data):
        places = ["--model", model, "--dataset", dataset, "--output_dir", folder]
        return main(["audit", *map(str, [*places, *arguments])])

    return audit


@pytest.fixture(scope="module")
def audited(run, tmp_path_factory):
    """Return the folder of a whole audit of few changes."""
    folder = tmp_path_factory.mktemp("audited") / "audit"
    assert run(folder, *FEW) == 0
    return folder


@pytest.fixture
def copy(audited, tmp_path):
    """Return a copy of that folder, so that a test may change it."""
    return Path(shutil.copytree(audited, tmp_path / "audit"))


def read(folder):
    return json.loads((folder / "audit.json").read_text(encoding="utf-8"))


def statuses(audit):
    return {verdict["name"]: verdict["status"] for verdict in audit["verdicts"]}


def test_an_audit_measures_every_part_and_says_what_it_did_not_measure(audited):
    audit = read(audited)
    assert (audit["num_pairs"], audit["num_groups"], audit["skipped"], audit["failures"]) == (6, 6, [], [])
    found = statuses(audit)
    measured = {name for name, status in found.items() if status != "not measured"}
    applied = {name for name in measured if name.startswith("perturbation.")}
    assert applied == {"perturbation.gain", "perturbation.polarity"}
    assert {"attack.foreign_ending", "attack.written_demand", "attack.repeated_turns"} <= measured
    assert {"perturbations.flip_rate", "hearing.audio_only.modality", "baselines.modality"} <= measured
    assert len(found) == 5 + len(PERTURBATIONS) + len(ATTACKS) + 4 + 2
    table, page = (audited / "audit.md").read_text(), (audited / "audit.html").read_text()
    assert f"The model fails {list(found.values()).count('fail')} of {len(measured)} measured checks." in page
    assert all((f"| {name} | " in table) == (name in measured) and name in table for name in found)
    assert page.count("✗ failed</td>") == list(found.values()).count("fail")


def test_a_smaller_audit_takes_what_is_there(copy, run):
    rewards = (copy / "rewards.jsonl").read_bytes()
    assert run(copy, "--max_samples", 3, "--parts", "perturbations", "--perturbations", "gain") == 0
    audit = read(copy)
    assert (audit["num_pairs"], audit["attacks"], audit["hearing"]) == (3, None, None)
    assert (copy / "rewards.jsonl").read_bytes() == rewards
    assert statuses(audit)["perturbations.flip_rate"] != "not measured"


def test_checks_that_must_not_fail_set_the_exit_status(copy, run, tmp_path, capsys):
    assert run(copy, *LITTLE, "--fail-on", "any", "perturbation.noise") == 1
    earlier, error = read(copy), capsys.readouterr().err
    # Named, but not measured: it is not known to hold.
    failed = [name for name, status in statuses(earlier).items() if status == "fail"]
    assert sorted(re.findall(r"^sdiareward: (\S+): ", error, re.MULTILINE)) == sorted([*failed, "perturbation.noise"])
    assert "perturbation.noise: not measured, limit at most 3.0%" in error
    # What an earlier audit passed must pass again.
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(earlier))
    passed = [name for name, status in statuses(earlier).items() if status == "pass"]
    assert run(copy, *LITTLE, "--against", path, "--fail-on", *passed) == 0
    assert "| check | what | before | value |" in (copy / "audit.md").read_text()
    lost = next(verdict for verdict in earlier["verdicts"] if verdict["status"] == "fail")
    lost["status"] = "pass"
    path.write_text(json.dumps(earlier))
    capsys.readouterr()
    assert run(copy, *LITTLE, "--against", path) == 1
    error = capsys.readouterr().err.strip()
    assert error.startswith(f"sdiareward: {lost['name']}: ") and error.endswith("; the earlier audit passed it")


def test_an_attack_takes_from_the_same_dialogues_whatever_the_size_of_the_sample(data, tiny_checkpoint, tmp_path):
    model = ModelSpec(str(tiny_checkpoint))
    few, many = (Auditor(model, str(data), tmp_path, max_samples=size).distractors for size in (1, 0))
    assert [pair.pair_id for pair in few] == [pair.pair_id for pair in many] and len(few) == 6


def test_own_recordings_are_pasted_in_and_belong_to_the_audit(run, tmp_path, capsys):
    (tmp_path / "sounds" / "demand").mkdir(parents=True)
    little = ("--max_samples", 1, "--parts", "attacks", "--attacks", "spoken_demand")
    own = (*little, "--sounds_dir", tmp_path / "sounds")
    assert run(tmp_path / "o", *own) == 2
    assert "has no recordings" in capsys.readouterr().err
    soundfile.write(tmp_path / "sounds" / "demand" / "me.wav", np.full(1600, 0.1), 16_000)
    assert run(tmp_path / "o", *own) == 0
    assert statuses(read(tmp_path / "o"))["attack.spoken_demand"] != "not measured"
    assert run(tmp_path / "o", *little) == 2
    assert "sounds was" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((*FEW, "--seed", 1), "seed was 0, is 1"),
        ((*LITTLE, "--max_samples", 3, "--against", "audit.json"), "num_pairs was 6, is 3"),
    ],
)
def test_what_cannot_be_audited_is_refused(copy, run, capsys, monkeypatch, flags, message):
    monkeypatch.chdir(copy)
    assert run(copy, *flags) == 2
    assert message in capsys.readouterr().err


def test_own_pairs_without_labels_are_audited_without_baselines_and_named_if_trained_on(
    run, make_tone, tiny_checkpoint, tmp_path, capsys
):
    path, model = tmp_path / "own.parquet", shutil.copytree(tiny_checkpoint, tmp_path / "model")
    pairs = make_dataset(make_tone, 2).select_columns(["chosen", "rejected"])
    pairs.to_parquet(path)
    write_pairs_record(model, pairs.select([0]), [], is_trained=False)
    few = ("--parts", "baselines", "hearing", "--perturbations", "none", "--attacks", "none")
    assert run(tmp_path / "o", *few, dataset=path, model=model) == 0
    assert "notice: no baselines: " in capsys.readouterr().err
    found = read(tmp_path / "o")
    assert {row["column"] for row in found["hearing"]["rows"]} == {"overall_micro"}
    assert (len(found["overlap"]["content"]), found["overlap"]["others"]["num_pairs"]) == (1, 1)
    for name in ("audit.md", "audit.html"):
        text = (tmp_path / "o" / name).read_text()
        assert "1 of these 2 pairs was a training pair" in text and "split test" not in text


def test_a_model_that_does_not_know_a_criterion_is_refused(run, make_tone, tmp_path, capsys):
    path, rows = tmp_path / "pairs.parquet", make_dataset(make_tone, 1).to_list()
    datasets.Dataset.from_list([{**row, "criterion": "loudness"} for row in rows]).to_parquet(path)
    assert run(tmp_path / "o", "--parts", "hearing", dataset=path) == 2
    assert "the pairs have the criteria ['loudness']; this model supports" in capsys.readouterr().err


@pytest.fixture(scope="module")
def hostile(run, make_tone, tmp_path_factory):
    """Return the folder of an audit of pairs whose names want to run in a browser, one of which cannot be read."""
    folder = tmp_path_factory.mktemp("hostile")
    rows = make_dataset(make_tone, 4).to_list()
    for row in rows:
        row["pair_id"] = f"{row['pair_id']}{SCRIPT}"
    rows[3]["chosen"][0]["audio"]["bytes"] = b"no sound"
    datasets.Dataset.from_list(rows).to_parquet(folder / "pairs.parquet")
    few = ("--perturbations", "gain", "polarity", "--attacks", "shuffled", "written_demand", "fillers")
    parts = ("--parts", "perturbations", "attacks", "hearing")
    assert run(folder, *few, *parts, dataset=folder / "pairs.parquet") == 0
    return folder


def test_a_pair_that_cannot_be_read_is_named_and_the_others_are_audited(hostile):
    audit, text = read(hostile), (hostile / "audit.html").read_text(encoding="utf-8")
    (skipped,) = audit["skipped"]
    assert (audit["num_pairs"], skipped["pair_id"]) == (3, f"p3{SCRIPT}") and "chosen turn 0" in skipped["reason"]
    assert SCRIPT not in text
    assert re.search(r"<li>p3&lt;script&gt;document.title.*chosen turn 0.*</li>", text)


def test_failures_come_first_and_the_others_are_folded_each_with_its_value_and_limit(hostile):
    audit = read(hostile)
    page = render_audit_page(audit, [{**audit["verdicts"][0], "value": 0.5, "status": "pass"}])
    verdicts = page[page.index('<h2 id="verdicts">') : page.index("</section>")]
    rules = re.compile(r'<span class="rule">([a-z0-9_.<>]+)</span></th>')
    shown = [[name.replace("<wbr>", "") for name in rules.findall(part)] for part in verdicts.split("<details>")]
    assert shown == [[name for name, found in statuses(audit).items() if found == status] for status in MARKS]
    assert re.search(r"perturbations.accuracy_<wbr>change</span></th><td[^>]*>(<span[^>]*>)?50.0 points", verdicts)
    for absent, shown in ((None, ["hearing", "details"]), ("hearing", ["details"])):
        page = render_audit_page({**audit, absent: None} if absent else audit)
        assert re.findall(r'<h2 id="(\w+)">', page) == ["verdicts", *shown, "excluded"]


def test_the_page_is_written_again_without_model_and_data(hostile, tmp_path, capsys):
    assert main(["audit", "--render", str(hostile / "audit.json"), "--output_dir", str(tmp_path / "page")]) == 0
    assert f"Page: {tmp_path / 'page' / 'audit.html'}" in capsys.readouterr().out
    assert (hostile / "audit.html").read_text() == (tmp_path / "page" / "audit.html").read_text()
    renamed = {**read(hostile), "verdicts": [{"name": "nuisance.gain"}]}
    (tmp_path / "renamed.json").write_text(json.dumps(renamed))
    assert main(["audit", "--render", str(tmp_path / "renamed.json")]) == 2
    assert "renamed.json: has the unknown check nuisance.gain" in capsys.readouterr().err
    (tmp_path / "old.json").write_text(json.dumps({"verdicts": []}))
    assert main(["audit", "--render", str(tmp_path / "old.json")]) == 2
    assert "old.json: has no natural" in capsys.readouterr().err


@needs_chromium
def test_the_page_fits_requests_nothing_and_runs_no_name(hostile):
    with started("--mute-audio") as browser:
        for size in SIZES:
            width = open_page(browser, hostile / "audit.html", size)
            window, page = measure_widths(browser)
            assert window == width and page <= width
        assert requested(browser) == browser.get_log("browser") == []
        assert "hit" not in browser.title
        assert browser.execute_script("return document.querySelectorAll('[onerror]').length") == 0
