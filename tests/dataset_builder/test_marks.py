import pytest

from sdiareward.dataset_builder.episodes import Episode, Part, ScriptPair, SkipError, Turn
from sdiareward.dataset_builder.marks import clean_item, note_marks, remove_marks
from sdiareward.dataset_builder.sources import read_source


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello [laughter] there", "hello there"),
        ("well [laughter], yes", "well, yes"),
        ("[[noise]] so", "so"),
        ("【音乐】好的（笑）", "好的"),
        ("how are you (inaudible)", "how are you"),
        ("(Chandler laughs) no", "no"),
        ("(Scene: Central Perk, everyone is there, as it always is) Hey!", "Hey!"),
        ('IAX (note: does not say "2")', "IAX"),
        ("*sighs* fine, *looks away* go", "fine, go"),
        ("_whispers_ come here", "come here"),
        ("I *really* mean it, **this is** what he *needs to* do", "I really mean it, this is what he needs to do"),
        ("so <unk> yes", "so yes"),
        ("<laughing>that's great</laughing>", "that's great"),
        ('<break time="1s"/> hi <door slams>', "hi"),
        ("<|en|>♪ la la ♪", "la la"),
        ("{breath} ok &=laughs", "ok"),
        ("Tom &amp; Jerry, fish &amp;amp; chips", "Tom & Jerry, fish & chips"),
        ("&lt;laugh&gt; caf&#233;", "café"),
        ("SPEAKER_01: hi", "hi"),
        ("[SPEAKER_00]: hi", "hi"),
        ("Speaker 2 (00:12): hi", "hi"),
        ("A: hi", "hi"),
        ("*smiles* so *nods slowly*, ok", "so, ok"),
        ("[noise] -5 degrees", "-5 degrees"),
        ("(phone ringing) (risas) nein (lacht) ああ（ため息）네 (웃음)", "nein ああ 네"),
        (">> User: hi", "hi"),
        # What corpora document as spoken.
        ("[laughter-yes] th[at]- {F uh} [I + I] ((guess)) %um", "yes th uh I I guess um"),
        # Nothing is left.
        ("[laughter]", ""),
        ("...(laughs) *coughs*...", ""),
    ],
)
def test_marks_are_no_words(text, words):
    assert remove_marks(text)[0] == words
    assert remove_marks(text)[1]
    assert remove_marks(words) == (words, [])


@pytest.mark.parametrize(
    "text",
    [
        "I think (or not) so",
        "(sounds good) (sound familiar?) (silence is golden) (to ring a bell) (sober) (static IP)",
        "(note to self) scene (scene two) cut (cut to the chase)",
        ":) :( :-) <3",
        "100 %sure, 50 %off",
        '"A: no" he said',
        "(and I laughed)",
        "he (Ross) left",
        "(555) 123-4567",
        "press * then * again",
        "2*3*4 is 24",
        "if a < b and c > d",
        "I <3 you :)",
        "R&D at AT&T; fine",
        "Note: this; Plan B: go",
        "it is 10:30, Joe: hurry",
        "x_y  two  spaces ",
        "mm-hmm... laughter is (the music business)",
        "[unclear",
    ],
)
def test_other_words_stay_byte_for_byte(text):
    assert remove_marks(text) == (text, [])


def make_episode(*texts):
    turns = tuple(Turn(role, (Part("so", "a.wav"), Part(text, "b.wav"))) for role, text in texts)
    return Episode("e", "meld", "wild", "g", turns, "Unknown", "Unknown", "en", "CC0-1.0")


def test_an_item_keeps_its_recordings_and_names_its_marks():
    plain = make_episode(("user", "hi"), ("assistant", "hi"))
    assert clean_item(plain) is plain
    assert note_marks(plain) is None
    laughed = make_episode(("user", "hi"), ("assistant", "(laughs)"))
    for found in (clean_item(laughed), clean_item(ScriptPair(written=plain, spoken=laughed)).spoken):
        assert [(part.text, part.audio) for part in found.turns[1].parts] == [("so", "a.wav"), ("", "b.wav")]
        note = note_marks(found)
        assert (note.item, note.kind) == ("meld e, turn 1", "marks")
        assert "(laughs)" in note.reason
    only = Turn("assistant", (Part("[laughter]", "a.wav"),))
    with pytest.raises(SkipError, match=r"turn 1 has marks only, '\[laughter\]'"):
        clean_item(Episode("e", "meld", "wild", "g", (plain.turns[0], only), "U", "U", "en", "CC0-1.0"))


def test_the_bundled_scripts_have_no_marks():
    items = [
        item for balanced in (False, True) for item in read_source("colloquial_scripts", None, {"balanced": balanced})
    ]
    assert all(clean_item(item) is item or clean_item(item) == item for item in items)
