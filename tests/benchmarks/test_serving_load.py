"""How the load test counts, and how its numbers get into the guide; the load itself is not made here."""

import pytest

from benchmarks.guides.rendering import read_result, render_blocks
from benchmarks.serving_clients import Tally
from benchmarks.serving_load import count_drain, summarise_memory


@pytest.fixture
def tally():
    tally = Tally(seconds=[0.01 * k for k in range(1, 101)], times=[10.0, 12.0, 13.0], sent=102, put_off=3)
    tally.lost.update({"500": 1, "ClientOSError": 1})
    return tally


def test_the_rate_is_measured_between_the_first_and_the_last_answer(tally):
    assert tally.rate() == pytest.approx(2 / 3)
    assert Tally(times=[1.0]).rate() == 0.0


def test_a_summary_counts_lost_requests_by_kind(tally):
    found = tally.summary()
    assert (found["sent"], found["answered"], found["put_off"]) == (102, 100, 3)
    assert found["lost"] == {"500": 1, "ClientOSError": 1}
    assert found["p50_s"] == pytest.approx(0.505)
    assert found["p99_s"] == pytest.approx(0.9901)


def test_a_refused_connection_does_not_count_as_lost(tally):
    tally.lost["ClientConnectorError"] = 4
    assert count_drain(tally) == {"answered": 100, "refused": 4, "lost": 2, "mismatched": 0}


def test_growing_memory_has_a_slope_by_role():
    samples = [{"s": 60.0 * k, "replica": 100.0 + 2 * k, "http": 50.0} for k in range(9)]
    memory = summarise_memory(samples)["memory"]
    assert list(memory) == ["http", "replica"]
    assert memory["replica"]["mib_per_minute"] == pytest.approx(2.0)
    assert memory["replica"]["thirds_mib"] == [102.0, 108.0, 114.0]
    assert memory["http"]["mib_per_minute"] == pytest.approx(0.0, abs=1e-9)


def test_the_memory_slope_ignores_the_filling_of_caches():
    samples = [{"s": 60.0 * k, "replica": min(100.0 + 50 * k, 250.0)} for k in range(9)]
    assert summarise_memory(samples)["memory"]["replica"]["mib_per_minute"] == pytest.approx(0.0, abs=1e-9)


def test_the_committed_result_has_no_lost_or_wrong_answer_and_constant_memory():
    found = read_result("serving_load.json")
    tallies = [row[load] for row in found["batch_sizes"] for load in ("alone", "many")]
    faults = [found["faults"][name] for name in ("undisturbed", "slow_clients", "malformed", "killed_replica")]
    for tally in [*tallies, found["saturation"], *faults]:
        assert tally["sent"] == tally["answered"] > 0 and tally["mismatched"] == 0
    assert found["saturation"]["seconds"] >= 600
    # A kilobyte that stayed of each request would be more.
    assert all(memory["mib_per_minute"] < 1.0 for memory in found["saturation"]["memory"].values())


def test_the_guide_has_the_numbers_of_the_result_file(tally):
    counts = tally.summary()
    memory = {"replica": {"thirds_mib": [300.0, 401.0, 402.0], "mib_per_minute": 0.03}}
    kinds = {"no JSON": {"wanted": 422, "got": {"422": 7}}, "large": {"wanted": 413, "got": {"closed": 2, "500": 1}}}
    faults = dict.fromkeys(("undisturbed", "slow_clients", "malformed", "killed_replica"), counts)
    faults["slow_clients"] = {**counts, "number": 64, "answers": {"408": 64}}
    faults["malformed"] = {**counts, "statuses": kinds}
    faults["killed_replica"] = {**counts, "longest_gap_s": 7.25}
    faults["drain"] = {"clients": 32, "under_way": 20, "answered_before": 9, "answered": 29, "refused": 2, "lost": 1}
    faults["drain"] |= {"mismatched": 0, "exit_status": 0}
    sizes = {"max_batch_size": 8, "alone": {**counts, "sent": 100}, "many": counts, "mean_batch_requests": 7.5}
    result = {
        "settings": {"requests": 600, "concurrency": 32, "turns": 2},
        "cpu": {"name": "a processor", "usable_cores": 2},
        "batch_sizes": [sizes],
        "saturation": {**counts, "seconds": 600.0, "memory": memory},
        "faults": faults,
    }
    text = "\n".join(render_blocks("results_serving", {"serving_load.json": result}).values())
    assert "| 8 | 505 ms | 990 ms | 0.7 | 505 ms | 990 ms | 7.5 |" in text
    assert "100 requests by one client and 102 by 32 clients, each" in text
    assert "4 lost, 0 mismatched" in text
    assert "| model | 300 MiB | 401 MiB | 402 MiB | +0.03 MiB |" in text
    assert "600 s, 32 clients: 102 requests sent, 100 answered, 2 lost, 0 mismatched, 3 put off" in text
    assert "10 malformed bodies of 2 kinds: 1 got another answer" in text
    assert "64 slow clients, each a byte now and then: answered 64 with 408." in text
    assert "the longest time without an answer was 7.2 s" in text
    assert "of 32 requests 20 were under way and 9 answered: 29 answered in the end, 2 refused before" in text
    assert "they had connected, 1 lost, 0 mismatched, exit status 0." in text
