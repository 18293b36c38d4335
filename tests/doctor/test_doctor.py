"""The facts, the report and the command; what the invariants measure is tested in `test_invariants.py`."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from packaging.requirements import Requirement
from support.paths import ROOT

from sdiareward.cli import main
from sdiareward.doctor import examination, facts
from sdiareward.doctor.examination import examine, exit_status, find_checkpoint_problem, list_checks, shorten
from sdiareward.doctor.findings import FAILED, PASSED, SKIPPED, WARNING, Check, Finding, Outcome, Settings
from sdiareward.doctor.report import record_of, render_finding, render_summary
from sdiareward.scoring.tolerances import SAME_REWARD, SAVED_FLOAT32, scale_tolerance


SETTINGS = Settings("a model", "cpu")


def finding(status, name="a", section="one", **fields):
    return Finding(section, name, 0.25, Outcome(status, fields.pop("found", "words"), **fields))


def raise_on_import(_):
    raise ImportError("libcudart.so.12: cannot open\nshared object file")


def find_the_checkpoint_unusable(settings):
    return Outcome(FAILED, f"model {settings.model}: no such thing", details={"unusable_checkpoint": True})


def replace_checks(monkeypatch, loading):
    first = Check("facts", "torch", raise_on_import)
    checks = [Check("invariants", "checkpoint loads", loading), Check("invariants", "alone = batch", raise_on_import)]
    monkeypatch.setattr(examination, "list_fact_checks", lambda: [first])
    monkeypatch.setattr(examination, "list_invariant_checks", lambda: checks)


def test_a_check_that_raises_is_a_line_and_the_next_one_runs(monkeypatch):
    replace_checks(monkeypatch, lambda _: Outcome(PASSED, "loaded"))
    found = {each.name: each.outcome for each in examine(SETTINGS)}
    line = "ImportError: libcudart.so.12: cannot open shared object file"
    assert [(found[name].status, found[name].found) for name in ("torch", "alone = batch")] == [(FAILED, line)] * 2
    assert found["checkpoint loads"].status == PASSED


def test_invariants_are_skipped_without_a_checkpoint(monkeypatch):
    replace_checks(monkeypatch, find_the_checkpoint_unusable)
    found = {each.name: each.outcome for each in examine(SETTINGS)}
    assert (found["alone = batch"].status, found["alone = batch"].found) == (SKIPPED, "needs 'checkpoint loads'")


def test_names_are_unique():
    names = [check.name for check in list_checks()]
    assert len(set(names)) == len(names)


def test_the_facts_of_a_sound_machine_pass():
    for check in facts.list_fact_checks():
        outcome = check.function(SETTINGS)
        assert outcome.status == (outcome.status if check.section == "extras" else PASSED), check.name
        assert outcome.found and "\n" not in outcome.found


def test_a_package_that_is_too_old_or_missing_fails_with_what_to_install():
    old = facts._look_at_package(Requirement("numpy>=99"), SETTINGS)
    assert (old.status, old.remedy) == (FAILED, 'pip install "numpy>=99"')
    assert old.found.endswith("; >=99 is required")
    missing = facts._look_at_package(Requirement("no-such-package>=1"), SETTINGS)
    assert (missing.status, missing.found) == (FAILED, "not installed; >=1 is required")


def test_another_version_than_the_tested_one_is_reported(monkeypatch):
    monkeypatch.setattr(facts, "read_tested_versions", lambda: {"numpy": "0.1"})
    assert facts._look_at_package(Requirement("numpy"), SETTINGS).found.endswith("; tested with 0.1")


def test_an_extra_that_is_not_installed_is_skipped_with_what_to_install(monkeypatch):
    monkeypatch.setattr(facts, "read_requirements", lambda extra: [Requirement("no-such-package")])
    outcome = facts._look_at_extra("demo", SETTINGS)
    assert (outcome.status, outcome.found) == (SKIPPED, "lacks no-such-package")
    assert outcome.remedy == 'if wanted, pip install "sdiareward[demo]"'


def test_a_format_that_libsndfile_lacks_is_a_warning(monkeypatch):
    monkeypatch.setattr("soundfile.available_formats", lambda: {"WAV": "", "FLAC": "", "OGG": ""})
    outcome = facts._look_at_libsndfile(SETTINGS)
    assert (outcome.status, "cannot read MP3" in outcome.found) == (WARNING, True)


def test_tokens_and_the_home_folder_are_not_shown(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "margaret"))
    assert shorten(f"{tmp_path}/margaret/model,\nhf_abcdefghijklmnopqrstuvwxyz") == "~/model, hf_***"
    assert len(shorten("word " * 100)) == 303


def test_the_table_has_a_line_for_each_check():
    findings = [
        finding(PASSED, "alone = batch", measured=2.4e-7, limit=1e-4, found=""),
        finding(SKIPPED, "flash"),
        finding(FAILED, "saved", "two", remedy="do this"),
    ]
    assert [render_finding(each, 13) for each in findings] == [
        "  ok    alone = batch     0.2 s  2.4e-07, at most 1.0e-04",
        "  skip  flash             0.2 s  words",
        "  FAIL  saved             0.2 s  words -> do this",
    ]
    assert render_summary(findings, 3.21) == "1 passed, 1 failed, 1 skipped; 3.2 s"


def test_long_lines_are_wrapped_under_their_column():
    lines = render_finding(finding(PASSED, found="word " * 60), 1).splitlines()
    assert all(len(line) <= 118 for line in lines)
    assert lines[1].startswith(" " * lines[0].index("word") + "word")


@pytest.mark.parametrize(
    ("statuses", "relaxed", "strict"),
    [([PASSED, SKIPPED], 0, 0), ([PASSED, WARNING], 0, 1), ([WARNING, FAILED], 1, 1), ([], 0, 0)],
)
def test_the_exit_status_is_that_of_the_worst_finding(statuses, relaxed, strict):
    findings = [finding(status) for status in statuses]
    assert (exit_status(findings), exit_status(findings, strict=True)) == (relaxed, strict)


def test_only_a_checkpoint_that_is_itself_at_fault_is_unusable():
    broken = finding(FAILED, "checkpoint loads", found="no such", details={"unusable_checkpoint": True})
    assert find_checkpoint_problem([finding(PASSED), broken]) == "no such"
    assert find_checkpoint_problem([finding(FAILED, "checkpoint loads")]) is None


def test_the_record_is_json_with_nan_as_text():
    findings = [finding(FAILED, measured=float("nan"), limit=1.0), finding(PASSED, "b", details={"x": [1]})]
    record = record_of(findings, "nano", 2.0, 1)
    json.dumps(record, allow_nan=False)
    assert (record["counts"], record["exit_status"]) == ({"passed": 1, "warning": 0, "failed": 1, "skipped": 0}, 1)
    assert record["checks"][0]["measured"] == "NaN"
    assert record["checks"][1] == {
        "section": "one",
        "name": "b",
        "seconds": 0.25,
        "status": "passed",
        "found": "words",
        "remedy": None,
        "measured": None,
        "limit": None,
        "details": {"x": [1]},
    }


def test_a_tolerance_grows_with_the_rewards():
    assert scale_tolerance(1e-4, [0.5, -0.2]) == 1e-4
    assert scale_tolerance(1e-4, [0.5, -20.0]) == pytest.approx(2e-3)


def test_the_guide_states_the_limits_that_are_measured_against():
    guide = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8").partition("<!-- measured -->")[0]
    rows = re.findall(r"^\| (.*?) +\|(.*)\|$", guide, re.MULTILINE)
    stated = {name: [float(cell) for cell in cells.split("|")] for name, cells in rows if re.search(r"\| *0", cells)}
    same = [SAME_REWARD[dtype] for dtype in ("float32", "float16", "bfloat16")]
    assert stated == {"same reward": same, "repeated": [0, 0, 0], "saved = loaded": [SAVED_FLOAT32, *same[1:]]}


@pytest.mark.slow
def test_the_command_reports_a_torch_that_cannot_be_imported(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "sdiareward.cli", "doctor", "--offline", "--output", str(tmp_path / "found.json")]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, cwd=tmp_path
    )
    found = {check["name"]: check for check in json.loads((tmp_path / "found.json").read_text())["checks"]}
    assert (done.returncode, done.stderr) == (1, "")
    assert found["torch"]["found"] == "ImportError: libcudart.so.12: cannot open shared object file"
    assert {found[name]["status"] for name in ("device", "checkpoint loads")} == {"failed"}
    assert found["alone = batch"]["status"] == "skipped"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "no/such/folder"], "--model no/such/folder: no such folder"),
        (["--model", "EMPTY"], "EMPTY: holds no config.json"),
        (["--output", "no/such/folder/found.json"], "no file can be there"),
    ],
)
def test_what_cannot_be_examined_or_written_is_refused_at_once(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").mkdir()
    assert main(["doctor", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("sdiareward doctor: error: ")
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1


@pytest.mark.parametrize(("arguments", "status"), [(["--model", "ORG/NAME"], 2), (["--device", "abacus"], 2), ([], 1)])
def test_a_checkpoint_that_was_given_and_is_at_fault_itself_is_bad_input(
    arguments, status, monkeypatch, capsys, tmp_path
):
    loading = Check("invariants", "checkpoint loads", find_the_checkpoint_unusable)
    monkeypatch.setattr(examination, "list_fact_checks", list)
    monkeypatch.setattr(examination, "list_invariant_checks", lambda: [loading])
    assert main(["doctor", *arguments, "--output", str(tmp_path / "found.json")]) == status
    shown, errors = capsys.readouterr()
    assert "FAIL  checkpoint loads" in shown
    assert len(errors.splitlines()) == (status == 2)
    assert errors.endswith(": no such thing\n" if status == 2 else "")
    assert json.loads((tmp_path / "found.json").read_text())["exit_status"] == status


def test_an_interrupt_ends_the_command_without_a_traceback():
    command = [sys.executable, "-m", "sdiareward.cli", "doctor", "--offline"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("  ok "):
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.startswith("sdiareward doctor: interrupted") and errors.count("\n") == 1


def test_help_is_there_at_once():
    command = [sys.executable, "-X", "importtime", "-m", "sdiareward.cli", "doctor", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--offline" in done.stdout
    assert not any(f" {module}\n" in done.stderr for module in ("torch", "numpy", "huggingface_hub"))
