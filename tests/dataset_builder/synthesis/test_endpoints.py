import json
import traceback

import numpy as np
import pytest

from sdiareward.audio_sdiareward import resample
from sdiareward.dataset_builder.synthesis import SynthesisError, load_synthesizer
from sdiareward.perturbations.channel import encode


SECRET = "sk-very-secret"


def as_wav(array):
    return encode(array, 24_000, "WAV", "PCM_16", None)


def answer_speech(path, headers, body):
    """Answer as `/v1/audio/speech` does, voice `m` or `f`, with real speech at 24 kHz."""
    request = json.loads(body)
    assert (path, request["response_format"]) == ("/v1/audio/speech", "wav")
    speech = load_synthesizer("espeak-ng").speak(request["input"], voice={"m": 0, "f": 1}[request["voice"]])
    return 200, as_wav(resample(speech, 16_000, 24_000))


@pytest.fixture
def speech_server(serve):
    return serve(answer_speech)


def openai_speech(server, **options):
    defaults = {"base_url": f"{server.url}/v1", "model": "kokoro", "voices": ["m", "f"], "max_retries": 0}
    return load_synthesizer("openai-speech", defaults | options)


def test_an_openai_endpoint_speaks_in_the_voices_named_and_is_asked_again_when_it_is_busy(speech_server):
    engine = openai_speech(speech_server, max_retries=2)
    speech_server.faults = [(429, b"slow down"), (500, b"oops")]
    for voice, of_espeak in ((0, 0), (7, 1)):
        own = load_synthesizer("espeak-ng").speak("Hold it right there.", voice=of_espeak)
        speech = engine.speak("Hold it right there.", voice=voice)
        assert len(speech) == pytest.approx(len(own), abs=2) and np.corrcoef(speech, own[: len(speech)])[0, 1] > 0.99
    assert len(speech_server.requests) == 4


def test_the_key_comes_from_the_variable_named_and_from_no_other(speech_server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "meant-for-openai")
    monkeypatch.setenv("OUR_KEY", SECRET)
    openai_speech(speech_server).speak("Well.", voice=0)
    openai_speech(speech_server, api_key_env="OUR_KEY", extra_body={"speed": 1.25}).speak("Well.", voice=0)
    (_, headers, body), (_, headers_with_key, body_with_speed) = speech_server.requests
    assert "meant-for-openai" not in str(headers) and headers["Authorization"] == "Bearer no-key"
    assert headers_with_key["Authorization"] == f"Bearer {SECRET}"
    assert ["speed" in json.loads(sent) for sent in (body, body_with_speed)] == [False, True]
    monkeypatch.delenv("OUR_KEY")
    with pytest.raises(SynthesisError, match="environment variable 'OUR_KEY'"):
        openai_speech(speech_server, api_key_env="OUR_KEY", timeout_s=1.0)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ((500, b"out of memory"), "InternalServerError: 500: out of memory"),
        ((200, b'{"error": "no such voice"}'), r"cannot be decoded.*answer \(26 bytes\) begins .*no such voice"),
        ((200, as_wav(np.zeros(0))), "has no samples"),
        (0.3, "APITimeoutError"),
        # A server may quote the key.
        *(((status, f"bad {SECRET}".encode()), r"bad \*\*\*") for status in (401, 200)),
    ],
)
def test_every_failure_of_a_speech_endpoint_is_an_error_with_its_reason(speech_server, fault, message, monkeypatch):
    monkeypatch.setenv("OUR_KEY", SECRET)
    engine = openai_speech(speech_server, timeout_s=0.2, api_key_env="OUR_KEY")
    speech_server.faults = [fault]
    with pytest.raises(SynthesisError, match=f"(?s)kokoro' has no speech for 'Well.': .*({message})") as caught:
        engine.speak("Well.", voice=0)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
