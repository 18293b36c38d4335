"""The bundled sample: real recordings of a game and of telephone prompts, as OGG/Opus, for use without any package.

Origin, language and licences: `sample/README.md` has them and the notices. Expected tree:

    sample/manifest.jsonl                  one episode per line, each part with its words, start_s and end_s
    sample/amazon_queen/*.ogg              one file per episode, 16 kHz mono, the parts one after another
    sample/asterisk/*.ogg
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sdiareward.common.package_files import SAMPLE
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, Part, Turn, validate_episode

from ..references import make_reference
from .reading import find_clip, read_json_lines


DEFAULT_PATH = SAMPLE
_COLUMNS = ("name", "source", "subset", "group", "primary", "secondary", "language", "license")


def read_episodes(path: Path | None = None) -> Iterator[Episode | Skipped]:
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
