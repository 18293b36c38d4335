"""Dialogues of which there are the words alone, in the forms of two games."""

import pytest

from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import validate_episode
from sdiareward.dataset_builder.sources import read_source, read_written
from sdiareward.dataset_builder.sources.freedroidrpg import read_exchanges, read_nodes
from sdiareward.dataset_builder.sources.wesnoth import read_scenes


NODES = r"""
return {
    FirstTime = function()
        Npc:says(_"Nobody asked.")
    end,
    {
        id = "arena", -- Npc:says(_"In a comment.")
        text = _"Arena? \"What\" arena?",
        code = function()
            if (Tux:has_met("Mike")) then
                Npc:says(_"This one.")
            elseif (other) then
                Npc:says(_"Another one.")
            else
                Npc:says(_"None.")
            end
            Npc:says_random(_"Wanna\nfight?",
                _"Fight?")
            Tux:says(_[[Well,
                yes.]])
            Npc:says(_"Good.", "NO_WAIT")
        end,
    },
    {
        id = "name",
        text = _"[Say a name]",
        echo_text = false,
        code = function()
            Tux:says(_"I am Linus.")
            Npc:says(_"Hi, Linus.")
        end,
    },
    {
        id = "price",
        text = _"How much?",
        code = function()
            Npc:says(_"%d circuits.", price)
        end,
    },
}
"""
SCENES = """
# A comment. # Another one.
[message]
    speaker="Ro'Sothian"
    message= _ "note^You <i>wretched</i> dwarf!"
[/message]
# Here he draws a breath.
[message]
    speaker=Ro'Sothian
    message= _ "I am ""back""."
[/message]
[message]
    speaker=Tallin
    message={WHISPER (_ "It’s him.")}
[/message]
[move_unit]
[/move_unit]
[message]
    speaker=Tallin
    message= _ "Alone."
[/message]
[message]
    speaker=narrator
    message= _ "Night fell."
[/message]
[message]
    id=Tallin
    message= _ "Who has $amount gold?"
[/message]
"""


def test_a_node_is_read_along_its_first_alternative():
    nodes = [read_exchanges(lines) for lines in read_nodes(NODES)]
    assert nodes == [
        [],
        [('Arena? "What" arena?', "This one. Wanna fight?"), ("Well, yes.", "Good.")],
        [("I am Linus.", "Hi, Linus.")],
        [],
    ]


def test_messages_one_after_another_are_a_scene():
    scenes = [scene for scene in read_scenes(SCENES) if scene]
    assert scenes == [[("Ro'Sothian", 'You wretched dwarf! I am "back".'), ("Tallin", "It's him.")]]


def test_a_long_gap_is_read_in_no_time():
    # A pattern that can split a comment in many ways would need years.
    assert not any(read_scenes("# # " * 200 + "[a]" + SCENES.split("[move_unit]")[1]))


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_freedroidrpg_gives_three_exchanges_a_dialogue(tmp_path):
    write(tmp_path, "data/act1/dialogs/Butch.lua", NODES)
    write(tmp_path, "data/act1/dialogs/Computer.lua", 'cli_says("login")')
    skipped, dialogue = sorted(read_written("freedroidrpg", tmp_path), key=lambda item: not isinstance(item, Skipped))
    assert (skipped.item, skipped.kind) == ("freedroidrpg act1/dialogs/Computer", "no_dialogue")
    validate_episode(dialogue)
    assert (dialogue.name, dialogue.group) == ("act1/dialogs/Butch/0", "act1/dialogs/Butch")
    assert [turn.role for turn in dialogue.turns] == ["user", "assistant"] * 3
    assert dialogue.turns[5].text == "Hi, Linus."
    assert all(part.audio is None for turn in dialogue.turns for part in turn.parts)


def test_wesnoth_is_read_by_campaign(tmp_path):
    write(tmp_path, "Northern/scenarios/01.cfg", SCENES)
    (dialogue,) = read_written("wesnoth", tmp_path)
    validate_episode(dialogue)
    assert (dialogue.name, dialogue.group) == ("Northern/scenarios/01/0", "Northern/scenarios/01")
    assert [turn.text for turn in dialogue.turns] == ['You wretched dwarf! I am "back".', "It's him."]


@pytest.mark.parametrize(
    ("name", "package"), [("freedroidrpg", "freedroidrpg-data"), ("wesnoth", "wesnoth-1.16-httt")]
)
def test_a_missing_source_says_how_to_get_it(tmp_path, name, package):
    with pytest.raises(FileNotFoundError, match=f"apt-get install {package}"):
        list(read_written(name, tmp_path))


def test_a_written_source_is_none_of_the_builder(tmp_path):
    with pytest.raises(ValueError, match="no source 'wesnoth'"):
        list(read_source("wesnoth", tmp_path))
    with pytest.raises(ValueError, match="no source 'sample'; choose from"):
        list(read_written("sample", tmp_path))
