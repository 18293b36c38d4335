"""SoulX-Podcast: the server as a process around a stand-in for its repository, its client, and a pair that uses it."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import requests
from support.paths import ROOT

from sdiareward.common.errors import UserError
from sdiareward.dataset_builder.synthesis import ReferenceClip, SynthesisError, soulx_server
from sdiareward.dataset_builder.synthesis.servers import SoulXPodcast


pytestmark = pytest.mark.slow
RATE = 16_000
LINES = [("assistant", "Hello, <|laughter|> how are [you]?"), ("user", "Fine,\n um,  thanks."), ("assistant", "Good.")]


@pytest.fixture(scope="module")
def references(make_tone):
    return {
        "user": ReferenceClip(make_tone(6.0, 150), "I, um, I see."),
        "assistant": ReferenceClip(make_tone(5.0), "Ça va"),
    }


@pytest.fixture
def served(tmp_path):
    """Start a server in an environment without this package; return its process, its notes and the options for it."""
    command = [sys.executable, soulx_server.__file__, "--repository", str(ROOT / "tests/support/packages")]
    command += ["--model-path", str(tmp_path / "SoulX-Podcast-1.7B"), "--port", "0"]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env |= {"FAKE_SOULX_NOTES": str(tmp_path / "notes.jsonl")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    options = {"model_path": "/there/SoulX-Podcast-1.7B", "addresses": [process.stdout.readline().split()[-1]]}
    yield process, tmp_path / "notes.jsonl", options
    process.kill()
    process.wait()


def test_a_dialogue_is_one_request_that_keeps_its_context(served, references):
    _, notes, options = served
    engine = SoulXPodcast(**options, seed=7, temperature=0.5)
    assert engine.version == "soulx-podcast SoulX-Podcast-1.7B"
    turns = engine.speak_dialogue(LINES, references)
    # Turn N of a dialogue lasts N tenths of a second, the tone is the speaker's.
    assert [len(turn) for turn in turns] == [12_800, 25_600, 38_400]
    for turn, hz in zip(turns, (200, 400, 200), strict=True):
        assert turn.dtype == np.float32
        expected = np.sin(2 * np.pi * hz * np.arange(len(turn)) / RATE) / 2
        np.testing.assert_allclose(turn[200:-200], expected[200:-200], atol=0.01)
    note = json.loads(notes.read_text())
    # The prompts were in a folder that is gone.
    assert not os.path.exists(note.pop("cwd"))
    assert note == {
        "texts": ["Hello, <|laughter|> how are [you]?", "Fine, um, thanks.", "Good."],
        "spk_ids": [0, 1, 0],
        "prompt_texts": ["Ça va", "I, um, I see."],
        "prompts": [[5 * RATE, RATE], [6 * RATE, RATE]],
        "seed": 7,
        "sampling": {"temperature": 0.5, "top_k": 100, "top_p": 0.9, "repetition_penalty": 1.25, "use_ras": True},
    }


def test_a_dialogue_that_the_model_cannot_speak_costs_no_other(served, references):
    engine = SoulXPodcast(**served[2])
    with pytest.raises(SynthesisError, match="RuntimeError: CUDA out of memory"):
        engine.speak_dialogue([("user", "Well, <out of memory>")], references)
    with pytest.raises(SynthesisError, match="has no text"):
        engine.speak_dialogue([("user", " \n ")], references)
    assert len(engine.speak_dialogue(LINES, references)) == 3


def test_a_server_that_runs_something_else_or_is_lost_ends_the_build(served, references):
    process, _, options = served
    # The stand-in has no vLLM and falls back, as the repository does.
    for changes in ({"llm_engine": "vllm"}, {"model_path": "SoulX-Podcast-1.7B-dialect"}, {"fp16_flow": True}):
        with pytest.raises(UserError, match="409.*the server runs {'model': 'SoulX-Podcast-1.7B'"):
            SoulXPodcast(**{**options, **changes}).speak_dialogue(LINES, references)
    with pytest.raises(UserError, match=options["addresses"][0]):
        SoulXPodcast(**options).speak_dialogue([("user", "<CUDA>")], references)
    assert process.wait(30) == 1


def test_a_page_in_a_browser_cannot_make_the_server_speak(served):
    _, notes, options = served
    (address,) = options["addresses"]
    for headers in (
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/json", "Host": "evil.example:80"},
        {"Content-Type": "application/json", "Content-Length": str(2**40)},
    ):
        answer = requests.post(f"{address}/dialogue", data=b"", headers=headers, timeout=30)
        assert (answer.status_code, "127.0.0.1" in answer.json()["error"]) == (400, True)
    assert address.startswith("http://127.0.0.1:") and not notes.exists()
