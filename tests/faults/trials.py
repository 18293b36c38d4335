"""The faults. A trial runs a command under one fault, runs the same command again, and lists every problem.

A trial is right under three conditions. The first run was killed, finished, or ended with one line that names the
remedy. The second run leaves the result of an undisturbed run. No finished part was computed twice and no process was
left running. If a source vanished, the second run may also be refused with the reason, as long as all finished parts
remain.

A run that ends before its fault strikes is no trial: another moment is drawn.
"""

import json
import math
import random
import re
import shutil
import signal
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from faults.commands import Build, World, digest, make_commands
from faults.disks import small_disk, used_bytes
from faults.lab import Lab


# Rewards depend on what is scored together, which is not the same after a restart.
TOLERANCE = 1e-5
_PLENTY_BYTES = 2**28
# Runs that may end before their fault strikes; each shows how long the next may take.
MOST_MISSED = 20
JUMPS_S = (-3 * 86_400, 3 * 86_400)
# An error line is helpful only if it names a remedy.
_REMEDY = re.compile(
    r"run the same command again|the same command goes on|in another output|name another output|give a "
)
# Python's message about finalizers: a Parquet file that could not be closed is closed once more.
_WHILE_ENDING = re.compile(r"Exception ignored in.*\nTraceback .*\n(?: .*\n)+\S.*\n?")


@contextmanager
def open_trials(folder, checkpoint, *, has_clock=False):
    """Start a lab, build the data that the other commands work on, and give the trials of all commands.

    Args:
        folder (`Path`): For everything that is written.
        checkpoint (`Path`): A tiny model.
        has_clock: Whether the clock of the commands can be set; needs a C compiler.
    """
    with Lab(folder, has_clock=has_clock) as lab:
        world = World(folder / "world", checkpoint)
        trials = Trials(lab, {"build": Build(world)})
        trials.reference("build")
        world.add_pairs(lab.output / "sdiareward")
        trials.commands.update(make_commands(world, lab.hub))
        yield trials


@dataclass(frozen=True)
class Reference:
    """An undisturbed run."""

    result: Any
    seconds: float
    operations: int
    num_parts: int
    used_bytes: int
    carried_bytes: int

    @property
    def hash(self):
        """Return the hash of the result, rewards rounded to four decimals."""
        text = json.dumps(self.result, sort_keys=True)
        return digest(re.sub(r"-?\d+\.\d+(e-\d+)?", lambda number: f"{float(number[0]):.4f}", text).encode())


class Trials:
    """Make trials in a lab.

    Args:
        lab (`Lab`): Running.
        commands (`dict`): By name.
    """

    def __init__(self, lab, commands):
        self.lab, self.commands = lab, commands
        self._references, self._seconds = {}, {}

    def reference(self, name):
        """Return the undisturbed run of a command; it is run on the first call."""
        if name not in self._references:
            self._references[name] = self._run_undisturbed(self.commands[name])
        return self._references[name]

    def _run_undisturbed(self, command):
        self._begin()
        carried = self.lab.network.carried_bytes
        done = self.lab.run(command)
        assert done.status == 0, done.err
        output = self.lab.output
        return Reference(
            command.result(output),
            done.seconds,
            done.operations,
            command.num_finished(output),
            used_bytes(output),
            self.lab.network.carried_bytes - carried,
        )

    def killed(self, name, number, seed):
        """Send a signal to the command or to one of its workers at a random moment."""
        chance = _chance(number, name, seed)

        def run_once():
            moment = self._draw_moment(name, chance)
            to_worker = name == "build" and "after_s" in moment and chance.random() < 0.5
            first = self._run_with(name, moment, {"worker_signal" if to_worker else "signal": number})
            return first, {"moment": moment, "to": "worker" if to_worker else "command"}

        first, facts = self._until_struck(name, run_once)
        return self._finish(name, seed, first, **facts)

    def full_disk(self, name, seed):
        """Write to a disk that is smaller than the result."""
        size_bytes = round(_chance("full disk", name, seed).uniform(0.02, 0.9) * self.reference(name).used_bytes)
        self._begin()
        with small_disk(self.lab.output, size_bytes) as change:
            first = self.lab.run(self.commands[name])
            change(f"size={_PLENTY_BYTES}")
            return self._finish(name, seed, first, disk_bytes=size_bytes)

    def limited_files(self, name, seed):
        """Limit the size of each file, as a quota or `ulimit -f` does."""
        size_bytes = round(2 ** _chance("limited files", name, seed).uniform(8, 12))
        self._begin()
        first = self.lab.run(self.commands[name], largest_file_bytes=size_bytes)
        return self._finish(name, seed, first, largest_file_bytes=size_bytes)

    def read_only(self, name, seed):
        """Make the disk read-only after a run on it was killed."""
        moment = self._draw_moment(name, _chance("read-only output", name, seed))
        self._begin()
        with small_disk(self.lab.output, _PLENTY_BYTES) as change:
            self.lab.run(self.commands[name], fault={**moment, "action": {"signal": signal.SIGKILL}})
            change("ro")
            first = self.lab.run(self.commands[name])
            change("rw")
            return self._finish(name, seed, first, killed_at=moment)

    def clock_jump(self, name, seed):
        """Set the clock by days, at a random moment of a run or between a killed run and the next."""
        chance = _chance("clock jump", name, seed)

        def run_once():
            moment, jump_s = self._draw_moment(name, chance), chance.choice(JUMPS_S)
            in_between = chance.random() < 0.5
            self.lab.set_clock(0)
            first = self._run_with(name, moment, {"signal": signal.SIGKILL} if in_between else {"clock": jump_s})
            return first, {"moment": moment, "jump_s": jump_s, "between_runs": in_between}

        first, facts = self._until_struck(name, run_once)
        self.lab.set_clock(facts["jump_s"] if facts["between_runs"] else 0)
        return self._finish(name, seed, first, **facts)

    def two_at_once(self, name, seed):
        """Start the command twice at once on one output."""
        self._begin()
        runs = self.lab.run_together(self.commands[name], 2)
        statuses = [done.status for done in runs]
        # One of the two must finish; the other one's end is checked.
        first = max(runs, key=lambda done: (done.status != 0, done.status != 2))
        trial = self._finish(name, seed, first, statuses=statuses)
        if 0 not in statuses:
            trial["problems"].append("neither finished")
        return trial

    def vanished_source(self, name, seed):
        """Remove a file that the command reads at a random moment; restore it before the second run."""
        chance, source = _chance("vanished source", name, seed), self.commands[name].source
        kept = self.lab.folder / "kept"
        shutil.copy2(source, kept)

        def run_once():
            moment = self._draw_moment(name, chance)
            first = self._run_with(name, moment, {"remove": str(source)})
            shutil.copy2(kept, source)
            return first, {"moment": moment}

        first, facts = self._until_struck(name, run_once)
        return self._finish(name, seed, first, may_refuse=True, **facts)

    def network_drop(self, name, seed, moment_s=(None, 0.2)):
        """Drop the network after some bytes, for `moment_s` seconds or, if that is None, until the first run ends."""
        chance, network = _chance("network drop", name, seed), self.lab.network

        def run_once():
            after_bytes, times_down = chance.randrange(self.reference(name).carried_bytes), network.times_down
            down_s = chance.choice(moment_s)
            self._begin()
            network.drop(after_bytes, down_s)
            first = self.lab.run(self.commands[name])
            network.restore()
            struck = network.times_down > times_down
            return replace(first, struck=struck), {"after_bytes": after_bytes, "down_s": down_s}

        first, facts = self._until_struck(name, run_once)
        return self._finish(name, seed, first, **facts)

    def _run_with(self, name, moment, action):
        """Run a command with a fault on an empty output."""
        self._begin()
        return self.lab.run(self.commands[name], fault={**moment, "action": action})

    def _until_struck(self, name, run_once):
        """Return the first run whose fault struck before its end, and the facts drawn for it."""
        for num_missed in range(MOST_MISSED):
            first, facts = run_once()
            if first.struck:
                return first, {**facts, "num_missed": num_missed}
            # The undisturbed run filled the caches; later runs are faster.
            self._seconds[name] = min(first.seconds, self._seconds.get(name, first.seconds))
        raise AssertionError(f"{name}: {MOST_MISSED} runs ended before their fault struck")

    def _draw_moment(self, name, chance):
        reference = self.reference(name)
        if chance.random() < 0.5:
            seconds = self._seconds.get(name, reference.seconds)
            return {"after_s": round(chance.uniform(0, seconds), 4), "of_s": round(seconds, 4)}
        delay_s = chance.choice([0.0, round(chance.uniform(0, 0.02), 4)])
        return {"operation": chance.randint(1, reference.operations), "of": reference.operations, "delay_s": delay_s}

    def _begin(self):
        """Remove everything that earlier trials left."""
        for folder in (self.lab.output, self.lab.folder / "cache"):
            shutil.rmtree(folder, ignore_errors=True)
        self.lab.output.mkdir()
        self.lab.forget_pushes()

    def _finish(self, name, seed, first, may_refuse=False, **facts):
        """Run the command again; return the facts of the trial with its problems."""
        command, reference, output = self.commands[name], self.reference(name), self.lab.output
        ended = name_end(first)
        num_kept = command.num_finished(output)
        again = self.lab.run(command)
        problems = [f"first run: {ended}"] if ended.startswith(("unclear", "hung")) else []
        problems += [f"left running: {line}" for done in (first, again) for line in done.survivors]
        refusal = name_end(again)
        if may_refuse and refusal.startswith("refused"):
            facts["again"] = refusal
            num_lost = num_kept - command.num_finished(output)
            problems += [f"{num_lost} finished parts were lost"] if num_lost > 0 else []
        elif refusal != "finished":
            problems.append(f"second run: {refusal}")
        else:
            problems += find_differences(reference.result, command.result(output))
            made_again = command.num_made(output, again) - (reference.num_parts - num_kept)
            problems += [f"{made_again} finished parts were computed again"] if made_again > 0 else []
        parts = {"parts": reference.num_parts, "parts_kept": num_kept}
        facts |= {"first": ended, **parts, "reference": reference.hash, "problems": problems}
        return {"command": name, "seed": seed, **facts}


# Each runs a trial of a named command with a seed.
FAULTS = {
    "SIGKILL": lambda trials, name, seed: trials.killed(name, signal.SIGKILL, seed),
    "SIGTERM": lambda trials, name, seed: trials.killed(name, signal.SIGTERM, seed),
    "full disk": Trials.full_disk,
    "limited files": Trials.limited_files,
    "read-only output": Trials.read_only,
    "clock jump": Trials.clock_jump,
    "two at once": Trials.two_at_once,
    "vanished source": Trials.vanished_source,
    "network drop": Trials.network_drop,
}


def _chance(fault, name, seed):
    """Return the random generator of a trial."""
    return random.Random(f"{fault}/{name}/{seed}")


def name_end(done):
    """Return how a run ended: finished, killed, refused with one line, unclear or hung."""
    if done.status is None:
        return "hung"
    if done.status == 0:
        return "finished"
    if done.status in (-signal.SIGKILL, -signal.SIGTERM):
        return "killed"
    err = _WHILE_ENDING.sub("", done.err)
    lines = err.strip().splitlines()
    said = lines[-1] if lines else ""
    if done.status != 2 or "Traceback" in err or not _REMEDY.search(said.partition("error: ")[2]):
        return f"unclear: status {done.status}, {said[-300:]}"
    return "refused: " + said.partition("error: ")[2]


def find_differences(expected, found, place=""):
    """Return the places where two results of dictionaries, lists, texts and numbers differ.

    Floats are equal within `TOLERANCE`, because scoring in another order changes them.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        lost = [f"{place}/{name} is missing" for name in expected.keys() - found.keys()]
        more = [f"{place}/{name} is too much" for name in found.keys() - expected.keys()]
        both = [find_differences(expected[name], found[name], f"{place}/{name}") for name in expected.keys() & found]
        return lost + more + sum(both, [])
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return sum([find_differences(*pair, f"{place}/{number}") for number, pair in pairs], [])
    if isinstance(expected, float) and isinstance(found, float):
        is_same = math.isclose(expected, found, rel_tol=0, abs_tol=TOLERANCE)
    else:
        is_same = expected == found
    return [] if is_same else [f"{place}: {str(found)[:200]} is not {str(expected)[:200]}"]
