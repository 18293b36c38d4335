"""The lab that runs commands under faults: a process that forks them, a Hub, and a network that can drop."""

import hashlib
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from faults.network import Network
from faults.worker import set_clock
from support.hub_client import WRITER, HubUser
from support.hub_server import HubServer
from support.hub_store import Blob, Repository


_WORKER, _CLOCK = (Path(__file__).with_name(name) for name in ("worker.py", "clock.c"))
_LIMIT_S = 300
# Compiles the clock that can be set.
COMPILER = shutil.which("cc") or shutil.which("gcc")


@dataclass(frozen=True)
class Done:
    """How a run ended.

    Args:
        status: Its exit status, negative for a signal, None if it hung and had to be killed.
        start: Unix time of its start.
        seconds: From the fork to the end.
        operations: Number of changes to files below the lab's folder; None if it was killed.
        err: Its stderr.
        survivors: Command lines of the processes it left running.
        struck: Whether its fault struck before it ended.
    """

    status: int | None
    start: float
    seconds: float
    operations: int | None
    err: str
    survivors: list
    struck: bool = False


def clock_environment(folder):
    """Return the environment of a process whose clock `set_clock` sets through a folder; needs a C compiler."""
    library, clock = folder / "clock.so", folder / "clock"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", library, _CLOCK], check=True)
    clock.write_bytes(bytes(8))
    return {"LD_PRELOAD": str(library), "CLOCK_OFFSET_FILE": str(clock)}


class Lab:
    """Runs commands; use it as a context manager.

    Args:
        folder (`Path`): For everything that is written.
        has_clock: Whether `set_clock` sets the clock of the commands; needs a C compiler.
    """

    def __init__(self, folder, has_clock=False):
        self.folder = folder
        self.output = folder / "output"
        self.hub = HubServer()
        self.network = Network(*(int(url.rpartition(":")[2]) for url in (self.hub.url, self.hub.storage_url)))
        # The addresses that the Hub returns lead through the network too.
        self.hub.url, self.hub.storage_url = self.network.urls
        self.hub.store.add_account(WRITER, "ann", "ORG")
        environment = {"PYTHONWARNINGS": "ignore", **(clock_environment(folder) if has_clock else {})}
        self.environment = HubUser(self.hub, folder).environment(WRITER, **environment)
        self._models = {}
        self._worker, self._is_ready = None, False

    def __enter__(self):
        self.hub.__enter__()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        log = (self.folder / "worker.log").open("w")
        command = [sys.executable, str(_WORKER)]
        self._worker = subprocess.Popen(command, env=self.environment, cwd=self.folder, stderr=log, **pipes)
        return self

    def __exit__(self, *_):
        self._worker.stdin.close()
        self._worker.wait()
        self.network.__exit__()
        self.hub.__exit__()

    def run(self, command, **settings):
        """Run a command until it ends; see `worker.py` for the settings."""
        return self.run_together(command, 1, **settings)[0]

    def run_together(self, command, number, **settings):
        """Run a command several times at once."""
        self._await_ready()
        runs = [self._describe(command, place, settings) for place in range(number)]
        self.hub.requests.clear()
        start = time.time()
        self._worker.stdin.write(json.dumps(runs) + "\n")
        self._worker.stdin.flush()
        return [self._read(run, start, ended) for run, ended in zip(runs, self._answer(), strict=True)]

    def set_clock(self, offset_s):
        """Set the clock of the commands forward by seconds, or back."""
        set_clock(self.folder / "clock", offset_s)

    def forget_pushes(self):
        """Empty the Hub except for the models added to it."""
        store = self.hub.store
        for key in [key for key in store.repositories if key[0] == "dataset"]:
            del store.repositories[key]
        store.objects = {key: value for key, value in store.objects.items() if key in self._models}
        store.times_sent.clear()

    def add_model(self, repo_id, folder):
        """Put a checkpoint on the Hub."""
        blobs = {}
        for path in sorted(folder.iterdir()):
            content = path.read_bytes()
            sha = hashlib.sha256(content).hexdigest() if path.suffix == ".safetensors" else None
            blobs[path.name] = Blob(len(content), None if sha else content, sha)
            self._models |= {sha: content} if sha else {}
        repository = Repository("model", repo_id)
        repository.branches["main"] = repository.add_commit(blobs, repository.branches["main"], "a model")
        self.hub.store.repositories["model", repo_id] = repository
        self.hub.store.objects |= self._models

    def _await_ready(self):
        if not self._is_ready:
            self._is_ready = self._answer() == "ready"

    def _answer(self):
        line = self._worker.stdout.readline()
        assert line, (self.folder / "worker.log").read_text()
        return json.loads(line)

    def _describe(self, command, place, settings):
        files = {name: str(self.folder / f"{name}-{place}") for name in ("err", "report", "struck")}
        for name in ("report", "struck"):
            Path(files[name]).unlink(missing_ok=True)
        return {
            "module": command.module,
            "arguments": [str(argument) for argument in command.arguments(self.output)],
            "folder": str(self.output),
            "cache": str(self.folder / "cache"),
            "limit_s": _LIMIT_S,
            **files,
            **settings,
        }

    def _read(self, run, start, ended):
        report = Path(run["report"])
        # Empty if the kill struck while it was written.
        text = report.read_text() if report.exists() else ""
        operations = json.loads(text)["operations"] if text else None
        # Results must not depend on the lab's folder.
        err = Path(run["err"]).read_text(errors="replace").replace(f"{self.folder}/", "")
        return Done(start=start, operations=operations, err=err, struck=Path(run["struck"]).exists(), **ended)
