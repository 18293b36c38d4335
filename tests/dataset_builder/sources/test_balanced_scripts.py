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


def test_the_set_has_300_pairs_of_15_domains_and_a_third_level(pairs):
    written = [pair for pair in pairs if pair.written.secondary == "balanced"]
    caricatures = [pair for pair in pairs if pair.written.secondary == "caricature"]
    assert len(written) == 300
    assert len({pair.spoken.split_group for pair in written}) == 15
    assert len(caricatures) == 100
    assert len({pair.spoken.name for pair in pairs}) == 400
    assert {side.source for pair in pairs for side in (pair.written, pair.spoken)} == {"balanced_scripts"}


def test_a_caricature_is_of_the_group_of_its_scenario(pairs):
    groups = {pair.spoken.group for pair in pairs if pair.written.secondary == "balanced"}
    assert {pair.spoken.group for pair in pairs if pair.written.secondary == "caricature"} <= groups


def test_no_count_orders_more_of_it_than_it_may(pairs):
    shares = measure_shares(sides(pair for pair in pairs if pair.written.secondary == "balanced"))
    assert max(shares.values()) <= MAX_SHARE


def test_the_easy_set_is_solved_by_counting_commas():
    easy = list(colloquial_scripts.read_pairs())
    assert {pair.written.secondary for pair in easy} == {"easy"}
    assert measure_shares(sides(easy))["commas"] == 1


def test_a_file_that_counting_solves_is_refused(tmp_path):
    rows = [
        {
            "scenario_id": f"s{number}",
            "domain": "d",
            "written": [{"role": "user", "content": "yes yes"}, {"role": "assistant", "content": "no"}],
            "spoken": [{"role": "user", "content": "yes, yes"}, {"role": "assistant", "content": "no"}],
        }
        for number in range(3)
    ]
    path = tmp_path / "scripts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(ValueError, match="commas, punctuation marks alone order"):
        list(colloquial_scripts.read_pairs(path, balanced=True))
    assert len(list(colloquial_scripts.read_pairs(path))) == 3


def test_an_unbalanced_pair_is_skipped_with_its_reason(tmp_path):
    balanced = {
        "written": [("user", "yes no"), ("assistant", "no")],
        "spoken": [("user", "no yes"), ("assistant", "no")],
    }
    longer = {
        "written": [("user", "yes"), ("assistant", "no")],
        "spoken": [("user", "oh yes it is"), ("assistant", "no")],
    }
    path = tmp_path / "scripts.jsonl"
    rows = [
        {
            "scenario_id": name,
            "domain": "d",
            **{style: [{"role": role, "content": text} for role, text in turns] for style, turns in row.items()},
        }
        for name, row in (("good", balanced), ("long", longer))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found = list(colloquial_scripts.read_pairs(path, balanced=True))
    skipped = [item for item in found if isinstance(item, Skipped)]
    assert [item.kind for item in skipped] == ["unbalanced"]
    assert "long/written: the sides have 5 and 2 words" in skipped[0].reason
    assert len(found) == 2
