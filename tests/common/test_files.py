from concurrent.futures import ThreadPoolExecutor

import pytest

from sdiareward.common.files import JsonLines, replace_atomically, require_other_folder, write_file


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
    JsonLines(path).append([{"a": 3}])
    assert path.read_text() == "".join(f'{{"a": {number}}}\n' for number in [*kept, 3])


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
