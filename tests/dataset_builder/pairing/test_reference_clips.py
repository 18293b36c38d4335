from collections import Counter

import numpy as np
import pytest

from sdiareward.audio_sdiareward import read_audio
from sdiareward.dataset_builder.episodes import Episode, Part, ScriptPair, Turn
from sdiareward.dataset_builder.pairing import pairing
from sdiareward.dataset_builder.pairing.pairing import (
    Clip,
    NoReference,
    SynthesizerSpec,
    choose_references,
    draw_voices,
    make_row,
    plan_pairs,
    split_options,
)
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


@pytest.mark.parametrize(
    "pool",
    [
        [{"audio": "x/a.wav", "text": "Hello."}],
        [{"audio": "x/a.wav", "text": "Hello."}, {"audio": "y/a.wav", "text": "Hello."}],
        [{"audio": "a.wav", "text": " "}],
        ["a.wav"],
    ],
)
def test_a_pool_that_cannot_be_used_is_refused(pool):
    with pytest.raises(ValueError, match="script_voices has"):
        split_options({"script_voices": pool}, "colloquialness")


def test_a_missing_folder_or_text_is_named(folder, tmp_path):
    (folder / "v3.txt").unlink()
    for missing, named in ((tmp_path / "nowhere", "nowhere"), (folder, "v3.txt")):
        with pytest.raises(FileNotFoundError, match=named):
            split_options({"script_voices": str(missing)}, "colloquialness")


def clip(role, duration_s, num_words=10):
    return Clip(role, " ".join(["word"] * num_words), duration_s)


def user(*durations_s):
    return [clip("user", duration_s) for duration_s in durations_s]


LIMITS = [clip("user", 3.0), clip("user", 31.0), clip("user", 3.0), clip("user", 20.0, 60), clip("user", 2.0)]
BOTH = [clip("user", 6.0), clip("assistant", 12.0), clip("user", 29.0), clip("assistant", 31.0)]
JOINED = [clip("user", 2.0), clip("assistant", 9.0), *user(2.0, 1.0, 4.0)]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        # The longest usable turn of each role; of equally long turns the first.
        (BOTH, {"user": (2,), "assistant": (1,)}),
        (user(8.0, 8.0), {"user": (0,)}),
        # 5 and 30 seconds and 59 words are usable.
        (user(5.0), {"user": (0,)}),
        (user(4.999), None),
        (user(30.0), {"user": (0,)}),
        (user(30.001), None),
        ([clip("user", 10.0, 59)], {"user": (0,)}),
        ([clip("user", 10.0, 60)], None),
        ([clip("user", 5.0, 59)], {"user": (0,)}),
        ([clip("user", 30.0, 59)], {"user": (0,)}),
        # Short turns are joined in order up to 5 s, but a single usable turn is preferred.
        (JOINED, {"user": (0, 2, 3), "assistant": (1,)}),
        (user(3.0, 3.0, 5.5), {"user": (2,)}),
        # A turn that would bring too many words begins a new clip.
        ([clip("user", 2.0, 30), clip("user", 4.0, 30), clip("user", 1.0, 10)], {"user": (1, 2)}),
        # A turn over the limits is never part of a joined clip.
        (LIMITS, None),
        ([*LIMITS, clip("user", 3.0)], {"user": (4, 5)}),
    ],
)
def test_references_follow_the_rules(turns, expected):
    if expected is None:
        with pytest.raises(NoReference):
            choose_references(turns)
    else:
        assert choose_references(turns) == expected


def test_a_dialogue_is_pruned_when_one_role_has_no_clip():
    with pytest.raises(NoReference, match="'assistant'"):
        choose_references([clip("user", 8.0), clip("assistant", 1.25, 3), clip("assistant", 40.0, 80)])
