"""A few thousand generated inputs of the parsers of outside data; `benchmark.py` runs a hundred thousand."""

import pytest
from fuzz.running import World, run_target
from fuzz.targets import TARGETS


pytestmark = pytest.mark.slow


# Fixed, so that every run tests the same cases.
SEED = 20_261
CASES = 50


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("fuzzing"))


@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_reads_its_input_or_refuses_it_with_a_reason(name, world):
    tally = run_target(TARGETS[name], world, SEED, CASES)
    assert tally.num_cases >= 20
    # A target that refuses everything would only test the first of its checks.
    assert tally.num_accepted
