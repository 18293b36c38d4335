import json
import re
from contextlib import contextmanager, nullcontext

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
# One dialogue of the sample, everything for training.
SETTINGS = {"sources": [{"name": "sample", "limit": 1}], "synthesizers": ESPEAK, "test": 0, "validation": 0}
MIXED = {
    "sources": [{"name": "sample", "limit": 8}, {"name": "colloquial_scripts", "limit": 4}],
    "synthesizers": {
        "modality": {"seen": ["espeak-ng"], "left_out": ["hibari"]},
        "colloquialness": {"seen": ["espeak-ng"]},
    },
    **{"validation": 0.25, "test": 0.25},
}


def run(folder, *flags, **changes):
    """Build a data set in a folder with changed settings; return the exit status."""
    settings = {"output_dir": str(folder / "sdiareward"), "num_workers": 1, **SETTINGS, **changes}
    (folder / "build.yaml").write_text(yaml.safe_dump(settings))
    return main(["build", "--config", str(folder / "build.yaml"), *flags])


@pytest.fixture
def killed(monkeypatch):
    """Return a context in which a build is killed before it writes its shards."""

    @contextmanager
    def kill():
        with monkeypatch.context() as patch:
            patch.setattr(builder, "write_shards", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
            yield

    return kill


def count_pairs(folder):
    report = json.loads((folder / "sdiareward" / "report.json").read_text())
    return sum(row["pairs"] for row in report["pairs"])


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the working directory of a data set of eight recorded episodes and four scripts."""
    folder = tmp_path_factory.mktemp("built")
    assert run(folder, **MIXED) == 0
    return folder


def test_a_built_folder_keeps_groups_and_synthesizers_apart_and_its_card_counts_its_pairs(built):
    pairs = {split: load_pairs(built / "sdiareward", split) for split in ("train", "validation", "test")}
    groups = [group for each in pairs.values() for group in set(each["group_id"])]
    assert len(groups) == len(set(groups))
    assert [split for split, each in pairs.items() if "hibari" in each["synthesizer"]] == ["test"]
    card = (built / "sdiareward" / "README.md").read_text()
    assert f"{count_pairs(built)} pairs, built by" in card
    names = [entry["config_name"] for entry in yaml.safe_load(card.split("---")[1])["configs"]]
    assert names == ["default", "colloquialness", "modality", "esdr_bench"]
    assert not (built / "sdiareward" / ".parts").exists()
    row = next(row for row in pairs["train"] if row["criterion"] == "modality")
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


def test_a_killed_build_makes_only_what_is_missing_or_damaged(monkeypatch, killed, tmp_path):
    sources = [{"name": "sample", "limit": 3}]
    with killed():
        assert run(tmp_path, sources=sources) == 130
    missing, flipped, _ = sorted((tmp_path / "sdiareward" / ".parts").rglob("part-*"))
    missing.unlink()
    content = flipped.read_bytes()
    place = len(content) // 3
    flipped.write_bytes(
        content[:place] + bytes(byte ^ 1 for byte in content[place : place + 64]) + content[place + 64 :]
    )
    made = []
    monkeypatch.setattr(builder, "make_row", lambda plan: made.append(plan.pair_id) or make_row(plan))
    assert run(tmp_path, sources=sources) == 0
    assert (len(made), count_pairs(tmp_path)) == (2, 3)
    assert not (tmp_path / "sdiareward" / ".parts").exists()


@pytest.mark.parametrize("is_killed", [True, False])
def test_pairs_of_a_manifest_or_recording_that_changed_are_made_again(tmp_path, killed, is_killed):
    paths = sorted((SAMPLE / "asterisk").iterdir())[:2]
    arrays, licences = dict(zip("ab", map(read_audio, paths), strict=True)), {"a": "CC0-1.0", "b": "CC-BY-3.0"}
    times = [("user", 0.0, 0.4), ("assistant", 0.4, 0.8)]

    def build():
        rows = []
        for name, array in arrays.items():
            soundfile.write(tmp_path / f"{name}.wav", array, 16_000)
            given = {"text": "Hello.", "audio": f"{name}.wav"}
            turns = [{**given, "role": role, "start_s": start, "end_s": end} for role, start, end in times]
            rows.append({"id": name, "language": "en", "license": licences[name], "subset": "wild", "turns": turns})
        (tmp_path / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return run(tmp_path, sources=[{"name": "folder", "path": str(tmp_path)}])

    def read():
        return {row["license"]: row["chosen"][1] for row in load_pairs(tmp_path / "sdiareward", "train")}

    with killed() if is_killed else nullcontext():
        assert build() == (130 if is_killed else 0)
    times[1], licences["a"] = ("assistant", 0.4, 0.6), "CC-BY-4.0"
    assert build() == 0
    before = read()
    assert {name: turn["audio_ref"][0]["end_s"] for name, turn in before.items()} == {
        "CC-BY-4.0": 0.6,
        "CC-BY-3.0": 0.6,
    }
    arrays["b"] = arrays["b"] / 2
    assert build() == 0
    after = read()
    assert after["CC-BY-3.0"]["audio"] != before["CC-BY-3.0"]["audio"]
    assert after["CC-BY-4.0"] == before["CC-BY-4.0"]


def test_a_dry_run_counts_the_pairs_warns_of_empty_splits_and_writes_nothing(tmp_path, capsys, caplog):
    assert run(tmp_path, "--dry-run", **MIXED) == 0
    out = capsys.readouterr().out
    # Eight recordings and four scripts; two of the recordings are in test and get the left-out synthesizer too.
    assert "14 pairs" in out
    assert "by criterion: colloquialness 4, modality 10" in out
    assert "get no pairs" not in caplog.text
    assert run(tmp_path, "--dry-run", validation=0.1, test=0.2) == 0
    assert "['validation', 'test'] get no pairs" in caplog.text
    assert not (tmp_path / "sdiareward").exists()


BAD_CONFIGS = [
    ({"sedd": 1}, "sedd"),
    ({"sources": [{"name": "sample", "pth": "x"}]}, "sources.*pth"),
    ({"sources": [{"name": "radio"}]}, "radio"),
    ({"sources": []}, "sources"),
    ({"synthesizers": {"modality": {"seen": ["festival"]}}}, "festival"),
    ({"synthesizer_options": {"espeak_ng": {"voices": ["en-us"]}}}, "did you mean 'espeak-ng'"),
    ({"test": "0,2"}, "test is '0,2'"),
    ({"families": ["context"]}, "families"),
    ({"families": {"context": {"kinds": []}}}, "families.context.*kinds"),
    ({"channel": {"snr_db": "loud"}}, "channel.snr_db"),
    ({"pipeline": {"vad": {"treshold": 0.4}}}, "pipeline.vad.*threshold"),
    ({"sources": [{"name": "sample", "limit": 1, "native_coding": ["wax"]}]}, "wax"),
    ({"sources": [{"name": "colloquial_scripts", "native_coding": ["mulaw"]}]}, "scripts have no recordings"),
]


@pytest.mark.parametrize(("changes", "place"), BAD_CONFIGS)
def test_a_wrong_config_is_refused_in_one_line(changes, place, tmp_path, capsys):
    assert run(tmp_path, **changes) == 2
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1
    assert re.search(place, error)


def test_a_family_that_needs_options_leaves_those_of_other_pairs(tmp_path):
    rows = {}
    for name, families in (("plain", {}), ("both", {"prosody": {"kinds": ["flat"]}})):
        (tmp_path / name).mkdir()
        assert run(tmp_path / name, families=families, synthesizers={"modality": {"seen": ["world"]}}) == 0
        rows[name] = list(load_pairs(tmp_path / name / "sdiareward", "train"))
    plain, both = rows["plain"], rows["both"]
    assert (len(plain), len(both)) == (1, 2)
    assert [row["rejected"] for row in both if row["criterion"] == "modality"] == [plain[0]["rejected"]]


def test_the_coding_of_a_source_is_in_its_rows_and_what_was_made_with_another_is_made_again(tmp_path, killed):
    def build(coding, channel):
        given = {} if coding is None else {"native_coding": coding}
        return run(tmp_path, sources=[{"name": "sample", "limit": 1, **given}], channel=channel)

    matched = {"bandwidth_hz": 8000, "coding": "none", "snr_db": 90}
    with killed():
        assert build(None, matched) == 130
    speech = []
    # A list that is given is used, also an empty one; without channel matching nothing else is coded.
    table = [(["pcm_8k"], matched, ["pcm_8k"]), (None, matched, ["opus"]), ([], matched, [])]
    for given, channel, used in (*table, (None, None, []), (["pcm_8k"], None, ["pcm_8k"])):
        assert build(given, channel) == 0
        (row,) = load_pairs(tmp_path / "sdiareward", "train")
        assert row["native_coding"] == used
        speech.append(read_audio(row["rejected"][0]["audio"]))
    power = [np.abs(np.fft.rfft(array)) ** 2 for array in speech]
    above_4_khz = [each[round(0.55 * len(each)) :].sum() / each.sum() < 1e-4 for each in power]
    assert above_4_khz == [True, False, False, False, True]
    assert len({array.tobytes() for array in speech}) == 5
