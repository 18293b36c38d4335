"""The repository of a data set: which rows are in it, and its card."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets.info import DatasetInfosDict
from huggingface_hub import DatasetCard
from support.paths import ROOT
from support.repository_world import FORBIDDEN, FREE, content_of, make_row, rows_of, says, write_release

from sdiareward.cards.push import plan_dataset
from sdiareward.dataset_builder.licences import CORPORA, LICENCES, find_redistribution_block
from sdiareward.dataset_builder.sources import SOURCES
from sdiareward.pairs.schema import features, make_arrow_schema


QUEEN = {"license": "LicenseRef-Flight-of-the-Amazon-Queen", "source": "amazon_queen"}


def names_of(plan):
    return [file.path_in_repo for file in plan.files]


def card_of(plan):
    return content_of(plan.files[0]).decode()


def mask_sizes(card):
    return re.sub(r"(num_bytes|download_size|dataset_size): \d+", r"\1: N", card)


def refer_to(uri):
    """Return a row that claims a free licence while one turn of it was cut from somewhere else."""
    row = make_row("forbidden", FORBIDDEN)
    row["rejected"][1]["audio_ref"].append({"uri": uri, "start_s": 0.0, "end_s": 1.0, "text": "well"})
    return row


LICENCES_THAT_FORBID = (
    *("LicenseRef-YouTube", " licenseref-YOUTUBE\n", "CC-BY-ND-4.0", "CC-BY-4.0 AND LicenseRef-MELD", "CC-BY-4.0\x00"),
    *(None, "", "unknown"),
)
SOURCES_THAT_FORBID = ("meld", " DailyTalk", "youtube")
ORIGINS_THAT_FORBID = (
    *("youtube:dQw4w9WgXcQ", " YouTube:d", "meld:a.tar#clip.mp4", "https://a.org/clip.mp3", "secret:a.wav"),
)
LEAKS = {
    **{f"licence {name!r}": make_row("forbidden", FORBIDDEN, license=name) for name in LICENCES_THAT_FORBID},
    **{f"source {name!r}": make_row("forbidden", FORBIDDEN, source=name) for name in SOURCES_THAT_FORBID},
    **{f"reference {uri!r}": refer_to(uri) for uri in ORIGINS_THAT_FORBID},
}


@pytest.mark.parametrize("row", LEAKS.values(), ids=LEAKS)
def test_audio_that_must_stay_is_in_no_file(row, make_data):
    assert find_redistribution_block(row)
    plan = plan_dataset(make_data(("train", make_row()), ("train", row), ("test", make_row("last", FREE))))
    assert not says(plan, FORBIDDEN) and says(plan, FREE)
    assert rows_of(plan, "data")["free"] == make_row() and set(rows_of(plan, "data")) == {"free", "last"}
    assert plan.notes[0].startswith("the audio of 1 of 3 pairs is not published; by licence: ")


@pytest.mark.parametrize("name", ["cc-by-4.0", " CC-BY-SA-3.0 ", "Apache-2.0", "gpl-2.0-ONLY", "PDDL-1.0"])
def test_a_free_licence_is_read_in_any_case(name):
    assert find_redistribution_block(make_row(license=name)) is None


def test_every_source_of_the_builder_is_known_by_what_it_allows():
    assert set(SOURCES) <= set(CORPORA)
    for licence in LICENCES.values():
        assert licence.notice is None or (ROOT / "cards/notices" / licence.notice).is_file()


def test_shards_are_sent_as_they_were_built_and_other_files_of_the_folder_are_not(make_data):
    folder = make_data(("train", make_row()), ("test", make_row("other", criterion="colloquialness")))
    for name in ("call.flac", "report.json", "data/raw.parquet", "data/modality/more.parquet", "data/modality/.x.tmp"):
        (folder / name).write_bytes(b"{}" if name.endswith("json") else FORBIDDEN)
    plan = plan_dataset(folder)
    shards = ["colloquialness/test-00000-of-00001.parquet", "modality/train-00000-of-00001.parquet"]
    assert names_of(plan) == ["README.md", *(f"data/{name}" for name in shards)] and plan.repo_type == "dataset"
    assert [content_of(file) for file in plan.files[1:]] == [(folder / "data" / name).read_bytes() for name in shards]


def write_shard(folder, rows, schema=None, name="modality/train-00000-of-00001.parquet"):
    path = folder / "data" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def change(row, **turn_fields):
    return {**row, **{side: [{**turn, **turn_fields} for turn in row[side]] for side in ("chosen", "rejected")}}


SCHEMA = make_arrow_schema(features())
LOCAL = {"bytes": b"", "path": "/home/ann/secret/call.flac"}
WRONG_SHARDS = {
    "a pair that must stay beside others": ([make_row(), LEAKS["licence None"]], SCHEMA, "pair forbidden must not be"),
    "another column": ([{**make_row(), "raw_audio": FORBIDDEN}], None, "other columns"),
    "another field": ([change(make_row(), raw=FORBIDDEN)], None, "other columns"),
    "metadata": ([make_row()], SCHEMA.with_metadata({**SCHEMA.metadata, b"note": FORBIDDEN}), "other columns"),
    "a local folder": ([change(make_row(), audio=LOCAL)], SCHEMA, "pair free names the local file '/home/ann"),
}


@pytest.mark.parametrize(("rows", "schema", "message"), WRONG_SHARDS.values(), ids=WRONG_SHARDS)
def test_a_shard_that_may_not_be_sent_whole_is_refused(rows, schema, message, make_data):
    folder = make_data(("train", make_row()))
    write_shard(folder, rows, schema)
    with pytest.raises(ValueError, match=f"train-00000-of-00001.parquet: .*{message}"):
        plan_dataset(folder)


def test_a_shard_of_another_criterion_or_that_is_no_parquet_is_refused(make_data):
    folder = make_data(("train", make_row()))
    (folder / "data/modality/train-00000-of-00001.parquet").write_bytes(b"PAR1 it is not")
    with pytest.raises(ValueError, match="not a Parquet file"):
        plan_dataset(folder)
    write_shard(folder, [make_row()], name="another/train-00000-of-00001.parquet")
    with pytest.raises(ValueError, match="lies under criterion 'another' and split 'train'"):
        plan_dataset(folder)


def test_the_card_of_free_pairs(make_data, snapshot):
    family = make_row("family", criterion="joint", subset="all", synthesizer="recording")
    rows = [("train", make_row("a")), ("train", make_row("b", license="CC0-1.0", source="asterisk"))]
    rows += [("train", make_row("c", **QUEEN)), ("test", make_row("d", criterion="colloquialness", language="de-DE"))]
    folder = make_data(*rows, ("train", family), ("test", {**family, "pair_id": "family 2"}))
    settings = {"seed": 3, "channel": {"coding": "mulaw"}, "output_dir": "/home/ann/secret"}
    skipped = [{"item": "a", "reason": "/home/ann/secret"}]
    (folder / "report.json").write_text(json.dumps({"config": settings, "skipped": skipped}))
    plan = plan_dataset(folder, repo_id="me/pairs")
    assert mask_sizes(card_of(plan)) == snapshot
    [notice] = [file for file in plan.files if file.path_in_repo.startswith("notices/")]
    assert content_of(notice) == (ROOT / "sample/amazon_queen/readme.txt").read_bytes()
    infos = DatasetInfosDict.from_dataset_card_data(DatasetCard(card_of(plan)).data)
    assert all(info.features == features() for info in infos.values())
    sizes = [file.upload_info.size for file in plan.files if file.path_in_repo.startswith("data/modality/")]
    assert infos["modality"].download_size == sum(sizes)


def test_the_card_of_pairs_of_which_some_must_stay(make_data, tmp_path, snapshot):
    rows = [("train", make_row()), ("train", make_row("lost")), ("train", LEAKS["licence None"])]
    rows += [("test", make_row("x", source="youtube", **{"license": QUEEN["license"]}))]
    release = write_release(tmp_path / "release", rows[0], *rows[2:])
    plan = plan_dataset(make_data(*rows), metadata=release, repo_id="me/pairs")
    assert mask_sizes(card_of(plan)) == snapshot
    assert set(rows_of(plan, "metadata")) == {"free", "forbidden", "x"}
    assert plan.notes == snapshot
    assert not any(name.startswith("notices/") for name in names_of(plan))


def test_a_data_set_whose_audio_must_all_stay_is_published_as_its_release_or_not_at_all(make_data, tmp_path):
    row = LEAKS["licence None"]
    folder = make_data(("train", row))
    with pytest.raises(ValueError, match="no audio may be published; give its metadata release"):
        plan_dataset(folder)
    plan = plan_dataset(folder, metadata=write_release(tmp_path / "release", ("train", row)))
    assert not says(plan, FORBIDDEN)
    assert names_of(plan) == ["README.md", "metadata/modality/train-00000-of-00001.parquet"]
    assert "1 of 1 pairs are in `metadata` only" in card_of(plan)


def test_a_release_of_another_data_set_or_with_audio_is_refused(make_data, tmp_path):
    folder = make_data(("train", make_row()))
    other = write_release(tmp_path / "release", ("train", make_row()), ("train", make_row("elsewhere")))
    with pytest.raises(ValueError, match="1 of its 2 pairs, such as elsewhere, are not in the data set; give"):
        plan_dataset(folder, metadata=other)
    with pytest.raises(ValueError, match="does not have the columns of a metadata release"):
        plan_dataset(folder, metadata=folder)


@pytest.mark.slow
def test_what_is_planned_loads_whole_and_streamed(make_data, write_plan, tmp_path):
    from datasets import Audio, List, load_dataset

    rows = [("train", make_row()), ("train", LEAKS["licence None"])]
    rows.append(("test", make_row("e", criterion="colloquialness")))
    release = write_release(tmp_path / "release", *rows)
    folder = str(write_plan(plan_dataset(make_data(*rows), metadata=release)))
    cache = str(tmp_path / "cache")
    free, everything = {"train": {"free"}, "test": {"e"}}, {"train": {"free", "forbidden"}, "test": {"e"}}
    for name, ids in (("default", free), ("esdr_bench", {"test": {"e"}}), ("metadata", everything)):
        loaded = load_dataset(folder, name, cache_dir=cache)
        assert {split: set(pairs["pair_id"][:]) for split, pairs in loaded.items()} == ids
        streamed = load_dataset(folder, name, streaming=True)
        assert streamed["test"].features == loaded["test"].features
        assert [row["pair_id"] for row in streamed["test"].select_columns(["pair_id"])] == ["e"]
    turn = load_dataset(folder, cache_dir=cache)["train"].features["chosen"]
    assert isinstance(turn, List) and isinstance(turn.feature["audio"], Audio)
