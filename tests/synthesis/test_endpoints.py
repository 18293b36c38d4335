import contextlib
import dataclasses
import email
import io
import json
import re
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import soundfile
import torch

from sdiareward.audio_sdiareward import resample
from sdiareward.dataset_builder.builder import make_pair
from sdiareward.dataset_builder.episodes import Episode, Part, Turn
from sdiareward.dataset_builder.pairing.pairing import PairPlan, make_row
from sdiareward.dataset_builder.pairing.reference_clips import NoReference
from sdiareward.dataset_builder.parts import PartFolder
from sdiareward.synthesis import DialogueSynthesizer, ReferenceClip, SynthesisError, Synthesizer, load_synthesizer
from sdiareward.synthesis.soulx_podcast import build, to_turns
from sdiareward.synthesis.soulx_script import make_script


SECRET = "sk-very-secret"


def as_wav(array, rate, subtype="PCM_16"):
    buffer = io.BytesIO()
    soundfile.write(buffer, array, rate, format="WAV", subtype=subtype)
    return buffer.getvalue()


def speech_24k(text, voice):
    """Return real speech as a server of a 24 kHz model would have it."""
    return resample(load_synthesizer("espeak-ng").speak(text, voice=voice), 16_000, 24_000)


class Server(ThreadingHTTPServer):
    """A local server that records its requests and can fail.

    `faults` are answers `(status, body)` or pauses in seconds that come before the proper ones, first things first.
    """

    def __init__(self, answer):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer, self.requests, self.faults = answer, [], []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):  # noqa: N802 - the name that http.server calls
        self._respond()

    def do_POST(self):  # noqa: N802
        self._respond()

    def log_message(self, *args):
        pass

    def _respond(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.path, self.headers, body))
        fault = self.server.faults.pop(0) if self.server.faults else None
        if isinstance(fault, float):
            time.sleep(fault)
            fault = None
        status, answer = fault or self.server.answer(self.path, self.headers, body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        # Asks clients to try again at once.
        self.send_header("retry-after-ms", "1")
        self.end_headers()
        # A client that waited too long is gone.
        with contextlib.suppress(BrokenPipeError):
            self.wfile.write(answer)


@pytest.fixture
def serve():
    servers = []

    def start(answer):
        servers.append(Server(answer))
        threading.Thread(target=servers[-1].serve_forever, args=(0.01,), daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


# OpenAI-compatible endpoints


def answer_speech(path, headers, body):
    """Answer as `/v1/audio/speech` does, voice `m` or `f`."""
    request = json.loads(body)
    assert path == "/v1/audio/speech"
    assert request["response_format"] == "wav"
    return 200, as_wav(speech_24k(request["input"], {"m": 0, "f": 1}[request["voice"]]), 24_000)


@pytest.fixture
def speech_server(serve):
    return serve(answer_speech)


def openai_speech(server, **options):
    defaults = {"base_url": f"{server.url}/v1", "model": "kokoro", "voices": ["m", "f"], "max_retries": 0}
    return load_synthesizer("openai-speech", defaults | options)


def test_an_openai_endpoint_speaks_16_kilohertz_speech_in_the_voices_named(speech_server):
    engine = openai_speech(speech_server)
    assert isinstance(engine, Synthesizer)
    for voice, espeak_voice in ((0, 0), (1, 1), (2, 0), (7, 1)):
        speech = engine.speak("Hold it right there.", voice=voice)
        expected = resample(speech_24k("Hold it right there.", espeak_voice), 24_000)
        assert speech.dtype == np.float32
        np.testing.assert_allclose(speech, expected, atol=1e-4)
    assert not engine.is_deterministic


def test_a_header_that_does_not_know_the_length_yet_is_no_hindrance(serve):
    def stream(path, headers, body):
        status, wav = answer_speech(path, headers, body)
        position = wav.index(b"data") + 4
        return status, wav[:4] + b"\xff" * 4 + wav[8:position] + b"\xff" * 4 + wav[position + 4 :]

    speech = openai_speech(serve(stream)).speak("Well.", voice=0)
    assert len(speech) == len(resample(speech_24k("Well.", 0), 24_000))


def test_the_key_comes_from_the_variable_named_and_from_no_other(speech_server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "meant-for-openai")
    monkeypatch.setenv("OUR_KEY", SECRET)
    openai_speech(speech_server).speak("Well.", voice=0)
    with_key = openai_speech(speech_server, api_key_env="OUR_KEY", extra_body={"speed": 1.25})
    with_key.speak("Well.", voice=0)
    (_, headers, body), (_, headers_with_key, body_with_speed) = speech_server.requests
    assert "meant-for-openai" not in str(headers)
    assert headers["Authorization"] == "Bearer no-key"
    assert headers_with_key["Authorization"] == f"Bearer {SECRET}"
    assert "speed" not in json.loads(body)
    assert json.loads(body_with_speed)["speed"] == 1.25
    assert with_key.version == "openai-speech kokoro"
    monkeypatch.delenv("OUR_KEY")
    with pytest.raises(SynthesisError, match="'OUR_KEY' is not set"):
        openai_speech(speech_server, api_key_env="OUR_KEY", timeout_s=1.0)


def test_a_key_that_the_server_quotes_is_in_no_error(serve, monkeypatch):
    monkeypatch.setenv("OUR_KEY", SECRET)
    for status in (401, 200):
        server = serve(lambda path, headers, body, s=status: (s, f"bad {headers['Authorization']}".encode()))
        with pytest.raises(SynthesisError, match=r"bad Bearer \*\*\*") as caught:
            openai_speech(server, api_key_env="OUR_KEY").speak("Well.", voice=0)
        assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_busy_or_broken_server_is_asked_again(speech_server):
    speech_server.faults = [(429, b"slow down"), (500, b"oops")]
    assert len(openai_speech(speech_server, max_retries=2).speak("Well.", voice=0)) > 1_000
    assert len(speech_server.requests) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ((500, b"out of memory"), "InternalServerError: 500: out of memory"),
        ((429, b"slow down"), "RateLimitError: 429: slow down"),
        ((404, b'{"error": {"message": "no model kokoro"}}'), "NotFoundError.*no model kokoro"),
        ((200, b'{"error": "no such voice"}'), "cannot be decoded.*answer of 26 bytes begins .*no such voice"),
        ((200, b""), "cannot be decoded.*answer of 0 bytes"),
        ((200, as_wav(np.zeros(0), 24_000)), "holds no samples"),
        (1.0, "APITimeoutError"),
    ],
)
def test_every_failure_of_a_speech_endpoint_is_an_error_with_its_reason(speech_server, fault, message):
    engine = openai_speech(speech_server, timeout_s=0.5)
    speech_server.faults = [fault]
    with pytest.raises(SynthesisError, match=f"(?s)'kokoro' gives no speech for 'Well.': .*({message})"):
        engine.speak("Well.", voice=0)


def test_a_server_that_is_not_there_is_a_synthesis_error():
    engine = load_synthesizer(
        "openai-speech", {"base_url": "http://127.0.0.1:9/v1", "model": "m", "voices": ["v"], "max_retries": 0}
    )
    with pytest.raises(SynthesisError, match="APIConnectionError"):
        engine.speak("Well.", voice=0)


@pytest.mark.parametrize("voices", [[], "alloy"])
def test_voices_must_be_a_list_with_a_name(voices):
    with pytest.raises(ValueError, match="voices is .*; it must be a list"):
        load_synthesizer("openai-speech", {"base_url": "http://localhost/v1", "model": "m", "voices": voices})


# SoulX-Podcast

LINES = [
    ("assistant", "Hello, <|laughter|> how are you?"),
    ("user", "Fine,\n um,  thanks."),
    ("assistant", "Good."),
]


class SoulXServer:
    """Answers as the API server of SoulX-Podcast does, including where it is strict and where it joins turns."""

    def __init__(self):
        self.tasks, self.prompts = {}, []

    def __call__(self, path, headers, body):
        if path == "/generate-async":
            return self._create(headers, body)
        if path.startswith("/task/"):
            task = self.tasks[path.removeprefix("/task/")]
            task["status"] = {"pending": "processing"}.get(task["status"], "completed")
            url = f"/download/{path.removeprefix('/task/')}.wav" if task["status"] == "completed" else None
            return 200, json.dumps({"status": task["status"], "result_url": url, "error": None}).encode()
        return 200, self.tasks[path.removeprefix("/download/").removesuffix(".wav")]["wav"]

    def _create(self, headers, body):
        message = email.message_from_bytes(f"Content-Type: {headers['Content-Type']}\r\n\r\n".encode() + body)
        parts = [(part.get_param("name", header="content-disposition"), part) for part in message.get_payload()]
        files = [part for name, part in parts if name == "prompt_audio"]
        fields = {name: part.get_payload(decode=True).decode() for name, part in parts if name != "prompt_audio"}
        texts = json.loads(fields["prompt_texts"])
        if len(files) != len(texts) or not all(part.get_filename().endswith(".wav") for part in files):
            return 400, b'{"detail": "prompts and texts do not match"}'
        turns = re.findall(r"(\[S[1-4]\][^\[\]]*)", fields["dialogue_text"])
        prompts = [soundfile.read(io.BytesIO(part.get_payload(decode=True)), dtype="float32") for part in files]
        self.prompts.append((prompts, texts, fields))
        spoken = [speech_24k(turn[4:], int(turn[2]) - 1) for turn in turns]
        task_id = str(len(self.tasks))
        self.tasks[task_id] = {"status": "pending", "wav": as_wav(np.concatenate(spoken), 24_000, "FLOAT")}
        return 200, json.dumps({"task_id": task_id, "status": "pending"}).encode()


@pytest.fixture
def soulx_server(serve):
    return serve(SoulXServer())


@pytest.fixture
def references(make_tone):
    return {
        "user": ReferenceClip(make_tone(6.0, 150), "I, um, I see."),
        "assistant": ReferenceClip(make_tone(5.0), "Ça va"),
    }


def soulx(server, **options):
    return load_synthesizer("soulx-podcast", {"base_url": server.url, "max_retries": 0, "poll_s": 0.01} | options)


def test_a_soulx_server_speaks_every_line_by_itself_with_the_prompts_of_all_speakers(soulx_server, references):
    engine = soulx(soulx_server, seed=7, temperature=0.5)
    assert isinstance(engine, DialogueSynthesizer)
    turns = engine.speak_dialogue(LINES, references)
    # The assistant speaks first and so is S1, which the server gives eSpeak's voice 0.
    expected = [("Hello, <|laughter|> how are you?", 0), ("Fine, um, thanks.", 1), ("Good.", 0)]
    for turn, (text, voice) in zip(turns, expected, strict=True):
        assert turn.dtype == np.float32
        np.testing.assert_allclose(turn, resample(speech_24k(text, voice), 24_000), atol=1e-6)
    for prompts, texts, fields in soulx_server.answer.prompts:
        assert texts == ["Ça va", "I, um, I see."]
        assert fields["seed"] == "7"
        assert fields["temperature"] == "0.5"
        assert fields["repetition_penalty"] == "1.25"
        for (array, rate), role in zip(prompts, ("assistant", "user"), strict=True):
            assert rate == 16_000
            np.testing.assert_allclose(array, references[role].array, atol=1 / 32768)


def test_a_role_without_a_clip_takes_the_voice_of_the_options(soulx_server, references, tmp_path, make_tone):
    (tmp_path / "voice.wav").write_bytes(as_wav(make_tone(7.0, 300), 16_000))
    voices = {"user": {"audio": str(tmp_path / "voice.wav"), "text": "A voice for scripts."}}
    engine = soulx(soulx_server, voices=voices)
    engine.speak_dialogue(LINES, {"assistant": references["assistant"]})
    prompts, texts, _ = soulx_server.answer.prompts[0]
    assert texts == ["Ça va", "A voice for scripts."]
    assert len(prompts[1][0]) == 7 * 16_000
    with pytest.raises(SynthesisError, match=r"no reference clip for \['assistant'\].*'voices'"):
        engine.speak_dialogue(LINES, {})
    with pytest.raises(ValueError, match="'user' has .'audio'.; it needs 'audio' and 'text'"):
        soulx(soulx_server, voices={"user": {"audio": "a.wav"}})


def test_a_square_bracket_is_refused_where_the_server_would_cut_the_line(soulx_server, references):
    with pytest.raises(SynthesisError, match="line 1, 'Fine .laughs. thanks.', has a square bracket"):
        soulx(soulx_server).speak_dialogue([("user", "Hello."), ("assistant", "Fine [laughs] thanks.")], references)
    assert not soulx_server.requests


def test_a_busy_soulx_server_is_asked_again(soulx_server, references):
    soulx_server.faults = [(503, b"busy")]
    assert len(soulx(soulx_server, max_retries=1).speak_dialogue(LINES[:1], references)) == 1


def task(**fields):
    return 200, json.dumps({"status": "completed", "result_url": "/download/0.wav", "error": None} | fields).encode()


CREATED = (200, b'{"task_id": "0"}')


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ([(500, b'{"detail": "no GPU"}')], "POST /generate-async answers 500: .*no GPU"),
        ([(429, b"busy")], "answers 429: busy"),
        ([(400, b"texts do not match")], "answers 400: texts do not match"),
        ([(200, b"<html>")], "JSONDecodeError"),
        ([(200, b'{"id": 3}')], "KeyError: 'task_id'"),
        ([CREATED, (404, b"gone")], "GET /task/0 answers 404: gone"),
        ([CREATED, task(status="failed", error="CUDA out of memory")], "the server reports: CUDA out of memory"),
        ([CREATED, *[task(status="processing")] * 99], "still processing after 0.3 s; raise 'timeout_s'"),
        ([CREATED, task(), (404, b"cleaned up")], "GET /download/0.wav answers 404: cleaned up"),
        ([CREATED, task(), (200, b"not audio")], "cannot be decoded.*not audio"),
        ([CREATED, task(), (200, b"")], "cannot be decoded"),
        ([1.0], "timed out"),
    ],
)
def test_every_failure_of_a_soulx_server_is_an_error_with_its_reason(soulx_server, references, faults, message):
    soulx_server.faults = list(faults)
    with pytest.raises(SynthesisError, match=rf"gives no speech for '\[S1\]Good.': .*{message}"):
        soulx(soulx_server, timeout_s=0.3).speak_dialogue([("user", "Good.")], references)


def test_a_missing_folder_or_package_is_an_error_with_a_remedy(tmp_path):
    with pytest.raises(SynthesisError, match="'soulx-podcast' is not installed; put a clone.*PYTHONPATH.*'base_url'"):
        load_synthesizer("soulx-podcast", {"model_path": str(tmp_path)})
    with pytest.raises(SynthesisError, match="soulxpodcast cannot be imported .*No module named"):
        build(model_path=str(tmp_path))
    with pytest.raises(FileNotFoundError, match="nowhere: no such folder"):
        build(model_path=str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": "http://localhost", "model_path": "m"}, "either 'model_path'.*or 'base_url'"),
        ({"base_url": ""}, "either 'model_path'.*or 'base_url'"),
        (
            {"base_url": "http://localhost", "temprature": 1.0},
            r"no options \['temprature'\]; sampling has.*temperature",
        ),
    ],
)
def test_wrong_options_of_soulx_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        load_synthesizer("soulx-podcast", options)


def test_a_script_has_the_form_of_soulx_podcasts_examples(references):
    script = make_script(LINES, references)
    assert script.as_json(["a.wav", "b.wav"]) == {
        "speakers": {
            "S1": {"prompt_audio": "a.wav", "prompt_text": "Ça va"},
            "S2": {"prompt_audio": "b.wav", "prompt_text": "I, um, I see."},
        },
        "text": [["S1", "Hello, <|laughter|> how are you?"], ["S2", "Fine, um, thanks."], ["S1", "Good."]],
    }
    assert make_script(LINES[:1], references).speakers == ("S1",)


def test_lines_that_soulx_podcast_cannot_speak_are_refused(references):
    with pytest.raises(SynthesisError, match=r"lines \[1\] have no text"):
        make_script([("user", "Hello."), ("assistant", " \n ")], references)
    with pytest.raises(SynthesisError, match="0 roles speak"):
        make_script([], references)


def test_the_models_tensors_become_16_kilohertz_turns(make_tone):
    tone = make_tone(0.5)
    waves = [torch.from_numpy(resample(tone, 16_000, 24_000))[None], torch.zeros(1, 2_400, dtype=torch.float16)]
    turns = to_turns(waves, 2)
    assert [len(turn) for turn in turns] == [8_000, 1_600]
    assert turns[1].dtype == np.float32
    # The noise between 7 and 8 kHz does not survive the way back.
    np.testing.assert_allclose(turns[0][400:-400], tone[400:-400], atol=0.1)


@pytest.mark.parametrize(
    ("waves", "message"),
    [
        ([torch.zeros(1, 2_400)], "gave 1 waveforms for 2 lines"),
        ([torch.zeros(1, 2_400), torch.zeros(1, 12)], "line 1 has 8 samples"),
        ([torch.full((1, 2_400), torch.nan), torch.zeros(1, 2_400)], "line 0 .* all finite: False"),
    ],
)
def test_missing_short_and_broken_waveforms_are_refused(waves, message):
    with pytest.raises(SynthesisError, match=message):
        to_turns(waves, 2)


# Pairs through an endpoint


def make_episode(make_tone, seconds):
    turns = []
    for position, duration_s in enumerate(seconds):
        wav = as_wav(make_tone(duration_s, 200.0 + 50 * position), 16_000)
        turns.append(Turn(("user", "assistant")[position % 2], (Part(f"Line {position}.", wav),)))
    return Episode("e1", "asterisk", "scripted", "g1", tuple(turns), "Inform", "Unknown", "en", "CC0-1.0")


def make_soulx_plan(server, episode, **changes):
    options = {"base_url": server.url, "max_retries": 0, "poll_s": 0.01}
    plan = PairPlan("modality", episode, episode, "soulx-podcast", "train", None, options)
    return dataclasses.replace(plan, **changes)


def test_a_pair_clones_the_longest_fitting_turn_of_each_speaker(soulx_server, make_tone):
    row = make_row(make_soulx_plan(soulx_server, make_episode(make_tone, [5.0, 6.0, 8.0, 31.0])))
    assert [turn["text"] for turn in row["rejected"]] == [turn["text"] for turn in row["chosen"]]
    assert len(soulx_server.answer.prompts) == 4
    for prompts, texts, _ in soulx_server.answer.prompts:
        # The user's 8 s before the 5 s; the assistant's 31 s are too long.
        assert texts == ["Line 2.", "Line 1."]
        assert [len(array) / rate for array, rate in prompts] == [8.0, 6.0]


def test_a_dialogue_without_a_usable_clip_is_pruned_and_the_endpoint_is_not_asked(soulx_server, make_tone):
    plan = make_soulx_plan(soulx_server, make_episode(make_tone, [6.0, 1.0]))
    with pytest.raises(NoReference, match="assistant"):
        make_row(plan)
    assert soulx_server.answer.prompts == []


def test_a_build_counts_the_dialogues_it_pruned(soulx_server, make_tone, tmp_path):
    episodes = [make_episode(make_tone, [6.0, seconds]) for seconds in (5.5, 1.0)]
    skipped = [make_pair(make_soulx_plan(soulx_server, episode), PartFolder(tmp_path)) for episode in episodes]
    assert [skip.kind if skip else None for skip in skipped] == [None, "no_reference_clip"]
