"""Paths and addresses that came with data: nothing outside of the audio root is read, on any system."""

import os

import datasets
import pytest
from support.tables import write_rows

from sdiareward.chat_sdiareward import ROLES
from sdiareward.dataset_builder.episodes import SkipError
from sdiareward.dataset_builder.release.release import AudioRoots, find_part
from sdiareward.dataset_builder.sources import read_source
from sdiareward.dataset_builder.sources.reading import find_clip
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.path_sandbox import ROOTS_VARIABLE as ROOTS
from sdiareward.pairs.path_sandbox import RecordingFinder, list_audio_roots, require_inside, resolve_inside
from sdiareward.pairs.rows import Dialogues, open_rows, read_block
from sdiareward.pairs.schema import SIDES


OUTSIDE = ["/etc/passwd", "../secret.wav", "a/../../secret.wav", "link/../../secret.wav"]
# The user made them, in the folder of the table or of the corpus.
LINKS = ["link/secret.wav", "link.wav"]


@pytest.fixture
def root(tmp_path, make_tone):
    """Return a root with a recording in it; a secret lies beside it, and links lead there."""
    import soundfile

    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    for path in (root / "a.wav", tmp_path / "secret.wav"):
        soundfile.write(path, make_tone(0.3), 16_000)
    (root / "link").symlink_to(tmp_path)
    (root / "link.wav").symlink_to(tmp_path / "secret.wav")
    return root


def refer(path, uri="folder"):
    return {"uri": f"{uri}:{path}", "start_s": 0.0, "end_s": 0.2, "text": "hello"}


@pytest.mark.parametrize("path", OUTSIDE)
def test_no_path_leaves_the_root(path, root, tmp_path):
    with pytest.raises(ValueError, match="lies outside of"):
        resolve_inside(root, path)
    roots = AudioRoots(by_source={"folder": root})
    for find in (lambda: find_clip(root, path), lambda: find_part(refer(path), roots, tmp_path / "cache")):
        with pytest.raises(SkipError) as error:
            find()
        assert error.value.kind == "outside_root"
    # Of a release, no folder of this machine is named.
    assert str(tmp_path) not in str(error.value)


@pytest.mark.parametrize("path", ["a/b.wav", "a/..b.wav", "12:30.wav", "link/b.wav"])
def test_ordinary_names_stay_usable(path, root):
    assert resolve_inside(root, path) == root / path


@pytest.mark.parametrize("path", LINKS)
def test_a_link_in_the_users_folder_is_followed_at_every_door(path, root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_clip(root, path) == root / path
    (root / "x.wav").symlink_to(root / path)
    for source, name in (("folder", path), ("youtube", "x")):
        assert find_part(refer(name, source), AudioRoots(by_source={source: root}), tmp_path / "cache")
    table = write_rows(root / "pairs.jsonl", [row_of(path)])
    assert len(load_pairs(table, "train")) == 1
    block = read_block(open_rows(table), range(1), SIDES)
    assert len(Dialogues(block, range(1), finder=RecordingFinder(None, table))[0].turns) == 2


def test_data_of_the_hub_follow_links_only_below_the_folder_that_is_named_for_them(root, monkeypatch):
    monkeypatch.chdir(root)
    for name in ("link/secret.wav", "link.wav"):
        with pytest.raises(ValueError, match=f"{name.partition('/')[0]} is a link to .*--audio-root"):
            require_inside(root / name, list_audio_roots("nobody/nothing"))
        require_inside(root / name, list_audio_roots("nobody/nothing", "."))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", root / "cache")
    monkeypatch.setenv(ROOTS, os.pathsep.join([str(root / "one"), str(root / "two")]))
    roots = list_audio_roots("nobody/nothing")
    for name in ("cache/x/0.wav", "one/a.wav", "two/b/c.wav"):
        require_inside(root / name, roots)
    for name in ("three/a.wav", "one/../three/a.wav", "onea.wav"):
        with pytest.raises(ValueError, match="outside of the audio root"):
            require_inside(root / name, roots)


def test_a_corpus_whose_folders_are_links_is_listed_and_a_link_upwards_is_not(root):
    (root / "a" / "up").symlink_to(root)
    (root / "link").unlink()
    (root.parent / "elsewhere").mkdir()
    (root / "link").symlink_to(root.parent / "elsewhere")
    (root / "a.wav").rename(root / "link" / "a.wav")
    found = read_source("folder", root, {"language": "en", "license": "CC0-1.0"})
    assert [item.ref for item in found] == ["folder:link.wav", "folder:link/a.wav"]


def row_of(path, as_bytes=False):
    """Return a pair whose turns have paths in place of bytes, as a table from the Hub may have."""
    audio = {"bytes": b"RIFF" if as_bytes else None, "path": str(path)}
    return {"pair_id": "p", **dict.fromkeys(SIDES, [{"role": role, "text": "hi", "audio": audio} for role in ROLES])}


@pytest.mark.parametrize("form", ["turns", "messages", "mixed"])
def test_pairs_that_name_a_recording_outside_of_their_root_are_not_loaded(form, root, tmp_path, monkeypatch):
    row = row_of(tmp_path / "secret.wav")
    if form != "turns":
        # Items of one kind have all keys; `datasets` keeps mixed ones as JSON.
        fill = {} if form == "mixed" else {"audio": None, "text": None}
        content = [fill | {"type": "text", "text": "hi"}, fill | {"type": "audio", "audio": "../secret.wav"}]
        row = dict.fromkeys(SIDES, [{"role": role, "content": content} for role in ROLES])
    table = write_rows(root / "pairs.jsonl", [row])
    monkeypatch.chdir(root)
    # A path beside bytes is only a name.
    assert len(load_pairs(write_rows(root / "embedded.parquet", [row_of("/etc/passwd", as_bytes=True)]), "train")) == 1
    with pytest.raises(ValueError, match=f"pairs.jsonl: audio .*secret.wav' lies outside .*{ROOTS}"):
        load_pairs(table, "train")
    monkeypatch.setenv(ROOTS, str(tmp_path))
    assert len(load_pairs(table, "train")) == 1
