import numpy as np
import pytest

from sdiareward.dataset_builder.episodes import Episode, Part, Turn
from sdiareward.dataset_builder.pipeline.inspection import (
    SilentAudioError,
    inspect_episode,
    measure_clipped_share,
    require_sound,
)
from sdiareward.perturbations.channel import encode


def make_episode(*recordings):
    turns = tuple(Turn(("user", "assistant")[i % 2], (Part("Yes.", data),)) for i, data in enumerate(recordings))
    return Episode("e1", "folder", "wild", "g", turns, "Unknown", "Unknown", "en", "CC0-1.0")


def notes(*recordings):
    return [(note.item, note.kind) for note in inspect_episode(make_episode(*recordings))]


def test_silence_is_refused_and_quiet_speech_is_not():
    with pytest.raises(SilentAudioError, match="turn 3: is silent"):
        require_sound(np.full(1600, 1e-5, np.float32), "turn 3")
    with pytest.raises(SilentAudioError):
        require_sound(np.zeros(0, np.float32), "turn 3")
    quiet = np.full(1600, 1e-3, np.float32)
    assert require_sound(quiet, "turn 3") is quiet


def test_only_runs_at_full_scale_count_as_clipping():
    array = np.zeros(100, np.float32)
    array[10:14] = 1.0
    array[20:25] = -1.0
    array[[40, 50, 51, 52]] = 1.0
    assert measure_clipped_share(array) == pytest.approx(0.09)
    assert measure_clipped_share(np.zeros(0, np.float32)) == 0.0


def test_a_usual_recording_gets_no_note(make_tone):
    assert notes(encode(make_tone(0.5), 16_000, "WAV", "PCM_16", None)) == []


def test_unusual_recordings_are_named_with_their_turn(make_tone):
    import io

    import soundfile

    six = io.BytesIO()
    soundfile.write(six, np.stack([make_tone(0.2)] * 6, axis=1), 16_000, format="WAV")
    eight_bit = encode(make_tone(0.2), 16_000, "WAV", "PCM_U8", None)
    fast = encode(make_tone(0.2), 96_000, "WAV", "PCM_16", None)
    loud = encode(np.clip(make_tone(0.2) * 50, -1, 1), 16_000, "WAV", "PCM_16", None)
    assert notes(eight_bit, six.getvalue(), fast, loud) == [
        ("folder e1, turn 0", "eight_bit"),
        ("folder e1, turn 1", "many_channels"),
        ("folder e1, turn 2", "high_rate"),
        ("folder e1, turn 3", "clipping"),
    ]


def test_a_recording_that_several_parts_are_cut_from_is_noted_once(tmp_path, make_tone):
    path = tmp_path / "fast.wav"
    path.write_bytes(encode(make_tone(0.4), 96_000, "WAV", "PCM_16", None))
    assert notes(str(path), str(path)) == [("folder e1, turn 0", "high_rate")]
