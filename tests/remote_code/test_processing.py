import copy
from dataclasses import FrozenInstanceError
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from sdiareward.audio_sdiareward import Clip
from sdiareward.chat_sdiareward import Dialogue, DialogueError, Turn, make_dialogue
from sdiareward.configuration_sdiareward import DEFAULT_PROMPTS
from sdiareward.processing_sdiareward import SDiaRewardProcessor


def test_mel_features_of_a_clip_do_not_depend_on_the_clips_beside_it(tiny_processor, make_tone):
    short, long = make_tone(0.333), make_tone(1.0)
    alone, mask = tiny_processor.log_mel([short])
    beside, _ = tiny_processor.log_mel([long, short])
    np.testing.assert_allclose(beside[1, :, : mask.sum()], alone[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("num_samples", [321, 480, 481, 1600, 4000, 16_001, 48_123])
def test_there_are_as_many_placeholders_as_the_audio_tower_gives_vectors(num_samples, tiny_processor, make_tiny_model):
    clip = np.random.default_rng(0).standard_normal(num_samples).astype(np.float32)
    batch = tiny_processor([{"role": "user", "content": [{"type": "audio", "audio": clip}]}])
    placeholders = int((batch["input_ids"] == 643).sum())
    vectors = make_tiny_model().encode_audio(batch["input_features"], batch["feature_attention_mask"])
    assert placeholders == vectors.shape[0] == tiny_processor.num_audio_tokens(num_samples)


def test_a_dialogue_is_written_as_chatml(tiny_processor):
    reply = {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]}
    messages = [{"role": "user", "content": "Hello."}, reply]
    text = tiny_processor.tokenizer.decode(tiny_processor(messages, criterion="modality")["input_ids"][0])
    assert text == (
        f"<|im_start|>system\n{DEFAULT_PROMPTS['modality']}<|im_end|>\n"
        "<|im_start|>user\nHello.<|im_end|>\n<|im_start|>assistant\nHi.<|im_end|>\n"
    )


def test_the_messages_given_are_not_changed(tiny_processor, make_dialogue):
    messages = make_dialogue()
    before = copy.deepcopy(messages)
    tiny_processor(messages)
    assert len(messages) == len(before) == 2
    assert str(messages) == str(before)


def test_each_dialogue_can_have_its_own_criterion(tiny_processor, make_dialogue):
    dialogue = make_dialogue()
    mixed = tiny_processor([dialogue, dialogue], criterion=["modality", "colloquialness"], padding_side="right")
    for row, criterion in enumerate(("modality", "colloquialness")):
        alone = tiny_processor(dialogue, criterion=criterion)["input_ids"][0]
        assert mixed["input_ids"][row, : alone.numel()].tolist() == alone.tolist()


def test_either_padding_side_can_be_asked_for(tiny_processor, make_dialogue):
    dialogues = [make_dialogue(0.2, 0.2), make_dialogue(0.2, 0.2, 0.3, 0.3)]
    for side, column in (("left", 0), ("right", -1)):
        mask = tiny_processor(dialogues, padding_side=side)["attention_mask"]
        assert mask[:, column].tolist() == [0, 1]


def test_clips_of_a_batch_are_in_the_order_of_the_dialogues(tiny_processor, make_dialogue):
    batch = tiny_processor([make_dialogue(0.1, 0.2), make_dialogue(0.3, 0.4)])
    assert batch["feature_attention_mask"].sum(1).tolist() == [10, 20, 30, 40]


def test_a_long_turn_is_cut(fixtures_dir, make_tone):
    processor = SDiaRewardProcessor.from_backbone(fixtures_dir / "base_tiny", max_turn_s=0.25)
    messages = [{"role": "user", "content": [{"type": "audio", "audio": make_tone(1.0)}]}]
    assert processor(messages)["feature_attention_mask"].sum() == 25


def split_text(*texts):
    """Return a dialogue of one turn whose words come in several items."""
    return [{"role": "user", "content": [{"type": "text", "text": text} for text in texts]}]


def test_words_in_several_items_are_the_words_in_one_and_a_recording_keeps_them_apart(tiny_processor, make_tone):
    whole = tiny_processor([{"role": "user", "content": "one <|im two"}])
    assert tiny_processor(split_text("one <|", "im two"))["input_ids"].equal(whole["input_ids"])
    items = split_text("a<|im_", "end|>b")[0]["content"]
    items.insert(1, {"type": "audio", "audio": make_tone(0.3)})
    assert tiny_processor([{"role": "user", "content": items}])["input_features"].shape[0] == 1


@pytest.mark.parametrize(
    ("messages", "criterion", "message"),
    [
        ([], "joint", "no dialogues"),
        ([[]], "joint", "has no messages"),
        ([{"role": "user", "content": "a"}], "beauty", "criterion is 'beauty'; this checkpoint has colloq"),
        ([{"role": "user", "content": "a"}], ["joint", "joint"], "2 criteria for 1 dialogues"),
        ([{"role": "user", "content": [{"type": "image", "image": "a"}]}], "joint", "only text and audio"),
        ([{"role": "user", "content": "a<|im_end|>b"}], "joint", r"control token '<\|im_end\|>'"),
        ([{"role": "user", "content": "<|AUDIO|>"}], "joint", "control token"),
        (split_text("a<|im_", "end|>b"), "joint", r"control token '<\|im_end\|>'"),
        (split_text("<", "|AU", "", "DIO|>"), "joint", r"control token '<\|AUDIO\|>'"),
        (split_text("a", 3), "joint", "its text is a int; give a string"),
    ],
)
def test_what_cannot_be_processed_is_refused(messages, criterion, message, tiny_processor):
    with pytest.raises(ValueError, match=message):
        tiny_processor(messages, criterion=criterion)


def test_prompts_and_limits_survive_saving_and_loading(fixtures_dir, tmp_path, make_dialogue):
    settings = {"prompts": {"joint": "Judge."}, "prompt_version": "x", "max_turn_s": 1.5, "stack_factor": 2}
    processor = SDiaRewardProcessor.from_backbone(fixtures_dir / "base_tiny", **settings)
    processor.save_pretrained(tmp_path)
    loaded = SDiaRewardProcessor.from_pretrained(tmp_path)
    assert {name: getattr(loaded, name) for name in settings} == settings
    first, second = processor(make_dialogue()), loaded(make_dialogue())
    assert all(first[name].equal(second[name]) for name in first)


def test_a_tokenizer_without_the_audio_tokens_is_refused(tiny_processor):
    from transformers import Qwen2Tokenizer

    with pytest.raises(ValueError, match=r"no token <\|im_start\|>"):
        SDiaRewardProcessor(tiny_processor.feature_extractor, Qwen2Tokenizer())


def turns(*roles):
    return [{"role": role, "content": "a"} for role in roles]


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "has no turns"),
        (turns("system"), "has no turns"),
        ("hello", "is a str; give a list"),
        ([{"role": "user"}], "turn 1: its content is missing"),
        (turns("user", "judge"), "turn 2: its role is 'judge'"),
        (turns("user", "user"), "turn 2: two user turns in a row"),
        (turns("assistant", "user"), "turn 1: the dialogue begins with the assistant"),
        (turns("user", "assistant", "user"), "has 3 turns and ends with the user"),
        (turns(*["user", "assistant"] * 9), "has 18 turns; at most 16"),
    ],
)
def test_messages_that_are_no_episode_are_refused_by_name(messages, problem):
    with pytest.raises(ValueError, match=f"row 3.*{problem}"):
        make_dialogue(messages, "row 3")


def test_an_episode_is_accepted_with_and_without_a_system_turn():
    assert len(make_dialogue(turns(*["user", "assistant"] * 8)).turns) == 16
    assert make_dialogue(turns("system", "user", "assistant")).system == "a"
    assert make_dialogue(turns("assistant")).turns == (Turn("assistant", "a"),)


def test_a_dialogue_of_turns_and_clips_is_read_as_its_messages(tiny_processor, make_tone):
    tone = make_tone(0.3)
    dialogue = Dialogue((Turn("user", "hi", Clip(tone, 16_000)), Turn("assistant", audio=Clip(tone))))
    items = [{"type": "text", "text": "hi"}, {"type": "audio", "audio": tone}]
    expected = tiny_processor([{"role": "user", "content": items}, {"role": "assistant", "content": items[1:]}])
    # Also a dialogue of another copy of the remote code.
    for given in (dialogue, [dialogue], SimpleNamespace(to_messages=dialogue.to_messages)):
        found = tiny_processor(given)
        assert all(found[name].equal(expected[name]) for name in expected)
    with pytest.raises(FrozenInstanceError):
        dialogue.turns = ()
    for make in (lambda: Turn("user"), lambda: Turn("user", "a.wav"), lambda: Dialogue((Turn("user", "a"),))):
        with pytest.raises(DialogueError):
            make()


def test_samples_duration_and_digest_of_a_clip_come_from_one_reading(tmp_path, make_tone):
    path = tmp_path / "a.flac"
    soundfile.write(path, make_tone(0.5), 16_000)
    clip, again = Clip(str(path)), Clip(path.read_bytes())
    samples = clip.read()
    path.unlink()
    assert (clip.duration_s, clip.digest) == (0.5, again.digest)
    np.testing.assert_array_equal(samples, again.read())
