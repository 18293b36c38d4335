"""The faults of a server: it, its copies of the model or the network end while it answers.

A server keeps nothing. A trial is right if every reward that a client got is the undisturbed one, if a client that got
none was told so, and if the next question, to the same server or to the next one, is answered as ever.
"""

import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psutil
import pytest
from fault_commands import RATE, digest
from fault_network import Network
from fault_trials import MOST_MISSED, TOLERANCE

from benchmarks.bad_input import read_speech
from benchmarks.serving_clients import running_server
from sdiareward.serving.client import RewardClient, ServiceError


# Fault -> trials of it; those of the server itself need a new one each.
SERVING_TRIALS = {
    "SIGKILL of a copy": 3,
    "SIGTERM of a copy": 3,
    "network drop": 4,
    "two at once": 1,
    "SIGTERM": 2,
    "SIGKILL": 2,
}
_NUM_DIALOGUES = 6
_END_S = 100


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

    def __enter__(self):
        self._start()
        self._rewards = RewardClient(self._server.url).score(self._dialogues)
        # How long a trial's client takes, once the server has answered something.
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
        if fault == "two at once":
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
        """Return `finished` if every reward is the undisturbed one, else what the client was told."""
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
        # A client of a copy that died waits for the next; one whose server died need not wait long.
        facts = self._strike(victim, number, chance, max_retries=12 if of_copy else 2)
        first = facts["first"]
        problems = [first] if first.startswith("wrong") or (of_copy and first != "finished") else []
        if not of_copy:
            problems += self._see_the_end(number, children)
            self._start()
        return {**facts, "problems": problems}

    def _strike(self, victim, number, chance, max_retries):
        """Signal a process while a client waits for answers; return when that was, and what the client got."""
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
        try:
            with running_server(port=port):
                return {"first": "finished", "problems": ["two servers at one port"]}
        except RuntimeError as error:
            said = str(error).strip().splitlines()[-1]
        problems = [] if "error: cannot listen at" in said and "Traceback" not in said else [said]
        return {"first": f"refused: {said.partition('error: ')[2]}", "problems": problems}

    def _drop(self, chance):
        with Network(int(self._server.url.rpartition(":")[2])) as network:
            undisturbed = self._ask(network.urls[0])
            after_bytes, down_s = chance.randrange(network.carried_bytes), chance.choice([None, 0.2])
            network.drop(after_bytes, down_s)
            first = self._ask(network.urls[0], max_retries=3)
            network.mend()
            last = self._ask(network.urls[0])
        problems = [said for said in (undisturbed, last) if said != "finished"]
        problems += [first] * first.startswith("wrong") + ["nothing was dropped"] * (network.times_down != 1)
        return {"after_bytes": after_bytes, "down_s": down_s, "first": first, "problems": problems}
