"""Run checks in a process beside this one, which may crash, hang or run out of memory without ending the report.

A check that kills its process is reported with the signal and the place in the code; the next one gets a new process.
What libraries print goes to a file that is looked at for the cause of a crash, and deleted.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from .findings import FAILED, PASSED, SKIPPED, WARNING, Check, Finding, Outcome, Settings, reason_of
from .redaction import Redactor


_MAX_CHARS = 300
# Where `faulthandler` says the innermost call was.
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')


def run_checks(checks: Iterable[Check], settings: Settings) -> Iterator[Finding]:
    """Yield what becomes of each check, in order, as it is known.

    Args:
        checks (`Iterable[Check]`): Those that others need come before them.
        settings ([`Settings`]): What the user said.
    """
    usable: dict[str, bool] = {}
    redactor = Redactor()
    with _Worker(settings) as worker:
        for check in checks:
            started = time.perf_counter()
            lacking = [name for name in check.needs if not usable.get(name, False)]
            outcome = Outcome(SKIPPED, f"needs '{lacking[0]}', see there") if lacking else worker.run(check)
            usable[check.name] = outcome.status in (PASSED, WARNING)
            yield Finding(check.section, check.name, time.perf_counter() - started, _clean(outcome, redactor))


def _clean(outcome: Outcome, redactor: Redactor) -> Outcome:
    """Return an outcome that can be shown: each text in one line, of a length that can be read."""
    found, remedy = (redactor.clean(" ".join((text or "").split())) for text in (outcome.found, outcome.remedy))
    if len(found) > _MAX_CHARS:
        found = f"{found[:_MAX_CHARS]}..."
    return replace(outcome, found=found, remedy=remedy or None, details=redactor.clean(outcome.details))


class _Worker:
    """The process that runs checks, started when one is to run and started again when one has ended it."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._log = _log_file()

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        if self._log != Path(os.devnull):
            self._log.unlink(missing_ok=True)

    def run(self, check: Check) -> Outcome:
        """Run a check and return its outcome, also that it hung or ended the process."""
        try:
            connection = self._start()
        except OSError as error:
            return Outcome(FAILED, f"no process could be started for it: {reason_of(error)}")
        try:
            connection.send((self._settings, check))
            if connection.poll(check.limit_s):
                return Outcome(**json.loads(connection.recv()))
        except (EOFError, ConnectionError):
            outcome = self._describe_end()
        else:
            outcome = Outcome(FAILED, f"did not end within {check.limit_s:g} s")
        self._end()
        return outcome

    def _start(self) -> Connection:
        if self._connection is None:
            ours, theirs = Pipe()
            # The same path of modules as here, and nothing before it.
            command = [sys.executable, "-P", "-c", f"from {__name__} import work; work({theirs.fileno()})"]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            with self._log.open("ab") as log, theirs:
                self._process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[theirs.fileno()],
                )
            self._connection = ours
        return self._connection

    def _end(self) -> None:
        if self._process is not None and self._connection is not None:
            self._process.kill()
            self._process.wait()
            self._connection.close()
        self._process = self._connection = None

    def _describe_end(self) -> Outcome:
        assert self._process is not None
        code = self._process.wait()
        how = f"with status {code}" if code >= 0 else f"by {_signal_name(-code)}"
        found = f"ended the process {how}"
        if code == -signal.SIGKILL:
            found += ", as the system does when memory runs out"
        return Outcome(FAILED, found + self._place_of_crash())

    def _place_of_crash(self) -> str:
        with suppress(OSError):
            if places := _PLACE.findall(self._log.read_text(errors="replace")):
                file, line = places[0]
                return f", in {file}, line {line}"
        return ""


def _log_file() -> Path:
    """Return a file for what libraries print; where none can be made, which a check will say, what discards it."""
    try:
        handle, name = tempfile.mkstemp(prefix="sdiareward-doctor-")
    except OSError:
        return Path(os.devnull)
    os.close(handle)
    return Path(name)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def work(handle: int) -> None:
    """Run the checks that come through a connection until it is closed: all that the process does.

    Args:
        handle (`int`): File descriptor of the connection.
    """
    # An interrupt from the keyboard reaches both processes; the other one decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    connection = Connection(handle)
    with suppress(EOFError):
        while True:
            connection.send(_run(*connection.recv()))


def _run(settings: Settings, check: Check) -> str:
    """Return the outcome of a check as JSON: an object of a library would make the other process import it."""
    if settings.offline:
        os.environ["HF_HUB_OFFLINE"] = "1"
    # What the check before this one printed is of no interest if this one crashes.
    with suppress(OSError):
        os.ftruncate(sys.stderr.fileno(), 0)
    try:
        return json.dumps(asdict(check.function(settings)), default=str)
    # Whatever a broken installation raises is what the report is for.
    except (Exception, SystemExit) as error:
        return json.dumps(asdict(Outcome(FAILED, reason_of(error))))
