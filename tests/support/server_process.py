"""The server as a process of its own."""

import contextlib
import os
import re
import sys
import time

import psutil
from support import forked


START_S = 120


def list_open_addresses(processes):
    """Return name, address and port of each socket at which processes listen for other machines."""
    found = []
    for process in processes:
        # Some end meanwhile.
        with contextlib.suppress(psutil.NoSuchProcess):
            name, sockets = process.name(), process.net_connections("inet")
            found += [(name, *each.laddr) for each in sockets if _is_open(each)]
    return found


def _is_open(connection):
    return connection.status == psutil.CONN_LISTEN and not connection.laddr.ip.endswith("127.0.0.1")


class Server:
    def __init__(self, folder, checkpoint, *options, address=""):
        self.log = folder / "log.txt"
        command = [sys.executable, "-m", "sdiareward.cli", "serve", "--model", str(checkpoint), "--port", "0"]
        with self.log.open("w") as log:
            environment = os.environ | {"RAY_ADDRESS": address, "OMP_NUM_THREADS": "1"}
            self.process = forked.Popen([*command, *options], stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + START_S
        while not (found := re.search(r" at (http\S+), docs", self.log.read_text())):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)
        self.url = found[1]
        self.children = psutil.Process(self.process.pid).children(recursive=True)

    def replicas(self):
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in children if "ServeReplica" in " ".join(child.cmdline())]

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        for child in self.children:
            if child.is_running():
                child.kill()
