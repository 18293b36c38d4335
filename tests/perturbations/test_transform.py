"""The interface of effects: registered by name, serialisable, and without effect on their input."""

import json

import numpy as np
import pytest

from sdiareward.perturbations import attack_effects, channel, effects, voice_shaping
from sdiareward.perturbations.transform import TRANSFORMS, Transform


RATE = 16_000
EXAMPLES = [
    attack_effects.AddClicks(3),
    attack_effects.AddNoiseFloor((0.5,) * 257),
    attack_effects.InsertSound("breath", -10.0, heard_s=1.0),
    channel.Aac(),
    channel.ChannelSettings(coding="none"),
    channel.EightBits(11_025, 0.7),
    channel.FileCodec("OGG", "OPUS", RATE, 0.5),
    channel.MuLaw(7),
    effects.AddNoise(20.0, color="pink"),
    effects.AddOffset(0.1),
    effects.AddSilence(0.5, place="after"),
    effects.ChangeSpeed(-3.0),
    effects.ChangeTempo(1.2),
    effects.Clip(5.0),
    effects.Gain(-6.0),
    effects.InvertPolarity(),
    effects.Resample(8000.0),
    effects.Reverberate(0.2),
    effects.SetLevel(-26.0),
    effects.TelephoneBand(3400.0),
    effects.Tilt(3.0),
    voice_shaping.VoiceShape(tempo=0.8),
]


def test_every_effect_is_found_by_its_class_name():
    assert {type(effect).__name__: type(effect) for effect in EXAMPLES} == TRANSFORMS


@pytest.mark.parametrize("effect", EXAMPLES, ids=repr)
def test_an_effect_survives_serialisation_and_does_not_change_its_input(effect, make_tone):
    tone = make_tone(0.5)
    before = tone.copy()
    copy = Transform.from_dict(effect.to_dict())
    assert copy == effect
    assert json.loads(json.dumps(effect.to_dict()))["name"] == type(effect).__name__
    first, again = (each(tone, RATE, np.random.default_rng(3)) for each in (effect, copy))
    assert np.array_equal(first, again)
    assert np.array_equal(tone, before)


def test_an_unknown_effect_is_an_error():
    with pytest.raises(ValueError, match="the effect is 'Echo'; it must be one of Aac, AddClicks"):
        Transform.from_dict({"name": "Echo"})
