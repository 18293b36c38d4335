"""What counting tells of pairs of scripts."""

import pytest

from sdiareward.dataset_builder.pairing.surface_counts import COUNTS, find_imbalance, measure_shares, require_balance


def turns(*texts):
    return [{"content": text} for text in texts]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("words", "It's a well-known fact, isn't it?", 6),
        ("commas", "One, two, three.", 2),
        ("stops", "Wait... what?! Yes.", 3),
        ("punctuation marks", 'He said: "no" - well, perhaps...', 6),
        ("apostrophes", "I'm goin' home 'cause it's late", 4),
        ("mean word length", "ab abcd", 3),
        ("words per stop", "One two. Three four five six.", 3),
        ("fillers", "Um, well, I mean it was, like, good", 4),
    ],
)
def test_a_count_is_what_a_hand_counts(name, text, expected):
    assert COUNTS[name]([text]) == expected


def test_a_set_that_counting_solves_is_refused_with_the_table():
    pair = (turns("Yes, yes."), turns("Yes yes."))
    # Ties count half.
    assert {name: measure_shares([pair] * 2)[name] for name in ("commas", "words")} == {"commas": 1, "words": 0.5}
    with pytest.raises(ValueError, match=r"(?s)commas, punctuation marks.*\| commas \| 100.0 \|"):
        require_balance([pair] * 3)
    assert require_balance([pair, pair[::-1]])["commas"] == 0.5


@pytest.mark.parametrize(
    ("chosen", "rejected", "expected"),
    [
        (turns("a b", "c"), turns("a b"), "2 and 1 turns"),
        (turns("one two three four five six seven eight nine ten"), turns("one two"), "10 and 2 words"),
        (turns("a, b, c."), turns("a b c"), "turn 0 has 3 and 0 marks"),
        (turns("a, b c."), turns("a b c."), "None"),
    ],
)
def test_an_unbalanced_pair_is_named(chosen, rejected, expected):
    assert expected in str(find_imbalance(chosen, rejected))
