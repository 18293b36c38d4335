import json

from benchmarks import doctor
from sdiareward.doctor.findings import Finding, Outcome
from sdiareward.doctor.report import record_of


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
