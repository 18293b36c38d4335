"""A small file of the game Drascula, and the options of one of its conversations."""

import struct


PLAYER, DRUNK, WAITS = 13, 14, 0
WORDS = {
    "": ["HELLO. I'M LOST", "WHERE AM I?", "GOODBYE"],
    "B": ["HIC", "IN A BAR... SIR"],
}
# Sequence 10 of chapter 2 answers an option; sequence 3 begins by itself.
SEQUENCES = [(2, 15, WAITS, 99), (2, 15, DRUNK, 1), (1, 3, PLAYER, 2), (1, 3, DRUNK, 2), (1, 3, PLAYER, 3)]


def pack(*values):
    return struct.pack(f">{len(values)}H", *values)


def pack_lines(lines):
    """Return a table of two languages; the first line of each is not used."""
    table = pack(len(lines) + 1)
    for language in (lines, ["AUF DEUTSCH"] * len(lines)):
        texts = [text.encode() + b"\0" for text in ("", *language)]
        # A size counts the size behind the line, too.
        sizes = [len(text) + 2 for text in texts] + [0]
        block = pack(0, sizes[0]) + b"".join(text + pack(size) for text, size in zip(texts, sizes[1:], strict=True))
        table += pack(len(block)) + block
    return table


def make_game(words=WORDS, sequences=SEQUENCES):
    font = pack(1) + b"A\0\6\0"
    tables = b"".join(pack(1, *range(width)) for width in (2, 2, 1, 2, 1, 2, 1, 1, 10, 10, 5))
    order = ("", "D", "B", "BJ", "E", "I", "L", "P", "T", "VB")
    lines = b"".join(pack_lines(words.get(speaker, [])) for speaker in order)
    rows = b"".join(pack(*row) for row in sequences)
    return b"DRASCULA\6" + font + tables + pack(len(sequences)) + rows + pack(2) + lines


def make_options(*entries):
    return bytes(0xFF - byte for byte in "\r\n".join(entries).encode("latin-1"))
