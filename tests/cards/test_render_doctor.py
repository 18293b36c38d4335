"""The table of the guide to the doctor is that of its result file."""

import json

from benchmarks import doctor
from sdiareward.cards import render_doctor
from sdiareward.doctor.findings import Finding, Outcome
from sdiareward.doctor.report import record_of


EMPTY = "<!-- measured -->\n<!-- /measured -->\n"


def test_the_table_shows_what_was_measured_and_how_long_it_took(tmp_path):
    checks = [
        {"name": "alone = batch", "status": "passed", "seconds": 2.04, "measured": 2.4e-7, "limit": 1e-4},
        {"name": "flash attention", "status": "skipped", "seconds": 0.0, "measured": None, "limit": None},
    ]
    cpu = {"name": "A processor", "usable_cores": 2}
    counts = {"passed": 60, "warning": 0, "failed": 0, "skipped": 6}
    path = tmp_path / "doctor.json"
    path.write_text(json.dumps({"seconds": 31.26, "counts": counts, "invariants": checks, "cpu": cpu}))
    text = render_doctor.render_guide(EMPTY, path)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert rows[2:] == [
        ["alone = batch", "2.4e-07", "1.0e-04", "passed", "2.0"],
        ["flash attention", "-", "-", "skipped", "0.0"],
    ]
    assert "The whole command, 60 passed, 6 skipped: 31.3 s; A processor, 2 cores." in text


def test_the_benchmark_keeps_the_invariants_and_nothing_of_the_machine():
    outcomes = {
        "machine": Outcome("passed", "2 cores"),
        "invariants": Outcome("passed", "", measured=2e-7, limit=1e-4),
    }
    findings = [Finding(section, f"of {section}", 0.5, outcome) for section, outcome in outcomes.items()]
    found = doctor.summarise(record_of(findings, "nano", 31.26, 0))
    kept = {"name": "of invariants", "status": "passed", "seconds": 0.5, "measured": 2e-7, "limit": 1e-4}
    assert found["invariants"] == [kept] and found["seconds"] == 31.26
    assert "2 cores" not in json.dumps(found)


def test_without_a_result_the_guide_says_so(tmp_path):
    text = render_doctor.render_guide(EMPTY, tmp_path / "none.json")
    assert "Not measured yet: `python -m benchmarks.doctor` does it." in text


def test_the_committed_guide_is_rendered_from_the_committed_result():
    guide = render_doctor.GUIDE.read_text(encoding="utf-8")
    assert render_doctor.render_guide(guide) == guide
