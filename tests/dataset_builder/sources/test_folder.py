import json
from pathlib import Path

import pytest
import soundfile

from sdiareward.common.errors import Skipped
from sdiareward.dataset_builder.episodes import Recording, split_reference, validate_episode
from sdiareward.dataset_builder.sources import locate, read_source


OPTIONS = {"language": "en", "license": "CC0-1.0"}


@pytest.fixture
def write_folder(tmp_path, make_tone):
    """Return a function that writes a manifest (objects or raw bytes a line) beside three recordings."""

    def write(*lines):
        root = tmp_path / "mine"
        (root / "calls").mkdir(parents=True)
        for name in ("calls/a.wav", "calls/b.flac", "long talk.ogg"):
            soundfile.write(root / name, make_tone(0.3), 16_000)
        (root / "empty.wav").touch()
        (root / "loop.wav").symlink_to("loop.wav")
        (tmp_path / "secret.wav").write_bytes((root / "calls/a.wav").read_bytes())
        if lines:
            raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
            (root / "manifest.jsonl").write_bytes(b"\n".join(raw) + b"\n")
        return root

    return write


def turn(role="user", **fields):
    audio = "calls/a.wav" if role == "user" else "calls/b.flac"
    return {"role": role, "text": "so, um, hello", "audio": audio, **fields}


def dialogue(*turns, **fields):
    return {"id": "d", "turns": list(turns) or [turn(), turn("assistant")], **fields}


def test_a_line_is_an_episode_or_a_recording_and_options_fill_in_what_it_does_not_say(write_folder):
    labels = {"language": "de-AT", "license": "CC-BY-4.0", "subset": "scripted", "group": "monday", "primary": "Joy"}
    said = dialogue(turn(start_s=0.05, end_s=0.2), turn("assistant"), id="call-17", **labels)
    talk = {"id": "talk", "audio": "long talk.ogg", "language": "cs"}
    root = write_folder(said, talk, dialogue(), dialogue(id="own", native_coding=["opus"]))
    options = {**OPTIONS, "subset": "semi_wild", "native_coding": ["mulaw"]}
    episode, recording, filled, own = read_source("folder", root, options)
    validate_episode(episode)
    assert {name: getattr(episode, name) for name in labels} == labels
    assert (episode.name, episode.secondary) == ("call-17", "Unknown")
    first, second = (turn.parts[0] for turn in episode.turns)
    assert (first.start_s, first.end_s, first.ref) == (0.05, 0.2, "folder:calls/a.wav")
    assert (second.start_s, second.end_s, second.audio) == (0.0, None, str(root / "calls/b.flac"))
    path = str(root / "long talk.ogg")
    # The coding of the options is for dialogues.
    assert recording == Recording("talk", path, "folder:long talk.ogg", "folder", "semi_wild", "cs", "CC0-1.0")
    assert (filled.language, filled.license, filled.subset) == ("en", "CC0-1.0", "semi_wild")
    assert (filled.native_coding, own.native_coding) == (("mulaw",), ("opus",))


@pytest.mark.parametrize(
    ("line", "kind", "reason"),
    [
        (b"{not json", "not_json", "one JSON object per line"),
        ('{"id": "caf\xe9"}'.encode("latin-1"), "not_utf8", "0xe9"),
        (dialogue(langauge="en"), "bad_line", "langauge"),
        (dialogue(language=False), "bad_line", "put it in quotes, as in 'no'"),
        (dialogue(audio="calls/a.wav"), "bad_line", "give either turns or audio"),
        (dialogue(turn()), "bad_turns", "has 1 turns"),
        ({"id": "d", "turns": ".."}, "bad_turns", "lies outside"),
        (dialogue(turn(strat_s=1), turn("assistant")), "bad_turns", "strat_s"),
        (dialogue(turn(text=" "), turn("assistant")), "missing_text", "needs words"),
        (dialogue(turn(start_s=2, end_s=1), turn("assistant")), "bad_times", "start_s 2"),
        (dialogue(turn(audio="loop.wav"), turn("assistant")), "missing_audio", "is a link to loop.wav"),
        (dialogue(turn(audio="calls\\a.wav"), turn("assistant")), "missing_audio", "forward slashes"),
        (rb'{"id": "a", "audio": "calls\new.wav\d"}', "not_json", "forward slashes"),
        (dialogue(turn(), turn("assistant", audio="calls/a.wav")), "bad_times", "turns 0 and 1"),
        (dialogue(turn(audio="../secret.wav"), turn("assistant")), "outside_root", "lies outside"),
        (dialogue(turn(audio="x" * 5_000), turn("assistant")), "missing_audio", "no such file"),
        (dialogue(turn(audio="empty.wav"), turn("assistant")), "empty_audio", "0 bytes"),
        ({"id": "../x", "audio": "calls/a.wav"}, "bad_id", "use only letters"),
    ],
)
def test_a_bad_line_is_dropped_by_its_number_and_the_others_are_kept(write_folder, line, kind, reason):
    root = write_folder(dialogue(id="first"), b"", line, dialogue(id="last"))
    first, skip, last = read_source("folder", root, OPTIONS)
    assert [first.name, last.name] == ["first", "last"]
    assert (skip.item.partition(" turn ")[0], skip.kind) == ("folder manifest.jsonl line 3", kind)
    assert reason in skip.reason


def test_a_folder_without_a_manifest_is_long_recordings(write_folder):
    root = write_folder()
    (root / ".hidden.wav").write_bytes(b"x")
    (root / "notes.txt").write_text("no recording")
    (root / "link.wav").symlink_to(root.parent / "lost.wav")
    (root / "calls/a.wav").rename(root / "calls/take #2.wav")
    items = list(read_source("folder", root, OPTIONS))
    recordings = [item for item in items if isinstance(item, Recording)]
    names = ("calls/b.flac", "calls/take #2.wav", "long talk.ogg")
    assert [item.ref for item in recordings] == [f"folder:{name}" for name in names]
    skipped = {item.item: item.kind for item in items if isinstance(item, Skipped)}
    links = dict.fromkeys(("folder link.wav", "folder loop.wav"), "missing_audio")
    assert skipped == {"folder empty.wav": "empty_audio", **links}
    assert not any("/" in item.recording_id or " " in item.recording_id for item in recordings)
    for item in recordings:
        assert locate("folder", root, split_reference(item.ref)[1]) == Path(item.path)


def test_a_folder_without_what_is_needed_is_refused(write_folder, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "nowhere"):
        with pytest.raises(FileNotFoundError, match=name):
            list(read_source("folder", tmp_path / name, OPTIONS))
    root = write_folder()
    for options in ({}, {"language": "en"}, {**OPTIONS, "language": False}):
        with pytest.raises(ValueError, match="give language and license"):
            list(read_source("folder", root, options))


def message(role, *parts):
    return {"role": role, "content": [{"type": key, key: value} for key, value in parts]}


def test_a_line_can_have_messages_or_a_folder_or_file_of_turns(write_folder, make_tone):
    said = [("text", "well"), ("audio", "calls/a.wav"), ("text", "then")]
    answer = message("assistant", ("text", "so"), ("audio", "calls/b.flac"))
    root = write_folder(
        {"id": "messages", "messages": [message("user", *said), answer]},
        {"id": "folder", "turns": "talk"},
        {"id": "file", "turns": "talk/dialogue.json"},
        {"id": "two", "messages": [message("user", *said, ("audio", "calls/b.flac")), answer]},
    )
    (root / "talk").mkdir()
    for name in ("1", "2"):
        soundfile.write(root / "talk" / f"{name}.wav", make_tone(0.3), 16_000)
        (root / "talk" / f"{name}.txt").write_text("so")
    turns = [{"role": role, "text": "so", "audio": f"{n}.wav"} for n, role in ((1, "user"), (2, "assistant"))]
    (root / "talk" / "dialogue.json").write_text(json.dumps(turns))
    *episodes, two = read_source("folder", root, OPTIONS)
    assert [[turn.parts[0].ref for turn in episode.turns] for episode in episodes] == [
        ["folder:calls/a.wav", "folder:calls/b.flac"],
        ["folder:talk/1.wav", "folder:talk/2.wav"],
        ["folder:talk/1.wav", "folder:talk/2.wav"],
    ]
    assert episodes[0].turns[0].text == "well then"
    assert two.kind == "missing_audio"
    assert "audio is ['calls/a.wav', 'calls/b.flac']; give one path below the folder" in two.reason
