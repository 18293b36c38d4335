import json
import shutil
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pytest
import soundfile

import sdiareward.dataset_builder.formats.loading  # noqa: F401 -- enters the builder
from sdiareward.dataset_builder.episodes import SkipError
from sdiareward.dataset_builder.pairing.pairing import PairPlan, make_row
from sdiareward.dataset_builder.release.release import (
    AudioRoots,
    Rebuilder,
    find_part,
    read_recording,
    reconstruct,
    release,
)
from sdiareward.dataset_builder.shards import read_rows, write_rows
from sdiareward.dataset_builder.sources import DEFAULT_PATHS, read_source
from sdiareward.perturbations.channel import ChannelSettings, encode


pytestmark = pytest.mark.slow


# The shortest of at least 2 s; Opus, which the recordings went through, takes most of the time.
EPISODES = sorted(read_source("sample"), key=lambda episode: episode.turns[-1].parts[-1].end_s)[4:11]
EPISODES = [replace(episode, turns=episode.turns[:2], native_coding=()) for episode in EPISODES]
OPTIONS = {"other": {"engine": "espeak-ng", "voices": ["en-us"]}}


def copy_of_audio(target):
    """Copy the recordings of the episodes below `target`; return them in order."""
    paths = [target / "sample" / episode.turns[0].parts[0].ref.partition(":")[2] for episode in EPISODES]
    for episode, path in zip(EPISODES, paths, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(episode.turns[0].parts[0].audio, path)
    return paths


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the folders of a data set of recorded pairs and one of scripts in two voices, and of its release."""
    folder = tmp_path_factory.mktemp("built")
    channel = ChannelSettings(level_dbfs=-26.3)
    plans = [PairPlan("modality", e, e, "espeak-ng", "train", channel) for e in EPISODES]
    script = next(read_source("colloquial_scripts"))
    spoken, written = (replace(side, turns=side.turns[:2]) for side in (script.spoken, script.written))
    plans.append(PairPlan("colloquialness", spoken, written, "other+espeak-ng", "test", None, OPTIONS))
    scores = dict.fromkeys(("content", "naturalness", "coherence"), 4)
    quality = {"chosen": scores, "rejected": scores, "judge": "somebody", "prompt_version": "1"}
    write_rows(folder / "data", [(plan.split, make_row(plan) | {"quality": quality}) for plan in plans])
    assert release(folder / "data", folder / "release")["skipped"] == []
    return folder


def rows_by_id(folder):
    return {row["pair_id"]: (split, row) for split, row in read_rows(folder)}


def test_load_dataset_makes_the_pairs_of_a_release_again(built, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    root = tmp_path / "audio"
    path, *_ = copy_of_audio(root)
    content = path.read_bytes()
    path.unlink()
    options = {"data_dir": str(root), "synthesizer_options": OPTIONS}
    found = datasets.load_dataset("sdiareward", "modality", split="train", metadata=str(built / "release"), **options)
    assert len(found) == len(EPISODES) - 1
    assert "skipped 1 pairs, missing_audio; first: pair " in caplog.text
    # The recording is back, and the release is in the folder of the recordings.
    path.write_bytes(content)
    shutil.copytree(built / "release" / "data", root / "data")
    found = datasets.load_dataset("sdiareward", **options)
    again = {row["pair_id"]: (split, row) for split, rows in found.items() for row in rows}
    assert again == rows_by_id(built / "data")


def test_a_damaged_shard_costs_itself_alone_and_a_scrubbed_text_is_counted(built, tmp_path):
    folder = shutil.copytree(built / "release", tmp_path / "release")
    (damaged,) = folder.glob("data/*/test-*.parquet")
    damaged.write_bytes(damaged.read_bytes()[:200])
    report = reconstruct(folder, AudioRoots(), tmp_path / "again", num_workers=1)
    (skip,) = report["skipped"]
    assert (skip["item"], skip["kind"]) == (f"{damaged.parent.name}/{damaged.name}", "invalid_shard")
    assert (len(rows_by_id(tmp_path / "again")), report["released"]) == (len(EPISODES),) * 2
    assert "different" not in report["turns"]
    row = modality_rows(built)[0]
    row["rejected"][0]["audio_ref"][0]["text"] = row["chosen"][0]["audio_ref"][0]["text"] = "Call [PHONE]!"
    _, turns = Rebuilder(AudioRoots(), tmp_path / "recordings").rebuild("train", row)
    assert (turns["scrubbed"], turns["different"]) == (1, 1)


def test_damaged_recordings_are_separated_by_kind_and_cost_no_other_pair(built, tmp_path):
    paths = copy_of_audio(tmp_path / "audio")
    originals = [path.read_bytes() for path in paths]
    arrays = [soundfile.read(path, dtype="float32")[0] for path in paths]
    paths[0].unlink()
    longest = max(read_source("sample"), key=lambda e: e.turns[-1].parts[-1].end_s)
    shutil.copy(longest.turns[0].parts[0].audio, paths[1])
    paths[2].write_bytes(originals[2][: len(originals[2]) // 2])
    for index, array in ((3, arrays[3][: round(0.3 * arrays[3].size)]), (4, arrays[4])):
        paths[index].write_bytes(encode(array, 16_000, "OGG", "OPUS", 0.93))
    paths[5].write_text("this is no recording\n" * 50)
    roots = AudioRoots(tmp_path / "audio")

    options = {"num_workers": 1, "synthesizer_options": OPTIONS}
    report = reconstruct(built / "release", roots, tmp_path / "again", **options)

    pair_ids = {row["chosen"][0]["audio_ref"][0]["uri"]: f"pair {row['pair_id']}" for row in modality_rows(built)}
    items = [pair_ids[episode.turns[0].parts[0].ref] for episode in EPISODES]
    kinds = {entry["item"]: entry["kind"] for entry in report["skipped"]}
    damages = ("missing", "wrong", "truncated", "truncated", "reencoded", "undecodable")
    assert [kinds.get(item) for item in items] == [*(f"{damage}_audio" for damage in damages), None]
    assert len(report["skipped"]) == 6
    assert sum(entry["pairs"] for entry in report["pairs"]) == 2
    assert str(tmp_path) not in json.dumps(report["skipped"])

    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "again-work" / "parts").glob("*.parquet")}
    for index in (0, 1, 2, 3, 5):
        paths[index].write_bytes(originals[index])
    report = reconstruct(built / "release", roots, tmp_path / "again", **options)
    assert report["drops"] == {"reencoded_audio": 1}
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    row = next(row for row in modality_rows(built) if f"pair {row['pair_id']}" == items[4])
    _, turns = Rebuilder(roots, tmp_path / "recordings", allow_reencoded=True).rebuild("train", row)
    assert turns["reencoded"] >= 2


def modality_rows(built):
    return [row for _, row in read_rows(built / "release") if row["criterion"] == "modality"]


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"uri": "sample:../../secret.wav"}, "outside_root"),
        ({"uri": "sample:nothing.ogg"}, "missing_audio"),
        ({"uri": "no reference"}, "invalid_row"),
        ({"uri": None}, "no_reference"),
        ({"start_s": 5000.0, "end_s": 5001.0}, "truncated_audio"),
    ],
)
def test_a_reference_without_a_recording_is_reported(built, tmp_path, changed, kind):
    row = modality_rows(built)[0]
    row["chosen"][1]["audio_ref"][0].update(changed)
    rebuilder = Rebuilder(AudioRoots(), tmp_path / "recordings")
    skip = rebuilder.rebuild("train", row)
    assert (skip.item, skip.kind) == (f"pair {row['pair_id']}", kind)


def test_a_long_recording_is_cut_from_the_copy_that_the_pipeline_cuts_from(tmp_path, make_tone):
    video = tmp_path / "audio" / "youtube" / "abc-1.flac"
    video.parent.mkdir(parents=True)
    tone = make_tone(3.0)
    soundfile.write(video, tone, 16_000, subtype="PCM_16")
    reference = {"uri": "youtube:abc-1", "start_s": 1.0, "end_s": 2.5, "text": "so"}
    part = find_part(reference, AudioRoots(tmp_path / "audio"), tmp_path / "recordings")
    assert Path(part.audio).parent == tmp_path / "recordings"
    steps = np.round(tone[16_000:40_000] * 32768).astype(int)
    assert np.array_equal(np.round(read_recording(part) * 32768).astype(int), steps)

    enhanced = {**reference, "uri": "youtube:abc-1?enhancement=magic"}
    with pytest.raises(SkipError, match="magic") as caught:
        find_part(enhanced, AudioRoots(tmp_path / "audio"), tmp_path / "recordings")
    assert caught.value.kind == "missing_enhancement"


def test_audio_roots_are_one_folder_for_all_and_places_of_single_sources(tmp_path):
    roots = AudioRoots.parse([str(tmp_path), "meld=/corpora/meld=1"])
    (tmp_path / "youtube").mkdir()
    assert roots.find_root("meld") == Path("/corpora/meld=1")
    assert roots.find_root("youtube") == tmp_path / "youtube"
    assert roots.find_root("sample") == DEFAULT_PATHS["sample"]
    with pytest.raises(SkipError, match="--audio-root dailytalk=DIR"):
        roots.find_root("dailytalk")
    for values in ([str(tmp_path), str(tmp_path)], ["melt=/corpora/meld"]):
        with pytest.raises(ValueError, match=str(values[-1])):
            AudioRoots.parse(values)
