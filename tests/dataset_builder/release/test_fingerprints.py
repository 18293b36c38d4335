import io
import json

import numpy as np
import pytest
import soundfile
import soxr
from support.paths import SAMPLE

from sdiareward.dataset_builder.release.fingerprints import compare, fingerprint
from sdiareward.perturbations.channel import CODINGS, encode


@pytest.fixture(scope="module")
def clips():
    """Return the parts of two recorded episodes, between 1 and 6 seconds long."""
    rows = [json.loads(line) for line in (SAMPLE / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    parts = []
    for row in (rows[3], rows[150]):
        array, rate = soundfile.read(SAMPLE / row["audio"], dtype="float32")
        assert rate == 16_000
        spans = [(part["start_s"], part["end_s"]) for turn in row["turns"] for part in turn["parts"]]
        parts += [array[round(start * rate) : round(end * rate)] for start, end in spans]
    return [part for part in parts if 1.0 <= part.size / 16_000 <= 6.0][:8]


def through_mp3(array, compression_level):
    data = encode(array, 16_000, "MP3", "MPEG_LAYER_III", compression_level)
    return soundfile.read(io.BytesIO(data), dtype="float32")[0]


def test_a_recording_is_the_same_whole_in_sixteen_bits_and_through_another_resampler(clips):
    for clip in clips:
        expected = fingerprint(clip)
        assert compare(expected, clip).kind == "same"
        assert compare(expected, np.round(clip * 32768).astype(np.float32) / 32768).kind == "same"
        there = soxr.resample(clip, 16_000, 44_100, quality="VHQ")
        assert compare(expected, soxr.resample(there, 44_100, 16_000, quality="VHQ")).kind == "same"


def test_the_decoders_of_libsndfile_and_ffmpeg_give_the_same_recording_from_an_mp3(clips):
    av = pytest.importorskip("av")
    for clip in clips:
        data = encode(clip, 16_000, "MP3", "MPEG_LAYER_III", 0.5)
        with av.open(io.BytesIO(data)) as container:
            frames = [frame.to_ndarray().mean(axis=0) for frame in container.decode(audio=0)]
        verdict = compare(fingerprint(soundfile.read(io.BytesIO(data), dtype="float32")[0]), np.concatenate(frames))
        assert verdict.kind == "same"


@pytest.mark.slow
def test_a_codec_or_another_level_makes_a_recording_reencoded(clips):
    for clip in clips:
        expected = fingerprint(clip)
        for changed in (through_mp3(clip, 0.0), through_mp3(clip, 0.95), CODINGS["opus"](clip, 16_000), 0.9 * clip):
            verdict = compare(expected, changed)
            assert verdict.kind == "reencoded"
            assert verdict.bit_errors < 0.24
        assert compare(expected, 0.5 * clip).gain_db == pytest.approx(-6.02, abs=0.01)


def test_a_recording_that_misses_its_end_or_its_beginning_is_truncated(clips):
    for clip in clips:
        expected = fingerprint(clip)
        cut = round(0.4 * clip.size)
        assert compare(expected, clip[:-cut]).kind == "truncated"
        late = compare(expected, clip[cut:])
        assert late.kind == "truncated"
        assert late.offset_samples == cut
        assert compare(expected, through_mp3(clip[:-cut], 0.5)).kind == "truncated"


def test_another_recording_is_wrong_whatever_its_length(clips):
    for clip, other in zip(clips, clips[1:], strict=False):
        expected = fingerprint(clip)
        assert compare(expected, other).kind == "wrong"
        assert compare(expected, np.resize(other, clip.size)).kind == "wrong"
        assert compare(expected, np.resize(other, clip.size // 5)).kind == "wrong"
        assert compare(expected, np.concatenate([clip, other])).kind == "wrong"


def test_a_clip_of_three_tenths_of_a_second_is_told_apart_from_others(clips):
    short = [clip[8000 : 8000 + 4800] for clip in clips if np.abs(clip[8000:12_800]).max() > 0.05]
    assert len(short) >= 4
    for clip, other in zip(short, short[1:], strict=False):
        expected = fingerprint(clip)
        assert compare(expected, clip).kind == "same"
        assert compare(expected, through_mp3(clip, 0.2)).kind == "reencoded"
        assert compare(expected, other).kind == "wrong"


def test_silence_is_the_same_as_silence_and_wrong_as_speech(clips):
    silence = np.zeros(16_000, np.float32)
    assert compare(fingerprint(silence), silence).kind == "same"
    assert compare(fingerprint(clips[0][:16_000]), silence).kind == "wrong"


def test_a_fingerprint_of_ten_seconds_has_under_two_hundred_characters(clips):
    ten_s = np.resize(np.concatenate(clips), 160_000)
    assert len(fingerprint(ten_s)) < 200
    assert fingerprint(ten_s) == fingerprint(ten_s.copy())


@pytest.mark.parametrize("damaged", ["", "AAAA", "not base64!", None])
def test_what_is_no_fingerprint_is_refused(clips, damaged):
    with pytest.raises(ValueError, match="no fingerprint"):
        compare(damaged, clips[0])
    with pytest.raises(ValueError, match="no fingerprint"):
        compare(fingerprint(clips[0])[:-8], clips[0])


def test_an_empty_recording_has_no_fingerprint():
    with pytest.raises(ValueError, match="not empty"):
        fingerprint(np.zeros(0, np.float32))
