"""Find recordings of sounds in folders of clips: one folder per kind of sound."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sdiareward.audio_sdiareward import read_audio


def find_clips(category: str, folder: str | Path | None) -> list[Path]:
    if folder is None:
        return []
    return sorted(path for path in Path(folder, category).glob("*") if path.is_file() and path.name[0] != ".")


def draw_clip(category: str, folder: str | Path | None, rng: np.random.Generator) -> np.ndarray | None:
    clips = find_clips(category, folder)
    return read_audio(clips[rng.integers(len(clips))]) if clips else None
