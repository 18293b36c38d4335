"""Faults of a server: the server, a replica of its model, its network or its files end while it answers.

A server keeps no state. A trial is right if every reward that a client received is the undisturbed one, if a client
without a reward received an error, and if the next request, to this server or a new one, is answered.

Only large recordings in multipart bodies go to the server's disk. Trials of disk faults send one of those too.
"""

import contextlib
import io
import json
import random
import shutil
import signal
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pytest
import requests
import soundfile
from faults.commands import RATE, digest
from faults.disks import small_disk
from faults.lab import clock_environment
from faults.network import Network
from faults.trials import JUMPS_S, MOST_MISSED, TOLERANCE
from faults.worker import set_clock

from benchmarks.bad_input import read_speech
from benchmarks.serving_clients import running_server
from benchmarks.speed_models import NANO
from sdiareward.serving.client import RewardClient, ServiceError


# Trials by fault; each fault of the server itself needs a new server.
SERVING_TRIALS = {
    "SIGKILL of a copy": 3,
    "SIGTERM of a copy": 3,
    "network drop": 4,
    "two at once": 1,
    "SIGTERM": 2,
    "SIGKILL": 2,
    "full disk": 2,
    "read-only output": 1,
    "vanished source": 2,
    "clock jump": 4,
}
_NUM_DIALOGUES = 6
_END_S = 100
_DISK_BYTES = 2**28
# Longer than starlette holds in memory.
_LARGE_S = 20
# Seconds until a client receives an error because no replica answers, and until a replica is back.
_PATIENCE_S = 10
_BACK_S = 200


class ServingTrials:
    """Make trials with servers of the nano checkpoint; use it as a context manager."""

    def __init__(self):
        speech = read_speech()
        clips = [speech[k * RATE // 8 : k * RATE // 8 + RATE // 2] for k in range(2 * _NUM_DIALOGUES)]
        turns = [
            {
                "role": ("user", "assistant")[k % 2],
                "text": f"line {k}",
                "audio": {"array": clip, "sampling_rate": RATE},
            }
            for k, clip in enumerate(clips)
        ]
        self._dialogues = [turns[k : k + 2] for k in range(0, len(turns), 2)]
        self._stack = ExitStack()
        self._server = None
        # Reward of the large recording, from the first server.
        self._large = None

    def __enter__(self):
        self._start()
        self._rewards = RewardClient(self._server.url).score(self._dialogues)
        # Duration of one client's requests to a warm server.
        start = time.monotonic()
        assert self._ask(self._server.url) == "finished"
        self._seconds = time.monotonic() - start
        return self

    def __exit__(self, *_):
        self._stack.close()

    def _start(self):
        self._stack.close()
        self._server = self._stack.enter_context(running_server(object_store_mib=80))

    def make(self, fault, seed):
        """Make a trial."""
        chance = random.Random(f"{fault}/serve/{seed}")
        if fault in _OF_ITS_MACHINE:
            with tempfile.TemporaryDirectory() as folder:
                facts = _OF_ITS_MACHINE[fault](self, Path(folder), seed)
        elif fault == "two at once":
            facts = self._take_the_port()
        elif fault == "network drop":
            facts = self._drop(chance)
        else:
            name, _, of_copy = fault.partition(" ")
            facts = self._kill(getattr(signal, name), bool(of_copy), chance)
        again = self._ask(self._server.url)
        problems = facts.pop("problems") + [f"second time: {again}"] * (again != "finished")
        reference = digest(",".join(f"{reward:.4f}" for reward in self._rewards).encode())
        return {"command": "serve", "seed": seed, **facts, "reference": reference, "problems": problems}

    def _ask(self, url, **options):
        """Return `finished` if every reward is the undisturbed one, else the client's error."""
        client = RewardClient(url, dialogues_per_request=1, concurrency=2, **options)
        try:
            found = client.score(self._dialogues)
        except ServiceError as error:
            return f"refused: {error}"
        return "finished" if found == pytest.approx(self._rewards, abs=TOLERANCE) else f"wrong rewards {found}"

    def _kill(self, number, of_copy, chance):
        process = psutil.Process(self._server.process.pid)
        children = process.children(recursive=True)
        victim = next(each for each in children if "ServeReplica" in " ".join(each.cmdline())) if of_copy else process
        # The client of a dead replica waits for the next one; the client of a dead server gives up soon.
        facts = self._strike(victim, number, chance, max_retries=12 if of_copy else 2)
        first = facts["first"]
        problems = [first] if first.startswith("wrong") or (of_copy and first != "finished") else []
        if not of_copy:
            problems += self._see_the_end(number, children)
            self._start()
        return {**facts, "problems": problems}

    def _strike(self, victim, number, chance, max_retries):
        """Signal a process while a client waits for answers; return the moment and the client's result."""
        for num_missed in range(MOST_MISSED):
            after_s = chance.uniform(0, self._seconds)
            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(self._ask, self._server.url, max_retries=max_retries)
                time.sleep(after_s)
                if is_waiting := not answer.done():
                    victim.send_signal(number)
                first = answer.result()
            if is_waiting:
                return {"after_s": round(after_s, 4), "num_missed": num_missed, "first": first}
        raise AssertionError(f"{MOST_MISSED} clients were answered before the signal came")

    def _see_the_end(self, number, children):
        status = self._server.process.wait(_END_S)
        expected = 0 if number == signal.SIGTERM else -number
        problems = [] if status == expected else [f"the server ended with {status}"]
        _, alive = psutil.wait_procs(children, timeout=_END_S)
        left = [each for each in alive if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
        return problems + [f"left running: {' '.join(each.cmdline())[:200]}" for each in left]

    def _take_the_port(self):
        port = self._server.url.rpartition(":")[2]
        return self._see_no_start(running_server(port=port), "error: cannot listen at")

    def _see_no_start(self, server, reason):
        """Start a server that must fail and report `reason` in its last line."""
        try:
            with server:
                return {"first": "finished", "problems": ["a server started"]}
        except RuntimeError as error:
            said = str(error).strip().splitlines()[-1]
        problems = [] if reason in said and "Traceback" not in said else [said]
        return {"first": f"refused: {said.partition('error: ')[2]}", "problems": problems}

    def _drop(self, chance):
        with Network(int(self._server.url.rpartition(":")[2])) as network:
            undisturbed = self._ask(network.urls[0])
            after_bytes, down_s = chance.randrange(network.carried_bytes), chance.choice([None, 0.2])
            network.drop(after_bytes, down_s)
            first = self._ask(network.urls[0], max_retries=3)
            network.restore()
            last = self._ask(network.urls[0])
        problems = [said for said in (undisturbed, last) if said != "finished"]
        problems += [first] * first.startswith("wrong") + ["nothing was dropped"] * (network.times_down != 1)
        return {"after_bytes": after_bytes, "down_s": down_s, "first": first, "problems": problems}

    def _fill_the_disk(self, folder, seed):
        """Fill the server's disk and empty it again; odd trials also kill a replica."""
        with small_disk(folder / "t", _DISK_BYTES), self._server_of(folder / "t") as server:
            undisturbed = self._ask_all(server)
            with (folder / "t" / "full").open("wb", buffering=0) as full, contextlib.suppress(OSError):
                while full.write(b"x" * 4096):
                    pass
            is_killed = self._kill_in_odd_trials(server, seed)
            first = self._ask_all(server)
            (folder / "t" / "full").unlink()
            problems = self._see_it_back(server, undisturbed, first)
        problems += ["the large recording was not refused"] * ("disk cannot take what was sent" not in first)
        return {"copy_killed": is_killed, "first": first, "problems": problems}

    def _start_read_only(self, folder, _):
        """Start a server on a read-only disk, then one on a writable disk."""
        with small_disk(folder / "t", _DISK_BYTES) as change:
            change("ro")
            facts = self._see_no_start(self._server_of(folder / "t"), "Read-only file system; make it writable")
            change("rw")
            with self._server_of(folder / "t") as server:
                last = self._ask(server.url)
        problems = facts["problems"] + [last] * (last != "finished")
        return {"first": facts["first"].replace(f"{folder}/", ""), "problems": problems}

    def _remove_the_model(self, folder, seed):
        """Move the checkpoint away and back; odd trials also kill a replica."""
        shutil.copytree(NANO, folder / "nano")
        with self._server_of(folder, model=folder / "nano") as server:
            undisturbed = self._ask_all(server)
            (folder / "nano").rename(folder / "gone")
            is_killed = self._kill_in_odd_trials(server, seed)
            first = self._ask_all(server)
            (folder / "gone").rename(folder / "nano")
            problems = self._see_it_back(server, undisturbed, first)
        problems += [first] * (first.startswith("refused") and not is_killed)
        return {"copy_killed": is_killed, "first": first, "problems": problems}

    def _set_the_clock(self, folder, seed):
        """Set the clock of the server and its replicas by days; odd trials also kill a replica.

        After a clock was set back, Ray Serve replaces no dead replica until the clock has caught up. The server may
        then be restarted; the trial records it.
        """
        jump_s, variables = JUMPS_S[seed // 2 % 2], clock_environment(folder)
        with self._server_of(folder, variables) as server:
            undisturbed = self._ask_all(server)
            set_clock(folder / "clock", jump_s)
            is_killed = self._kill_in_odd_trials(server, seed)
            first = self._ask_all(server)
            is_stuck = is_killed and jump_s < 0 and first.startswith("refused")
            problems = [] if is_stuck else self._see_it_back(server, undisturbed, first)
        if is_stuck:
            with self._server_of(folder, variables) as server:
                problems = self._see_it_back(server, undisturbed, first)
        problems += [first] * (first.startswith("refused") and not is_killed)
        facts = {"jump_s": jump_s, "copy_killed": is_killed, "restarted": is_stuck}
        return {**facts, "first": first, "problems": problems}

    def _server_of(self, folder, environment=None, **options):
        """Start a server that writes to a folder and does not wait long for a replica."""
        places = {name: str(folder) for name in ("TMPDIR", "RAY_TMPDIR")}
        options = {"object_store_mib": 80, "request_timeout_s": _PATIENCE_S, **options}
        return running_server({**places, **(environment or {})}, **options)

    def _kill_in_odd_trials(self, server, seed):
        if seed % 2:
            server.kill_replica()
        return bool(seed % 2)

    def _ask_all(self, server):
        """Ask as `_ask` does, then with a large recording; return `finished` if both get their rewards."""
        said = [self._ask(server.url, max_retries=1), self._ask_large(server.url)]
        bad = [each for each in said if each.startswith("wrong")]
        return "; ".join(bad or dict.fromkeys(each for each in said if each != "finished")) or "finished"

    def _ask_large(self, url):
        clip = np.pad(self._dialogues[0][1]["audio"]["array"], (0, _LARGE_S * RATE))
        file = io.BytesIO()
        soundfile.write(file, clip, RATE, format="WAV", subtype="FLOAT")
        turns = [{"role": role, "text": "line", "audio": {"file": "clip"}} for role in ("user", "assistant")]
        request = (None, json.dumps({"dialogues": [{"turns": turns}]}), "application/json")
        answer = requests.post(
            f"{url}/score", files={"request": request, "clip": ("clip.wav", file.getvalue())}, timeout=_END_S
        )
        if answer.status_code == 503:
            return f"refused: {answer.json()['detail']}"
        if answer.status_code != 200:
            return f"wrong answer {answer.status_code}: {answer.text[:100]}"
        reward = answer.json()["results"][0]["reward"]
        self._large = reward if self._large is None else self._large
        return "finished" if reward == pytest.approx(self._large, abs=TOLERANCE) else f"wrong reward {reward}"

    def _see_it_back(self, server, undisturbed, first):
        """Ask until everything is answered again; return the problems before that, or the last one."""
        deadline = time.monotonic() + _BACK_S
        while (last := self._ask_all(server)) != "finished" and time.monotonic() < deadline:
            time.sleep(1)
        problems = [said for said in (undisturbed, last) if said != "finished"]
        return problems + [first] * (not first.startswith(("finished", "refused")))


# Faults of the machine: each trial starts its own server.
_OF_ITS_MACHINE = {
    "full disk": ServingTrials._fill_the_disk,
    "read-only output": ServingTrials._start_read_only,
    "vanished source": ServingTrials._remove_the_model,
    "clock jump": ServingTrials._set_the_clock,
}
