import gzip
import json
import os
import shutil
import struct
from pathlib import Path

import pytest
from support.paths import SAMPLE

from sdiareward.audio_sdiareward import read_audio, resample
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, ScriptPair, validate_episode
from sdiareward.dataset_builder.references import split_reference
from sdiareward.dataset_builder.sources import SOURCES, amazon_queen, asterisk, locate, read_source, sample
from sdiareward.perturbations.channel import encode


def episodes_of(items):
    return [item for item in items if isinstance(item, Episode)]


def drops_of(items):
    return [(item.item, item.kind) for item in items if isinstance(item, Skipped)]


def pack_strings(strings, base):
    packed = b""
    for string_id, text in strings:
        packed += struct.pack(">hhB", 0, string_id, len(text)) + text.encode("latin-1")
        if text:
            packed += b"\0" * (-(base + len(packed)) % 4)
    return packed


def pack_conversation(key, player, person):
    player_start = 32 + 96
    packed_player = pack_strings(player, player_start)
    person_start = player_start + len(packed_player)
    header = struct.pack(">5h", -1, 0, key, len(player), len(person)) + struct.pack(">11H", 0, person_start, *[0] * 9)
    return b"\0" * 20 + header + b"\0" * 96 + packed_player + pack_strings(person, person_start)


def pack_archive(entries, mp3=1):
    position = 0x0F + 21 * len(entries)
    table = b""
    for name, data in entries.items():
        table += struct.pack(">12sBII", name.encode(), 0, position, len(data))
        position += len(data)
    return b"QTBLCEM10\0\0\0" + struct.pack(">BH", mp3, len(entries)) + table + b"".join(entries.values())


@pytest.fixture
def clip(make_tone):
    return encode(resample(make_tone(0.5), 16_000, 11_025), 11_025, "MP3", "MPEG_LAYER_III", 0.7)


@pytest.fixture
def queen(tmp_path, clip):
    """A miniature of the game's archive: three exchanges, of which one lacks a clip."""
    player = [(6, "Hi, I'm Joe King.*03"), (7, "What's that?*02"), (300, "Move over.*03")]
    person = [(6, "*02Uh uh!*00Who?"), (7, "No clip of this."), (300, "Never.*XY00(1,2)*FL")]
    names = ["030006J1", "030006P2", "030006P3", "030007J1", "03012CJ1", "03012CP1"]
    entries = {"APE.DOG": pack_conversation(3, player, person), **{f"{name}.SB": clip for name in names}}
    path = tmp_path / "queen.1c"
    path.write_bytes(pack_archive(entries))
    return path


def test_an_exchange_of_the_amazon_queen_is_a_line_and_its_answer(queen):
    (episode,) = episodes_of(read_source("amazon_queen", queen))
    validate_episode(episode)
    assert [turn.text for turn in episode.turns] == ["Hi, I'm Joe King.", "Uh uh! Who?", "Move over.", "Never."]
    assert [len(turn.parts) for turn in episode.turns] == [1, 2, 1, 1]
    assert len(read_audio(episode.turns[0].parts[0].audio)) == pytest.approx(8000, abs=1200)


def test_all_episodes_of_one_conversation_share_a_group(queen):
    assert {episode.group for episode in episodes_of(amazon_queen.read_episodes(queen.parent))} == {"APE.DOG"}


def test_an_exchange_without_all_its_clips_is_dropped_by_name(queen):
    (skip,) = [item for item in amazon_queen.read_episodes(queen) if isinstance(item, Skipped)]
    assert (skip.item, skip.kind) == ("amazon_queen 030007", "missing_audio")
    assert "030007P1.SB" in skip.reason


def test_a_damaged_conversation_costs_only_itself(tmp_path, clip):
    entries = {
        "APE.DOG": b"\0" * 25,
        "BOB.DOG": pack_conversation(4, [(1, "Hello there.")], [(1, "Go away.")]),
        "040001J1.SB": clip,
        "040001P1.SB": clip,
    }
    (tmp_path / "queen.1c").write_bytes(pack_archive(entries))
    items = list(amazon_queen.read_episodes(tmp_path))
    assert drops_of(items) == [("amazon_queen APE.DOG", "bad_entry")]
    assert [episode.name for episode in episodes_of(items)] == ["BOB.DOG/0"]


def test_a_reference_into_the_archive_gives_the_clip(queen, clip):
    (episode,) = episodes_of(amazon_queen.read_episodes(queen))
    part = episode.turns[1].parts[1]
    assert part.ref == "amazon_queen:queen.1c#030006P3.SB"
    for root in (queen, queen.parent):
        source, path, member = split_reference(part.ref)
        assert locate(source, root, path, member) == clip


def test_a_reference_to_a_clip_that_the_archive_lacks_is_not_found(queen):
    with pytest.raises(FileNotFoundError, match="has no clip 999999J1.SB"):
        locate("amazon_queen", queen, "queen.1c", "999999J1.SB")
    with pytest.raises(ValueError, match="must read"):
        locate("amazon_queen", queen, "../queen.1c", "030006P3.SB")


def test_an_archive_that_was_replaced_is_read_again(queen, clip):
    list(amazon_queen.read_episodes(queen))
    queen.write_bytes(pack_archive({"030006P3.SB": clip[:100]}))
    os.utime(queen, ns=(0, 1))
    assert locate("amazon_queen", queen, "queen.1c", "030006P3.SB") == clip[:100]


def test_another_file_than_the_talkie_archive_is_refused(tmp_path):
    path = tmp_path / "queen.1c"
    path.write_bytes(pack_archive({}, mp3=0))
    with pytest.raises(ValueError, match="the talkie version's MP3 archive"):
        list(amazon_queen.read_episodes(path))


@pytest.fixture
def asterisk_tree(tmp_path, make_tone):
    sounds = tmp_path / "asterisk/sounds/en_US_f_Allison"
    transcript = tmp_path / "doc/asterisk-core-sounds-en/core-sounds-en.txt.gz"
    for folder in (sounds, transcript.parent):
        folder.mkdir(parents=True)
    prompts = {
        "agent-pass": "Please enter your password.",
        "agent-user": "Agent login. Please.",
        "agent-loginok": "Agent logged in.",
        "beep": "[this is a beep]",
        "added": "Added.",
        "vm-intro": "Please leave your message.",
    }
    for name in prompts:
        (sounds / f"{name}.wav").write_bytes(encode(make_tone(0.5), 8000, "WAV", "PCM_16", None))
    lines = "; a comment\n" + "".join(f"{name}: {text}\n" for name, text in prompts.items())
    transcript.write_bytes(gzip.compress(lines.encode()))
    return tmp_path


def test_asterisk_prompts_of_one_application_are_lined_up_in_pairs(asterisk_tree):
    (episode,) = episodes_of(asterisk.read_episodes(asterisk_tree))
    validate_episode(episode)
    assert episode.group == "agent"
    assert [turn.text for turn in episode.turns] == ["Agent logged in.", "Please enter your password."]


def test_every_asterisk_prompt_without_an_episode_is_dropped_with_its_kind(asterisk_tree):
    (asterisk_tree / "asterisk/sounds/en_US_f_Allison/vm-intro.wav").unlink()
    assert drops_of(asterisk.read_episodes(asterisk_tree)) == [
        ("asterisk beep", "no_speech"),
        ("asterisk added", "too_short"),
        ("asterisk vm-intro", "missing_audio"),
        ("asterisk agent-user", "no_answer"),
    ]


def test_an_asterisk_reference_finds_its_file(asterisk_tree):
    (episode,) = episodes_of(asterisk.read_episodes(asterisk_tree))
    part = episode.turns[0].parts[0]
    assert part.ref == "asterisk:asterisk/sounds/en_US_f_Allison/agent-loginok.wav"
    assert locate("asterisk", asterisk_tree, split_reference(part.ref)[1]) == Path(part.audio)


def test_a_reference_that_climbs_out_of_the_corpus_is_refused(asterisk_tree):
    with pytest.raises(ValueError, match="lies outside"):
        locate("asterisk", asterisk_tree / "doc", "../asterisk/sounds/en_US_f_Allison/beep.wav")


def test_an_option_that_a_source_does_not_have_is_refused_with_the_known_ones():
    with pytest.raises(
        ValueError, match=r"no options \['langauge'\]; it has \['language', 'license', 'subset', 'native_coding'\]"
    ):
        read_source("folder", SAMPLE, {"langauge": "en"})


@pytest.mark.parametrize("name", ["amazon_queen", "asterisk", "drascula", "fillets", "sample", "steel_sky"])
def test_a_source_that_is_not_there_says_how_to_get_it(name, tmp_path):
    with pytest.raises(FileNotFoundError, match="not found; .*(apt-get install|repository)"):
        list(read_source(name, tmp_path / "nowhere"))


def test_an_unknown_source_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="colloquial_scripts"):
        read_source("youtoube")
    assert "sample" in SOURCES


def test_the_scripts_are_210_pairs_in_ten_domains():
    pairs = list(read_source("colloquial_scripts"))
    assert len(pairs) == 210
    assert len({pair.written.split_group for pair in pairs}) == 10
    for pair in pairs:
        assert isinstance(pair, ScriptPair)
        assert pair.written.group_id == pair.spoken.group_id
        assert len(pair.written.turns) == len(pair.spoken.turns)
        validate_episode(pair.written)
        validate_episode(pair.spoken)


def test_bad_lines_of_a_sample_are_dropped_and_the_rest_is_kept(tmp_path):
    good = (SAMPLE / "manifest.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[0]
    audio = tmp_path / json.loads(good)["audio"]
    audio.parent.mkdir()
    shutil.copy(SAMPLE / json.loads(good)["audio"], audio)
    outside = good.replace('"audio": "', '"audio": "../')
    (tmp_path / "manifest.jsonl").write_text("not JSON\n" + outside + '{"audio": "x"}\n' + good + good)
    items = list(sample.read_episodes(tmp_path))
    assert [kind for _, kind in drops_of(items)] == ["not_json", "outside_root", "missing_audio", "duplicate"]
    assert len(episodes_of(items)) == 1


def test_a_script_without_a_side_is_dropped(tmp_path):
    path = tmp_path / "scripts.jsonl"
    turns = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi."}]
    row = {"scenario_id": "a", "domain": "food", "hard": False, "written": turns, "spoken": turns}
    lines = [row, {**row, "scenario_id": "b", "spoken": None}, row]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    items = list(read_source("colloquial_scripts", path))
    assert [type(item).__name__ for item in items] == ["ScriptPair", "Skipped", "Skipped"]
    assert [item.kind for item in items[1:]] == ["bad_row", "duplicate"]


def test_the_bundled_sample_is_complete_and_small():
    episodes = list(sample.read_episodes(SAMPLE))
    assert all(isinstance(episode, Episode) for episode in episodes)
    assert {episode.source for episode in episodes} == {"amazon_queen", "asterisk"}
    files = {part.audio for episode in episodes for turn in episode.turns for part in turn.parts}
    assert sum(Path(file).stat().st_size for file in files) < 25_000_000
    assert (SAMPLE / "amazon_queen" / "readme.txt").is_file()
    for episode in episodes:
        validate_episode(episode)
