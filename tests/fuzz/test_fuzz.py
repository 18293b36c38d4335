"""A few thousand generated inputs of the parsers of outside data; `benchmarks/fuzzing.py` runs a hundred thousand."""

import pytest
from fuzz.running import World, run_target
from fuzz.targets import TARGETS


# The same cases in every run; another seed is a change like any other.
SEED = 20_261
CASES = 50


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("fuzzing"))


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_is_read_is_read_or_refused_with_a_reason(name, world):
    tally = run_target(TARGETS[name], world, SEED, CASES)
    assert tally.num_cases >= 20
    # A target that refuses everything would only test the first of its checks.
    assert tally.num_accepted
