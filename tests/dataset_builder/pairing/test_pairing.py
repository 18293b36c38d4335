import dataclasses
from collections import Counter

import numpy as np
import pytest
import soundfile

from sdiareward.audio_sdiareward import AudioError, read_audio
from sdiareward.dataset_builder.episodes import Episode, Part, ScriptPair, Turn
from sdiareward.dataset_builder.pairing import pairing
from sdiareward.dataset_builder.pairing.pairing import PairPlan, SynthesizerSpec, make_row, plan_pairs, read_part
from sdiareward.dataset_builder.pipeline.media import TruncatedAudioError
from sdiareward.pairs.schema import validate_row
from sdiareward.perturbations.channel import ChannelSettings


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


def test_channel_matching_is_recorded_and_changes_both_sides(recorded):
    naive, matched = make_row(make_plan(recorded)), make_row(make_plan(recorded, channel=ChannelSettings()))
    assert matched["channel"]["coding"] == "mulaw"
    assert matched["pair_id"] != naive["pair_id"]
    for side in ("chosen", "rejected"):
        # The level is that of the louder half of the frames: pauses bring the mean over all of them down.
        level = np.square(decode(matched[side][1])).mean() ** 0.5
        assert 0.7 * 10 ** (-26 / 20) < level < 1.1 * 10 ** (-26 / 20)


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
    changed = [make_plan(recorded, "piper"), make_plan(recorded, channel=ChannelSettings())]
    changed.append(make_plan(dataclasses.replace(recorded, name="e2")))
    assert len({plan.pair_id, *(other.pair_id for other in changed)}) == 4

    # The model of an engine counts, not where it runs.
    def identify(**options):
        return dataclasses.replace(make_plan(recorded, "soulx-podcast"), options=options).pair_id

    here = identify(model_path="/here/SoulX-Podcast-1.7B", timeout_s=5)
    assert here == identify(model_path="/there/SoulX-Podcast-1.7B", base_url="http://localhost:1")
    assert here != identify(model_path="/here/SoulX-Podcast-1.7B-dialect")
    assert here != identify(model_path="/here/SoulX-Podcast-1.7B", seed=2)
    named = identify(voices_path="/here/voices.bin")
    assert named == identify(voices_path="/there/voices.bin") != identify(voices_path=None)


@pytest.mark.parametrize("name", ["a.wav", "a.WAV", "a.flac"])
def test_a_span_after_the_end_of_its_recording_is_refused_in_any_format(name, tmp_path, make_tone):
    soundfile.write(tmp_path / name, make_tone(2.0), 16_000, format=name[-4:].strip(".").upper())
    part = Part("so", str(tmp_path / name), 1.0, 1.5)
    assert read_part(part, "turn").size == 8_000
    with pytest.raises(TruncatedAudioError, match=r"the span from 1.0 s to 4.0 s is not in the recording"):
        read_part(dataclasses.replace(part, end_s=4.0), "turn")


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


class CountingEngine:
    uses_reference = False
    version = "1"

    def __init__(self, tone, is_deterministic):
        self.tone, self.is_deterministic, self.texts = tone, is_deterministic, []

    def speak(self, text, *, voice, reference=None):
        self.texts.append(text)
        return np.roll(self.tone, len(text))


@pytest.mark.parametrize(("is_deterministic", "times"), [(True, 1), (False, 2)])
def test_a_text_is_spoken_again_only_where_that_gives_other_speech(
    script, make_tone, monkeypatch, is_deterministic, times
):
    engine = CountingEngine(make_tone(1.0), is_deterministic)
    monkeypatch.setattr(pairing, "load_synthesizer", lambda *args: engine)
    changed = dataclasses.replace(script.spoken, turns=(script.spoken.turns[0], script.written.turns[1]))
    for rejected in (changed, script.written):
        assert len(make_row(make_plan(script.spoken, criterion="joint", rejected=rejected))["rejected"]) == 2
    # The spoken side is in both pairs; its question and the written answer once more, in the changed one.
    assert Counter(engine.texts) == {
        "Um, what time is it?": 1 if is_deterministic else 3,
        "Noon, I think.": times,
        "It is noon.": times,
        "Could you tell me the time?": 1,
    }
