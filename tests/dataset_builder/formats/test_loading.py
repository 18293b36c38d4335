import hashlib
import io
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import datasets
import pytest
import soundfile
from support.paths import ROOT

import sdiareward.dataset_builder.formats.loading  # noqa: F401 -- enters the builder
from sdiareward.dataset_builder.chatreward import scenarios as chatreward_schema
from sdiareward.dataset_builder.formats import sdiareward as script
from sdiareward.dataset_builder.formats.sdiareward import SDiaReward, make_features
from sdiareward.dataset_builder.release.release import release_features
from sdiareward.dataset_builder.reports.data_card import render_card
from sdiareward.dataset_builder.shards import ShardWriter, read_rows
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


def encode(array, rate=16_000):
    buffer = io.BytesIO()
    soundfile.write(buffer, array, rate, format="FLAC")
    return buffer.getvalue()


def make_side(make_tone, seed):
    return [
        {
            "role": role,
            "text": f"so, um, {role}",
            "audio": {"bytes": encode(make_tone(0.1, seed=seed + index)), "path": f"{role}.flac"},
            "duration_s": 0.1,
            "audio_ref": [{"uri": f"sample:{seed}.wav", "start_s": 0.5, "end_s": 0.6, "text": "um"}],
        }
        for index, role in enumerate(("user", "assistant"))
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_tone):
    """Return a data set folder of six pairs named `sdiareward`, in a working directory of its own."""
    path = tmp_path_factory.mktemp("work") / "sdiareward"
    with ShardWriter(path) as writer:
        for index, (criterion, split) in enumerate(PLACES):
            row = {"pair_id": f"p{index}", "criterion": criterion, "subset": "scripted", "source": "sample"}
            sides = {"chosen": make_side(make_tone, 10 * index), "rejected": make_side(make_tone, 10 * index + 5)}
            rest = {"synthesizer": "flite", "group_id": f"g{index}", "native_coding": ["opus"], "language": "en"}
            writer.write(split, {**row, **sides, **rest, "license": "CC0-1.0"})
    return path


def write_apart(folder, output):
    """Write the pairs of a data set folder as tables and audio files apart."""
    for split, row in read_rows(folder):
        for side in schema.SIDES:
            for position, turn in enumerate(row[side]):
                path = output / f"audio/{row['pair_id']}/{side}-{position}.flac"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(turn["audio"]["bytes"])
                turn["audio"] = path.relative_to(output).as_posix()
        table = output / row["criterion"] / f"{split}.jsonl"
        table.parent.mkdir(exist_ok=True)
        with table.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


@pytest.fixture
def audio_root(folder, tmp_path):
    """Return the same pairs with tables and audio files apart."""
    write_apart(folder, tmp_path / "audio_root")
    return tmp_path / "audio_root"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def load(name, data_dir, **options):
    return datasets.load_dataset("sdiareward", name, data_dir=str(data_dir), **options)


def ids_of(splits):
    return {split: sorted(row["pair_id"] for row in rows) for split, rows in splits.items()}


def hash_audio(turn):
    return hashlib.sha256(turn["audio"]["bytes"]).hexdigest()


def sorted_rows(rows):
    return sorted(rows, key=lambda row: row["pair_id"])


def test_the_self_contained_file_has_the_columns_of_the_schema():
    assert make_features() == schema.features()
    assert leave_audio_encoded(make_features(decode=True)) == schema.features()
    assert make_features().arrow_schema.equals(schema.features().arrow_schema)


@pytest.mark.parametrize("columns", [schema.features, chatreward_schema.features, release_features])
def test_no_written_row_needs_torchcodec(columns):
    assert leave_audio_encoded(columns()) == columns()


# Each is a way in which a user of `datasets` takes rows of a folder.
ROWS = {
    "row": lambda load: load()["train"][0],
    "streamed": lambda load: next(iter(load(split="train", streaming=True))),
    "list": lambda load: datasets.Dataset.from_list(load(split="train").to_list())[0],
    "mapped": lambda load: load(split="train").map(lambda row: {"more": 1}).filter(lambda row: True)[0],
    "saved": lambda load: load(split="train").save_to_disk("saved") or datasets.load_from_disk("saved")[0],
}


@pytest.mark.parametrize("way", ROWS)
def test_rows_are_taken_without_torchcodec(way, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row = ROWS[way](lambda **options: datasets.load_dataset(str(folder), **options))
    assert row["chosen"][0]["audio"]["bytes"].startswith(b"fLaC")


@pytest.mark.slow
def test_the_card_shows_how_rows_are_looked_at(folder, tmp_path):
    counts = dict.fromkeys(("criterion", "subset", "source", "synthesizer"), "x") | {"split": "train", "pairs": 3}
    report = {"build_id": "1", "config": {}, "pairs": [counts], "skipped": [], "drops": {}}
    look, _ = re.findall("```python\n(.*?)```", render_card(report), re.DOTALL)
    lines = run_python(look, folder.parent, tmp_path).splitlines()
    # A screen.
    assert len(lines) < 40 and max(map(len, lines)) < 120


def run_python(code, cwd, cache):
    env = {**os.environ, "HF_DATASETS_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("layout", ["folder", "audio_root"])
@pytest.mark.parametrize("name", IDS)
def test_each_configuration_gives_its_pairs_from_shards_and_from_files_apart(name, layout, streaming, request):
    assert ids_of(load(name, request.getfixturevalue(layout), streaming=streaming)) == IDS[name]


def test_both_layouts_give_the_same_rows_with_their_bytes(folder, audio_root):
    shards, apart = (sorted_rows(load("default", path)["train"]) for path in (folder, audio_root))
    written = sorted_rows(row for split, row in read_rows(folder) if split == "train")
    for rows in (shards, apart, written):
        for row in rows:
            for turn in (*row["chosen"], *row["rejected"]):
                turn["audio"] = hash_audio(turn)
    assert shards == apart == written
    assert shards[0]["chosen"][0]["audio_ref"][0]["uri"] == "sample:0.wav"


def test_the_class_works_without_registration(folder, tmp_path):
    builder = SDiaReward(config_name="modality", data_dir=str(folder), cache_dir=str(tmp_path))
    builder.download_and_prepare()
    assert ids_of(builder.as_dataset()) == IDS["modality"]
    assert next(iter(builder.as_streaming_dataset(split="test")))["pair_id"] == "p3"


def test_audio_is_left_encoded_unless_asked_for(folder):
    turn = load("modality", folder, split="train")[0]["chosen"][0]
    assert soundfile.info(io.BytesIO(turn["audio"]["bytes"])).frames == 1600
    decoded = load("modality", folder, split="train", decode=True)
    assert decoded.features["chosen"].feature["audio"].decode


def test_a_folder_that_changed_is_read_again(audio_root):
    table = audio_root / "modality" / "train.jsonl"
    assert load("modality", audio_root, split="train").num_rows == 2
    table.write_text(table.read_text().splitlines()[0] + "\n")
    assert load("modality", audio_root, split="train").num_rows == 1


# What the first pair's first recording is in its place, and what is logged; "table" repeats the pair.
SPOILED = {
    "missing": (None, "audio file missing; first: audio/p0/chosen-0.flac"),
    "undecodable": (lambda tone: b"no audio", "audio file undecodable"),
    "8 kHz": (lambda tone: encode(tone, 8_000), "8000 Hz, 1 channels"),
    "stereo": (lambda tone: encode(tone.repeat(2).reshape(-1, 2)), "16000 Hz, 2 channels"),
    "cut": (lambda tone: encode(tone[:1600]), "lasts 0.10 s, the table says 0.30 s"),
    "table": (encode, "duplicate pair_id; first: "),
}


@pytest.mark.parametrize("problem", SPOILED)
def test_a_pair_that_cannot_be_used_is_skipped_with_a_warning(problem, audio_root, make_tone, caplog):
    spoil, message = SPOILED[problem]
    table = audio_root / "modality" / "train.jsonl"
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    rows[0]["chosen"][0]["duration_s"] = 0.3
    audio, tone = audio_root / rows[0]["chosen"][0]["audio"], make_tone(0.3)
    rows += [rows[0]] * (problem == "table")
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    audio.unlink()
    if spoil:
        audio.write_bytes(spoil(tone))
    with caplog.at_level(logging.WARNING):
        found = load("modality", audio_root, split="train")["pair_id"]
    assert found == (["p0", "p1"] if problem == "table" else ["p1"])
    assert "skipped 1 pairs, " in caplog.text and message in caplog.text
    if problem == "missing":
        audio.write_bytes(encode(tone))
        assert load("modality", audio_root, split="train").num_rows == 2


@pytest.mark.parametrize("path", ["../secret.flac", "/etc/hostname", "link/../../secret.flac", ""])
def test_a_path_that_climbs_out_of_the_root_is_refused(path, audio_root, tmp_path):
    (tmp_path / "secret.flac").write_bytes(b"secret")
    (audio_root / "link").symlink_to(audio_root / "modality")
    table = audio_root / "modality" / "test.jsonl"
    row = json.loads(table.read_text())
    row["chosen"][0]["audio"] = path
    table.write_text(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=r"test.jsonl, line 1: .*must be a path|lies outside"):
        list(load("modality", audio_root, split="test", streaming=True))


def test_a_table_needs_only_ids_and_turns_and_may_be_parquet(audio_root):
    table = audio_root / "colloquialness" / "test.jsonl"
    row = json.loads(table.read_text())
    sides = {
        side: [{key: turn[key] for key in ("role", "text", "audio")} for turn in row[side]] for side in schema.SIDES
    }
    datasets.Dataset.from_list([{"pair_id": "mine", **sides}]).to_parquet(table.with_suffix(".parquet"))
    table.unlink()
    pair = load("colloquialness", audio_root, split="test")[0]
    assert (pair["pair_id"], pair["criterion"], pair["synthesizer"]) == ("mine", "colloquialness", None)
    assert pair["chosen"][0]["duration_s"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        '{"chosen": [1], "rejected": [1]}',
        '{"pair_id": "x", "chosen": [1], "rejected": [1], "criterion": "colloquialness"}',
    ],
)
def test_a_broken_table_is_an_error_that_names_the_line(line, audio_root):
    (audio_root / "modality" / "train.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match="train.jsonl, line 1"):
        list(load("modality", audio_root, split="train", streaming=True))


def test_a_folder_without_the_configuration_or_with_both_layouts_is_an_error(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "absent"):
        with pytest.raises(FileNotFoundError, match=name):
            SDiaReward(config_name="modality", data_dir=str(tmp_path / name)).download_and_prepare()
    write_apart(folder, tmp_path / "both")
    (tmp_path / "both" / "data").symlink_to(folder / "data")
    with pytest.raises(ValueError, match="holds both"):
        script.find_tables(str(tmp_path / "both"), "default")


@pytest.mark.slow
def test_the_bare_name_gives_the_same_rows_before_and_after_the_builder_is_imported(folder, tmp_path):
    code = (
        "import sys; sys.modules['torchcodec'] = None\n"
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
    (folder / "README.md").write_text(CARD)
    assert run_python(code, folder.parent, tmp_path).strip() == "True [3, 1, 2] parquet"


CARD = """---
configs:
- config_name: default
  data_files:
  - {split: train, path: "data/*/train-*.parquet"}
  - {split: validation, path: "data/*/validation-*.parquet"}
  - {split: test, path: "data/*/test-*.parquet"}
- config_name: esdr_bench
  data_files:
  - {split: test, path: "data/*/test-*.parquet"}
---
"""


def datasets3_python():
    path = Path(os.environ.get("SDIAREWARD_DATASETS3_PYTHON") or ROOT / ".venv-datasets3" / "bin" / "python")
    if not path.exists():
        pytest.skip(
            f"{path} is not there; make it with: python3 -m venv .venv-datasets3 && "
            ".venv-datasets3/bin/pip install -r tests/datasets3/requirements.txt"
        )
    return str(path)


def run_datasets3(python, home, *arguments):
    env = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    env.pop("PYTHONPATH", None)
    done = subprocess.run([python, *map(str, arguments)], env=env, cwd=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["shards", "apart"])
def test_the_file_works_as_a_loading_script_under_datasets_3(layout, folder, audio_root, tmp_path):
    python = datasets3_python()
    data_dir = folder if layout == "shards" else audio_root
    # Copied, so that it cannot lean on its neighbours.
    copy = tmp_path / "sdiareward.py"
    copy.write_bytes(Path(script.__file__).read_bytes())
    if layout == "shards":
        (folder / "README.md").write_text(CARD)
        found = run_datasets3(python, tmp_path, ROOT / "tests/datasets3/load_folder.py", folder)
        assert {split: sorted(ids) for split, ids in found["pair_ids"].items()} == IDS["default"]
    result = run_datasets3(python, tmp_path, ROOT / "tests/datasets3/load.py", copy, "default", data_dir)
    assert result["version"].startswith("3.")
    expected = {
        split: [[row["pair_id"], [hash_audio(turn) for turn in row["chosen"]]] for row in rows]
        for split, rows in load("default", data_dir).items()
    }
    assert result["found"] == [expected, expected]
