"""Recordings of any format and length, what is none, and what is unusable."""

import io

import av
import numpy as np
import pytest
import soundfile

from sdiareward.audio_sdiareward import AudioError, read_audio
from sdiareward.dataset_builder.pipeline.inspection import SilentAudioError, measure_clipped_share, require_sound
from sdiareward.dataset_builder.pipeline.media import decode_recording, read_media, read_span


RATE = 16_000
# The sampling rate of each kind of recording that FFmpeg decodes, and its codec.
AV = {"mp4": (44_100, "aac"), "webm": (48_000, "libopus"), "adts": (44_100, "aac")}


def make_tone(seconds, rate):
    noise = 0.02 * np.random.default_rng(0).standard_normal(seconds * rate)
    return (0.3 * np.sin(2 * np.pi * 300 * np.arange(seconds * rate) / rate) + noise).astype(np.float32)


def encode(array, rate, container, subtype=None):
    buffer = io.BytesIO()
    soundfile.write(buffer, array, rate, format=container, subtype=subtype)
    return buffer.getvalue()


def encode_with_av(path, array, container):
    """Encode a mono array with PyAV."""
    rate, codec = AV[container]
    # FFmpeg writes `faststart`, the index before the sound, by reading the file again: it needs a real one.
    options = {"movflags": "faststart"} if container == "mp4" else {}
    with av.open(str(path), "w", format=container, options=options) as output:
        stream = output.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(array[None, :], format="fltp", layout="mono")
        frame.sample_rate = rate
        resampler = av.AudioResampler(format=stream.format, layout="mono", rate=rate, frame_size=stream.frame_size)
        for piece in (*resampler.resample(frame), *resampler.resample(None)):
            output.mux(stream.encode(piece))
        output.mux(stream.encode(None))
    return path.read_bytes()


@pytest.mark.parametrize(
    ("container", "subtype", "rate", "channels"), [("WAV", "PCM_24", 96_000, 6), ("MP3", None, 22_050, 1)]
)
def test_a_clip_reads_exactly_as_read_audio_does(container, subtype, rate, channels):
    array = np.stack([make_tone(3, rate) * (channel + 1) / channels for channel in range(channels)], axis=1)
    data = encode(array, rate, container, subtype)
    np.testing.assert_array_equal(read_media(data), read_audio(data))


def test_a_decoded_recording_is_the_clip_to_half_a_step_and_clipped(tmp_path):
    tone = make_tone(3, 44_100)
    data = encode(np.stack([4 * tone, -2 * tone], axis=1), 44_100, "WAV", "FLOAT")
    (tmp_path / "a.wav").write_bytes(data)
    array = read_audio(data)
    assert decode_recording(tmp_path / "a.wav", tmp_path / "b.wav") == array.size / RATE == 3.0
    expected = np.clip(array, -1, 32767 / 32768)
    assert np.abs(read_audio(tmp_path / "b.wav") - expected).max() <= 0.5 / 32768


def test_a_span_is_the_same_samples_as_the_cut_of_the_whole_and_is_inside(tmp_path):
    samples = np.random.default_rng(0).integers(-9000, 9000, 2 * RATE).astype(np.int16)
    soundfile.write(tmp_path / "a.wav", samples, RATE)
    # Of another format or rate the whole clip is decoded.
    soundfile.write(tmp_path / "b.wav", make_tone(2, 44_100), 44_100)
    for name in ("a.wav", "b.wav"):
        whole = read_audio(tmp_path / name)
        np.testing.assert_array_equal(read_span(tmp_path / name, 0.25, 1.00003), whole[4000:16_000])
        np.testing.assert_array_equal(read_span(tmp_path / name, 1.5), whole[24_000:])
        for span in ((0.5, 0.5), (-1.0, 0.5), (0.5, 2.2), (2.0, None)):
            with pytest.raises(AudioError, match=r"lasts 2\.00 s"):
                read_span(tmp_path / name, *span)


@pytest.mark.parametrize("container", ["WAV", "FLAC", "OGG", "MP3", "AIFF", *AV])
def test_a_recording_is_decoded_and_one_cut_in_the_middle_is_refused_with_what_could_be(container, tmp_path):
    if container in AV:
        data = encode_with_av(tmp_path / "whole", make_tone(6, AV[container][0]), container)
    else:
        data = encode(make_tone(6, RATE), RATE, container, "OPUS" if container == "OGG" else None)
    (tmp_path / "whole").write_bytes(data)
    assert decode_recording(tmp_path / "whole", tmp_path / "b.wav") == pytest.approx(6.0, abs=0.1)
    spectrum = np.abs(np.fft.rfft(read_audio(tmp_path / "b.wav")[RATE : 2 * RATE]))
    assert spectrum.argmax() == 300 and spectrum.max() == pytest.approx(0.15 * RATE, rel=0.1)
    if container != "adts":
        (tmp_path / "cut").write_bytes(data[: len(data) // 2])
        with pytest.raises(AudioError, match=r"cut: .* [0-3]\.\d s could be decoded"):
            decode_recording(tmp_path / "cut", tmp_path / "c.wav")
    assert not (tmp_path / "c.wav").exists()


def make_video_without_sound():
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as output:
        stream = output.add_stream("mpeg4", rate=5)
        stream.width = stream.height = 32
        output.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")))
        output.mux(stream.encode(None))
    return buffer.getvalue()


NO_RECORDINGS = {
    "is empty": b"",
    "not audio": b"#EXTM3U\n#EXTINF:1,\n/etc/hostname\n",
    "has no samples": encode(np.zeros(0, np.float32), RATE, "WAV"),
    "NaN": encode(np.full(RATE, np.nan, np.float32), RATE, "WAV", "FLOAT"),
    "no audio track": make_video_without_sound(),
}


@pytest.mark.parametrize("problem", NO_RECORDINGS)
def test_what_is_no_recording_is_refused_by_name_and_leaves_no_file(tmp_path, problem):
    (tmp_path / "a.wav").write_bytes(NO_RECORDINGS[problem])
    with pytest.raises(AudioError, match=rf"a\.wav: .*{problem}"):
        decode_recording(tmp_path / "a.wav", tmp_path / "b.wav")
    with pytest.raises(AudioError, match=rf"turn 3: .*{problem}"):
        read_media(NO_RECORDINGS[problem], name="turn 3")
    with pytest.raises(FileNotFoundError, match=r"gone\.wav"):
        read_span(tmp_path / "gone.wav", 0, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]


def test_silence_is_refused_and_only_runs_at_full_scale_count_as_clipping():
    with pytest.raises(SilentAudioError, match="turn 3"):
        require_sound(np.full(1600, 1e-5, np.float32), "turn 3")
    quiet = np.resize(np.array([1e-3, -1e-3], np.float32), 1600)
    assert require_sound(quiet, "turn 3") is quiet
    array = np.zeros(100, np.float32)
    array[10:14], array[20:25], array[[40, 50, 51, 52]] = 1.0, -1.0, 1.0
    assert measure_clipped_share(array) == pytest.approx(0.09)
