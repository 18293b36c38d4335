import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from sdiareward.common.files import JsonLines, read_sealed, replace_atomically, require_other_folder, seal, write_file


def test_a_file_is_replaced_by_text_or_bytes(tmp_path):
    path = tmp_path / "a.txt"
    for content in ("ä\n", b"\x00\xff"):
        write_file(path, content)
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert list(tmp_path.iterdir()) == [path]


def test_several_may_write_one_file_at_once(tmp_path):
    path = tmp_path / "a.txt"
    contents = [chr(ord("a") + number) * 1000 for number in range(20)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda content: write_file(path, content, is_shared=True), contents * 10))
    assert path.read_text() in contents
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("text", "kept"), [('{"a": 1}\n{"a": ', [1]), ('{"a": 1}\n{"a": 2}', [1, 2]), (None, [])])
def test_what_a_kill_has_torn_is_removed_before_a_line_is_added_and_a_complete_last_line_kept(text, kept, tmp_path):
    path = tmp_path / "a.jsonl"
    if text is not None:
        path.write_text(text)
        assert JsonLines(path).read() == [{"a": number} for number in kept]
        path.write_text(text)
    JsonLines(path, is_edited=True).append([{"a": 3}])
    assert path.read_text() == "".join(f'{{"a": {number}}}\n' for number in [*kept, 3])


RECORDS = [{}, {"a": 1.25, "text": 'é "crc32": 7}'}, {"b": [{"c": None}]}]


@pytest.mark.parametrize("row", range(len(RECORDS)))
def test_a_damaged_line_is_not_read_and_logged_whatever_byte_is_another(row, tmp_path, caplog):
    path = tmp_path / "a.jsonl"
    JsonLines(path).append(RECORDS)
    content = path.read_bytes()
    start = sum(len(seal(record).encode()) for record in RECORDS[:row])
    others = [record for number, record in enumerate(RECORDS) if number != row]
    assert JsonLines(path).read() == RECORDS
    for place in range(start, start + len(seal(RECORDS[row]).encode()) - 1):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        caplog.clear()
        found = JsonLines(path).read()
        assert all(record in found for record in others)
        # A byte of the checksum's own name is no damage of the record.
        assert f"line {row + 1}" in caplog.text or RECORDS[row].items() <= found[row].items()


def test_a_damaged_file_is_read_as_none(tmp_path, caplog):
    path = tmp_path / "a.json"
    assert read_sealed(path) == {}
    write_file(path, seal({"score": 0.25}))
    assert read_sealed(path) == {"score": 0.25}
    assert not caplog.text
    path.write_text(path.read_text().replace("0.25", "0.75"))
    assert read_sealed(path) == {}
    assert str(path) in caplog.text


def test_what_is_renamed_is_on_the_disk(tmp_path, monkeypatch):
    synced, sync = [], os.fsync
    monkeypatch.setattr("os.fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")) or sync(file))
    with replace_atomically(tmp_path / "data") as temporary:
        (temporary / "inner").mkdir(parents=True)
        (temporary / "inner" / "a").touch()
    before = [f"{temporary}/inner", f"{temporary}/inner/a", str(temporary)]
    assert sorted(synced[:-1]) == sorted(before) and synced[-1] == str(tmp_path)


def test_a_folder_is_not_written_into_what_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    require_other_folder(tmp_path / "a", tmp_path / "b")
    with pytest.raises(ValueError, match="a: is the data set itself; write to another folder"):
        require_other_folder("a", tmp_path / "b" / ".." / "a")


def test_after_an_error_the_old_file_stays_and_nothing_temporary_remains(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), replace_atomically(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_appears_when_it_is_complete(tmp_path):
    folder = tmp_path / "study"
    (tmp_path / ".study.tmp").mkdir()
    (tmp_path / ".study.tmp" / "abandoned").touch()
    with replace_atomically(folder) as temporary:
        temporary.mkdir()
        (temporary / "a").touch()
        assert not folder.exists()
    assert [path.name for path in folder.iterdir()] == ["a"]
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_that_holds_something_is_not_overwritten(tmp_path):
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "answers").touch()
    with pytest.raises(OSError, match="study"), replace_atomically(folder) as temporary:
        temporary.mkdir()
    assert [path.name for path in folder.iterdir()] == ["answers"]
