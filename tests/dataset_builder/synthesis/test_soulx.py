"""SoulX-Podcast: the server as a process around a stand-in for its repository, its client, and builds that use it."""

import ast
import base64
import contextlib
import dataclasses
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import requests
import soundfile
from support.paths import ROOT

from sdiareward.audio_sdiareward import read_audio
from sdiareward.common.user_errors import UserError
from sdiareward.dataset_builder import builder
from sdiareward.dataset_builder.builder import BuildConfig, SourceConfig, make_pair
from sdiareward.dataset_builder.builder import build as build_pairs
from sdiareward.dataset_builder.episodes import Episode, Part, Turn
from sdiareward.dataset_builder.formats.shards import read_rows
from sdiareward.dataset_builder.pairing.pairing import PairPlan, SynthesizerSpec, make_row
from sdiareward.dataset_builder.pairing.reference_clips import NoReference
from sdiareward.dataset_builder.parts import PartFolder
from sdiareward.dataset_builder.synthesis import (
    DialogueSynthesizer,
    ReferenceClip,
    SynthesisError,
    open_servers,
    soulx_server,
)
from sdiareward.dataset_builder.synthesis.soulx_podcast import build, to_turns
from sdiareward.dataset_builder.synthesis.soulx_script import make_script


# Most start servers.
pytestmark = pytest.mark.slow
RATE = 16_000
REPOSITORY = ROOT / "tests" / "support" / "packages"
LINES = [
    ("assistant", "Hello, <|laughter|> how are [you]?"),
    ("user", "Fine,\n um,  thanks."),
    ("assistant", "Good."),
]
WORDS = ["Hello, <|laughter|> how are [you]?", "Fine, um, thanks.", "Good."]


@pytest.fixture(scope="module")
def references(make_tone):
    return {
        "user": ReferenceClip(make_tone(6.0, 150), "I, um, I see."),
        "assistant": ReferenceClip(make_tone(5.0), "Ça va"),
    }


class World:
    """What is needed to start servers, and the notes of the model on what it was given."""

    def __init__(self, folder):
        self.notes_dir, self.model_path = folder / "notes", folder / "SoulX-Podcast-1.7B"
        self.notes_dir.mkdir()
        self.model_path.mkdir()
        (self.model_path / "soulxpodcast_config.json").write_text("{}")

    def options(self, gpus=(0,), **changes):
        common = {"python": sys.executable, "repository": str(REPOSITORY), "model_path": str(self.model_path)}
        return {**common, "gpus": list(gpus), "poll_s": 0.01, **changes}

    @property
    def notes(self):
        return [json.loads(line) for path in self.notes_dir.glob("*.jsonl") for line in path.read_text().splitlines()]

    def forget(self):
        for path in self.notes_dir.iterdir():
            path.unlink()


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path)
    monkeypatch.setenv("FAKE_SOULX_NOTES", str(world.notes_dir))
    return world


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """Two servers for all tests that do not end one: their world and their options."""
    world = World(tmp_path_factory.mktemp("soulx"))
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FAKE_SOULX_NOTES", str(world.notes_dir))
            patch.setenv("FAKE_SOULX_PAUSE_S", "0.2")
            patch.setenv("PYTHONPATH", "/of/our/environment")
            options = stack.enter_context(open_servers({"soulx-podcast": world.options(gpus=(0, "GPU-7"))}))
        yield world, options["soulx-podcast"]


@pytest.fixture
def served(running):
    world, options = running
    world.forget()
    return world, options


def assert_spoken(turns):
    """The turns of `LINES`: turn N of a dialogue lasts N tenths of a second, the tone is the speaker's."""
    assert [len(turn) for turn in turns] == [1600, 3200, 4800]
    for turn, hz in zip(turns, (200, 400, 200), strict=True):
        assert turn.dtype == np.float32
        expected = np.sin(2 * np.pi * hz * np.arange(len(turn)) / RATE) / 2
        np.testing.assert_allclose(turn[200:-200], expected[200:-200], atol=0.01)


def test_a_dialogue_is_one_request_that_keeps_its_context(served, references):
    world, options = served
    engine = build(**options, seed=7, temperature=0.5)
    assert isinstance(engine, DialogueSynthesizer)
    assert engine.version == "soulx-podcast SoulX-Podcast-1.7B"
    assert_spoken(engine.speak_dialogue(LINES, references))
    (note,) = world.notes
    assert note["texts"] == WORDS
    assert note["spk_ids"] == [0, 1, 0]
    assert note["prompt_texts"] == ["Ça va", "I, um, I see."]
    assert note["prompts"] == [[5 * RATE, RATE], [6 * RATE, RATE]]
    assert note["seed"] == 7
    sampling = {"temperature": 0.5, "top_k": 100, "top_p": 0.9, "repetition_penalty": 1.25}
    assert {name: note["sampling"][name] for name in sampling} == sampling
    assert (note["sampling"]["use_ras"], note["sampling"]["win_size"], note["sampling"]["tau_r"]) == (True, 25, 0.2)


def test_a_server_has_its_gpu_and_none_of_our_packages_and_keeps_no_prompts(served, references):
    world, options = served
    for address in options["addresses"]:
        build(**{**options, "addresses": [address]}).speak_dialogue(LINES, references)
    assert {note["gpu"] for note in world.notes} == {"0", "GPU-7"}
    assert {note["path"] for note in world.notes} == {None}
    assert not any(os.path.exists(info["cwd"]) for note in world.notes for info in note["infos"])


def test_dialogues_go_to_the_server_that_is_free(served, references):
    world, options = served
    spoken = []

    def speak():
        spoken.append(build(**options).speak_dialogue(LINES, references))

    threads = [threading.Thread(target=speak) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(spoken) == 6
    by_gpu = [note["gpu"] for note in world.notes]
    # Each dialogue takes 0.2 s: neither server waits while the other has three left.
    assert sorted(by_gpu.count(gpu) for gpu in ("0", "GPU-7")) == [3, 3]


def test_a_role_without_a_clip_takes_the_voice_of_the_options(served, references, tmp_path, make_tone):
    world, options = served
    soundfile.write(tmp_path / "voice.wav", make_tone(7.0, 300), RATE)
    voices = {"user": {"audio": str(tmp_path / "voice.wav"), "text": "A voice for scripts."}}
    engine = build(**options, voices=voices)
    engine.speak_dialogue(LINES, {"assistant": references["assistant"]})
    assert world.notes[0]["prompt_texts"] == ["Ça va", "A voice for scripts."]
    assert world.notes[0]["prompts"][1] == [7 * RATE, RATE]
    with pytest.raises(SynthesisError, match=r"no reference clip for \['assistant'\].*'voices'"):
        engine.speak_dialogue(LINES, {})
    with pytest.raises(ValueError, match="'user' has .'audio'.; it needs 'audio' and 'text'"):
        build(**options, voices={"user": {"audio": "a.wav"}})


def test_a_dialogue_that_the_model_cannot_speak_is_an_error_with_its_reason(served, references):
    _, options = served
    engine = build(**options)
    with pytest.raises(SynthesisError, match="answers 500: .*RuntimeError: CUDA out of memory"):
        engine.speak_dialogue([("user", "Well, <out of memory>")], references)
    # The server goes on.
    assert_spoken(engine.speak_dialogue(LINES, references))


def test_what_the_servers_run_must_be_what_the_options_name(served, references):
    _, options = served
    # The stand-in has no vLLM and falls back, as the repository does.
    for changes, message in (
        ({"llm_engine": "vllm"}, r"runs \{'llm_engine': 'hf'\}, the options name \{'llm_engine': 'vllm'\}"),
        ({"model_path": "SoulX-Podcast-1.7B-dialect"}, "runs {'model': 'SoulX-Podcast-1.7B'}"),
        ({"fp16_flow": True}, "runs {'fp16_flow': False}"),
    ):
        with pytest.raises(UserError, match=message):
            build(**{**options, **changes}).speak_dialogue(LINES, references)


def ask(options, **changes):
    """Send a dialogue as a stranger would, with changes."""
    prompt = base64.b64encode(b"RIFF").decode()
    request = {
        "speakers": {"S1": {"prompt_audio": prompt, "prompt_text": "Hm."}},
        "text": [["S1", "Well."]],
        "sampling": {"seed": 1},
    }
    return requests.post(f"{options['addresses'][0]}/dialogue", json={**request, **changes}, timeout=30)


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"speakers": {"S1": {"prompt_audio": "not base64!", "prompt_text": ""}}}, 400, "base64"),
        ({"text": []}, 400, "text needs lines"),
        ({"text": [["S2", "Well."]]}, 400, "with marks of \\['S1'\\]"),
        ({"sampling": {}}, 400, "seed"),
        ({"sampling": {"seed": 1, "temprature": 1}}, 500, "TypeError"),
        ({}, 500, "TypeError: 'NoneType' object is not subscriptable"),
    ],
)
def test_a_request_in_another_form_is_refused_with_its_reason(served, changes, status, message):
    answer = ask(served[1], **changes)
    assert answer.status_code == status
    assert re.search(message, answer.json()["error"])


def test_a_page_in_a_browser_cannot_make_a_server_speak(served):
    address = served[1]["addresses"][0]
    for headers in ({"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded"}):
        answer = requests.post(f"{address}/dialogue", data="{}", headers=headers, timeout=30)
        assert (answer.status_code, "application/json" in answer.json()["error"]) == (400, True)
    rebound = requests.get(f"{address}/health", headers={"Host": "evil.example"}, timeout=30)
    assert (rebound.status_code, "evil.example" in rebound.json()["error"]) == (403, True)
    assert requests.get(f"{address}/dialogue", timeout=30).status_code == 404
    huge = {"Content-Type": "application/json", "Content-Length": str(2**40)}
    assert requests.post(f"{address}/dialogue", data=b"", headers=huge, timeout=30).status_code == 400


def test_a_server_listens_on_this_machine_only(served):
    port = int(served[1]["addresses"][0].rpartition(":")[2])
    socket.create_connection(("127.0.0.1", port), 5).close()
    # Another address of this machine: what listens on all interfaces answers there too.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), 5)


def test_the_server_is_one_file_that_needs_nothing_of_this_package():
    tree = ast.parse(Path(soulx_server.__file__).read_text(encoding="utf-8"))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(node.module.partition(".")[0])
    assert names - set(sys.stdlib_module_names) == {"soulxpodcast"}


# Servers that cannot be started, or end


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"python": "/nowhere/python"}, "python '/nowhere/python' is no interpreter"),
        ({"repository": "/nowhere"}, "repository '/nowhere' has no folder soulxpodcast"),
        ({"repository": None}, "has no folder soulxpodcast"),
        ({"model_path": "/nowhere"}, "model_path '/nowhere' is no folder"),
    ],
)
def test_servers_that_cannot_be_started_say_what_is_missing(world, changes, message):
    with pytest.raises(UserError, match=message), open_servers({"soulx-podcast": world.options(**changes)}):
        pass


def test_a_server_that_ends_while_it_loads_is_an_error_with_its_log(world, tmp_path):
    (tmp_path / "broken").mkdir()
    options = world.options(gpus=[3], model_path=str(tmp_path / "broken"))
    with (
        pytest.raises(UserError, match=r"server on GPU 3 \(while it loaded\) ended with status 1.*broken/flow.pt"),
        open_servers({"soulx-podcast": options}),
    ):
        pass


def test_engines_without_servers_keep_their_options():
    options = {"espeak-ng": {}, "soulx-podcast": {"addresses": ["http://127.0.0.1:1"], "model_path": "m"}}
    with open_servers(options) as served:
        assert served == options


def test_servers_end_with_a_build_that_is_killed(world):
    code = (
        "import os, sys, json\n"
        "from sdiareward.dataset_builder.synthesis import open_servers\n"
        "with open_servers({'soulx-podcast': json.loads(sys.argv[1])}) as options:\n"
        "    print(options['soulx-podcast']['addresses'][0], flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, json.dumps(world.options())], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    port = int(done.stdout.rpartition(":")[2])
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
        except ConnectionResetError:
            # It ends just now.
            continue
        except ConnectionRefusedError:
            break
        time.sleep(0.05)
    else:
        pytest.fail("the server is still there")


def test_servers_that_cannot_be_reached_are_named(references):
    engine = build(model_path="m", addresses=["http://127.0.0.1:9", "http://127.0.0.1:7/"])
    message = r"no server can be reached: .*127.0.0.1:\d \(ConnectionError\).*127.0.0.1:\d \(Conn.*start them again"
    with pytest.raises(UserError, match=message):
        engine.speak_dialogue(LINES, references)


def test_a_server_that_is_lost_leaves_its_dialogue_to_another(world, references, caplog):
    with open_servers({"soulx-podcast": world.options(gpus=(0, 1))}) as options:
        engine = build(**options["soulx-podcast"])
        with caplog.at_level(logging.ERROR):
            turns = engine.speak_dialogue([*LINES[:2], ("assistant", "<die>")], references)
        assert [len(turn) for turn in turns] == [1600, 3200, 4800]
        first, second = [note["gpu"] for note in sorted(world.notes, key=lambda note: "died" in note)]
        assert {first, second} == {"0", "1"}
        assert any(
            "the server http://127.0.0.1:" in r.message and "does not answer" in r.message for r in caplog.records
        )


def test_a_gpu_that_fails_for_good_ends_its_server_and_is_named(world, references):
    with (
        pytest.raises(UserError, match=r"no server can be reached.*server on GPU 5 .*device-side assert triggered"),
        open_servers({"soulx-podcast": world.options(gpus=[5])}) as options,
    ):
        build(**options["soulx-podcast"]).speak_dialogue([("user", "<CUDA>")], references)


# Options, scripts, waveforms


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_path": "m"}, "give addresses of servers that run, or python"),
        ({"model_path": "m", "addresses": ["http://localhost"], "python": "python3"}, "give addresses of servers"),
        ({"model_path": "m", "addresses": ["http://localhost"], "gpus": [0]}, "give addresses of servers"),
        ({"model_path": "m", "addresses": "http://localhost"}, "addresses is 'http://localhost'; a list"),
        ({"addresses": ["http://localhost"]}, "options are wrong .*'model_path'"),
        (
            {"model_path": "m", "addresses": ["http://localhost"], "temprature": 1.0},
            r"no options \['temprature'\]; sampling has.*temperature",
        ),
        ({"model_path": "m", "python": "python3", "repository": "r", "tempo": 1.0}, r"no options \['tempo'\]"),
    ],
)
def test_wrong_options_end_a_build_before_its_first_pair(config, options, message):
    with pytest.raises(ValueError, match=message):
        build_pairs(config(synthesizer_options={"soulx-podcast": options}))


def test_a_script_has_the_form_of_the_repositorys_examples(references):
    script = make_script(LINES, references)
    assert script.as_json(["a.wav", "b.wav"]) == {
        "speakers": {
            "S1": {"prompt_audio": "a.wav", "prompt_text": "Ça va"},
            "S2": {"prompt_audio": "b.wav", "prompt_text": "I, um, I see."},
        },
        "text": [["S1", WORDS[0]], ["S2", WORDS[1]], ["S1", WORDS[2]]],
    }
    assert make_script(LINES[:1], references).speakers == ("S1",)


def test_lines_that_cannot_be_spoken_are_refused(references):
    with pytest.raises(SynthesisError, match=r"lines \[1\] have no text"):
        make_script([("user", "Hello."), ("assistant", " \n ")], references)
    with pytest.raises(SynthesisError, match="0 roles speak"):
        make_script([], references)


@pytest.mark.parametrize(
    ("waves", "message"),
    [
        ([np.zeros(2_400)], "gave 1 waveforms for 2 lines"),
        ([np.zeros(2_400), np.zeros(12)], "line 1 has 8 samples"),
        ([np.full(2_400, np.nan), np.zeros(2_400)], "line 0 .* all finite: False"),
    ],
)
def test_missing_short_and_broken_waveforms_are_refused(waves, message):
    with pytest.raises(SynthesisError, match=message):
        to_turns(waves, 24_000, 2)


# Pairs and builds


def make_episode(make_tone, seconds):
    turns = []
    for position, duration_s in enumerate(seconds):
        wav = make_script([("user", "x")], {"user": ReferenceClip(make_tone(duration_s, 200.0 + 50 * position), "x")})
        part = Part(f"Line {position}.", wav.encode_prompts()[0])
        turns.append(Turn(("user", "assistant")[position % 2], (part,)))
    return Episode("e1", "asterisk", "scripted", "g1", tuple(turns), "Inform", "Unknown", "en", "CC0-1.0")


def make_plan(episode, options):
    return PairPlan("modality", episode, episode, "soulx-podcast", "train", None, options)


def test_a_pair_clones_the_longest_fitting_turn_of_each_speaker(served, make_tone):
    world, options = served
    row = make_row(make_plan(make_episode(make_tone, [5.0, 6.0, 8.0, 31.0]), options))
    assert [turn["text"] for turn in row["rejected"]] == [turn["text"] for turn in row["chosen"]]
    (note,) = world.notes
    # The user's 8 s before the 5 s; the assistant's 31 s are too long.
    assert note["prompt_texts"] == ["Line 2.", "Line 1."]
    assert note["prompts"] == [[8 * RATE, RATE], [6 * RATE, RATE]]


def test_a_dialogue_without_a_usable_clip_is_pruned_and_no_server_is_asked(served, make_tone, tmp_path):
    world, options = served
    with pytest.raises(NoReference, match="assistant"):
        make_row(make_plan(make_episode(make_tone, [6.0, 1.0]), options))
    skip = make_pair(make_plan(make_episode(make_tone, [6.0, 1.0]), options), PartFolder(tmp_path))
    assert skip.kind == "no_reference_clip"
    assert world.notes == []


def test_where_the_servers_are_does_not_change_a_pair(world, make_tone):
    plan = make_plan(make_episode(make_tone, [6.0, 6.0]), world.options(gpus=(0, 1)))
    by_hand = {"addresses": ["http://127.0.0.1:8100"], "model_path": "/elsewhere/SoulX-Podcast-1.7B"}
    assert plan.pair_id == dataclasses.replace(plan, options=by_hand).pair_id
    assert plan.pair_id != dataclasses.replace(plan, options={**by_hand, "llm_engine": "vllm"}).pair_id


@pytest.fixture
def config(tmp_path, make_tone, world):
    """Return a function that gives a build of three dialogues of two turns."""
    root = tmp_path / "dailytalk"

    def make(words="Well.", **changes):
        metadata = {}
        for dialogue in "012":
            (root / "data" / dialogue).mkdir(parents=True, exist_ok=True)
            for index in (0, 1):
                text = words if (dialogue, index) == ("1", 1) else f"Line {index}."
                labels = {"emotion": "no emotion", "act": "question", "speaker": index}
                metadata.setdefault(dialogue, {})[str(index)] = {"text": text, **labels}
                path = root / "data" / dialogue / f"{index}_{index}_d{dialogue}.wav"
                if not path.is_file():
                    soundfile.write(path, make_tone(6.0, 200.0 + 50 * index, seed=int(dialogue)), RATE)
        (root / "metadata.json").write_text(json.dumps(metadata))
        fields = {
            "output_dir": str(tmp_path / "sdiareward"),
            "sources": (SourceConfig("dailytalk", str(root)),),
            "synthesizers": {"modality": SynthesizerSpec(("soulx-podcast",))},
            "synthesizer_options": {"soulx-podcast": world.options()},
            "channel": None,
            "num_workers": 1,
        }
        return BuildConfig(**{**fields, **changes})

    return make


def test_a_build_starts_the_servers_and_ends_them(config, world, tmp_path):
    report = build_pairs(config())
    assert report["skipped"] == []
    rows = [row for _, row in read_rows(tmp_path / "sdiareward", ["rejected"])]
    assert [[len(read_audio(turn["audio"])) for turn in row["rejected"]] for row in rows] == [[1600, 3200]] * 3
    for pid in {note["pid"] for note in world.notes}:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    # The report names what is heard, not the places of this machine.
    assert report["config"]["synthesizer_options"] == {"soulx-podcast": {"model_path": "SoulX-Podcast-1.7B"}}


def test_a_finished_build_starts_no_server(config, world):
    build_pairs(config())
    world.forget()
    by_hand = {"addresses": ["http://127.0.0.1:9"], "model_path": "SoulX-Podcast-1.7B"}
    build_pairs(config(synthesizer_options={"soulx-podcast": by_hand}))
    assert world.notes == []


def test_a_build_whose_server_dies_names_it_and_resumes(config, world, tmp_path):
    with pytest.raises(UserError) as caught:
        build_pairs(config("<die>"))
    message = str(caught.value)
    assert "no server can be reached: http://127.0.0.1:" in message
    assert "the server on GPU 0 " in message
    assert "ended with status 9" in message
    assert "the fake GPU has fallen off the bus" in message
    assert "run the same command again" in message
    spoken = len(world.notes)
    assert not (tmp_path / "sdiareward" / "report.json").exists()

    report = build_pairs(config("<die>"))
    assert report["skipped"] == []
    assert sum(row["pairs"] for row in report["pairs"]) == 3
    # The dialogue that was lost is the only one that was spoken twice.
    assert len(world.notes) == 4
    assert spoken >= 1


def test_two_servers_share_a_build_of_one_worker(config, world, monkeypatch):
    asked = []

    def run_in_threads(function, jobs, num_workers, description):
        asked.append(num_workers)
        with ThreadPoolExecutor(num_workers) as pool:
            yield from pool.map(function, jobs)

    # Threads for worker processes, whose start takes longer than the build.
    monkeypatch.setattr(builder, "run_jobs", run_in_threads)
    monkeypatch.setenv("FAKE_SOULX_PAUSE_S", "0.3")
    report = build_pairs(config(synthesizer_options={"soulx-podcast": world.options(gpus=(0, 1))}))
    assert sum(row["pairs"] for row in report["pairs"]) == 3
    assert asked == [2]
    assert sorted([note["gpu"] for note in world.notes].count(gpu) for gpu in "01") == [1, 2]
