"""Run parsers of outside data on generated input, under limits of time and memory.

A `Target` is a parser with a Hypothesis strategy of its inputs. It may raise its `refusals`, errors that name the
problem of the input. Any other error, a timeout and excessive memory are failures, which Hypothesis minimises.

Notable choices:

- A signal interrupts a case that hangs in Python code. A hang elsewhere ends the process with its stack on stderr.
- Memory is the growth of this process's peak during the case (Linux). The address space is limited as well, so that
  memory which is allocated and never touched fails too.
- Seeds are given and nothing is kept between runs: the same numbers give the same cases.
"""

import faulthandler
import logging
import os
import resource
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, configuration, given, seed, settings
from hypothesis.strategies import SearchStrategy
from support.paths import FIXTURES


KINDS = ("audio", "sources", "rows", "dialogues", "settings", "answers", "files", "requests")
# Processor time of one case.
TIME_LIMIT_S = 10.0
# Of some cases together, for hangs outside Python: the process ends with its stack on stderr.
HANG_LIMIT_S = 300.0
_CASES_WATCHED = 100
# Generated inputs have at most some ten thousand bytes.
MEMORY_LIMIT_BYTES = 600 * 2**20
ADDRESS_SPACE_BYTES = 2**30
_PEAK_MEMORY = Path("/proc/self/clear_refs")

configuration.set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "hypothesis")


class TooSlowError(BaseException):
    """Raised in a case that takes too long; no `except Exception` of the package catches it."""


class TooLargeError(AssertionError):
    """Raised for a case that took too much memory."""


class World:
    """State that targets share: a folder for their files, and objects that load slowly."""

    def __init__(self, folder: Path):
        self.folder = folder

    @cached_property
    def processor(self) -> Any:
        from sdiareward.processing_sdiareward import SDiaRewardProcessor

        return SDiaRewardProcessor.from_backbone(FIXTURES / "base_tiny")

    @cached_property
    def recordings(self) -> dict[str, bytes]:
        from fuzz.audio import encode_recordings

        return encode_recordings()

    def write(self, name: str, content: bytes | str) -> Path:
        """Write a file of a case, over that of the previous case."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
        return path


@dataclass(frozen=True)
class Target:
    name: str
    kind: str
    cases: Callable[[World], SearchStrategy[Any]]
    run: Callable[[World, Any], Any]
    # Errors that refuse the input with a reason.
    refusals: tuple[type[BaseException], ...] = (ValueError,)


@dataclass
class Tally:
    """Results of the cases of a target."""

    num_cases: int = 0
    num_accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    slowest: Any = None
    largest_bytes: int = 0


@contextmanager
def silent(name: str) -> Iterator[None]:
    """Silence a logger, which would write a line per case; other tests read it."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def run_target(target: Target, world: World, number: int, num_cases: int, tally: Tally | None = None) -> Tally:
    """Run some cases of a target; the number is their seed.

    Raises:
        Exception: What the smallest failing case raised, with the case in its notes.
    """
    tally = Tally() if tally is None else tally

    @settings(
        max_examples=num_cases,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
    )
    @seed(number)
    @given(case=target.cases(world))
    def run_generated(case: Any) -> None:
        if tally.num_cases % _CASES_WATCHED == 0:
            faulthandler.dump_traceback_later(HANG_LIMIT_S, exit=True)
        run_case(target, world, case, tally)

    # Its warnings about made-up checkpoints; its level also decides whether a later training shows progress.
    with limited_address_space(ADDRESS_SPACE_BYTES), silent("transformers"):
        try:
            run_generated()
        finally:
            faulthandler.cancel_dump_traceback_later()
    return tally


def run_case(target: Target, world: World, case: Any, tally: Tally | None = None) -> None:
    """Run one case under the limits; a refusal is no error."""
    tally = Tally() if tally is None else tally
    tally.num_cases += 1
    before = _start_measuring()
    start = time.process_time()
    try:
        with limited_time(TIME_LIMIT_S):
            target.run(world, case)
        tally.num_accepted += 1
    except target.refusals as error:
        tally.refused[type(error).__name__] += 1
    if (seconds := time.process_time() - start) > tally.slowest_s:
        tally.slowest_s, tally.slowest = seconds, case
    grown = _peak_bytes() - before
    tally.largest_bytes = max(tally.largest_bytes, grown)
    if grown > MEMORY_LIMIT_BYTES:
        raise TooLargeError(f"took {grown / 2**20:.0f} MB; at most {MEMORY_LIMIT_BYTES / 2**20:.0f} are allowed.")


@contextmanager
def limited_time(seconds: float):
    """Interrupt what takes longer, where Python runs."""

    def interrupt(*_: Any) -> None:
        raise TooSlowError(f"took longer than {seconds:g} s")

    # Processor time, not wall time: other programs run beside this one.
    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def limited_address_space(more_bytes: int):
    """Let this process map only so much more than it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    mapped_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (mapped_bytes + more_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _start_measuring() -> int:
    """Forget the peak of memory so far; return what is taken now, in bytes."""
    _PEAK_MEMORY.write_text("5")
    return _peak_bytes()


def _peak_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
