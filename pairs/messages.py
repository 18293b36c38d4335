"""Make the messages of a dialogue from a file, a folder or a side of a pair, and check its recordings.

A JSON file holds `{"turns": [...]}` or the list alone; a turn is `{"role", "audio", "text"}` (text optional) or a
message with a `content` list. Audio paths are relative to the JSON file. A folder holds one audio file per turn:
with `user` or `assistant` in each name, else ordered by name with numbers as numbers, the user first; a `.txt` file of
the same name is the turn's transcript. Two files of one length without turn numbers are refused as the channels of a
call, unless the form `turns` is requested. Hidden files, and those that macOS adds, are not recordings.
"""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Required, TypedDict, TypeGuard

import numpy as np

from sdiareward.audio_sdiareward import (
    SAMPLING_RATE,
    AudioError,
    Clip,
    find_file,
    open_encoded,
    open_source,
    read_audio,
)
from sdiareward.calls.recordings import Form, has_one_clock, is_mix
from sdiareward.chat_sdiareward import ROLES, Dialogue, DialogueError, Turn, make_dialogue, shorten
from sdiareward.chat_sdiareward import turns_to_messages as turns_to_messages  # For callers that take messages.
from sdiareward.common.files import parse_json
from sdiareward.common.package import EXAMPLES

from .path_sandbox import find_recording
from .schema import MAX_TURN_S


AUDIO_SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus")
# Turns as well, though they cannot be read: without them another dialogue would be judged.
RECORDING_SUFFIXES = (*AUDIO_SUFFIXES, ".aac", ".aif", ".aiff", ".m4a", ".weba", ".wma")
# At the end of a name, or before a last number: `user12_turn0` names a person.
_ROLE = re.compile(rf"(?<![^ _.-])({'|'.join(ROLES)})(?=[ _.-]?\d*$)", re.IGNORECASE)
# Numbers that count speakers or channels, not turns.
_NUMBERED_SPEAKER = re.compile(r"(?<![^ _.-])(speaker|spk|channel|ch|track|side|mic)[ _.-]?\d+", re.IGNORECASE)
GAP_S = 1.0
_MAX_NAME, _MAX_PATH = 200, 4096
# Keys of a dialogue in a file or a row.
_HOLDERS = ("turns", "messages", "dialogue")
# A minute of stereo at the highest usual rate; a few kilobytes of compressed silence can hold many times that.
_MAX_DECODED_VALUES = 60 * 2 * 192_000


class Item(TypedDict, total=False):
    """A part of a message: words, or a recording under one of its names."""

    type: str
    text: str | None
    audio: Any
    audio_url: Any
    input_audio: Any
    path: str
    url: str


class Message(TypedDict, total=False):
    """A turn: `role` with `text` and `audio`, or with the `content` of a chat; `make_dialogue` reads both."""

    role: Required[str]
    content: str | Sequence[Item] | None
    text: str | None
    audio: Any
    audio_path: str | None
    audio_url: Any
    input_audio: Any
    path: str | None
    url: str | None
    duration_s: float | None
    audio_ref: Any


class _Tensor(Protocol):
    def cpu(self) -> Any: ...


Recorded = str | os.PathLike[str] | bytes | np.ndarray | Clip | _Tensor | Mapping[str, Any]
# What `read_dialogue` takes.
DialogueLike = str | os.PathLike[str] | Dialogue | tuple[Recorded, Recorded] | Sequence[Message]


def read_dialogue(given: DialogueLike, form: Form | None = None, *, is_whole: bool = True) -> Dialogue:
    """Read a dialogue from a file, a folder, two recordings, or turns.

    Args:
        given (`str`, `Path`, `tuple`, `list[dict]` or `Dialogue`): A JSON file of turns, or a folder with a recording
            for each turn, which are decoded; the user's recording and the answer, each as `read_audio` takes it; or
            turns (`role`, `text`, `audio`) or messages (`role`, `content`), for instance a side of a row.
        form (`"turns"`, *optional*): Take two recordings of one length for turns, not for the channels of a call.
        is_whole (`bool`, *optional*, defaults to `True`): Refuse what is only the beginning of a dialogue.

    Returns:
        `Dialogue`: Its `turns`, each with `role`, `text` and `audio`.

    Raises:
        DialogueError: A turn is malformed, has a key that is not read or, in a file, has no recording.

    Examples:
        >>> from sdiareward import example_dialogues, read_dialogue
        >>> human, synthetic = example_dialogues()
        >>> dialogue = read_dialogue((human.turns[0].audio, human.turns[1].audio))
        >>> [(turn.role, turn.audio) for turn in dialogue.turns]
        [('user', 3.2 s, 16 kHz), ('assistant', 3.2 s, 16 kHz)]
    """
    if isinstance(given, (str, os.PathLike)):
        return _read_file(Path(given), form)
    if _is_exchange(given):
        files = [Path(each) for each in given if isinstance(each, (str, os.PathLike)) and len(str(each)) < _MAX_PATH]
        if wrong := [file for file in files if file.suffix.lower() == ".json" or file.is_dir()]:
            raise DialogueError(f"{wrong[0]}: is not a recording, but in a tuple (user, answer); use a list instead.")
        if len(files) == len(given) and all(map(Path.is_file, files)):
            require_turns(files, form)
        turns = [Turn(role, audio=each) for role, each in zip(ROLES, given, strict=True)]
        return Dialogue(tuple(turns))
    if isinstance(given, Mapping):
        if not (held := [given[key] for key in _HOLDERS if key in given]):
            keys = shorten(", ".join(map(str, given)))
            raise DialogueError(f"is a dict with the keys {keys}; give a list of turns, such as row['chosen'].")
        given = held[0]
    return make_dialogue(given, is_whole=is_whole)


def is_single(given: Any) -> bool:
    """Return whether a value is one dialogue in a form of `read_dialogue`, not several of them."""
    if isinstance(given, (str, os.PathLike, Mapping)) or hasattr(given, "to_messages") or _is_exchange(given):
        return True
    first = given[0] if isinstance(given, Sequence) and len(given) else None
    return isinstance(first, Turn) or (isinstance(first, Mapping) and not set(_HOLDERS) & set(first))


def _is_exchange(given: Any) -> TypeGuard[tuple[Any, Any]]:
    """Return whether a value is the user's recording and the answer."""
    return isinstance(given, tuple) and len(given) == 2 and all(map(_is_recorded, given))


def _is_recorded(value: Any) -> bool:
    if isinstance(value, Mapping):
        return not {"role", *_HOLDERS} & set(value)
    is_sound = hasattr(value, "cpu") or hasattr(value, "get_all_samples")
    return is_sound or isinstance(value, (str, os.PathLike, bytes, np.ndarray, Clip))


def example_dialogues() -> tuple[Dialogue, Dialogue]:
    """Return the two dialogues of the package: an exchange of people, and a synthetic version of it.

    Examples:
        >>> from sdiareward import example_dialogues
        >>> human, synthetic = example_dialogues()
        >>> len(human.turns), len(synthetic.turns)
        (2, 2)
    """
    human, synthetic = (_read_file(EXAMPLES / f"{name}.json") for name in ("human", "synthetic"))
    return human, synthetic


def _read_file(path: Path, form: Form | None = None) -> Dialogue:
    """Read a JSON file or a folder of recordings as a dialogue with decoded audio."""
    turns, base = read_turns(path, form)

    def find(audio: Any) -> Clip:
        source = find_recording(read_path(audio), [base])
        try:
            array = read_recording(source)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{error} Paths are relative to the dialogue's file.") from error
        return Clip({"array": array, "sampling_rate": SAMPLING_RATE, "path": source[:_MAX_NAME]})

    dialogue = make_dialogue(turns, str(path), find=find)
    for number, turn in enumerate(dialogue.turns, start=1):
        if turn.audio is None:
            raise DialogueError("has no audio; every turn needs a recording.", number, name=str(path))
    return dialogue


def read_turns(path: Path, form: Form | None = None) -> tuple[list[Any], Path]:
    """Return the turns of a dialogue as written, and the folder of their relative paths."""
    # Not `Path.is_dir`, which raises for a name that is too long.
    if os.path.isdir(path):
        files = list_recordings(path)
        sides = [file for file in files if not is_mix(file)]
        files = sides if sides and all(_ROLE.search(file.stem) for file in sides) else files
        if not files:
            raise DialogueError(f"{path}: has no audio files; put one {'/'.join(AUDIO_SUFFIXES)} per turn into it.")
        recorded = list_turns(order_turns(files, path), form)
        return [{**turn, "audio": Path(turn["audio"]).name} for turn in recorded], path
    if not os.path.isfile(path):
        raise DialogueError(f"{path}: no such file or folder; give a JSON dialogue or a folder of audio files.")
    if path.suffix.lower() in AUDIO_SUFFIXES:
        raise DialogueError(f"{path}: is a recording; a dialogue is a JSON file of turns, or a folder of recordings.")
    try:
        data = parse_json(path.read_text(encoding="utf-8-sig"))
    # ValueError: also a number of thousands of digits, which Python does not convert.
    except (OSError, ValueError) as error:
        raise DialogueError(f"{path}: is not valid JSON ({error}); give a JSON object or list.") from error
    turns = next((data[key] for key in _HOLDERS if key in data), None) if isinstance(data, dict) else data
    if not isinstance(turns, list):
        raise DialogueError(f'{path}: has no list of turns; give {{"turns": [...]}} or the list alone.')
    return turns, path.parent


def sort_naturally(path: Path) -> tuple[Any, ...]:
    """Return a key that sorts files by name with numbers as numbers: `turn2` before `turn10`."""
    return _split_numbers(path.stem), path.name


def _split_numbers(name: str) -> list[str | int]:
    # Words and numbers alternate, so that no word is compared with a number.
    return [int(part) if index % 2 else part for index, part in enumerate(re.split(r"(\d+)", name))]


def list_visible(folder: Path) -> list[Path]:
    """Return the entries of a folder in natural order, without hidden ones and those that macOS adds to archives."""
    return sorted((entry for entry in folder.iterdir() if not is_hidden(entry.name)), key=sort_naturally)


def walk_files(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder, also those behind links, except links to a folder above them."""
    for place, names, files in os.walk(folder, followlinks=True):
        here = Path(place).resolve()
        names[:] = [name for name in names if not here.is_relative_to((here / name).resolve())]
        yield from (Path(place) / name for name in files)


def is_hidden(relative: str | Path) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in Path(relative).parts)


def list_recordings(folder: Path) -> list[Path]:
    return [file for file in list_visible(folder) if file.suffix.lower() in RECORDING_SUFFIXES]


def list_turns(files: Sequence[tuple[str, Path]], form: Form | None) -> list[dict[str, Any]]:
    """Return the turns of a dialogue from their roles and recordings, with the transcripts beside these."""
    for _, file in files:
        if file.suffix.lower() not in AUDIO_SUFFIXES:
            raise DialogueError(f"{file}: recordings of this format are not read; give {', '.join(AUDIO_SUFFIXES)}.")
    require_turns([file for _, file in files], form)
    return [{"role": role, "text": read_transcript(file), "audio": str(file)} for role, file in files]


def require_turns(files: Sequence[Path], form: Form | None = None) -> None:
    """Raise `DialogueError` for two recordings of one length: the channels of a call, which are not turns."""
    if form == "turns" or len(files) != 2:
        return
    first, second = (re.findall(r"\d+", _NUMBERED_SPEAKER.sub("", file.stem)) for file in files)
    if first != second:
        return
    if has_one_clock(files):
        raise DialogueError(
            f"{files[0].name} and {files[1].name} begin and end together, like the channels of one call; if they are, "
            "name them call_user.wav and call_assistant.wav; if each is a turn, add --form turns, or number them: "
            "0_user.wav, 1_assistant.wav."
        )


def order_turns(files: Sequence[Path], folder: Path) -> list[tuple[str, Path]]:
    """Return role and file of each turn: by name, else in natural order, the user first."""
    told = {file: match[1].lower() for file in files if (match := _ROLE.search(file.stem))}
    if len(told) == len(files):
        # The user's `1_user` comes before `1_assistant`.
        def place(file: Path) -> tuple[Any, ...]:
            return _split_numbers(_ROLE.sub("", file.stem)), told[file] != ROLES[0], file.name

        return [(told[file], file) for file in sorted(files, key=place)]
    turns = [(ROLES[index % 2], file) for index, file in enumerate(sorted(files, key=sort_naturally))]
    for role, file in turns:
        if told.get(file, role) != role:
            problem = f"{file.name} would be the {role}'s turn by the order of the names"
            raise DialogueError(f"{folder}: {problem}; name the role of every turn, or number them.")
    return turns


def read_transcript(audio_file: Path) -> str | None:
    file = find_file(audio_file.with_suffix(".txt"))
    try:
        return None if file is None else file.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise DialogueError(f"{file}: cannot be read as a transcript ({error}); save it as UTF-8 text.") from error


def read_path(audio: Any) -> str:
    """Return the path of a recording in JSON, which is a text or in the form of `datasets`."""
    found = audio.get("path") if isinstance(audio, Mapping) else audio
    if not isinstance(found, str):
        raise DialogueError(f"its audio is a {type(audio).__name__}; give the path of a recording.")
    return found


def check_recording(source: Any, max_turn_s: float = MAX_TURN_S) -> float:
    """Return the seconds of a recording that is short enough; only its header is read."""
    handle, name, _, _ = open_source(source)
    with open_encoded(handle, name) as file:
        duration_s = float(file.frames / file.samplerate)
        if duration_s > max_turn_s:
            raise AudioError(f"{name}: lasts {duration_s:.1f} s; a turn lasts at most {max_turn_s:g} s, cut it.")
        if file.frames * file.channels > _MAX_DECODED_VALUES:
            raise AudioError(f"{name}: has {file.channels} channels at {file.samplerate} Hz; at most 2 at 192 kHz.")
    return duration_s


def read_recording(source: Any, name: str | None = None) -> np.ndarray:
    """Read a recording of a turn, mono at 16 kHz."""
    return Clip(source).read(longest_s=MAX_TURN_S, name=name)


def join_turns(clips: Sequence[np.ndarray], gap_s: float = GAP_S) -> np.ndarray:
    """Join clips with silence between them, as ChatReward joins question and answer (WavReward, section 3.2.3)."""
    if not clips or gap_s < 0:
        raise ValueError(f"got {len(clips)} clips and a gap of {gap_s} s; give at least one clip and no negative gap.")
    silence = np.zeros(round(gap_s * SAMPLING_RATE), dtype=np.float32)
    parts = [part for clip in clips for part in (silence, np.asarray(clip, dtype=np.float32))]
    return np.concatenate(parts[1:])


def make_audio_content(source: Any, *, name: str | None = None) -> dict[str, Any]:
    """Return a recording as part of a message: mono WAV, 16 kHz, 16 bit, in base64."""
    import soundfile

    # Decoding divides by 32768, so 16-bit audio is unchanged.
    samples = np.clip(np.round(read_audio(source, name=name) * 32768), -32768, 32767).astype(np.int16)
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, SAMPLING_RATE, format="WAV", subtype="PCM_16")
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
