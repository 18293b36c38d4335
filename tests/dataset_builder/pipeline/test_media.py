import io

import av
import numpy as np
import pytest
import soundfile

from sdiareward.audio_sdiareward import AudioError, read_audio
from sdiareward.dataset_builder.episodes import Episode, Part, Turn
from sdiareward.dataset_builder.pipeline.inspection import (
    SilentAudioError,
    inspect_episode,
    measure_clipped_share,
    require_sound,
)
from sdiareward.dataset_builder.pipeline.media import decode_recording, read_media, read_span


RATE = 16_000


@pytest.fixture(scope="module")
def tone():
    time_s = np.arange(3 * 44_100) / 44_100
    return (0.3 * np.sin(2 * np.pi * 300 * time_s)).astype(np.float32)


def encoded(array, rate, container, subtype=None):
    buffer = io.BytesIO()
    soundfile.write(buffer, array, rate, format=container, subtype=subtype)
    return buffer.getvalue()


def encoded_by_av(folder, array, rate, container, codec):
    """Encode a mono array with PyAV."""
    # FFmpeg writes `faststart`, the index before the sound, by reading the file again: it needs a real one.
    path = folder / "encoded"
    options = {"movflags": "faststart"} if container == "mp4" else {}
    with av.open(str(path), "w", format=container, options=options) as output:
        stream = output.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(array[None, :], format="fltp", layout="mono")
        frame.sample_rate = rate
        resampler = av.AudioResampler(format=stream.format, layout="mono", rate=rate, frame_size=stream.frame_size)
        for piece in (*resampler.resample(frame), *resampler.resample(None)):
            output.mux(stream.encode(piece))
        output.mux(stream.encode(None))
    data = path.read_bytes()
    path.unlink()
    return data


@pytest.mark.parametrize(
    ("container", "subtype", "rate", "channels"),
    [
        ("WAV", "PCM_U8", 44_100, 1),
        ("WAV", "PCM_24", 96_000, 6),
        ("FLAC", "PCM_16", 8_000, 2),
        ("MP3", None, 22_050, 1),
    ],
)
def test_a_clip_reads_exactly_as_read_audio_does(tone, container, subtype, rate, channels):
    data = encoded(np.stack([tone * (c + 1) / channels for c in range(channels)], axis=1), rate, container, subtype)
    np.testing.assert_array_equal(read_media(data), read_audio(data))


@pytest.mark.parametrize(("container", "codec"), [("mp4", "aac"), ("webm", "libopus"), ("adts", "aac")])
def test_a_clip_that_libsndfile_cannot_decode_is_read_by_ffmpeg(tone, tmp_path, container, codec):
    rate = 48_000 if codec == "libopus" else 44_100
    array = read_media(encoded_by_av(tmp_path, tone, rate, container, codec))
    assert array.dtype == np.float32
    assert array.size == pytest.approx(tone.size * RATE / rate, abs=2500)
    spectrum = np.abs(np.fft.rfft(array[RATE : 2 * RATE]))
    assert spectrum.argmax() == pytest.approx(300 * rate / 44_100, abs=1)
    assert np.sqrt(np.mean(array[RATE : 2 * RATE] ** 2)) == pytest.approx(0.3 / np.sqrt(2), rel=0.05)


def test_a_16_bit_recording_at_16_khz_is_decoded_to_the_same_samples(tmp_path):
    samples = np.arange(-32768, 32768, dtype=np.int16)
    source = tmp_path / "a.flac"
    soundfile.write(source, samples, RATE)
    assert decode_recording(source, tmp_path / "b.wav") == 65_536 / RATE
    np.testing.assert_array_equal(soundfile.read(tmp_path / "b.wav", dtype="int16")[0], samples)


def test_a_decoded_recording_is_the_clip_to_half_a_step(tone, tmp_path):
    data = encoded(np.stack([tone, -0.5 * tone], axis=1), 44_100, "WAV", "FLOAT")
    (tmp_path / "a.wav").write_bytes(data)
    duration_s = decode_recording(tmp_path / "a.wav", tmp_path / "b.wav")
    array = read_audio(data)
    assert duration_s == array.size / RATE == 3.0
    assert np.abs(read_audio(tmp_path / "b.wav") - array).max() <= 0.5 / 32768
    # What is too loud is clipped and does not wrap around.
    soundfile.write(tmp_path / "a.wav", np.full(RATE, 1.5, np.float32), RATE, subtype="FLOAT")
    decode_recording(tmp_path / "a.wav", tmp_path / "b.wav")
    assert read_audio(tmp_path / "b.wav").min() == 32767 / 32768


def test_a_span_is_the_same_samples_as_the_cut_of_the_whole(tone, tmp_path):
    samples = np.random.default_rng(0).integers(-9000, 9000, 2 * RATE).astype(np.int16)
    soundfile.write(tmp_path / "a.wav", samples, RATE)
    whole = read_audio(tmp_path / "a.wav")
    np.testing.assert_array_equal(read_span(tmp_path / "a.wav", 0.25, 1.00003), whole[4000:16_000])
    np.testing.assert_array_equal(read_span(tmp_path / "a.wav", 1.5), whole[24_000:])
    # Of another format or rate the whole clip is decoded.
    soundfile.write(tmp_path / "b.wav", tone, 44_100)
    np.testing.assert_array_equal(read_span(tmp_path / "b.wav", 1, 2), read_audio(tmp_path / "b.wav")[16_000:32_000])


@pytest.mark.parametrize("span", [(0.5, 0.5), (-1.0, 0.5), (0.5, 1.2), (1.0, None)])
def test_a_span_outside_of_the_recording_is_refused_with_its_duration(tmp_path, span):
    soundfile.write(tmp_path / "a.wav", np.zeros(RATE, np.int16), RATE)
    with pytest.raises(AudioError, match=r"lasts 1\.00 s"):
        read_span(tmp_path / "a.wav", *span)


@pytest.mark.parametrize(
    ("container", "subtype"),
    [("WAV", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", None), ("AIFF", "PCM_16")],
)
def test_a_recording_cut_in_the_middle_says_how_much_could_be_decoded(tmp_path, container, subtype):
    rng = np.random.default_rng(0)
    data = encoded((0.1 * rng.standard_normal(6 * RATE)).astype(np.float32), RATE, container, subtype)
    (tmp_path / "whole").write_bytes(data)
    assert decode_recording(tmp_path / "whole", tmp_path / "b.wav") == pytest.approx(6.0, abs=0.1)
    (tmp_path / "cut").write_bytes(data[: len(data) // 2])
    with pytest.raises(AudioError, match=r"cut: .* [0-3]\.\d s could be decoded"):
        decode_recording(tmp_path / "cut", tmp_path / "c.wav")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.wav", "cut", "whole"]


@pytest.mark.parametrize(("container", "codec", "rate"), [("mp4", "aac", 44_100), ("webm", "libopus", 48_000)])
def test_a_video_container_cut_in_the_middle_is_refused(tone, tmp_path, container, codec, rate):
    data = encoded_by_av(tmp_path, np.tile(tone, 3), rate, container, codec)
    (tmp_path / "cut").write_bytes(data[: len(data) // 2])
    with pytest.raises(AudioError, match=r"[1-6]\.\d s could be decoded"):
        decode_recording(tmp_path / "cut", tmp_path / "c.wav")


def make_video_without_sound():
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as output:
        stream = output.add_stream("mpeg4", rate=5)
        stream.width = stream.height = 32
        output.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")))
        output.mux(stream.encode(None))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"this is a letter, not a recording\n" * 100, "is not audio"),
        (b"#EXTM3U\n#EXTINF:1,\n/etc/hostname\n", "is not audio"),
        (encoded(np.zeros(0, np.float32), RATE, "WAV"), "holds no samples"),
        (encoded(np.full(RATE, np.nan, np.float32), RATE, "WAV", "FLOAT"), "NaN"),
        (make_video_without_sound(), "no audio track"),
    ],
    ids=["zero bytes", "text", "playlist", "no samples", "nan", "video"],
)
def test_what_is_no_recording_is_refused_by_name_and_leaves_no_file(tmp_path, content, message):
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(AudioError, match=rf"a\.wav: .*{message}"):
        decode_recording(tmp_path / "a.wav", tmp_path / "b.wav")
    with pytest.raises(AudioError, match=rf"turn 3: .*{message}"):
        read_media(content, name="turn 3")
    with pytest.raises(FileNotFoundError, match=r"gone\.wav"):
        read_span(tmp_path / "gone.wav", 0, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]


# What is unusable or unusual


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
