"""Templates show the numbers of a made-up result; those of the larger benchmarks are tested beside them."""

from support.made_audit import make_audit

from benchmarks.guides.rendering import read_result, render_blocks


def find_rows(text):
    """Return the cells of every row of the tables of a text, the head first."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


def test_audits_before_and_after_stand_side_by_side():
    before = make_audit(nuisances__flip_rate=0.12, attack__silence=0.01, ties__auroc=0.8)
    now = make_audit(nuisances__flip_rate=0.02, attack__silence=0.5, ties__auroc=0.95)
    text = render_blocks("results_audit", {"audit.json": now, "audit_nano_before.json": before})["nano"]
    assert text.splitlines()[0] == (
        "12 of 40 pairs from 7 recordings or dialogues; 97.5% of them right as they are, natural margin 2.5; "
        "checks: 2 passed, 1 failed."
    )
    rows = {row[0]: row[2:6] for row in find_rows(text)}
    assert rows["nuisances.flip_rate"] == ["12.0%, failed", "2.0%", "at most 3.0%", "passed"]
    assert rows["attack.silence"] == ["1.0%, passed", "50.0%", "at most 5.0%", "FAILED"]


def test_the_guide_to_the_data_shows_the_memory_that_was_measured():
    found = read_result("pipeline_memory.json")
    found["results"][-1]["max_rss_mib"] = 4321
    assert "4321 MiB" in render_blocks("results_data", {"pipeline_memory.json": found})["pipeline"]


def test_the_doctor_table_shows_differences_and_seconds():
    checks = [
        {"name": "alone = batch", "status": "passed", "seconds": 2.04, "measured": 2.4e-7, "limit": 1e-4},
        {"name": "flash attention", "status": "skipped", "seconds": 0.0, "measured": None, "limit": None},
    ]
    cpu = {"name": "A processor", "usable_cores": 2}
    counts = {"passed": 60, "warning": 0, "failed": 0, "skipped": 6}
    result = {"seconds": 31.26, "counts": counts, "invariants": checks, "cpu": cpu}
    text = render_blocks("results_doctor", {"doctor_nano.json": result})["measured"]
    assert find_rows(text)[2:] == [
        ["alone = batch", "2.4e-07", "1.0e-04", "passed", "2.0"],
        ["flash attention", "-", "-", "skipped", "0.0"],
    ]
    assert "The whole command, 60 passed, 6 skipped: 31.3 s; A processor, 2 cores." in text


def test_the_table_of_faults_counts_right_trials_and_outcomes():
    cell = {"num_trials": 3, "num_right": 2, "outcomes": {"killed, then the undisturbed result": 2, "wrong": 1}}
    commands = {"build": {"SIGKILL": cell}, "push": {"network drop": cell}}
    result = {"result": {"commands": commands, "num_signalled": {"SIGKILL": 3}, "tolerance": 1e-5}}
    text = render_blocks("results_faults", {"faults.json": result})["faults"]
    rows = find_rows(text)
    assert rows[0] == ["", "build", "push"]
    assert rows[-2:] == [["SIGKILL", "2 of 3", ""], ["network drop", "", "2 of 3"]]
    assert (
        "over all 6 trials: killed, then the undisturbed result: 4; wrong: 2. Sent to a running process: SIG" in text
    )
    assert "SIGKILL 3 times. Numbers count as equal within 1e-05." in text


def test_the_tables_of_the_feature_cache_show_the_result():
    dtype = {"max_reward_error": 2e-6, "bytes_a_pair": 1234}
    result = {
        "stored_dtypes": {
            "reward_standard_deviation": 1.5,
            **dict.fromkeys(("float32", "float16"), dtype),
            "bfloat16": {"max_reward_error": 3e-4, "bytes_a_pair": 1234},
        },
        "nano": {
            "pairs": 7,
            "epoch_s": {"backbone": {"median": 20.04}, "mean": {"median": 0.02}, "attention": {"median": 0.1}},
            "times_faster": 1002.0,
            "filling_s": {"mean": 24.4},
        },
        "paper_size": {"pairs": 11630, "hidden_size": 3584, "epoch_s": {"median": 1.44}, "cache_bytes": 334_200_000},
    }
    blocks = render_blocks("results_training", {"head_training.json": {"result": result}})
    assert "| bfloat16 | 3e-04 | 1,234 |" in blocks["dtypes"]
    assert "standard deviation of 1.50" in blocks["dtypes"]
    assert "| nano, 7 pairs, through the frozen backbone | 20 s |" in blocks["heads"]
    assert "| 11,630 pairs at hidden size 3,584, from cached vectors | 1.44 s |" in blocks["heads"]
    assert "factor of 1002 in the median" in blocks["heads"] and "take 334 MB on disk" in blocks["heads"]
