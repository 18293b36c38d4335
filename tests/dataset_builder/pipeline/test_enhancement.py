"""Enhancement around a stand-in for audio-separator that has the behaviours of the real class."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import soundfile
from support.paths import ROOT

from sdiareward.audio_sdiareward import read_audio
from sdiareward.dataset_builder.builder import BuildConfig, SourceConfig, build
from sdiareward.dataset_builder.pairing.pairing import SynthesizerSpec
from sdiareward.dataset_builder.pipeline import ComponentError
from sdiareward.dataset_builder.pipeline.enhancement import AudioSeparatorEnhancer, cut_windows
from sdiareward.dataset_builder.pipeline.settings import AudioSeparatorSettings
from sdiareward.dataset_builder.release import release
from sdiareward.dataset_builder.release.release import AudioRoots, find_part, read_recording
from sdiareward.dataset_builder.shards import read_rows


RATE, MODEL_RATE = 16_000, 44_100


@pytest.fixture
def inputs(monkeypatch):
    """Put the stand-in on the path; return what the separator is given."""
    monkeypatch.syspath_prepend(ROOT / "tests" / "support" / "packages")
    for name in [name for name in sys.modules if name.partition(".")[0] == "audio_separator"]:
        monkeypatch.delitem(sys.modules, name)
    from audio_separator.separator import Separator

    Separator.inputs = []
    yield Separator.inputs
    for name in [name for name in sys.modules if name.partition(".")[0] == "audio_separator"]:
        del sys.modules[name]


@pytest.fixture
def enhance(inputs, tmp_path):
    """Return a function that enhances samples, with one enhancer for each set of options."""
    enhancers = {}

    def run(array, rate=RATE, **options):
        soundfile.write(tmp_path / "in.wav", array, rate, subtype="FLOAT")
        key = json.dumps(options)
        if key not in enhancers:
            enhancers[key] = AudioSeparatorEnhancer(AudioSeparatorSettings(**options))
        num_samples = round(len(array) * RATE / rate)
        enhancers[key].enhance(tmp_path / "in.wav", tmp_path / "out.wav", num_samples)
        found = read_audio(tmp_path / "out.wav")
        assert found.size == num_samples
        return found

    return run


def test_a_stream_is_cut_into_chunks_with_context_on_both_sides():
    blocks = np.split(np.arange(20)[:, None], [7, 7, 9, 18])
    windows = list(cut_windows(blocks, chunk=8, margin=3))
    assert [(w[:, 0].tolist(), start, end) for w, start, end in windows] == [
        (list(range(11)), 0, 8),
        (list(range(5, 19)), 3, 11),
        (list(range(13, 20)), 3, 7),
    ]
    assert [w.size for w, _, _ in cut_windows([np.zeros((8, 1))], chunk=8, margin=0)] == [8]
    assert list(cut_windows([], chunk=8, margin=3)) == []


def test_enhanced_chunks_join_without_a_seam(enhance, inputs, make_tone):
    tone = make_tone(35.0)
    after = enhance(tone, chunk_s=11.0, margin_s=0.5)
    assert [round(len(array) / MODEL_RATE, 2) for array, _ in inputs] == [11.5, 12.0, 12.0, 2.5]
    # The last chunk is short, and has the gain of short inputs.
    np.testing.assert_allclose(after[: 32 * RATE], tone[: 32 * RATE] / 2, atol=0.02)
    np.testing.assert_allclose(after[34 * RATE :], tone[34 * RATE :] / 4, atol=0.02)


def test_a_chunk_without_voices_is_silent_and_not_the_chunk_before(enhance, inputs, make_tone):
    quiet, silence = np.full(12 * RATE, 0.001, np.float32), np.zeros(12 * RATE, np.float32)
    after = enhance(np.concatenate([make_tone(12.0), quiet, make_tone(12.0), silence]), chunk_s=12.0, margin_s=0.0)
    peaks = [np.abs(after[start : start + 11 * RATE]).max() for start in (RATE // 2 + 12 * RATE * n for n in range(4))]
    assert [peak > 0.1 for peak in peaks] == [True, False, True, False]
    assert max(peaks[1::2]) == 0.0
    inputs.clear()
    # Digital silence does not reach the package, which refuses it.
    assert not enhance(np.zeros(RATE)).any() and inputs == []


def test_a_short_recording_does_not_change_how_later_ones_are_separated(enhance, make_tone):
    tone, short = make_tone(12.0), make_tone(2.0)
    before = enhance(tone)
    first_short = enhance(short)
    np.testing.assert_array_equal(enhance(tone), before)
    np.testing.assert_array_equal(enhance(short), first_short)


def test_the_model_hears_the_original_at_its_own_rate_and_in_stereo(enhance, inputs):
    time_s = np.arange(11 * 48_000) / 48_000
    left, right = (0.25 * np.sin(2 * np.pi * hz * time_s) for hz in (12_000, 1_000))
    after = enhance(np.stack([left, right], axis=1), rate=48_000)
    mixture, rate = inputs[0]
    assert (rate, mixture.shape) == (MODEL_RATE, (11 * MODEL_RATE, 2))
    spectra = np.abs(np.fft.rfft(mixture[:MODEL_RATE] * np.hanning(MODEL_RATE)[:, None], axis=0))
    assert spectra.argmax(axis=0).tolist() == [12_000, 1_000]
    # At 16 kHz, mono: half of half of the right side; the left lies above 8 kHz.
    expected = right[::3] / 4
    np.testing.assert_allclose(after[200:-200], expected[200 : after.size - 200], atol=1e-3)


# Dialogues with their own metadata


@pytest.fixture
def dailytalk(tmp_path, make_tone):
    """Two dialogues of two utterances in DailyTalk's layout, at 44.1 kHz; the second has a damaged clip."""
    root = tmp_path / "dailytalk"
    metadata = {}
    for dialogue in ("0", "1"):
        (root / "data" / dialogue).mkdir(parents=True)
        metadata[dialogue] = {}
        for index in (0, 1):
            labels = {"emotion": "no emotion", "act": "question", "topic": "work"}
            numbers = {"utterance_idx": index, "dialog_idx": int(dialogue), "speaker": index}
            metadata[dialogue][str(index)] = {"text": f"Line {index}.", **labels, **numbers}
            path = root / "data" / dialogue / f"{index}_{index}_d{dialogue}.wav"
            soundfile.write(path, make_tone(12.0, 200.0 + 50 * index, seed=int(dialogue)), MODEL_RATE)
    (root / "metadata.json").write_text(json.dumps(metadata))
    (root / "data/1/1_1_d1.wav").write_bytes(b"not audio")
    return root


@pytest.fixture
def config(tmp_path, dailytalk):
    def make(**source):
        return BuildConfig(
            output_dir=str(tmp_path / "sdiareward"),
            sources=(SourceConfig("dailytalk", str(dailytalk), **source),),
            synthesizers={"modality": SynthesizerSpec(("espeak-ng",))},
            channel=None,
            num_workers=1,
        )

    return make


def read_chosen(tmp_path):
    rows = [row for _, row in read_rows(tmp_path / "sdiareward", ["chosen"])]
    return [turn for row in rows for turn in row["chosen"]]


def test_a_dialogue_of_clips_is_enhanced_where_the_source_asks_for_it(config, dailytalk, inputs, tmp_path):
    report = build(config(enhance=True))
    assert [(skip["kind"], skip["item"]) for skip in report["skipped"]] == [("unusable_audio", "dailytalk 1/0")]
    turns = read_chosen(tmp_path)
    originals = [read_audio(dailytalk / f"data/0/{index}_{index}_d0.wav") for index in (0, 1)]
    assert len(inputs) == 3
    for index, (turn, original) in enumerate(zip(turns, originals, strict=True)):
        np.testing.assert_allclose(read_audio(turn["audio"]), original / 4, atol=0.02)
        reference = turn["audio_ref"][0]
        assert reference["uri"] == f"dailytalk:data/0/{index}_{index}_d0.wav?enhancement=audio-separator"


def test_a_repeated_build_separates_nothing_again_but_a_copy_that_was_deleted(config, inputs, tmp_path):
    build(config(enhance=True))
    before = [turn["audio"]["bytes"] for turn in read_chosen(tmp_path)]
    (tmp_path / "sdiareward" / "report.json").unlink()
    inputs.clear()
    build(config(enhance=True))
    assert inputs == []
    for wav in (tmp_path / "sdiareward-work").glob("enhancement/*.wav"):
        wav.unlink()
    (tmp_path / "sdiareward" / "report.json").unlink()
    report = build(config(enhance=True))
    assert inputs and [skip["kind"] for skip in report["skipped"]] == ["unusable_audio"]
    assert [turn["audio"]["bytes"] for turn in read_chosen(tmp_path)] == before


def test_an_interrupted_build_does_not_mix_enhanced_and_plain_pairs(config, inputs, tmp_path, monkeypatch):
    from sdiareward.dataset_builder import builder

    def stop(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(builder, "write_shards", stop)
        with pytest.raises(KeyboardInterrupt):
            build(config())
    plain = read_audio(tmp_path / "dailytalk/data/0/0_0_d0.wav")
    build(config(enhance=True))
    np.testing.assert_allclose(read_audio(read_chosen(tmp_path)[0]["audio"]), plain / 4, atol=0.02)


def test_an_enhanced_clip_is_found_and_enhanced_again_by_its_reference(config, inputs, tmp_path, monkeypatch):
    build(config(enhance=True))
    turn = read_chosen(tmp_path)[0]
    monkeypatch.setattr(release, "_load_enhancer", release._load_enhancer.__wrapped__)
    part = find_part(turn["audio_ref"][0], AudioRoots(tmp_path), tmp_path / "recordings")
    np.testing.assert_array_equal(read_recording(part), read_audio(turn["audio"]))


@pytest.mark.parametrize(
    ("source", "pipeline", "message"),
    [
        ("dailytalk", {"enhancement": {"name": "none"}}, "enhancement is 'none'"),
        ("dailytalk", {"enhancement": {"model": "missing.ckpt"}}, "missing.ckpt"),
        ("colloquial_scripts", None, "has `enhance`, which is for dialogues"),
    ],
)
def test_enhancement_that_cannot_be_meant_or_loaded_is_refused(config, dailytalk, inputs, source, pipeline, message):
    source = SourceConfig(source, str(dailytalk) if source == "dailytalk" else None, 1, enhance=True)
    with pytest.raises((ValueError, ComponentError), match=message):
        build(replace(config(), sources=(source,), pipeline=pipeline))
