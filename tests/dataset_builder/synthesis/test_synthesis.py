import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from sdiareward.dataset_builder.synthesis import (
    SYNTHESIZERS,
    SynthesisError,
    is_available,
    load_synthesizer,
)


TEXT = "Hold it right there."
OFFLINE = [name for name in SYNTHESIZERS if is_available(name)]
SPEAKING = [name for name in OFFLINE if name != "world"]
# Speaks the texts with the engines named, in the order given, and prints a fingerprint of each.
FINGERPRINTS = """
import hashlib, json, sys
import numpy as np
from sdiareward.dataset_builder.synthesis import load_synthesizer

reference = np.sin(np.arange(16000) * 0.05).astype(np.float32)
found = []
for name, voice, text in json.loads(sys.argv[1]):
    speech = load_synthesizer(name).speak(text, voice=voice, reference=reference)
    found.append(hashlib.sha256(speech.tobytes()).hexdigest())
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", SPEAKING)
def test_a_synthesizer_speaks_mono_16_kilohertz_speech_longer_for_more_words_and_different_in_another_voice(name):
    engine = load_synthesizer(name)
    speech = engine.speak(TEXT, voice=0)
    assert speech.dtype == np.float32 and speech.ndim == 1
    assert 0.5 < len(speech) / 16_000 < 4.0
    assert 0.05 < np.abs(speech).max() <= 1.05
    assert any(character.isdigit() for character in engine.version)
    assert not engine.uses_reference
    assert len(engine.speak(TEXT * 3, voice=0)) > 2 * len(speech)
    assert engine.speak(TEXT, voice=1).tobytes() != speech.tobytes()


@pytest.mark.slow
def test_the_same_call_gives_the_same_samples_in_a_fresh_process_whatever_was_spoken_before():
    reference = np.sin(np.arange(16_000) * 0.05).astype(np.float32)
    names = [name for name in OFFLINE if load_synthesizer(name).is_deterministic]
    assert set(names) == {"espeak-ng", "hibari", "kokoro", "world"} | ({"flite"} & set(OFFLINE))
    calls = [(name, voice, text) for name in names for voice in (0, 1) for text in (TEXT, "Six thick thistle sticks?")]
    here = []
    for name, voice, text in calls:
        speech = load_synthesizer(name).speak(text, voice=voice, reference=reference)
        here.append(hashlib.sha256(speech.tobytes()).hexdigest())
    command = [sys.executable, "-W", "ignore", "-c", FINGERPRINTS, json.dumps(calls[::-1])]
    there = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert there[::-1] == here


@pytest.mark.slow
def test_a_voice_file_or_text_that_kokoro_does_not_have_is_named():
    for options in ({"voices": ["jf_alpha", "nowhere"]}, {"voices_path": "nowhere.bin"}):
        with pytest.raises(ValueError, match="nowhere"):
            load_synthesizer("kokoro", options)
    with pytest.raises(SynthesisError, match="kokoro"):
        load_synthesizer("kokoro").speak("", voice=0)


def test_copy_synthesis_keeps_the_length_and_draws_the_pitch_together():
    import pyworld

    time_s = np.arange(32_000) / 16_000
    phase = 2 * np.pi * np.cumsum(150.0 * 1.4 ** np.sin(2 * np.pi * time_s)) / 16_000
    reference = (0.1 * sum(np.sin(k * phase) for k in range(1, 15))).astype(np.float32)
    copy = load_synthesizer("world").speak(TEXT, voice=0, reference=reference)
    assert abs(len(copy) - len(reference)) <= 160

    def spread(signal):
        pitch, _ = pyworld.dio(signal.astype(np.float64), 16_000)
        return np.log(pitch[pitch > 0]).std()

    assert spread(copy) < 0.3 * spread(reference)
    with pytest.raises(SynthesisError, match="needs a recording"):
        load_synthesizer("world").speak(TEXT, voice=0)


OPENAI = {"base_url": "http://localhost:1/v1", "model": "kokoro", "voices": ["a", "b"]}


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("festival", {}, "espeak-ng.*hibari.*piper"),
        ("espeak-ng", {"rate": 165}, r"'espeak-ng'.*\['rate'\]"),
        ("openai-speech", {"model": "kokoro"}, "'base_url', 'model', 'voices'"),
        ("openai-speech", OPENAI | {"voices": "alloy"}, "'alloy'"),
        ("soulx-podcast", {"model_path": "m"}, "'addresses'"),
        ("soulx-podcast", {"model_path": "m", "addresses": "http://localhost"}, "addresses is"),
    ],
)
def test_unknown_names_and_wrong_options_are_refused_with_those_that_exist(name, options, named):
    with pytest.raises(ValueError, match=named):
        load_synthesizer(name, options)


def test_an_engine_is_loaded_once_per_set_of_options():
    first = load_synthesizer("openai-speech", OPENAI)
    assert load_synthesizer("openai-speech", dict(reversed(OPENAI.items()))) is first
    assert load_synthesizer("openai-speech", {**OPENAI, "voices": ["b", "a"]}) is not first
    named = load_synthesizer("second", {**OPENAI, "engine": "openai-speech", "model": "other"})
    assert (first.version, named.version) == ("openai-speech kokoro", "openai-speech other")
    assert load_synthesizer("espeak-ng") is load_synthesizer("espeak-ng", {})


def test_an_endpoint_is_available_when_its_client_is_installed_and_options_are_given():
    with pytest.raises(ValueError, match="'piper' has the engine 'command'"):
        is_available("piper", {"engine": "command"})
    assert not is_available("openai-speech")
    assert is_available("openai-speech", OPENAI)
    assert not is_available("soulx-podcast")
    assert is_available("soulx-podcast", {"model_path": "model", "addresses": ["http://localhost:8100"]})


# Speaks as many milliseconds as the text has letters, at a level that the voice decides, and logs how it was called.
SCRIPT = """
import io, json, sys
import numpy, soundfile
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
text = arguments.get("--text") or sys.stdin.read()
if "fail" in text:
    sys.exit("no such word")
level = {"loud": 0.5, "quiet": 0.1}[arguments["--voice"]]
samples = numpy.full(16 * len(text) * 100, level, dtype="float32")
# Whole before it goes to a pipe, in which a header cannot be completed afterwards.
wav = io.BytesIO()
soundfile.write(wav, samples, 16_000, format="WAV", subtype="FLOAT")
with open(arguments["--output"], "wb") if "--output" in arguments else sys.stdout.buffer as output:
    output.write(wav.getvalue())
with open(arguments["--log"], "a") as log:
    log.write(json.dumps(text) + "\\n")
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "speak.py"
    path.write_text(SCRIPT)
    return [sys.executable, str(path), "--log", str(tmp_path / "log"), "--voice", "{voice}"]


def make_options(command, **changes):
    return {"engine": "command", "command": command, "voices": ["loud", "quiet"], **changes}


@pytest.mark.parametrize(
    "ends", [["--text", "{text}", "--output", "{output}"], ["--text", "{text}"], ["--output", "{output}"], []]
)
def test_a_command_speaks_with_the_text_and_the_recording_by_argument_or_by_stream(script, ends, tmp_path):
    engine = load_synthesizer("my-tts", make_options([*script, *ends], version="my-tts 2"))
    for voice, level in ((0, 0.5), (1, 0.1), (2, 0.5)):
        speech = engine.speak("$(touch x); 'a'\n`b`", voice=voice)
        assert speech.shape == (1600 * len("$(touch x); 'a' `b`"),)
        np.testing.assert_allclose(speech, level, atol=1e-6)
    # No shell read it, and line breaks are spaces.
    assert json.loads((tmp_path / "log").read_text().splitlines()[0]) == "$(touch x); 'a' `b`"
    assert engine.version == "my-tts 2" and not engine.is_deterministic and not engine.uses_reference
    # A text that begins with a dash is not an option.
    assert len(engine.speak("--voice quiet", voice=0)) == 1600 * (len("--voice quiet") + ("--text" in ends))


@pytest.mark.parametrize(
    ("command", "text", "reason"),
    [
        (None, "fail", "ended with 1 for 'fail': no such word"),
        ([sys.executable, "-c", "print('{voice}')"], "hello", "has no speech for 'hello'.*cannot be decoded"),
        ([sys.executable, "-c", "'{voice} {output}'"], "hello", "has no speech for 'hello'.*speech.wav"),
        ([sys.executable, "-c", "import time; '{voice}'; time.sleep(9)"], "hello", "timed out"),
    ],
)
def test_a_command_that_gives_no_speech_costs_the_text_alone(script, command, text, reason):
    timeout_s = 5 if command is None else 0.7
    engine = load_synthesizer("my-tts", make_options(command or [*script, "--text", "{text}"], timeout_s=timeout_s))
    with pytest.raises(SynthesisError, match=reason):
        engine.speak(text, voice=0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"command": "say hello"}, "say hello"),
        ({"command": ["no-such-program-here", "{voice}"]}, "no-such-program-here"),
        ({"command": [sys.executable]}, "voices"),
        ({"engine": "shout"}, "shout"),
        ({"speed": 2}, "my-tts"),
    ],
)
def test_wrong_options_are_found_before_anything_is_spoken(script, changes, named):
    with pytest.raises(ValueError, match=named):
        is_available("my-tts", {**make_options(script), **changes})


MODULE = """
import numpy as np

class Hum:
    uses_reference = False
    is_deterministic = True
    version = "hum 1"

    def __init__(self, level=0.25):
        self.level = level

    def speak(self, text, *, voice, reference=None):
        if text == "wrong":
            return np.zeros((2, 3), dtype=np.int16)
        return np.full(800 * len(text), self.level)

class Mute:
    pass
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"hum_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_a_custom_class_speaks(module):
    assert is_available("hum", {"engine": "entry-point", "entry": f"{module}:Hum"})
    engine = load_synthesizer("hum", {"engine": "entry-point", "entry": f"{module}:Hum", "options": {"level": 0.5}})
    speech = engine.speak("hello", voice=0)
    assert speech.dtype == np.float32 and speech.shape == (4000,) and set(speech) == {np.float32(0.5)}
    assert (engine.version, engine.is_deterministic) == ("hum 1", True)
    with pytest.raises(SynthesisError, match=r"int16 of shape \(2, 3\); mono floats at 16 kHz"):
        engine.speak("wrong", voice=0)


@pytest.mark.parametrize("entry", ["Hum", "no_such_module_here:Hum", "MODULE:Nobody", "MODULE:Mute"])
def test_an_invalid_entry_point_is_refused(module, entry):
    entry = entry.replace("MODULE", module)
    with pytest.raises(ValueError, match=entry):
        is_available("hum", {"engine": "entry-point", "entry": entry})
