"""Write the task of `toy_judge` in the form of ChatReward, to train every variant of WavReward on it.

    python -m benchmarks.wavreward_toy_data runs/toy_chatreward
    python -m benchmarks.wavreward_ablations --dataset runs/toy_chatreward ...

The clips are loud or soft and fast or slow. Their scores 5, 3 or 1 need no understanding of words, so a nano model can
learn them; ChatReward itself is too hard for it. All samples count in the column `volume`; their texts carry no
information, and question and answer are the same clip.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.toy_judge import make_samples, short_clips
from sdiareward.audio_sdiareward import audio_duration_s
from sdiareward.common.arguments import parse_arguments
from sdiareward.common.files import write_file
from sdiareward.dataset_builder.recipes.chatreward.schema import features


_TEST_SHARE = 0.25


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    output_dir: Path = field(metadata={"positional": True, "help": "folder to write"})
    num_clips: int = field(default=120, metadata={"help": "recordings to train on"})
    num_test_clips: int = field(default=60, metadata={"help": "others to test on"})
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn"})


def main(argv: Sequence[str] | None = None) -> Path:
    """Run the command line and return the folder."""
    (args,) = parse_arguments((Arguments,), argv, prog="python -m benchmarks.wavreward_toy_data", description=__doc__)
    return write_toy_data(args.output_dir, list(short_clips()), args.num_clips, args.num_test_clips, args.seed)


def write_toy_data(
    folder: Path, clips: Sequence[tuple[str, np.ndarray]], num_clips: int, num_test_clips: int, seed: int
) -> Path:
    """Write three samples of each recording; the splits share no dialogue.

    Args:
        folder (`Path`): Output folder.
        clips (`Sequence[tuple[str, np.ndarray]]`): Dialogue and samples of each recording, mono, 16 kHz.
        num_clips (`int`): Recordings to train on, if there are as many.
        num_test_clips (`int`): Recordings to test on.
        seed (`int`): Decides the held-out dialogues and the sound of each clip.

    Returns:
        `Path`: `folder`.
    """
    groups = sorted({group for group, _ in clips})
    order = np.random.default_rng(seed).permutation(len(groups))
    held_out = {groups[index] for index in order[: round(_TEST_SHARE * len(groups))]}
    chosen = {
        "train": [clip for group, clip in clips if group not in held_out][:num_clips],
        "test": [clip for group, clip in clips if group in held_out][:num_test_clips],
    }
    for number, (split, arrays) in enumerate(chosen.items()):
        _write_split(folder, split, make_samples(arrays, seed + number))
    write_file(folder / "README.md", f"{__doc__}\nSeed {seed}.\n")
    return folder


def _write_split(folder: Path, split: str, samples: Iterable[Mapping[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [_row(sample, split) for sample in samples]
    (folder / "data").mkdir(parents=True, exist_ok=True)
    # `datasets` requires torchcodec to build an Audio column, even from encoded bytes.
    table = pa.Table.from_pylist(rows, schema=features().arrow_schema)
    pq.write_table(table, folder / "data" / f"{split}-00000-of-00001.parquet")


def _row(sample: Mapping[str, Any], split: str) -> dict[str, Any]:
    """Return a sample with all columns of ChatReward."""
    duration_s = audio_duration_s(sample["audio"])
    return {
        **dict.fromkeys(features()),
        "sample_id": f"{split}-{sample['sample_id']}",
        "scenario_id": f"{split}-{sample['scenario_id']}",
        "part": "generation",
        "attribute": "volume",
        "topic": "daily_life",
        "score": sample["score"],
        "design_score": sample["score"],
        **dict.fromkeys(("question", "response"), f"clip {sample['scenario_id']}"),
        **dict.fromkeys(("question_s", "response_s", "duration_s"), duration_s),
        "audio": sample["audio"],
        **dict.fromkeys(("question_synthesizer", "synthesizer"), "recorded"),
        "language": "en",
        "license": "LicenseRef-Flight-of-the-Amazon-Queen",
    }


if __name__ == "__main__":
    main()
