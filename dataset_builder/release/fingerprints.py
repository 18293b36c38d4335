"""Fingerprints of recordings: tell the same recording from a re-encoded, a truncated and a wrong one.

A fingerprint does not reveal the words and cannot be played. It has four parts, together 140 bytes for 10 s:

- the number of samples at 16 kHz;
- the level of what lies below 4 kHz, in hundredths of a decibel;
- coarse bits, which survive a codec, in the manner of audio identification: for each pair of neighbouring frequency
  bands between 200 and 3,200 Hz, whether the difference of their energies grows from one frame to the next;
- fine values, which a codec changes: the signal is cut into stretches, each multiplied by a fixed sequence of signs
  and summed up. Their relative error estimates the signal-to-noise ratio between two recordings.

Two decoders of the same MP3, or two resamplers, differ by far less than a lossy codec adds: that is `"same"`. Two
decoders of Opus at low bit rates differ as much as a codec does and may count as `"reencoded"`.
`benchmarks/fingerprints.py` measures all this on real recordings; the thresholds lie in the gaps that it finds. A clip
below 0.2 s has too few coarse bits: it is `"same"` or `"wrong"`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import itertools
import math
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE


Kind = Literal["same", "reencoded", "truncated", "wrong"]

# Frames of the coarse bits: clips below 2.3 s get denser ones, so that they too have bits to compare.
_HOP_SAMPLES = 1536
_MIN_HOP_SAMPLES = 256
_FRAMES_OF_SHORT_CLIPS = 24
_MIN_WINDOW_SAMPLES = 1024
_STEPS_PER_HOP = 8
_NUM_BANDS = 9
_BAND_EDGES_HZ = np.geomspace(200.0, 3200.0, _NUM_BANDS + 1)
# The fine values see the mean of every 2 samples: what lies below 4 kHz, which every resampler keeps.
_BLOCK_SAMPLES = 2
_FINE_PER_S = 1.6
_MIN_FINE = 8
_QUIET_LEVEL = 1e-5
# Half precision: an error of -70 dB in each value, however loud its stretch is.
_FINE_TYPE = np.dtype(">f2")
_HEADER = struct.Struct(">BIh")
_VERSION = 1
# Ten minutes; a turn lasts one at most.
_MAX_SAMPLES = 600 * SAMPLING_RATE

# Thresholds: the gaps that benchmarks/results/fingerprints.json shows.
MAX_BIT_ERRORS = 0.24
MIN_SAME_SNR_DB = 58.0
MAX_SAME_GAIN_DB = 0.05
# Encoders add silence at both ends; cut files miss more.
TOLERANCE_SAMPLES = round(0.15 * SAMPLING_RATE)


@dataclass(frozen=True)
class Verdict:
    """The result of comparing a recording with a fingerprint.

    Args:
        kind (`str`): `"same"` (decoders and resamplers may differ), `"reencoded"` (the same recording through a lossy
            codec, or at another level), `"truncated"` (the same recording, not all of it) or `"wrong"`.
        bit_errors (`float`): Share of the coarse bits that differ, at the best alignment; near 0.5 if it is another.
        snr_db (`float`): Level of the expected recording above the difference, below 4 kHz, in dB.
        gain_db (`float`): Level of the recording relative to the expected one, in dB.
        offset_samples (`int`): Where in the expected recording this one begins, at 16 kHz.
        expected_s, found_s (`float`): The two durations in seconds.
    """

    kind: Kind
    bit_errors: float
    snr_db: float
    gain_db: float
    offset_samples: int
    expected_s: float
    found_s: float

    def __str__(self) -> str:
        return (
            f"{self.kind}: lasts {self.found_s:.2f} s of {self.expected_s:.2f} s, {self.bit_errors:.0%} of the coarse "
            f"bits differ, {self.snr_db:.0f} dB signal to difference, level {self.gain_db:+.1f} dB"
        )


@dataclass(frozen=True)
class _Fingerprint:
    num_samples: int
    level_db: float
    bits: np.ndarray
    fine: np.ndarray


def fingerprint(array: np.ndarray) -> str:
    """Take the fingerprint of a recording.

    Args:
        array (`np.ndarray` of shape `(num_samples,)`): 16 kHz mono, as it was cut from its source and before channel
            matching.

    Returns:
        `str`: Base64, some 200 characters for 10 s.

    Raises:
        ValueError: The array is empty or not one-dimensional.
    """
    if array.ndim != 1 or not array.size:
        raise ValueError(f"a recording of shape {array.shape} has no fingerprint; it must be mono and not empty.")
    bits = _grow(_compute_band_differences(array, _choose_hop(array.size), _num_frames(array.size)), 1)
    level, fine = _compute_fine_values(array, array.size)
    header = _HEADER.pack(_VERSION, array.size, round(100 * _convert_to_decibels(level)))
    return base64.b64encode(header + np.packbits(bits).tobytes() + fine.astype(_FINE_TYPE).tobytes()).decode()


def compare(expected: str, array: np.ndarray) -> Verdict:
    """Compare a recording with the fingerprint of the expected one.

    Raises:
        ValueError: `expected` is not a fingerprint of this version.
    """
    known = _unpack(expected)
    level, fine = _compute_fine_values(array, known.num_samples)
    snr_db = _compute_snr_db(known.fine, fine)
    tolerance = min(TOLERANCE_SAMPLES, known.num_samples // 8)
    offset, bit_errors, is_other = 0, 0.0, False
    if snr_db < MIN_SAME_SNR_DB or abs(array.size - known.num_samples) > tolerance:
        offset, bit_errors, is_other = _align(known, array)
        if not is_other:
            offset = _refine(known, array, offset)
            level, fine = _compute_fine_values(array, known.num_samples, offset)
            snr_db = _compute_snr_db(known.fine, fine)
    gain_db = _convert_to_decibels(level) - known.level_db
    missing = max(offset, known.num_samples - offset - array.size)
    if is_other or array.size > known.num_samples + TOLERANCE_SAMPLES:
        kind: Kind = "wrong"
    elif missing > tolerance:
        kind = "truncated"
    else:
        is_same = snr_db >= MIN_SAME_SNR_DB and abs(gain_db) <= MAX_SAME_GAIN_DB
        kind = "same" if is_same else "reencoded"
    durations = (known.num_samples / SAMPLING_RATE, array.size / SAMPLING_RATE)
    return Verdict(kind, bit_errors, snr_db, gain_db, offset, *durations)


def _unpack(text: str) -> _Fingerprint:
    try:
        data = base64.b64decode(text, validate=True)
        version, num_samples, level = _HEADER.unpack_from(data)
        num_bits = (_num_frames(num_samples) - 1) * (_NUM_BANDS - 1)
        fine_start = _HEADER.size + math.ceil(num_bits / 8)
        if version != _VERSION or not num_samples or len(data) != fine_start + 2 * _num_fine(num_samples):
            raise ValueError(f"{len(data)} bytes of version {version} for {num_samples} samples")
        # Comparing takes a hundred bytes a sample, and the fingerprint of an hour has 50 kilobytes.
        if num_samples > _MAX_SAMPLES or not np.isfinite(np.frombuffer(data, _FINE_TYPE, offset=fine_start)).all():
            raise ValueError(f"{num_samples} samples, at most {_MAX_SAMPLES}, or values that are not finite")
    except (TypeError, ValueError, struct.error, binascii.Error) as error:
        raise ValueError(
            f"{text!r:.60} is no fingerprint of version {_VERSION} ({error}); release it again."
        ) from error
    packed = np.frombuffer(data, np.uint8, fine_start - _HEADER.size, _HEADER.size)
    bits = np.unpackbits(packed, count=num_bits).reshape(-1, _NUM_BANDS - 1).astype(bool)
    fine = np.frombuffer(data, _FINE_TYPE, offset=fine_start).astype(float)
    return _Fingerprint(num_samples, level / 100, bits, fine)


def _choose_hop(num_samples: int) -> int:
    """Return the distance of the frames, a multiple of 8 samples."""
    hop = min(max(num_samples // _FRAMES_OF_SHORT_CLIPS, _MIN_HOP_SAMPLES), _HOP_SAMPLES)
    return hop // _STEPS_PER_HOP * _STEPS_PER_HOP


def _num_frames(num_samples: int) -> int:
    hop = _choose_hop(num_samples)
    return max(2, 1 + (num_samples - _choose_window(hop)) // hop)


def _choose_window(hop: int) -> int:
    return max(_MIN_WINDOW_SAMPLES, 2 * hop)


def _num_fine(num_samples: int) -> int:
    return max(_MIN_FINE, round(num_samples / SAMPLING_RATE * _FINE_PER_S))


def _compute_band_differences(array: np.ndarray, hop: int, num_frames: int, step: int | None = None) -> np.ndarray:
    """Return the difference of the energies of neighbouring bands, `(num_frames, _NUM_BANDS - 1)`."""
    window, step = _choose_window(hop), step or hop
    padded = np.zeros(max(array.size, (num_frames - 1) * step + window), np.float32)
    padded[: array.size] = array
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::step][:num_frames]
    edges = np.round(_BAND_EDGES_HZ * window / SAMPLING_RATE).astype(int)
    energies = np.empty((num_frames, _NUM_BANDS))
    # A stretch at a time: the windows of a long turn overlap many times.
    for start in range(0, num_frames, 256):
        spectrum = np.abs(np.fft.rfft(frames[start : start + 256] * np.hanning(window), axis=1)) ** 2
        energies[start : start + 256] = np.add.reduceat(spectrum[:, : edges[-1]], edges[:-1], axis=1)
    levels = np.log(energies + 1e-6)
    return levels[:, :-1] - levels[:, 1:]


def _grow(differences: np.ndarray, distance: int) -> np.ndarray:
    """Tell where a difference is larger `distance` frames later."""
    return differences[distance:] > differences[:-distance]


def _compute_fine_values(array: np.ndarray, num_samples: int, offset: int = 0) -> tuple[float, np.ndarray]:
    """Return the level of the blocks and the fine values of an array that begins at `offset` of the expected one."""
    num_blocks, starts = _plan_stretches(num_samples)
    aligned = np.zeros(num_blocks * _BLOCK_SAMPLES)
    begin, end = max(offset, 0), min(offset + array.size, aligned.size)
    if end > begin:
        aligned[begin:end] = array[begin - offset : end - offset]
    blocks = aligned.reshape(num_blocks, _BLOCK_SAMPLES).mean(axis=1)
    level = max(float(np.sqrt(np.square(blocks).mean())), _QUIET_LEVEL)
    lengths = np.diff(starts, append=num_blocks)
    return level, np.add.reduceat(blocks * _draw_signs(num_blocks), starts) / (level * np.sqrt(lengths))


def _plan_stretches(num_samples: int) -> tuple[int, np.ndarray]:
    """Return the number of blocks, and the blocks at which the stretches of the fine values begin."""
    num_blocks = max(num_samples // _BLOCK_SAMPLES, _MIN_FINE)
    return num_blocks, np.linspace(0, num_blocks, _num_fine(num_samples), endpoint=False).astype(int)


@lru_cache(maxsize=8)
def _draw_signs(count: int) -> np.ndarray:
    """Return 1 and -1 as a hash function gives them: the same with every version of NumPy."""
    digest = hashlib.shake_256(b"sdiareward fingerprint").digest(math.ceil(count / 8))
    return np.unpackbits(np.frombuffer(digest, np.uint8), count=count) * 2.0 - 1.0


def _compute_snr_db(expected: np.ndarray, found: np.ndarray) -> float:
    error = np.square(expected - found).mean()
    return _convert_to_decibels(math.sqrt((np.square(expected).mean() + 1e-12) / max(error, 1e-20)))


def _convert_to_decibels(amplitude: float) -> float:
    return 20 * math.log10(amplitude)


def _align(known: _Fingerprint, array: np.ndarray) -> tuple[int, float, bool]:
    """Return where in the expected recording the array begins, the coarse bits' errors there, and if they are many."""
    hop = _choose_hop(known.num_samples)
    step = hop // _STEPS_PER_HOP
    margin = TOLERANCE_SAMPLES // step * step
    num_frames = max(_STEPS_PER_HOP + 1, 1 + (array.size - _choose_window(hop)) // step)
    bits = _grow(_compute_band_differences(array, hop, num_frames, step), _STEPS_PER_HOP)
    best = (0, 1.0, True)
    for offset in range(-margin, max(margin, known.num_samples - array.size + margin) + 1, step):
        # Frame k of the expected recording begins at k * hop - offset of this one.
        first = max(0, math.ceil(offset / hop))
        found = bits[(first * hop - offset) // step :: _STEPS_PER_HOP]
        expected = known.bits[first : first + len(found)]
        if not expected.size:
            continue
        errors = float((expected != found[: len(expected)]).mean())
        # With few bits, some alignment of another recording matches many by chance.
        limit = min(MAX_BIT_ERRORS, 0.5 - 2.5 / math.sqrt(expected.size))
        best = min(best, (offset, errors, errors > limit), key=lambda result: (result[2], result[1]))
    return best


def _refine(known: _Fingerprint, array: np.ndarray, offset: int) -> int:
    """Return the offset near `offset` at which the fine values agree best."""
    reach = _choose_hop(known.num_samples) // _STEPS_PER_HOP
    num_blocks, starts = _plan_stretches(known.num_samples)
    edges = np.append(starts, num_blocks) * _BLOCK_SAMPLES
    # Sample i of the expected recording is sample i - offset of this one; zeros stand before and after it.
    padded = np.zeros(edges[-1] + 2 * reach, np.float32)
    first = offset + reach
    kept = array[max(-first, 0) : max(padded.size - first, 0)]
    padded[max(first, 0) : max(first, 0) + kept.size] = kept
    signs = np.repeat(_draw_signs(num_blocks), _BLOCK_SAMPLES).astype(np.float32)
    values = np.stack(
        [
            np.correlate(padded[start : end + 2 * reach], signs[start:end], "valid") / math.sqrt(end - start)
            for start, end in itertools.pairwise(edges)
        ],
        axis=1,
    )
    # Stretches that the array covers only in part do not tell its position.
    covered = (edges[:-1] >= offset - reach) & (edges[1:] <= offset + reach + array.size)
    values *= covered if covered.any() else 1.0
    likeness = values @ known.fine / np.maximum(np.linalg.norm(values, axis=1), _QUIET_LEVEL)
    return offset + reach - int(likeness.argmax())
