"""Python commands in forks of a process that has imported the libraries, which saves seconds: `run` and `Popen`.

What a command reads at import (`HF_HOME`, `PYTHONPATH`) must hold for the tests' process; others take `subprocess`.
"""

import contextlib
import gc
import logging
import multiprocessing
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from multiprocessing import forkserver
from multiprocessing.connection import Connection, arbitrary_address
from pathlib import Path


PRELOADED = (
    "matplotlib.pyplot",
    "sdiareward.auditing.run",
    "sdiareward.checkpoint_io.convert",
    "sdiareward.cli.score",
    "sdiareward.dataset_builder.builder",
    "sdiareward.evaluation.comparison",
    "sdiareward.evaluation.report.sections",
    "sdiareward.scoring.scorer",
    "sdiareward.training.setup",
    "sdiareward.training.trainer",
    "sklearn.linear_model",
    "transformers.models.whisper.feature_extraction_whisper",
    "trl.scripts.utils",
)
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(list(PRELOADED))


def start_server():
    """Fork the server of forks from this process, which has imported most libraries and used none of them.

    By itself `multiprocessing` would start a new process for it, which imports everything once more.
    """
    listener, (alive, our_end) = socket.socket(socket.AF_UNIX), os.pipe()
    listener.bind(arbitrary_address("AF_UNIX"))
    listener.listen()
    if pid := os.fork():
        server = forkserver._forkserver
        server._forkserver_address, server._forkserver_alive_fd = listener.getsockname(), our_end
        server._forkserver_pid = pid
        listener.close()
        os.close(alive)
        return
    try:
        _serve(listener, alive)
    finally:
        os._exit(0)


def _serve(listener, alive):
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in (alive, listener.fileno()):
            with contextlib.suppress(OSError):
                os.close(number)
    # In place of those of pytest.
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    for logger in (logging.root, *map(logging.getLogger, list(logging.root.manager.loggerDict))):
        for handler in list(logger.handlers):
            if type(handler).__module__.startswith("_pytest"):
                logger.removeHandler(handler)
            elif isinstance(handler, logging.StreamHandler):
                handler.setStream(sys.stderr)
    # What is not imported yet is imported with the first request.
    if listener in select.select([alive, listener], [], [])[0]:
        forkserver.main(listener.fileno(), alive, list(PRELOADED))


class Popen:
    """A running command: `sys.executable` and `"-m", module, ...`, `"-c", code` or `file, ...`."""

    def __init__(self, command, *, cwd=None, env=None, stdout=None, stderr=None, start_new_session=False):
        self.args = command
        self.stdout, out = _open_stream(stdout, 1)
        self.stderr, err = (None, out) if stderr is stdout not in (None, subprocess.PIPE) else _open_stream(stderr, 2)
        given = [str(part) for part in command[1:]]
        arguments = (given, str(cwd or Path.cwd()), dict(env or os.environ), out, err, start_new_session)
        self._process = _context.Process(target=_run_command, args=arguments)
        self._process.start()
        self.pid = self._process.pid
        for stream in {id(out): out, id(err): err}.values():
            stream.close()

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self._process.exitcode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self._process.kill()


def start_ranks(command, number, **options):
    """Start processes that join each other as those of `torchrun` do."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(number)} for rank in range(number)]
    return [Popen(command, env={**os.environ, **address, **rank}, **options) for rank in ranks]


def run(command, *, cwd=None, env=None, timeout=None, check=False):
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = Popen(command, cwd=cwd, env=env, stdout=out, stderr=err)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        for file in (out, err):
            file.seek(0)
        done = subprocess.CompletedProcess(command, code, out.read(), err.read())
    if check:
        done.check_returncode()
    return done


def _open_stream(target, own):
    if target is None:
        return None, Connection(os.dup(own), readable=False)
    if target == subprocess.PIPE:
        read_end, write_end = os.pipe()
        return os.fdopen(read_end), Connection(write_end, readable=False)
    number = os.open(os.devnull, os.O_WRONLY) if target == subprocess.DEVNULL else os.dup(target.fileno())
    return None, Connection(number, readable=False)


def _run_command(arguments, cwd, env, out, err, start_new_session):
    # Of what is shared with the process that imported, no page is copied to look for garbage.
    gc.freeze()
    # As in a process of its own.
    multiprocessing.set_start_method(None, force=True)
    # Background processes of a shell ignore interrupts, and so would their forks.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if start_new_session:
        os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for stream, number in ((out, 1), (err, 2)):
        os.dup2(stream.fileno(), number)
    sys.path.insert(0, cwd)
    kind, *rest = arguments
    if kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments
        runpy.run_path(kind, run_name="__main__")
