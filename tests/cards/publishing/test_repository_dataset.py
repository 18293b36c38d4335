import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from support.paths import ROOT
from support.repository_world import FORBIDDEN, FREE, content_of, make_row, rows_of, says, write_release

from sdiareward.cards.licences import CORPORA, LICENCES, find_licence, find_redistribution_block
from sdiareward.cards.publishing.dataset_repository import plan_dataset
from sdiareward.cli import main
from sdiareward.dataset_builder.sources import SOURCES
from sdiareward.pairs.schema import features


def test_shards_whose_rows_may_all_be_published_are_sent_as_they_were_built(make_data):
    folder = make_data(("train", make_row()), ("test", make_row("other", criterion="colloquialness")))
    plan = plan_dataset(folder)
    assert {file.path_in_repo: file.source for file in plan.files if file.path_in_repo.startswith("data/")} == {
        "data/modality/train-00000-of-00001.parquet": folder / "data/modality/train-00000-of-00001.parquet",
        "data/colloquialness/test-00000-of-00001.parquet": folder / "data/colloquialness/test-00000-of-00001.parquet",
    }
    assert says(plan, FREE)
    assert plan.repo_type == "dataset"


def test_pairs_of_families_are_published_apart_from_what_is_measured(make_data):
    family = make_row("family", criterion="joint", subset="all", synthesizer="recording")
    rows = [
        (split, {**row, "pair_id": f"{row['pair_id']} {split}"})
        for split in ("train", "test")
        for row in (make_row(), family)
    ]
    plan = plan_dataset(make_data(*rows))
    (card,) = [content_of(file).decode() for file in plan.files if file.path_in_repo == "README.md"]
    header = yaml.safe_load(card.split("---")[1])
    files = {
        config["config_name"]: {entry["split"]: entry["path"] for entry in config["data_files"]}
        for config in header["configs"]
    }
    assert files["default"] == {"train": "data/*/train-*.parquet", "test": ["data/modality/test-*.parquet"]}
    assert files["joint"] == {split: f"data/joint/{split}-*.parquet" for split in ("train", "test")}
    counts = {
        info["config_name"]: {split["name"]: split["num_examples"] for split in info["splits"]}
        for info in header["dataset_info"]
    }
    assert counts["default"] == {"train": 2, "test": 1}
    assert counts["joint"] == {"train": 1, "test": 1}
    assert "in training those of `joint` too" in card


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
    assert plan.notes[0].startswith("the audio of 1 of 3 pairs is not published; by licence: ")


@pytest.mark.parametrize("name", ["cc-by-4.0", " CC-BY-SA-3.0 ", "Apache-2.0", "gpl-2.0-ONLY"])
def test_a_free_licence_is_read_in_any_case(name, make_data):
    assert find_licence(name) is not None
    assert set(rows_of(plan_dataset(make_data(("train", make_row(license=name)))), "data")) == {"free"}


def write_shard(folder, rows, schema, name="modality/train-00000-of-00001.parquet"):
    path = folder / "data" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def test_columns_fields_and_metadata_that_a_pair_does_not_have_are_not_sent(make_data):
    folder = make_data(("train", make_row()))
    table = pq.read_table(folder / "data/modality/train-00000-of-00001.parquet")
    [row] = table.append_column("raw_audio", pa.array([FORBIDDEN])).to_pylist()
    for side in ("chosen", "rejected"):
        row[side] = [{**turn, "raw": FORBIDDEN} for turn in row[side]]
    write_shard(folder, [row], None)
    plan = plan_dataset(folder)
    assert not says(plan, FORBIDDEN)
    assert rows_of(plan, "data") == {"free": make_row()}
    schema = features().arrow_schema
    write_shard(folder, [make_row()], schema.with_metadata({**schema.metadata, b"note": FORBIDDEN}))
    assert not says(plan_dataset(folder), FORBIDDEN)


def test_files_that_happen_to_lie_in_the_folder_are_not_sent(make_data):
    folder = make_data(("train", make_row()))
    for name in ("call.flac", "report.json", "data/raw.parquet", "data/modality/more.parquet", "data/modality/.x.tmp"):
        (folder / name).write_bytes(b"{}" if name.endswith("json") else FORBIDDEN)
    plan = plan_dataset(folder)
    assert [file.path_in_repo for file in plan.files] == ["README.md", "data/modality/train-00000-of-00001.parquet"]
    assert not says(plan, FORBIDDEN)


def test_a_shard_of_another_criterion_or_that_is_no_parquet_is_refused(make_data):
    folder = make_data(("train", make_row()))
    write_shard(folder, [make_row()], features().arrow_schema, "other/train-00000-of-00001.parquet")
    with pytest.raises(ValueError, match="lies under criterion 'other' and split 'train'"):
        plan_dataset(folder)
    shutil.rmtree(folder / "data/other")
    (folder / "data/modality/train-00000-of-00001.parquet").write_bytes(b"PAR1 it is not")
    with pytest.raises(ValueError, match="not a Parquet file"):
        plan_dataset(folder)


def test_nothing_tells_where_the_data_set_was_built(make_data, tmp_path):
    row = make_row()
    row["chosen"][0]["audio"]["path"] = "/home/ann/secret/call.flac"
    folder = make_data(("train", row))
    secret = "/home/ann/secret"
    settings = {"seed": 3, "channel": None, "output_dir": secret, "sources": [{"path": secret}]}
    report = {"config": settings, "skipped": [{"item": "a", "reason": secret}]}
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


def test_a_data_set_whose_audio_must_all_stay_is_published_as_its_release_or_not_at_all(make_data, tmp_path):
    row = make_row("forbidden", FORBIDDEN, license=None)
    folder = make_data(("train", row))
    with pytest.raises(ValueError, match="no audio may be published; give its metadata release"):
        plan_dataset(folder)
    plan = plan_dataset(folder, metadata=write_release(tmp_path / "release", ("train", row)))
    assert not says(plan, FORBIDDEN)
    assert [file.path_in_repo for file in plan.files] == [
        "README.md",
        "metadata/modality/train-00000-of-00001.parquet",
    ]
    assert "1 of 1 pairs are in `metadata` only" in content_of(plan.files[0]).decode()


def test_a_release_that_is_given_is_published_too_and_what_it_omits_is_counted(make_data, tmp_path):
    row = make_row("forbidden", license="LicenseRef-YouTube")
    folder, release = make_data(("train", row), ("train", make_row("lost"))), tmp_path / "release"
    plan = plan_dataset(folder, metadata=write_release(release, ("train", row)), repo_id="me/pairs")
    assert list(rows_of(plan, "metadata")) == ["forbidden"]
    card = content_of(plan.files[0]).decode()
    assert 'hf download me/pairs --repo-type dataset --include "metadata/*"' in card
    assert "`metadata` has every pair but 1, which its release omits, without audio" in card
    assert "1 pairs are not in the metadata release." in plan.notes
    assert not any("no metadata release" in note for note in plan.notes)


def test_a_release_of_another_data_set_or_with_audio_is_refused(make_data, tmp_path):
    folder = make_data(("train", make_row()))
    other = write_release(tmp_path / "release", ("train", make_row()), ("train", make_row("elsewhere")))
    with pytest.raises(ValueError, match="1 of its 2 pairs, such as elsewhere, are not in the data set; give"):
        plan_dataset(folder, metadata=other)
    with pytest.raises(ValueError, match="does not have the columns of a metadata release"):
        plan_dataset(folder, metadata=folder)


def test_a_dry_run_leaves_nothing_behind(make_data, tmp_path, monkeypatch, capsys):
    folder = make_data(("train", make_row()))
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(folder)
    assert main(["push", "dataset", ".", "me/pairs"]) == 0
    assert "Nothing was sent" in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_written_anew_lies_beside_the_folder_is_named_and_the_same_each_time(make_data, tmp_path, monkeypatch):
    monkeypatch.chdir(make_data(("train", make_row()), ("train", make_row("forbidden", FORBIDDEN, license=None))))
    plan = plan_dataset(Path("."))
    first = {file.path_in_repo: content_of(file) for file in plan.files}
    work = tmp_path / "sdiareward-publish"
    assert (work / "data").is_dir()
    assert f"rewritten shards are in {work}, which may be deleted after the push." in plan.notes
    assert {file.path_in_repo: content_of(file) for file in plan_dataset(Path(".")).files} == first


def test_every_source_of_the_builder_is_known_by_what_it_allows():
    assert set(SOURCES) <= set(CORPORA)
    for name in ("youtube", "meld", "dailytalk"):
        assert find_redistribution_block(make_row(source=name, license="CC0-1.0"))
    for licence in LICENCES.values():
        assert licence.notice is None or (ROOT / "cards/notices" / licence.notice).is_file()
