"""Pack by RNC, so that a test says which literals and matches a file has."""

import struct


class BitWriter:
    """Write bits into words of 16, and bytes behind the word that is being filled."""

    def __init__(self):
        self.data, self.word, self.num_bits = bytearray(), 0, 0

    def write(self, value, count):
        for bit in range(count):
            if self.num_bits % 16 == 0:
                self.word = len(self.data)
                self.data += b"\0\0"
            place = self.num_bits % 16
            self.data[self.word + place // 8] |= (value >> bit & 1) << place % 8
            self.num_bits += 1

    def write_value(self, value):
        """Write a value by the tables of `pack_rnc`: sixteen codes of four bits, first bit first."""
        length = value.bit_length()
        self.write(int(f"{length:04b}"[::-1], 2), 4)
        if value > 1:
            self.write(value - (1 << (length - 1)), length - 1)


def pack_rnc(steps, size):
    """Return a file of one block of `(literal, distance, length)`; the last step has no match."""
    bits = BitWriter()
    bits.write(0, 2)
    for _ in range(3):
        bits.write(16, 5)
        for _ in range(16):
            bits.write(4, 4)
    bits.write(len(steps), 16)
    for number, (literal, distance, length) in enumerate(steps):
        bits.write_value(len(literal))
        bits.data += literal
        if number + 1 < len(steps):
            bits.write_value(distance - 1)
            bits.write_value(length - 2)
    return b"RNC\1" + struct.pack(">IIHHBB", size, len(bits.data), 0, 0, 0, 1) + bytes(bits.data)
