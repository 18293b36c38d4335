"""YouTube: interviews and podcasts, spontaneous speech from the web (wild).

Origin: channels of your choice; the paper takes interviews and podcasts, 1,954.2 hours of raw audio (section B.1).
Language: as you choose, English by default. Licence: the one each video is published under, else
`LicenseRef-YouTube`: the standard licence forbids redistributing the audio, so none of it is ever part of a release.

How to obtain: `fetching.fetch` downloads them with `yt-dlp`, for non-commercial research, if the law and the terms of
the site allow it. Expected tree, as it writes it:

    <folder>/<video id>.<extension>
    <folder>/manifest.jsonl     id, extractor, url, file, duration_s, language, license; written when a file is whole

The manifest has no title, uploader or channel: they are not needed, and cannot be released by mistake. Of
its fields only the id gets into a release, as part of a reference: `youtube:<video id>`, so that a copy in another
format is found too. The pipeline cuts the recordings into episodes.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Recording

from ..references import make_reference
from .reading import find_clip, read_json_lines


MANIFEST = "manifest.jsonl"
DEFAULT_LICENSE = "LicenseRef-YouTube"
# What a download leaves beside its file until it is complete, or writes about it.
_OTHER_SUFFIXES = {".part", ".ytdl", ".temp", ".json", ".jsonl", ".txt", ".vtt"}


def read_recordings(
    path: Path | None = None, *, language: str | None = None, license: str | None = None
) -> Iterator[Recording | Skipped]:
    if path is None or not (path / MANIFEST).is_file():
        raise FileNotFoundError(f"{path}: {MANIFEST} not found; fetch recordings first, or give the folder of some.")
    replaced = {key: value for key, value in (("language", language), ("license", license)) if value}
    seen: set[str] = set()
    for item, row in read_json_lines(path / MANIFEST, "youtube"):
        recording = row if isinstance(row, Skipped) else _read_recording(path, row | replaced, item)
        if isinstance(recording, Recording):
            if recording.recording_id in seen:
                recording = Skipped(item, "duplicate", f"{recording.recording_id} was an earlier line; it is kept.")
            else:
                seen.add(recording.recording_id)
        yield recording


def locate(root: Path, path: str) -> Path:
    """Return the file of a video in any format."""
    if Path(path).name != path:
        raise ValueError(f"reference youtube:{path}: must read 'youtube:VIDEO_ID'.")
    # The extension has no dot, an id may: `a.b.webm` is the file of `a.b`, not of `a`.
    files = [file for file in sorted(root.glob(f"{glob.escape(path)}.*")) if file.is_file() and file.stem == path]
    files = [file for file in files if file.suffix not in _OTHER_SUFFIXES]
    if not files:
        raise FileNotFoundError(f"{root / path}.*: not found; fetch video {path} again.")
    return files[0]


def _read_recording(root: Path, row: Mapping[str, Any], item: str) -> Recording | Skipped:
    if bad := [key for key in ("file", "language", "license") if not (isinstance(row.get(key), str) and row[key])]:
        return Skipped(item, "missing_field", f"{bad} are absent or no text; fetch into this folder again.")
    clip = find_clip(root, row["file"], item)
    if isinstance(clip, Skipped):
        return clip
    ref = make_reference("youtube", clip.stem)
    return Recording(clip.stem, str(clip), ref, "youtube", "wild", row["language"], row["license"])
