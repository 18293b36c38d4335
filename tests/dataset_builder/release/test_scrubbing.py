from collections import Counter

import pytest

from sdiareward.dataset_builder.release.scrubbing import scrub


@pytest.mark.parametrize(
    ("text", "scrubbed", "kind"),
    [
        ("Write to ann.lee+x@mail.example.org.", "Write to [EMAIL].", "email"),
        ("It's ann dot lee at example dot com, okay?", "It's [EMAIL], okay?", "email"),
        ("Call 650-253-0000 now", "Call [PHONE] now", "phone"),
        ("From abroad +420 608 123 456", "From abroad [PHONE]", "phone"),
        ("It's five five five, oh one nine nine.", "It's [PHONE].", "phone"),
        ("At 225 East John Carpenter Freeway, Suite 1500, Irving, Texas 75062 now", "At [ADDRESS] now", "address"),
        ("So 221B  Baker Street , London NW1 6XE, you know", "So [ADDRESS], you know", "address"),
        ("See https://example.org/a?b=c there", "See [URL] there", "url"),
        ("on youtube.com/some_channel today", "on [URL] today", "url"),
        ("Follow @some_channel!", "Follow [HANDLE]!", "handle"),
        ("Welcome to PODCAST  of ann, folks", "Welcome to [NAME], folks", "name"),
    ],
)
def test_an_identifier_becomes_a_placeholder_of_its_kind_and_is_counted(text, scrubbed, kind):
    assert scrub(text, names=["Podcast of Ann"]) == (scrubbed, Counter({kind: 1}))


@pytest.mark.parametrize(
    "text",
    [
        "In 1984 I was 12, and 1,250,000 people came on 12/03/1984.",
        "one two three four five six seven eight nine",
        "The code is 4521, room 212, from 10:30 to 11:45.",
        "I ran 5 miles down the road. Drive me 3 people!",
        "Three balls I can do, for 4 kids, five weeks off. Is that mad, or what?",
        "ten here is five in the morning, at 10",
        "5 minutes. Way too long. 40 people were dancing in the street",
    ],
)
def test_numbers_that_are_merely_numbers_and_ordinary_words_survive(text):
    assert scrub(text, names=["Ann"]) == (text, Counter())


def test_scrubbing_twice_changes_nothing_even_where_a_name_is_the_word_of_a_placeholder():
    text = "Name this: ann@example.org650-253-0000 @x.y 12 Elm St. 650-253-0000 email"
    once, _ = scrub(text, names=["name", "email"])
    assert once.startswith("[NAME] this: [EMAIL]")
    assert scrub(once, names=["name", "email"]) == (once, Counter())
    # Of another country only where it is asked for.
    assert [scrub("Volej 608 123 456", regions=(code,))[0][-3:] for code in ("CZ", "US")] == ["NE]", "456"]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["a." * 50_000, "a-" * 50_000], ids=["labels", "dashes"])
def test_a_long_text_of_what_identifiers_are_made_of_is_searched_once(text):
    # Each beginning searched to the end of the text would take most of an hour.
    assert scrub(text) == (text, {})
