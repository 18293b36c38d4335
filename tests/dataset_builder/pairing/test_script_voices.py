import dataclasses
from collections import Counter

import numpy as np
import pytest

from sdiareward.audio_sdiareward import read_audio
from sdiareward.dataset_builder.episodes import Episode, Part, ScriptPair, Turn
from sdiareward.dataset_builder.pairing import pairing
from sdiareward.dataset_builder.pairing.pairing import SynthesizerSpec, make_row, plan_pairs
from sdiareward.dataset_builder.pairing.script_voices import draw_voices, read_script_voices
from sdiareward.perturbations.channel import encode


CHOICES = {"colloquialness": SynthesizerSpec(("soulx-podcast",)), "modality": SynthesizerSpec(("soulx-podcast",))}


@pytest.fixture
def folder(tmp_path, make_tone):
    path = tmp_path / "voices"
    path.mkdir()
    for number in range(6):
        tone = make_tone(1.0) * (number + 1) / 10
        (path / f"v{number}.wav").write_bytes(encode(tone.astype(np.float32), 16_000, "WAV", "PCM_16", None))
        (path / f"v{number}.txt").write_text(f"These are the words of voice {number}.\n")
    return path


def script(number):
    def episode(style, *lines):
        turns = tuple(Turn(("user", "assistant")[i % 2], (Part(line),)) for i, line in enumerate(lines))
        names = (f"s{number}/{style}", "colloquial_scripts", "colloquialness", f"g{number // 10}")
        return Episode(*names, turns, "travel", "plain", "en", "CC0-1.0")

    return ScriptPair(
        written=episode("written", "It is noon.", "Yes."), spoken=episode("spoken", "Noon, um.", "Yeah.")
    )


def plan(folder, count=1, **options):
    assignment = {("colloquial_scripts", f"g{number // 10}"): "train" for number in range(count)}
    own = {"soulx-podcast": {"model_path": "SoulX", "script_voices": folder, **options}}
    return list(plan_pairs(map(script, range(count)), assignment, CHOICES, None, 0, own))


def test_many_dialogues_have_many_voices_and_each_has_two(folder):
    drawn = [draw_voices(each.script_voices, each.pair_id) for each in plan(str(folder), 100)]
    pairs = Counter((each["user"].text, each["assistant"].text) for each in drawn)
    assert all(user != assistant for user, assistant in pairs)
    # Of 30 ordered pairs of six voices, 100 draws leave hardly any out, also among variations of one scenario.
    assert len(pairs) > 20
    assert len({each["user"].text for each in drawn[:10]}) > 2


def test_the_voices_depend_on_the_pool_and_the_dialogue_and_on_no_path(folder, tmp_path):
    (here,) = plan(str(folder))
    there = folder.rename(tmp_path / "elsewhere")
    words = {path: path.with_suffix(".txt").read_text().strip() for path in there.glob("*.wav")}
    entries = [{"audio": str(path), "text": text} for path, text in words.items()]
    (moved,) = plan(entries)
    assert moved.pair_id == here.pair_id
    drawn = [draw_voices(each.script_voices, each.pair_id) for each in (here, moved)]
    assert [voice.identity for voice in drawn[0].values()] == [voice.identity for voice in drawn[1].values()]
    (fewer,) = plan(entries[1:])
    assert fewer.pair_id != here.pair_id


def test_both_sides_of_a_pair_are_cloned_from_the_same_two_recordings(folder, monkeypatch):
    heard = []

    class Cloner:
        is_deterministic, version = True, "cloner"

        def speak_dialogue(self, lines, references):
            heard.append(references)
            return [np.roll(references[role].array, number) for number, (role, _) in enumerate(lines)]

    monkeypatch.setattr(pairing, "load_synthesizer", lambda name, options: heard.append(options) or Cloner())
    (each,) = plan(str(folder))
    row = make_row(each)
    # The engine does not get the pool: it would be loaded anew for each.
    assert heard[0] == {"model_path": "SoulX"}
    drawn = draw_voices(each.script_voices, each.pair_id)
    words = {role: voice.text for role, voice in drawn.items()}
    for references in [each for each in heard if "user" in each]:
        assert {role: clip.text for role, clip in references.items()} == words
    np.testing.assert_allclose(read_audio(row["chosen"][0]["audio"]), read_audio(drawn["user"].audio), atol=1e-4)


def test_a_released_pair_gets_its_voices_again(folder):
    (each,) = plan(str(folder))
    renamed = dataclasses.replace(each.chosen, name=each.pair_id)
    again = dataclasses.replace(each, chosen=renamed, known_pair_id=each.pair_id)
    assert draw_voices(again.script_voices, again.pair_id) == draw_voices(each.script_voices, each.pair_id)


def test_a_pool_that_cannot_be_used_is_refused(folder, tmp_path):
    (folder / "v3.txt").unlink()
    for missing, named in ((tmp_path / "nowhere", "nowhere"), (folder, "v3.txt")):
        with pytest.raises(FileNotFoundError, match=named):
            read_script_voices(str(missing))
    one, wordless = {"audio": "x/a.wav", "text": "Hello."}, {"audio": "a.wav", "text": " "}
    for pool, named in (
        ([one], "1 rec"),
        ([one, one | {"audio": "y/a.wav"}], "2 rec"),
        ([wordless], "a.wav"),
        (["a.wav"], "'audio'"),
    ):
        with pytest.raises(ValueError, match=named):
            read_script_voices(pool)
