"""Run commands with a fault armed, each in a fork of this process, which has already imported the libraries.

`lab.py` starts this script. A fork saves each trial the seconds of its imports, in which nothing is written. The child
has its own session and calls the command's `main(arguments)` as its console script does. For the same reason the
workers of a build are forked here, not spawned.

A fault strikes after `after_s` seconds or just before the n-th `operation`. Operations are Python's audit events below
the trial's folder: open for writing, rename, remove, make a folder. With `delay_s` the fault strikes that much later,
in the middle of the operation. Writes of C++ and Rust raise no audit events; faults by time strike those.
"""

import json
import multiprocessing
import os
import resource
import shutil
import signal
import struct
import sys
import threading
import time
import traceback
from importlib import import_module
from pathlib import Path


LIBRARIES = (
    "sdiareward.scoring.calibration",
    "sdiareward.cli",
    "sdiareward.cli.push",
    "sdiareward.cli.score",
    "sdiareward.dataset_builder.__main__",
    "sdiareward.dataset_builder.commands.build",
    "sdiareward.eval",
    "sdiareward.checkpoint_io.nano",
    "sdiareward.cards.publishing.dataset_repository",
    "sdiareward.cards.publishing.uploading",
    "sdiareward.evaluation.report",
    "sdiareward.evaluation.summary",
    "sdiareward.scoring.scorer",
    "sdiareward.train",
    "sdiareward.training.trainer",
    "sdiareward.training.setup",
    "sdiareward.common.arguments",
    "hibari",
    "huggingface_hub.hf_api",
    "matplotlib.pyplot",
    "sklearn.feature_extraction.text",
    "sklearn.linear_model",
    "transformers.models.whisper.feature_extraction_whisper",
    "trl.scripts.utils",
)
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
_FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_SURVIVAL_S = 5.0


def main():
    for name in LIBRARIES:
        import_module(name)
    import_module("torch").set_num_threads(1)
    _say("ready")
    for line in sys.stdin:
        runs = json.loads(line)
        starts = [(run, *_fork(run), time.monotonic()) for run in runs]
        _say([_wait(*start) for start in starts])


def _say(answer):
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _fork(run):
    """Start a run; return its process and the process that writes its stderr, which no limit on files may cut."""
    read_end, write_end = os.pipe()
    writer = os.fork()
    if writer == 0:
        os.close(write_end)
        with open(read_end, "rb") as said, open(run["err"], "wb") as file:
            shutil.copyfileobj(said, file)
        os._exit(0)
    os.close(read_end)
    child = os.fork()
    if child == 0:
        os.dup2(write_end, 2)
        os.close(write_end)
        _run(run)
    os.close(write_end)
    return child, writer


def _wait(run, pid, writer, start):
    """Return how a run ended, after all processes of its session ended or were killed."""
    status = None
    while status is None and time.monotonic() - start < run["limit_s"]:
        ended, waited = os.waitpid(pid, os.WNOHANG)
        if ended:
            status = os.waitstatus_to_exitcode(waited)
        time.sleep(0.005)
    seconds = time.monotonic() - start
    if status is None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    survivors = _end_session(pid)
    os.waitpid(writer, 0)
    return {"status": status, "seconds": seconds, "survivors": survivors}


def _end_session(session):
    """Kill the processes that outlive their session's leader by some seconds; return their command lines."""
    deadline = time.monotonic() + _SURVIVAL_S
    while (left := _members(session)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return list(left.values())


def _members(session):
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            pid = int(folder.name)
            if os.getsid(pid) == session and "\nState:\tZ" not in (folder / "status").read_text():
                found[pid] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            continue
    return found


def _run(run):
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    # The libraries read these from the environment at import, before this trial existed.
    import_module("datasets").config.HF_DATASETS_CACHE = Path(run["cache"]) / "datasets"
    import_module("huggingface_hub").constants.HF_HUB_CACHE = str(Path(run["cache"]) / "hub")
    if run.get("largest_file_bytes"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (run["largest_file_bytes"], resource.RLIM_INFINITY))
    context = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda method=None: context
    operations = _Operations(run["folder"], run.get("fault") or {}, Path(run["struck"]))
    code = 1
    try:
        code = import_module(run["module"]).main(run["arguments"]) or 0
    except SystemExit as error:
        code = error.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        Path(run["report"]).write_text(json.dumps({"operations": operations.count}))
        os._exit(code if isinstance(code, int) else 1)


class _Operations:
    """Count the operations that change files below a folder, and strike at the chosen moment."""

    def __init__(self, folder, fault, struck):
        self.count = 0
        self._folder, self._fault, self._struck, self._pid = folder, fault, struck, os.getpid()
        if "after_s" in fault:
            self._later(fault["after_s"])
        sys.addaudithook(self._see)

    def _later(self, seconds):
        timer = threading.Timer(seconds, self._act)
        timer.daemon = True
        timer.start()

    def _see(self, event, arguments):
        if event == "open":
            is_change = isinstance(arguments[2], int) and arguments[2] & _FOR_WRITING
        else:
            is_change = event in _CHANGES
        if not is_change or not isinstance(arguments[0], (str, bytes, os.PathLike)):
            return
        if os.getpid() != self._pid or not os.fsdecode(arguments[0]).startswith(self._folder):
            return
        self.count += 1
        if self.count == self._fault.get("operation"):
            if self._fault.get("delay_s"):
                self._later(self._fault["delay_s"])
            else:
                self._act()

    def _act(self):
        """Strike, and leave a mark that it happened, before a signal leaves no time for it."""
        action = self._fault["action"]
        if "worker_signal" in action:
            os.kill(_await_worker(), action["worker_signal"])
        self._struck.touch()
        act(action)


def act(action):
    """Apply a fault to this process: signal it, remove a file, or set the clock."""
    if "signal" in action:
        os.kill(os.getpid(), action["signal"])
    elif "remove" in action:
        Path(action["remove"]).unlink(missing_ok=True)
    elif "clock" in action:
        set_clock(os.environ["CLOCK_OFFSET_FILE"], action["clock"])


def set_clock(path, offset_s):
    """Write the offset that `clock.c` reads; in place, because it has the file mapped."""
    descriptor = os.open(path, os.O_WRONLY)
    os.pwrite(descriptor, struct.pack("l", offset_s), 0)
    os.close(descriptor)


def _await_worker():
    while True:
        workers = multiprocessing.active_children()
        if workers:
            return workers[0].pid
        time.sleep(0.01)


if __name__ == "__main__":
    main()
