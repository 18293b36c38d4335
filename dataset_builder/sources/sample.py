"""The bundled sample: real recordings from `amazon_queen` and `asterisk`, as OGG/Opus, for use without any package.

Origin, language and licences: those of the two corpora; `sample/README.md` has their notices. Expected tree:

    sample/manifest.jsonl                  one episode per line, each part with its words, start_s and end_s
    sample/amazon_queen/*.ogg              one file per episode, 16 kHz mono, the parts one after another
    sample/asterisk/*.ogg

It is written by `python -m sdiareward.dataset_builder sample`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, read_audio
from sdiareward.common.files import write_file
from sdiareward.common.package_files import SAMPLE
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, Part, Turn, validate_episode
from sdiareward.pairs.schema import make_stable_id
from sdiareward.perturbations.channel import encode_opus

from ..references import make_reference
from .reading import find_clip, read_json_lines


DEFAULT_PATH = SAMPLE
_COLUMNS = ("name", "source", "subset", "group", "primary", "secondary", "language", "license")


def read_episodes(path: Path | None = None) -> Iterator[Episode | Skipped]:
    """Yield the episodes of a sample folder.

    Args:
        path (`Path`, *optional*): The folder; `sample/` of the repository by default.

    Raises:
        FileNotFoundError: The folder has no manifest; the sample is in the repository, not in the wheel.
    """
    root = path or DEFAULT_PATH
    manifest = root / "manifest.jsonl"
    if not manifest.is_file():
        raise FileNotFoundError(
            f"{manifest}: not found; the sample is in the repository, give the path to its folder."
        )
    seen: set[tuple[str, str]] = set()
    for item, row in read_json_lines(manifest, "sample"):
        episode = row if isinstance(row, Skipped) else _from_row(row, root, item)
        if isinstance(episode, Episode):
            if (key := (episode.source, episode.name)) in seen:
                episode = Skipped(item, "duplicate", f"{' '.join(key)} was an earlier line; the first is kept.")
            seen.add(key)
        yield episode


def _from_row(row: Mapping[str, Any], root: Path, item: str) -> Episode | Skipped:
    try:
        clip = find_clip(root, row["audio"], item)
        if isinstance(clip, Skipped):
            return clip
        audio, ref = str(clip), make_reference("sample", row["audio"])
        turns = tuple(
            Turn(turn["role"], tuple(Part(p["text"], audio, p["start_s"], p["end_s"], ref) for p in turn["parts"]))
            for turn in row["turns"]
        )
        episode = Episode(
            turns=turns, native_coding=tuple(row["native_coding"]), **{key: row[key] for key in _COLUMNS}
        )
        validate_episode(episode)
        return episode
    except (KeyError, TypeError) as error:
        return Skipped(item, "bad_row", f"a field is missing or of another kind: {error!r}.")
    except ValueError as error:
        return Skipped(item, "bad_row", str(error))


def write_sample(source: Iterable[Episode], root: Path, max_bytes: int) -> int:
    """Write episodes as OGG/Opus with a manifest until `max_bytes` of audio are reached."""
    root.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for episode in source:
        row, data = _encode_episode(episode)
        max_bytes -= len(data)
        if max_bytes < 0:
            break
        target = root / row["audio"]
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(data)
        rows.append(row)
    write_file(root / "manifest.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return len(rows)


def _encode_episode(episode: Episode) -> tuple[dict[str, Any], bytes]:
    """Lay the parts of an episode one after another; return its manifest row and the encoded file."""
    arrays: list[np.ndarray] = []
    position = 0
    turns = []
    for turn in episode.turns:
        parts = []
        for part in turn.parts:
            arrays.append(read_audio(part.audio, name=f"{episode.source} {episode.name}"))
            end = position + len(arrays[-1])
            parts.append({"text": part.text, "start_s": position / SAMPLING_RATE, "end_s": end / SAMPLING_RATE})
            position = end
        turns.append({"role": turn.role, "parts": parts})
    coded = replace(episode, native_coding=(*episode.native_coding, "opus"))
    row = {key: getattr(coded, key) for key in _COLUMNS}
    row |= {
        "native_coding": list(coded.native_coding),
        "audio": f"{episode.source}/{make_stable_id(episode.source, episode.name)}.ogg",
        "turns": turns,
    }
    return row, encode_opus(np.concatenate(arrays))
