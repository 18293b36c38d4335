"""Scripts that counting cannot solve."""

import json

import pytest

from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.pairing.surface_counts import MAX_SHARE, measure_shares
from sdiareward.dataset_builder.sources import colloquial_scripts, read_source


def sides(pairs):
    return [tuple([{"content": turn.text} for turn in side.turns] for side in (p.spoken, p.written)) for p in pairs]


@pytest.fixture(scope="module")
def pairs():
    found = list(read_source("colloquial_scripts", options={"balanced": True}))
    assert not [item for item in found if isinstance(item, Skipped)]
    return found


def test_the_set_has_300_pairs_of_15_domains_and_a_third_level_and_no_count_solves_it(pairs):
    written = [pair for pair in pairs if pair.written.secondary == "balanced"]
    caricatures = [pair for pair in pairs if pair.written.secondary == "caricature"]
    assert (len(written), len(caricatures), len({pair.spoken.name for pair in pairs})) == (300, 100, 400)
    assert len({pair.spoken.split_group for pair in written}) == 15
    assert {side.source for pair in pairs for side in (pair.written, pair.spoken)} == {"balanced_scripts"}
    assert {pair.spoken.group for pair in caricatures} <= {pair.spoken.group for pair in written}
    assert max(measure_shares(sides(written)).values()) <= MAX_SHARE


def test_the_easy_set_is_solved_by_counting_commas():
    easy = list(colloquial_scripts.read_pairs())
    assert {pair.written.secondary for pair in easy} == {"easy"}
    assert measure_shares(sides(easy))["commas"] == 1


def write_scripts(path, scripts):
    """Write pairs of a written and a spoken user turn, each answered with "no"."""
    with path.open("w") as file:
        for name, *texts in scripts:
            turns = [[{"role": "user", "content": text}, {"role": "assistant", "content": "no"}] for text in texts]
            row = {"scenario_id": name, "domain": "d", **dict(zip(("written", "spoken"), turns, strict=True))}
            file.write(json.dumps(row) + "\n")
    return path


def test_a_file_that_counting_solves_is_refused_and_an_unbalanced_pair_is_skipped(tmp_path):
    path = write_scripts(tmp_path / "solved.jsonl", [(f"s{number}", "yes yes", "yes, yes") for number in range(3)])
    with pytest.raises(ValueError, match="commas, punctuation marks alone order"):
        list(colloquial_scripts.read_pairs(path, balanced=True))
    assert len(list(colloquial_scripts.read_pairs(path))) == 3
    path = write_scripts(tmp_path / "long.jsonl", [("good", "yes no", "no yes"), ("long", "yes", "oh yes it is")])
    _, skipped = sorted(colloquial_scripts.read_pairs(path, balanced=True), key=lambda item: isinstance(item, Skipped))
    assert skipped.kind == "unbalanced"
    assert "long/written: the sides have 5 and 2 words" in skipped.reason
