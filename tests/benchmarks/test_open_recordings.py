"""Each script of open recordings writes a folder that the source `folder` reads, from a miniature of its package."""

import gzip
import struct

import pytest

from benchmarks.open_recordings import amazon_queen, asterisk, drascula
from sdiareward.audio_sdiareward import resample
from sdiareward.dataset_builder.sources import read_source
from sdiareward.perturbations.channel import encode


def pack(*values):
    return struct.pack(f">{len(values)}H", *values)


@pytest.fixture
def write_amazon_queen(tmp_path, make_tone):
    """Three exchanges of one conversation, one of which lacks a clip."""

    def pack_strings(strings, base):
        packed = b""
        for string_id, text in strings:
            packed += struct.pack(">hhB", 0, string_id, len(text)) + text.encode("latin-1")
            packed += b"\0" * (-(base + len(packed)) % 4)
        return packed

    player = pack_strings([(6, "Hi, I'm Joe King.*03"), (7, "What's that?*02"), (300, "Move over.*03")], 128)
    end = 128 + len(player)
    person = pack_strings([(6, "*02Uh uh!*00Who?"), (7, "No clip of this."), (300, "Never.*XY00(1,2)*FL")], end)
    header = struct.pack(">5h", -1, 0, 3, 3, 3) + pack(0, end, *[0] * 9)
    clip = encode(resample(make_tone(0.5), 16_000, 11_025), 11_025, "MP3", "MPEG_LAYER_III", 0.7)
    names = ["030006J1", "030006P2", "030006P3", "030007J1", "03012CJ1", "03012CP1"]
    entries = {"APE.DOG": b"\0" * 20 + header + b"\0" * 96 + player + person, **{f"{name}.SB": clip for name in names}}
    table, position = b"", 0x0F + 21 * len(entries)
    for name, data in entries.items():
        table += struct.pack(">12sBII", name.encode(), 0, position, len(data))
        position += len(data)
    path = tmp_path / "queen.1c"
    path.write_bytes(b"QTBLCEM10\0\0\0\1" + pack(len(entries)) + table + b"".join(entries.values()))
    return path


@pytest.fixture
def write_asterisk(tmp_path, make_tone):
    sounds = tmp_path / "asterisk/sounds/en_US_f_Allison"
    transcript = tmp_path / "doc/asterisk-core-sounds-en/core-sounds-en.txt.gz"
    for folder in (sounds, transcript.parent):
        folder.mkdir(parents=True)
    prompts = {
        "agent-pass": "Please enter your password.",
        "agent-user": "Agent login. Please.",
        "agent-loginok": "Agent logged in.",
        "beep": "[this is a beep]",
        "vm-intro": "Please leave your message.",
    }
    for name in prompts:
        (sounds / f"{name}.wav").write_bytes(encode(make_tone(0.5), 8000, "WAV", "PCM_16", None))
    lines = "; a comment\n" + "".join(f"{name}: {text}\n" for name, text in prompts.items())
    transcript.write_bytes(gzip.compress(lines.encode()))
    return tmp_path


@pytest.fixture
def write_drascula(tmp_path):
    """Sequence 15 of chapter 2 answers an option; sequence 3 of chapter 1 begins by itself."""
    words = {"": ["HELLO. I'M LOST", "WHERE AM I?", "GOODBYE"], "B": ["HIC", "IN A BAR... SIR"]}
    sequences = [(2, 15, 0, 99), (2, 15, 14, 1), (1, 3, 13, 2), (1, 3, 14, 2), (1, 3, 13, 3)]
    data = b"DRASCULA\6" + pack(1) + b"A\0\6\0" + b"".join(pack(1, *range(width)) for width in drascula._WIDTHS)
    data += pack(len(sequences)) + b"".join(pack(*row) for row in sequences) + pack(1)
    for speaker in drascula._TABLES:
        texts = [text.encode() + b"\0" for text in ("", *words.get(speaker, []))]
        # A size counts the size behind the line, too.
        block = pack(0) + b"".join(pack(len(text) + 2) + text for text in texts) + pack(0)
        data += pack(len(texts), len(block)) + block
    (tmp_path / "drascula.dat").write_bytes(data)
    for name in ("1", "2", "3", "B1", "B2"):
        (tmp_path / f"{name}.ALS").write_bytes(b"\x80" * 32 + bytes([128, 192, 64]) * 300 + b"\x80" * 32)
    options = ["hello", "WHO", "WHAT", "BYE", "1.als", "2.ALS", "3.ALS", "4.ALS", "15", "16", "17"]
    for number in drascula._CHAPTERS:
        text = "\r\n".join(options if number == 2 else options[:8] + ["99"] * 3)
        (tmp_path / f"OP_{number}.CAL").write_bytes(bytes(0xFF - byte for byte in text.encode()))
    return tmp_path


@pytest.mark.parametrize(
    ("script", "dialogues"),
    [
        (amazon_queen, {"APE.DOG/0": ["Hi, I'm Joe King.", "Uh uh! Who?", "Move over.", "Never."]}),
        (asterisk, {"agent/0": ["Agent logged in.", "Please enter your password."]}),
        (drascula, {"op_2/1/0": ["Hello. I'm lost", "Hic"], "1/3/0": ["Where am I?", "In a bar... Sir"]}),
    ],
)
def test_a_script_writes_a_folder_that_the_source_folder_reads(script, dialogues, request, tmp_path, monkeypatch):
    corpus = script.__name__.rpartition(".")[2]
    archive = request.getfixturevalue(f"write_{corpus}")
    monkeypatch.setattr("sys.argv", [corpus, str(archive), str(tmp_path / "out")])
    script.main()
    episodes = list(read_source("folder", tmp_path / "out"))
    assert [episode.name.startswith(f"{corpus}/{name}") for episode, name in zip(episodes, dialogues, strict=True)]
    assert [[turn.text for turn in episode.turns] for episode in episodes] == list(dialogues.values())
