"""Targets that read source corpora: damaged archives, scripts, tables and manifests."""

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
from fuzz.running import Target, World
from fuzz.values import damaged, damaged_texts, json_texts, texts
from hypothesis import strategies as st
from support.drascula_game import make_game
from support.rnc_packing import pack_rnc
from support.steel_sky_game import SCRIPT

from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, Recording, ScriptPair, validate_episode
from sdiareward.dataset_builder.references import make_reference, split_reference
from sdiareward.dataset_builder.sources import amazon_queen, drascula, fillets, locate, read_source, steel_sky
from sdiareward.dataset_builder.sources.rnc import unpack_rnc


_TURN_TEXTS = ("so, um, hello there", "oh, hello to you too")
_LUA = """
dialogId("a", "font_small", "It is \\"big\\".")
dialogStr("Je to velké.")
dialogId("b", "font_big",
"Beautiful.") dialogStr("Krása.")
"""
_CODE = """
addm(20 + random(30), "a")
  room.said = 1
  adddel(10)
if random(100) < 30 then
  addv(9, "b")
end
crab:planDialog(1, "x")
"""
_MELD_HEADER = "Sr No.,Utterance,Speaker,Emotion,Sentiment,Dialogue_ID,Utterance_ID,Season,Episode,StartTime,EndTime\n"
_MELD_ROWS = '1,"Well, hello.",Ann,neutral,neutral,0,0,8,21,"a","b"\n2,Hi “you”,Bob,joy,positive,0,1,8,21,"a","b"\n'
_TRANSCRIPT = "; comment\nvm-one: please leave a message\nvm-two: there are no messages\nbeep: [a tone]\n"
_LONG_LINES = ("addm(" + ',"' * 4000, "x" * 8000, 'dialogId("' * 2000, "addm(" + " " * 8000, "if " * 3000)


def _dog(key: int = 3) -> bytes:
    """Return the strings of one conversation in the format of the game."""
    start, packed = 32 + 96, []
    for strings in ([(6, "Hi, I'm Joe.*03"), (7, "What's that?*02")], [(6, "*02Uh uh!*00Who?"), (7, "Nothing.")]):
        data = b""
        for string_id, text in strings:
            data += struct.pack(">hhB", 0, string_id, len(text)) + text.encode("latin-1")
            data += b"\0" * (-(start + len(data)) % 4)
        packed.append(data)
        start += len(data)
    header = struct.pack(">5h", -1, 0, key, 2, 2) + struct.pack(">11H", 0, 32 + 96 + len(packed[0]), *[0] * 9)
    return b"\0" * 20 + header + b"\0" * 96 + b"".join(packed)


def _archive() -> bytes:
    names = ("030006J1", "030006P2", "030006P3", "030007J1", "030007P1")
    entries = {"APE.DOG": _dog(), **{f"{name}.SB": b"ID3 sound" for name in names}}
    position, table = 0x0F + 21 * len(entries), b""
    for name, data in entries.items():
        table += struct.pack(">12sBII", name.encode(), 0, position, len(data))
        position += len(data)
    return b"QTBLCEM10\0\0\0" + struct.pack(">BH", 1, len(entries)) + table + b"".join(entries.values())


def model_bin(name: str = "encoder/x", value: np.ndarray | None = None) -> bytes:
    """Return a CTranslate2 file of two variables."""

    def string(text: str) -> bytes:
        return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"

    value = np.arange(6, dtype=np.float16).reshape(2, 3) if value is None else value
    data = struct.pack("<I", 6) + string("WhisperSpec") + struct.pack("<II", 3, 2)
    for key, array in ((name, value), ("y", np.zeros((), np.int8))):
        shape = struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        dtype = {"float16": 4, "int8": 1}[array.dtype.name]
        data += string(key) + shape + struct.pack("<BI", dtype, array.nbytes) + array.tobytes()
    return data


def check_items(items: Any) -> None:
    """Read all items of a source, as the builder does, and check their types and fields."""
    for item in items:
        if isinstance(item, Skipped):
            assert item.kind and item.reason
            item.reason.encode("utf-8", "surrogatepass")
        elif isinstance(item, Recording):
            assert Path(item.path).is_file()
        else:
            for episode in (item.written, item.spoken) if isinstance(item, ScriptPair) else (item,):
                _check_episode(episode)


def _check_episode(episode: Episode) -> None:
    try:
        validate_episode(episode)
    except ValueError:
        return
    strings = [episode.name, episode.group, episode.group_id, episode.language, episode.license, episode.source]
    strings += [episode.primary, episode.secondary, *episode.native_coding]
    strings += [part.text for turn in episode.turns for part in turn.parts]
    # They are written to Parquet, which refuses half a character.
    "".join(strings).encode()
    for part in (part for turn in episode.turns for part in turn.parts):
        assert part.end_s is None or 0 <= part.start_s < part.end_s
        if part.ref is not None:
            split_reference(part.ref)


def _turns() -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    return [{"role": r, "text": t, "audio": "a.wav"} for r, t in zip(roles, _TURN_TEXTS, strict=True)]


_MANIFESTS: dict[str, dict[str, Any]] = {
    "folder": {"id": "call-17", "language": "en", "license": "CC0-1.0", "subset": "wild", "turns": _turns()},
    "sample": {
        **{"name": "x", "source": "asterisk", "subset": "scripted", "group": "vm", "primary": "Inform"},
        **{"secondary": "Unknown", "language": "en", "license": "CC-BY-SA-3.0", "native_coding": ["opus"]},
        "audio": "a.wav",
        "turns": [
            {"role": role, "parts": [{"text": text, "start_s": 0.0, "end_s": 1.0}]}
            for role, text in zip(("user", "assistant"), _TURN_TEXTS, strict=True)
        ],
    },
    "youtube": {"id": "a", "url": "https://x", "file": "a.wav", "language": "en", "license": "CC-BY-4.0"},
    "colloquial_scripts": {
        **{"scenario_id": "s1", "domain": "travel", "hard": False},
        **{
            style: [{"role": turn["role"], "content": turn["text"]} for turn in _turns()]
            for style in ("written", "spoken")
        },
    },
}
_RECORDING = {"id": "r", "language": "en", "license": "CC0-1.0", "subset": "wild", "audio": "a.wav"}


def _manifest_target(source: str) -> Target:
    good = _MANIFESTS[source]
    lines = [good] if source != "folder" else [good, _RECORDING]

    def cases(_: World) -> st.SearchStrategy[list[str]]:
        return st.lists(st.sampled_from(lines).flatmap(json_texts), min_size=1, max_size=3)

    def run(world: World, case: list[str]) -> None:
        world.write(f"{source}/a.wav", b"RIFF")
        path = world.write(f"{source}/manifest.jsonl", "\n".join(case))
        check_items(read_source(source, path if source == "colloquial_scripts" else path.parent))

    return Target(f"{source}, manifest", "sources", cases, run)


def _read_archive(world: World, data: bytes) -> None:
    path = world.write("queen.1c", data)
    amazon_queen._read_archive.cache_clear()
    items = list(amazon_queen.read_episodes(path))
    check_items(items)
    for part in (p for item in items if isinstance(item, Episode) for turn in item.turns for p in turn.parts):
        source, inner, member = split_reference(str(part.ref))
        assert locate(source, path, inner, member) == part.audio


def _read_strings(world: World, data: bytes) -> None:
    found = amazon_queen.parse_conversation(data)
    assert sum(map(len, (*found.player.values(), *found.person.values()))) <= 2 * len(data)


def _read_game(world: World, data: bytes) -> None:
    found = drascula.parse_game(data, "drascula.dat")
    assert sum(map(len, (line for lines in found.words.values() for line in lines))) <= len(data)


def _unpack(world: World, data: bytes) -> None:
    assert len(unpack_rnc(data)) == struct.unpack_from(">I", data, 4)[0]


def _read_script(world: World, data: bytes) -> None:
    words = struct.unpack(f"<{len(data) // 2}H", data[: len(data) // 2 * 2])
    assert all(lines for lines in steel_sky.read_dialogues(words))


def _read_fillets(world: World, case: tuple[str, str]) -> None:
    words, code = case
    for name in ("a", "b"):
        world.write(f"fillets/sound/level/cs/{name}.ogg", b"OggS")
    world.write("fillets/script/level/dialogs_cs.lua", words)
    world.write("fillets/script/level/code.lua", code)
    check_items(fillets.read_episodes(world.folder / "fillets"))


def _read_asterisk(world: World, data: bytes) -> None:
    for name in ("vm-one", "vm-two"):
        world.write(f"share/asterisk/sounds/en_US_f_Allison/{name}.wav", b"RIFF")
    world.write("share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz", data)
    check_items(read_source("asterisk", world.folder / "share"))


def _read_dailytalk(world: World, text: str) -> None:
    for index in range(2):
        world.write(f"dailytalk/data/0/{index}_{index}_d0.wav", b"RIFF")
    world.write("dailytalk/metadata.json", text)
    check_items(read_source("dailytalk", world.folder / "dailytalk"))


def _read_meld(world: World, data: bytes) -> None:
    for index in range(2):
        world.write(f"meld/train_splits/dia0_utt{index}.mp4", b"ftyp")
    world.write("meld/train_sent_emo.csv", data)
    check_items(read_source("meld", world.folder / "meld"))


def _references(_: World) -> st.SearchStrategy[str]:
    known = st.sampled_from(
        ("folder:a.wav", "amazon_queen:queen.1c#030006J1.SB", "youtube:abc", "meld:train_splits/x.mp4")
    )
    return known.flatmap(damaged_texts) | texts() | st.builds("{}:{}#{}".format, texts(), texts(), texts())


def _locate(world: World, reference: str) -> None:
    source, path, member = split_reference(reference)
    assert make_reference(source, path, member)
    for name in ("a.wav", "abc.webm", "train_splits/x.mp4"):
        root = world.write(f"references/{name}", b"RIFF").parents[name.count("/")]
    world.write("references/queen.1c", _archive())
    found = locate(source, root, path, member)
    assert isinstance(found, bytes) or found.resolve().is_relative_to(root.resolve())


def _packed(_: World) -> st.SearchStrategy[bytes]:
    plain = damaged_texts(_TRANSCRIPT).map(lambda text: gzip.compress(text.encode("utf-8", "surrogateescape")))
    return plain | damaged(gzip.compress(_TRANSCRIPT.encode()), gzip.compress(bytes(2**22)))


def _lua(_: World) -> st.SearchStrategy[tuple[str, str]]:
    return st.tuples(damaged_texts(_LUA, *_LONG_LINES), damaged_texts(_CODE, *_LONG_LINES))


_DAILYTALK = {
    "0": {
        str(index): {"text": text, "speaker": index, "emotion": "happiness", "act": "inform"}
        for index, text in enumerate(_TURN_TEXTS)
    }
}

TARGETS = (
    Target("amazon_queen, archive", "sources", lambda _: damaged(_archive()), _read_archive),
    Target(
        "amazon_queen, strings",
        "sources",
        lambda _: damaged(_dog()),
        _read_strings,
        (struct.error, StopIteration, IndexError),
    ),
    Target("drascula, tables", "sources", lambda _: damaged(make_game()), _read_game, (ValueError,)),
    Target("rnc", "sources", lambda _: damaged(pack_rnc([(b"abc", 3, 8), (b"!", 0, 0)], 12)), _unpack, (ValueError,)),
    Target("steel_sky, scripts", "sources", lambda _: damaged(struct.pack(f"<{len(SCRIPT)}H", *SCRIPT)), _read_script),
    Target("fillets, scripts", "sources", _lua, _read_fillets, (ValueError, FileNotFoundError)),
    Target("asterisk, transcript", "sources", _packed, _read_asterisk),
    Target("dailytalk, metadata", "sources", lambda _: json_texts(_DAILYTALK), _read_dailytalk),
    Target(
        "meld, table",
        "sources",
        lambda _: damaged(*((_MELD_HEADER + _MELD_ROWS).encode(name) for name in ("utf-8", "cp1252"))),
        _read_meld,
    ),
    *map(_manifest_target, _MANIFESTS),
    Target("references", "sources", _references, _locate, (ValueError, FileNotFoundError)),
)
