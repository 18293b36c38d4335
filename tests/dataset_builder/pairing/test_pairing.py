import dataclasses

import numpy as np
import pytest
import soundfile

from sdiareward.audio_sdiareward import AudioError, read_audio
from sdiareward.dataset_builder.episodes import Episode, Part, ScriptPair, Turn
from sdiareward.dataset_builder.pairing import pairing
from sdiareward.dataset_builder.pairing.pairing import (
    Clip,
    NoReference,
    PairPlan,
    SynthesizerSpec,
    choose_references,
    draw_voices,
    make_row,
    plan_pairs,
    split_options,
)
from sdiareward.pairs.schema import validate_row
from sdiareward.perturbations.channel import ChannelSettings, encode


@pytest.fixture
def recorded(make_tone, tmp_path):
    wav = str(tmp_path / "recorded.wav")
    soundfile.write(wav, make_tone(1.0), 16_000)
    turns = (
        Turn("user", (Part("Hello there.", wav), Part("Who is it?", wav, 0.25, 0.75))),
        Turn("assistant", (Part("Nobody.", wav),)),
    )
    return Episode("e1", "asterisk", "scripted", "g1", turns, "Inform", "Unknown", "en", "CC0-1.0")


@pytest.fixture
def script():
    def episode(style, *lines):
        turns = tuple(Turn(("user", "assistant")[i % 2], (Part(line),)) for i, line in enumerate(lines))
        names = (f"s1/{style}", "colloquial_scripts", "colloquialness", "s1")
        return Episode(*names, turns, "travel", "plain", "en", "CC0-1.0")

    return ScriptPair(
        written=episode("written", "Could you tell me the time?", "It is noon."),
        spoken=episode("spoken", "Um, what time is it?", "Noon, I think."),
    )


def make_plan(episode, synthesizer="espeak-ng", channel=None, criterion="modality", rejected=None):
    return PairPlan(criterion, episode, rejected or episode, synthesizer, "train", channel)


def decode(turn):
    return read_audio(turn["audio"])


def test_a_modality_pair_sets_the_recording_against_the_same_words_synthesised(recorded, make_tone):
    row = make_row(make_plan(recorded))
    validate_row(row)
    assert [turn["text"] for turn in row["chosen"]] == [turn["text"] for turn in row["rejected"]]
    first = decode(row["chosen"][0])
    assert len(first) == 16_000 + round(0.15 * 16_000) + 8000
    np.testing.assert_allclose(first[:16_000], make_tone(1.0), atol=1e-4)
    assert not np.array_equal(decode(row["rejected"][1]), decode(row["chosen"][1]))
    assert row["channel"] is None


def test_synthetic_speech_goes_through_the_recordings_own_coding(recorded):
    coded = dataclasses.replace(recorded, native_coding=("mp3_11k",))
    plain, through = (make_row(make_plan(episode)) for episode in (recorded, coded))
    spectrum = [np.abs(np.fft.rfft(decode(row["rejected"][1]))) for row in (plain, through)]
    above = [s[len(s) * 6000 // 8000 :].sum() / s.sum() for s in spectrum]
    assert above[1] < 0.05 * above[0]
    np.testing.assert_array_equal(decode(plain["chosen"][1]), decode(through["chosen"][1]))


def test_a_colloquialness_pair_has_one_voice_on_both_sides(script):
    row = make_row(make_plan(script.spoken, criterion="colloquialness", rejected=script.written))
    validate_row(row)
    assert row["chosen"][0]["text"] == "Um, what time is it?"
    assert row["rejected"][0]["text"] == "Could you tell me the time?"
    same = dataclasses.replace(script.written, name="s1/other")
    twin = make_row(make_plan(same, criterion="colloquialness", rejected=script.written))
    assert [turn["audio"]["bytes"] for turn in twin["chosen"]] == [turn["audio"]["bytes"] for turn in twin["rejected"]]


def test_the_pair_id_depends_on_what_the_pair_is_made_from_and_nothing_else(recorded):
    plan = make_plan(recorded)
    assert plan.pair_id == dataclasses.replace(plan, split="test").pair_id
    changed = make_plan(recorded, "piper"), make_plan(recorded, channel=ChannelSettings())
    assert len({each.pair_id for each in (plan, *changed, make_plan(dataclasses.replace(recorded, name="e2")))}) == 4

    # The model of an engine counts, not where it runs.
    def identify(**options):
        return dataclasses.replace(make_plan(recorded, "soulx-podcast"), options=options).pair_id

    here = identify(model_path="/here/SoulX-Podcast-1.7B", timeout_s=5)
    assert here == identify(model_path="/there/SoulX-Podcast-1.7B", base_url="http://localhost:1")
    assert here != identify(model_path="/here/SoulX-Podcast-1.7B", seed=2)


def test_a_turn_of_more_than_a_minute_is_refused_by_name(recorded, make_tone, tmp_path):
    soundfile.write(tmp_path / "long.wav", make_tone(61.0), 16_000)
    long = Part("Hm.", str(tmp_path / "long.wav"))
    episode = dataclasses.replace(recorded, turns=(Turn("user", (long,)), recorded.turns[1]))
    with pytest.raises(AudioError, match=r"asterisk e1, turn 0: lasts 61.00 s"):
        make_row(make_plan(episode))


def test_left_out_synthesizers_speak_in_the_test_split_only(recorded, script):
    choices = {
        "modality": SynthesizerSpec(("piper", "world"), ("hibari",), per_dialogue=1),
        "colloquialness": SynthesizerSpec(("espeak-ng",)),
    }
    for split, expected in (("train", 1), ("validation", 1), ("test", 3)):
        assignment = {("asterisk", "g1"): split, ("colloquial_scripts", "s1"): split}
        plans = list(plan_pairs([recorded, script], assignment, choices, None, seed=0))
        modality = [plan.synthesizer for plan in plans if plan.criterion == "modality"]
        assert len(modality) == expected
        assert ("hibari" in modality) == (split == "test")
        assert [plan.synthesizer for plan in plans if plan.criterion == "colloquialness"] == ["espeak-ng"]


CHOICES = {"colloquialness": SynthesizerSpec(("soulx-podcast",))}


@pytest.fixture
def folder(tmp_path, make_tone):
    path = tmp_path / "voices"
    path.mkdir()
    for number in range(6):
        tone = make_tone(1.0) * (number + 1) / 10
        (path / f"v{number}.wav").write_bytes(encode(tone.astype(np.float32), 16_000, "WAV", "PCM_16", None))
        (path / f"v{number}.txt").write_text(f"These are the words of voice {number}.\n")
    return path


@pytest.fixture
def plan(script):
    def make(folder):
        own = {"soulx-podcast": {"model_path": "SoulX", "script_voices": folder}}
        return plan_pairs([script], {("colloquial_scripts", "s1"): "train"}, CHOICES, None, 0, own)[0]

    return make


def test_the_voices_depend_on_the_pool_and_the_dialogue_and_on_no_path(plan, folder, tmp_path):
    here = plan(str(folder))
    there = folder.rename(tmp_path / "elsewhere")
    words = {path: path.with_suffix(".txt").read_text().strip() for path in there.glob("*.wav")}
    entries = [{"audio": str(path), "text": text} for path, text in words.items()]
    moved = plan(entries)
    assert moved.pair_id == here.pair_id
    drawn = [draw_voices(each.script_voices, each.pair_id) for each in (here, moved)]
    assert [voice.identity for voice in drawn[0].values()] == [voice.identity for voice in drawn[1].values()]
    assert plan(entries[1:]).pair_id != here.pair_id


def test_both_sides_of_a_pair_are_cloned_from_the_same_two_recordings(plan, folder, monkeypatch):
    heard = []

    class Cloner:
        is_deterministic, version = True, "cloner"

        def speak_dialogue(self, lines, references):
            heard.append(references)
            return [np.roll(references[role].array, len(text)) for role, text in lines]

    monkeypatch.setattr(pairing, "load_synthesizer", lambda name, options: heard.append(options) or Cloner())
    each = plan(str(folder))
    row = make_row(each)
    # The engine does not get the pool: it would be loaded anew for each.
    assert heard[0] == {"model_path": "SoulX"}
    drawn = draw_voices(each.script_voices, each.pair_id)
    words = {role: voice.text for role, voice in drawn.items()}
    for references in [each for each in heard if "user" in each]:
        assert {role: clip.text for role, clip in references.items()} == words
    user = np.roll(read_audio(drawn["user"].audio), len("Um, what time is it?"))
    np.testing.assert_allclose(read_audio(row["chosen"][0]["audio"]), user, atol=1e-4)


HELLO = {"audio": "x/a.wav", "text": "Hello."}


@pytest.mark.parametrize("pool", [[HELLO], [HELLO, {**HELLO, "audio": "y/a.wav"}], [{**HELLO, "text": " "}], ["a"]])
def test_a_pool_that_cannot_be_used_is_refused(pool):
    with pytest.raises(ValueError, match="script_voices has"):
        split_options({"script_voices": pool}, "colloquialness")


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
        ([clip("user", 5.0, 59)], {"user": (0,)}),
        ([clip("user", 30.0, 59)], {"user": (0,)}),
        (user(4.999), None),
        (user(30.001), None),
        ([clip("user", 10.0, 60)], None),
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
