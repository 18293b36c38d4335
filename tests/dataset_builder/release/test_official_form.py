import io

import datasets
import pytest
import soundfile
from support.repository_world import make_row, write_data

from sdiareward.common.errors import Skipped
from sdiareward.dataset_builder.release.official_form import read_official, write_official
from sdiareward.dataset_builder.shards import read_rows
from sdiareward.pairs.schema import SIDES, validate_row
from sdiareward.perturbations.channel import encode, encode_flac


def message(role, path, text="so, um"):
    return {"role": role, "content": [{"type": "text", "text": text}, {"type": "audio", "audio": path}]}


def side(folder, name):
    return [message("user", f"{folder}/{name}-0.wav"), message("assistant", f"{folder}/{name}-1.wav")]


@pytest.fixture
def save(tmp_path, make_tone):
    """Return a function that saves splits of examples and the audio that they name."""

    def write(splits, *, audio=True):
        for seed, pair in enumerate(pair for pairs in splits.values() for pair in pairs):
            messages = [message for name in ("chosen", "rejected") for message in pair[name]] if audio else []
            items = (item for message in messages for item in message["content"] if "audio" in item)
            for turn, item in enumerate(items):
                path = tmp_path / "root" / item["audio"]
                if not path.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(encode(make_tone(0.1, 200 + 50 * turn, seed), 16_000, "WAV", "PCM_16", None))
        saved = {name: datasets.Dataset.from_list(examples) for name, examples in splits.items()}
        datasets.DatasetDict(saved).save_to_disk(tmp_path / "released")
        return tmp_path / "released", tmp_path / "root"

    return write


def example(folder="d1", **columns):
    return {"chosen": side(folder, "real"), "rejected": side(folder, "tts"), **columns}


def test_the_released_form_becomes_valid_rows(save):
    train = [example("d1", category="wild", source="youtube")]
    path, root = save({"train": train, "validation": [example("d3", category="Neutral", source="MELD")]})
    read = list(read_official(path, root))
    assert [split for split, _ in read] == ["train", "test"]
    _, row = read[1]
    assert (row["criterion"], row["subset"], row["source"]) == ("modality", "semi_wild", "meld")
    assert (row["primary"], row["secondary"]) == ("Neutral", "Neutral")
    assert (row["synthesizer"], row["license"], row["language"]) == ("unknown", "unknown", "und")
    assert row["chosen"][1]["text"] == "so, um"
    assert row["chosen"][1]["duration_s"] == pytest.approx(0.1)
    assert row["chosen"][1]["audio"]["bytes"] == (root / "d3" / "real-1.wav").read_bytes()
    validate_row(row)
    assert read[0][1]["primary"] == "Unknown"


@pytest.mark.parametrize("is_one_group", [True, False])
def test_a_folder_is_a_group_unless_splits_share_it(is_one_group, save):
    # Another rejected side in the same split, or another chosen side in the other split.
    first = example("all", category="wild")
    if is_one_group:
        path, root = save({"train": [first, {**first, "rejected": side("all", "other")}]})
    else:
        path, root = save({"train": [first], "validation": [{**first, "chosen": side("all", "real1")}]})
    one, two = (row for _, row in read_official(path, root))
    assert (one["group_id"] == two["group_id"]) == is_one_group and one["pair_id"] != two["pair_id"]


def spoil_path(pair, path):
    pair["chosen"][0]["content"][1]["audio"] = path


@pytest.mark.parametrize(
    ("spoil", "kind", "named"),
    [
        (lambda pair: spoil_path(pair, "d1/gone.wav"), "missing_audio", "d1/gone.wav"),
        (lambda pair: spoil_path(pair, "../secret.wav"), "path_outside_root", "path_prefix"),
        (lambda pair: pair["chosen"][0]["content"].pop(), "unsupported_turn", "chosen turn 0"),
        (lambda pair: pair["rejected"][1]["content"].append({"type": "image"}), "unsupported_turn", "image"),
        (lambda pair: pair.update(category="other"), "unknown_subset", "'other'"),
        (lambda pair: pair["chosen"].pop(), "invalid_pair", "chosen"),
    ],
)
def test_a_pair_that_cannot_be_read_is_reported_and_nothing_else_is_lost(spoil, kind, named, save, tmp_path):
    pairs = [example("d1", category="wild"), example("d2", category="wild")]
    save({"train": pairs})
    spoil(pairs[0])
    (tmp_path / "secret.wav").write_bytes(b"")
    path, root = save({"train": pairs}, audio=False)
    skip, kept = read_official(path, root)
    assert isinstance(skip, Skipped) and named in skip.reason
    assert (skip.item, skip.kind) == ("train row 0", kind)
    assert kept[1]["subset"] == "wild"


def test_an_unknown_split_has_to_be_named_a_pair_is_kept_once_and_other_rates_are_converted(save, make_tone):
    path, root = save({"dev": [example("d1", category="wild")] * 2})
    # Another rate is converted.
    (root / "d1" / "real-0.wav").write_bytes(encode(make_tone(0.2), 8_000, "WAV", "PCM_16", None))
    with pytest.raises(ValueError, match="has a split 'dev'; in splits, map it to one of"):
        list(read_official(path, root))
    (split, row), twice = read_official(path, root, splits={"dev": "validation"})
    info = soundfile.info(io.BytesIO(row["chosen"][0]["audio"]["bytes"]))
    assert (info.samplerate, info.format, info.duration) == (16_000, "FLAC", pytest.approx(0.4))
    assert (split, twice.item, twice.kind) == ("validation", "dev row 1", "duplicate_id")


@pytest.fixture
def folder(tmp_path, make_tone):
    """Return a data set folder of ours with a pair in each split."""
    scores, rows = {"content": 4, "naturalness": 3, "coherence": 5}, []
    more = {"quality": {"chosen": scores, "rejected": scores, "judge": "j", "prompt_version": "1"}}
    more |= {"source": "meld", "subset": "semi_wild", "primary": "Positive", "secondary": "Joy"}
    more |= {"channel": {"trim_db": 40.0, "coding": "opus"}, "native_coding": ["opus"]}
    for index, split in enumerate(("train", "validation", "test")):
        row = make_row(f"p{index}", **more, group_id=f"g{index}")
        audio = {"bytes": encode_flac(make_tone(0.1, seed=index)), "path": "p.flac"}
        for turn in (*row["chosen"], *row["rejected"]):
            turn |= {"audio": audio, "duration_s": 0.1, "audio_ref": []}
        rows.append((split, row))
    return write_data(tmp_path / "ours", *rows)


def test_our_rows_go_to_the_released_form_and_back(folder, tmp_path):
    def by_id(rows):
        found = {row["pair_id"]: (split, row) for split, row in rows}
        for turn in (turn for _, row in found.values() for side in SIDES for turn in row[side]):
            # A recording is known by its bytes, not by its name.
            turn |= {"audio": turn["audio"]["bytes"], "duration_s": round(turn["duration_s"], 4)}
        return found

    output = tmp_path / "released"
    assert write_official(folder, output, path_prefix="/authors/") == {"test": 1, "train": 1, "validation": 1}
    assert by_id(read_official(output, output, path_prefix="/authors/")) == by_id(read_rows(folder))
    with pytest.raises(FileExistsError, match="already has a data set"):
        write_official(folder, output)
    # A path inside the root may be absolute, and a split may be renamed or omitted.
    output = tmp_path / "other"
    write_official(folder, output, path_prefix=f"{output}/", splits={"train": "train", "test": "validation"})
    assert sorted(split for split, _ in read_official(output, output)) == ["test", "train"]
    pair = datasets.load_from_disk(str(output))["validation"][0]
    assert (pair["category"], pair["source"]) == ("semi_wild", "meld")
    assert pair["chosen"][0]["content"] == [
        {"type": "text", "text": "p2 chosen user", "audio": None},
        {"type": "audio", "text": None, "audio": f"{output}/audio/p2/chosen-0.flac"},
    ]
