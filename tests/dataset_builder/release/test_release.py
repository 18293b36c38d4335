import json

import pytest
from datasets import load_dataset
from support.repository_world import make_row, write_data

from sdiareward.dataset_builder.recording_check import compare, describe
from sdiareward.dataset_builder.release.release import AudioRoots, release, release_features
from sdiareward.dataset_builder.shards import read_rows
from sdiareward.pairs.schema import features
from sdiareward.perturbations.channel import encode


PAIR_ID = "0123456789abcdef"
SECRETS = ("ann@example.org", "650-253-0000", "12 Elm Street", "Speaker Seven", "speaker seven")


@pytest.fixture
def make_data(tmp_path, make_tone):
    """Return a function that writes a data set of one recorded pair, with its clips, and returns its folder."""
    audio = tmp_path / "home_of_ann" / "folder"

    def make(texts=("Hello, ann@example.org", "call 650-253-0000", "from 12 Elm Street"), names=("a", "b", "c")):
        clips = [make_tone(1.0 + index, 200.0 + 90 * index, seed=index) for index in range(3)]
        for name, clip in zip(names, clips, strict=True):
            (audio / f"{name}.flac").parent.mkdir(parents=True, exist_ok=True)
            (audio / f"{name}.flac").write_bytes(encode(clip, 16_000, "FLAC", "PCM_16", None))
        recorded = [
            {"uri": f"folder:{name}.flac", "start_s": 0.0, "end_s": None, "text": text}
            for name, text in zip(names, texts, strict=True)
        ]
        spoken = [part | {"uri": "synthetic:hibari", "start_s": None} for part in recorded]
        channel_matched = encode(clips[0][:8000] * 0.5, 16_000, "FLAC", "PCM_16", None)
        common = {"audio": {"bytes": channel_matched, "path": str(tmp_path / "local.flac")}, "duration_s": 0.5}
        row = make_row(PAIR_ID, criterion="modality")
        for side, parts in (("chosen", recorded), ("rejected", spoken)):
            for turn, own in zip(row[side], (parts[:2], parts[2:]), strict=True):
                turn |= {"text": " ".join(part["text"] for part in own), "audio_ref": own, **common}
        write_data(tmp_path / "data", ("train", row))
        config = {"seed": 3, "channel": None, "sources": [{"path": str(audio)}]}
        (tmp_path / "data" / "report.json").write_text(json.dumps({"build_id": "b", "config": config}))
        return tmp_path / "data"

    return make


@pytest.fixture
def roots(tmp_path):
    return AudioRoots(by_source={"folder": tmp_path / "home_of_ann" / "folder"})


def test_the_released_row_has_scrubbed_words_and_fingerprints_in_place_of_audio(make_data, roots, tmp_path, make_tone):
    report = release(make_data(), tmp_path / "release", audio_roots=roots)
    [(split, row)] = read_rows(tmp_path / "release")
    assert split == "train"
    assert set(row) == set(features())
    for side in ("chosen", "rejected"):
        user, assistant = row[side]
        assert set(user) == {"role", "text", "duration_s", "audio_ref", "fingerprints"}
        assert (user["role"], user["text"], user["duration_s"]) == ("user", "Hello, [EMAIL] call [PHONE]", 0.5)
        assert [part["text"] for part in user["audio_ref"]] == ["Hello, [EMAIL]", "call [PHONE]"]
        assert assistant["text"] == "from [ADDRESS]"
    # One fingerprint per recorded part, of the recording before channel matching; one per synthetic turn.
    assert [len(turn["fingerprints"]) for turn in (*row["chosen"], *row["rejected"])] == [2, 1, 1, 1]
    for index, expected in enumerate([*row["chosen"][0]["fingerprints"], *row["chosen"][1]["fingerprints"]]):
        assert set(expected) == {"duration_s", "level_dbfs", "digest", "energies"}
        assert compare(expected, describe(make_tone(1.0 + index, 200.0 + 90 * index, seed=index))) == "same"
    spoken = make_tone(1.0, 200.0, seed=0)[:8000] * 0.5
    assert compare(row["rejected"][0]["fingerprints"][0], describe(spoken)) == "same"
    assert (report["scrubbed"], report["skipped"]) == ({"address": 1, "email": 1, "phone": 1}, [])
    card = (tmp_path / "release" / "README.md").read_text(encoding="utf-8")
    assert all(words in card for words in ("1 pairs without their audio", "1 address, 1 email, 1 phone"))
    rows = load_dataset(str(tmp_path / "release"), split="train", cache_dir=str(tmp_path / "cache"))
    assert rows.features == release_features()


def test_nothing_in_the_folder_identifies_a_speaker_or_the_place_of_the_build(make_data, roots, tmp_path):
    texts = ("I'm Speaker Seven, ann@example.org", "or 650-253-0000", "in 12 Elm Street. SPEAKER SEVEN!")
    release(make_data(texts), tmp_path / "release", audio_roots=roots, names=["speaker seven"])
    files = [path for path in (tmp_path / "release").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".parquet", ".md", ".json"}
    rows = json.dumps(list(read_rows(tmp_path / "release")))
    # Pages of Parquet may be compressed.
    content = b"".join([*(path.read_bytes() for path in files), rows.encode()])
    assert b"[NAME]" in content
    for secret in (*SECRETS, "SPEAKER SEVEN", str(tmp_path), "home_of_ann"):
        assert secret.encode() not in content, secret
    assert b"fLaC" not in content


def test_what_cannot_be_scrubbed_or_found_skips_the_pair(make_data, roots, tmp_path):
    report = release(make_data(("it's 650", "253 0000", "okay")), tmp_path / "release", audio_roots=roots)
    assert report["drops"] == {"identifier_across_parts": 1}
    report = release(make_data(names=("ann_lee", "b", "c")), tmp_path / "named", audio_roots=roots, names=["Ann Lee"])
    assert report["drops"] == {"name_in_reference": 1}
    folder = make_data()
    (tmp_path / "home_of_ann" / "folder" / "b.flac").unlink()
    (skip,) = release(folder, tmp_path / "release", audio_roots=roots)["skipped"]
    assert (skip["item"], skip["kind"]) == (f"pair {PAIR_ID}", "missing_audio")
    assert skip["reason"].startswith("folder:b.flac: ") and str(tmp_path) not in skip["reason"]
