import json
import sys

import numpy as np
import pytest

from sdiareward.dataset_builder.synthesis import SynthesisError, is_available, load_synthesizer


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


def options(command, **changes):
    return {"engine": "command", "command": command, "voices": ["loud", "quiet"], **changes}


@pytest.mark.parametrize(
    "ends", [["--text", "{text}", "--output", "{output}"], ["--text", "{text}"], ["--output", "{output}"], []]
)
def test_a_command_speaks_with_the_text_and_the_recording_by_argument_or_by_stream(script, ends, tmp_path):
    engine = load_synthesizer("my-tts", options([*script, *ends], version="my-tts 2"))
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
        ([sys.executable, "-c", "print('{voice}')"], "hello", "gives no speech for 'hello'.*cannot be decoded"),
        ([sys.executable, "-c", "'{voice} {output}'"], "hello", "gives no speech for 'hello'.*speech.wav"),
        ([sys.executable, "-c", "import time; '{voice}'; time.sleep(9)"], "hello", "timed out"),
    ],
)
def test_a_command_that_gives_no_speech_costs_the_text_alone(script, command, text, reason):
    timeout_s = 5 if command is None else 0.7
    engine = load_synthesizer("my-tts", options(command or [*script, "--text", "{text}"], timeout_s=timeout_s))
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
        is_available("my-tts", {**options(script), **changes})


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
