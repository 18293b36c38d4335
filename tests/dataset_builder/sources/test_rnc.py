"""RNC: literals, matches that overlap themselves, and files that are damaged."""

import pytest
from support.rnc_packing import pack_rnc

from sdiareward.dataset_builder.sources.rnc import unpack_rnc


def test_literals_and_matches_follow_one_another():
    # Three bytes, then eight from three back: they repeat what they write themselves; then one byte more.
    packed = pack_rnc([(b"abc", 3, 8), (b"", 1, 2), (b"!", 0, 0)], 14)
    assert unpack_rnc(packed) == b"abc" + b"abcabcab" + b"bb" + b"!"
    assert unpack_rnc(packed + b"behind it") == unpack_rnc(packed)


def test_a_long_literal_lies_between_the_bits():
    data = bytes(range(256)) * 3
    assert unpack_rnc(pack_rnc([(data, 700, 20), (data[:5], 0, 0)], 793)) == data + data[68:88] + data[:5]


@pytest.mark.parametrize(
    ("packed", "problem"),
    [
        (b"RNC\2" + bytes(30), "begins with"),
        (pack_rnc([(b"abc", 0, 0)], 4), "unpacks to 3 bytes; 4 are announced"),
        (pack_rnc([(b"abc", 4, 2), (b"", 0, 0)], 5), "refers to what was not unpacked"),
        (pack_rnc([(b"abc", 0, 0)], 3)[:-2], "ends within its packed data"),
        (pack_rnc([(b"abcdef", 0, 0)], 3), "refers to what was not unpacked"),
    ],
)
def test_a_damaged_file_is_refused(packed, problem):
    with pytest.raises(ValueError, match=problem):
        unpack_rnc(packed)
