"""Read the samples of a ChatReward folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sdiareward.pairs.rows import make_builder

from .schema import SPLITS, features


if TYPE_CHECKING:
    import datasets


def load_samples(path: str | Path, split: str) -> datasets.Dataset:
    """Load one split of a ChatReward folder; `audio` stays encoded, as `read_audio` takes it."""
    import datasets

    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; it must be one of {list(SPLITS)}.")
    pattern = f"data/{split}-*.parquet"
    if Path(path).is_dir():
        files = sorted(map(str, Path(path).glob(pattern)))
        if not files:
            raise FileNotFoundError(f"{path}: holds no {pattern}; build the data set first.")
        samples = datasets.Dataset.from_parquet(files, split=split)
    else:
        builder = make_builder(path, data_files={split: pattern})
        builder.download_and_prepare()
        samples = builder.as_dataset(split)
    if missing := sorted(set(features()) - set(samples.column_names)):
        raise ValueError(f"{path}: lacks the columns {missing}; give a ChatReward folder.")
    return samples.cast_column("audio", datasets.Audio(sampling_rate=16_000, decode=False))
