"""Recordings of sounds for attacks, in a folder."""

import soundfile

from sdiareward.audio_sdiareward import SAMPLING_RATE


def write_sound(folder, name, array):
    """Write a recording of a sound; return the folder of all sounds."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    soundfile.write(folder / name / "one.wav", array, SAMPLING_RATE, subtype="FLOAT")
    return folder
