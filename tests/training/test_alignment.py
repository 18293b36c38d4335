"""The projection learns to make recordings readable, and nothing else changes."""

import datasets
import numpy as np
import pytest
import torch
from transformers import TrainingArguments

from sdiareward.training import alignment
from sdiareward.training.alignment import (
    AlignmentTrainer,
    ClipCollator,
    TranscriptModel,
    measure_alignment,
    read_clips,
)


TEXTS = ("hello there", "what is it")


@pytest.fixture
def spoken_pairs(tone_pairs):
    """The tone pairs with a transcript that follows the tone, in two groups."""
    rows = tone_pairs.to_list()
    for number, row in enumerate(rows):
        row["group_id"], row["source"] = f"g{number % 2}", "tones"
        for side in ("chosen", "rejected"):
            for turn in row[side]:
                turn["text"] = TEXTS[side == "rejected"]
    return datasets.Dataset.from_list(rows)


@pytest.fixture
def clips(spoken_pairs, tiny_processor, make_tiny_model, tmp_path):
    return read_clips(spoken_pairs, tiny_processor, make_tiny_model(), tmp_path, max_clip_s=8.0)


def arguments(folder, **changes):
    settings = {"learning_rate": 0.03, "max_steps": 30, "per_device_train_batch_size": 8, "use_cpu": True}
    settings |= {"report_to": "none", "save_strategy": "no", "logging_steps": 10, "disable_tqdm": True}
    return TrainingArguments(str(folder), **(settings | changes))


def test_each_distinct_turn_is_read_once_with_its_transcript(clips, tiny_processor, spoken_pairs):
    turns = [turn for row in spoken_pairs for side in ("chosen", "rejected") for turn in row[side]]
    assert len(clips) == len({turn["audio"]["bytes"] for turn in turns})
    for row in clips:
        text = tiny_processor.tokenizer.decode(row["input_ids"][-row["num_text_tokens"] - 1 : -2])
        assert text in TEXTS
        assert len(row["vectors"]) == 2 * 32 * row["input_ids"].count(643)
    assert set(clips["group_id"]) == {"g0", "g1"}


def test_longer_turns_are_omitted(spoken_pairs, tiny_processor, make_tiny_model, tmp_path):
    model = make_tiny_model()
    shorter = read_clips(spoken_pairs, tiny_processor, model, tmp_path, max_clip_s=0.35)
    assert 0 < len(shorter) < 16
    with pytest.raises(ValueError, match=r"lasts at most 0\.01 s; raise max_clip_s"):
        read_clips(spoken_pairs, tiny_processor, model, tmp_path, max_clip_s=0.01)


def test_clips_are_encoded_once(clips, spoken_pairs, tiny_processor, make_tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr("sdiareward.training.alignment.encode_clips", None)
    again = read_clips(spoken_pairs, tiny_processor, make_tiny_model(), tmp_path, max_clip_s=8.0)
    assert again.to_list() == clips.to_list()


def test_the_loss_is_the_mean_of_the_transcripts_negative_log_likelihoods(clips, make_tiny_model):
    model = make_tiny_model()
    row = clips[0]
    batch = ClipCollator(32)([row])
    loss = TranscriptModel(model)(**batch)["loss"]
    ids = torch.tensor(row["input_ids"])
    embeds = model.embed(ids[None], audio_features=batch["vectors"][0])
    hidden = model.model.language_model(
        inputs_embeds=embeds, position_ids=torch.arange(len(ids)).expand(3, 1, -1), use_cache=False
    ).last_hidden_state[0]
    logits = hidden @ model.model.get_input_embeddings().weight.T
    places = range(len(ids) - row["num_text_tokens"] - 1, len(ids) - 1)
    expected = -torch.stack([logits[place - 1].log_softmax(-1)[ids[place]] for place in places]).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-4)


def test_a_turn_that_cannot_be_heard_is_omitted_with_a_warning(
    spoken_pairs, tiny_processor, make_tiny_model, tmp_path, caplog
):
    rows = spoken_pairs.to_list()
    turn = {**rows[0]["chosen"][0], "duration_s": 1.0, "audio": {"bytes": b"not audio", "path": None}}
    rows[0]["chosen"][0] = turn
    options = {"processor": tiny_processor, "model": make_tiny_model(), "max_clip_s": 8.0}
    found = read_clips(datasets.Dataset.from_list(rows), folder=tmp_path / "a", **options)
    assert len(found) == len(read_clips(spoken_pairs, folder=tmp_path / "b", **options)) - 1
    assert "row 0, chosen, turn 0 is omitted: turn 1" in caplog.text
    alone = [{**rows[0], "chosen": [turn], "rejected": []}]
    assert len(read_clips(datasets.Dataset.from_list(alone), folder=tmp_path / "c", **options)) == 0


@pytest.mark.slow
def test_training_changes_the_projection_alone_and_lowers_the_loss(clips, make_tiny_model, tmp_path):
    model = make_tiny_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trainer = AlignmentTrainer(model, arguments(tmp_path), train_dataset=clips, eval_dataset=clips)
    first = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < first - 0.1
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"model.audio_tower.proj.weight", "model.audio_tower.proj.bias"}


@pytest.mark.slow
def test_what_was_learned_is_seen_in_the_own_sound_of_a_clip(clips, make_tiny_model, tmp_path):
    model = make_tiny_model()
    AlignmentTrainer(model, arguments(tmp_path, max_steps=60), train_dataset=clips).train()
    found = measure_alignment(model.eval(), clips)
    assert found["num_clips"] == len(clips)
    assert found["own_nats"] < found["other_nats"]
    low, high = found["interval"]
    assert 0 <= low <= found["own_is_likelier"] <= high <= 1


def test_the_other_sound_is_the_nearest_in_length():
    sizes, groups = (10, 100, 99, 97), ("a", "b", "c", "b")
    given = datasets.Dataset.from_dict({"vectors": [b"0" * size for size in sizes], "group_id": list(groups)})
    assert alignment._find_other_clips(given) == [3, 2, 1, 2]


def test_another_sound_comes_from_another_group(clips, make_tiny_model):
    with pytest.raises(ValueError, match="all clips are of one group"):
        measure_alignment(make_tiny_model(), clips.filter(lambda row: row["group_id"] == "g0"))


@pytest.mark.slow
def test_a_stopped_run_resumes_to_the_same_projection(clips, make_tiny_model, tmp_path):
    def train(folder, resume=None, **changes):
        model = make_tiny_model()
        settings = arguments(
            folder, max_steps=5, save_strategy="steps", save_steps=3, seed=1, lr_scheduler_type="constant", **changes
        )
        AlignmentTrainer(model, settings, train_dataset=clips).train(resume_from_checkpoint=resume)
        return model.model.audio_tower.proj.weight.detach()

    whole = train(tmp_path / "a")
    resumed = train(tmp_path / "b", resume=str(tmp_path / "a" / "checkpoint-3"))
    np.testing.assert_array_equal(whole.numpy(), resumed.numpy())
    # Nothing is left to train.
    ended = train(tmp_path / "c", resume=str(tmp_path / "a" / "checkpoint-5"))
    np.testing.assert_array_equal(whole.numpy(), ended.numpy())
    # A checkpoint holds the projection, not the model.
    assert (tmp_path / "a" / "checkpoint-3" / "model.safetensors").stat().st_size < 10_000
