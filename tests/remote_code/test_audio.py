import io

import numpy as np
import pytest
import soundfile

from sdiareward.audio_sdiareward import MIN_SAMPLES, AudioError, audio_duration_s, read_audio, resample


@pytest.fixture
def write(tmp_path, make_tone):
    def make(name, duration_s=0.5, rate=16_000, channels=1):
        path = tmp_path / name
        tone = resample(make_tone(duration_s), 16_000, rate)
        soundfile.write(path, np.stack([tone] * channels, axis=1), rate)
        return path

    return make


def test_every_kind_of_source_gives_the_same_samples(write):
    path = write("tone.wav")
    array, rate = soundfile.read(path, dtype="float32")
    sources = [path, str(path), path.read_bytes(), {"bytes": path.read_bytes(), "path": None}, {"path": str(path)}]
    sources += [array, {"array": array, "sampling_rate": rate}]
    for source in sources:
        assert np.array_equal(read_audio(source), array)
        assert audio_duration_s(source) == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["tone.wav", "tone.flac", "tone.ogg", "tone.mp3"])
def test_compressed_stereo_at_44_kilohertz_becomes_mono_at_16(name, write, make_tone):
    array = read_audio(write(name, duration_s=1.0, rate=44_100, channels=2))
    assert array.dtype == np.float32
    assert abs(array.size - 16_000) < 1200
    assert np.abs(array).max() == pytest.approx(np.abs(make_tone(1.0)).max(), abs=0.05)


def test_channels_are_averaged(tmp_path, make_tone):
    soundfile.write(tmp_path / "a.wav", np.stack([make_tone(0.5), -make_tone(0.5)], axis=1), 16_000)
    assert np.abs(read_audio(tmp_path / "a.wav")).max() < 1e-4


def test_cutting_gives_the_beginning_of_the_whole(write):
    path = write("tone.wav", duration_s=1.0, rate=22_050)
    cut = read_audio(path, max_duration_s=0.25)
    assert cut.size == 4000
    np.testing.assert_allclose(cut, read_audio(path)[:4000], atol=1e-4)


def test_a_recording_that_cannot_be_judged_is_refused_by_name(tmp_path):
    nan = np.full(8000, np.nan, dtype=np.float32)
    for array, problem in [(nan, "NaN"), (nan[:0], "no samples"), (np.zeros(MIN_SAMPLES - 1), "20.0 ms")]:
        with pytest.raises(AudioError, match=f"turn 2: .*{problem}"):
            read_audio(array, name="turn 2")
    (tmp_path / "text.wav").write_text("no audio")
    with pytest.raises(AudioError, match=r"text\.wav: cannot be decoded"):
        read_audio(tmp_path / "text.wav")
    with pytest.raises(FileNotFoundError, match="no such audio file"):
        read_audio(tmp_path / "none.wav")


def test_the_shortest_clip_that_leaves_an_audio_token_is_accepted():
    assert read_audio(np.zeros(MIN_SAMPLES, dtype=np.float32)).size == MIN_SAMPLES


def test_a_source_of_another_type_is_refused():
    for source in (3, {"array": np.zeros(4)}, np.zeros((2, 400)), {"bytes": None, "path": None}, io.BytesIO()):
        with pytest.raises(TypeError):
            read_audio(source)
