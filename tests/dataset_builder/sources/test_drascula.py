"""Drascula: exchanges out of tables and options, the words of lines, clips as WAV; what is missing is skipped."""

import io

import numpy as np
import pytest
import soundfile
from support.drascula_game import DRUNK, SEQUENCES, make_game, make_options

from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.references import split_reference
from sdiareward.dataset_builder.sources import locate, read_source
from sdiareward.dataset_builder.sources.reading import capitalise_sentences


@pytest.fixture
def root(tmp_path):
    (tmp_path / "drascula.dat").write_bytes(make_game())
    for name in ("1", "2", "3", "B1", "B2"):
        (tmp_path / f"{name}.ALS").write_bytes(b"\x80" * 32 + bytes([128, 192, 64]) * 100 + b"\x80" * 32)
    words = ["hello", "WHO", "WHAT", "BYE"]
    clips = ["1.als", "2.ALS", "3.ALS", "4.ALS"]
    (tmp_path / "OP_2.CAL").write_bytes(make_options(*words, "", *clips, "15", "16", "17"))
    return tmp_path


def read(root):
    """Return the episodes of a folder, and what was skipped but conversations that are not there."""
    items = list(read_source("drascula", root))
    skipped = [item for item in items if isinstance(item, Skipped) and "No such file" not in item.reason]
    return [item for item in items if not isinstance(item, Skipped)], skipped


def test_a_line_of_the_player_and_its_answer_are_an_episode(root):
    (answered, opened), skipped = read(root)
    assert (answered.name, answered.group) == ("op_2/1/0", "2/B")
    assert [(turn.role, turn.text) for turn in answered.turns] == [("user", "Hello. I'm lost"), ("assistant", "Hic")]
    assert (opened.name, opened.group) == ("1/3/0", "1/B")
    assert [turn.text for turn in opened.turns] == ["Where am I?", "In a bar... Sir"]
    # The player's last line has no answer.
    assert [(skip.item, skip.kind) for skip in skipped] == [("drascula 1/3 utterance 2", "no_answer")]


def test_a_clip_is_a_wav_file_of_its_samples_and_is_found_by_its_reference(root):
    part = read(root)[0][0].turns[1].parts[0]
    samples, rate = soundfile.read(io.BytesIO(part.audio), dtype="float32")
    assert rate == 11_025
    np.testing.assert_array_equal(samples, [0.0, 0.5, -0.5] * 100)
    assert part.ref == "drascula:B1.ALS"
    assert locate("drascula", root, split_reference(part.ref)[1]) == part.audio
    with pytest.raises(ValueError, match=r"must read 'drascula:CLIP\.ALS'"):
        locate("drascula", root, "B1.ALS", "x")


def test_a_missing_clip_a_missing_line_and_broken_options_are_skipped_alone(root):
    (root / "B1.ALS").unlink()
    (root / "OP_3.CAL").write_bytes(make_options("hello", "a", "b", "c", "x.als", "y.als", "z.als", "", "19"))
    (root / "drascula.dat").write_bytes(make_game(sequences=[*SEQUENCES, (1, 4, DRUNK, 7)]))
    (episode,), skipped = read(root)
    assert episode.name == "1/3/0"
    kinds = {(skip.item, skip.kind) for skip in skipped}
    assert {("drascula B1.ALS", "missing_audio"), ("drascula B7.ALS", "missing_text")} <= kinds
    assert ("drascula OP_3.CAL", "bad_entry") in kinds


def test_a_file_that_is_cut_off_or_another_is_refused(root):
    path = root / "drascula.dat"
    whole = path.read_bytes()
    for data, problem in ((whole[:-3], "ends in its tables"), (whole[:60], "ends in its tables"), (b"QTBL", "begins")):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=rf"drascula\.dat: {problem}"):
            read(root)


@pytest.mark.parametrize(
    ("words", "small"),
    [
        ("WHO? I DON'T KNOW", "Who? I don't know"),
        ("...BREW!  I'LL GO", "...Brew! I'll go"),
        ("IN IGOR'S INN", "In igor's inn"),
    ],
)
def test_words_in_capitals_are_written_small(words, small):
    assert capitalise_sentences(words.lower()) == small
