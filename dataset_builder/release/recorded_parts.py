"""Find and read the recordings that the references of a data set name, in the user's copies of the corpora.

The samples are those that the build read: clips and spans of files as they are; enhanced clips and spans of long
recordings (`youtube`, `folder`) from the pipeline's 16-bit copy. Spans of short files of `folder` are read that way
too, which changes a sample by at most half a step of 16 bits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError
from sdiareward.common.files import write_file
from sdiareward.dataset_builder.episodes import Part, SkipError, split_reference
from sdiareward.pairs.schema import make_stable_id

from ..pairing.pairing import read_file_version, read_part, read_whole
from ..pipeline.inspection import SilentAudioError, require_sound
from ..pipeline.media import TruncatedAudioError, decode_recording
from ..pipeline.settings import AudioSeparatorSettings, ComponentError
from ..sources import DEFAULT_PATHS, SOURCES, locate


_LONG_SOURCES = ("folder", "youtube")
_ENHANCEMENT = "?enhancement="


@dataclass(frozen=True)
class AudioRoots:
    base: Path | None = None  # Has a folder per source.
    by_source: Mapping[str, Path] = field(default_factory=dict)  # Overrides `base`.

    @classmethod
    def parse(cls, values: Sequence[str]) -> AudioRoots:
        """Read the values of `--audio-root`: `DIR`, at most once, and `SOURCE=DIR`, any number of times."""
        named = dict(value.split("=", 1) for value in values if value.partition("=")[0] in SOURCES)
        bases = [value for value in values if value.partition("=")[0] not in SOURCES]
        if len(bases) > 1:
            raise ValueError(f"audio roots {bases} name no source; give one folder for all, others as SOURCE=DIR.")
        if bases and not Path(bases[0]).is_dir():
            raise ValueError(f"audio root {bases[0]!r} is not a folder; give DIR or SOURCE=DIR of {list(SOURCES)}.")
        return cls(Path(bases[0]) if bases else None, {source: Path(path) for source, path in named.items()})

    def find_root(self, source: str) -> Path:
        if source not in SOURCES:
            raise ValueError(f"there is no source {source!r}; one of {list(SOURCES)} is needed.")
        if source in self.by_source:
            return self.by_source[source]
        if self.base and (self.base / source).exists():
            return self.base / source
        default = DEFAULT_PATHS.get(source)
        if default is None or not default.exists():
            raise SkipError("missing_audio", f"no audio of {source} is known; give --audio-root {source}=DIR.")
        return default


def find_part(reference: Mapping[str, Any], roots: AudioRoots, cache_dir: Path) -> Part:
    uri, start_s, end_s = reference["uri"], reference["start_s"], reference["end_s"]
    if not uri:
        raise SkipError("no_reference", "a part has no reference to its recording; its source does not name one.")
    source, path = split_reference(uri)
    path, _, enhancement = path.partition(_ENHANCEMENT)
    root = roots.find_root(source)
    try:
        found = locate(source, root, path)
    except ValueError as error:
        raise SkipError("outside_root", f"{uri}: lies outside of the audio root; such a path is not read.") from error
    except FileNotFoundError as error:
        raise SkipError("missing_audio", f"{uri}: not found; get the corpus, see the card of {source}.") from error
    if needs_copy(reference):
        found = _decode(uri, found, cache_dir, enhancement)
    return Part(reference["text"], str(found), start_s, end_s, uri)


def needs_copy(reference: Mapping[str, Any]) -> bool:
    """Check whether an entry of `audio_ref` is read from a decoded copy."""
    uri = reference["uri"] or ""
    is_span = uri.partition(":")[0] in _LONG_SOURCES and reference["end_s"] is not None
    return is_span or _ENHANCEMENT in uri


def read_recording(part: Part) -> np.ndarray:
    """Read a part from `find_part` as 16 kHz mono, before channel matching."""
    label, path = str(part.ref), str(part.audio)
    try:
        if path.endswith(".wav") and part.end_s is not None:
            return read_part(part, label)
        whole = require_sound(read_whole(path), path)
    except (FileNotFoundError, AudioError) as error:
        raise _make_skip(label, error, path) from error
    end = None if part.end_s is None else round(part.end_s * SAMPLING_RATE)
    array = whole[round(part.start_s * SAMPLING_RATE) : end]
    if not array.size:
        lasts_s = whole.size / SAMPLING_RATE
        raise SkipError("truncated_audio", f"{label}: lasts {lasts_s:.1f} s and the part begins at {part.start_s} s.")
    return array


def _decode(uri: str, path: Path, cache_dir: Path, enhancement: str) -> Path:
    """Return the 16 kHz copy of a recording, made and enhanced as by the pipeline."""
    import soundfile

    name = make_stable_id(*read_file_version(str(path.resolve())))
    wav, failure = cache_dir / f"{name}.wav", cache_dir / f"{name}.json"
    cache_dir.mkdir(parents=True, exist_ok=True)
    if failure.is_file():
        raise SkipError(*json.loads(failure.read_text(encoding="utf-8")))
    try:
        if not wav.is_file():
            decode_recording(path, wav)
    except AudioError as error:
        problem = _make_skip(uri, error, str(path))
        # A damaged recording is not decoded again for each of its pairs.
        write_file(failure, json.dumps([problem.kind, str(problem)]))
        raise problem from error
    if not enhancement:
        return wav
    identity = json.dumps(AudioSeparatorSettings().identity(), sort_keys=True)
    enhanced = cache_dir / f"{name}-{make_stable_id(enhancement, identity)}.wav"
    if not enhanced.is_file():
        _load_enhancer(enhancement).enhance(path, enhanced, soundfile.info(wav).frames)
    return enhanced


@cache
def _load_enhancer(name: str) -> Any:
    from ..pipeline.enhancement import AudioSeparatorEnhancer

    if name != AudioSeparatorSettings.name:
        raise SkipError(
            "missing_enhancement", f"the recordings were enhanced by {name!r}, which this version does not know."
        )
    try:
        return AudioSeparatorEnhancer(AudioSeparatorSettings())
    except (ImportError, ComponentError) as error:
        reason = f"the recordings were enhanced by {name}, which cannot run here: {error}; pip install it."
        raise SkipError("missing_enhancement", reason) from error


def _make_skip(uri: str, error: Exception, path: str) -> SkipError:
    """Convert an error to a `SkipError` without the local path."""
    kinds = {FileNotFoundError: "missing", TruncatedAudioError: "truncated", SilentAudioError: "wrong"}
    kind = next((kind for type_, kind in kinds.items() if isinstance(error, type_)), "undecodable")
    return SkipError(f"{kind}_audio", str(error).replace(path, uri))
