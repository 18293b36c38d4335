"""Tables in every form that is documented: which pairs they give, where their recordings are, what is refused."""

import io
import os
import re

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.systems_world import write_tone
from support.tables import write_rows

from sdiareward.cli import main
from sdiareward.common.errors import PairsError
from sdiareward.pairs.labels import describe_pairs
from sdiareward.pairs.loading import load_pairs, name_pairs
from sdiareward.pairs.path_sandbox import ROOTS_VARIABLE, RecordingFinder, find_recording, name_roots
from sdiareward.pairs.rows import Dialogues, open_rows, read_block
from sdiareward.pairs.schema import SIDES


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def folder(tmp_path):
    """Return the folder of a table with three recordings, which is not the working directory."""
    for number, name in enumerate(("q", "a", "b")):
        write_tone(tmp_path / "own" / f"{name}.wav", frequency_hz=200.0 + 50 * number)
    return tmp_path / "own"


def message(role, name):
    return {"role": role, "content": [{"type": "audio", "audio": name}]}


def turn(role, name):
    return {"role": role, "text": None, "audio": name}


ANSWERS = {"chosen": "a.wav", "rejected": "b.wav"}
WORDS = [{"role": "user", "text": "hi", "audio": None}]
FORMS = {
    "answers alone": ANSWERS,
    "paths after a prompt": {"prompt": "q.wav", **ANSWERS},
    "turns": {side: [turn("user", "q.wav"), turn("assistant", name)] for side, name in ANSWERS.items()},
    "messages": {side: [message("user", "q.wav"), message("assistant", name)] for side, name in ANSWERS.items()},
    "messages after a prompt, as in TRL": {
        "prompt": [message("user", "q.wav")],
        **{side: [message("assistant", name)] for side, name in ANSWERS.items()},
    },
    "paths after a prompt of turns": {"prompt": [turn("user", "q.wav")], **ANSWERS},
}


def read_paths(dialogue):
    """Return role and path of each recording."""
    sources = [(turn.role, turn.audio.source) for turn in dialogue.turns]
    return [(role, audio if isinstance(audio, str) else audio["path"]) for role, audio in sources]


def list_ids(path):
    return [label["pair_id"] for label in describe_pairs(load_pairs(path, "train"))]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv", ".tsv"])
@pytest.mark.parametrize("row", FORMS.values(), ids=FORMS)
def test_every_form_is_the_same_pair_wherever_the_table_is_and_keeps_its_id(row, suffix, folder, tmp_path):
    path = write_rows(folder / f"pairs{suffix}", [row, {**row, "chosen": row["rejected"]}])
    question = [] if row is ANSWERS else [("user", str(folder / "q.wav"))]
    expected = [[*question, ("assistant", str(folder / name))] for name in ANSWERS.values()]
    loaded = Dialogues(load_pairs(path, "train"), [0])
    scored = Dialogues(read_block(open_rows(path), [0], SIDES), [0], SIDES, RecordingFinder(dataset=path))
    for dialogues in (loaded, scored):
        assert [read_paths(dialogues[number]) for number in range(2)] == expected
    before = list_ids(path)
    assert len(set(before)) == 2
    folder.rename(tmp_path / "moved")
    assert list_ids(tmp_path / "moved" / path.name) == before


def test_recordings_in_a_table_stay_in_it(folder):
    audio = {"bytes": (folder / "a.wav").read_bytes(), "path": "gone.wav"}
    path = write_rows(folder / "pairs.parquet", [{"chosen": audio, "rejected": "b.wav", "prompt": "q.wav"}])
    assert Dialogues(load_pairs(path, "train"), [0])[0].turns[1].audio.source == audio
    # Turns without a path are not copied.
    plain = write_rows(folder / "plain.parquet", [{side: [turn("assistant", audio)] for side in SIDES}])
    assert load_pairs(plain, "train").cache_files


def test_a_table_of_a_spreadsheet_keeps_its_texts_and_has_splits_by_name(folder, tmp_path):
    head = "\ufeffprompt;chosen;rejected;id;criterion;note\n"
    (folder / "train.csv").write_text(head + 'q.wav;a.wav;b.wav;007;modality;"NA; ""so"""\nq.wav;b.wav;a.wav;008;;\n')
    write_rows(folder / "test.csv", [{"id": "009", "prompt": "q.wav", **ANSWERS}])
    for path, split in ((folder / "train.csv", None), (folder, "train")):
        pairs = load_pairs(path, split)
        assert list(pairs["id"]) == ["007", "008"] and list(pairs["note"]) == ['NA; "so"', None]
        assert [label["criterion"] for label in describe_pairs(pairs)] == ["modality", "joint"]
    assert list(load_pairs(folder, "test")["id"]) == ["009"]
    with pytest.raises(PairsError, match="split is 'validation'; this data set has test, train"):
        load_pairs(folder, "validation")


def test_a_row_of_a_prompt_and_a_completion_is_a_dialogue(folder):
    path = write_rows(folder / "answers.csv", [{"id": "x", "prompt": "q.wav", "completion": "a.wav"}])
    dialogues = Dialogues(
        read_block(open_rows(path), [0], ("completion",)), [0], ("completion",), RecordingFinder(dataset=path)
    )
    assert read_paths(dialogues[0]) == [("user", str(folder / "q.wav")), ("assistant", str(folder / "a.wav"))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chosn,rejected\na.wav,b.wav\n", r"has columns \['chosn', 'rejected'\].*\(rename chosn\?\)"),
        ("chosen,rejected\na.wav,b.wav,c.wav\n", "row 1 has more cells than the header"),
        ("chosen,chosen\na.wav,b.wav\n", "each column needs its own name"),
        ("chosen,rejected\n", "rows follow it"),
        ('chosen,rejected\na.wav,"b.wav\n', "cannot be read as a table"),
    ],
)
def test_a_malformed_csv_is_refused_by_name(text, message, folder):
    (folder / "own.csv").write_text(text)
    with pytest.raises(PairsError, match=f"own.csv: .*{message}"):
        load_pairs(folder / "own.csv")


def test_a_row_prints_its_recordings_short_and_has_their_samples(folder):
    row = load_pairs(write_rows(folder / "t.jsonl", [FORMS["paths after a prompt"]]), criterion="modality")[0]
    assert row["criterion"] == "modality"
    recording = row["chosen"][1]["content"][0]["audio"]
    assert re.fullmatch(r"[\d.]+ s, 16 kHz, WAV", repr(recording))
    assert isinstance(recording, dict) and recording.array.ndim == 1


def test_a_relative_path_begins_at_the_table_then_at_the_root(folder, tmp_path, monkeypatch):
    root = tmp_path / "root"
    for path in (root / "r.wav", root / "a.wav", tmp_path / "here" / "h.wav"):
        write_tone(path)
    # Without a file anywhere, an error names the place beside the table.
    for name, place in (("a.wav", folder), ("r.wav", root), ("none.wav", folder), (str(root / "r.wav"), root)):
        assert find_recording(name, name_roots(folder, root)) == str(place / name)
    assert find_recording("h.wav", name_roots(folder)) == str(tmp_path / "here" / "h.wav")
    monkeypatch.setenv(ROOTS_VARIABLE, str(root))
    assert find_recording("r.wav", name_roots(folder)) == str(root / "r.wav")


def test_a_recording_that_comes_later_is_found(folder, tmp_path):
    path = write_rows(folder / "pairs.jsonl", [{"chosen": "late.wav", "rejected": "b.wav"}])
    for place in (tmp_path / "here", folder):
        write_tone(place / "late.wav")
        assert read_paths(Dialogues(load_pairs(path, "train"), [0])[0]) == [("assistant", str(place / "late.wav"))]


def test_rows_with_an_id_keep_it_beside_rows_without_and_numbers_become_texts(folder):
    rows = [{**ANSWERS, "pair_id": "mine"}, {**ANSWERS, "pair_id": None}]
    named, unnamed = list_ids(write_rows(folder / "pairs.jsonl", rows))
    assert named == "mine" and re.fullmatch("[0-9a-f]{16}", unnamed)
    for names in ({"pair_id": 0}, {"pair_id": "", "id": 0}):
        pairs = load_pairs(write_rows(folder / f"{len(names)}.parquet", [{**names, "group_id": 1, **ANSWERS}]), "test")
        assert [(label["pair_id"], label["group_id"]) for label in describe_pairs(pairs)] == [("0", "1")]
        assert name_pairs(pairs) == ["0"]


def test_a_malformed_side_is_no_dialogue_and_stops_no_other(folder, caplog):
    good = [turn("assistant", "a.wav")]
    rows = [{"prompt": "q.wav", "chosen": side, "rejected": good} for side in ([{**good[0], "content": 3}], good)]
    pairs = load_pairs(write_rows(folder / "pairs.jsonl", rows), "train")
    assert (pairs[0]["chosen"], len(pairs[1]["chosen"])) == ([], 2)
    assert "turn 2: its text is a int" in caplog.text


@pytest.mark.parametrize("text", ["{}\nno json\n", "[1,2", "", '{"text": "hi"}\n', '{"chosen": 1, "rejected": 2}\n'])
def test_a_table_that_is_no_table_of_pairs_or_is_missing_is_refused_by_name(text, tmp_path):
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(PairsError, match=r"rows\.jsonl"):
        load_pairs(tmp_path / "rows.jsonl", "train")
    with pytest.raises(FileNotFoundError, match=r"nowhere\.jsonl"):
        load_pairs(tmp_path / "nowhere.jsonl", "train")


def test_a_table_without_rows_is_refused_by_name(tmp_path):
    pq.write_table(pa.table({side: pa.array([], pa.string()) for side in SIDES}), tmp_path / "test.parquet")
    for read in (open_rows, load_pairs):
        with pytest.raises(ValueError, match=r"test\.parquet: .*has no rows"):
            read(tmp_path, "test")


CARD = """---
configs:
- config_name: modality
  data_files: [{split: train, path: "data/train-*.FORM"}]
---
"""


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
@pytest.mark.parametrize("split", ["train", "train[:9]"])
def test_a_copy_of_a_folder_with_other_rows_is_read_in_its_place(form, split, tmp_path):
    for place, num_pairs in (("here", 5), ("there", 3)):
        folder = tmp_path / place / "sdiareward"
        rows = [{"pair_id": f"{place} {row}", **dict.fromkeys(SIDES, WORDS)} for row in range(num_pairs)]
        write_rows(folder / "data" / f"train-0.{form}", rows)
        (folder / "README.md").write_text(CARD.replace("FORM", form))
        # As archives keep it.
        os.utime(folder / "data" / f"train-0.{form}", (1, 1))
        expected = [row["pair_id"] for row in rows]
        assert list(load_pairs(folder, split, name="modality")["pair_id"]) == expected
        opened = open_rows(folder, split, "modality")
        assert opened.read(range(num_pairs), ["pair_id"])["pair_id"].to_pylist() == expected


def pack(num_rows, **options):
    buffer = io.BytesIO()
    messages = [[{"role": "user", "text": str(number)}] for number in range(num_rows)]
    pq.write_table(pa.table({"id": list(range(num_rows)), "messages": messages}), buffer, **options)
    return bytearray(buffer.getvalue())


@pytest.mark.parametrize("kept", [0, 4, -100])
def test_a_damaged_table_is_refused_by_name(kept, tmp_path):
    (tmp_path / "rows.parquet").write_bytes(pack(2)[:kept])
    with pytest.raises(ValueError, match=r"rows\.parquet: cannot be read as a table"):
        open_rows(tmp_path / "rows.parquet")


def test_a_damaged_page_is_named_when_it_is_reached_and_ends_a_run(tiny_checkpoint, tmp_path, capsys):
    data = pack(40, row_group_size=20, compression="none", use_dictionary=False)
    group = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(1)
    for start in (group.column(index).data_page_offset for index in range(group.num_columns)):
        data[start : start + 8] = b"\xff" * 8
    path = tmp_path / "rows.parquet"
    path.write_bytes(data)
    assert open_rows(path).read([0, 19], ["id"])["id"].to_pylist() == [0, 19]
    run = ["score", "--dataset", str(path), "--output_dir", str(tmp_path / "o"), "--model", str(tiny_checkpoint)]
    assert main(run) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"sdiareward score: error: {path}: cannot be read as a table") and "Traceback" not in said
