import io
import json
from dataclasses import replace

import numpy as np
import pytest
import soundfile

from sdiareward.audio_sdiareward import resample
from sdiareward.dataset_builder.chatreward.recording import load_event, mix_event
from sdiareward.dataset_builder.chatreward.scenarios import read_scenarios
from sdiareward.dataset_builder.chatreward.voices import (
    CASTS,
    Voice,
    make_endpoint_cast,
    speak_line,
)
from sdiareward.dataset_builder.episodes import SkipError
from sdiareward.dataset_builder.synthesis import load_synthesizer


RATE = 16_000
TEXT = "The second train leaves a little later."
MAN = Voice("espeak-ng", 0)


def say(attribute, category, voice=MAN):
    return speak_line(TEXT, voice, attribute, category, is_shaped=True)


def level_db(array):
    return 10 * np.log10(np.mean(np.square(array, dtype=np.float64)))


def test_volume_changes_the_level_alone():
    low, high = say("volume", "low"), say("volume", "high")
    assert level_db(high) - level_db(low) == pytest.approx(23.0, abs=0.01)
    np.testing.assert_allclose(low / np.abs(low).max(), high / np.abs(high).max(), atol=1e-4)


def test_for_every_bundled_scenario_a_cast_has_all_voices_offline():
    for scenario in read_scenarios():
        lines = (scenario.question, *scenario.answers.values())
        needs = [(scenario.voices, line.category, gender) for line in lines for gender in ("male", "female")]
        assert any(all(cast.find_voice(*need) for need in needs) for cast in CASTS.values()), scenario.scenario_id


def answer_speech(path, headers, body):
    """Answer as `/v1/audio/speech` does."""
    buffer = io.BytesIO()
    soundfile.write(
        buffer, resample(load_synthesizer("espeak-ng").speak(TEXT, voice=0), RATE, 24_000), 24_000, format="WAV"
    )
    return 200, buffer.getvalue()


def test_an_endpoint_gets_instructions_for_its_voice(serve):
    server = serve(answer_speech)
    options = {"base_url": f"{server.url}/v1", "model": "tts", "voices": ["nova", "onyx"]}
    cast = make_endpoint_cast(options, ("emotion", "accent"))
    for attribute, category, gender in (("emotion", "sad", "male"), ("accent", "indian", "female")):
        voice = cast.find_voice(attribute, category, gender)
        speech = speak_line(TEXT, voice, attribute, category, is_shaped=cast.is_shaped(attribute))
        assert level_db(speech) == pytest.approx(-28.0, abs=0.01)
    asked = [json.loads(body) for _, _, body in server.requests]
    assert [(body["voice"], body["input"]) for body in asked] == [("onyx", TEXT), ("nova", TEXT)]
    assert "sad" in asked[0]["instructions"] and "indian accent" in asked[1]["instructions"]
    assert cast.find_voice("accent", None, "male").options == cast.voices["male"].options


def test_a_sound_lies_under_speech_at_the_ratio_asked_for(make_tone, events):
    speech, clip = 0.2 * make_tone(1.0, 300.0), load_event("bee", 0, events)
    mixed = mix_event(speech, clip, replace(events, lead_s=0.5))
    assert len(mixed) == 1.5 * RATE
    under = mixed.copy()
    under[RATE // 2 :] -= speech
    assert level_db(speech) - level_db(under) == pytest.approx(6.0, abs=0.05)
    assert level_db(mixed[: RATE // 2]) > level_db(speech) - 20
    assert np.abs(mix_event(speech, clip, replace(events, snr_db=-40.0))).max() == pytest.approx(0.99)


def test_a_clip_is_drawn_from_the_folders_of_its_category(events):
    def pitches_hz(category):
        clips = [load_event(category, seed, events) for seed in range(9)]
        return {int(np.abs(np.fft.rfft(clip)).argmax() * RATE / len(clip)) for clip in clips}

    assert pitches_hz("knocking") == {500, 900}
    assert pitches_hz("waterfall burbling") == {700}
    with pytest.raises(SkipError, match="sound 'cat' has no clip"):
        load_event("cat", 0, events)
