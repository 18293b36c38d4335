"""Targets that read rows of data sets and releases, and dialogues of programs, files and clients."""

import base64
import io
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import soundfile
from fuzz.audio import make_tone
from fuzz.running import Target, World
from fuzz.values import TEXTS, changed, damaged_texts, json_texts, values
from hypothesis import strategies as st

from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import SkipError
from sdiareward.dataset_builder.pairing.filtering import check_rules
from sdiareward.dataset_builder.release.fingerprints import compare, fingerprint
from sdiareward.dataset_builder.release.official_form import _make_row
from sdiareward.dataset_builder.release.rebuilding import RebuildSettings, Rebuilt, rebuild_row
from sdiareward.dataset_builder.release.recorded_parts import AudioRoots
from sdiareward.messages_sdiareward import MAX_TURNS, DialogueError, validate_form, validate_messages
from sdiareward.pairs.messages import read_dialogue, turns_to_messages
from sdiareward.pairs.schema import MAX_TURN_S, validate_row
from sdiareward.serving.bodies import BadRequestError, Body
from sdiareward.serving.forms import CompareRequest, ScoreRequest
from sdiareward.serving.inputs import read_dialogue_form
from sdiareward.serving.settings import Limits


_ROLES = ("user", "assistant")


@cache
def tone_wav() -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, make_tone(), 16_000, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


def _row_turns(**more: Any) -> list[dict[str, Any]]:
    return [{"role": role, "text": "so, um, hello", "duration_s": 0.25, **more} for role in _ROLES]


_ROW = {
    **{"pair_id": "0123456789abcdef", "criterion": "modality", "subset": "semi_wild", "source": "meld"},
    **{"primary": "Neutral", "secondary": "Joy", "synthesizer": "espeak-ng", "group_id": "fedcba9876543210"},
    **{"language": "en", "license": "CC0-1.0", "chosen": _row_turns(), "rejected": _row_turns()},
}


def _validate_row(world: World, row: Any) -> None:
    skip = check_rules(row) if isinstance(row, Mapping) else None
    try:
        validate_row(row)
    except ValueError:
        assert skip is not None or not isinstance(row, Mapping)
        raise
    assert skip is None
    assert all(0 < turn["duration_s"] <= MAX_TURN_S for side in ("chosen", "rejected") for turn in row[side])
    "".join(row[name] for name in ("pair_id", "source", "primary", "secondary", "license")).encode()


@cache
def _fingerprint() -> str:
    return fingerprint(make_tone())


def _released(world: World) -> dict[str, Any]:
    """Return a row of a metadata release with its recording; its synthetic side is never reached."""
    world.write("roots/folder/a.wav", tone_wav())
    part = {"uri": "folder:a.wav", "start_s": 0.0, "end_s": None, "text": "so, um, hello"}
    sides = {side: _row_turns(audio_ref=[part], fingerprints=[_fingerprint()]) for side in ("chosen", "rejected")}
    channel = {"trim_db": None, "bandwidth_hz": 4000.0, "level_dbfs": -26.0, "snr_db": 30.0, "coding": "mulaw"}
    labels = {"primary": "Unknown", "secondary": "Unknown", "source": "folder", "synthesizer": "none"}
    return {**_ROW, **sides, **labels, "channel": channel, "native_coding": ["opus"], "quality": None}


def _rebuild_row(world: World, case: tuple[str, Any]) -> None:
    split, row = case
    if not isinstance(row, dict):
        return
    settings = RebuildSettings(AudioRoots(world.folder / "roots"), world.folder / "cache", allow_reencoded=True)
    assert isinstance(rebuild_row(split, row, settings), (Skipped, Rebuilt))


def _official(world: World) -> dict[str, Any]:
    world.write("audio/dialogue/0.wav", tone_wav())
    message = {"content": [{"type": "text", "text": "hello"}, {"type": "audio", "audio": "dialogue/0.wav"}]}
    side = [{"role": role, **message} for role in _ROLES]
    return {"chosen": side, "rejected": side, "category": "wild", "source": "youtube"}


def _import_row(world: World, example: Any) -> None:
    if isinstance(example, dict):
        row = _make_row(example, world.folder / "audio", "", set())
        validate_row(row)


def _compare(world: World, case: tuple[str, int]) -> None:
    expected, num_samples = case
    verdict = compare(expected, make_tone(num_samples / 16_000))
    assert np.isfinite([verdict.bit_errors, verdict.snr_db, verdict.gain_db]).all()
    str(verdict)


@st.composite
def _fingerprints(draw: Any) -> tuple[str, int]:
    data = bytearray(base64.b64decode(_fingerprint()))
    for _ in range(draw(st.integers(0, 4))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.sampled_from((0, 1, 0x7C, 0x7E, 0xFC, 255)))
    text = base64.b64encode(bytes(data) * draw(st.sampled_from((1, 1, 1, 50)))).decode()
    return draw(st.just(text) | damaged_texts(text)), draw(st.sampled_from((0, 1, 100, 4_000, 8_000)))


def _messages(audio: Any) -> list[dict[str, Any]]:
    content = [{"type": "text", "text": "so, um, hello"}, {"type": "audio", "audio": audio}]
    return [{"role": role, "content": list(content)} for role in _ROLES]


def _validate_messages(world: World, value: Any) -> None:
    validate_messages(value, name="dialogue")
    turns = [message for message in value if message["role"] != "system"]
    assert 2 <= len(turns) <= MAX_TURNS and [turn["role"] for turn in turns] == [*_ROLES] * (len(turns) // 2)


def _as_turns(world: World, value: Any) -> None:
    validate_form(turns_to_messages(value))


def _prepare(world: World, dialogue: Any) -> None:
    processor = world.processor
    prepared = processor.prepare(dialogue, "modality")
    ids = prepared.input_ids
    assert int((ids == processor.audio_token_id).sum()) == sum(
        processor.num_audio_tokens(c.size) for c in prepared.clips
    )
    # No text is encoded as a control token.
    num_starts = int((ids == processor.tokenizer.convert_tokens_to_ids("<|im_start|>")).sum())
    assert num_starts == len(processor.with_prompt(dialogue, "modality"))


def _dialogues(_: World) -> st.SearchStrategy[Any]:
    clip = {"array": [0.1] * 400, "sampling_rate": 16_000}
    with_samples = changed([{"role": role, "content": [{"type": "audio", "audio": clip}]} for role in _ROLES])
    return with_samples | changed(_messages("missing.wav")) | _spoken_texts()


def _spoken_texts() -> st.SearchStrategy[Any]:
    words = st.sampled_from(TEXTS) | st.text(max_size=30)
    return st.lists(words, min_size=2, max_size=2).map(
        lambda both: [{"role": r, "content": [{"type": "text", "text": t}]} for r, t in zip(_ROLES, both, strict=True)]
    )


def _read_dialogue(world: World, text: str) -> None:
    world.write("dialogue/a.wav", tone_wav())
    validate_messages(read_dialogue(world.write("dialogue/dialogue.json", text)))


def _request_body() -> dict[str, Any]:
    encoded = {"base64": base64.b64encode(tone_wav()[:2000]).decode()}
    turns = [
        {"role": role, "text": "hello", "audio": audio}
        for role, audio in zip(_ROLES, (encoded, {"file": "a"}), strict=True)
    ]
    return {"dialogues": [{"turns": turns}], "criterion": "modality", "require_audio": True}


def _read_request(world: World, text: str) -> None:
    body, limits = Body(text.encode("utf-8", "surrogatepass"), {"a": tone_wav()}), Limits()
    forms: tuple[Any, ...] = (ScoreRequest, CompareRequest)
    for form in forms:
        try:
            request: Any = body.parse(form, limits)
        except BadRequestError as error:
            assert error.problems
            continue
        for dialogue in request.dialogues if form is ScoreRequest else (request.a, request.b):
            try:
                messages = read_dialogue_form(dialogue, body.files, limits)
            except DialogueError:
                continue
            validate_messages(messages)


TARGETS = (
    Target("schema row", "rows", lambda _: changed(_ROW), _validate_row),
    Target(
        "release row",
        "rows",
        lambda world: st.tuples(st.sampled_from(("train", "test", "x")), changed(_released(world))),
        _rebuild_row,
    ),
    Target("official row", "rows", lambda world: changed(_official(world)), _import_row, (SkipError,)),
    Target("fingerprint", "rows", lambda _: _fingerprints(), _compare),
    Target("messages", "dialogues", lambda _: changed(_messages("a.wav")) | values(), _validate_messages),
    Target("turns of a row", "dialogues", lambda _: changed(_row_turns(audio={"path": "a"})) | values(), _as_turns),
    Target("processor", "dialogues", _dialogues, _prepare, (ValueError, TypeError, FileNotFoundError)),
    Target(
        "dialogue file",
        "dialogues",
        lambda _: json_texts({"turns": [{"role": r, "text": "hello", "audio": "a.wav"} for r in _ROLES]}),
        _read_dialogue,
        (DialogueError,),
    ),
    Target("request", "requests", lambda _: json_texts(_request_body()), _read_request),
)
