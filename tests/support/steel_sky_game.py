"""A small game of Beneath a Steel Sky: a few lines, one script with a choice, and their clips."""

import struct

from support.rnc_packing import pack_rnc

from sdiareward.dataset_builder.sources import steel_sky


PLAYER, OTHER = (0, 48), (0, 480)
LINES = ["?", "WHO are you?", "Nobody.", "Are you SURE?", "I think so... GO AWAY!", "Hm."]
SAMPLES = bytes([128, 192, 64]) * 100


def find_codes(node, code=""):
    """Return the bits of each letter."""
    if isinstance(node, str):
        return {node: code}
    return find_codes(node[0], code + "0") | find_codes(node[1], code + "1")


def pack_texts(lines):
    """Return a file of at most 32 lines."""
    codes = find_codes(steel_sky._parse_tree(iter(steel_sky._TREE)))
    texts = ["".join(codes[letter] for letter in line + "\0") for line in lines]
    # A line has a whole number of units of two bits.
    texts = [text + "0" * (-len(text) % 2) for text in texts]
    sizes = bytes(len(text) // 2 for text in texts)
    bits = "".join(texts)
    bits += "0" * (-len(bits) % 8)
    letters = bytes(int(bits[place : place + 8], 2) for place in range(0, len(bits), 8))
    return struct.pack("<2H", 4, 4 + len(sizes)) + sizes + letters


def speak(who, number):
    return [*who, 2, number, 2, 0, 11, 3, steel_sky._SPEAK[0]]


def make_script(operations):
    """Return a file with one script."""
    return [2, 2, *operations]


def make_choice(number, answers, others):
    """Return operations that answer a line of the player, or go on with others."""
    answered = [word for line in answers for word in line]
    opened = [word for line in others for word in line]
    # The jump counts from its own word: over the default's.
    return [0, 204, 14, 1, number, 4, 4, *answered, 13, *opened, 13]


SCRIPT = make_script(
    make_choice(1, [speak(OTHER, 2), speak(PLAYER, 3), speak(OTHER, 4)], [speak(PLAYER, 5), speak(OTHER, 2)])
)


def write_game(folder, script=SCRIPT, lines=LINES, clips=(1, 2, 3, 4, 5)):
    """Write `sky.dnr` and `sky.dsk`; the clips are packed behind a header."""
    packed = bytes(22) + pack_rnc([(SAMPLES, 0, 0)], len(SAMPLES))
    files = {60_600 + number: pack_texts(lines if number == 0 else ["?"]) for number in range(8)}
    files |= {60_400 + number: struct.pack(f"<{len(script)}H", *script) if number == 0 else b"" for number in range(7)}
    files |= {50_000 + number: packed for number in clips}
    table, disk = struct.pack("<I", len(files)), b""
    for number, data in files.items():
        disk += bytes(-len(disk) % 16)
        place = (len(disk) // 16) | 0x800000
        table += struct.pack("<H", number) + place.to_bytes(3, "little") + len(data).to_bytes(3, "little")
        disk += data
    (folder / "sky.dnr").write_bytes(table)
    (folder / "sky.dsk").write_bytes(disk)
    return folder
