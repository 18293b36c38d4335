import json
import os
import re
import tomllib
from pathlib import Path

import pytest
from support import doctor_faults
from support.paths import ROOT

from sdiareward.doctor import packages
from sdiareward.doctor.cgroups import cpu_limit, memory_limit_bytes
from sdiareward.doctor.examination import all_checks, exit_status, unusable_checkpoint
from sdiareward.doctor.findings import FAILED, PASSED, SKIPPED, WARNING, Check, Finding, Outcome, Settings
from sdiareward.doctor.folders import refusal_of
from sdiareward.doctor.isolation import run_checks
from sdiareward.doctor.redaction import Redactor
from sdiareward.doctor.report import lines_of, record_of, summary_of
from sdiareward.scoring.tolerances import SAME_REWARD, SAVED_FLOAT32, scaled


SETTINGS = Settings("a model")


def check(function, *needs, name=None, limit_s=20.0):
    return Check("section", name or function.__name__, function, needs, limit_s)


def found_by(*checks):
    return {finding.name: finding.outcome for finding in run_checks(checks, SETTINGS)}


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (doctor_faults.raises, "ImportError: libcudart.so.12: cannot open shared object file"),
        (doctor_faults.asks_to_exit, "SystemExit: this CPU is too old"),
        (doctor_faults.reads_address_zero, r"ended the process by SIGSEGV, in .*ctypes/__init__\.py, line \d+"),
        (doctor_faults.is_killed, "ended the process by SIGKILL, as the system does when memory runs out"),
        (doctor_faults.ends_the_process, "ended the process with status 3"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_check_that_goes_wrong_is_a_line_and_the_next_one_runs(function, expected):
    found = found_by(check(function), check(doctor_faults.works))
    assert found[function.__name__].status == FAILED
    assert re.fullmatch(expected, found[function.__name__].found)
    assert found["works"].status == PASSED
    assert found["works"].found.endswith("model a model")


def test_a_check_that_hangs_is_given_up():
    found = found_by(check(doctor_faults.hangs, limit_s=0.5), check(doctor_faults.works))
    assert (found["hangs"].status, found["hangs"].found) == (FAILED, "did not end within 0.5 s")
    assert found["works"].status == PASSED


def test_checks_share_a_process_as_long_as_it_lives():
    found = found_by(*(check(doctor_faults.works, name=name) for name in "ab"))
    assert found["a"].found == found["b"].found
    assert str(os.getpid()) not in found["a"].found


def test_a_check_is_skipped_without_what_it_needs_and_so_is_what_needs_it():
    first, second, third = check(doctor_faults.raises), check(doctor_faults.works, "raises"), doctor_faults.works
    found = found_by(first, second, check(third, "works", name="third"))
    assert [outcome.status for outcome in found.values()] == [FAILED, SKIPPED, SKIPPED]
    assert found["works"].found == "needs 'raises', see there"


def test_what_libraries_print_does_not_reach_the_user(capfd):
    assert found_by(check(doctor_faults.prints_noise))["prints_noise"].status == PASSED
    assert capfd.readouterr() == ("", "")


def test_what_a_check_gives_arrives_as_plain_values():
    outcome = found_by(check(doctor_faults.gives_objects_of_a_library))["gives_objects_of_a_library"]
    assert {type(outcome.found), *map(type, outcome.details.values())} == {str}
    assert outcome.details == {"version": "1.0", "other": "<class 'object'>"}


def test_what_a_check_tells_is_without_secrets_in_texts_remedies_and_details(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "margaret"))
    monkeypatch.setenv("HF_TOKEN", "a-token-of-another-form")
    monkeypatch.setenv("HTTPS_PROXY", "http://margaret:password@proxy.internal:3128")
    outcome = found_by(check(doctor_faults.tells_secrets))["tells_secrets"]
    assert outcome.found == "~/cache and *** and http://***"
    assert (outcome.remedy, outcome.details["path"], outcome.details["all"]) == ("look at ~", "~/x", [outcome.found])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf_abcdefghijklmnopqrstuvwxyz", "hf_***"),
        ("Authorization: Bearer abc", "Authorization: ***"),
        ("https://me:secret@host.org/path", "https://***/path"),
        ("via proxy.internal, port 3128", "via ***, port 3128"),
        ("via http://proxy.internal:3128/", "via ***/"),
        ("/home/ann/cache and /Users/bob", "/home/***/cache and /Users/***"),
        ("https://huggingface.co answers", "https://huggingface.co answers"),
        ("OPENAI key sk-1234567890 of 12", "OPENAI key *** of 12"),
    ],
)
def test_each_kind_of_secret_is_taken_out_and_nothing_else(text, expected):
    environment = {
        "http_proxy": "http://proxy.internal:3128",
        "OPENAI_API_KEY": "sk-1234567890",
        "TOKENIZERS": "answers",
    }
    assert Redactor(environment).clean(text) == expected


def test_the_home_folder_is_replaced_as_a_whole_only(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "ann"))
    redactor = Redactor({})
    assert redactor.clean(f"{tmp_path}/ann/x: {tmp_path}/anna") == f"~/x: {tmp_path}/anna"
    monkeypatch.setenv("HOME", "/")
    assert Redactor({}).clean("/etc") == "/etc"


def finding(status, name="a", section="one", **fields):
    return Finding(section, name, 0.25, Outcome(status, fields.pop("found", "words"), **fields))


def test_the_table_has_a_line_for_each_check_under_its_section():
    findings = [
        finding(PASSED, "alone = batch", measured=2.4e-7, limit=1e-4, found=""),
        finding(SKIPPED, "flash"),
        finding(FAILED, "saved", "two", remedy="do this"),
    ]
    checks = [check(doctor_faults.works, name=each.name) for each in findings]
    assert "\n".join(lines_of(findings, checks)).splitlines() == [
        "",
        "one",
        "  ok    alone = batch     0.2 s  2.4e-07, at most 1.0e-04",
        "  skip  flash             0.2 s  words",
        "",
        "two",
        "  FAIL  saved             0.2 s  words -> do this",
    ]
    assert summary_of(findings, 3.21) == "1 passed, 1 failed, 1 skipped; 3.2 s"


def test_long_words_go_on_under_the_column_they_began_in():
    lines = list(lines_of([finding(PASSED, found="word " * 60)], [check(doctor_faults.works, name="a")]))[1:]
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
    assert unusable_checkpoint([finding(PASSED), broken]) == "no such"
    assert unusable_checkpoint([finding(FAILED, "checkpoint loads")]) is None


def test_the_record_is_json_with_what_is_not_a_number_in_words():
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


def test_every_check_has_a_name_of_its_own_and_comes_after_what_it_needs():
    seen = set()
    for each in all_checks():
        assert each.name not in seen
        assert set(each.needs) <= seen, each.name
        seen.add(each.name)


def test_the_core_is_that_of_the_project_and_every_part_of_it_has_a_tested_version():
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.split("[<>=]", line)[0] for line in dependencies} == set(packages.CORE)
    assert {name.replace("_", "-") for name in packages.CORE} <= packages.tested_versions().keys()


def write_groups(folder, own, **files):
    (folder / "own").write_text(own)
    for path, text in files.items():
        file = folder / "mount" / path.replace("__", "/").replace("_DOT_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return folder / "mount", folder / "own"


def test_limits_of_control_groups_of_version_2_are_the_least_up_to_the_root(tmp_path):
    files = {
        "job__memory_DOT_max": 8 * 2**30,
        "job__step__memory_DOT_max": "max",
        "job__cpu_DOT_max": "150000 100000",
        "job__step__cpu_DOT_max": "max 100000",
        "other__memory_DOT_max": 1,
    }
    places = write_groups(tmp_path, "0::/job/step\n", **files)
    assert memory_limit_bytes(*places) == 8 * 2**30
    assert cpu_limit(*places) == 1.5


def test_limits_of_control_groups_of_version_1_are_found_under_their_controllers(tmp_path):
    files = {
        "memory__memory_DOT_limit_in_bytes": 2**63 - 4096,
        "memory__docker__abc__memory_DOT_limit_in_bytes": 2**31,
        "cpu,cpuacct__cpu_DOT_cfs_quota_us": 1,
        "cpu__docker__abc__cpu_DOT_cfs_quota_us": 50_000,
        "cpu__docker__abc__cpu_DOT_cfs_period_us": 100_000,
        "cpu__cpu_DOT_cfs_quota_us": -1,
        "cpu__cpu_DOT_cfs_period_us": 100_000,
    }
    places = write_groups(tmp_path, "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n", **files)
    assert memory_limit_bytes(*places) == 2**31
    assert cpu_limit(*places) == 0.5


def test_without_control_groups_nothing_is_limited(tmp_path):
    places = write_groups(tmp_path, "0::/\n", **{"memory_DOT_max": "max"})
    assert memory_limit_bytes(*places) is cpu_limit(*places) is None
    assert memory_limit_bytes(tmp_path / "none", tmp_path / "nothing") is None


def test_a_folder_is_tried_by_writing_and_left_as_it_was(tmp_path):
    assert refusal_of(tmp_path) is None
    assert refusal_of(tmp_path / "not" / "there") is None
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    assert refusal_of(tmp_path / "file" / "cache") == "Not a directory"
    assert refusal_of(Path("/proc/self/cache")) is not None


def test_a_tolerance_grows_with_the_rewards():
    assert scaled(1e-4, [0.5, -0.2]) == 1e-4
    assert scaled(1e-4, [0.5, -20.0]) == pytest.approx(2e-3)


def test_the_guide_states_the_limits_that_are_measured_against():
    guide = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8").partition("<!-- measured -->")[0]
    rows = re.findall(r"^\| (.*?) +\|(.*)\|$", guide, re.MULTILINE)
    stated = {name: [float(cell) for cell in cells.split("|")] for name, cells in rows if re.search(r"\| *0", cells)}
    same = [SAME_REWARD[dtype] for dtype in ("float32", "float16", "bfloat16")]
    assert stated == {"same reward": same, "repeated": [0, 0, 0], "saved = loaded": [SAVED_FLOAT32, *same[1:]]}
