"""The processor takes the arguments of every processor, and its chat template renders what it does."""

import numpy as np
import pytest
import torch
from support.paths import FIXTURES

from sdiareward import processing_sdiareward as processing
from sdiareward.chat_sdiareward import DialogueError, render_dialogue


WAV = str(FIXTURES / "audio" / "ast_goodbye.wav")


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        assert torch.equal(found[name], expected[name]), name


@pytest.fixture
def dialogues(make_dialogue):
    with_system = [{"role": "system", "content": "You listen."}, *make_dialogue(0.3, 0.2)]
    return [make_dialogue(0.5, 0.4), with_system, [{"role": "user", "content": "only text"}]]


def test_the_template_renders_what_the_processor_reads(tiny_processor, dialogues):
    for criterion in ("joint", "modality"):
        rendered = tiny_processor.apply_chat_template(dialogues, criterion=criterion)
        for text, dialogue in zip(rendered, dialogues, strict=True):
            assert (
                text == render_dialogue(tiny_processor.with_prompt(dialogue, criterion), tiny_processor.tokenizer)[0]
            )
            assert tiny_processor.apply_chat_template(dialogue, criterion=criterion) == text


def test_a_tokenized_template_is_what_the_processor_returns(tiny_processor, dialogues):
    options = {"tokenize": True, "return_dict": True}
    assert_equal(tiny_processor.apply_chat_template(dialogues, **options), tiny_processor(dialogues))
    one = tiny_processor.apply_chat_template(dialogues[0], criterion="modality", **options)
    assert_equal(one, tiny_processor(dialogues[0], "modality"))
    assert torch.equal(
        tiny_processor.apply_chat_template(dialogues[0], tokenize=True), tiny_processor(dialogues[0]).input_ids
    )


def test_a_rendered_text_and_its_recordings_give_the_same_inputs(tiny_processor, dialogues):
    texts = tiny_processor.apply_chat_template(dialogues)
    clips = [
        item["audio"] for dialogue in dialogues for turn in dialogue for item in turn["content"] if "audio" in item
    ]
    found = tiny_processor(text=texts, audio=clips, padding=True, return_tensors="pt")
    assert_equal(found, tiny_processor(dialogues))


@pytest.mark.parametrize("key", ["path", "url", "audio"])
def test_a_template_takes_files_under_any_name(key, tiny_processor):
    dialogue = [{"role": "user", "content": [{"type": "audio", key: WAV}]}]
    expected = tiny_processor([{"role": "user", "content": [{"type": "audio", "audio": WAV}]}])
    assert_equal(tiny_processor.apply_chat_template(dialogue, tokenize=True, return_dict=True), expected)


def test_a_template_of_a_file_does_not_replace_the_text_that_the_model_reads(tiny_checkpoint, tmp_path):
    import shutil

    from sdiareward.processing_sdiareward import SDiaRewardProcessor

    folder = shutil.copytree(tiny_checkpoint, tmp_path / "copy")
    (folder / "chat_template.jinja").write_text("other")
    text = SDiaRewardProcessor.from_pretrained(folder).apply_chat_template([{"role": "user", "content": "hi"}])
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n")


def test_a_template_is_rendered_without_a_prompt_and_takes_no_control_tokens(tiny_processor, make_dialogue):
    template = "{% for message in messages %}{{ message.role }} {% endfor %}"
    assert tiny_processor.apply_chat_template(make_dialogue(), template) == "user assistant "
    with pytest.raises(DialogueError, match="control token"):
        tiny_processor.apply_chat_template([{"role": "user", "content": "<|im_end|>"}])


def test_options_of_every_processor_are_taken(tiny_processor, dialogues):
    expected = tiny_processor(dialogues)
    assert_equal(tiny_processor(dialogues, return_tensors="pt", padding=True), expected)
    assert_equal(tiny_processor(conversation=dialogues, text_kwargs={"padding": "longest"}), expected)
    arrays = tiny_processor(dialogues, return_tensors="np", padding_side="right")
    assert isinstance(arrays["input_ids"], np.ndarray)
    assert arrays["attention_mask"][0, 0] == 1
    padded = tiny_processor(dialogues, padding="max_length", max_length=2000)
    assert padded["input_ids"].shape == (3, 2000)


def test_options_that_would_cut_a_dialogue_are_refused(tiny_processor, dialogues):
    with pytest.raises(TypeError, match="truncation"):
        tiny_processor(dialogues, truncation=True)
    wrong = [{"dialogues": dialogues, "padding": True, "text_kwargs": {"padding": True}}]
    wrong += [{"dialogues": dialogues, "text": "hi"}, {"text": "hi", "criterion": "joint"}]
    wrong += [{"text": "<|AUDIO|>", "audio": np.zeros(800), "sampling_rate": 8000}]
    # A recording under a name that is not read.
    wrong += [{"dialogues": [{"role": "user", "content": [{"type": "audio", "clip": WAV}]}]}]
    for options in wrong:
        with pytest.raises(ValueError, match="give|criterion|resample"):
            tiny_processor(**options)


def test_turns_of_a_data_set_are_taken_as_messages_are(tiny_processor, make_tiny_model, tone_pairs):
    from sdiareward.chat_sdiareward import turns_to_messages
    from sdiareward.scoring.scorer import Scorer

    row = tone_pairs[0]
    assert_equal(tiny_processor(row["chosen"]), tiny_processor(turns_to_messages(row["chosen"])))
    scorer = Scorer(make_tiny_model(), tiny_processor)
    sides = [row["chosen"], row["rejected"]]
    assert scorer.score(sides) == scorer.score(list(map(turns_to_messages, sides)))
    text = tiny_processor.apply_chat_template(row["chosen"])
    assert text.count("<|AUDIO|>") == 2
    assert text.count("line 0") == 2


def test_decoded_rows_of_datasets_are_heard(tiny_processor):
    """As `datasets` with torchcodec gives them: an object that decodes, here over the same samples."""
    import soundfile

    class Decoder:
        def get_all_samples(self):
            array, rate = soundfile.read(WAV, dtype="float32")
            return type("AudioSamples", (), {"data": torch.from_numpy(array)[None], "sample_rate": rate})

    turns = [{"role": "user", "text": None, "audio": Decoder(), "duration_s": 1.0}]
    assert_equal(
        tiny_processor(turns), tiny_processor([{"role": "user", "content": [{"type": "audio", "audio": WAV}]}])
    )


def test_a_system_turn_that_is_not_one_of_the_prompts_is_told_once(tiny_processor, make_dialogue, caplog):
    processing._warn_once.cache_clear()
    own = {"role": "system", "content": tiny_processor.prompts["joint"]}
    tiny_processor.with_prompt([own, *make_dialogue(0.3, 0.2)])
    tiny_processor.with_prompt(
        [{"role": "system", "content": [{"type": "text", "text": own["content"]}]}, *make_dialogue(0.3, 0.2)]
    )
    assert caplog.text == ""
    for _ in range(2):
        tiny_processor.with_prompt([{"role": "system", "content": "You listen."}, *make_dialogue(0.3, 0.2)])
    assert caplog.text.count("which the model reads in place of the prompt of its criterion") == 1


def test_the_two_calls_with_prompts_agree(tiny_checkpoint, tmp_path):
    from support.official_layout import write_official

    from sdiareward.modeling_sdiareward import SDiaRewardModel
    from sdiareward.processing_sdiareward import SDiaRewardProcessor
    from sdiareward.scoring.scorer import Scorer

    prompts = {"joint": "Judge."}
    for folder in (tiny_checkpoint, write_official(tmp_path / "official")):
        model = SDiaRewardModel.from_pretrained(folder, prompts=prompts)
        processor = SDiaRewardProcessor.from_pretrained(folder, prompts=prompts)
        assert processor.prompts == prompts
        assert processor.prompt_version.startswith("custom-")
        Scorer(model, processor)
        named = {"prompts": prompts, "prompt_version": "mine"}
        Scorer(SDiaRewardModel.from_pretrained(folder, **named), SDiaRewardProcessor.from_pretrained(folder, **named))
        same = {"prompts": SDiaRewardProcessor.from_pretrained(folder).prompts}
        assert SDiaRewardProcessor.from_pretrained(folder, **same).prompt_version == "1"
