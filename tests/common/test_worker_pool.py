"""Workers end with the process that started them, and do not end without a word."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from sdiareward.common.user_errors import UserError
from sdiareward.common.worker_pool import open_worker_pool


pytestmark = pytest.mark.slow


PARENT = """
import os, time
from sdiareward.common.worker_pool import open_worker_pool

if __name__ == "__main__":
    with open_worker_pool(2) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        time.sleep(600)
"""


def test_workers_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    worker = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate()
    gone, _ = psutil.wait_procs([worker], timeout=20)
    assert gone or worker.status() == psutil.STATUS_ZOMBIE


def test_a_killed_worker_is_said_to_be_one():
    with (
        pytest.raises(UserError, match="a worker process was killed.*lower num_workers"),
        open_worker_pool(1) as pool,
    ):
        os.kill(pool.submit(os.getpid).result(), signal.SIGKILL)
        pool.submit(time.sleep, 60).result()


def test_what_was_not_begun_is_dropped_when_one_fails():
    start = time.monotonic()
    with pytest.raises(ZeroDivisionError), open_worker_pool(1) as pool:
        pool.submit(os.getpid).result()
        failed = pool.submit(divmod, 1, 0)
        waiting = [pool.submit(time.sleep, 2) for _ in range(60)]
        failed.result()
    assert time.monotonic() - start < 60
    assert waiting[-1].cancelled()
