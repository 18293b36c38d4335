"""Unpack RNC, Rob Northen's compression (method 1), in which adventure games of the nineties keep their files.

A packed file begins with `RNC` and 1, the sizes unpacked and packed, two checksums, a byte and the number of blocks. A
block has three tables of codes, for the lengths of literal runs, distances and lengths of matches, and the number of
its steps: a literal run, whose bytes follow in the stream, and a match. Bits come in words of 16, low ones first.
"""

from __future__ import annotations

import struct


SIGNATURE = b"RNC\1"
_HEADER_BYTES = 18
_MIN_MATCH_BYTES = 2

# Length, bits and value of each code.
Codes = list[tuple[int, int, int]]


def unpack_rnc(data: bytes) -> bytes:
    """Return the contents of a packed file.

    Args:
        data (`bytes`): The file, from its signature on; what follows it is ignored.

    Raises:
        ValueError: It is not packed by this method, or is damaged.
    """
    if data[:4] != SIGNATURE or len(data) < _HEADER_BYTES:
        raise ValueError(f"begins with {data[:4]!r}; a packed file begins with {SIGNATURE!r}.")
    (size,) = struct.unpack_from(">I", data, 4)
    try:
        unpacked = _unpack_blocks(_Bits(data, _HEADER_BYTES), data[_HEADER_BYTES - 1], size)
    except IndexError as error:
        raise ValueError("ends within its packed data, or refers to what was not unpacked.") from error
    if len(unpacked) != size:
        raise ValueError(f"unpacks to {len(unpacked)} bytes; {size} are announced.")
    return bytes(unpacked)


class _Bits:
    """Read bits, and between them whole bytes."""

    def __init__(self, data: bytes, position: int):
        self.data, self.position = data, position
        self.waiting, self.num_waiting = 0, 0
        # Two bits of flags.
        self.read(2)

    def fill(self) -> None:
        """Have at least 16 bits waiting; behind the end they are zero."""
        while self.num_waiting < 16:
            word = int.from_bytes(self.data[self.position : self.position + 2], "little")
            self.waiting |= word << self.num_waiting
            self.num_waiting += 16
            self.position += 2

    def read(self, count: int) -> int:
        self.fill()
        value = self.waiting & ((1 << count) - 1)
        self.waiting >>= count
        self.num_waiting -= count
        return value

    def read_bytes(self, count: int) -> bytes:
        """Return bytes that begin behind the word of the next bit; the rest of that word is read afterwards."""
        whole, kept = divmod(self.num_waiting, 16)
        start = self.position - 2 * whole
        if start + count > len(self.data):
            raise IndexError("the data end")
        self.waiting &= (1 << kept) - 1
        self.num_waiting = kept
        self.position = start + count
        return self.data[start : start + count]

    def read_codes(self) -> Codes:
        """Return a table of codes: each is as long as is announced, and the next of its length in order."""
        lengths = [self.read(4) for _ in range(self.read(5))]
        codes, following = [], 0
        for length, value in sorted((length, value) for value, length in enumerate(lengths) if length):
            code = following >> (16 - length)
            # The first bit of a code is the first that is read: the lowest.
            codes.append((length, int(f"{code:0{length}b}"[::-1], 2), value))
            following += 1 << (16 - length)
        return codes

    def read_value(self, codes: Codes) -> int:
        """Return the next value: a code, and of larger values the bits below the highest."""
        self.fill()
        for length, bits, value in codes:
            if self.waiting & ((1 << length) - 1) == bits:
                self.read(length)
                return value if value < 2 else 1 << (value - 1) | self.read(value - 1)
        raise IndexError("no such code")


def _unpack_blocks(bits: _Bits, num_blocks: int, size: int) -> bytearray:
    unpacked = bytearray()
    for _ in range(num_blocks):
        literals, distances, lengths = (bits.read_codes() for _ in range(3))
        for left in range(bits.read(16), 0, -1):
            unpacked += bits.read_bytes(count) if (count := bits.read_value(literals)) else b""
            # The last step of a block has no match.
            if left > 1:
                start = len(unpacked) - bits.read_value(distances) - 1
                count = bits.read_value(lengths) + _MIN_MATCH_BYTES
                if start < 0:
                    raise IndexError("before the beginning")
                for place in range(start, start + count):
                    unpacked.append(unpacked[place])
            if len(unpacked) > size:
                raise IndexError("more than announced")
    return unpacked
