"""What a checkpoint was trained on, stage by stage."""

import json

import datasets
import pytest

from sdiareward.checkpoint_io.training_record import (
    PAIRS_RECORD,
    describe_heard,
    describe_stages,
    read_pairs_record,
    read_stages,
    write_pairs_record,
)
from sdiareward.common.hub import ModelNotFoundError


def stage(revision, synthesizers=("flite",), **arguments):
    trained_on = {"num_pairs": 3, "synthesizers": list(synthesizers), "sources": ["plays"], "licenses": None}
    return {"git_revision": revision, "arguments": arguments, "trained_on": trained_on}


@pytest.fixture
def save(tmp_path):
    def save(name, **record):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "run.json").write_text(json.dumps({"history": [], **record}))
        return tmp_path / name

    return save


def test_the_stages_of_a_checkpoint_come_oldest_first(save, tmp_path):
    first, second, third = stage("a", train="full"), stage("b", train="lora"), stage("c", seed=3)
    assert read_stages(save("model", **first)) == [first]
    assert read_stages(save("model", **third, earlier_stages=[first, second])) == [first, second, third]
    assert read_stages(tmp_path) == []


def test_the_record_of_adapters_lies_beside_their_folder(save):
    run = save("run", **stage("a"))
    adapters = run / "adapter"
    adapters.mkdir()
    assert read_stages(adapters) == []
    (adapters / "adapter_config.json").write_text("{}")
    assert read_stages(adapters) == [stage("a")]
    (adapters / "run.json").write_text(json.dumps(stage("b")))
    assert read_stages(adapters) == [stage("b")]


def test_a_stage_that_base_and_adapters_share_is_listed_once(save):
    base = save("base", **stage("a"))
    adapters = save("adapters", **stage("b"), earlier_stages=[stage("a")])
    pairs = datasets.Dataset.from_dict({"pair_id": ["p"], "source": ["plays"]})
    heard = describe_heard(pairs, [base, adapters, None])
    assert heard["earlier_stages"] == [stage("a"), stage("b")]
    about = {"num_pairs": 1, "criteria": ["joint"], "synthesizers": None, "sources": ["plays"], "licenses": None}
    assert heard["trained_on"] == about


def test_what_a_trained_model_without_a_record_heard_is_not_known(save, tmp_path):
    pairs = datasets.Dataset.from_dict({"pair_id": ["p"], "synthesizer": ["flite"]})
    new, unknown = (describe_heard(pairs, [tmp_path], is_trained=each) for each in (False, True))
    assert (new["earlier_stages"], unknown["earlier_stages"]) == ([], [{}])
    assert describe_stages([new])["synthesizers"] == ["flite"]
    assert describe_stages(read_stages(save("run", **unknown)))["synthesizers"] is None
    known = describe_heard(pairs, [save("model", **stage("a"))], is_trained=True)
    assert known["earlier_stages"] == [stage("a")]


def test_a_model_that_cannot_be_had_and_a_record_that_is_none_are_reported(save):
    with pytest.raises(ModelNotFoundError, match="ORG/absent"):
        read_stages("ORG/absent")
    (damaged := save("model") / "run.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"run\.json"):
        read_stages(damaged.parent)


def sounds(*names):
    return [[{"role": role, "text": name, "audio": None} for role in ("user", "assistant")] for name in names]


def test_hashes_of_training_pairs_are_kept_through_all_stages_and_reveal_neither_name_nor_order(save, tmp_path):
    columns = {"id": ["secret-2", "secret-1"], "chosen": sounds("a", "b"), "rejected": sounds("c", "d")}
    first = datasets.Dataset.from_dict(columns)
    second = datasets.Dataset.from_dict({"group_id": ["g"], "chosen": sounds("e"), "rejected": sounds("f")})
    base, unknown = save("base"), save("unknown")
    write_pairs_record(base, first, [tmp_path, None], is_trained=False)
    found = read_pairs_record(base)
    kinds = ("pair_id", "group_id", "side", "prompt", "recording")
    assert found["is_whole"] and [len(found[name]) for name in kinds] == [2, 0, 4, 4, 0]
    assert "secret" not in (base / PAIRS_RECORD).read_text()
    write_pairs_record(base, first.select([1, 0]), [tmp_path], is_trained=False)
    assert read_pairs_record(base) == found
    for begins_from, is_whole in (([base, None], True), ([base, unknown], False), ([unknown], False)):
        write_pairs_record(save("next"), second, begins_from, is_trained=True)
        after = read_pairs_record(tmp_path / "next")
        assert after["is_whole"] == is_whole
        assert (set(found["side"]) < set(after["side"])) == (base in begins_from)
    (tmp_path / "next" / "adapter").mkdir()
    (tmp_path / "next" / "adapter" / "adapter_config.json").write_text("{}")
    assert read_pairs_record(tmp_path / "next" / "adapter") == after
    (base / PAIRS_RECORD).write_text('{"side": 3}')
    with pytest.raises(ValueError, match=PAIRS_RECORD):
        read_pairs_record(base)
