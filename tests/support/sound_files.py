"""Recordings of sounds for attacks, in a folder."""

import soundfile

from sdiareward.audio_sdiareward import SAMPLING_RATE


def write_sound(folder, name, array):
    (folder / name).mkdir(parents=True, exist_ok=True)
    soundfile.write(folder / name / "one.wav", array, SAMPLING_RATE, subtype="FLOAT")
    return folder
