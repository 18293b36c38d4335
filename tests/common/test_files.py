"""Files appear whole or not at all, and one process at a time writes to a folder."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from sdiareward.common.errors import UserError
from sdiareward.common.files import (
    LOCK_FILE,
    JsonLines,
    lock_folder,
    replace_atomically,
    require_other_folder,
    write_file,
)


def test_several_may_write_one_file_at_once(tmp_path):
    path = tmp_path / "a.txt"
    contents = [chr(ord("a") + number) * 1000 for number in range(20)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda content: write_file(path, content, is_shared=True), contents * 10))
    assert path.read_text() in contents
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("text", "kept"), [('{"a": 1}\n{"a": ', [1]), ('{"a": 1}\n{"a": 2}', [1, 2]), (None, [])])
def test_a_torn_last_line_is_removed_before_a_line_is_added_and_a_complete_one_kept(text, kept, tmp_path):
    path = tmp_path / "a.jsonl"
    if text is not None:
        path.write_text(text)
        assert JsonLines(path).read() == [{"a": number} for number in kept]
        path.write_text(text)
    JsonLines(path).append([{"a": 3}])
    assert path.read_text() == "".join(f'{{"a": {number}}}\n' for number in [*kept, 3])


@pytest.mark.parametrize("line", ["{", "[1]"])
def test_a_line_that_is_no_object_is_named(line, tmp_path):
    (tmp_path / "a.jsonl").write_text(f"{{}}\n{line}\n{{}}\n")
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: "):
        JsonLines(tmp_path / "a.jsonl").read()


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
    with pytest.raises(ValueError, match="a: this is the data set itself"):
        require_other_folder("a", tmp_path / "b" / ".." / "a")


def test_after_an_error_the_old_file_stays_and_nothing_temporary_remains(tmp_path):
    path = tmp_path / "a.txt"
    write_file(path, "ä\n")
    with pytest.raises(KeyboardInterrupt), replace_atomically(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_bytes() == "ä\n".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_appears_when_it_is_complete_and_replaces_none_that_holds_something(tmp_path):
    folder = tmp_path / "study"
    (tmp_path / ".study.tmp").mkdir()
    (tmp_path / ".study.tmp" / "abandoned").touch()
    with replace_atomically(folder) as temporary:
        temporary.mkdir()
        (temporary / "a").touch()
        assert not folder.exists()
    with pytest.raises(OSError, match="study"), replace_atomically(folder) as temporary:
        temporary.mkdir()
    assert [path.name for path in folder.iterdir()] == ["a"]
    assert list(tmp_path.iterdir()) == [folder]


HOLD = """
import sys
from sdiareward.common.files import lock_folder
with lock_folder(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_that_another_process_writes_to_is_refused_and_free_when_that_is_killed(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    refused = pytest.raises(UserError, match="run: another process is writing to this folder; wait")
    with lock_folder(tmp_path / "other"), refused, lock_folder(tmp_path / "run"):
        pass
    holder.kill()
    holder.communicate()
    assert (tmp_path / f".run{LOCK_FILE}").exists()
    with lock_folder(tmp_path / "run"):
        (tmp_path / "run" / "result").touch()
    assert os.listdir(tmp_path / "run") == ["result"]
    assert os.listdir(tmp_path) == ["run"]


def test_a_run_that_wrote_nothing_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="bad input"), lock_folder(tmp_path / "new"):
        raise ValueError("bad input")
    (tmp_path / "old").mkdir()
    with lock_folder(tmp_path / "old"):
        pass
    assert os.listdir(tmp_path) == ["old"]
