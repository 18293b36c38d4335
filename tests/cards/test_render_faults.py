"""The table of the guide to faults is that of its result file."""

import json

from sdiareward.cards import render_faults


def test_the_table_counts_what_was_right_and_says_how_trials_went(tmp_path):
    cell = {"num_trials": 3, "num_right": 2, "outcomes": {"killed, then the undisturbed result": 2, "wrong": 1}}
    commands = {"build": {"SIGKILL": cell}, "push": {"network drop": cell}}
    result = {"result": {"commands": commands, "num_signalled": {"SIGKILL": 3}, "tolerance": 1e-5}}
    path = tmp_path / "faults.json"
    path.write_text(json.dumps(result))
    text = render_faults.render_guide("<!-- faults -->\n<!-- /faults -->\n", path)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == ["", "build", "push"]
    assert rows[-2:] == [["SIGKILL", "2 of 3", ""], ["network drop", "", "2 of 3"]]
    assert (
        "over all 6 trials: killed, then the undisturbed result: 4; wrong: 2. Sent to a running process: SIG" in text
    )
    assert "SIGKILL 3 times. Numbers count as equal within 1e-05." in text


def test_without_results_the_guide_says_so(tmp_path):
    text = render_faults.render_guide("<!-- faults -->\n<!-- /faults -->\n", tmp_path / "none.json")
    assert "Not measured yet: `python -m benchmarks.faults` does it." in text


def test_the_committed_guide_is_rendered_from_the_committed_result():
    guide = render_faults.GUIDE.read_text(encoding="utf-8")
    assert render_faults.render_guide(guide) == guide
