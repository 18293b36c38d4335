"""`audio_separator.separator.Separator` 0.44.1 with a model that halves what is loud enough.

As the real class, it refuses silence, does not write a stem below 1e-6 but returns its name, and an input under 10 s
changes a setting permanently (here another gain).
"""

import os
from pathlib import Path

import numpy as np
import soundfile


class _Model:
    def __init__(self, options):
        self.output_dir, self.sample_rate = options["output_dir"], options["sample_rate"]
        self.override_model_segment_size = False
        self.primary_source = None

    def separate(self, path, names):
        mixture, rate = soundfile.read(path, always_2d=True)
        Separator.inputs.append((mixture, rate))
        if not mixture.any():
            raise ValueError(f"Audio file {path} is empty or not valid")
        if len(mixture) / rate < 10.0:
            self.override_model_segment_size = True
        stem = mixture * (0.25 if self.override_model_segment_size else 0.5)
        self.primary_source = stem if np.abs(mixture).max() > 0.01 else stem * 1e-6
        name = names["Vocals"] + ".wav"
        if np.abs(self.primary_source).max() >= 1e-6:
            os.makedirs(self.output_dir, exist_ok=True)
            soundfile.write(
                Path(self.output_dir, name), self.primary_source, rate, subtype=soundfile.info(path).subtype
            )
        return [name]


class Separator:
    """Keeps what it was given in `inputs`: `(samples, sampling rate)` of each call."""

    inputs = []

    def __init__(self, **options):
        self.options, self.model_instance = options, None

    def load_model(self, model_filename):
        if model_filename == "missing.ckpt":
            raise ValueError("not in the list")
        self.model_instance = _Model(self.options)

    def separate(self, audio_file_path, custom_output_names=None):
        return self.model_instance.separate(audio_file_path, custom_output_names)
