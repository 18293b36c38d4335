"""The pipeline of the package: dialogues in, rewards out."""

import pytest
from transformers import pipeline as make_pipeline

from sdiareward.chat_sdiareward import DialogueError
from sdiareward.pipeline_sdiareward import SDiaRewardPipeline
from sdiareward.scoring.scorer import Scorer


@pytest.fixture(scope="module")
def parts(make_tiny_model, tiny_processor):
    model = make_tiny_model()
    pipeline = SDiaRewardPipeline(model=model, processor=tiny_processor, task="audio-classification", device="cpu")
    return pipeline, Scorer(model, tiny_processor)


def rewards_of(results):
    assert {result["label"] for result in results} == {"reward"}
    return [result["score"] for result in results]


@pytest.mark.parametrize("batch_size", [None, 2, 8])
def test_the_pipeline_gives_the_rewards_of_the_scorer(batch_size, parts, make_dialogue):
    pipeline, scorer = parts
    dialogues = [make_dialogue(0.5, 0.3), make_dialogue(0.2, 0.4, text="no"), make_dialogue(0.3, 0.3, text="oh")]
    found = rewards_of(pipeline(dialogues, criterion="modality", batch_size=batch_size))
    assert found == pytest.approx(scorer.score(dialogues, "modality"), abs=1e-6)
    criteria = ["joint", "modality", "colloquialness"]
    found = rewards_of(pipeline(dialogues, criteria, batch_size=batch_size))
    assert found == pytest.approx(scorer.score(dialogues, criteria), abs=1e-6)


@pytest.mark.parametrize("given", ["hello", b"RIFF", [], {"text": "hello"}, None])
def test_what_is_no_dialogue_is_refused_with_an_example(given, parts):
    with pytest.raises(DialogueError, match=r"scores dialogues, not a .*; give \[\{'role': 'user', 'content'"):
        parts[0](given)


@pytest.mark.parametrize(
    "task", ["text-classification", "sentiment-analysis", "zero-shot-classification", "feature-extraction"]
)
def test_a_pipeline_that_would_read_texts_is_ours_and_refuses_them(task, tiny_checkpoint):
    given = {"candidate_labels": ["good", "bad"]} if task == "zero-shot-classification" else {}
    reward = make_pipeline(task, model=str(tiny_checkpoint), trust_remote_code=True, device="cpu")
    # Of the checkpoint's own code: another class of the same name.
    with pytest.raises(ValueError, match="this model scores dialogues, not a str; give"):
        reward("hello", **given)


def test_bad_dialogues_and_options_are_named(parts, make_dialogue):
    with pytest.raises(DialogueError, match="dialogue 2: has 1 turns and ends with the user"):
        parts[0]([make_dialogue(), make_dialogue()[:1]])
    with pytest.raises(DialogueError, match="dialogue 1: is a str; give a list of turns"):
        parts[0](["one.wav", "two.wav"])
    with pytest.raises(ValueError, match="criterion is 'warmth'"):
        parts[0](make_dialogue(), criterion="warmth")
    with pytest.raises(TypeError, match="takes no top_k"):
        parts[0](make_dialogue(), top_k=2)
