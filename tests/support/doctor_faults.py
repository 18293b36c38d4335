"""Checks that go wrong as broken installations do, for `sdiareward doctor` to run in its process."""

import ctypes
import os
import signal
import sys
import time

from sdiareward.doctor.findings import FAILED, PASSED, Outcome


def works(settings):
    return Outcome(PASSED, f"process {os.getpid()}, model {settings.model}")


def raises(_):
    raise ImportError("libcudart.so.12: cannot open\nshared object file")


def asks_to_exit(_):
    sys.exit("this CPU is too old")


def reads_address_zero(_):
    ctypes.string_at(0)


def is_killed(_):
    os.kill(os.getpid(), signal.SIGKILL)


def ends_the_process(_):
    os._exit(3)


def hangs(_):
    time.sleep(600)


def prints_noise(_):
    os.write(1, b"noise of a compiled library\n")
    sys.stderr.write("noise of Python\n")
    return Outcome(PASSED, "printed")


def finds_the_checkpoint_unusable(settings):
    return Outcome(FAILED, f"model {settings.model}: no such thing", details={"unusable_checkpoint": True})


class Version(str):
    """Text of a class of its own, as `torch.__version__` is."""


def gives_objects_of_a_library(_):
    return Outcome(PASSED, Version("1.0"), details={"version": Version("1.0"), "other": object})


def tells_secrets(_):
    home = os.path.expanduser("~")
    found = f"{home}/cache and {os.environ['HF_TOKEN']} and {os.environ['HTTPS_PROXY']}"
    return Outcome(PASSED, found, f"look at {home}", details={"path": f"{home}/x", "all": [found]})
