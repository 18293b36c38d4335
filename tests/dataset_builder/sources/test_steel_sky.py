"""Beneath a Steel Sky: dialogues out of scripts, choices of the player, packed clips; what is damaged is skipped."""

import io
import struct

import numpy as np
import pytest
import soundfile
from support.steel_sky_game import LINES, OTHER, PLAYER, make_choice, make_script, pack_texts, speak, write_game

from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.references import split_reference
from sdiareward.dataset_builder.sources import locate, read_source, steel_sky


def read(root):
    """Return the episodes of a folder, and the items and kinds of what was skipped."""
    items = list(read_source("steel_sky", root))
    skipped = [(item.item, item.kind) for item in items if isinstance(item, Skipped)]
    return [item for item in items if not isinstance(item, Skipped)], skipped


def test_a_choice_of_the_player_begins_the_dialogue_that_answers_it(tmp_path):
    episodes, skipped = read(write_game(tmp_path))
    assert [[turn.text for turn in episode.turns] for episode in episodes] == [
        ["Who are you?", "Nobody.", "Are you sure?", "I think so... Go away!"],
        ["Hm.", "Nobody."],
    ]
    assert [turn.role for turn in episodes[0].turns] == ["user", "assistant"] * 2
    assert (episodes[0].group, episodes[1].group, skipped) == ("0/0", "0/0", [])


def test_a_clip_is_unpacked_to_a_wav_file_and_found_by_its_reference(tmp_path):
    part = read(write_game(tmp_path))[0][0].turns[0].parts[0]
    samples, rate = soundfile.read(io.BytesIO(part.audio), dtype="float32")
    assert rate == 11_025
    np.testing.assert_array_equal(samples, [0.0, 0.5, -0.5] * 100)
    assert part.ref == "steel_sky:sky.dsk#50001"
    _, path, member = split_reference(part.ref)
    assert locate("steel_sky", tmp_path, path, member) == part.audio
    with pytest.raises(FileNotFoundError, match="has no clip 50009"):
        locate("steel_sky", tmp_path, path, "50009")
    with pytest.raises(ValueError, match=r"must read 'steel_sky:sky\.dsk#NUMBER'"):
        locate("steel_sky", tmp_path, "sky.dnr", member)


def test_a_branch_ends_a_dialogue_and_a_line_without_a_clip_is_skipped(tmp_path):
    script = make_script([*speak(PLAYER, 1), *speak(OTHER, 2), 9, 0, *speak(PLAYER, 3), *speak(OTHER, 7), 13])
    episodes, skipped = read(write_game(tmp_path, script))
    assert [[turn.text for turn in episode.turns] for episode in episodes] == [["Who are you?", "Nobody."]]
    assert skipped[0] == ("steel_sky line 0x7", "missing_audio")
    assert {kind for _, kind in skipped} == {"missing_audio", "no_answer"}


def test_lines_lie_behind_the_sizes_of_those_before_them():
    texts = pack_texts(LINES)
    assert [steel_sky.read_text(texts, number) for number in range(len(LINES))] == LINES


def test_a_line_of_a_later_block_is_found():
    # One block of 32 empty lines, each of one unit (the bits of the end, padded), before the first line of the next.
    one = pack_texts(["Hm."])[5:]
    sizes = bytes(32) + b"\0"
    texts = struct.pack("<3H", 6, 6 + len(sizes), 0) + sizes + one
    assert steel_sky.read_text(texts, 32) == "Hm."


def test_damaged_words_are_skipped_and_damaged_files_refused(tmp_path):
    script = make_script(make_choice(1, [speak(OTHER, 31)], [speak(PLAYER, 2), speak(OTHER, 3)]))
    root = write_game(tmp_path, script, lines=[*LINES[:3], "", *LINES[4:]], clips=(1, 2, 3, 31))
    kinds = dict(read(root)[1])
    assert (kinds["steel_sky line 0x1f"], kinds["steel_sky line 0x3"]) == ("bad_entry", "missing_text")
    disk = (root / "sky.dsk").read_bytes()
    (root / "sky.dsk").write_bytes(disk.replace(b"RNC\1\0\0\1\x2c", b"RNC\1\0\0\1\x2d"))
    assert dict(read(root)[1])["steel_sky line 0x2"] == "bad_entry"
    table = (root / "sky.dnr").read_bytes()
    (root / "sky.dnr").write_bytes(table[:-3])
    with pytest.raises(ValueError, match="fewer than its entries need"):
        read(root)


@pytest.mark.parametrize(
    ("words", "small"),
    [
        ("I'm FAMISHED! That DAMNED alert...", "I'm famished! That damned alert..."),
        ("RE-DECORATIN'... I can't", "Re-decoratin'... I can't"),
        ("A friend of MINE", "A friend of mine"),
    ],
)
def test_emphasis_is_written_small(words, small):
    assert steel_sky.write_small(words) == small
