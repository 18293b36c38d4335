"""Start servers of SoulX-Podcast (`soulx_server.py`) in its own environment, one for each GPU."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sdiareward.common.user_errors import AGAIN, UserError

from . import load_synthesizer


logger = logging.getLogger(__name__)
_OF_A_LAUNCH = ("python", "repository", "gpus")
_SERVER = Path(__file__).with_name("soulx_server.py")
_POLL_S = 0.1
_GRACE_S = 3.0
_END_S = 10.0
_QUOTED_LINES = 15


@dataclass(frozen=True)
class _Started:
    """A server that was started: its process, the GPU it has, its log, and where it writes its address."""

    process: subprocess.Popen[bytes]
    gpu: str
    log: Path
    address_file: Path

    @property
    def address(self) -> str | None:
        """Its address, once the model is loaded."""
        return self.address_file.read_text(encoding="utf-8") if self.address_file.is_file() else None

    def explain_end(self) -> str:
        """Tell how the server ended, with the end of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").replace("\r", "\n").splitlines()
        tail = " | ".join(line.strip() for line in lines[-_QUOTED_LINES:] if line.strip())
        where = self.address or "while it loaded"
        return f"the server on GPU {self.gpu} ({where}) ended with status {self.process.returncode}; its log: {tail}"


@contextmanager
def serve(options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Start the servers that options describe, if any; yield the options with their addresses.

    The servers end with this context, and with this process even if it is killed.

    Args:
        options (`Mapping`): As `soulx_podcast.build` takes them. With `python`, each of `gpus` gets a server.

    Raises:
        ValueError: Both or neither of `addresses` and `python` are given, or another option is wrong.
        UserError: An option names nothing that can be started, a server ended while it loaded, or one was lost inside
            of the context; the message has the end of its log.
    """
    kept = {key: value for key, value in options.items() if key not in _OF_A_LAUNCH}
    is_launch = "python" in options
    if bool(options.get("addresses")) == is_launch or (len(kept) < len(options) and not is_launch):
        raise ValueError(
            f"soulx-podcast: its options are {sorted(options)}; give addresses of servers that run, or python, "
            "repository and gpus to have them started."
        )
    # Wrong options end the run before a server loads the model.
    load_synthesizer("soulx-podcast", {"addresses": ["http://127.0.0.1"], **kept})
    if not is_launch:
        yield dict(options)
        return
    with tempfile.TemporaryDirectory(prefix="sdiareward-soulx-") as folder:
        command = _make_command(options)
        gpus = [str(gpu) for gpu in options.get("gpus", (0,))]
        started: list[_Started] = []
        try:
            for number, gpu in enumerate(gpus):
                started.append(_start(command, gpu, Path(folder, f"server-{number}")))
            logger.warning("starting %d servers of SoulX-Podcast, logs in %s", len(started), folder)
            addresses = _wait_until_loaded(started)
            try:
                yield {**kept, "addresses": addresses}
            except UserError as error:
                ended = [server.explain_end() for server in _find_ended(started)]
                if not ended:
                    raise
                raise UserError(" ".join([str(error), *ended])) from error
        finally:
            _end(started)


def _make_command(options: Mapping[str, Any]) -> list[str]:
    python = shutil.which(str(options["python"]))
    if python is None:
        raise UserError(
            f"soulx-podcast: python {options['python']!r} is no interpreter; name that of its environment."
        )
    repository, model_path = Path(options.get("repository") or ""), Path(options["model_path"])
    if not options.get("repository") or not (repository / "soulxpodcast").is_dir():
        raise UserError(f"soulx-podcast: repository {str(repository)!r} has no folder soulxpodcast; name the clone.")
    if not model_path.is_dir():
        raise UserError(f"soulx-podcast: model_path {str(model_path)!r} is no folder; name that of the model.")
    command = [python, str(_SERVER), "--end-with-stdin", "--port", "0", "--repository", str(repository.resolve())]
    command += ["--model-path", str(model_path.resolve()), "--llm-engine", str(options.get("llm_engine", "hf"))]
    return [*command, "--fp16-flow"] if options.get("fp16_flow") else command


def _start(command: Sequence[str], gpu: str, path: Path) -> _Started:
    log, address_file = path.with_suffix(".log"), path.with_suffix(".address")
    # Packages of this environment would hide those of the other one.
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--address-file", str(address_file)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**env, "CUDA_VISIBLE_DEVICES": gpu},
            start_new_session=True,
        )
    return _Started(process, gpu, log, address_file)


def _wait_until_loaded(started: Sequence[_Started]) -> list[str]:
    while True:
        addresses = [server.address for server in started]
        if all(addresses):
            return [address for address in addresses if address]
        for server in started:
            if server.process.poll() is not None:
                raise UserError(f"soulx-podcast: {server.explain_end()}. Mend that, then {AGAIN}.")
        time.sleep(_POLL_S)


def _find_ended(started: Sequence[_Started]) -> list[_Started]:
    """Return the servers that ended; a connection breaks a moment before its process is gone."""
    deadline_s = time.monotonic() + _GRACE_S
    while True:
        ended = [server for server in started if server.process.poll() is not None]
        if ended or time.monotonic() > deadline_s:
            return ended
        time.sleep(_POLL_S)


def _end(started: Sequence[_Started]) -> None:
    for server in started:
        if server.process.stdin:
            server.process.stdin.close()
    for server in started:
        try:
            server.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            server.process.kill()
            server.process.wait()
