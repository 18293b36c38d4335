"""Folders of dialogues of several systems, small and made of tones."""

import numpy as np
import soundfile


RATE = 16_000


def write_tone(path, duration_s=0.3, frequency_hz=200.0, amplitude=0.3):
    path.parent.mkdir(parents=True, exist_ok=True)
    time_s = np.arange(round(duration_s * RATE)) / RATE
    noise = np.random.default_rng(round(frequency_hz)).standard_normal(time_s.size)
    tone = np.sin(2 * np.pi * frequency_hz * time_s) + 0.1 * noise
    soundfile.write(path, (amplitude * tone).astype(np.float32), RATE, subtype="FLOAT")


def write_system(folder, number, num_dialogues=6, first=0):
    """Write dialogue folders `d00`, `d01`, ...; the user's turns are the same for all systems."""
    for dialogue in range(first, first + num_dialogues):
        write_tone(folder / f"d{dialogue:02}" / "0.wav", 0.2, 150.0 + 10 * dialogue)
        write_tone(folder / f"d{dialogue:02}" / "1.wav", 0.2 + 0.02 * dialogue, 300.0 + 97 * number + 13 * dialogue)
        (folder / f"d{dialogue:02}" / "1.txt").write_text(f"answer {dialogue}")
    return folder
