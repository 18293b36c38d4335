import io
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
import yaml
from datasets.info import DatasetInfosDict
from huggingface_hub import DatasetCard

from sdiareward.dataset_builder.release import release_features
from sdiareward.dataset_builder.schema import features
from sdiareward.dataset_builder.shards import ShardWriter
from sdiareward.dataset_builder.sources import SOURCES
from sdiareward.publishing.dataset_repository import plan_dataset
from sdiareward.publishing.licences import CORPORA, LICENCES, find_licence, why_withheld
from sdiareward.publishing.listening_table import listening_features


ROOT = Path(__file__).parents[1]
# Parquet compresses its pages: what a file holds is looked for in its bytes and in its rows.
FORBIDDEN, FREE = (random.Random(seed).randbytes(400) for seed in (1, 2))


def make_row(pair_id="free", audio=FREE, criterion="modality", **changes):
    turns = {
        side: [
            {
                "role": role,
                "text": f"{pair_id} {side} {role}",
                "audio": {"bytes": audio + f"{pair_id}{side}{role}".encode(), "path": f"{pair_id}-{side}.flac"},
                "duration_s": 1.5,
                "audio_ref": [
                    {"uri": uri, "start_s": 0.0, "end_s": 1.5, "text": f"{pair_id} {side} {role}"},
                ],
            }
            for role in ("user", "assistant")
        ]
        for side, uri in (("chosen", "folder:call.flac"), ("rejected", "synthetic:piper"))
    }
    return {
        **dict.fromkeys(features(), None),
        "pair_id": pair_id,
        "criterion": criterion,
        "subset": "wild" if criterion == "modality" else "colloquialness",
        "source": "folder",
        "primary": "Unknown",
        "secondary": "Unknown",
        "synthesizer": "piper",
        "group_id": "0123456789abcdef",
        "native_coding": [],
        "language": "en",
        "license": "CC-BY-4.0",
        **turns,
        **changes,
    }


@pytest.fixture
def make_data(tmp_path):
    """Return a function writing `(split, row)` as a data set folder."""

    def make(*rows, name="sdiareward"):
        with ShardWriter(tmp_path / name) as writer:
            for split, row in rows:
                writer.write(split, row)
        return tmp_path / name

    return make


def content_of(file):
    return file.source if isinstance(file.source, bytes) else file.source.read_bytes()


def rows_of(plan, folder):
    """Return the rows of all Parquet files below a folder of the repository, by `pair_id`."""
    files = [file for file in plan.files if file.path_in_repo.startswith(f"{folder}/")]
    return {row["pair_id"]: row for file in files for row in pq.read_table(file.source).to_pylist()}


def says(plan, secret):
    """Tell whether any file of a plan holds `secret`, in its bytes or in its rows."""
    rows = [rows_of(plan, folder) for folder in ("data", "listen", "metadata")]
    return any(secret in content_of(file) for file in plan.files) or holds(rows, secret)


def holds(value, secret):
    if isinstance(value, dict | list):
        return any(holds(part, secret) for part in (value.values() if isinstance(value, dict) else value))
    return secret in (value if isinstance(value, bytes) else str(value).encode())


def header_of(plan):
    return yaml.safe_load(content_of(plan.files[0]).decode().split("\n---\n")[0].removeprefix("---\n"))


def test_shards_whose_rows_may_all_be_published_are_sent_as_they_were_built(make_data):
    folder = make_data(("train", make_row()), ("test", make_row("other", criterion="colloquialness")))
    plan = plan_dataset(folder)
    assert {file.path_in_repo: file.source for file in plan.files if file.path_in_repo.startswith("data/")} == {
        "data/modality/train-00000-of-00001.parquet": folder / "data/modality/train-00000-of-00001.parquet",
        "data/colloquialness/test-00000-of-00001.parquet": folder / "data/colloquialness/test-00000-of-00001.parquet",
    }
    assert says(plan, FREE)
    assert plan.repo_type == "dataset"


def refer_to(uri):
    """Return a row that claims a free licence while one turn of it was cut from somewhere else."""
    row = make_row("forbidden", FORBIDDEN)
    row["rejected"][1]["audio_ref"].append({"uri": uri, "start_s": 0.0, "end_s": 1.0, "text": "well"})
    return row


LEAKS = {
    "a licence that forbids it": make_row("forbidden", FORBIDDEN, license="LicenseRef-YouTube"),
    "the same in other letters, with spaces": make_row("forbidden", FORBIDDEN, license=" licenseref-YOUTUBE\n"),
    "no derivatives": make_row("forbidden", FORBIDDEN, license="CC-BY-ND-4.0"),
    "two licences at once": make_row("forbidden", FORBIDDEN, license="CC-BY-4.0 AND LicenseRef-MELD"),
    "a free licence with something behind": make_row("forbidden", FORBIDDEN, license="CC-BY-4.0\x00"),
    "no licence": make_row("forbidden", FORBIDDEN, license=None),
    "an empty licence": make_row("forbidden", FORBIDDEN, license=""),
    "a licence nobody knows": make_row("forbidden", FORBIDDEN, license="unknown"),
    "a source that is not passed on": make_row("forbidden", FORBIDDEN, source="meld", license="CC0-1.0"),
    "a source in other letters": make_row("forbidden", FORBIDDEN, source=" DailyTalk", license="CC-BY-SA-4.0"),
    "a reference to the web": refer_to("youtube:dQw4w9WgXcQ"),
    "a reference in other letters": refer_to(" YouTube:dQw4w9WgXcQ"),
    "a reference to an archive of one": refer_to("meld:archive.tar#clip.mp4"),
    "an address in place of a reference": refer_to("https://example.org/clip.mp3"),
    "a reference to a corpus nobody knows": refer_to("secret:clip.wav"),
}


@pytest.mark.parametrize("row", LEAKS.values(), ids=LEAKS)
def test_audio_that_must_stay_is_in_no_file(row, make_data):
    folder = make_data(("train", make_row()), ("train", row), ("test", make_row("last", FREE)))
    plan = plan_dataset(folder)
    assert not says(plan, FORBIDDEN)
    assert set(rows_of(plan, "data")) == {"free", "last"}
    assert rows_of(plan, "data")["free"] == make_row()
    released = rows_of(plan, "metadata")
    assert set(released) == {"free", "forbidden", "last"}
    assert all(
        "audio" not in turn for row in released.values() for side in ("chosen", "rejected") for turn in row[side]
    )
    assert plan.notes[0].startswith("the audio of 1 of 3 pairs stays here; by licence: ")


@pytest.mark.parametrize("name", ["cc-by-4.0", " CC-BY-SA-3.0 ", "Apache-2.0", "gpl-2.0-ONLY"])
def test_a_free_licence_is_read_in_any_case(name, make_data):
    assert find_licence(name) is not None
    assert set(rows_of(plan_dataset(make_data(("train", make_row(license=name)))), "data")) == {"free"}


def test_a_shard_of_forbidden_rows_alone_is_left_out_and_its_configuration_too(make_data):
    forbidden = make_row("forbidden", FORBIDDEN, license="LicenseRef-MELD")
    plan = plan_dataset(make_data(("train", forbidden), ("test", make_row(criterion="colloquialness"))))
    assert [config["config_name"] for config in header_of(plan)["configs"]] == [
        "default",
        "colloquialness",
        "esdr_bench",
        "metadata",
    ]
    assert not says(plan, FORBIDDEN)


def test_a_data_set_whose_audio_must_all_stay_is_its_table(make_data):
    plan = plan_dataset(make_data(("train", make_row("forbidden", FORBIDDEN, license=None))))
    assert [config["config_name"] for config in header_of(plan)["configs"]] == ["metadata"]
    assert [file.path_in_repo for file in plan.files] == [
        "README.md",
        "metadata/modality/train-00000-of-00001.parquet",
    ]


def write_shard(folder, rows, schema, name="modality/train-00000-of-00001.parquet"):
    path = folder / "data" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def test_columns_that_a_pair_does_not_have_are_not_sent(make_data):
    folder = make_data(("train", make_row()))
    table = pq.read_table(folder / "data/modality/train-00000-of-00001.parquet")
    table = table.append_column("raw_audio", pa.array([FORBIDDEN]))
    write_shard(folder, table.to_pylist(), table.schema)
    plan = plan_dataset(folder)
    assert not says(plan, FORBIDDEN)
    assert rows_of(plan, "data") == {"free": make_row()}


def test_fields_that_a_turn_does_not_have_are_not_sent(make_data):
    folder = make_data(("train", make_row()))
    row = make_row()
    for side in ("chosen", "rejected"):
        row[side] = [{**turn, "raw": FORBIDDEN} for turn in row[side]]
    table = pa.Table.from_pylist([row])
    write_shard(folder, table.to_pylist(), table.schema)
    plan = plan_dataset(folder)
    assert not says(plan, FORBIDDEN)
    assert rows_of(plan, "data") == {"free": make_row()}


def test_what_is_written_about_a_file_is_not_sent(make_data):
    folder = make_data(("train", make_row()))
    schema = features().arrow_schema
    write_shard(folder, [make_row()], schema.with_metadata({**schema.metadata, b"note": FORBIDDEN}))
    assert not says(plan_dataset(folder), FORBIDDEN)


def test_files_that_happen_to_lie_in_the_folder_are_not_sent(make_data):
    folder = make_data(("train", make_row()))
    for name in ("call.flac", "report.json", "data/raw.parquet", "data/modality/more.parquet", "data/modality/.x.tmp"):
        (folder / name).write_bytes(b"{}" if name.endswith("json") else FORBIDDEN)
    plan = plan_dataset(folder)
    assert [file.path_in_repo for file in plan.files] == [
        "README.md",
        "data/modality/train-00000-of-00001.parquet",
        "metadata/modality/train-00000-of-00001.parquet",
    ]
    assert not says(plan, FORBIDDEN)


def test_a_shard_of_another_criterion_or_split_is_refused(make_data):
    folder = make_data(("train", make_row()))
    write_shard(folder, [make_row()], features().arrow_schema, "other/train-00000-of-00001.parquet")
    with pytest.raises(ValueError, match="lies under criterion 'other' and split 'train'"):
        plan_dataset(folder)


def test_a_shard_that_is_no_parquet_is_refused(make_data):
    folder = make_data(("train", make_row()))
    (folder / "data/modality/train-00000-of-00001.parquet").write_bytes(b"PAR1 it is not")
    with pytest.raises(ValueError, match="not a Parquet file"):
        plan_dataset(folder)


def test_a_folder_without_shards_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="build the data set first"):
        plan_dataset(tmp_path)


def test_nothing_tells_where_the_data_set_was_built(make_data, tmp_path):
    row = make_row()
    row["chosen"][0]["audio"]["path"] = "/home/ann/secret/call.flac"
    folder = make_data(("train", row))
    settings = {
        "seed": 3,
        "channel": None,
        "output_dir": "/home/ann/secret",
        "sources": [{"path": "/home/ann/secret"}],
    }
    report = {"config": settings, "skipped": [{"item": "a", "reason": "/home/ann/secret"}]}
    (folder / "report.json").write_text(json.dumps(report))
    plan = plan_dataset(folder)
    assert not says(plan, b"/home/ann") and not says(plan, str(tmp_path).encode())
    assert rows_of(plan, "data")["free"]["chosen"][0]["audio"]["path"] == "call.flac"
    assert "(seed 3); 1 item was skipped" in content_of(plan.files[0]).decode()


def test_a_folder_that_an_earlier_version_built_gets_the_columns_of_today(make_data):
    folder = make_data(("train", make_row()))
    row = make_row()
    del row["native_coding"]
    for side in ("chosen", "rejected"):
        row[side] = [{name: value for name, value in turn.items() if name != "audio_ref"} for turn in row[side]]
    table = pa.Table.from_pylist([row])
    write_shard(folder, table.to_pylist(), table.schema)
    plan = plan_dataset(folder)
    [file] = [file for file in plan.files if file.path_in_repo.startswith("data/")]
    assert pq.read_schema(file.source).equals(features().arrow_schema)
    assert rows_of(plan, "data")["free"]["chosen"][0]["audio_ref"] is None
    assert rows_of(plan, "metadata")["free"]["chosen"][0]["text"] == "free chosen user"


def test_the_table_without_audio_is_scrubbed(make_data):
    row = make_row("forbidden", license="LicenseRef-YouTube")
    row["chosen"][0]["audio_ref"][0]["text"] = "Write to ann@example.org"
    plan = plan_dataset(make_data(("train", row)))
    [turn, _] = rows_of(plan, "metadata")["forbidden"]["chosen"]
    assert (turn["text"], turn["audio_ref"][0]["text"]) == ("Write to [EMAIL]", "Write to [EMAIL]")
    assert "(1 email)" in content_of(plan.files[0]).decode()
    assert not says(plan, b"ann@example.org")


def test_a_pair_whose_phone_number_goes_over_two_parts_is_in_no_table(make_data):
    row = make_row("forbidden", license="LicenseRef-YouTube")
    row["chosen"][0]["audio_ref"] = [
        {"uri": "youtube:a", "start_s": 0.0, "end_s": 1.0, "text": text} for text in ("it's 650", "253 0000")
    ]
    plan = plan_dataset(make_data(("train", row), ("train", make_row())))
    assert set(rows_of(plan, "metadata")) == {"free"}
    assert any(note.startswith("1 pairs are in no table") for note in plan.notes)
    assert "every pair but 1, whose personal details" in content_of(plan.files[0]).decode()


def test_a_release_that_is_given_is_the_table(make_data, tmp_path):
    row = make_row("forbidden", license="LicenseRef-YouTube")
    folder = make_data(("train", row))
    for side in ("chosen", "rejected"):
        row[side] = [
            {**{name: turn[name] for name in turn if name != "audio"}, "fingerprints": ["f"]} for turn in row[side]
        ]
    with ShardWriter(tmp_path / "release", release_features()) as writer:
        writer.write("train", row)
    plan = plan_dataset(folder, metadata=tmp_path / "release", repo_id="me/pairs")
    assert rows_of(plan, "metadata")["forbidden"]["chosen"][0]["fingerprints"] == ["f"]
    assert 'hf download me/pairs --repo-type dataset --include "metadata/*"' in content_of(plan.files[0]).decode()
    assert not any("fingerprints" in note for note in plan.notes)


def test_a_release_that_holds_audio_is_refused(make_data):
    folder = make_data(("train", make_row("forbidden", FORBIDDEN, license=None)))
    with pytest.raises(ValueError, match="does not have the columns of a metadata release"):
        plan_dataset(folder, metadata=folder)


def test_the_card_describes_every_configuration_as_datasets_reads_it(make_data):
    rows = [("train", make_row(f"t{n}")) for n in range(3)] + [("test", make_row("e", criterion="colloquialness"))]
    plan = plan_dataset(make_data(*rows))
    data = DatasetCard(content_of(plan.files[0]).decode()).data
    infos = DatasetInfosDict.from_dataset_card_data(data)
    assert {name: {s: info.splits[s].num_examples for s in info.splits} for name, info in infos.items()} == {
        "default": {"train": 3, "test": 1},
        "modality": {"train": 3},
        "colloquialness": {"test": 1},
        "esdr_bench": {"test": 1},
        "metadata": {"train": 3, "test": 1},
    }
    assert all(infos[name].features == features() for name in infos if name != "metadata")
    assert infos["metadata"].features == release_features()
    files = [file.size_bytes for file in plan.files if file.path_in_repo.startswith("data/")]
    assert infos["default"].download_size == sum(files)
    assert (data.license, data.language, data.size_categories) == ("cc-by-4.0", ["en"], "n<1K")
    assert data.source_datasets == ["extended|other-folder"]
    assert data.task_categories == ["audio-classification"]


def test_the_card_names_licences_reasons_and_what_the_data_is_not_for(make_data):
    rows = [
        make_row(),
        make_row("b", license="CC0-1.0", source="asterisk"),
        make_row("c", source="meld|x", license=None),
    ]
    plan = plan_dataset(make_data(*[("train", row) for row in rows]))
    card = content_of(plan.files[0]).decode()
    for words in (
        "| [CC-BY-4.0](https://spdx.org/licenses/CC-BY-4.0.html) | 1 | 0 |",
        "| None | 0 | 1 |",
        "1 of 3 pairs are in `metadata` only:\n\n- 1 pairs: the licence None is not known to allow it.",
        "- Asterisk core sounds, (c) 2003-2010 Allison Smith",
        "## Consent and removal",
        "## Personal data",
        "clone a person",
    ):
        assert words in card
    assert header_of(plan)["license"] == ["cc-by-4.0", "cc0-1.0"]
    assert "$" not in card


def test_the_notice_of_the_game_goes_with_its_recordings_and_only_with_them(make_data):
    row = make_row(license="LicenseRef-Flight-of-the-Amazon-Queen", source="amazon_queen")
    plan = plan_dataset(make_data(("train", row)))
    [notice] = [file for file in plan.files if file.path_in_repo.startswith("notices/")]
    assert content_of(notice) == (ROOT / "sample/amazon_queen/readme.txt").read_bytes()
    assert header_of(plan)["license"] == "other"
    assert f"]({notice.path_in_repo}) | 1 | 0 |" in content_of(plan.files[0]).decode()
    withheld = make_row(license="LicenseRef-Flight-of-the-Amazon-Queen", source="youtube")
    plan = plan_dataset(make_data(("train", withheld), name="withheld"))
    assert not any(file.path_in_repo.startswith("notices/") for file in plan.files)


def test_what_the_plan_says_loads_whole_and_streamed(make_data, tmp_path):
    from datasets import Audio, List, load_dataset

    forbidden = make_row("forbidden", FORBIDDEN, license=None)
    rows = [("train", make_row()), ("train", forbidden), ("test", make_row("e", criterion="colloquialness"))]
    for file in plan_dataset(make_data(*rows)).files:
        path = tmp_path / "repository" / file.path_in_repo
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content_of(file))
    folder, cache = str(tmp_path / "repository"), str(tmp_path / "cache")
    for name, ids in (
        ("default", {"train": ["free"], "test": ["e"]}),
        ("esdr_bench", {"test": ["e"]}),
        ("metadata", {"train": ["free", "forbidden"], "test": ["e"]}),
    ):
        loaded = load_dataset(folder, name, cache_dir=cache)
        assert {split: sorted(pairs["pair_id"][:]) for split, pairs in loaded.items()} == {
            split: sorted(found) for split, found in ids.items()
        }
        streamed = load_dataset(folder, name, streaming=True)
        assert streamed["test"].features == loaded["test"].features
        assert [row["pair_id"] for row in streamed["test"].select_columns(["pair_id"])] == ["e"]
    turn = load_dataset(folder, cache_dir=cache)["train"].features["chosen"]
    assert isinstance(turn, List) and isinstance(turn.feature["audio"], Audio)


def test_the_page_of_the_hub_can_play_the_first_pairs_of_each_subset(make_data, make_tone, tmp_path):
    from sdiareward.dataset_builder.channel import encode

    def spoken(pair_id, **changes):
        row = make_row(pair_id, **changes)
        for side in ("chosen", "rejected"):
            for turn, duration_s in zip(row[side], (0.5, 0.25), strict=True):
                clip = encode(make_tone(duration_s), 16_000, "FLAC", "PCM_16", None)
                turn["audio"] = {"bytes": clip, "path": None}
        return row

    (tmp_path / "secret.flac").write_bytes(encode(make_tone(2.0), 16_000, "FLAC", "PCM_16", None))
    elsewhere = spoken("elsewhere", criterion="colloquialness")
    elsewhere["chosen"][0]["audio"] = {"bytes": None, "path": str(tmp_path / "secret.flac")}
    rows = [("test", spoken(f"m{number:02}")) for number in range(12)]
    rows += [("test", spoken("c", criterion="colloquialness")), ("test", elsewhere), ("train", spoken("t"))]
    rows.append(("test", spoken("forbidden", license=None)))
    plan = plan_dataset(make_data(*rows))
    heard = rows_of(plan, "listen")
    assert set(heard) == {*(f"m{number:02}" for number in range(10)), "c"}
    # Two turns and half a second between them.
    assert soundfile.info(io.BytesIO(heard["c"]["chosen_audio"]["bytes"])).frames == 16_000 * 1.25
    assert heard["c"]["rejected_text"] == "user: c rejected user\nassistant: c rejected assistant"
    infos = DatasetInfosDict.from_dataset_card_data(DatasetCard(content_of(plan.files[0]).decode()).data)
    assert infos["listen"].features == listening_features()
    assert infos["listen"].splits["test"].num_examples == 11
    assert "1 of the pairs to listen to cannot be decoded: are these recordings whole?" in plan.notes


def test_planning_twice_gives_the_same_files(make_data):
    folder = make_data(("train", make_row()), ("train", make_row("forbidden", FORBIDDEN, license=None)))
    first = {file.path_in_repo: content_of(file) for file in plan_dataset(folder).files}
    assert {file.path_in_repo: content_of(file) for file in plan_dataset(folder).files} == first


def test_every_source_of_the_builder_is_known_by_what_it_allows():
    assert set(SOURCES) <= set(CORPORA)
    for name in ("youtube", "meld", "dailytalk"):
        assert why_withheld(make_row(source=name, license="CC0-1.0"))
    for licence in LICENCES.values():
        assert licence.notice is None or (ROOT / "cards/notices" / licence.notice).is_file()
