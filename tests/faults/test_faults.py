"""A few trials of every command under faults (`benchmark.py` runs many), and tests of the lab itself."""

import errno
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from faults.disks import can_mount, small_disk
from faults.lab import COMPILER, Done, Lab, clock_environment
from faults.trials import FAULTS, Reference, Trials, find_differences, name_end, open_trials
from faults.worker import set_clock
from support import tiny_model

from sdiareward.dataset_builder.formats.shards import ShardWriter


pytestmark = pytest.mark.slow


# Waits 0.2 s by a clock, as C++ does: room for the attribute, the condition and the mutex is more than they need.
WAIT = """
import ctypes, sys, time
libc, clock = ctypes.CDLL(None), int(sys.argv[1])
attribute, condition, mutex = (ctypes.create_string_buffer(128) for _ in range(3))
libc.pthread_condattr_init(attribute), libc.pthread_condattr_setclock(attribute, clock)
libc.pthread_cond_init(condition, attribute), libc.pthread_mutex_init(mutex, None), libc.pthread_mutex_lock(mutex)
start, end_ns = time.monotonic(), time.clock_gettime_ns(clock) + 200_000_000
status = libc.pthread_cond_timedwait(condition, mutex, (ctypes.c_long * 2)(*divmod(end_ns, 10**9)))
print(status, time.monotonic() - start)
"""


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    """Return trials in a running lab; the clock of its commands can be set where there is a C compiler."""
    folder = tmp_path_factory.mktemp("faults")
    checkpoint = tiny_model.save_checkpoint(folder / "tiny")
    with open_trials(folder, checkpoint, has_clock=COMPILER is not None) as trials:
        yield trials


@pytest.fixture
def disk(tmp_path):
    if not can_mount(tmp_path / "probe"):
        pytest.skip("no small disk can be mounted: that takes root, and the right to mount")


@pytest.mark.parametrize(
    ("command", "fault"),
    [("build", "SIGKILL"), ("train", "SIGTERM"), ("evaluate", "SIGKILL"), ("score", "SIGTERM"), ("push", "SIGKILL")],
)
def test_the_same_command_completes_the_work_of_a_killed_one(trials, command, fault):
    trial = FAULTS[fault](trials, command, 0)
    assert not trial["problems"], trial
    assert trial["first"] == "killed" or trial["to"] == "worker"


@pytest.mark.parametrize("command", ["build", "score"])
def test_finished_parts_survive_a_full_disk(trials, disk, command):
    trial = FAULTS["full disk"](trials, command, 0)
    assert trial["first"].startswith("refused: ") and "make room on its disk" in trial["first"]
    assert not trial["problems"], trial


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_finished_parts_survive_a_limit_on_file_sizes(trials, command):
    trial = FAULTS["limited files"](trials, command, 0)
    assert trial["first"].startswith("refused: ") and "make room on its disk" in trial["first"]
    assert not trial["problems"], trial


@pytest.mark.parametrize("command", ["evaluate", "push"])
def test_a_read_only_output_is_reported_and_the_run_resumes_when_it_is_writable(trials, disk, command):
    trial = FAULTS["read-only output"](trials, command, 0)
    assert "make it writable or name another output" in trial["first"]
    assert not trial["problems"], trial


@pytest.mark.parametrize("command", ["build", "score"])
def test_one_of_two_runs_on_the_same_output_is_refused(trials, command):
    trial = FAULTS["two at once"](trials, command, 0)
    assert sorted(trial["statuses"]) == [0, 2]
    assert "another process is writing to this folder" in trial["first"]
    assert not trial["problems"], trial


@pytest.mark.parametrize("command", ["build", "score"])
def test_pairs_skipped_for_a_missing_recording_are_made_when_it_is_back(trials, command):
    trial = FAULTS["vanished source"](trials, command, 0)
    assert not trial["problems"], trial


def test_a_model_on_the_hub_does_not_count_as_a_pushed_file(trials):
    trials.lab.forget_pushes()
    trials.lab.add_model("ORG/other", trials.commands["train"].world.checkpoint)
    assert trials.lab.hub.store.objects and trials.commands["push"].num_finished(trials.lab.output) == 0


def test_the_same_command_completes_a_push_after_the_network_dropped(trials):
    # Down for longer, the clients of the Hub try again for half a minute.
    trial = trials.network_drop("push", 0, moment_s=(0.2,))
    assert not trial["problems"], trial


@pytest.mark.skipif(COMPILER is None, reason="no C compiler to make a clock with that can be set")
@pytest.mark.parametrize("command", ["train", "score"])
def test_a_clock_jump_of_days_changes_no_result(trials, command):
    trial = FAULTS["clock jump"](trials, command, 0)
    assert not trial["problems"], trial


@pytest.mark.skipif(COMPILER is None, reason="no C compiler to make a clock with that can be set")
@pytest.mark.parametrize("offset_s", [-300_000, 0, 300_000])
@pytest.mark.parametrize("clock", [time.CLOCK_REALTIME, time.CLOCK_MONOTONIC])
def test_a_timed_wait_keeps_its_length_after_the_clock_was_set(tmp_path, clock, offset_s):
    environment = clock_environment(tmp_path)
    set_clock(tmp_path / "clock", offset_s)
    command = [sys.executable, "-c", WAIT, str(clock)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=60)
    status, seconds = done.stdout.split()
    assert int(status) == errno.ETIMEDOUT
    assert 0.15 <= float(seconds) < 30


@pytest.mark.skipif(COMPILER is None, reason="no C compiler to make a clock with that can be set")
def test_setting_the_clock_of_the_lab_keeps_durations(tmp_path):
    lab = Lab(tmp_path, has_clock=True)
    code = "import time; start = time.monotonic(); time.sleep(0.01); print(time.time(), time.monotonic() - start)"
    found = []
    for offset_s in (0, 1_000_000):
        lab.set_clock(offset_s)
        done = subprocess.run([sys.executable, "-c", code], env=lab.environment, capture_output=True, text=True)
        found.append([float(number) for number in done.stdout.split()])
    (before, short), (after, as_short) = found
    assert after - before == pytest.approx(1_000_000, abs=100)
    assert 0.01 <= short < 100 and 0.01 <= as_short < 100


def end(status, err):
    return name_end(Done(status, 0.0, 1.0, None, err, []))


def test_a_failed_run_is_clear_only_if_its_last_line_is_an_error_without_a_traceback():
    assert end(0, "") == "finished"
    assert end(-signal.SIGTERM, "") == end(-signal.SIGKILL, "") == "killed"
    line = "a: No space left on device; make room on its disk, then run the same command again."
    assert end(2, f"bar\nsdiareward score: error: {line}\n") == f"refused: {line}"
    assert end(1, f"sdiareward score: error: {line}\n").startswith("unclear: status 1")
    assert end(2, "sdiareward push: error: [Errno 17] File exists: 'a'").startswith("unclear: status 2")
    assert end(1, "Traceback (most recent call last):\nOSError: error: x").startswith("unclear: status 1")
    assert end(-signal.SIGSEGV, "").startswith("unclear")
    assert end(None, "") == "hung"


def test_a_run_that_ends_before_its_fault_strikes_is_drawn_again():
    trials = Trials(lab=None, commands={})
    runs = [Done(0, 0.0, 2.0, 5, "", []), Done(-signal.SIGKILL, 0.0, 1.0, None, "", [], struck=True)]
    first, facts = trials._until_struck("push", lambda: (runs.pop(0), {"left": len(runs)}))
    assert first.status == -signal.SIGKILL
    assert facts == {"left": 0, "num_missed": 1}
    # The next moment is drawn from the duration of this run.
    assert trials._seconds == {"push": 2.0}
    with pytest.raises(AssertionError, match="push: 20 runs ended before their fault struck"):
        trials._until_struck("push", lambda: (Done(0, 0.0, 2.0, 5, "", []), {}))


def finish(tmp_path, again, num_finished, **settings):
    """Return the problems of a trial that was killed with two parts finished and whose second run is `again`."""
    found = iter(num_finished)
    command = SimpleNamespace(num_finished=lambda output: next(found), num_made=lambda *_: 2, result=lambda output: 1)
    trials = Trials(SimpleNamespace(output=tmp_path, run=lambda command: again), {"score": command})
    trials._references["score"] = Reference(1, 1.0, 1, num_parts=4, used_bytes=1, carried_bytes=1)
    return trials._finish("score", 0, Done(-signal.SIGKILL, 0.0, 1.0, None, "", []), **settings)["problems"]


def test_the_second_run_must_finish_unless_a_source_vanished(tmp_path):
    done, hung = (Done(status, 0.0, 1.0, 1, "", []) for status in (0, None))
    refused = Done(2, 0.0, 1.0, 1, "train: error: other pairs; restore them, or run the same command again.", [])
    assert finish(tmp_path, done, [2]) == []
    assert finish(tmp_path, done, [3]) == ["1 finished parts were computed again"]
    assert finish(tmp_path, hung, [2]) == ["second run: hung"]
    assert finish(tmp_path, refused, [2])[0].startswith("second run: refused: other pairs")
    assert finish(tmp_path, refused, [2, 2], may_refuse=True) == []
    assert finish(tmp_path, refused, [2, 1], may_refuse=True) == ["1 finished parts were lost"]


def test_differences_are_found_at_every_depth():
    expected = {"files": ["a", "b"], "rewards": [{"chosen": 0.5, "row": 1}]}
    assert find_differences(expected, {"files": ["a", "b"], "rewards": [{"chosen": 0.500001, "row": 1}]}) == []
    found = {"files": ["a"], "rewards": [{"chosen": 0.6, "row": 2, "new": 0}]}
    places = sorted(line.partition(" ")[0] for line in find_differences(expected, found))
    assert places == ["/files:", "/rewards/0/chosen:", "/rewards/0/new", "/rewards/0/row:"]
    assert find_differences({"a": 1}, {}) == ["/a is missing"]


def test_a_shard_writer_reports_a_read_only_disk(disk, tmp_path):
    with small_disk(tmp_path / "disk", 8192) as change:
        (tmp_path / "disk" / ".data.tmp").mkdir()
        change("ro")
        with pytest.raises(OSError, match="Read-only"), ShardWriter(tmp_path / "disk"):
            pass
