"""What a build keeps to resume from is made again where it is damaged, and that is logged."""

import json
import zlib

import pytest
from datasets import Features, Value

from sdiareward.common.files import seal, write_file
from sdiareward.dataset_builder.parts import PartFolder
from sdiareward.dataset_builder.pipeline.stages import _is_whole


@pytest.mark.parametrize("name", ["a.parquet", "a.json"])
def test_a_damaged_part_is_made_again(name, tmp_path, caplog):
    parts = PartFolder(tmp_path, Features({"text": Value("string")}))
    rows, notes = [{"text": "words"}], [{"kind": "noted"}]
    parts.write("a", rows, notes)
    assert parts.has("a") and parts.read_rows("a") == rows and parts.read_notes("a") == notes
    path = tmp_path / name
    content = path.read_bytes()
    for damaged in (content[:9] + bytes([content[9] ^ 1]) + content[10:], content[:-7], b""):
        caplog.clear()
        path.write_bytes(damaged)
        assert not parts.has("a")
        assert str(path) in caplog.text
    parts.write("a", rows)
    assert parts.has("a") and parts.read_notes("a") is None
    # An older version wrote the Parquet file alone.
    (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-4])
    assert parts.has("a") and parts.read_rows("a") == rows


def test_a_stage_is_run_again_where_its_result_or_recording_is_damaged(tmp_path, caplog):
    artifact, wav = tmp_path / "decode-1.json", tmp_path / "decode-1.wav"
    wav.write_bytes(b"samples")
    record = {"result": {"wav": wav.name, "duration_s": 0.5}, "wav_crc32": zlib.crc32(b"samples")}
    write_file(artifact, json.dumps({"result": record["result"]}))  # By an older version.
    assert _is_whole(artifact)
    write_file(artifact, seal(record))
    assert _is_whole(artifact)
    for path, damaged in (
        (wav, b"sample5"),
        (wav, b"samp"),
        (artifact, artifact.read_bytes().replace(b"0.5", b"0.7")),
    ):
        before = path.read_bytes()
        caplog.clear()
        path.write_bytes(damaged)
        assert not _is_whole(artifact)
        assert str(artifact) in caplog.text
        path.write_bytes(before)
    wav.unlink()
    for content in (seal(record), json.dumps({"result": record["result"]})):
        write_file(artifact, content)
        assert not _is_whole(artifact)
