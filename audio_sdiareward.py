"""Read recordings as mono float32 arrays, without torch.

The one place where audio enters the package: the processor reads turns through it and so does `dataset_builder`, which
therefore imports neither torch nor the model. The file travels to the Hub beside the processor that imports it.

Decoding is libsndfile's (WAV, FLAC, OGG/Vorbis, OGG/Opus, MP3), resampling is soxr's at its high quality setting, as
the published model's inputs were.

No file is trusted: a few kilobytes can hold hours of silence, or a header that claims them. The decoded size of a
recording is checked before it is decoded, so it never takes more than a few hundred megabytes. Files and bytes are
decoded in one way, by their content: libsndfile takes a text named `x.vox` for sound.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np


SAMPLING_RATE = 16_000
# The audio tower halves the frames twice: two frames (320 samples) leave no token, one sample more leaves one.
MIN_SAMPLES = 321
# Telephones begin at 8 kHz, the fastest converters end at 768 kHz; another rate is a damaged header, or is meant to
# make hours of sound of a few samples.
MIN_RATE, MAX_RATE = 1_000, 768_000
# Longer recordings are decoded piece by piece, by `dataset_builder.pipeline.media`.
MAX_RECORDING_S = 3600.0
# Of all channels together: 256 MB of float32.
_MAX_VALUES = 2**26
# Full scale is 1; decoders of compressed sound go somewhat beyond it, integers taken for floats far beyond.
MAX_AMPLITUDE = 10.0
# The mean of unrelated channels has this multiple of `mean energy / num_channels`, of one voice on all more.
_MIN_MIXED_ENERGY = 0.1
_MAX_QUOTED = 200
# Shorter texts are names of files.
_MIN_BASE64 = 256
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+=?=?\s*")
# Digital silence and the dither of a 16-bit file are below this, -70 dB of full scale.
_SILENCE_PEAK = 10 ** (-70 / 20)
# Turns that a notice names; further ones are counted.
_NUM_NAMED = 3
# Beyond a truncation point the resampler still looks at its neighbourhood.
_RESAMPLER_MARGIN_S = 0.1
# The chunks before the samples are in the first bytes of a file. Of a header that gives 0 bytes, so many are believed.
_HEADER_BYTES, _MAX_BYTES = 2**16, 2**29
# Formats whose length libsndfile takes from a header; of the others it believes no more than their bytes.
PROMISING = ("FLAC", "MP3", "OGG")
# A longer recording in so few bytes is a wrong header: speech takes at least 80 bytes per second, silence 20.
MIN_BYTES_PER_S = 4
# More than tags after the last frame is a second recording, or a header that counts too few. Tags with a cover are
# APE's: the footer is within the last bytes.
_MAX_TAG_BYTES, _FOOTER_BYTES, _FOOTER = 2**11, 160, b"APETAGEX"
_BLOCK_FRAMES = 4096
# What libsndfile says without the name of the file, which for bytes would be an address in memory.
_UNDECODABLE = "cannot be decoded as audio ({}); use WAV, FLAC, OGG or MP3."


class AudioError(ValueError):
    """Raised for audio that exists but cannot be scored: undecodable, empty, too short, or not finite."""


@dataclass(frozen=True)
class Heard:
    """What the model hears of the recordings of a dialogue; turns count from 1, without a system turn.

    Args:
        given_s (`float`): Seconds of all recordings.
        heard_s (`float`): Seconds of them that the model hears: `max_turn_s` of each at most.
        num_recordings (`int`): How many there are.
        cut_turns (`tuple[int, ...]`): Turns with a recording that the model hears only the beginning of.
        silent_turns (`tuple[int, ...]`): Turns in whose recordings it hears nothing.
    """

    given_s: float = 0.0
    heard_s: float = 0.0
    num_recordings: int = 0
    cut_turns: tuple[int, ...] = ()
    silent_turns: tuple[int, ...] = ()


def describe_unheard(heard: Iterable[tuple[str, Heard]]) -> list[str]:
    """Return a notice on turns that are cut and one on silent turns, as far as there are any.

    Args:
        heard (`Iterable[tuple[str, Heard]]`): The name of each dialogue, which may be empty, and what is heard of it.
    """
    heard = list(heard)
    cut = [f"{name} turn {turn}".strip() for name, each in heard for turn in each.cut_turns]
    silent = [f"{name} turn {turn}".strip() for name, each in heard for turn in each.silent_turns]
    heard_s, given_s = (sum(getattr(each, field) for _, each in heard) for field in ("heard_s", "given_s"))
    notices = (
        (cut, f"turns cut: the model hears {heard_s:.1f} of {given_s:.1f} s"),
        (silent, "silent turns: nothing above -70 dB of full scale is heard"),
    )
    return [
        f"{len(turns)} {told} ({', '.join(turns[:_NUM_NAMED])}{', ...' * (len(turns) > _NUM_NAMED)})"
        for turns, told in notices
        if turns
    ]


def is_silent(array: np.ndarray) -> bool:
    """Return whether no sample reaches -70 dB of full scale, or all are equal to that precision: a constant offset.

    Args:
        array (`np.ndarray` of shape `(num_samples,)`): Mono signal of full scale 1.
    """
    return array.size == 0 or float(min(np.abs(array).max(), np.ptp(array))) < _SILENCE_PEAK


def resample(array: np.ndarray, sampling_rate: int, target_sampling_rate: int = SAMPLING_RATE) -> np.ndarray:
    """Resample a mono array with soxr.

    Args:
        array (`np.ndarray` of shape `(num_samples,)`): Mono signal.
        sampling_rate (`int`): Rate of `array`, in Hz.
        target_sampling_rate (`int`, *optional*, defaults to 16000): Rate of the result, in Hz.

    Returns:
        `np.ndarray` of shape `(ceil(num_samples * target / rate),)`, float32.
    """
    if sampling_rate == target_sampling_rate:
        return np.ascontiguousarray(array, dtype=np.float32)
    import soxr

    return soxr.resample(np.asarray(array, dtype=np.float32), sampling_rate, target_sampling_rate, quality="HQ")


@dataclass(frozen=True, eq=False)
class Clip:
    """A recording as it is given. Opened once, it gives its samples, its duration and its digest from the same bytes.

    Args:
        source (`str`, `Path`, `bytes`, mapping, decoder or `np.ndarray`): Anything `read_audio` takes.
        sampling_rate (`int`, *optional*): Rate of an array, in Hz; by default the rate at which it is read.
    """

    source: Any
    sampling_rate: int | None = None

    def __repr__(self) -> str:
        """Return what a row shows of a recording, such as `3.2 s, 16 kHz, FLAC`."""
        try:
            handle, label, array, rate = open_source(self.source, self.sampling_rate or SAMPLING_RATE)
            if array is not None:
                return f"{array.shape[-1] / rate:.1f} s, {rate / 1000:g} kHz"
            with open_encoded(handle, label) as file:
                return f"{file.frames / file.samplerate:.1f} s, {file.samplerate / 1000:g} kHz, {file.format}"
        except (ValueError, OSError, TypeError) as error:
            return f"unreadable: {str(error)[:_MAX_QUOTED]}"

    def _repr_html_(self) -> str:
        """Return a player for a notebook, which has the recording inside."""
        import soundfile

        file = io.BytesIO()
        soundfile.write(file, self.read(), SAMPLING_RATE, format="FLAC")
        return f'<audio controls src="data:audio/flac;base64,{base64.b64encode(file.getvalue()).decode()}"></audio>'

    def read(
        self,
        *,
        sampling_rate: int = SAMPLING_RATE,
        max_duration_s: float | None = None,
        longest_s: float = MAX_RECORDING_S,
        name: str | None = None,
    ) -> np.ndarray:
        """Return the samples as `read_audio` does; `longest_s` is what is refused if nothing is cut."""
        handle, label, array, rate = open_source(self.source, self.sampling_rate or sampling_rate)
        label = name or label
        if array is None:
            with _open_bytes(handle) as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
                with open_encoded(content, label) as file:
                    array, rate = _read_frames(file, label, max_duration_s, longest_s), file.samplerate
                    vars(self).update(duration_s=file.frames / rate, digest=digest)
        elif max_duration_s is not None:
            array = array[..., : math.ceil((max_duration_s + _RESAMPLER_MARGIN_S) * rate)]
        return _make_mono(array, rate, sampling_rate, max_duration_s, label)

    @cached_property
    def duration_s(self) -> float:
        """Seconds of the whole recording."""
        handle, label, array, rate = open_source(self.source, self.sampling_rate or SAMPLING_RATE)
        if array is not None:
            _require_rate(rate, label)
            return array.shape[-1] / rate
        with open_encoded(handle, label) as file:
            return file.frames / file.samplerate

    @cached_property
    def digest(self) -> str:
        """Hash of the encoded bytes as they are, or of the samples with their rate and shape."""
        handle, _, array, rate = open_source(self.source, self.sampling_rate or SAMPLING_RATE)
        if array is not None:
            samples = array.astype("float32").tobytes()
            return hashlib.sha256(f"{rate} {array.shape} ".encode() + samples).hexdigest()
        with _open_bytes(handle) as content:
            return hashlib.file_digest(content, "sha256").hexdigest()


def audio_duration_s(source: Any) -> float:
    """Return the duration of a recording in seconds, from its header where there is one.

    Args:
        source: Anything `read_audio` takes.

    Raises:
        FileNotFoundError: The path does not exist.
        AudioError: The header cannot be read.
    """
    return Clip(source).duration_s


def read_audio(
    source: Any, *, sampling_rate: int = SAMPLING_RATE, max_duration_s: float | None = None, name: str | None = None
) -> np.ndarray:
    """Read one recording as a mono float32 array at `sampling_rate`.

    Channels are averaged. Longer recordings are cut to their first `max_duration_s` seconds before they are decoded
    whole, so a long file costs little more than its beginning; without it, at most an hour is read. Of several Ogg
    streams in one file the first is read.

    Args:
        source (`str`, `Path`, `bytes`, mapping, decoder or `np.ndarray`):
            A file; an encoded file in memory, or in base64 or a `data:` URL; `{"bytes", "path"}` as
            `datasets.Audio(decode=False)` gives it; the decoder that `datasets.Audio()` gives;
            `{"array", "sampling_rate"}`; or a mono array or tensor that already has `sampling_rate`. Arrays have their
            channels first, and hold floats of full scale 1, or integers of 8, 16 or 32 bits, which are scaled;
            integers in lists have 16 bits.
        sampling_rate (`int`, *optional*, defaults to 16000): Rate of the result, in Hz.
        max_duration_s (`float`, *optional*): Cut to this many seconds; `None` keeps everything, up to an hour.
        name (`str`, *optional*): What to call the recording in an error, for instance `"row 3, chosen turn 2"`.

    Returns:
        `np.ndarray` of shape `(num_samples,)`, float32, finite, at least `MIN_SAMPLES` long.

    Raises:
        FileNotFoundError: The path does not exist.
        AudioError: The recording is undecodable, empty, shorter than one audio token, longer than an hour, sampled at
            a rate that no recording has, too large, not finite, or beyond `MAX_AMPLITUDE`; or its channels cancel.
        TypeError: `source` is none of the accepted types.

    Examples:
        >>> import numpy as np
        >>> from sdiareward import read_audio
        >>> tone = np.sin(np.arange(8_000) / 10)
        >>> read_audio({"array": tone, "sampling_rate": 8_000}).shape
        (16000,)
    """
    return Clip(source).read(sampling_rate=sampling_rate, max_duration_s=max_duration_s, name=name)


def _make_mono(
    array: np.ndarray, rate: int, sampling_rate: int, max_duration_s: float | None, label: str
) -> np.ndarray:
    """Return decoded samples, mono at `sampling_rate`; raise for what cannot be scored."""
    _require_rate(rate, label)
    if array.ndim == 2:
        array = _mix(array, label)
    if array.size == 0:
        raise AudioError(f"{label}: has no samples; a turn needs at least {MIN_SAMPLES} samples at 16 kHz.")
    if not np.isfinite(array).all():
        raise AudioError(f"{label}: holds NaN or infinite samples; export the recording again.")
    peak = max(array.max(), -array.min())
    if peak > MAX_AMPLITUDE:
        raise AudioError(f"{label}: its samples reach {peak:.3g}; full scale is 1, scale them down.")
    array = resample(array, rate, sampling_rate)
    if max_duration_s is not None:
        array = array[: round(max_duration_s * sampling_rate)]
    if array.size * SAMPLING_RATE < MIN_SAMPLES * sampling_rate:
        lasts_ms = array.size / sampling_rate * 1000
        raise AudioError(f"{label}: lasts {lasts_ms:.1f} ms; more than 20 ms is needed for one audio token.")
    return array


def open_source(source: Any, sampling_rate: int = SAMPLING_RATE) -> tuple[Any, str, np.ndarray | None, int]:
    """Return the form in which a recording is given, without decoding it.

    Args:
        source: Anything `read_audio` takes.
        sampling_rate (`int`, *optional*, defaults to 16000): Rate of an array that comes without one, in Hz.

    Returns:
        `tuple`: A path or a file in memory (None for samples), what to call it, samples (None for what still has to be
        decoded), and their rate.

    Raises:
        FileNotFoundError: The path does not exist.
        TypeError: `source` is none of the accepted types.
    """
    if hasattr(source, "cpu"):
        source = source.detach().cpu().numpy()
    if isinstance(source, np.ndarray):
        if source.ndim != 1:
            raise TypeError(f"an audio array must be mono, shape (num_samples,); got shape {source.shape}.")
        return None, "audio array", _scale(source), sampling_rate
    if hasattr(source, "get_all_samples"):
        # A decoder of torchcodec, as `datasets` gives a recording that is not left encoded.
        try:
            samples = source.get_all_samples()
            source = {"array": samples.data.numpy(), "sampling_rate": samples.sample_rate}
        except RuntimeError:
            # torchcodec 0.13 reads a FLAC file of one frame only once; `datasets` keeps what a decoder was made from.
            if not hasattr(source, "_hf_encoded"):
                raise
            source = source._hf_encoded
    if isinstance(source, Mapping):
        if source.get("array") is not None:
            return None, str(source.get("path") or "audio array")[:_MAX_QUOTED], *_samples(source)
        if source.get("bytes") is not None:
            return io.BytesIO(source["bytes"]), str(source.get("path") or "audio bytes")[:_MAX_QUOTED], None, 0
        if source.get("path") is None:
            found = ", ".join(map(str, source))[:_MAX_QUOTED]
            raise TypeError(f"an audio mapping has 'bytes', 'path' or 'array'; got the keys {found or 'none'}.")
        source = source["path"]
    if isinstance(source, bytes):
        return io.BytesIO(source), "audio bytes", None, 0
    if isinstance(source, str) and (encoded := decode_base64(source)) is not None:
        return io.BytesIO(encoded), "audio in base64", None, 0
    if isinstance(source, (str, os.PathLike)):
        path = find_file(source)
        if path is None:
            remedy = "; download it first" if str(source).startswith(("http://", "https://")) else ""
            remedy = "; write its path with forward slashes" if "\\" in repr(str(source)) else remedy
            raise FileNotFoundError(f"{str(source)[:_MAX_QUOTED]}: no such audio file{remedy}.")
        return str(path), str(path), None, 0
    raise TypeError(f"audio must be a path, bytes, an array or a mapping with one; got {type(source).__name__}.")


def decode_base64(text: str) -> bytes | None:
    """Return the bytes of a `data:` URL or of a long text in base64, wrapped in lines or not; None for a path.

    Raises:
        AudioError: A `data:` URL is not in base64.
    """
    is_url = text[:5].lower() == "data:"
    if not is_url and (len(text) < _MIN_BASE64 or not _BASE64.fullmatch(text)):
        return None
    try:
        return read_base64(text)
    except AudioError:
        if is_url:
            raise
        return None


def read_base64(text: str) -> bytes:
    """Return the bytes of a text in base64 or a `data:` URL; the text may be wrapped in lines.

    Raises:
        AudioError: It is not in base64.
    """
    try:
        return base64.b64decode("".join(text.rpartition(",")[2].split()), validate=True)
    except ValueError as error:
        raise AudioError(f"{text[:40]!r} is not base64 ({error}); encode the bytes of the file.") from error


def find_file(path: str | os.PathLike[str]) -> Path | None:
    """Return the file of a path or `file://` URL; its name may be composed in another way, as macOS and zips do."""
    text = strip_scheme(path)
    found = Path(text)
    try:
        if found.is_file():
            return found
        if text.isascii():
            return None
        place = Path(found.anchor)
        for part in found.relative_to(place).parts:
            if not (following := place / part).exists():
                names = os.listdir(place)
                following = place / next(name for name in names if compose(name) == compose(part))
            place = following
        return place if place.is_file() else None
    # A name that is too long, holds a zero byte, or is in no folder.
    except (OSError, ValueError, StopIteration):
        return None


def strip_scheme(path: str | os.PathLike[str]) -> str:
    """Return the path of a `file://` URL; another path as it is."""
    text = os.fspath(path)
    return unquote(text.removeprefix("file://")) if text.startswith("file://") else text


def compose(name: str) -> str:
    """Return a name in the composed form of Unicode."""
    return unicodedata.normalize("NFC", name)


def _mix(array: np.ndarray, label: str) -> np.ndarray:
    """Return the mean of the channels, shape `(num_samples,)`."""
    if len(array) == 1:
        # The mean would be a copy.
        return array[0]
    mixed: np.ndarray = array.mean(axis=0)
    if array.size:
        require_mix(measure_energy(array), measure_energy(mixed), len(array), label)
    return mixed


def measure_energy(array: np.ndarray) -> float:
    """Return the mean of the squared samples."""
    return float(np.square(array, dtype=np.float64).mean())


def require_mix(energy: float, mixed: float, num_channels: int, label: str) -> None:
    """Raise unless the mean of channels has the energy that unrelated channels would leave it.

    Args:
        energy (`float`): Mean energy of all channels.
        mixed (`float`): Energy of their mean.
        num_channels (`int`): Number of channels.
        label (`str`): What to call the recording in an error.

    Raises:
        AudioError: The channels cancel.
    """
    if math.isfinite(energy) and mixed * num_channels < _MIN_MIXED_ENERGY * energy:
        found = f"its {num_channels} channels cancel, their mean has {mixed / energy:.1%} of their energy"
        raise AudioError(f"{label}: {found}; give one channel, or invert one of them.")


def _samples(source: Mapping[str, Any]) -> tuple[np.ndarray, int]:
    """Return the samples and the rate of a mapping that holds an array, channels first where it has some."""
    if not source.get("sampling_rate"):
        raise TypeError("an audio mapping with 'array' needs 'sampling_rate' in Hz.")
    try:
        array, rate = _scale(source["array"]), int(source["sampling_rate"])
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise TypeError(f"an audio mapping's 'array' and 'sampling_rate' must be numbers ({error}).") from error
    if array.ndim not in (1, 2):
        raise TypeError(f"an audio array has one or two dimensions; got shape {array.shape}.")
    if array.ndim == 2 and array.shape[0] > array.shape[1]:
        raise TypeError(f"an audio array has its channels first; got shape {array.shape}: transpose it.")
    return array, rate


def _scale(values: Any) -> np.ndarray:
    """Return samples as float32 of full scale 1; integers, as `scipy.io.wavfile` gives them, are divided by theirs."""
    if np.ma.isMaskedArray(values):
        raise TypeError("the samples are a masked array; fill it")
    array = np.asarray(values.detach().cpu() if hasattr(values, "cpu") else values)
    if isinstance(values, (list, tuple)) and array.dtype.kind == "i" and array.size:
        array = array.astype(np.int16) if max(array.max(), -1 - array.min()) < 2**15 else array
    if array.dtype.kind == "f":
        return array.astype(np.float32, copy=False)
    if array.dtype == np.uint8:
        return (array / 128 - 1).astype(np.float32)
    if array.dtype.kind == "i" and array.dtype.itemsize <= 4:
        return (array / -float(np.iinfo(array.dtype).min)).astype(np.float32)
    raise TypeError(f"samples are {array.dtype}; give floats of full scale 1, or integers of 8, 16 or 32 bits")


def _require_rate(rate: int, label: str) -> None:
    if not MIN_RATE <= rate <= MAX_RATE:
        raise AudioError(f"{label}: is sampled at {rate} Hz; give a recording at {MIN_RATE} to {MAX_RATE} Hz.")


def _read_frames(file: Any, label: str, max_duration_s: float | None, longest_s: float) -> np.ndarray:
    """Return the samples at the file's own rate, shape `(num_channels, num_samples)`."""
    rate = file.samplerate
    _require_rate(rate, label)
    num_frames = file.frames
    if max_duration_s is not None:
        num_frames = min(num_frames, math.ceil((max_duration_s + _RESAMPLER_MARGIN_S) * rate))
    elif num_frames > longest_s * rate:
        raise AudioError(f"{label}: lasts {num_frames / rate:.1f} s; at most {longest_s:g} s are read: cut it.")
    if num_frames * file.channels > _MAX_VALUES:
        found = f"has {file.channels} channels of {num_frames} samples at {rate} Hz"
        raise AudioError(f"{label}: {found}; at most {_MAX_VALUES} samples are read: cut it, or give one channel.")
    samples: np.ndarray = file.read(num_frames, dtype="float32", always_2d=True).T
    return samples


def _open_bytes(handle: Any) -> Any:
    return io.FileIO(handle) if isinstance(handle, str) else handle


@contextmanager
def open_encoded(handle: Any, label: str) -> Iterator[Any]:
    """Open an encoded recording as a `soundfile.SoundFile`; its content alone decides how it is decoded.

    Args:
        handle (`str` or binary file): What `open_source` gives: a path, or a file in memory.
        label (`str`): What to call the recording in an error.

    Raises:
        AudioError: It cannot be decoded.
    """
    import soundfile

    with open_stream(handle) as content:
        # Without a name, by whose ending libsndfile would guess.
        content.name = ""
        try:
            whole = content if _has_its_length(content, label) else _decode_to_end(content, label)
            whole.seek(0)
            with soundfile.SoundFile(whole) as file:
                yield file
        except soundfile.LibsndfileError as error:
            raise AudioError(f"{label}: {_UNDECODABLE.format(error.error_string)}") from error


def _has_its_length(content: Any, label: str) -> bool:
    """Return whether a recording reaches as far as its header says; one from a pipe has none, a damaged one less."""
    import soundfile

    with soundfile.SoundFile(content) as file:
        _require_rate(file.samplerate, label)
        if file.format not in PROMISING:
            return True
        try:
            file.seek(max(file.frames - 1, 0))
            is_reached = len(file.read(1)) == 1
        except soundfile.LibsndfileError:
            return False
        seconds = file.frames / file.samplerate
        if is_reached and count_more_bytes(content):
            raise AudioError(f"{label}: continues after the {seconds:.1f} s of its header; export it again.")
        return is_reached and seconds <= content.seek(0, os.SEEK_END) / MIN_BYTES_PER_S


def count_more_bytes(content: Any) -> int:
    """Return how many bytes follow those that were read of an open file; 0 if they can be tags."""
    num_read, size = content.tell(), content.seek(0, os.SEEK_END)
    content.seek(max(0, size - _FOOTER_BYTES))
    return 0 if size - num_read <= _MAX_TAG_BYTES or _FOOTER in content.read() else size - num_read


def _decode_to_end(content: Any, label: str) -> Any:
    """Return a recording of unknown length as a WAV file in memory, with its samples counted."""
    import soundfile

    content.seek(0)
    copy, blocks, room = io.BytesIO(), [], _MAX_VALUES
    with open_for_one_pass(content) as file:
        try:
            while (block := file.read(_BLOCK_FRAMES, dtype="float32", always_2d=True)).size:
                blocks.append(block)
                room -= block.size
                if room < 0:
                    raise AudioError(f"{label}: its header has no true length, and it is too long without; cut it.")
        except soundfile.LibsndfileError as error:
            after_s = sum(map(len, blocks)) / file.samplerate
            reason = f"is damaged or cut off after {after_s:.1f} s ({error.error_string}); fetch or export it again."
            raise AudioError(f"{label}: {reason}") from error
        samples = np.concatenate(blocks or [np.zeros((0, file.channels), dtype=np.float32)])
        soundfile.write(copy, samples, file.samplerate, "FLOAT", format="WAV")
    return copy


def open_for_one_pass(content: Any) -> Any:
    """Open a recording as a `soundfile.SoundFile` that never seeks and so needs no true length.

    `SoundFile.read` seeks after each block, where an MP3 decoder loses its state.

    Args:
        content (`str` or binary file): A path, or an open file.
    """
    import soundfile

    class OnePass(soundfile.SoundFile):
        def seekable(self) -> bool:
            return False

    return OnePass(content)


def open_stream(handle: Any) -> Any:
    """Open a recording as bytes.

    A stream that was never closed has a WAV header with 0 bytes of samples and a wrong file size: its samples last to
    the end of the file. libsndfile estimates the length of an MP3 stream without a frame count from the first bit
    rate: the stream gets a count that is large enough.

    Args:
        handle (`str` or binary file): What `open_source` gives.
    """
    content = _open_bytes(handle)
    size, place = content.seek(0, os.SEEK_END), 12
    content.seek(0)
    head = content.read(_HEADER_BYTES)
    # What replaces the first bytes, and how many.
    mended, skipped = _count_frames(head)
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        while head[place : place + 4] not in (b"data", b""):
            chunk_bytes = int.from_bytes(head[place + 4 : place + 8], "little")
            place += 8 + chunk_bytes + chunk_bytes % 2
        is_closed = int.from_bytes(head[4:8], "little") + 8 == size
        if not is_closed and head[place + 4 : place + 8] == bytes(4) and place + 8 < size:
            mended, skipped = head[: place + 4] + b"\xff" * 4, place + 8
    if mended and size <= _MAX_BYTES:
        with content:
            content.seek(skipped)
            return io.BytesIO(mended + content.read())
    content.seek(0)
    return content


def _count_frames(head: bytes) -> tuple[bytes, int]:
    """Return the beginning of an MP3 stream with a Xing frame where it has none, and its length without."""
    # The tag of ID3 gives its size in four times seven bits.
    tag_bytes = 10 + sum(byte << 7 * (3 - index) for index, byte in enumerate(head[6:10]))
    begin = tag_bytes if head[:3] == b"ID3" else 0
    frame = head[begin : begin + 64]
    # Sync, layer III, and a sampling rate.
    if len(frame) < 64 or frame[0] != 0xFF or frame[1] & 0xE6 != 0xE2 or frame[2] & 0x0C == 0x0C:
        return b"", 0
    is_first, is_mono = bool(frame[1] & 8), frame[3] >> 6 == 3
    place = 4 + ((17 if is_mono else 32) if is_first else (9 if is_mono else 17))
    if frame[place : place + 4] in (b"Xing", b"Info") or frame[36:40] == b"VBRI":
        return b"", 0
    rate = (44_100, 48_000, 32_000)[frame[2] >> 2 & 3] >> (0 if is_first else 1 if frame[1] & 16 else 2)
    # At bit rate 9 of the standard's table, without a checksum.
    num_bytes = (144 * 128_000 if is_first else 72 * 80_000) // rate
    header = bytes([0xFF, frame[1] | 1, 9 << 4 | frame[2] & 0x0C, frame[3]])
    count = header.ljust(place, b"\0") + b"Xing" + bytes([0, 0, 0, 1]) + b"\xff" * 4
    return head[:begin] + count.ljust(num_bytes, b"\0"), begin
