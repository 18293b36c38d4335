from pathlib import Path

import pytest
import soundfile

from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, validate_episode
from sdiareward.dataset_builder.references import split_reference
from sdiareward.dataset_builder.sources import fillets, locate, read_source


DIALOGS = r"""
dialogId("pot-m-velik", "font_small", "It is \"big\".")
dialogStr("Je to „velké“.")

dialogId("pot-v-kras", "font_big",
"Beautiful.")
dialogStr(
"Řekl: \"Krása.\"")

dialogId("pot-m-dik", "font_small", "Thanks.")
dialogStr("Děkuji.")
dialogId("pot-v-nic", "font_big", "Never mind.")
dialogId("pot-v-sam", "font_big", "Alone.")
dialogStr("Jsem tu sám.")
dialogId("pot-x-krab", "", "")
dialogStr("")
"""


def exchanges(*lines):
    return [[tuple(line) for line in exchange] for exchange in fillets.read_exchanges(lines)]


def test_lines_queued_one_after_another_are_an_exchange():
    code = ['addm(20 + random(30), "a")', "  room.said = 1", "  adddel(10)", "", '  addv(9, "b")', '  addm(2, "c")']
    assert exchanges(*code) == [[("m", "a"), ("v", "b"), ("m", "c")]]


def test_an_if_without_else_is_read_as_taken():
    code = ['addm(0, "a")', "if random(100) < 30 then", 'addv(5, "b")', "end", 'addm(5, "c")']
    assert exchanges(*code) == [[("m", "a"), ("v", "b"), ("m", "c")]]


@pytest.mark.parametrize(
    "line",
    [
        "else",
        "elseif room.x == 0 then",
        "[1] = function()",
        "end",
        'addv(1, "b"..random(3))',
        'crab:planDialog(1, "x")',
        "while true do",
        "x = function()",
        "switch(random(2)){",
    ],
)
def test_anything_else_ends_an_exchange(line):
    assert exchanges('addm(0, "a")', line, 'addv(5, "b")') == []
    assert exchanges('addm(0, "a")', 'addv(5, "b")', line, 'addm(0, "c")') == [[("m", "a"), ("v", "b")]]


def test_the_dialog_tables_are_read_with_escapes_and_line_breaks():
    assert fillets.read_dialogs(DIALOGS) == {
        "pot-m-velik": "Je to „velké“.",
        "pot-v-kras": 'Řekl: "Krása."',
        "pot-m-dik": "Děkuji.",
        "pot-v-sam": "Jsem tu sám.",
        "pot-x-krab": "",
    }


@pytest.fixture
def write_level(tmp_path, make_tone):
    """Return a function that writes the level `wreck` with its code, and returns the game's folder."""

    def write(code, clips=("pot-m-velik", "pot-v-kras", "pot-m-dik", "pot-v-sam", "pot-v-nic")):
        for name in ("sound/wreck/cs", "script/wreck"):
            (tmp_path / name).mkdir(parents=True)
        for clip in clips:
            soundfile.write(tmp_path / f"sound/wreck/cs/{clip}.ogg", make_tone(0.3), 22_050)
        (tmp_path / "script/wreck/dialogs_cs.lua").write_text(DIALOGS)
        (tmp_path / "script/wreck/code.lua").write_text(code)
        return tmp_path

    return write


def test_an_exchange_of_the_two_fish_is_an_episode_of_its_level(write_level):
    root = write_level('addm(0, "pot-m-velik")\naddm(1, "pot-m-dik")\naddv(random(8), "pot-v-kras")\n')
    episode, skip = read_source("fillets", root)
    validate_episode(episode)
    assert [turn.text for turn in episode.turns] == ["Je to „velké“. Děkuji.", 'Řekl: "Krása."']
    assert (episode.group, episode.language, episode.license) == ("wreck", "cs", "GPL-2.0-only")
    part = episode.turns[1].parts[0]
    assert part.ref == "fillets:sound/wreck/cs/pot-v-kras.ogg"
    assert locate("fillets", root, split_reference(part.ref)[1]) == Path(part.audio)
    assert (skip.item, skip.kind) == ("fillets wreck", "no_answer")
    assert skip.reason.startswith("2 of 5 clips")


def test_an_exchange_that_two_branches_hold_is_taken_once(write_level):
    code = 'addm(0, "pot-m-velik")\naddv(1, "pot-v-kras")\nend\naddm(9, "pot-m-velik")\naddv(3, "pot-v-kras")\n'
    assert len([item for item in read_source("fillets", write_level(code)) if isinstance(item, Episode)]) == 1


def test_a_line_without_clip_or_words_is_dropped_and_cuts_the_exchange(write_level):
    lines = ['addm(0, "pot-m-velik")', 'addv(0, "pot-v-kras")', 'addm(0, "pot-m-dik")', 'addv(0, "pot-v-sam")']
    root = write_level("\n".join([*lines, 'addv(0, "pot-v-nic")']))
    (root / "sound/wreck/cs/pot-v-kras.ogg").unlink()
    items = list(read_source("fillets", root))
    assert [(item.item, item.kind) for item in items if isinstance(item, Skipped)][:3] == [
        ("fillets wreck/pot-v-kras", "missing_audio"),
        ("fillets wreck/pot-v-nic", "missing_text"),
        ("fillets wreck/pot-m-velik utterance 0", "no_answer"),
    ]
    (episode,) = [item for item in items if isinstance(item, Episode)]
    assert [turn.text for turn in episode.turns] == ["Děkuji.", "Jsem tu sám."]


def test_a_level_without_a_table_is_dropped_whole(write_level):
    root = write_level("")
    (root / "script/wreck/dialogs_cs.lua").unlink()
    (skip,) = read_source("fillets", root)
    assert (skip.item, skip.kind) == ("fillets wreck", "missing_text")
