import numpy as np
import pytest
import soundfile

from sdiareward.dataset_builder.episodes import Episode, Part, Turn
from sdiareward.dataset_builder.pipeline.inspection import (
    SilentAudioError,
    inspect_episode,
    measure_clipped_share,
    require_sound,
)


def test_silence_is_refused_and_quiet_speech_is_not():
    for silence in (np.full(1600, 1e-5, np.float32), np.zeros(0, np.float32)):
        with pytest.raises(SilentAudioError, match="turn 3"):
            require_sound(silence, "turn 3")
    quiet = np.resize(np.array([1e-3, -1e-3], np.float32), 1600)
    assert require_sound(quiet, "turn 3") is quiet


def test_only_runs_at_full_scale_count_as_clipping():
    array = np.zeros(100, np.float32)
    array[10:14] = 1.0
    array[20:25] = -1.0
    array[[40, 50, 51, 52]] = 1.0
    assert measure_clipped_share(array) == pytest.approx(0.09)
    assert measure_clipped_share(np.zeros(0, np.float32)) == 0.0


def test_unusual_recordings_are_noted_once_with_their_turn(make_tone, tmp_path):
    tone = make_tone(0.2)
    recordings = {
        "usual": (tone, 16_000, "PCM_16"),
        "eight_bit": (tone, 16_000, "PCM_U8"),
        "many_channels": (np.stack([tone] * 6, axis=1), 16_000, "PCM_16"),
        "high_rate": (tone, 96_000, "PCM_16"),
        "clipping": (np.clip(tone * 50, -1, 1), 16_000, "PCM_16"),
    }
    for name, (array, rate, subtype) in recordings.items():
        soundfile.write(tmp_path / f"{name}.wav", array, rate, subtype)
    paths = [str(tmp_path / f"{name}.wav") for name in (*recordings, "clipping")]
    turns = tuple(Turn(("user", "assistant")[i % 2], (Part("Yes.", path),)) for i, path in enumerate(paths))
    episode = Episode("e1", "folder", "wild", "g", turns, "Unknown", "Unknown", "en", "CC0-1.0")
    found = [(note.item, note.kind) for note in inspect_episode(episode)]
    noted = [(f"folder e1, turn {turn}", name) for turn, name in enumerate(recordings) if turn]
    assert found == [("folder e1, turn 5", "overlap"), *noted]
