"""The processor takes the arguments of every processor, and its chat template renders what it does."""

import shutil

import numpy as np
import pytest
import soundfile
import torch
from support.official_layout import write_official
from support.paths import FIXTURES

from sdiareward import processing_sdiareward as processing
from sdiareward.chat_sdiareward import render_dialogue
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring.scorer import Scorer


WAV = str(FIXTURES / "audio" / "ast_goodbye.wav")
TOKENIZED = {"tokenize": True, "return_dict": True}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        assert torch.equal(found[name], expected[name]), name


@pytest.fixture
def dialogues(make_dialogue):
    with_system = [{"role": "system", "content": "You listen."}, *make_dialogue(0.3, 0.2)]
    return [make_dialogue(0.5, 0.4), with_system, [{"role": "user", "content": "only text"}]]


def test_the_template_renders_what_the_processor_reads(tiny_processor, dialogues, make_dialogue):
    for criterion in ("joint", "modality"):
        rendered = tiny_processor.apply_chat_template(dialogues, criterion=criterion)
        for text, dialogue in zip(rendered, dialogues, strict=True):
            prompted = tiny_processor.with_prompt(dialogue, criterion)
            assert text == render_dialogue(prompted, tiny_processor.tokenizer)[0]
            assert tiny_processor.apply_chat_template(dialogue, criterion=criterion) == text
    # Another template is rendered without a prompt.
    template = "{% for message in messages %}{{ message.role }} {% endfor %}"
    assert tiny_processor.apply_chat_template(make_dialogue(), template) == "user assistant "


def test_a_tokenized_template_and_a_rendered_text_give_what_the_processor_returns(tiny_processor, dialogues):
    expected = tiny_processor(dialogues)
    assert_equal(tiny_processor.apply_chat_template(dialogues, **TOKENIZED), expected)
    one = tiny_processor.apply_chat_template(dialogues[0], criterion="modality", **TOKENIZED)
    assert_equal(one, tiny_processor(dialogues[0], "modality"))
    ids = tiny_processor.apply_chat_template(dialogues[0], tokenize=True)
    assert torch.equal(ids, tiny_processor(dialogues[0]).input_ids)
    items = (item for dialogue in dialogues for turn in dialogue for item in turn["content"] if "audio" in item)
    rendered = {"text": tiny_processor.apply_chat_template(dialogues), "audio": [item["audio"] for item in items]}
    assert_equal(tiny_processor(**rendered, padding=True, return_tensors="pt"), expected)


def test_the_recordings_of_a_decoder_are_heard(tiny_processor):
    class Decoder:
        """As `datasets` with torchcodec gives them: an object that decodes."""

        def get_all_samples(self):
            array, rate = soundfile.read(WAV, dtype="float32")
            return type("AudioSamples", (), {"data": torch.from_numpy(array)[None], "sample_rate": rate})

    expected = tiny_processor([{"role": "user", "content": [{"type": "audio", "audio": WAV}]}])
    assert_equal(tiny_processor([{"role": "user", "text": None, "audio": Decoder(), "duration_s": 1.0}]), expected)


def test_a_template_of_a_file_does_not_replace_the_text_that_the_model_reads(tiny_checkpoint, tmp_path):
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "copy")
    (folder / "chat_template.jinja").write_text("other")
    text = SDiaRewardProcessor.from_pretrained(folder).apply_chat_template([{"role": "user", "content": "hi"}])
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n")


def test_options_of_every_processor_are_taken(tiny_processor, dialogues):
    expected = tiny_processor(dialogues)
    assert_equal(tiny_processor(dialogues, return_tensors="pt", padding=True), expected)
    assert_equal(tiny_processor(conversation=dialogues, text_kwargs={"padding": "longest"}), expected)
    arrays = tiny_processor(dialogues, return_tensors="np", padding_side="right")
    assert isinstance(arrays["input_ids"], np.ndarray) and arrays["attention_mask"][0, 0] == 1
    assert tiny_processor(dialogues, padding="max_length", max_length=2000)["input_ids"].shape == (3, 2000)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"truncation": True}, TypeError),
        ({"padding": True, "text_kwargs": {"padding": True}}, ValueError),
        ({"text": "hi"}, ValueError),
        ({"dialogues": None, "text": "hi", "criterion": "joint"}, ValueError),
        ({"dialogues": None, "text": "<|AUDIO|>", "audio": np.zeros(800), "sampling_rate": 8000}, ValueError),
    ],
)
def test_options_that_would_cut_a_dialogue_or_leave_out_a_part_are_refused(tiny_processor, dialogues, options, error):
    with pytest.raises(error, match="truncation|give|criterion|resample"):
        tiny_processor(**{"dialogues": dialogues, **options})


def test_a_system_turn_that_is_not_one_of_the_prompts_is_told_once(tiny_processor, make_dialogue, caplog):
    processing._warn_once.cache_clear()
    own, turns = tiny_processor.prompts["joint"], make_dialogue(0.3, 0.2)
    for content in (own, [{"type": "text", "text": own}]):
        tiny_processor.with_prompt([{"role": "system", "content": content}, *turns])
    assert caplog.text == ""
    for _ in range(2):
        tiny_processor.with_prompt([{"role": "system", "content": "You listen."}, *turns])
    assert caplog.text.count("which the model reads in place of the prompt of its criterion") == 1


def test_the_two_calls_with_prompts_agree(tiny_checkpoint, tmp_path):
    prompts = {"joint": "Judge."}
    for folder in (tiny_checkpoint, write_official(tmp_path / "official")):
        for named in ({"prompts": prompts}, {"prompts": prompts, "prompt_version": "mine"}):
            processor = SDiaRewardProcessor.from_pretrained(folder, **named)
            assert processor.prompts == prompts
            assert processor.prompt_version.startswith(named.get("prompt_version", "custom-"))
            Scorer(SDiaRewardModel.from_pretrained(folder, **named), processor)
        same = {"prompts": SDiaRewardProcessor.from_pretrained(folder).prompts}
        assert SDiaRewardProcessor.from_pretrained(folder, **same).prompt_version == "1"
