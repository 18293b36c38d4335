"""The source `folder`: the user's own recordings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import StringConstraints, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from sdiareward.chat_sdiareward import AUDIO_KEYS, DialogueError, read_parts
from sdiareward.common.errors import Skipped
from sdiareward.common.settings import explain_error, explain_yaml
from sdiareward.pairs.messages import RECORDING_SUFFIXES, is_hidden, read_turns, walk_files
from sdiareward.pairs.path_sandbox import resolve_inside
from sdiareward.pairs.schema import UNKNOWN, is_time, make_stable_id

from ..episodes import Episode, Part, Recording, SkipError, Turn, TurnTimesError, make_reference, validate_episode
from .reading import find_clip, read_json_lines


MANIFEST = "manifest.jsonl"
_TURN_KEYS = {"role", "text", "content", "start_s", "end_s", *AUDIO_KEYS}
_SUFFIXES = {*RECORDING_SUFFIXES, ".mka", ".mkv", ".mov", ".mp4", ".webm"}
Text = Annotated[str, StringConstraints(pattern=r"\S")]


@dataclass(config={"extra": "forbid"}, frozen=True)
class _Line:
    """A line of the manifest: a dialogue with `turns`, or a long recording with `audio`."""

    id: Text
    language: Text
    license: Text
    subset: Literal["wild", "semi_wild", "scripted"] = "wild"
    group: Text | None = None
    primary: Text = UNKNOWN
    secondary: Text = UNKNOWN
    native_coding: tuple[str, ...] = ()
    turns: Any = None
    audio: Any = None


_LINE = TypeAdapter(_Line)


def read_folder(
    path: Path | None = None,
    *,
    language: str | None = None,
    license: str | None = None,
    subset: str = "wild",
    native_coding: Sequence[str] = (),
) -> Iterator[Episode | Recording | Skipped]:
    """Your own recordings: dialogues already cut and transcribed, or long recordings for the pipeline.

    Origin, size, language and licence: yours; every item has a language and a licence. Expected tree; audio may be
    anywhere below the folder, in any supported format:

        manifest.jsonl      one object per line, see below
        **/*.wav, ...       the recordings

    A line with `turns` is a dialogue (an even number, at most 16, of alternating turns that begin with `user`):

        {"id": "call-17", "language": "en", "license": "CC-BY-4.0", "subset": "wild", "turns": [
          {"role": "user", "text": "so, um, hello", "audio": "calls/17.wav", "start_s": 0.0, "end_s": 2.5}, ...]}

    `group` (never in two splits; by default the id, joined if dialogues share a recording), `primary`, `secondary`,
    `start_s` and `end_s` (by default the whole file) are optional. `turns` may also be the path of a folder with one
    recording and one `.txt` transcript per turn, or of a JSON dialogue. A line may have `messages` with text and audio
    items instead of `turns`; a line with `audio` instead is a long recording. `language`, `license`, `subset` (`wild`
    by default) and `native_coding` (a list of codings already applied to the recordings, such as `[mulaw]`) can be set
    for all lines as options. Unknown keys are errors, because they may be misspelt.

    Without a manifest, every audio or video file below the folder is a long recording, and the options are required.
    """
    if path is None or not path.is_dir():
        raise FileNotFoundError(f"{path}: no such folder; give the folder of your recordings.")
    options = {"language": language, "license": license, "subset": subset, "native_coding": native_coding}
    defaults = {key: value for key, value in options.items() if value not in (None, ())}

    def read(row: dict[str, Any], item: str) -> Iterator[Episode | Recording | Skipped]:
        given = {**defaults, **row}
        if "turns" not in given and "messages" in given:
            given["turns"] = given.pop("messages")
        if "turns" not in given and "native_coding" not in row:
            # The option is for dialogues.
            given.pop("native_coding", None)
        try:
            line = _LINE.validate_python(given)
        except ValidationError as error:
            raise SkipError("bad_line", explain_error(error)) from error
        if (line.turns is None) == (line.audio is None):
            raise SkipError("bad_line", "give either turns or audio.")
        yield _read_recording(path, line) if line.turns is None else _read_episode(path, line, item)

    if (path / MANIFEST).is_file():
        yield from read_json_lines(path / MANIFEST, "folder", read)
        return
    if not (language and license):
        remedy = f"write one, or give language and license as options{explain_yaml(language)}"
        raise ValueError(f"{path}: has no {MANIFEST}; {remedy}.")
    relatives = sorted(file.relative_to(path).as_posix() for file in walk_files(path))
    relatives = [name for name in relatives if Path(name).suffix.lower() in _SUFFIXES and not is_hidden(name)]
    if not relatives:
        raise FileNotFoundError(f"{path}: has neither {MANIFEST} nor recordings ({', '.join(sorted(_SUFFIXES))}).")
    for relative in relatives:
        name = re.sub(r"[^\w.-]+", "-", relative).strip(".-")[:60]
        try:
            yield from read({"id": f"{name}-{make_stable_id(relative)[:8]}", "audio": relative}, relative)
        except SkipError as error:
            yield Skipped(f"folder {relative}", error.kind, str(error))


def _read_recording(root: Path, line: _Line) -> Recording:
    # The id is used in file names of the pipeline's stages.
    if not re.fullmatch(r"\w[\w.-]{0,99}", line.id):
        raise SkipError("bad_id", f"id is {line.id!r}; use only letters, digits, '_', '.', '-'.")
    clip, ref = _find_clip(root, [line.audio])
    return Recording(line.id, clip, ref, "folder", line.subset, line.language, line.license, line.native_coding)


def _find_clip(root: Path, recordings: Sequence[Any], place: str = "") -> tuple[str, str]:
    """Return the only recording and its reference."""
    if len(recordings) != 1 or not isinstance(recordings[0], str):
        raise SkipError("missing_audio", f"audio is {recordings!r:.200}; give one path below the folder.")
    return str(find_clip(root, place + recordings[0])), make_reference("folder", place + recordings[0])


def _read_episode(root: Path, line: _Line, item: str) -> Episode | Skipped:
    turns, given, place = [], line.turns, ""
    try:
        if isinstance(given, str):
            given, folder = read_turns(resolve_inside(root, given))
            place = f"{folder.relative_to(root).as_posix()}/"
    except ValueError as error:
        # Without the folder's path, which differs between machines.
        raise SkipError("bad_turns", " ".join(str(error).replace(f"{root}/", "").split())) from error
    for position, turn in enumerate(given if isinstance(given, list) else ()):
        try:
            turns.append(_read_turn(root, turn, place))
        except SkipError as error:
            return Skipped(f"{item} turn {position}", error.kind, str(error))
    labels = (line.primary, line.secondary, line.language, line.license)
    group = line.group or line.id
    episode = Episode(line.id, "folder", line.subset, group, tuple(turns), *labels, native_coding=line.native_coding)
    try:
        validate_episode(episode)
    except ValueError as error:
        raise SkipError("bad_times" if isinstance(error, TurnTimesError) else "bad_turns", str(error)) from error
    return episode


class _Given(NamedTuple):
    """A recording as given in a turn or a message."""

    audio: Any


def _read_turn(root: Path, turn: Any, place: str) -> Turn:
    if not isinstance(turn, dict) or set(turn) - _TURN_KEYS:
        raise SkipError("bad_turns", f"is {str(turn)[:80]}; give an object with {sorted(_TURN_KEYS)}.")
    start_s, end_s = turn.get("start_s", 0.0), turn.get("end_s")
    if not (is_time(start_s) and (end_s is None or (is_time(end_s) and start_s < end_s))):
        raise SkipError("bad_times", f"start_s {start_s!r:.40}, end_s {end_s!r:.40}; give numbers, start_s < end_s.")
    try:
        parts = read_parts(turn, find=_Given)
    except DialogueError as error:
        raise SkipError("bad_turns", str(error)) from error
    words = [part for part in parts if not isinstance(part, _Given)]
    if not all(isinstance(text, str) for text in words) or not (text := " ".join(words).strip()):
        raise SkipError("missing_text", f"text is {words!r:.80}; a turn needs words.")
    clip, ref = _find_clip(root, [part.audio for part in parts if isinstance(part, _Given)], place)
    return Turn(turn.get("role", ""), (Part(text, clip, start_s, end_s, ref),))
