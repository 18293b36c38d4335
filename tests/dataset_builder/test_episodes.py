"""Dialogues as the builder's parts exchange them: turns one after the other, words without marks."""

from dataclasses import replace

import numpy as np
import pytest
import soundfile

from sdiareward.chat_sdiareward import ROLES
from sdiareward.dataset_builder.episodes import Episode, Part, SkipError, Turn, TurnTimesError, validate_episode
from sdiareward.dataset_builder.marks import clean_episode, note_marks, remove_marks
from sdiareward.dataset_builder.pipeline.inspection import inspect_episode


def make_episode(*spans, audio="call.wav"):
    """Return an episode of turns of one recording, each `(start_s, end_s)` or `(start_s, end_s, audio)`."""
    parts = [Part(f"words {number}", *(span[2:] or [audio]), *span[:2]) for number, span in enumerate(spans)]
    turns = tuple(Turn(ROLES[number % 2], (part,)) for number, part in enumerate(parts))
    return Episode("e", "folder", "wild", "g", turns, "Unknown", "Unknown", "en", "CC0-1.0")


@pytest.mark.parametrize(
    ("spans", "named"),
    [
        ([(0.0, 3.2), (0.0, 3.2)], "turns 0 and 1 overlap by 100%"),
        ([(0.0, 3.2), (0.0, 3.2, "./folder/../call.wav")], "turns 0 and 1 overlap by 100%"),
        ([(0.0, 4.0), (1.9, 5.0)], "turns 0 and 1 overlap by 68%"),
        ([(3.2, 6.4), (0.0, 2.0, "other.wav"), (7.0, 8.0), (0.0, 3.2)], "turn 3 begins 3.20 s before turn 0"),
    ],
)
def test_turns_that_are_one_sound_or_run_backwards_are_refused_by_number(spans, named):
    with pytest.raises(TurnTimesError, match=named):
        validate_episode(make_episode(*spans))
    validate_episode(make_episode(*spans), is_broken=True)


def test_turns_that_overlap_in_part_are_kept_and_noted(tmp_path):
    soundfile.write(tmp_path / "call.wav", np.zeros(16_000), 16_000)
    for end_s, start_s, share in ((3.0, 2.5, "17%"), (3.0, 2.0, "33%"), (3.2, 3.2, "")):
        episode = make_episode((0.0, end_s), (start_s, start_s + 3.0), audio=str(tmp_path / "call.wav"))
        validate_episode(episode)
        notes = [f"{note.item} {note.kind}: {note.reason}" for note in inspect_episode(episode)]
        assert [("turn 1 overlap" in note, share in note) for note in notes] == [(True, True)] * bool(share)
    validate_episode(make_episode((0.0, None), (0.0, None, "other.wav")))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello [laughter] there", "hello there"),
        ("【音乐】好的（笑）", "好的"),
        ("(Chandler laughs) no", "no"),
        ("(Scene: Central Perk, everyone is there, as it always is) Hey!", "Hey!"),
        ("I *really* mean it, **this is** what he *needs to* do", "I really mean it, this is what he needs to do"),
        ("<laughing>that's great</laughing>", "that's great"),
        ("<|en|>♪ la la ♪", "la la"),
        ("Tom &amp; Jerry, fish &amp;amp; chips", "Tom & Jerry, fish & chips"),
        ("&lt;laugh&gt; caf&#233;", "café"),
        ("[noise] -5 degrees", "-5 degrees"),
        ("(phone ringing) (risas) nein (lacht) ああ（ため息）네 (웃음)", "nein ああ 네"),
        (">> SPEAKER_01: hi", "hi"),
        # What corpora document as spoken.
        ("[laughter-yes] th[at]- {F uh} [I + I] ((guess)) %um", "yes th uh I I guess um"),
        # Nothing is left.
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
        ":) <3, 50 %off",
        "(and I laughed)",
        "Note: this; Plan B: go",
        "it is 10:30, Joe:  hurry ",
        "mm-hmm... laughter is (the music business)",
        "[unclear",
    ],
)
def test_other_words_stay_byte_for_byte(text):
    assert remove_marks(text) == (text, [])


def test_an_episode_keeps_its_recordings_and_names_its_marks():
    plain = make_episode((0.0, 1.0), (1.0, 2.0))
    assert clean_episode(plain) is plain
    assert note_marks(plain) is None

    def answer(*parts):
        return replace(plain, turns=(plain.turns[0], Turn("assistant", parts)))

    found = clean_episode(answer(Part("so", "a.wav"), Part("(laughs)", "b.wav")))
    assert [(part.text, part.audio) for part in found.turns[1].parts] == [("so", "a.wav"), ("", "b.wav")]
    note = note_marks(found)
    assert (note.item, note.kind) == ("folder e, turn 1", "marks")
    with pytest.raises(SkipError, match=r"turn 1 has only marks, '\[laughter\]'"):
        clean_episode(answer(Part("[laughter]", "a.wav")))
    with pytest.raises(ValueError, match="turn 1 has no text"):
        validate_episode(answer(Part(" ")))
