"""Reading recordings: what libsndfile can decode here, and the optional FFmpeg and torchcodec."""

from __future__ import annotations

import io
import shutil
import subprocess
from importlib import import_module, metadata

from .findings import FAILED, PASSED, SKIPPED, WARNING, Check, Outcome, Settings, reason_of
from .packages import import_of


# Format and coding in libsndfile's words, as recordings of turns come.
_FORMATS: dict[str, tuple[str, str]] = {
    "WAV": ("WAV", "PCM_16"),
    "FLAC": ("FLAC", "PCM_16"),
    "OGG/Vorbis": ("OGG", "VORBIS"),
    "OGG/Opus": ("OGG", "OPUS"),
    "MP3": ("MP3", "MPEG_LAYER_III"),
}
# Without these nothing that the package writes or brings can be read.
_NEEDED = ("WAV", "FLAC")
_RATE = 16_000
_UPGRADE = "libsndfile 1.1 or later knows all of them: pip install --upgrade soundfile"


def sound_checks() -> list[Check]:
    """Return the checks of what reads recordings."""
    soundfile = import_of("soundfile")
    return [
        Check("sound", "libsndfile", _libsndfile, needs=(soundfile,)),
        Check("sound", "FFmpeg", _ffmpeg),
        Check("sound", "torchcodec", _torchcodec, needs=(import_of("torch"),)),
    ]


def _libsndfile(_: Settings) -> Outcome:
    import soundfile

    failed = {name: reason for name, form in _FORMATS.items() if (reason := _round_trip(*form))}
    version = soundfile.__libsndfile_version__
    details = {"version": version, "failed": failed}
    if not failed:
        return Outcome(PASSED, f"{version}: reads and writes {', '.join(_FORMATS)}", details=details)
    found = f"{version}: cannot write and read {'; '.join(f'{name} ({why})' for name, why in failed.items())}"
    status = FAILED if failed.keys() & set(_NEEDED) else WARNING
    return Outcome(status, found, _UPGRADE, details=details)


def _round_trip(file_format: str, subtype: str) -> str | None:
    """Write and read a second of a tone; return what went wrong."""
    import numpy as np
    import soundfile

    tone = 0.3 * np.sin(2 * np.pi * 440 * np.arange(_RATE) / _RATE)
    buffer = io.BytesIO()
    try:
        soundfile.write(buffer, tone, _RATE, format=file_format, subtype=subtype)
        buffer.seek(0)
        array, rate = soundfile.read(buffer)
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        return reason_of(error)
    # Lossy codecs change samples and add a little at the ends; a tone stays about as loud.
    is_same = rate == _RATE and abs(len(array) - _RATE) < _RATE / 4 and abs(array.std() / tone.std() - 1) < 0.2
    return None if is_same else f"gave {len(array)} samples at {rate} Hz for {_RATE}, not the same sound"


def _ffmpeg(_: Settings) -> Outcome:
    program = shutil.which("ffmpeg")
    if program is None:
        would = "not installed; optional: torchcodec loads its libraries; the extra `build` brings its own with PyAV"
        return Outcome(SKIPPED, would)
    done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=20)
    first = done.stdout.partition("\n")[0].partition(" Copyright")[0]
    if done.returncode:
        return Outcome(WARNING, f"{program} does not run: {done.stderr.strip()}", "install it again, or uninstall it")
    return Outcome(PASSED, first, details={"program": program})


def _torchcodec(_: Settings) -> Outcome:
    try:
        version = metadata.version("torchcodec")
    except metadata.PackageNotFoundError:
        would = "not installed; optional: `datasets` decodes columns of audio with it, this package decodes by itself"
        return Outcome(SKIPPED, would)
    try:
        import_module("torchcodec.decoders")
    except (ImportError, OSError, RuntimeError) as error:
        remedy = "install the torchcodec that belongs to this torch, and FFmpeg; or uninstall it"
        return Outcome(WARNING, f"{version} cannot be loaded: {reason_of(error)}", remedy)
    return Outcome(PASSED, version)
