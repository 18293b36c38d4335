"""Somebody who pushes to a `HubServer` and loads from it, in processes with an `HF_HOME` of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path


WRITER, MEMBER, READER, STRANGER = (
    f"hf_{name}{'0123456789' * 3}" for name in ("Writer", "Member", "Reader", "Stranger")
)
_WORKER = Path(__file__).with_name("hub_worker.py")


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self):
        assert self.code == 0, self.err
        return json.loads(self.out.splitlines()[-1])


class HubUser:
    """Pushes and loads.

    Args:
        hub (`HubServer`): Where.
        home (`Path`): A folder for caches and outputs.
    """

    def __init__(self, hub, home):
        self.hub, self.home = hub, home
        self.printed = []
        self._worker = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._worker:
            self._worker.stdin.close()
            self._worker.wait()

    def environment(self, token, home="home", **more):
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        return {
            **inherited,
            "HF_ENDPOINT": self.hub.url,
            "HF_HOME": str(self.home / home),
            # Xet is a protocol of its own, with a service that only the Hub has; without it the clients use LFS.
            "HF_HUB_DISABLE_XET": "1",
            # `evaluate` counts downloads elsewhere than at HF_ENDPOINT.
            "HF_UPDATE_DOWNLOAD_COUNTS": "0",
            "OMP_NUM_THREADS": "1",
            **({"HF_TOKEN": token} if token else {}),
            **more,
        }

    def push(self, *arguments, token=WRITER, **environment):
        """Run `sdiareward push` with arguments."""
        task = {"arguments": ["push", *map(str, arguments)]}
        return self._wait(self._start(task, token, environment))

    def publish(self, repo_id, files, token=WRITER, kill_when=None, repo_type="model", space_sdk=None, **options):
        """Publish a plan: files as `{path in the repository: content, or Path}`.

        Args:
            kill_when (`Callable`, *optional*): Kill the process as soon as this says so.
        """
        sources = {
            path: {"file": str(source)} if isinstance(source, Path) else source for path, source in files.items()
        }
        plan = {"repo_id": repo_id, "files": sources, "options": options, "repo_type": repo_type}
        task = self._start({"plan": {**plan, "space_sdk": space_sdk}}, token, {})
        if kill_when:
            deadline = time.monotonic() + 120
            while not kill_when() and time.monotonic() < deadline:
                time.sleep(0.01)
            os.kill(task["process"], signal.SIGKILL)
        return self._wait(task)

    def python(self, code, *arguments, token=None, home="home", **environment):
        """Run code in a fresh process with nothing of the test's; its last line is JSON."""
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            env=self.environment(token, home, **environment),
            cwd=self.home,
            capture_output=True,
            text=True,
        )
        self.printed += [done.stdout, done.stderr]
        return Done(done.returncode, done.stdout, done.stderr)

    def traces(self):
        """Return all that was printed, logged, cached or published, in one piece."""
        written = [path.read_bytes() for path in self.home.rglob("*") if path.is_file()]
        return b"\n".join([*(text.encode() for text in self.printed), *written, self.hub.store.all_content()])

    def _start(self, task, token, environment):
        if self._worker is None:
            command = [sys.executable, str(_WORKER)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self._worker = subprocess.Popen(command, env=self.environment(None), **pipes)
        number = len(self.printed)
        task["out"], task["err"] = str(self.home / f"out-{number}"), str(self.home / f"err-{number}")
        task["environment"] = {**({"HF_TOKEN": token} if token else {}), **environment}
        self._worker.stdin.write(json.dumps(task) + "\n")
        self._worker.stdin.flush()
        task["process"] = int(self._worker.stdout.readline())
        return task

    def _wait(self, task):
        code = int(self._worker.stdout.readline())
        out, err = (Path(task[name]).read_text() for name in ("out", "err"))
        self.printed += [out, err]
        return Done(code, out, err)
