import json
import re
import shutil
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import soundfile
import yaml
from datasets import load_dataset
from support.paths import SAMPLE

from sdiareward.audio_sdiareward import read_audio
from sdiareward.dataset_builder import builder
from sdiareward.dataset_builder.__main__ import main
from sdiareward.dataset_builder.pairing.pairing import make_row
from sdiareward.dataset_builder.reports.data_card import render_card
from sdiareward.pairs.loading import load_pairs


pytestmark = pytest.mark.slow


SETTINGS = {
    "sources": [{"name": "sample", "limit": 8}, {"name": "colloquial_scripts", "limit": 4}],
    "synthesizers": {
        "modality": {"seen": ["espeak-ng"], "left_out": ["hibari"]},
        "colloquialness": {"seen": ["espeak-ng"]},
    },
    "validation": 0.25,
    "test": 0.25,
    "num_workers": 1,
}
ESPEAK = {"modality": {"seen": ["espeak-ng"]}}
NO_SPLITS = {"test": 0.0, "validation": 0.0}


@pytest.fixture
def write_config(tmp_path):
    def write(**changes):
        path = tmp_path / "build.yaml"
        path.write_text(yaml.safe_dump({"output_dir": str(tmp_path / "sdiareward"), **SETTINGS, **changes}))
        return path

    return write


@pytest.fixture
def killed(monkeypatch):
    """Return a context in which a build is killed before it writes its shards."""

    @contextmanager
    def kill():
        with monkeypatch.context() as patch:
            patch.setattr(builder, "write_shards", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
            yield

    return kill


def read_report(folder):
    return json.loads((folder / "sdiareward" / "report.json").read_text())


def count_pairs(report):
    return sum(row["pairs"] for row in report["pairs"])


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the working directory of a data set of eight recorded episodes and four scripts."""
    folder = tmp_path_factory.mktemp("built")
    path = folder / "build.yaml"
    path.write_text(yaml.safe_dump({"output_dir": str(folder / "sdiareward"), **SETTINGS}))
    assert main(["build", "--config", str(path)]) == 0
    return folder


def test_a_second_build_of_the_same_name_is_not_answered_from_the_cache_of_the_first(built, tmp_path):
    shutil.copytree(built / "sdiareward", tmp_path / "sdiareward")
    card = render_card({**read_report(tmp_path), "build_id": "another"})
    (tmp_path / "sdiareward" / "README.md").write_text(card)
    (tmp_path / "sdiareward" / "data/colloquialness/train-00000-of-00001.parquet").unlink()
    first, second = (load_dataset(str(folder / "sdiareward"), split="train") for folder in (built, tmp_path))
    assert len(second) < len(first)


def test_a_built_folder_keeps_groups_and_synthesizers_apart_and_its_card_counts_its_pairs(built):
    pairs = {split: load_pairs(built / "sdiareward", split) for split in ("train", "validation", "test")}
    groups = [group for each in pairs.values() for group in set(each["group_id"])]
    assert len(groups) == len(set(groups))
    assert [split for split, each in pairs.items() if "hibari" in each["synthesizer"]] == ["test"]
    report = read_report(built)
    card = (built / "sdiareward" / "README.md").read_text()
    assert f"{count_pairs(report)} pairs, built by" in card
    names = [entry["config_name"] for entry in yaml.safe_load(card.split("---")[1])["configs"]]
    assert names == ["default", "colloquialness", "modality", "esdr_bench"]
    assert not (built / "sdiareward" / ".parts").exists()
    row = next(row for row in pairs["train"] if row["criterion"] == "modality")
    for chosen, rejected in zip(row["chosen"], row["rejected"], strict=True):
        assert all(part["uri"].startswith("sample:") for part in chosen["audio_ref"])
        assert [part["uri"] for part in rejected["audio_ref"]] == ["synthetic:espeak-ng"] * len(chosen["audio_ref"])
        assert " ".join(part["text"] for part in chosen["audio_ref"]) == chosen["text"]


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_a_killed_build_makes_only_what_is_missing_or_damaged(write_config, monkeypatch, killed, tmp_path, damage):
    path = write_config(sources=[{"name": "sample", "limit": 4}], synthesizers=ESPEAK)
    with killed():
        assert main(["build", "--config", str(path)]) == 130
    parts = sorted((tmp_path / "sdiareward" / ".parts").rglob("part-*"))
    assert len(parts) == 4
    content = bytearray(parts[0].read_bytes())
    parts[0].unlink()
    if damage == "flipped":
        content[len(content) // 2] ^= 1
        parts[0].write_bytes(content)
    made = []
    monkeypatch.setattr(builder, "make_row", lambda plan: made.append(plan.pair_id) or make_row(plan))
    assert main(["build", "--config", str(path)]) == 0
    assert (len(made), count_pairs(read_report(tmp_path))) == (1, len(parts))
    assert not (tmp_path / "sdiareward" / ".parts").exists()


@pytest.mark.parametrize("is_killed", [True, False])
def test_pairs_of_a_manifest_or_recording_that_changed_are_made_again(write_config, tmp_path, killed, is_killed):
    turns = [{"role": role, "text": "Hello."} for role in ("user", "assistant")]
    spans = [{"start_s": 0.0, "end_s": 0.4}, {"start_s": 0.4, "end_s": 0.8}]
    arrays = {
        name: read_audio(path) for name, path in zip("ab", sorted((SAMPLE / "asterisk").iterdir()), strict=False)
    }
    path = write_config(sources=[{"name": "folder", "path": str(tmp_path)}], synthesizers=ESPEAK, **NO_SPLITS)

    def build(licence):
        rows = []
        for name, array in arrays.items():
            soundfile.write(tmp_path / f"{name}.wav", array, 16_000)
            given = [{**turn, **span, "audio": f"{name}.wav"} for turn, span in zip(turns, spans, strict=True)]
            rows.append({"id": name, "language": "en", "license": licence[name], "subset": "wild", "turns": given})
        (tmp_path / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return main(["build", "--config", str(path)])

    def read():
        return {row["license"]: row["chosen"][1] for row in load_pairs(tmp_path / "sdiareward", "train")}

    with killed() if is_killed else nullcontext():
        assert build({"a": "CC0-1.0", "b": "CC-BY-3.0"}) == (130 if is_killed else 0)
    spans[1]["end_s"], arrays["b"] = 0.6, arrays["b"] / 2
    assert build({"a": "CC-BY-4.0", "b": "CC-BY-3.0"}) == 0
    found = read()
    assert {name: turn["audio_ref"][0]["end_s"] for name, turn in found.items()} == {
        "CC-BY-4.0": 0.6,
        "CC-BY-3.0": 0.6,
    }
    before = found["CC-BY-3.0"]["audio"]["bytes"]
    arrays["b"] = arrays["b"] / 2
    assert build({"a": "CC-BY-4.0", "b": "CC-BY-3.0"}) == 0
    after = read()
    assert after["CC-BY-3.0"]["audio"]["bytes"] != before
    assert after["CC-BY-4.0"] == found["CC-BY-4.0"]


def test_a_second_build_does_nothing(built, capsys, monkeypatch):
    files = {file: file.stat().st_mtime_ns for file in (built / "sdiareward").rglob("*")}
    monkeypatch.setattr(builder, "_make_pairs", None)
    assert main(["build", "--config", str(built / "build.yaml")]) == 0
    assert {file: file.stat().st_mtime_ns for file in (built / "sdiareward").rglob("*")} == files
    assert f"{count_pairs(read_report(built))} pairs" in capsys.readouterr().out


def test_a_dry_run_counts_the_pairs_warns_of_empty_splits_and_writes_nothing(write_config, tmp_path, capsys, caplog):
    assert main(["build", "--config", str(write_config()), "--dry-run"]) == 0
    out = capsys.readouterr().out
    # Eight recordings and four scripts; two of the recordings are in test and get the left-out synthesizer too.
    assert "14 pairs" in out
    assert "by criterion: colloquialness 4, modality 10" in out
    assert "get no pairs" not in caplog.text
    changes = {"sources": [{"name": "sample", "limit": 1}], "synthesizers": ESPEAK}
    assert main(["build", "--config", str(write_config(**changes)), "--dry-run"]) == 0
    assert "['validation', 'test'] get no pairs" in caplog.text
    assert not (tmp_path / "sdiareward").exists()


BAD_CONFIGS = [
    ({"sedd": 1}, "sedd"),
    ({"sources": [{"name": "sample", "pth": "x"}]}, "sources.*pth"),
    ({"sources": [{"name": "radio"}]}, "radio"),
    ({"sources": SETTINGS["sources"][:1], "synthesizers": {"modality": {"seen": ["festival"]}}}, "festival"),
    ({"synthesizer_options": {"espeak_ng": {"voices": ["en-us"]}}}, "did you mean 'espeak-ng'"),
    ({"test": "0,2"}, "test is '0,2'"),
    ({"families": ["context"]}, "families"),
    ({"families": {"context": {"kinds": []}}}, "families.context.*kinds"),
    ({"channel": {"snr_db": "loud"}}, "channel.snr_db"),
    ({"sources": [{"name": "sample", "native_coding": ["wax"]}]}, "wax"),
    ({"sources": [{"name": "colloquial_scripts", "native_coding": ["mulaw"]}]}, "scripts have no recordings"),
]


@pytest.mark.parametrize(("changes", "place"), BAD_CONFIGS)
def test_a_wrong_config_is_refused_in_one_line(changes, place, write_config, capsys):
    assert main(["build", "--config", str(write_config(**changes))]) == 2
    error = capsys.readouterr().err.strip()
    assert len(error.splitlines()) == 1
    assert re.search(place, error)


def test_a_family_that_needs_options_leaves_those_of_other_pairs(write_config, tmp_path):
    rows = {}
    for folder, families in (("plain", {}), ("both", {"prosody": {"kinds": ["flat"]}})):
        changes = {"families": families, "synthesizers": {"modality": {"seen": ["world"]}}, **NO_SPLITS}
        path = write_config(output_dir=str(tmp_path / folder), sources=[{"name": "sample", "limit": 1}], **changes)
        assert main(["build", "--config", str(path)]) == 0
        rows[folder] = list(load_pairs(tmp_path / folder, "train"))
    plain, both = rows["plain"], rows["both"]
    assert (len(plain), len(both)) == (1, 2)
    assert [row["rejected"] for row in both if row["criterion"] == "modality"] == [plain[0]["rejected"]]


def test_the_coding_of_a_source_is_in_its_rows_and_what_was_made_with_another_is_made_again(
    write_config, tmp_path, killed
):
    def build(coding, channel):
        sources = [{"name": "sample", "limit": 1} | ({} if coding is None else {"native_coding": coding})]
        path = write_config(sources=sources, channel=channel, synthesizers=ESPEAK, **NO_SPLITS)
        return main(["build", "--config", str(path)])

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
