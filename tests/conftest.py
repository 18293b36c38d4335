import os

from support.paths import FIXTURES


os.environ["HF_HUB_OFFLINE"] = "1"
# Sums of floats depend on the number of threads, also in the processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"
# Ray's workers would yield to the other process of the tests.
os.environ.update(RAY_worker_niceness="0")

import gc
import pickle
import signal
import sys
import weakref
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from support import forked, tiny_model
from support.transformers_tests import TRANSFORMERS_MARKS


def pytest_configure(config):
    """Name the marks of the tests that `transformers` brings, and let processes that tests start be interrupted."""
    for mark in TRANSFORMERS_MARKS:
        config.addinivalue_line("markers", f"{mark}: of transformers")
    # In the background of a shell without job control SIGINT is ignored, here and in the processes that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Run the files with the most slow tests first, so that no process waits for another one's last file."""
    num_slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -num_slow[item.path])
    # Otherwise every search for garbage goes through all that the libraries keep.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    if sys.platform == "linux" and session.items and not session.config.option.collectonly:
        forked.start_server()


@pytest.fixture(scope="session")
def fixtures_dir():
    return FIXTURES


@pytest.fixture
def under_zero3(monkeypatch):
    """Let transformers believe that this process trains under DeepSpeed's ZeRO-3."""
    from transformers.integrations import deepspeed

    class Stage3:
        def is_zero3(self):
            return True

    config = Stage3()
    monkeypatch.setattr(deepspeed, "_hf_deepspeed_config_weak_ref", weakref.ref(config))
    yield
    del config


@pytest.fixture(scope="session")
def make_tone():
    """Return a function giving a mono 16 kHz array of a tone with a little seeded noise."""

    def make(duration_s=0.5, frequency_hz=220.0, seed=0):
        time_s = np.arange(round(duration_s * 16_000)) / 16_000
        noise = np.random.default_rng(seed).standard_normal(time_s.size)
        return (0.3 * np.sin(2 * np.pi * frequency_hz * time_s) + 0.02 * noise).astype(np.float32)

    return make


@pytest.fixture(scope="session")
def make_dialogue(make_tone):
    """Return a function giving the messages of a dialogue with the durations given, user first."""

    def make(*durations_s, text="so, um, hello"):
        return [
            {
                "role": ("user", "assistant")[index % 2],
                "content": [
                    {"type": "text", "text": f"{text} {index}"},
                    {"type": "audio", "audio": make_tone(duration_s, 150.0 + 60 * index, seed=index)},
                ],
            }
            for index, duration_s in enumerate(durations_s or (0.5, 0.4))
        ]

    return make


@pytest.fixture(scope="session")
def speak(make_tone):
    """Return a synthesizer: each text has its own tone."""

    def voice(texts):
        codes = [zlib.crc32(text.encode()) for text in texts]
        tones = [make_tone(0.1 + code % 7 / 50, 150.0 + code % 400) for code in codes]
        return [{"array": tone, "sampling_rate": 16_000} for tone in tones]

    return voice


@pytest.fixture(scope="session")
def tone_pairs(make_tone):
    """Four pairs: the chosen side is a tone that the rejected side lacks."""
    import datasets

    from sdiareward.perturbations.channel import encode

    def side(row, frequency_hz):
        turns = []
        for turn, role in enumerate(("user", "assistant")):
            wav = encode(make_tone(0.2 + 0.1 * row, frequency_hz + 40 * turn, row), 16_000, "WAV", "PCM_16", None)
            turns.append({"role": role, "text": f"line {row}", "audio": {"bytes": wav, "path": None}})
        return turns

    rows = [
        {
            "chosen": side(row, 200.0),
            "rejected": side(row, 900.0),
            "criterion": ("modality", "colloquialness")[row % 2],
        }
        for row in range(4)
    ]
    return datasets.Dataset.from_list(rows)


@pytest.fixture
def data_folder(tmp_path, tone_pairs):
    """Return a data set folder whose splits train and validation are the tone pairs."""
    folder = tmp_path / "pairs"
    folder.mkdir()
    for split in ("train", "validation"):
        tone_pairs.to_parquet(folder / f"{split}.parquet")
    return folder


@pytest.fixture(scope="session")
def tiny_config():
    """Return a function giving a configuration of a few thousand parameters for the fixtures' tokenizer."""
    return tiny_model.make_config


@pytest.fixture(scope="session")
def make_tiny_model():
    """Return a function giving a seeded tiny model, in evaluation mode, whose head is not at zero."""
    return tiny_model.make_model


@pytest.fixture(scope="session")
def tiny_processor():
    return tiny_model.make_processor()


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory):
    """Return the folder of a saved tiny model with its processor."""
    return tiny_model.save_checkpoint(tmp_path_factory.mktemp("tiny_checkpoint"))


@pytest.fixture(autouse=True)
def without_results(request):
    """Remove what an evaluation copies beside the tiny model, which tests share."""
    folders = [request.getfixturevalue("tiny_checkpoint")] if "tiny_checkpoint" in request.fixturenames else []
    yield
    for folder in folders:
        for name in ("results.json", "rewards.png"):
            (folder / name).unlink(missing_ok=True)


@pytest.fixture(scope="session")
def tiny_judge(tmp_path_factory, tiny_config, fixtures_dir):
    """Return the folder of a thinker of a few thousand parameters: random weights, real classes."""
    from transformers import Qwen2_5OmniThinkerForConditionalGeneration

    from sdiareward.judges.thinker import ThinkerProcessor, make_thinker_config

    folder = tmp_path_factory.mktemp("tiny_judge")
    torch.manual_seed(0)
    processor = ThinkerProcessor.from_backbone(fixtures_dir / "base_tiny", max_turn_s=60.0)
    model = Qwen2_5OmniThinkerForConditionalGeneration(make_thinker_config(tiny_config(), processor.tokenizer))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def nano_judge(tmp_path_factory):
    """Return the folder of an untrained nano judge."""
    from sdiareward.judges.thinker import build_nano_judge

    return build_nano_judge(tmp_path_factory.mktemp("nano_judge"))


@pytest.fixture
def ask(tmp_path):
    """Return a function giving a client of a scripted chat server, whose answers are kept in the test's folder."""
    from sdiareward.common.llm import ChatClient, ChatSettings

    def make(server, **changes):
        settings = {"model": "writer", "base_url": server.url, "api_key_env": None, "max_retries": 0}
        return ChatClient(ChatSettings(**{**settings, **changes}), tmp_path / "answers")

    return make


class Bomb:
    """Leave a trace when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


@pytest.fixture
def bomb(tmp_path):
    """Return a pickle that would leave a trace, and where; the pickle does work."""
    trace = tmp_path / "trace"
    content = pickle.dumps(Bomb(trace))
    pickle.loads(content)
    assert trace.exists()
    trace.unlink()
    return content, trace
