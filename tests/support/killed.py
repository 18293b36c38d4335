"""Run a command in a forked process that kills itself before a chosen change of a file."""

import os
import signal
import sys
from importlib import import_module


_CHANGES = {"os.rename", "os.remove", "os.mkdir"}
_FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def run_command(arguments, folder, kill_before, counted):
    """Run `sdiareward`; kill this process before its change `kill_before` of a file; `counted` is changes, success."""
    os.setsid()
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)

    def see(event, details):
        is_change = event in _CHANGES or (
            event == "open" and isinstance(details[2], int) and details[2] & _FOR_WRITING
        )
        if not is_change or not isinstance(details[0], (str, os.PathLike)):
            return
        if os.getpid() == counted[2] and os.fspath(details[0]).startswith(folder):
            counted[0] += 1
            if counted[0] == kill_before:
                os.kill(os.getpid(), signal.SIGKILL)

    counted[2] = os.getpid()
    sys.addaudithook(see)
    counted[1] = int(not import_module("sdiareward.cli").main(arguments))
