import hashlib
import json
import subprocess
import sys
from functools import cache

import numpy as np
import pytest

from sdiareward.dataset_builder.synthesis import SYNTHESIZERS, SynthesisError, is_available, load_synthesizer


TEXT = "Six thick sticks?"
OFFLINE = [name for name in SYNTHESIZERS if is_available(name)]
REFERENCE = np.sin(np.arange(16_000) * 0.05).astype(np.float32)
# Speaks a text with the engines and voices named, in the order given, and prints a fingerprint of each.
FINGERPRINTS = """
import hashlib, json, sys
import numpy as np
from sdiareward.dataset_builder.synthesis import load_synthesizer

reference = np.sin(np.arange(16000) * 0.05).astype(np.float32)
for name, voice in json.loads(sys.argv[1]):
    speech = load_synthesizer(name).speak("Six thick sticks?", voice=voice, reference=reference)
    print(hashlib.sha256(speech.tobytes()).hexdigest())
"""


@cache
def speak(name, voice):
    return load_synthesizer(name).speak(TEXT, voice=voice, reference=REFERENCE)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OFFLINE if name != "world"])
def test_a_synthesizer_speaks_mono_16_kilohertz_speech_longer_for_more_words_and_different_in_another_voice(name):
    engine, speech = load_synthesizer(name), speak(name, 0)
    assert speech.dtype == np.float32 and speech.ndim == 1 and not engine.uses_reference
    assert 0.4 < len(speech) / 16_000 < 3.0 and 0.05 < np.abs(speech).max() <= 1.05
    assert any(character.isdigit() for character in engine.version)
    assert len(engine.speak("Hm.", voice=0)) < len(speech)
    assert speak(name, 1).tobytes() != speech.tobytes()


@pytest.mark.slow
def test_the_same_call_gives_the_same_samples_in_a_fresh_process_whatever_was_spoken_before():
    names = [name for name in OFFLINE if load_synthesizer(name).is_deterministic]
    assert set(names) == {"espeak-ng", "hibari", "kokoro", "world"} | ({"flite"} & set(OFFLINE))
    calls = [(name, voice) for name in names for voice in (0, 1) if (name, voice) != ("kokoro", 1)]
    command = [sys.executable, "-W", "ignore", "-c", FINGERPRINTS, json.dumps(calls[::-1])]
    there = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert there[::-1] == [hashlib.sha256(speak(*call).tobytes()).hexdigest() for call in calls]


def test_copy_synthesis_keeps_the_length_and_draws_the_pitch_together():
    import pyworld

    phase = 2 * np.pi * np.cumsum(150.0 * 1.4 ** np.sin(np.arange(32_000) * 2 * np.pi / 16_000)) / 16_000
    reference = (0.1 * sum(np.sin(k * phase) for k in range(1, 15))).astype(np.float32)
    copy = load_synthesizer("world").speak(TEXT, voice=0, reference=reference)
    assert abs(len(copy) - len(reference)) <= 160
    pitches = [pyworld.dio(signal.astype(np.float64), 16_000)[0] for signal in (copy, reference)]
    spreads = [np.log(pitch[pitch > 0]).std() for pitch in pitches]
    assert spreads[0] < 0.3 * spreads[1]
    with pytest.raises(SynthesisError, match="needs a recording"):
        load_synthesizer("world").speak(TEXT, voice=0)


OPENAI = {"base_url": "http://localhost:1/v1", "model": "kokoro", "voices": ["a", "b"]}
HERE = sys.executable


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("festival", {}, "espeak-ng.*hibari.*piper"),
        ("espeak-ng", {"rate": 165}, r"'espeak-ng'.*'rate'.*voices"),
        ("openai-speech", {"model": "kokoro"}, "base_url"),
        ("openai-speech", OPENAI | {"voices": "alloy"}, "'alloy'"),
        ("soulx-podcast", {"model_path": "m", "addresses": []}, "addresses is"),
        ("piper", {"engine": "command"}, "'piper' has the engine 'command'"),
        ("kokoro", {"voices": ["jf_alpha", "nowhere"]}, r"\['nowhere'\]; .* has jf_alpha"),
        ("kokoro", {"voices_path": "nowhere.bin"}, "nowhere"),
        ("my-tts", {"engine": "command", "command": "say hello"}, "say hello"),
        ("my-tts", {"engine": "command", "command": ["no-such-program"]}, "no-such-program"),
        ("my-tts", {"engine": "command", "command": [HERE], "voices": ["a"]}, "voices"),
        ("my-tts", {"engine": "shout"}, "shout"),
        ("hum", {"engine": "entry-point", "entry": "Hum"}, "Hum"),
        ("hum", {"engine": "entry-point", "entry": "no_such_module_here:Hum"}, "no_such_module_here:Hum"),
        ("hum", {"engine": "entry-point", "entry": "hum_of_a_test:Nobody"}, "hum_of_a_test:Nobody"),
        ("hum", {"engine": "entry-point", "entry": "hum_of_a_test:Mute"}, "hum_of_a_test:Mute"),
    ],
)
def test_unknown_names_and_wrong_options_are_refused_before_anything_is_spoken(name, options, named, module):
    with pytest.raises((ValueError, SynthesisError), match=named):
        load_synthesizer(name, options)


def test_an_engine_is_loaded_once_per_set_of_options_and_available_if_they_are_given():
    first = load_synthesizer("openai-speech", OPENAI)
    assert load_synthesizer("openai-speech", dict(reversed(OPENAI.items()))) is first
    assert load_synthesizer("openai-speech", {**OPENAI, "voices": ["b", "a"]}) is not first
    named = load_synthesizer("second", {**OPENAI, "engine": "openai-speech", "model": "other"})
    assert (first.version, named.version) == ("openai-speech kokoro", "openai-speech other")
    assert not is_available("openai-speech") and is_available("openai-speech", OPENAI)
    with pytest.raises(ValueError, match="no-such-program"):
        is_available("my-tts", {"engine": "command", "command": ["no-such-program"]})


# Speaks a tenth of a second for each letter, at a level that the voice decides, and logs the text.
SCRIPT = """
import json, sys, wave
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
text = arguments.get("--text") or sys.stdin.read()
if "fail" in text:
    sys.exit("no such word")
level, count = {"loud": 16384, "quiet": 4096}[arguments["--voice"]], 1600 * len(text)
with wave.open(arguments.get("--output") or sys.stdout.buffer, "wb") as output:
    output.setparams((1, 2, 16000, count, "NONE", None))
    output.writeframes(level.to_bytes(2, "little") * count)
with open(arguments["--log"], "a") as log:
    log.write(json.dumps(text) + "\\n")
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "speak.py"
    path.write_text(SCRIPT)
    return [HERE, "-I", "-S", str(path), "--log", str(tmp_path / "log"), "--voice", "{voice}"]


def load_command(command, **changes):
    options = {"engine": "command", "command": command, "voices": ["loud", "quiet"]}
    return load_synthesizer("my-tts", options | changes)


@pytest.mark.parametrize("ends", [["--text", "{text}", "--output", "{output}"], ["--output", "{output}"], []])
def test_a_command_speaks_with_the_text_and_the_recording_by_argument_or_by_stream(script, ends, tmp_path):
    engine = load_command([*script, *ends], version="my-tts 2")
    for voice, level in ((0, 0.5), (1, 0.125), (2, 0.5)):
        speech = engine.speak("$(touch x); 'a'\n`b`", voice=voice)
        assert speech.shape == (1600 * len("$(touch x); 'a' `b`"),) and set(speech) == {np.float32(level)}
    # No shell read it, and line breaks are spaces.
    assert json.loads((tmp_path / "log").read_text().splitlines()[0]) == "$(touch x); 'a' `b`"
    assert engine.version == "my-tts 2" and not engine.is_deterministic and not engine.uses_reference
    # A text that begins with a dash is not an option.
    assert len(engine.speak("--voice quiet", voice=0)) == 1600 * (len("--voice quiet") + ("--text" in ends))


@pytest.mark.parametrize(
    ("command", "text", "reason"),
    [
        (None, "fail", "ended with 1 for 'fail': no such word"),
        ([HERE, "-IS", "-c", "print('{voice}')"], "hello", "has no speech for 'hello'.*cannot be decoded"),
        ([HERE, "-IS", "-c", "'{voice} {output}'"], "hello", "has no speech for 'hello'.*speech.wav"),
        ([HERE, "-IS", "-c", "import time; '{voice}'; time.sleep(9)"], "hello", "timed out"),
    ],
)
def test_a_command_that_gives_no_speech_costs_the_text_alone(script, command, text, reason):
    engine = load_command(command or [*script, "--text", "{text}"], timeout_s=0.5 if "timed" in reason else 20.0)
    with pytest.raises(SynthesisError, match=reason):
        engine.speak(text, voice=0)


MODULE = """
import numpy as np

class Hum:
    uses_reference, is_deterministic, version = False, True, "hum 1"

    def __init__(self, level=0.25):
        self.level = level

    def speak(self, text, *, voice, reference=None):
        return np.zeros((2, 3), dtype=np.int16) if text == "wrong" else np.full(800 * len(text), self.level)

class Mute:
    pass
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "hum_of_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("hum_of_a_test", None)


def test_a_custom_class_speaks(module):
    options = {"engine": "entry-point", "entry": "hum_of_a_test:Hum", "options": {"level": 0.5}}
    engine = load_synthesizer("hum", options)
    speech = engine.speak("hello", voice=0)
    assert is_available("hum", options) and speech.dtype == np.float32 and speech.shape == (4000,)
    assert (set(speech), engine.version, engine.is_deterministic) == ({np.float32(0.5)}, "hum 1", True)
    with pytest.raises(SynthesisError, match=r"int16 of shape \(2, 3\); return mono floats at 16 kHz"):
        engine.speak("wrong", voice=0)
