"""The thresholds by which a copy of a recording is told from another recording, measured on the bundled sample."""

import json

import numpy as np
import pytest
import soundfile
from support.paths import SAMPLE

from sdiareward.dataset_builder.recording_check import MIN_CORRELATION, compare, correlate, describe, measure_energies
from sdiareward.perturbations.channel import degrade_mp3, degrade_opus


RATE = 16_000
SHIFT = RATE // 10


@pytest.fixture(scope="module")
def spans():
    """Return recordings of the sample, and where a part of each lies that lasts 0.4 to 10 s."""
    found = []
    for line in (SAMPLE / "manifest.jsonl").read_text(encoding="utf-8").splitlines()[::12]:
        row = json.loads(line)
        array, _ = soundfile.read(SAMPLE / row["audio"], dtype="float32")
        part = row["turns"][0]["parts"][0]
        start, end = (round(part[key] * RATE) for key in ("start_s", "end_s"))
        if 0.4 * RATE < end - start < 10 * RATE:
            found.append((array, start, end))
    assert len(found) > 15
    return found


@pytest.fixture(scope="module")
def clips(spans):
    return [array[start:end] for array, start, end in spans]


def correlation(one, other):
    return correlate(measure_energies(one), measure_energies(other))


@pytest.mark.slow
def test_another_encoding_correlates_above_the_threshold_and_the_same_samples_are_the_same(clips):
    kept = describe(clips[0])
    assert kept["level_dbfs"] - describe(clips[0] / 2)["level_dbfs"] == pytest.approx(6.02, abs=0.01)
    assert compare(kept, describe(np.round(clips[0] * 32768).astype(np.float32) / 32768)) == "same"
    assert compare(kept, describe(clips[0] / 2)) == "reencoded"
    for number, clip in enumerate(clips):
        # Opus takes half a second a clip.
        changed = degrade_opus(clip, RATE, None, 8) if number % 4 == 0 else degrade_mp3(clip, RATE, None, 16)
        assert correlation(clip, changed) > MIN_CORRELATION + 0.08
        assert compare(describe(clip), describe(changed)) == "reencoded"
        assert compare(describe(clip), describe(changed[: round(0.6 * clip.size)])) == "truncated"


def test_another_recording_and_one_that_begins_later_correlate_below_it(spans, clips):
    for (array, start, end), other in zip(spans, [*clips[1:], clips[0]], strict=True):
        clip = array[start:end]
        assert correlation(clip, other) < MIN_CORRELATION - 0.15
        for shift in (SHIFT, 2 * SHIFT, 5 * SHIFT):
            assert correlation(clip, array[start + shift : end + shift]) < MIN_CORRELATION - 0.04
        for wrong in (clip[SHIFT:], np.resize(other, clip.size), np.concatenate([clip, other])):
            assert compare(describe(clip), describe(wrong)) == "wrong"
