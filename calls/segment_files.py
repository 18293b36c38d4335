"""Read who speaks when: RTTM, JSON of Whisper and WhisperX, SRT and VTT."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .recordings import ASSISTANT, CHANNEL_OF, ROLES, USER, CallError, CallFiles
from .turns import Segment


# Larger files are not transcripts of a call.
_MOST_BYTES = 2**26
_SLACK_S = 0.5
_TIME = r"(?:(\d+):)?(\d{1,2}):(\d{1,2}[.,]\d{1,3})"
_CUE = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}")
_SPEAKER = re.compile(r"^\s*(?:<v(?:\.[^\s>]*)?\s+([^>]+)>|\[([^\]]+)\]\s*:?|([A-Za-z][\w .-]{0,30}?)\s*:)\s*")


class _Said(NamedTuple):
    place: str
    start_s: float
    end_s: float
    speaker: str | None
    text: str


def read_segments(
    files: CallFiles, duration_s: float, user: str | None = None, assistant: str | None = None
) -> list[Segment]:
    """Read the segments of a call, sorted by start, from one file or one transcript per side.

    Args:
        files (`CallFiles`): The call; the extension of a segment file decides how it is read.
        duration_s (`float`): Duration of the recording; segments must not exceed it.
        user (`str`, *optional*): The user's name in the file; required unless speakers are named by role words.
        assistant (`str`, *optional*): The assistant's name.

    Raises:
        CallError: A segment is malformed, or its speaker is unknown.
    """
    found = []
    for side, path in enumerate(files.segments):
        said = _read_file(path)
        for each in said:
            if not 0 <= each.start_s < each.end_s < math.inf:
                raise CallError(f"{path}: {each.place}: begins at {each.start_s:g} s and ends at {each.end_s:g} s.")
            if each.end_s > duration_s + _SLACK_S:
                end = f"ends at {each.end_s:.2f} s, the recording at {duration_s:.2f} s"
                raise CallError(f"{path}: {each.place}: {end}; give the segments of this call.")
        names = list(dict.fromkeys(each.speaker for each in said))
        is_of_side = len(files.segments) == len(ROLES)
        channels = dict.fromkeys(names, side) if is_of_side else _assign(path, names, user, assistant)
        found += [
            Segment(each.start_s, min(each.end_s, duration_s), channel, each.text)
            for each in said
            if (channel := channels[each.speaker]) is not None and each.start_s < duration_s
        ]
    return sorted(found)


def _read_file(path: Path) -> list[_Said]:
    readers = {".rttm": _read_rttm, ".json": _read_json, ".srt": _read_cues, ".vtt": _read_cues}
    if (reader := readers.get(path.suffix.lower())) is None:
        raise CallError(f"{path}: not a segment file; give one of {', '.join(readers)}.")
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise CallError(f"{path}: larger than {_MOST_BYTES / 2**20:.0f} MiB; give the segments of one call.")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CallError(f"{path}: cannot be read ({error}); save it as UTF-8.") from error
    if not (said := list(reader(path, text))):
        raise CallError(f"{path}: has no segments.")
    return said


def _assign(
    path: Path, names: Sequence[str | None], user: str | None, assistant: str | None
) -> dict[str | None, int | None]:
    """Return the channel of each speaker; None for a speaker that is not requested."""
    if None in names:
        raise CallError(f"{path}: a segment has no speaker; add it, or give one file per side.")
    given = {name: side for side, name in ((USER, user), (ASSISTANT, assistant)) if name is not None}
    if unknown := [name for name in given if name not in names]:
        raise CallError(f"{path}: has no speaker {unknown[0]!r}; it has {', '.join(map(str, names[:9]))}.")
    by_word = {} if given else {name: CHANNEL_OF.get(str(name).strip().lower()) for name in names}
    found: dict[str | None, int | None] = {name: given.get(str(name), by_word.get(name)) for name in names}
    unclear = [name for name, side in found.items() if side is None]
    missing = [side for side in (USER, ASSISTANT) if side not in found.values()]
    if len(unclear) == len(missing) == 1:
        found[unclear[0]] = missing[0]
    elif missing or len(found) - len(unclear) > len(ROLES) or (unclear and len(given) < len(ROLES)):
        options = " and ".join(f"--{ROLES[side]}" for side in missing or (USER, ASSISTANT))
        listed = ", ".join(map(str, names[:9]))
        raise CallError(f"{path}: has {len(names)} speakers: {listed}; choose with {options}.")
    return found


def _read_rttm(path: Path, text: str) -> Iterator[_Said]:
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split()
        if not fields or fields[0] != "SPEAKER":
            continue
        if len(fields) < 8:
            raise CallError(f"{path}: line {number}: has {len(fields)} fields; a SPEAKER line of RTTM has at least 8.")
        start_s, length_s = _read_times(path, f"line {number}", fields[3:5])
        yield _Said(f"line {number}", start_s, start_s + length_s, fields[7], "")


def _read_json(path: Path, text: str) -> Iterator[_Said]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CallError(f"{path}: not JSON ({error}); give a list of segments.") from error
    if isinstance(content, dict):
        content = next((content[key] for key in ("segments", "chunks", "diarization") if key in content), None)
    if not isinstance(content, list):
        raise CallError(f"{path}: has no segments; give a list, or one under segments, chunks or diarization.")
    for number, each in enumerate(content, start=1):
        each = each if isinstance(each, dict) else {}
        times = each.get("timestamp", [each.get("start", each.get("start_s")), each.get("end", each.get("end_s"))])
        speaker, words = each.get("speaker", each.get("role")), str(each.get("text") or "").strip()
        place = f"segment {number}"
        yield _Said(place, *_read_times(path, place, times), None if speaker is None else str(speaker), words)


def _read_cues(path: Path, text: str) -> Iterator[_Said]:
    """Read SRT or VTT; the speaker is a voice tag, or a name before the words."""
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        if "-->" not in line:
            continue
        if (cue := _CUE.match(line)) is None:
            raise CallError(f"{path}: line {number}: has no times such as 00:00:01.000 --> 00:00:02.000.")
        parts = [float((part or "0").replace(",", ".")) for part in cue.groups()]
        start_s, end_s = (3600 * parts[at] + 60 * parts[at + 1] + parts[at + 2] for at in (0, 3))
        words = list[str]()
        for _, following in lines:
            if not following.strip():
                break
            words.append(following.strip())
        told = " ".join(words)
        match = _SPEAKER.match(told)
        speaker = next(filter(None, match.groups())).strip() if match else None
        plain = re.sub(r"</?[^>]+>", "", told[match.end() :] if match else told).strip()
        yield _Said(f"line {number}", start_s, end_s, speaker, plain)


def _read_times(path: Path, place: str, values: Any) -> tuple[float, float]:
    try:
        start_s, end_s = map(float, values)
    except (TypeError, ValueError, OverflowError) as error:
        raise CallError(f"{path}: {place}: start and end are {str(values)[:80]}; give seconds.") from error
    return start_s, end_s
