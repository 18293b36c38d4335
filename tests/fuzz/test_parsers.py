"""Properties of the parsers at the border: an input is read into what they promise, or refused with a typed error."""

import io
import json
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import yaml
from fuzz.values import changed, damaged, json_texts, texts, values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.paths import CONFIGS

from sdiareward.audio_sdiareward import AudioError, read_audio
from sdiareward.calls.recordings import CallError, CallFiles
from sdiareward.calls.segment_files import read_segments
from sdiareward.chat_sdiareward import DialogueError, make_dialogue
from sdiareward.common.errors import Skipped
from sdiareward.common.llm import parse_answer
from sdiareward.common.settings import parse_yaml
from sdiareward.dataset_builder.builder import read_build_config
from sdiareward.dataset_builder.episodes import SkipError, validate_episode
from sdiareward.dataset_builder.pipeline.settings import make_settings
from sdiareward.dataset_builder.release.official_form import _make_row
from sdiareward.dataset_builder.sources import read_source
from sdiareward.judges.zero_shot.answers import DIMENSIONS, VERSIONS, read_text
from sdiareward.pairs.messages import read_dialogue
from sdiareward.pairs.prompts import read_prompts
from sdiareward.pairs.schema import MAX_TURN_S, SIDES, validate_row
from sdiareward.serving.forms import BadRequestError, ScoreRequest, parse_form, read_dialogue_form
from sdiareward.serving.settings import Limits


pytestmark = pytest.mark.slow

ROLES = ("user", "assistant")
TONE = (0.3 * np.sin(np.arange(4_000) * 0.1)).astype(np.float32)


def encode(format, subtype=None):
    buffer = io.BytesIO()
    soundfile.write(buffer, TONE, 16_000, format=format, subtype=subtype)
    return buffer.getvalue()


WAV = encode("WAV", "PCM_16")


def make_turns(**more):
    return [{"role": role, "text": "so, um, hello", **more} for role in ROLES]


ROW = {
    **{"pair_id": "0123456789abcdef", "criterion": "modality", "subset": "semi_wild", "source": "meld"},
    **{"primary": "Neutral", "secondary": "Joy", "synthesizer": "espeak-ng", "group_id": "fedcba9876543210"},
    **{"language": "en", "license": "CC0-1.0", **{side: make_turns(duration_s=0.25) for side in SIDES}},
}
MESSAGES = [
    {"role": role, "content": [{"type": "text", "text": "hello"}, {"type": "audio", "audio": "a.wav"}]}
    for role in ROLES
]
VERDICT = {
    "scores": {name: {"A": 4, "B": 2} for name in DIMENSIONS["modality"]},
    "overall_preference": "A",
    "reason": "A is livelier.",
}


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
    return path


def read_recording(folder, data):
    array = read_audio(data)
    assert array.ndim == 1 and array.dtype == np.float32 and np.isfinite(array).all()


def read_dialogue_file(folder, text):
    write(folder, "a.wav", WAV)
    make_dialogue(read_dialogue(write(folder, "dialogue.json", text)))


def read_messages(folder, messages):
    make_dialogue(messages, "dialogue")
    turns = [message for message in messages if message["role"] != "system"]
    assert [turn["role"] for turn in turns] == [*ROLES] * (len(turns) // 2)


def read_row(folder, row):
    validate_row(row)
    assert all(0 < turn["duration_s"] <= MAX_TURN_S for side in SIDES for turn in row[side])
    # Parquet refuses half a character.
    "".join(row[name] for name in ("pair_id", "source", "primary", "secondary", "license")).encode()


def read_official_row(folder, example):
    write(folder, "dialogue/0.wav", WAV)
    validate_row(_make_row(example, folder, "", set()))


def make_official_row():
    content = [{"type": "text", "text": "hello"}, {"type": "audio", "audio": "dialogue/0.wav"}]
    side = [{"role": role, "content": content} for role in ROLES]
    return {"chosen": side, "rejected": side, "category": "wild", "source": "youtube"}


def read_manifest(folder, lines):
    write(folder, "a.wav", WAV)
    write(folder, "manifest.jsonl", lines)
    for item in read_source("folder", folder):
        if isinstance(item, Skipped):
            assert item.kind and item.reason
        else:
            with suppress(ValueError):
                validate_episode(item)
                "".join([item.name, item.group, item.license, *(turn.parts[0].text for turn in item.turns)]).encode()


def yaml_of(name):
    good = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8"))
    plain = changed(good).map(lambda value: json.loads(json.dumps(value).replace("\\ud", "\\u0")))
    return plain.map(lambda value: yaml.safe_dump(value, allow_unicode=True)) | st.sampled_from(
        ("- a\n- b", "{" * 30, "a: &a [*a]", "!!python/object/apply:os.system [id]", "2001-99-99", "? [a]\n: 1")
    )


def read_answer(folder, text):
    verdict = read_text(text, "modality")
    assert verdict.preference in VERSIONS
    assert all(1 <= score <= 5 for both in verdict.scores.values() for score in both)


def read_request(folder, text):
    for dialogue in parse_form(ScoreRequest, text.encode("utf-8", "surrogatepass")).dialogues:
        make_dialogue(read_dialogue_form(dialogue, {"a": WAV}, Limits()))


def read_call_segments(folder, case):
    for name, data in zip(("a.rttm", "a.json", "a.srt"), case, strict=True):
        found = read_segments(CallFiles("a", (), (write(folder, name, data),)), 60.0, "u", "v")
        assert all(0 <= each.start_s < each.end_s <= 60.0 for each in found)


def make_segments():
    said = {"segments": [{"start": 0, "end": 1.5, "speaker": name, "text": "so"} for name in "uv"]}
    rttm = b"SPEAKER a 1 0 1 <NA> <NA> u <NA> <NA>\nSPEAKER a 1 2 1 <NA> <NA> v <NA> <NA>\n"
    cues = b"1\n00:00:00,000 --> 00:00:01,000\n[u]: so\n\n2\n00:00:02,000 --> 00:00:03,000\n[v]: so\n"
    return st.tuples(st.just(rttm) | damaged(rttm), json_texts(said), st.just(cues) | damaged(cues))


REQUEST = {"dialogues": [{"turns": make_turns(audio={"file": "a"})}], "criterion": "modality", "require_audio": True}
MANIFEST = {"id": "call-17", "language": "en", "license": "CC0-1.0", "turns": make_turns(audio="a.wav")}


def join_lines(line):
    return st.lists(line, min_size=1, max_size=2).map("\n".join)


# Name -> strategy of inputs, parser, errors by which it refuses an input.
PARSERS = {
    "recording": (lambda: damaged(WAV, encode("FLAC"), encode("OGG")), read_recording, AudioError),
    "dialogue file": (lambda: json_texts({"turns": make_turns(audio="a.wav")}), read_dialogue_file, DialogueError),
    "messages": (lambda: changed(MESSAGES) | values, read_messages, ValueError),
    "row": (lambda: changed(ROW), read_row, ValueError),
    "official row": (
        lambda: changed(make_official_row()).filter(lambda r: isinstance(r, dict)),
        read_official_row,
        SkipError,
    ),
    "manifest of a folder": (lambda: join_lines(json_texts(MANIFEST)), read_manifest, ()),
    "build settings": (
        lambda: yaml_of("demo_data"),
        lambda f, t: read_build_config(write(f, "a.yaml", t), {}),
        ValueError,
    ),
    "pipeline settings": (
        lambda: yaml_of("pipeline"),
        lambda _, text: make_settings(parse_yaml(text, "a")),
        ValueError,
    ),
    "prompts": (
        lambda: json_texts({"modality": "Judge the sound."}),
        lambda folder, text: read_prompts(write(folder, "prompts.json", text)),
        ValueError,
    ),
    "JSON of a language model": (lambda: json_texts(VERDICT) | texts, lambda _, text: parse_answer(text), ValueError),
    "verdict": (lambda: json_texts(VERDICT).map("I think {}".format) | json_texts(VERDICT), read_answer, ValueError),
    "segments": (make_segments, read_call_segments, CallError),
    "request": (lambda: json_texts(REQUEST), read_request, (BadRequestError, DialogueError)),
}


@pytest.mark.parametrize("name", PARSERS)
def test_an_input_is_read_or_refused_with_a_typed_error(name, tmp_path):
    make_cases, parse, refusals = PARSERS[name]
    tally = SimpleNamespace(accepted=0)

    @settings(max_examples=40, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=make_cases())
    def check(case):
        with suppress(*(refusals if isinstance(refusals, tuple) else (refusals,))):
            parse(tmp_path, case)
            tally.accepted += 1

    check()
    # A parser that refuses everything would only test the first of its checks.
    assert tally.accepted


@pytest.mark.parametrize(("rate", "promised"), [(1, 2_000), (2**31 - 1, 2_000), (16_000, 2**32 - 10)])
def test_a_header_that_lies_does_not_exhaust_the_memory(rate, promised):
    data = bytearray(WAV[:2_044])
    data[24:28], data[40:44] = rate.to_bytes(4, "little"), promised.to_bytes(4, "little")
    with suppress(AudioError):
        assert read_audio(bytes(data)).nbytes < 2**24
