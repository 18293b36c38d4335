import json
import re

import numpy as np
import pytest
import soundfile
import yaml
from support.paths import SAMPLE

from sdiareward.audio_sdiareward import read_audio
from sdiareward.dataset_builder import builder
from sdiareward.dataset_builder.__main__ import main
from sdiareward.dataset_builder.pairing.pairing import make_row
from sdiareward.pairs.loading import load_pairs


pytestmark = pytest.mark.slow
ESPEAK = {"modality": {"seen": ["espeak-ng"]}}
# Opus, which its recordings went through, takes most of the time.
ONE = {"name": "sample", "limit": 1, "native_coding": []}
# One dialogue of the sample, everything for training.
SETTINGS = {"sources": [ONE], "synthesizers": ESPEAK, "test": 0, "validation": 0}
MIXED = {
    "sources": [{**ONE, "limit": 4}, {"name": "colloquial_scripts", "limit": 2}],
    "synthesizers": {"modality": {**ESPEAK["modality"], "left_out": ["other"]}, "colloquialness": {"seen": ["other"]}},
    "synthesizer_options": {"other": {"engine": "espeak-ng", "voices": ["en-us"]}},
    **{"validation": 0.25, "test": 0.25, "seed": 2},
}


def run(folder, *flags, **changes):
    """Build a data set in a folder with changed settings; return the exit status."""
    settings = {"output_dir": str(folder / "sdiareward"), "num_workers": 1, **SETTINGS, **changes}
    (folder / "build.yaml").write_text(yaml.safe_dump(settings))
    return main(["--config", str(folder / "build.yaml"), *flags])


def count_pairs(folder):
    report = json.loads((folder / "sdiareward" / "report.json").read_text())
    return sum(row["pairs"] for row in report["pairs"])


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the working directory of a data set of four recorded episodes and two scripts."""
    folder = tmp_path_factory.mktemp("built")
    assert run(folder, **MIXED) == 0
    return folder


def test_a_built_folder_keeps_groups_and_synthesizers_apart_and_its_card_counts_its_pairs(built):
    pairs = {split: load_pairs(built / "sdiareward", split) for split in ("train", "validation", "test")}
    groups = [group for each in pairs.values() for group in set(each["group_id"])]
    assert len(groups) == len(set(groups))
    rows = [(split, row) for split, each in pairs.items() for row in each if row["criterion"] == "modality"]
    assert {split for split, row in rows if row["synthesizer"] == "other"} == {"test"}
    card = (built / "sdiareward" / "README.md").read_text()
    assert f"{count_pairs(built)} pairs, built by" in card
    names = [entry["config_name"] for entry in yaml.safe_load(card.split("---")[1])["configs"]]
    assert names == ["default", "colloquialness", "modality", "esdr_bench"]
    assert not (built / "sdiareward" / ".parts").exists()
    row = next(row for split, row in rows if split == "train")
    for chosen, rejected in zip(row["chosen"], row["rejected"], strict=True):
        assert all(part["uri"].startswith("sample:") for part in chosen["audio_ref"])
        assert [part["uri"] for part in rejected["audio_ref"]] == ["synthetic:espeak-ng"] * len(chosen["audio_ref"])
        assert " ".join(part["text"] for part in chosen["audio_ref"]) == chosen["text"]


def test_a_second_build_does_nothing(built, capsys, monkeypatch):
    files = {file: file.stat().st_mtime_ns for file in (built / "sdiareward").rglob("*")}
    monkeypatch.setattr(builder, "make_parts", None)
    assert run(built, **MIXED) == 0
    assert {file: file.stat().st_mtime_ns for file in (built / "sdiareward").rglob("*")} == files
    assert f"{count_pairs(built)} pairs" in capsys.readouterr().out


@pytest.fixture
def kill(monkeypatch):
    """Return a function that builds with `run` and is killed before the shards are written."""

    def run_and_kill(*args, **changes):
        with monkeypatch.context() as patch:
            patch.setattr(builder, "write_shards", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
            assert run(*args, **changes) == 130

    return run_and_kill


def test_a_killed_build_makes_only_what_is_missing_or_damaged(monkeypatch, kill, tmp_path):
    sources = [{**ONE, "limit": 3}]
    kill(tmp_path, sources=sources)
    missing, flipped, _ = sorted((tmp_path / "sdiareward" / ".parts").rglob("part-*"))
    missing.unlink()
    content = bytearray(flipped.read_bytes())
    place = len(content) // 3
    content[place : place + 64] = (byte ^ 1 for byte in content[place : place + 64])
    flipped.write_bytes(content)
    made = []
    monkeypatch.setattr(builder, "make_row", lambda plan: made.append(plan.pair_id) or make_row(plan))
    assert run(tmp_path, sources=sources) == 0
    assert (len(made), count_pairs(tmp_path)) == (2, 3)


def test_pairs_of_a_manifest_or_recording_that_changed_are_made_again(tmp_path, kill):
    paths = sorted((SAMPLE / "asterisk").iterdir())[:2]
    arrays, licences = dict(zip("ab", map(read_audio, paths), strict=True)), {"a": "CC0-1.0", "b": "CC-BY-3.0"}

    def build(start, end_s):
        rows = []
        for name, array in arrays.items():
            soundfile.write(tmp_path / f"{name}.wav", array, 16_000)
            times = (("user", 0.0, 0.4), ("assistant", 0.4, end_s))
            given = {"text": "Hello.", "audio": f"{name}.wav"}
            turns = [{**given, "role": role, "start_s": begin, "end_s": end} for role, begin, end in times]
            rows.append({"id": name, "language": "en", "license": licences[name], "turns": turns})
        (tmp_path / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        start(tmp_path, sources=[{"name": "folder", "path": str(tmp_path)}])

    def read():
        return {row["license"]: row["chosen"][1] for row in load_pairs(tmp_path / "sdiareward", "train")}

    build(kill, 0.8)
    licences["a"] = "CC-BY-4.0"
    build(run, 0.6)
    before = read()
    ends = {name: turn["audio_ref"][0]["end_s"] for name, turn in before.items()}
    assert ends == {"CC-BY-4.0": 0.6, "CC-BY-3.0": 0.6}
    arrays["b"] = arrays["b"] / 2
    build(run, 0.6)
    after = read()
    assert after["CC-BY-3.0"]["audio"] != before["CC-BY-3.0"]["audio"]
    assert after["CC-BY-4.0"] == before["CC-BY-4.0"]


def test_a_dry_run_counts_the_pairs_warns_of_empty_splits_and_writes_nothing(tmp_path, capsys, caplog):
    assert run(tmp_path, "--dry-run", **MIXED) == 0
    out = capsys.readouterr().out
    # Four recordings and two scripts; one recording is in test and gets the held-out synthesizer too.
    assert "7 pairs" in out
    assert "by criterion: colloquialness 2, modality 5" in out
    assert "have no pairs" not in caplog.text
    assert run(tmp_path, "--dry-run", validation=0.1, test=0.2) == 0
    assert "['validation', 'test'] have no pairs" in caplog.text
    assert not (tmp_path / "sdiareward").exists()


BAD_CONFIGS = [
    ({"sedd": 1}, "sedd"),
    ({"sources": [{"name": "sample", "pth": "x"}]}, "sources.*pth"),
    ({"sources": []}, "sources"),
    ({"synthesizers": {"modality": {"seen": ["festival"]}}}, "festival"),
    ({"synthesizer_options": {"espeak_ng": {"voices": ["en-us"]}}}, "did you mean 'espeak-ng'"),
    ({"families": {"context": {"kinds": []}}}, "families.context.*kinds"),
    ({"channel": {"snr_db": "loud"}}, "channel.snr_db"),
    ({"pipeline": {"vad": {"treshold": 0.4}}}, "pipeline.vad.*threshold"),
    ({"pipeline": {"diarization": {"min_speakers": 2}}}, "pipeline: diarization.pyannote.*min_speakers"),
    ({"pipeline": {"asr": {"name": "vosk"}}}, "vosk.*'faster-whisper'"),
    ({"pipeline": {"vad": {"threshold": "high"}}}, "vad.threshold is 'high'"),
    ({"pipeline": {"decode": {"concurrency": 0}}}, "decode.concurrency"),
    ({"pipeline": {"enhancement": {"name": "none"}}, "sources": [{**ONE, "enhance": True}]}, "enhancement is 'none'"),
    ({"sources": [{"name": "colloquial_scripts", "enhance": True}]}, "has `enhance`, which needs dialogues"),
    ({"sources": [{"name": "sample", "limit": 1, "native_coding": ["wax"]}]}, "wax"),
    ({"sources": [{"name": "colloquial_scripts", "native_coding": ["mulaw"]}]}, "scripts have no recordings"),
]


@pytest.mark.parametrize(("changes", "place"), BAD_CONFIGS)
def test_a_wrong_config_is_refused_in_one_line(changes, place, tmp_path, capsys):
    assert run(tmp_path, **changes) == 2
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1
    assert re.search(place, error)


def test_the_coding_of_a_source_is_in_its_rows_and_what_was_made_with_another_is_made_again(tmp_path, kill):
    matched = {"bandwidth_hz": 8000, "coding": "none", "snr_db": 90}
    sample = {"name": "sample", "limit": 1}
    kill(tmp_path, sources=[sample], channel=matched)
    speech = []
    # A list that is given is used, also an empty one; without channel matching nothing else is coded.
    for given, channel, used in ((["pcm_8k"], matched, ["pcm_8k"]), (None, matched, ["opus"]), (None, None, [])):
        source = sample if given is None else {**sample, "native_coding": given}
        assert run(tmp_path, sources=[source], channel=channel) == 0
        (row,) = load_pairs(tmp_path / "sdiareward", "train")
        assert row["native_coding"] == used
        speech.append(read_audio(row["rejected"][0]["audio"]))
    power = [np.abs(np.fft.rfft(array)) ** 2 for array in speech]
    above_4_khz = [each[round(0.55 * len(each)) :].sum() / each.sum() < 1e-4 for each in power]
    assert above_4_khz == [True, False, False]
