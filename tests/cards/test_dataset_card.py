import json

import pytest
from datasets.info import DatasetInfosDict
from huggingface_hub import DatasetCard
from support.paths import ROOT
from support.repository_world import FORBIDDEN, content_of, header_of, make_row, says, write_release

from sdiareward.cards.publishing.dataset_repository import plan_dataset
from sdiareward.pairs.schema import features


def test_a_shard_of_forbidden_rows_alone_is_left_out_and_its_configuration_too(make_data):
    forbidden = make_row("forbidden", FORBIDDEN, license="LicenseRef-MELD")
    plan = plan_dataset(make_data(("train", forbidden), ("test", make_row(criterion="colloquialness"))))
    names = [config["config_name"] for config in header_of(plan)["configs"]]
    assert names == ["default", "colloquialness", "esdr_bench"]
    assert not says(plan, FORBIDDEN)


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
    }
    assert all(info.features == features() for info in infos.values())
    files = [file.size_bytes for file in plan.files if file.path_in_repo.startswith("data/")]
    assert infos["default"].download_size == sum(files)
    assert (data.license, data.language, data.size_categories) == ("cc-by-4.0", ["en"], "n<1K")
    assert data.source_datasets == ["extended|other-folder"]
    assert data.task_categories == ["audio-classification"]


def test_the_card_names_licences_reasons_and_what_the_data_is_not_for(make_data):
    open_row = make_row("b", license="CC0-1.0", source="asterisk")
    rows = [make_row(), open_row, make_row("c", source="meld|x", license=None)]
    plan = plan_dataset(make_data(*[("train", row) for row in rows]))
    card = content_of(plan.files[0]).decode()
    for words in (
        "| [CC-BY-4.0](https://spdx.org/licenses/CC-BY-4.0.html) | 1 | 0 |",
        "| None | 0 | 1 |",
        "1 of 3 pairs are not published:\n\n- 1 pairs: the licence None is not known to allow it.",
        "- Asterisk core sounds, (c) 2003-2010 Allison Smith",
    ):
        assert words in card
    assert header_of(plan)["license"] == ["cc-by-4.0", "cc0-1.0"]
    assert "$" not in card


@pytest.mark.parametrize(
    ("report", "channel", "modified"),
    [
        (None, "not recorded", "were cut and resampled, and may have been changed"),
        ({"config": {"channel": None}}, "off", "were cut and resampled"),
        ({"config": {"channel": {"coding": "mulaw"}}}, '{"coding": "mulaw"}', "were cut and resampled, and given the"),
    ],
)
def test_the_card_says_what_was_done_to_the_recordings_as_far_as_it_is_known(make_data, report, channel, modified):
    folder = make_data(("train", make_row()))
    if report:
        (folder / "report.json").write_text(json.dumps(report))
    card = content_of(plan_dataset(folder).files[0]).decode()
    assert f"Channel matching of both sides: `{channel}`." in card
    assert f"All recordings {modified}" in card and ": these are modified versions." in card


def test_the_card_says_of_each_source_what_was_spoken_for(make_data):
    rows = [make_row(), make_row("b", source="asterisk", license="CC0-1.0"), make_row("c", source="youtube")]
    rows.append(make_row("d", source="colloquial_scripts", criterion="colloquialness"))
    consent = content_of(plan_dataset(make_data(*[("train", row) for row in rows])).files[0]).decode()
    for words in ("The announcer of `asterisk` spoke for", "heard in `folder`", "on the web (`youtube`)"):
        assert words in consent
    assert "a game" not in consent and "heard in `colloquial_scripts`" not in consent


def test_the_notice_of_the_game_goes_with_its_recordings_and_only_with_them(make_data):
    row = make_row(license="LicenseRef-Flight-of-the-Amazon-Queen", source="amazon_queen")
    plan = plan_dataset(make_data(("train", row)))
    [notice] = [file for file in plan.files if file.path_in_repo.startswith("notices/")]
    assert content_of(notice) == (ROOT / "sample/amazon_queen/readme.txt").read_bytes()
    assert header_of(plan)["license"] == "other"
    assert f"]({notice.path_in_repo}) | 1 | 0 |" in content_of(plan.files[0]).decode()
    withheld = make_row(license="LicenseRef-Flight-of-the-Amazon-Queen", source="youtube")
    plan = plan_dataset(make_data(("train", withheld), ("train", make_row()), name="withheld"))
    assert not any(file.path_in_repo.startswith("notices/") for file in plan.files)


@pytest.mark.slow
def test_what_the_plan_says_loads_whole_and_streamed(make_data, tmp_path):
    from datasets import Audio, List, load_dataset

    forbidden = make_row("forbidden", FORBIDDEN, license=None)
    rows = [("train", make_row()), ("train", forbidden), ("test", make_row("e", criterion="colloquialness"))]
    release = write_release(tmp_path / "release", *rows)
    for file in plan_dataset(make_data(*rows), metadata=release).files:
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
