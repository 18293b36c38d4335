"""The source `folder`: the user's own recordings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sdiareward.common.errors import Skipped
from sdiareward.common.settings import explain_yaml
from sdiareward.esdr_accuracy.pairwise import MODALITY_SUBSETS
from sdiareward.pairs.messages import RECORDING_SUFFIXES, is_hidden, read_turns, walk_files
from sdiareward.pairs.path_sandbox import resolve_inside
from sdiareward.pairs.schema import UNKNOWN, is_text, is_time, make_stable_id

from ..episodes import (
    Episode,
    Part,
    Recording,
    SkipError,
    Turn,
    TurnTimesError,
    make_reference,
    validate_episode,
)
from .reading import find_clip, read_json_lines


MANIFEST = "manifest.jsonl"
_COMMON_KEYS = {"id", "language", "license", "subset"}
_DIALOGUE_KEYS = _COMMON_KEYS | {"group", "primary", "secondary", "turns", "native_coding"}
_RECORDING_KEYS = _COMMON_KEYS | {"audio"}
_TURN_KEYS = {"role", "text", "audio", "start_s", "end_s"}
# Ids of recordings name the files of the pipeline's stages.
_RECORDING_ID = re.compile(r"\w[\w.-]{0,99}")
_SUFFIXES = {*RECORDING_SUFFIXES, ".mka", ".mkv", ".mov", ".mp4", ".webm"}


def read_folder(
    path: Path | None = None,
    *,
    language: str | None = None,
    license: str | None = None,
    subset: str = "wild",
    native_coding: Sequence[str] = (),
) -> Iterator[Episode | Recording | Skipped]:
    """Your own recordings: dialogues that are cut and transcribed already, or long recordings for the pipeline.

    Origin, size, language and licence: yours; every item names its language and licence. Expected tree; audio may be
    anywhere below the folder, in any format that the package decodes:

        manifest.jsonl      one object per line, see below
        **/*.wav, ...       the recordings that it names

    A line with `turns` is a dialogue (an even number, at most 16, of alternating turns that begin with `user`):

        {"id": "call-17", "language": "en", "license": "CC-BY-4.0", "subset": "wild", "turns": [
          {"role": "user", "text": "so, um, hello", "audio": "calls/17.wav", "start_s": 0.0, "end_s": 2.5}, ...]}

    `group` (never in two splits; the id by default, joined where dialogues share a recording), `primary`, `secondary`,
    `start_s` and `end_s` (the whole file by default) are optional. `turns` may also be the path of a folder with one
    recording and one `.txt` transcript per turn, or of a JSON dialogue; `messages` in place of `turns` holds messages
    with text and audio items. A line with `audio` in place of `turns` is a long recording. `language`, `license`,
    `subset` (`wild` by default) and `native_coding` (a list of the codings that the recordings went through, such as
    `[mulaw]`) may be given once for all as options. Unknown keys are refused: they may be misspelt.

    Without a manifest every audio or video file below the folder is a long recording, and the options are needed.
    """
    if path is None or not path.is_dir():
        raise FileNotFoundError(f"{path}: no such folder; give the folder of your recordings.")
    if subset not in MODALITY_SUBSETS:
        raise ValueError(f"subset is {subset!r}; it must be one of {list(MODALITY_SUBSETS)}.")
    options = {"language": language, "license": license, "subset": subset, "native_coding": native_coding}
    seen: set[str] = set()

    def read(line: dict[str, Any], item: str) -> Iterator[Episode | Recording | Skipped]:
        row = _check_row(line, {key: value for key, value in options.items() if value not in (None, ())})
        if row["id"] in seen:
            raise SkipError("duplicate", f"id {row['id']!r} was used by an earlier line; the first is kept.")
        seen.add(row["id"])
        yield _read_episode(path, row, item) if "turns" in row else _read_recording(path, row)

    if (path / MANIFEST).is_file():
        yield from read_json_lines(path / MANIFEST, "folder", read)
    elif language and license:
        yield from _list_recordings(path, (subset, language, license))
    else:
        raise ValueError(
            f"{path}: has no {MANIFEST}; write one, or give language and license as options{explain_yaml(language)}."
        )


def _check_row(line: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    row = {**defaults, **line}
    if "messages" in row and "turns" not in row:
        messages = row.pop("messages")
        row["turns"] = list(map(_read_message, messages)) if isinstance(messages, list) else messages
    if "turns" not in row and "native_coding" not in line:
        # Of the option: it is for dialogues.
        row.pop("native_coding", None)
    known = _DIALOGUE_KEYS if "turns" in row else _RECORDING_KEYS
    if unknown := sorted(set(row) - known):
        raise SkipError("unknown_key", f"has the keys {unknown}; it may have {sorted(known)}.")
    texts = [*_COMMON_KEYS, *({"group", "primary", "secondary"} & set(row))]
    if bad := sorted(key for key in texts if not (is_text(row.get(key)) and row[key].strip())):
        reasons = [f"{key} is {row.get(key)!r:.40}{explain_yaml(row.get(key))}" for key in bad]
        raise SkipError("missing_field", f"{', '.join(reasons)}; give texts in the line or as options.")
    if row["subset"] not in MODALITY_SUBSETS:
        raise SkipError("bad_subset", f"subset is {row['subset']!r}; use one of {list(MODALITY_SUBSETS)}.")
    return row


def _read_recording(root: Path, row: Mapping[str, Any]) -> Recording:
    if not _RECORDING_ID.fullmatch(row["id"]):
        raise SkipError("bad_id", f"id is {row['id']!r}; letters, digits, '_', '.', '-' only, as it names files.")
    clip, ref = _find_clip(root, row)
    return Recording(row["id"], str(clip), ref, "folder", row["subset"], row["language"], row["license"])


def _find_clip(root: Path, row: Mapping[str, Any]) -> tuple[Path, str]:
    """Return the recording and its reference."""
    if not (isinstance(row.get("audio"), str) and row["audio"]):
        raise SkipError("missing_audio", f"audio is {row.get('audio')!r}; one path below the folder is needed.")
    return find_clip(root, row["audio"]), make_reference("folder", row["audio"])


def _read_episode(root: Path, row: Mapping[str, Any], item: str) -> Episode | Skipped:
    turns = []
    try:
        given = _read_side(root, row["turns"]) if isinstance(row["turns"], str) else row["turns"]
    except ValueError as error:
        # Without the folder's place, which differs between machines.
        raise SkipError("bad_turns", " ".join(str(error).replace(f"{root}/", "").split())) from error
    coding = row.get("native_coding", ())
    if isinstance(coding, str) or not isinstance(coding, Sequence):
        raise SkipError("bad_coding", f"native_coding is {coding!r:.80}; a list of codings is needed.")
    for position, turn in enumerate(given if isinstance(given, list) else ()):
        try:
            turns.append(_read_turn(root, turn))
        except SkipError as error:
            return Skipped(f"{item} turn {position}", error.kind, str(error))
    episode = Episode(
        name=row["id"],
        source="folder",
        subset=row["subset"],
        group=row.get("group", row["id"]),
        turns=tuple(turns),
        primary=row.get("primary", UNKNOWN),
        secondary=row.get("secondary", UNKNOWN),
        language=row["language"],
        license=row["license"],
        native_coding=tuple(coding),
    )
    try:
        validate_episode(episode)
    except ValueError as error:
        raise SkipError("bad_times" if isinstance(error, TurnTimesError) else "bad_turns", str(error)) from error
    return episode


def _read_message(message: Any) -> Any:
    """Return a message as a turn with text and recording; a malformed one stays as it is."""
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        return message
    found = {key: value for key, value in message.items() if key != "content"}
    entries = [entry for entry in message["content"] if isinstance(entry, dict)]
    texts = [entry["text"] for entry in entries if entry.get("text")]
    places = [entry.get("path" if entry.get("type") == "audio" and "path" in entry else "audio") for entry in entries]
    recordings = [place for place in places if place]
    if texts:
        found["text"] = " ".join(texts) if all(isinstance(text, str) for text in texts) else texts
    if recordings:
        # A turn has one; of several `_find_clip` says so.
        found["audio"] = recordings[0] if len(recordings) == 1 else recordings
    return found


def _read_side(root: Path, name: str) -> list[Any]:
    """Return the turns of a folder or a JSON dialogue, recordings relative to the root."""
    given, folder = read_turns(resolve_inside(root, name))
    place, turns = folder.relative_to(root).as_posix(), [_read_message(turn) for turn in given]
    for number, turn in enumerate(turns):
        if isinstance(turn, dict) and isinstance(turn.get("audio"), str) and turn["audio"]:
            turns[number] = {**turn, "audio": f"{place}/{turn['audio']}"}
    return turns


def _read_turn(root: Path, turn: Any) -> Turn:
    if not isinstance(turn, dict) or set(turn) - _TURN_KEYS:
        raise SkipError("bad_turns", f"is {str(turn)[:80]}; an object with {sorted(_TURN_KEYS)} is needed.")
    text, start_s, end_s = turn.get("text"), turn.get("start_s", 0.0), turn.get("end_s")
    if not (isinstance(text, str) and text.strip()):
        raise SkipError("missing_text", f"text is {text!r}; a turn needs its words.")
    if not (is_time(start_s) and (end_s is None or (is_time(end_s) and start_s < end_s))):
        needed = "numbers without quotes are" if str in map(type, (start_s, end_s)) else "0 <= start_s < end_s is"
        raise SkipError("bad_times", f"start_s {start_s!r}, end_s {end_s!r}: {needed} needed.")
    clip, ref = _find_clip(root, turn)
    return Turn(turn.get("role", ""), (Part(text.strip(), str(clip), start_s, end_s, ref),))


def _list_recordings(root: Path, labels: tuple[str, str, str]) -> Iterator[Recording | Skipped]:
    relatives = sorted(path.relative_to(root).as_posix() for path in walk_files(root))
    relatives = [name for name in relatives if Path(name).suffix.lower() in _SUFFIXES and not is_hidden(name)]
    if not relatives:
        raise FileNotFoundError(f"{root}: holds neither {MANIFEST} nor recordings ({', '.join(sorted(_SUFFIXES))}).")
    for relative in relatives:
        name = re.sub(r"[^\w.-]+", "-", relative).strip(".-")[:60]
        recording_id = f"{name}-{make_stable_id(relative)[:8]}"
        try:
            clip, ref = _find_clip(root, {"audio": relative})
            yield Recording(recording_id, str(clip), ref, "folder", *labels)
        except SkipError as error:
            yield Skipped(f"folder {relative}", error.kind, str(error))
