"""Targets that read recordings: invented headers, damaged real files, hours in a few kilobytes."""

import io
import struct
from typing import Any

import numpy as np
from fuzz.running import Target, World
from fuzz.values import damaged, scalars, values
from hypothesis import strategies as st

from sdiareward.audio_sdiareward import MIN_SAMPLES, SAMPLING_RATE, AudioError, audio_duration_s, read_audio
from sdiareward.dataset_builder.pipeline.media import decode_recording, read_media, read_span
from sdiareward.pairs.messages import check_recording


_SOUNDFILE_KINDS = {
    "u8.wav": ("WAV", "PCM_U8", 8_000),
    "s16.wav": ("WAV", "PCM_16", 16_000),
    "s24.wav": ("WAVEX", "PCM_24", 44_100),
    "float.wav": ("WAV", "DOUBLE", 16_000),
    "alaw.wav": ("WAV", "ALAW", 8_000),
    "adpcm.wav": ("WAV", "IMA_ADPCM", 16_000),
    "gsm.wav": ("WAV", "GSM610", 8_000),
    "rf64.wav": ("RF64", "PCM_16", 16_000),
    "tone.w64": ("W64", "PCM_16", 16_000),
    "tone.aiff": ("AIFF", "PCM_16", 16_000),
    "tone.au": ("AU", "ULAW", 8_000),
    "tone.caf": ("CAF", "ALAC_16", 16_000),
    "tone.flac": ("FLAC", "PCM_16", 16_000),
    "tone.ogg": ("OGG", "VORBIS", 16_000),
    "tone.opus": ("OGG", "OPUS", 16_000),
    "tone.mp3": ("MP3", "MPEG_LAYER_III", 16_000),
}
_RATES = (0, 1, 2, 999, 1_000, 8_000, 16_000, 44_100, 655_350, 768_001, 2**31 - 1, 2**31, 2**32 - 1)
_CHANNELS = (0, 1, 2, 3, 8, 255, 1024, 1025, 32_768, 65_535)
_CLAIMS = (0, 1, 100, 3_200, 2**20, 2**31 - 1, 2**31, 2**32 - 100, 2**32 - 1)
_WAV_TAGS = (0, 1, 2, 3, 6, 7, 0x11, 0x31, 0x55, 0x161, 0xFFFE, 0xFFFF)


def make_tone(duration_s: float = 0.25, rate: int = 16_000) -> np.ndarray:
    return (0.3 * np.sin(2 * np.pi * 220 * np.arange(round(duration_s * rate)) / rate)).astype(np.float32)


def encode_recordings() -> dict[str, bytes]:
    """Return a short tone in every format that recordings come in."""
    import soundfile

    found = {}
    for name, (format_, subtype, rate) in _SOUNDFILE_KINDS.items():
        buffer = io.BytesIO()
        soundfile.write(buffer, make_tone(rate=rate), rate, format=format_, subtype=subtype)
        found[name] = buffer.getvalue()
    return found | {"tone.mp4": _with_av("mp4", "aac", 1024), "tone.webm": _with_av("webm", "libopus", 960)}


def _with_av(format_: str, codec: str, frame_samples: int) -> bytes:
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format=format_) as container:
        stream: Any = container.add_stream(codec, rate=48_000)
        stream.layout = "mono"
        for array in make_tone(12 * frame_samples / 48_000, 48_000).reshape(12, frame_samples):
            frame = av.AudioFrame.from_ndarray(array[None], format="fltp", layout="mono")
            frame.sample_rate = 48_000
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return buffer.getvalue()


@st.composite
def wav_headers(draw: Any) -> bytes:
    """Return a WAV file with a random header."""
    tag, channels, rate = (draw(st.sampled_from(choices)) for choices in (_WAV_TAGS, _CHANNELS, _RATES))
    bits = draw(st.sampled_from((0, 1, 4, 8, 12, 16, 24, 32, 64, 65_535)))
    align = draw(st.just(channels * max(bits // 8, 1) % 65_536) | st.sampled_from(_CHANNELS))
    body = struct.pack("<HHIIHH", tag, channels, rate, rate * align % 2**32, align, bits)
    body += draw(st.just(b"") | st.binary(max_size=40))
    payload = draw(st.sampled_from((b"", b"\0" * 2_000, bytes(range(256)) * 40, b"\xff\x7f" * 3_000)))
    promised = draw(st.just(len(payload)) | st.sampled_from(_CLAIMS))
    magic = draw(st.sampled_from((b"RIFF", b"RIFF", b"RIFX", b"RF64")))
    chunks = b"fmt " + struct.pack("<I", len(body)) + body
    if draw(st.booleans()):
        chunks += draw(st.sampled_from((b"fact", b"LIST", b"ds64"))) + struct.pack("<II", 4, draw(st.integers(0, 9)))
    whole = draw(st.just(len(chunks) + len(payload) + 12) | st.sampled_from(_CLAIMS))
    return magic + struct.pack("<I", whole) + b"WAVE" + chunks + b"data" + struct.pack("<I", promised) + payload


@st.composite
def flac_headers(draw: Any, frames: bytes) -> bytes:
    """Return a FLAC file with a random first block."""
    smallest, largest = (draw(st.sampled_from((0, 15, 16, 4_096, 65_535))) for _ in range(2))
    rate, channels = draw(st.sampled_from(_RATES)) % 2**20, draw(st.integers(0, 7))
    bits = draw(st.sampled_from((0, 3, 7, 15, 23, 31)))
    num_samples = draw(st.sampled_from((0, 1, 4_000, 2**31, 2**36 - 1)))
    packed = rate << 44 | channels << 41 | bits << 36 | num_samples
    info = struct.pack(">HH", smallest, largest) + bytes(6) + packed.to_bytes(8, "big") + bytes(16)
    return b"fLaC" + b"\x80" + len(info).to_bytes(3, "big") + info + draw(damaged(frames, most=2))


def recordings(world: World) -> st.SearchStrategy[bytes]:
    """Return files of any kind: invented, damaged, and random bytes."""
    frames = world.recordings["tone.flac"]
    frames = frames[frames.rindex(b"\xff\xf8") :] if b"\xff\xf8" in frames else frames[42:]
    real = damaged(*world.recordings.values())
    return real | real | wav_headers() | flac_headers(frames) | st.binary(max_size=300)


@st.composite
def audio_values(draw: Any) -> Any:
    """Return values that a program might pass as a recording: mappings, arrays, paths, anything."""
    shape = draw(st.sampled_from(((), (0,), (1,), (400,), (2, 400), (400, 2), (2, 2, 400))))
    kind = draw(st.sampled_from(("float32", "float64", "int16", "bool", "complex64", "object", "U3")))
    array = np.zeros(shape, kind)
    if draw(st.booleans()) and array.size and kind in ("float32", "float64"):
        array.flat[0] = draw(st.floats())
    samples = draw(st.just(array) | values())
    mapping = {"array": samples, "sampling_rate": draw(st.sampled_from(_RATES) | scalars()), "path": draw(scalars())}
    return draw(st.just(array) | st.just(mapping) | values() | st.fixed_dictionaries({"bytes": values()}))


def _is_a_clip(array: np.ndarray, longest_s: float) -> None:
    assert array.dtype == np.float32 and array.ndim == 1
    assert MIN_SAMPLES <= array.size <= longest_s * SAMPLING_RATE
    assert np.isfinite(array).all()


def _read_bytes(world: World, data: bytes) -> None:
    _is_a_clip(read_audio(data), 3600)


def _read_beginning(world: World, data: bytes) -> None:
    _is_a_clip(read_audio(world.write("recording", data), max_duration_s=6.0), 6)


def _read_value(world: World, value: Any) -> None:
    _is_a_clip(read_audio(value, max_duration_s=300.0), 300)


def _check_header(world: World, data: bytes) -> None:
    assert audio_duration_s(data) >= 0
    check_recording(data)
    # A recording that passes the check is decoded, or refused for its content.
    read_audio(data)


def _read_media(world: World, data: bytes) -> None:
    _is_a_clip(read_media(data, max_s=1920.0), 1921)


def _decode_recording(world: World, data: bytes) -> None:
    wav = world.folder / "decoded.wav"
    path = world.write("recording.wav", data)
    assert decode_recording(path, wav) >= 0
    assert wav.stat().st_size < 44 + 32_000 * (len(data) / 4 + 2)
    read_span(wav, 0.0, 0.01)
    read_span(path, 0.0, 0.01)


TARGETS = (
    Target("read_audio", "audio", recordings, _read_bytes, (AudioError,)),
    Target("read_audio, the beginning", "audio", recordings, _read_beginning, (AudioError,)),
    Target("read_audio, values", "audio", lambda _: audio_values(), _read_value, (AudioError, TypeError, OSError)),
    Target("check_recording", "audio", recordings, _check_header, (AudioError,)),
    Target("read_media", "audio", recordings, _read_media, (AudioError,)),
    Target("decode_recording", "audio", recordings, _decode_recording, (AudioError,)),
)
