"""Decode audio: clips of any format, recordings of any length, and spans of decoded recordings.

libsndfile decodes WAV, FLAC, OGG and MP3; PyAV (FFmpeg) decodes MP4, M4A, WebM and AAC. Channels are averaged, and
soxr resamples block by block, in constant memory, to the same samples as `read_audio`. Hours of audio in a few
kilobytes are rejected, because they would fill the disk with silence. A file shorter than its header says is an error;
this cannot be detected for an MP3 without a Xing header and for a bare AAC stream cut between two frames.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sdiareward import audio_sdiareward as audio
from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError
from sdiareward.calls.recordings import CallFiles, read_channels
from sdiareward.common.files import replace_atomically


Source = str | Path | bytes
# One second at 48 kHz, and the samples of all channels in a block; the output does not depend on either.
_BLOCK_FRAMES, _BLOCK_VALUES = 48_000, 16 * 48_000
_MAX_WAV_S = (2**32 - 2**16) / (2 * SAMPLING_RATE)
# Headers may or may not include the encoder's delay; a video may be slightly longer than its audio.
_SNDFILE_TOLERANCE_S, _MP4_TOLERANCE_S, _MATROSKA_TOLERANCE_S = 0.1, 0.3, 1.0
_END_TOLERANCE_S = 0.05
# No containers that refer to other files, such as playlists, because recordings are not trusted.
_CONTAINERS = "mov,matroska,webm,aac,mp3,ogg,flac,wav,w64,aiff,caf,asf,avi,flv,mpegts,mpeg,amr,ac3,eac3,au,ape,wv,tta"


class TruncatedAudioError(AudioError):
    """Raised for a recording that ends before the length in its header or before a requested span."""


class _Track(NamedTuple):
    """A recording being decoded: blocks `(num_frames, num_channels)` at `rate`, and its header's duration."""

    rate: int
    blocks: Iterator[np.ndarray]
    promised_s: float | None
    tolerance_s: float


def read_media(source: Source, *, name: str | None = None, max_s: float = math.inf) -> np.ndarray:
    """Read a clip of any format as 16 kHz mono, like `read_audio`; reject more than `max_s` seconds."""
    label = name or ("audio bytes" if isinstance(source, bytes) else str(source))
    blocks = [np.zeros(0, np.float32), *_decode_blocks(source, label, max_s)]
    return audio.read_audio(np.concatenate(blocks), name=label)


def decode_recording(path: str | Path, target_wav: str | Path) -> float:
    """Decode a recording of any length to a mono 16 kHz 16-bit WAV, in constant memory; return its seconds."""
    import soundfile

    with replace_atomically(Path(target_wav)) as temporary:
        with soundfile.SoundFile(temporary, "w", SAMPLING_RATE, 1, "PCM_16", format="WAV") as file:
            for block in _decode_blocks(path, str(path), _MAX_WAV_S):
                file.write(round_to_16_bits(block))
            num_samples: int = file.frames
        if not num_samples:
            raise AudioError(f"{path}: has no samples.")
    return num_samples / SAMPLING_RATE


def decode_channel(path: Path, target_wav: Path, channel: int) -> None:
    """Write a channel of a stereo recording as 16 kHz 16-bit WAV."""
    import soundfile

    samples = read_channels(CallFiles(path.stem, (path,))).samples[channel]
    with replace_atomically(target_wav) as temporary:
        soundfile.write(temporary, round_to_16_bits(samples), SAMPLING_RATE, format="WAV")


def round_to_16_bits(array: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(array * 32768), -32768, 32767).astype(np.int16)


def read_beginning(path: str, size_s: float) -> tuple[np.ndarray, float]:
    """Return the first seconds of a recording as 16 kHz mono, and its whole duration."""
    promised_s = _open_track(path, path).promised_s
    size, num_samples, blocks = round(size_s * SAMPLING_RATE), 0, [np.zeros(0, np.float32)]
    for block in _decode_blocks(path, path):
        blocks += [block] if num_samples < size else []
        num_samples += block.size
        if promised_s and num_samples >= size:
            break
    return np.concatenate(blocks)[:size], promised_s or num_samples / SAMPLING_RATE


def decode_stereo(path: str | Path, rate: int) -> Iterator[np.ndarray]:
    """Yield a recording of any length as float32 blocks `(num_frames, 2)` at `rate` Hz, in constant memory.

    Mono is copied to both channels; so is the average of more than two channels.
    """
    return _decode_blocks(path, str(path), _MAX_WAV_S, rate=rate, is_stereo=True)


def read_span(path: str | Path, start_s: float, end_s: float | None = None) -> np.ndarray:
    """Read a span of a recording, directly from a 16 kHz mono WAV or FLAC, else by decoding the file."""
    import soundfile

    longest_s = _measure(path, str(path)) / audio.MIN_BYTES_PER_S
    # `read_media` decodes what libsndfile cannot read, or raises the reason.
    with suppress(soundfile.LibsndfileError), soundfile.SoundFile(path) as file:
        is_plain = file.format in ("WAV", "WAVEX", "RF64", "FLAC") and (file.samplerate, file.channels) == (16_000, 1)
        if is_plain and 0 < file.frames <= longest_s * SAMPLING_RATE:
            start, end = locate_span(start_s, end_s, file.frames, str(path))
            if end - start > audio.MAX_RECORDING_S * SAMPLING_RATE:
                raise AudioError(f"{path}: the span from {start_s} s is longer than an hour; give a shorter one.")
            file.seek(start)
            return file.read(end - start, dtype="float32")
    array = read_media(path, max_s=audio.MAX_RECORDING_S)
    start, end = locate_span(start_s, end_s, array.size, str(path))
    return array[start:end]


def locate_span(start_s: float, end_s: float | None, num_samples: int, label: str) -> tuple[int, int]:
    """Return the first sample of a span and the one after its last, at 16 kHz."""
    start = round(start_s * SAMPLING_RATE)
    end = num_samples if end_s is None else round(end_s * SAMPLING_RATE)
    if not 0 <= start < end or end > num_samples + _END_TOLERANCE_S * SAMPLING_RATE or start >= num_samples:
        found = f"the span from {start_s} s to {end_s} s is outside the recording, which lasts"
        seconds = num_samples / SAMPLING_RATE
        raise TruncatedAudioError(f"{label}: {found} {seconds:.2f} s; check that the times belong to this recording.")
    return start, min(end, num_samples)


def _decode_blocks(
    source: Source, label: str, max_s: float = math.inf, *, rate: int = SAMPLING_RATE, is_stereo: bool = False
) -> Iterator[np.ndarray]:
    """Yield a recording as float32 blocks at `rate`, mono or stereo; raise `AudioError` at the first problem."""
    import soxr

    track = _open_track(source, label)
    if not audio.MIN_RATE <= track.rate <= audio.MAX_RATE:
        raise AudioError(f"{label}: is sampled at {track.rate} Hz; give {audio.MIN_RATE} to {audio.MAX_RATE} Hz.")
    stream = soxr.ResampleStream(track.rate, rate, 2 if is_stereo else 1, dtype="float32", quality="HQ")
    longest_s = _measure(source, label) / audio.MIN_BYTES_PER_S
    num_frames, energy, mixed_energy, num_channels = 0, 0.0, 0.0, 1

    def require_length(seconds: float) -> None:
        if seconds > max_s:
            raise AudioError(f"{label}: lasts {seconds / 3600:.2f} h; at most {max_s / 3600:.2f} h are read: cut it.")

    require_length(track.promised_s or 0)
    for block in track.blocks:
        num_frames += len(block)
        if num_frames > longest_s * track.rate:
            raise AudioError(f"{label}: has over {longest_s:.0f} s in few bytes; this cannot be recorded speech.")
        if not np.isfinite(block).all():
            raise AudioError(f"{label}: has NaN or infinite samples before {num_frames / track.rate:.1f} s.")
        require_length(num_frames / track.rate)
        if is_stereo:
            mixed = np.repeat(block.mean(axis=1, keepdims=True), 2, axis=1) if block.shape[1] != 2 else block
        else:
            mixed, num_channels = block.mean(axis=1), block.shape[1]
            energy += audio.measure_energy(block) * len(block)
            mixed_energy += audio.measure_energy(mixed) * len(block)
        yield mixed if track.rate == rate else stream.resample_chunk(np.ascontiguousarray(mixed))
    if num_channels > 1 and energy:
        audio.require_mix(energy, mixed_energy, num_channels, label)
    decoded_s = num_frames / track.rate
    if track.promised_s is not None and decoded_s < track.promised_s - track.tolerance_s:
        raise _cut_off(label, f"its header promises {track.promised_s:.1f} s", decoded_s)
    if track.rate != rate:
        yield stream.resample_chunk(np.zeros((0, 2) if is_stereo else 0, np.float32), last=True)


def _measure(source: Source, label: str) -> int:
    """Return the bytes of a recording; raise if it is missing or empty."""
    if not isinstance(source, bytes) and not Path(source).is_file():
        raise FileNotFoundError(f"{label}: no such audio file.")
    num_bytes = len(source) if isinstance(source, bytes) else Path(source).stat().st_size
    if not num_bytes:
        raise AudioError(f"{label}: is empty (0 bytes); fetch or export it again.")
    return num_bytes


def _open_track(source: Source, label: str) -> _Track:
    import soundfile

    num_bytes = _measure(source, label)
    content = audio.open_stream(_handle(source))
    content.name = ""
    try:
        with suppress(soundfile.LibsndfileError):
            return _open_with_sndfile(audio.open_for_one_pass(content), content, source, num_bytes, label)
        # GSM has no header; the extension identifies it.
        return _open_with_sndfile(audio.open_for_one_pass(_handle(source)), content, source, num_bytes, label)
    except soundfile.LibsndfileError as error:
        return _open_with_av(source, label, error.error_string)


def _handle(source: Source) -> Any:
    return io.BytesIO(source) if isinstance(source, bytes) else str(source)


def _open_with_sndfile(file: Any, content: Any, source: Source, num_bytes: int, label: str) -> _Track:
    import soundfile

    def read_blocks() -> Iterator[np.ndarray]:
        num_frames, block_frames = 0, max(1, min(_BLOCK_FRAMES, _BLOCK_VALUES // file.channels))
        problem = _find_missing_end(source, num_bytes)
        with content, file:
            try:
                while (block := file.read(block_frames, dtype="float32", always_2d=True)).size:
                    num_frames += len(block)
                    yield block
            except soundfile.LibsndfileError as error:
                raise _cut_off(label, f"libsndfile cannot continue ({error})", num_frames / file.samplerate) from error
            if file.format in audio.PROMISING and (num_more := audio.count_more_bytes(content)):
                problem = f"{num_more} bytes follow the end given in its header"
            if problem:
                raise _cut_off(label, problem, num_frames / file.samplerate)

    # A header written to a pipe has no length, or an impossible one.
    promised_s = file.frames / file.samplerate
    is_believable = promised_s <= num_bytes / audio.MIN_BYTES_PER_S
    return _Track(file.samplerate, read_blocks(), promised_s if is_believable else None, _SNDFILE_TOLERANCE_S)


def _find_missing_end(source: Source, num_bytes: int) -> str | None:
    """Return the problem of a truncated WAV, AIFF or OGG file, which libsndfile ignores."""
    with io.BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb") as file:
        head = file.read(8)
        # A page of OGG has at most 65,307 bytes.
        file.seek(max(0, num_bytes - 65_536))
        last_page = file.read().rpartition(b"OggS")[2]
    if head[:4] in (b"RIFF", b"FORM"):
        promised = int.from_bytes(head[4:8], "little" if head[:4] == b"RIFF" else "big")
        # Files from a pipe have 0, the largest number, or just under 2 GiB of samples (SoX, arecord).
        is_unknown = promised in (0, 2**32 - 1) or -(2**12) <= promised - 2**31 < 2**7
        if not is_unknown and num_bytes + 64 < promised + 8:
            return f"its header says {promised + 8} bytes, but it has {num_bytes}"
    # Bit 2 of the flags marks the last page.
    is_cut = head[:4] == b"OggS" and (len(last_page) < 2 or not last_page[1] & 4)
    return "its last OGG page is missing" if is_cut else None


def _open_with_av(source: Source, label: str, sndfile_error: str) -> _Track:
    try:
        import av
    except ImportError as error:
        raise AudioError(f"{label}: libsndfile cannot decode it ({sndfile_error}); `pip install av`.") from error
    try:
        container = av.open(_handle(source), options={"format_whitelist": _CONTAINERS})
    except (av.error.FFmpegError, ValueError) as error:
        raise AudioError(f"{label}: not audio, or damaged ({sndfile_error} {error}).") from error
    stream = next(iter(container.streams.audio), None)
    if stream is None or stream.codec_context is None:
        container.close()
        problem = "has no audio track" if stream is None else "has a track that FFmpeg cannot decode"
        raise AudioError(f"{label}: {problem}; give a recording.")
    promised_s, tolerance_s, rate = None, 0.0, stream.codec_context.sample_rate or 0
    # In other containers, FFmpeg only estimates the duration.
    if "mp4" in container.format.name and stream.duration:
        promised_s, tolerance_s = float(stream.duration * stream.time_base), _MP4_TOLERANCE_S
    elif "matroska" in container.format.name and container.duration:
        promised_s, tolerance_s = container.duration / 1e6, _MATROSKA_TOLERANCE_S

    def read_blocks() -> Iterator[np.ndarray]:
        # Planar floats at the track's rate; mixing and resampling are the same as for other formats.
        resampler = av.AudioResampler(format="fltp", rate=rate)
        num_frames = 0
        with container:
            try:
                for frame in (frame for decoded in container.decode(audio=0) for frame in resampler.resample(decoded)):
                    num_frames += frame.samples
                    yield frame.to_ndarray().T
            except (av.error.FFmpegError, ValueError) as error:
                raise _cut_off(label, f"FFmpeg cannot continue ({error})", num_frames / rate) from error

    return _Track(rate, read_blocks(), promised_s, tolerance_s)


def _cut_off(label: str, found: str, decoded_s: float) -> TruncatedAudioError:
    return TruncatedAudioError(f"{label}: {found}; {decoded_s:.1f} s could be decoded; fetch or export it again.")
