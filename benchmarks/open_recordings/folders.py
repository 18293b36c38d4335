"""The command line of the scripts of open recordings, and the folder that the source `folder` reads."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile

from sdiareward.audio_sdiareward import SAMPLING_RATE, read_audio
from sdiareward.dataset_builder.episodes import Turn


class Dialogue(NamedTuple):
    """Turns of recorded parts; `name` is unique in its corpus, and a `group` is never in two splits."""

    name: str
    group: str
    turns: Sequence[Turn]


def run(corpus: str, read_dialogues: Callable[[Path], Iterable[Dialogue]], **labels: Any) -> None:
    """Write the dialogues of the archive that the command line names; `labels` are in each line of the manifest."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.open_recordings.{corpus}")
    parser.add_argument("archive", type=Path, help="what the package installs; the docstring of the script names it")
    parser.add_argument("out", type=Path, help="folder to write: manifest.jsonl and a recording per turn")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "id": f"{corpus}/{name}",
            "group": f"{corpus}/{group}",
            **labels,
            "turns": list(_write_turns(args.out, name, turns)),
        }
        for name, group, turns in read_dialogues(args.archive)
    ]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (args.out / "manifest.jsonl").write_text(lines, encoding="utf-8")
    print(f"{args.out}: {len(rows)} dialogues")


def _write_turns(out: Path, name: str, turns: Sequence[Turn]) -> Iterable[dict[str, str]]:
    for position, turn in enumerate(turns):
        audio = f"{name.replace('/', '-')}-{position}.flac"
        samples = np.concatenate([read_audio(part.audio, name=audio) for part in turn.parts])
        soundfile.write(out / audio, samples, SAMPLING_RATE)
        yield {"role": turn.role, "text": turn.text, "audio": audio}
