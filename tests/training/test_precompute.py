import datasets
import pytest
import torch

from sdiareward.pairs.messages import turns_to_messages
from sdiareward.pairs.schema import SIDES
from sdiareward.training.batches import PairCollator, deserialize_vectors, serialize_vectors
from sdiareward.training.precompute import precompute_pairs


def broken(pairs, row, side):
    rows = pairs.to_list()
    rows[row][side][1]["audio"]["bytes"] = b"no sound"
    return datasets.Dataset.from_list(rows).add_column("pair_id", [f"pair {number}" for number in range(len(rows))])


@pytest.mark.parametrize("encodes", [False, True])
def test_every_pair_is_read_once_and_its_length_is_that_of_both_sides(
    encodes, tone_pairs, tiny_processor, make_tiny_model, tmp_path
):
    model = make_tiny_model() if encodes else None
    state = torch.get_rng_state()
    rows, skipped = precompute_pairs(tone_pairs, tiny_processor, tmp_path, split="train", model=model)
    assert skipped == []
    # What is drawn later, such as adapters, does not depend on what was read.
    assert torch.equal(torch.get_rng_state(), state)
    assert rows["row"] == [0, 1, 2, 3]
    assert rows["pair_id"] == [f"row {number}" for number in range(4)]
    for row, length in zip(tone_pairs, rows["length"], strict=True):
        sides = (tiny_processor.prepare(turns_to_messages(row[side]), row["criterion"]) for side in SIDES)
        assert length == sum(len(side.input_ids) for side in sides)


@pytest.mark.parametrize("encodes", [False, True])
def test_a_pair_that_cannot_be_read_is_skipped_with_its_reason(
    encodes, tone_pairs, tiny_processor, make_tiny_model, tmp_path
):
    pairs = broken(tone_pairs, 2, "rejected")
    model = make_tiny_model() if encodes else None
    rows, (skipped,) = precompute_pairs(pairs, tiny_processor, tmp_path, split="validation", model=model)
    assert rows["pair_id"] == ["pair 0", "pair 1", "pair 3"]
    assert (skipped.split, skipped.row, skipped.item) == ("validation", 2, "pair 2")
    assert skipped.reason.startswith("rejected, ")
    assert "cannot be decoded" in skipped.reason
    # Nor is a broken pair passed on to the model.
    assert len(PairCollator(tiny_processor)(list(rows))["pairs"]) == 3


@pytest.mark.parametrize("encodes", [False, True])
def test_other_processes_read_the_same(encodes, tone_pairs, tiny_processor, make_tiny_model, tmp_path):
    # More than one batch, so that both processes have work.
    pairs = broken(datasets.concatenate_datasets([tone_pairs] * 5), 9, "chosen")
    model = make_tiny_model() if encodes else None
    alone, shared = (
        precompute_pairs(pairs, tiny_processor, tmp_path / name, split="train", model=model, num_workers=num_workers)
        for name, num_workers in (("alone", 0), ("shared", 2))
    )
    assert shared[0].to_list() == alone[0].to_list()
    assert shared[1] == alone[1] and [pair.row for pair in shared[1]] == [9]


def test_what_was_read_is_not_read_again(tone_pairs, tiny_processor, make_tiny_model, tmp_path, monkeypatch):
    model = make_tiny_model()
    first, _ = precompute_pairs(tone_pairs, tiny_processor, tmp_path, split="train", model=model, model_revision="a")
    monkeypatch.setattr("sdiareward.training.precompute.encode_clips", None)
    again, _ = precompute_pairs(tone_pairs, tiny_processor, tmp_path, split="train", model=model, model_revision="a")
    assert again.to_list() == first.to_list()
    with pytest.raises(TypeError):
        precompute_pairs(tone_pairs, tiny_processor, tmp_path, split="train", model=model, model_revision="b")


def test_a_recording_mended_under_the_same_path_is_read_again(tone_pairs, tiny_processor, make_tiny_model, tmp_path):
    turns = [(side, number) for side in SIDES for number in range(2)]
    rows = tone_pairs.select([0]).to_list()
    for side, number in turns:
        audio = rows[0][side][number]["audio"]
        (tmp_path / f"{side}{number}.wav").write_bytes(audio["bytes"])
        rows[0][side][number]["audio"] = {"bytes": None, "path": str(tmp_path / f"{side}{number}.wav")}
    pairs, model = datasets.Dataset.from_list(rows), make_tiny_model()

    def vectors():
        found, _ = precompute_pairs(pairs, tiny_processor, tmp_path / "out", split="train", model=model)
        return found.remove_columns("row").to_list()

    before = vectors()
    assert vectors() == before
    (tmp_path / "chosen1.wav").write_bytes((tmp_path / "rejected1.wav").read_bytes())
    assert vectors() != before


def test_vectors_are_kept_in_float16():
    vectors = torch.tensor([[0.5, -2.0, 1 / 3], [0.0, 1e4, -0.25]])
    assert torch.equal(deserialize_vectors(serialize_vectors(vectors), 3), vectors.half().float())


def test_a_recording_that_disappears_after_it_was_read_is_named(tone_pairs, tiny_processor, tmp_path):
    rows, _ = precompute_pairs(tone_pairs, tiny_processor, tmp_path, split="train")
    row = {**rows[1], "chosen": [{**turn, "audio": {"bytes": b"", "path": None}} for turn in rows[1]["chosen"]]}
    with pytest.raises(ValueError, match="pair row 1, chosen: "):
        PairCollator(tiny_processor)([row])
