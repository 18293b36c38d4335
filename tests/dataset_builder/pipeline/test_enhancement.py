"""Dialogues of clips that are enhanced by a build, around a stand-in for audio-separator."""

import json
from dataclasses import replace

import numpy as np
import pytest
import soundfile

from sdiareward.audio_sdiareward import read_audio
from sdiareward.dataset_builder import builder
from sdiareward.dataset_builder.builder import BuildConfig, SourceConfig, build
from sdiareward.dataset_builder.pairing.pairing import SynthesizerSpec
from sdiareward.dataset_builder.pipeline.settings import ComponentError
from sdiareward.dataset_builder.release import release
from sdiareward.dataset_builder.release.release import AudioRoots, find_part, read_recording
from sdiareward.dataset_builder.shards import read_rows


@pytest.fixture
def dailytalk(tmp_path, make_tone):
    """Two dialogues of two utterances in DailyTalk's layout, at 44.1 kHz; the second has a damaged clip."""
    root, metadata = tmp_path / "dailytalk", {}
    for dialogue in ("0", "1"):
        (root / "data" / dialogue).mkdir(parents=True)
        metadata[dialogue] = {}
        for index in (0, 1):
            labels = {"emotion": "no emotion", "act": "question", "speaker": index}
            metadata[dialogue][str(index)] = {"text": f"Line {index}.", **labels}
            path = root / "data" / dialogue / f"{index}_{index}_d{dialogue}.wav"
            soundfile.write(path, make_tone(12.0, 200.0 + 50 * index, seed=int(dialogue)), 44_100)
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
    return [turn for _, row in read_rows(tmp_path / "sdiareward", ["chosen"]) for turn in row["chosen"]]


def test_a_dialogue_of_clips_is_enhanced_once_where_the_source_asks_for_it(
    config, dailytalk, separator_inputs, tmp_path, monkeypatch
):
    def stop(*args):
        raise KeyboardInterrupt

    # What an interrupted build made without enhancement is not taken.
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(builder, "write_shards", stop)
        build(config())
    with pytest.raises(ComponentError, match="missing.ckpt"):
        build(replace(config(enhance=True), pipeline={"enhancement": {"model": "missing.ckpt"}}))
    report = build(config(enhance=True))
    assert [(skip["kind"], skip["item"]) for skip in report["skipped"]] == [("unusable_audio", "dailytalk 1/0")]
    turns = read_chosen(tmp_path)
    assert len(separator_inputs) == 3
    for index, turn in enumerate(turns):
        original = read_audio(dailytalk / f"data/0/{index}_{index}_d0.wav")
        np.testing.assert_allclose(read_audio(turn["audio"]), original / 4, atol=0.02)
        uri = turn["audio_ref"][0]["uri"]
        assert uri == f"dailytalk:data/0/{index}_{index}_d0.wav?enhancement=audio-separator"
    # A repeated build separates nothing again but a copy that was deleted.
    for is_deleted in (False, True):
        for wav in (tmp_path / "sdiareward-work").glob("enhancement/*.wav") if is_deleted else ():
            wav.unlink()
        (tmp_path / "sdiareward" / "report.json").unlink()
        separator_inputs.clear()
        build(config(enhance=True))
        assert bool(separator_inputs) is is_deleted
        assert [turn["audio"] for turn in read_chosen(tmp_path)] == [turn["audio"] for turn in turns]
    # A release finds the clip by its reference, and enhances it again.
    monkeypatch.setattr(release, "_load_enhancer", release._load_enhancer.__wrapped__)
    part = find_part(turns[0]["audio_ref"][0], AudioRoots(tmp_path), tmp_path / "recordings")
    np.testing.assert_array_equal(read_recording(part), read_audio(turns[0]["audio"]))
