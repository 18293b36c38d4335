import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import datasets
import pyarrow.parquet as pq
import pytest
import soundfile
from support.paths import ROOT

import sdiareward.dataset_builder.formats.loading  # noqa: F401 -- enters the builder
from sdiareward.dataset_builder.chatreward import scenarios as chatreward_schema
from sdiareward.dataset_builder.formats import sdiareward as script
from sdiareward.dataset_builder.formats.sdiareward import SDiaReward, make_features
from sdiareward.dataset_builder.release.release import release_features
from sdiareward.dataset_builder.reports.data_card import write_report
from sdiareward.dataset_builder.shards import read_rows, write_rows
from sdiareward.pairs import schema
from sdiareward.pairs.loading import leave_audio_encoded


PLACES = [("modality", "train"), ("modality", "train"), ("modality", "validation"), ("modality", "test")]
PLACES += [("colloquialness", "train"), ("colloquialness", "test")]
IDS = {
    "default": {"train": ["p0", "p1", "p4"], "validation": ["p2"], "test": ["p3", "p5"]},
    "modality": {"train": ["p0", "p1"], "validation": ["p2"], "test": ["p3"]},
    "colloquialness": {"train": ["p4"], "test": ["p5"]},
    "esdr_bench": {"test": ["p3", "p5"]},
}


def make_side(make_tone, seed):
    buffer = io.BytesIO()
    soundfile.write(buffer, make_tone(0.1, seed=seed), 16_000, format="FLAC")
    refs = [{"uri": f"sample:{seed}.wav", "start_s": 0.5, "end_s": 0.6, "text": "um"}]
    turn = {"text": "so, um", "audio": {"bytes": buffer.getvalue(), "path": "a.flac"}, "duration_s": 0.1}
    return [{"role": role, **turn, "audio_ref": refs} for role in ("user", "assistant")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_tone):
    """Return a data set folder of six pairs named `sdiareward`, in a working directory of its own."""
    path = tmp_path_factory.mktemp("work") / "sdiareward"
    labels = {"subset": "scripted", "source": "sample", "synthesizer": "flite", "native_coding": ["opus"]}
    labels |= {"language": "en", "license": "CC0-1.0"}
    rows = []
    for index, (criterion, split) in enumerate(PLACES):
        sides = {"chosen": make_side(make_tone, 10 * index), "rejected": make_side(make_tone, 10 * index + 5)}
        rows.append((split, {"pair_id": f"p{index}", "criterion": criterion, "group_id": "g", **labels, **sides}))
    write_report(path, write_rows(path, rows), [], {})
    return path


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def load(name, data_dir, **options):
    return datasets.load_dataset("sdiareward", name, data_dir=str(data_dir), **options)


def ids_of(splits):
    return {split: sorted(row["pair_id"] for row in rows) for split, rows in splits.items()}


def test_the_self_contained_file_has_the_columns_of_the_schema_and_no_written_row_needs_torchcodec():
    assert make_features() == leave_audio_encoded(make_features(decode=True)) == schema.features()
    assert make_features().arrow_schema.equals(schema.features().arrow_schema)
    for columns in (schema.features(), chatreward_schema.features(), release_features()):
        assert leave_audio_encoded(columns) == columns


def run(command, cwd, **env):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **{name: str(value) for name, value in env.items()}}
    done = subprocess.run(list(map(str, command)), env=environment, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_configuration_gives_its_pairs_as_they_were_written_also_by_the_class(folder, tmp_path):
    written = {row["pair_id"]: row for _, row in read_rows(folder)}
    for name, ids in IDS.items():
        found = load(name, folder, streaming=True)
        assert ids_of(found) == ids
        assert all(row == written[row["pair_id"]] for rows in found.values() for row in rows)
    builder = SDiaReward(config_name="modality", data_dir=str(folder), cache_dir=str(tmp_path))
    builder.download_and_prepare()
    assert ids_of(builder.as_dataset()) == IDS["modality"]


def test_audio_is_left_encoded_unless_asked_for_and_a_folder_that_changed_is_read_again(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    first = load("modality", tmp_path / "copy", split="train")
    assert soundfile.info(io.BytesIO(first[0]["chosen"][0]["audio"]["bytes"])).frames == 1600
    path = tmp_path / "copy/data/modality/train-00000-of-00001.parquet"
    pq.write_table(pq.read_table(path).slice(0, 1), path)
    decoded = load("modality", tmp_path / "copy", split="train", decode=True)
    assert (first.num_rows, decoded.num_rows, decoded.features["chosen"].feature["audio"].decode) == (2, 1, True)


def test_a_folder_without_the_configuration_and_a_damaged_shard_are_errors(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "absent"):
        with pytest.raises(FileNotFoundError, match=name):
            SDiaReward(config_name="modality", data_dir=str(tmp_path / name)).download_and_prepare()
    shutil.copytree(folder, tmp_path / "damaged")
    path = tmp_path / "damaged/data/modality/test-00000-of-00001.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="test-00000-of-00001.parquet: cannot be read"):
        list(load("modality", tmp_path / "damaged", split="test", streaming=True))


@pytest.mark.slow
def test_the_cards_code_runs_and_the_bare_name_gives_the_same_rows_after_the_builder_is_imported(folder, tmp_path):
    look, _ = re.findall("```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    code = (
        "import sys; sys.modules['torchcodec'] = None\n"
        f"{look}\n"
        "print('====')\n"
        "import datasets\n"
        "from sdiareward.pairs.loading import leave_audio_encoded\n"
        "def rows(name):\n"
        "    splits = datasets.load_dataset('sdiareward', name)\n"
        "    return {s: list(d.cast(leave_audio_encoded(d.features))) for s, d in splits.items()}\n"
        "before = rows('default'), rows('esdr_bench')\n"
        "import sdiareward.dataset_builder.formats.loading\n"
        "after = rows('default'), rows('esdr_bench')\n"
        "by_path = datasets.load_dataset('./sdiareward', 'default')\n"
        "print(before == after, [len(d) for d in after[0].values()], by_path['test'].builder_name)"
    )
    shown, found = run([sys.executable, "-c", code], folder.parent, HF_DATASETS_CACHE=tmp_path).split("====\n")
    # A screen.
    assert len(shown.splitlines()) < 40 and max(map(len, shown.splitlines())) < 120
    assert found.strip() == "True [3, 1, 2] parquet"


@pytest.mark.slow
def test_the_file_works_as_a_loading_script_under_datasets_3(folder, tmp_path):
    python = Path(os.environ.get("SDIAREWARD_DATASETS3_PYTHON") or ROOT / ".venv-datasets3" / "bin" / "python")
    if not python.exists():
        install = ".venv-datasets3/bin/pip install -r tests/datasets3/requirements.txt"
        pytest.skip(f"{python} is not there; make it with: python3 -m venv .venv-datasets3 && {install}")
    # Copied, so that it cannot lean on its neighbours.
    copy = tmp_path / "sdiareward.py"
    copy.write_bytes(Path(script.__file__).read_bytes())

    command = [python, ROOT / "tests/datasets3/load.py", copy, "default", folder]
    result = json.loads(run(command, tmp_path, HF_HOME=tmp_path, PYTHONPATH=""))
    assert result["version"].startswith("3.")

    def describe(row):
        return [row["pair_id"], [hashlib.sha256(turn["audio"]["bytes"]).hexdigest() for turn in row["chosen"]]]

    expected = {split: list(map(describe, rows)) for split, rows in load("default", folder).items()}
    assert result["found"] == [expected, expected]
