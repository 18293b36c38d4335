import io

import numpy as np
import pytest
import soundfile

from sdiareward.audio_sdiareward import MAX_AMPLITUDE, MIN_SAMPLES, AudioError, audio_duration_s, read_audio, resample
from sdiareward.dataset_builder.pipeline.media import TruncatedAudioError, decode_recording, read_media, read_span
from sdiareward.pairs.messages import check_recording


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


def test_a_source_of_another_type_is_refused():
    for source in (3, {"array": np.zeros(4)}, np.zeros((2, 400)), {"bytes": None, "path": None}, io.BytesIO()):
        with pytest.raises(TypeError):
            read_audio(source)


@pytest.mark.parametrize(
    ("dtype", "full_scale", "middle"),
    [("int8", 128, 0), ("uint8", 128, 128), ("int16", 2**15, 0), ("int32", 2**31, 0)],
)
def test_integer_samples_are_scaled_by_their_range(dtype, full_scale, middle, make_tone):
    tone = make_tone(0.1)
    samples = np.round(tone.astype(np.float64) * full_scale + middle).astype(dtype)
    for source in (
        samples,
        {"array": samples, "sampling_rate": 16_000},
        {"array": samples[None], "sampling_rate": 16_000},
    ):
        np.testing.assert_allclose(read_audio(source), tone, atol=1 / full_scale + 1e-7)


@pytest.mark.parametrize(
    ("samples", "problem"),
    [
        (np.ma.array(np.zeros(800), mask=[True] + [False] * 799), "masked array"),
        (np.zeros(800, dtype=complex), "complex128"),
        (np.zeros(800, dtype=bool), "bool"),
        (np.zeros(800, dtype="m8[s]"), "timedelta64"),
        (np.zeros(800, dtype=np.int64), "int64"),
        (np.zeros(800, dtype=np.uint16), "uint16"),
        ([2**15] * 800, "int64"),
        (np.zeros((800, 2), np.float32), r"channels first; got shape \(800, 2\): transpose it"),
        (["0.1"] * 800, "<U3"),
        ([None] * 800, "object"),
    ],
)
def test_what_is_no_sound_is_refused(samples, problem):
    with pytest.raises(TypeError, match=problem):
        read_audio({"array": samples, "sampling_rate": 16_000})


@pytest.mark.parametrize("scale", [1e30, 1e10, 32_768, MAX_AMPLITUDE * 1.01])
def test_samples_far_beyond_full_scale_are_refused(scale, tmp_path, make_tone):
    tone = make_tone(0.2) / np.abs(make_tone(0.2)).max() * np.float32(scale)
    soundfile.write(tmp_path / "loud.wav", tone, 16_000, subtype="FLOAT")
    for source in (tone, tmp_path / "loud.wav", (tmp_path / "loud.wav").read_bytes()):
        with pytest.raises(AudioError, match=r"its samples reach .*; full scale is 1"):
            read_audio(source)
    assert read_audio(tone / np.float32(scale) * np.float32(MAX_AMPLITUDE * 0.99)).size == tone.size


def encode(samples, audio_format, subtype=None):
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, 16_000, format=audio_format, subtype=subtype)
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["x.vox", "x.gsm", "x.raw", "X.RAW", "x.al", "x.sds", "x.wav"])
def test_a_text_is_no_recording_whatever_its_name(name, tmp_path):
    (tmp_path / name).write_text("Dear all,\n" * 9999)
    for read in (read_audio, audio_duration_s):
        with pytest.raises(AudioError, match="cannot be decoded as audio"):
            read(tmp_path / name)


@pytest.mark.parametrize("name", ["x.raw", "x.vox", "x.txt", "x"])
def test_a_recording_is_one_whatever_its_name(name, tmp_path, make_tone):
    (tmp_path / name).write_bytes(encode(make_tone(0.2), "FLAC"))
    assert read_audio(tmp_path / name).size == 3200


@pytest.mark.parametrize("kept", [-1.0, -0.9, -0.7])
@pytest.mark.parametrize("kind", ["file", "bytes", "array"])
def test_channels_that_cancel_are_refused(tmp_path, make_tone, kept, kind):
    tone = make_tone(0.5)
    stereo = np.stack([tone, kept * tone])
    soundfile.write(tmp_path / "a.wav", stereo.T, 16_000, subtype="FLOAT")
    sources = {
        "file": tmp_path / "a.wav",
        "bytes": (tmp_path / "a.wav").read_bytes(),
        "array": {"array": stereo, "sampling_rate": 16_000},
    }
    with pytest.raises(AudioError, match="a.wav.*channels cancel" if kind == "file" else "channels cancel"):
        read_audio(sources[kind])
    with pytest.raises(AudioError, match="channels cancel"):
        read_media(tmp_path / "a.wav")


@pytest.mark.parametrize("channels", [[1, 0], [1, 0.2], [1, 1], [1, -0.3], [1, 0, 0, 0, 0, 0, 0, 0], [0, 0]])
def test_channels_of_other_levels_are_averaged(make_tone, channels):
    tone = make_tone(0.5)
    mixed = read_audio({"array": np.outer(channels, tone), "sampling_rate": 16_000})
    np.testing.assert_allclose(mixed, np.mean(channels) * tone, atol=1e-6)


@pytest.mark.parametrize("kind", ["WAV", "WAVEX"])
@pytest.mark.parametrize("subtype", ["PCM_16", "FLOAT", "ULAW"])
@pytest.mark.parametrize("before", [b"", b"LIST\x03\0\0\0abc\0"])
def test_a_wav_file_whose_header_gives_no_bytes_is_read_to_its_end(tmp_path, make_tone, kind, subtype, before):
    path = tmp_path / "a.wav"
    soundfile.write(path, make_tone(0.5), 16_000, format=kind, subtype=subtype)
    whole, data = read_audio(path), path.read_bytes()
    place = data.index(b"data")
    path.write_bytes(data[:4] + bytes(4) + data[8:place] + before + b"data" + bytes(4) + data[place + 8 :])
    assert audio_duration_s(path) == 0.5
    for read in (read_audio, read_media):
        np.testing.assert_array_equal(read(path), whole)
        np.testing.assert_array_equal(read(path.read_bytes()), whole)
    with pytest.raises(AudioError, match="no samples"):
        read_audio(path.read_bytes()[: place + len(before) + 8])
    # An empty recording whose header is right, and a chunk that is no sound.
    empty = data[8:place] + b"data" + bytes(4) + b"iXML" + (4000).to_bytes(4, "little") + b"<a>" * 1333 + b" "
    with pytest.raises(AudioError, match="no samples"):
        read_audio(data[:4] + len(empty).to_bytes(4, "little") + empty)


def test_lists_of_integers_have_16_bits(make_tone):
    samples = (make_tone(0.1) * 32_767).astype(np.int16)
    expected = read_audio({"array": samples, "sampling_rate": 16_000})
    np.testing.assert_array_equal(read_audio({"array": samples.tolist(), "sampling_rate": 16_000}), expected)
    stereo = [samples.tolist(), samples.tolist()]
    np.testing.assert_array_equal(read_audio({"array": stereo, "sampling_rate": 16_000}), expected)


def set_flac_length(data, num_samples):
    """Set the 36 bits of STREAMINFO; 0 is what a pipe leaves."""
    fields = int.from_bytes(data[18:26], "big") >> 36 << 36
    return data[:18] + (fields | num_samples).to_bytes(8, "big") + data[26:]


def set_frame_count(data, count):
    place = data.index(b"Xing") + 8
    return data[:place] + count.to_bytes(4, "big") + data[place + 4 :]


def drop_frame_count(data):
    return data[data.index(data[:2], 4) :]


def set_last_granule(data, samples):
    place = data.rindex(b"OggS")
    page = data[place : place + 6] + samples.to_bytes(8, "little") + data[place + 14 : place + 22]
    page += bytes(4) + data[place + 26 :]
    checksum = 0
    for byte in page:
        checksum ^= byte << 24
        for _ in range(8):
            checksum = (checksum << 1 ^ (0x04C11DB7 if checksum & 1 << 31 else 0)) & 0xFFFFFFFF
    return data[:place] + page[:22] + checksum.to_bytes(4, "little") + page[26:]


def set_wav_sizes(data, riff, samples):
    place = data.index(b"data") + 4
    sizes = riff.to_bytes(4, "little"), samples.to_bytes(4, "little")
    return data[:4] + sizes[0] + data[8:place] + sizes[1] + data[place + 4 :]


WRONG_HEADERS = {
    "FLAC without a length": ("FLAC", lambda data: set_flac_length(data, 0), True),
    "FLAC of 49 days": ("FLAC", lambda data: set_flac_length(data, 2**36 - 1), True),
    "FLAC of ten times its samples": ("FLAC", lambda data: set_flac_length(data, 320_000), False),
    "MP3 of ten hours": ("MP3", lambda data: set_frame_count(data, 10**6), True),
    "MP3 without a count": ("MP3", drop_frame_count, True),
    "MP3 without a count behind a tag": (
        "MP3",
        lambda data: b"ID3\4\0\0\0\0\1\0" + bytes(128) + drop_frame_count(data),
        True,
    ),
    "OGG of an age": ("OGG", lambda data: set_last_granule(data, 2**62), True),
    "WAV from SoX": ("WAV", lambda data: set_wav_sizes(data, 0x7FFFF024, 0x7FFFF000), True),
    "WAV from FFmpeg": ("WAV", lambda data: set_wav_sizes(data, 2**32 - 1, 2**32 - 1), True),
}


@pytest.mark.parametrize("case", WRONG_HEADERS)
def test_a_header_without_a_true_length_is_read_to_its_end(tmp_path, case):
    kind, change, is_read_by_build = WRONG_HEADERS[case]
    # A swept tone: of a steady one an MP3 keeps almost nothing.
    sweep = np.sin(np.arange(32_000) ** 2 / 2e5).astype(np.float32) / 3
    data = encode(sweep, kind)
    path = tmp_path / "a.bin"
    path.write_bytes(change(data))
    found = read_audio(path)
    # The end of the last MP3 or OGG frame is known from the count alone.
    assert 0 <= found.size - sweep.size < 2_400
    if kind in ("FLAC", "WAV"):
        np.testing.assert_array_equal(found, read_audio(data))
    assert audio_duration_s(path) == audio_duration_s(change(data)) == found.size / 16_000
    assert check_recording(path) == found.size / 16_000
    np.testing.assert_array_equal(read_audio(path, max_duration_s=1.0), found[:16_000])
    if is_read_by_build:
        np.testing.assert_array_equal(read_media(path), found)
        assert decode_recording(path, tmp_path / "b.wav") == found.size / 16_000
    else:
        with pytest.raises(TruncatedAudioError, match=r"a\.bin: its header promises 20\.0 s; 2\.0 s"):
            read_media(path)
    np.testing.assert_array_equal(read_span(path, 0.5, 1.5), found[8_000:24_000])


def test_a_recording_cut_in_the_middle_of_a_block_is_refused_by_name(tmp_path, make_tone):
    data = encode(make_tone(2.0), "FLAC")
    (tmp_path / "a.flac").write_bytes(set_flac_length(data, 0)[: len(data) // 2])
    for read in (read_audio, audio_duration_s, read_media):
        with pytest.raises(AudioError, match=r"a\.flac: .*(cut off after \d\.\d s|could be decoded)"):
            read(tmp_path / "a.flac")


@pytest.mark.parametrize("kind", ["MP3", "OGG"])
def test_a_recording_that_goes_on_after_its_promised_end_is_refused_by_name(tmp_path, kind):
    noise = encode(np.random.default_rng(0).uniform(-0.3, 0.3, 5 * 16_000).astype(np.float32), kind)
    (tmp_path / "a.bin").write_bytes(
        noise + (bytes(5_000) + b"APETAGEX" + bytes(24) + b"TAG" + bytes(125) if kind == "MP3" else b"")
    )
    assert read_audio(tmp_path / "a.bin").size == read_media(tmp_path / "a.bin").size
    (tmp_path / "a.bin").write_bytes(noise + noise)
    for read in (read_audio, audio_duration_s, read_media):
        with pytest.raises(AudioError, match=r"a\.bin: .*(continues|follow)"):
            read(tmp_path / "a.bin")
