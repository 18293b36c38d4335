"""Measure what fingerprints of recordings tell apart, and where their thresholds lie.

    python benchmarks/fingerprints.py --amazon_queen PATH/queen.1c

Every clip (the parts of the bundled sample, and clips of the game's archive where it is given) is fingerprinted and
compared with versions of itself: other decoders and resamplers, codecs, levels, cuts, and other clips. Writes to
`benchmarks/results/fingerprints.json`, for each version, the distribution of the share of coarse bits that differ, of
the signal-to-noise ratio and of the level, and the confusion matrix of the verdicts; and the same for clips cut to
0.3 s. The thresholds of `dataset_builder/release/fingerprints.py` lie in the gaps.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, resample
from sdiareward.common.arguments import parse_arguments
from sdiareward.common.provenance import write_provenance
from sdiareward.dataset_builder.episodes import Episode
from sdiareward.dataset_builder.pipeline.media import read_media
from sdiareward.dataset_builder.release import fingerprints
from sdiareward.dataset_builder.release.fingerprints import Verdict, compare, fingerprint
from sdiareward.dataset_builder.sources import amazon_queen, sample
from sdiareward.perturbations.channel import encode


RESULT = Path(__file__).parent / "results" / "fingerprints.json"
_OPUS_LEVELS = {"largest": 0.0, "24k": 0.93}
_SHORT_SAMPLES = round(0.3 * SAMPLING_RATE)
_Version = Callable[[np.ndarray, np.ndarray], np.ndarray]


def read_clips(episodes: Iterator[Any], limit: int) -> Iterator[tuple[np.ndarray, bytes | None]]:
    """Yield the recordings of parts, as 16 kHz arrays, with the encoded clip where a part is one."""
    parts = (part for item in episodes if isinstance(item, Episode) for turn in item.turns for part in turn.parts)
    for part in islice(parts, limit):
        array = read_media(part.audio or b"")
        end = None if part.end_s is None else round(part.end_s * SAMPLING_RATE)
        yield (
            array[round(part.start_s * SAMPLING_RATE) : end],
            part.audio if isinstance(part.audio, bytes) else None,
        )


def decode_with_ffmpeg(data: bytes) -> np.ndarray:
    """Decode an encoded clip with PyAV and resample it with soxr."""
    import av

    with av.open(io.BytesIO(data), mode="r") as container:
        rate = container.streams.audio[0].rate
        resampler = av.AudioResampler(format="fltp", rate=rate)
        frames = [part for frame in container.decode(audio=0) for part in resampler.resample(frame)]
    return resample(np.concatenate([frame.to_ndarray().mean(axis=0) for frame in frames]), rate)


def through(format: str, subtype: str, compression_level: float) -> _Version:
    """Return the version of a clip that went through a codec, decoded by libsndfile."""
    return lambda clip, _: read_media(encode(clip, SAMPLING_RATE, format, subtype, compression_level))


def from_44k(convert: Callable[[np.ndarray], np.ndarray]) -> _Version:
    """Return the version of a clip that `convert` brought to 16 kHz from a file of 44.1 kHz."""
    return lambda clip, _: convert(resample(clip, SAMPLING_RATE, 44_100))[: clip.size]


def by_scipy(array: np.ndarray) -> np.ndarray:
    """Resample 44.1 kHz to 16 kHz with SciPy's default polyphase filter."""
    from scipy.signal import resample_poly

    return resample_poly(array, 160, 441)


def by_ffmpeg(array: np.ndarray) -> np.ndarray:
    """Resample 44.1 kHz to 16 kHz with FFmpeg's resampler."""
    import av

    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(array[None], np.float32), format="fltp", layout="mono")
    frame.sample_rate = 44_100
    resampler = av.AudioResampler(format="fltp", layout="mono", rate=SAMPLING_RATE)
    return np.concatenate([part.to_ndarray()[0] for part in (*resampler.resample(frame), *resampler.resample(None))])


# What each version is, and how it is made of a clip and another one. libsndfile's compression level of MP3 goes from
# the largest file (0.0) to the smallest; that of Opus too.
VERSIONS: dict[str, tuple[str, _Version]] = {
    "sixteen_bits": ("same", lambda clip, _: np.round(clip * 32768) / 32768),
    "soxr_from_44k": ("same", from_44k(lambda array: resample(array, 44_100))),
    "ffmpeg_from_44k": ("same", from_44k(by_ffmpeg)),
    "scipy_from_44k": ("same", from_44k(by_scipy)),
    "mp3_largest": ("reencoded", through("MP3", "MPEG_LAYER_III", 0.0)),
    "mp3_middle": ("reencoded", through("MP3", "MPEG_LAYER_III", 0.5)),
    "mp3_smallest": ("reencoded", through("MP3", "MPEG_LAYER_III", 0.99)),
    "opus_largest": ("reencoded", through("OGG", "OPUS", _OPUS_LEVELS["largest"])),
    "opus_24k": ("reencoded", through("OGG", "OPUS", _OPUS_LEVELS["24k"])),
    "eight_bits": ("reencoded", lambda clip, _: np.round(clip * 128) / 128),
    "half_a_decibel_less": ("reencoded", lambda clip, _: clip * 10 ** (-0.5 / 20)),
    "delayed_50_ms_opus": (
        "reencoded",
        lambda clip, _: VERSIONS["opus_24k"][1](np.concatenate([np.zeros(800, np.float32), clip]), clip),
    ),
    "first_three_quarters": ("truncated", lambda clip, _: clip[: 3 * clip.size // 4]),
    "last_half": ("truncated", lambda clip, _: clip[clip.size // 2 :]),
    "first_half_opus": ("truncated", lambda clip, _: VERSIONS["opus_24k"][1](clip[: clip.size // 2], clip)),
    "other_clip": ("wrong", lambda clip, other: other),
    "other_clip_of_the_same_length": ("wrong", lambda clip, other: np.resize(other, clip.size)),
    "half_of_another_clip": ("wrong", lambda clip, other: np.resize(other, clip.size // 2)),
}


def measure(clips: list[np.ndarray], versions: dict[str, tuple[str, _Version]], is_short: bool) -> dict[str, Any]:
    """Compare every clip with its versions; the other clip is the one eleven places later.

    Args:
        clips (`list[np.ndarray]`): 16 kHz.
        versions (`dict`): As `VERSIONS`.
        is_short (`bool`): Compare 0.3 s out of the middle. A file is decoded before a part is cut from it, so the
            versions that are the same recording are made of the whole clip.
    """
    from tqdm import tqdm

    cuts = [_middle(clip) if is_short else clip for clip in clips]
    expected = [fingerprint(cut) for cut in cuts]
    results = {}
    for name, (truth, make) in tqdm(versions.items(), unit="version"):
        verdicts = []
        for index, clip in enumerate(clips):
            other = (index + 11) % len(clips)
            if is_short and truth in ("same", "reencoded"):
                array = _middle(make(clip, clips[other]), clip.size)
            else:
                array = make(cuts[index], cuts[other])
            verdicts.append(compare(expected[index], np.asarray(array, np.float32)))
        results[name] = {"truth": truth, **summarise(verdicts)}
    return results


def _middle(clip: np.ndarray, num_samples: int | None = None) -> np.ndarray:
    start = (num_samples or clip.size) // 2
    return clip[start : start + _SHORT_SAMPLES]


def compare_opus_decoders(clips: list[np.ndarray], compression_level: float) -> dict[str, Any]:
    """Compare what libopus, in libsndfile, and FFmpeg decode from the same files."""
    files = [encode(clip, SAMPLING_RATE, "OGG", "OPUS", compression_level) for clip in clips]
    return summarise([compare(fingerprint(read_media(data)), decode_with_ffmpeg(data)) for data in files])


def summarise(verdicts: list[Verdict]) -> dict[str, Any]:
    """Return the verdicts' counts and the distributions (0, 1, 50, 99 and 100 per cent) of what they rest on."""
    summary: dict[str, Any] = {"verdicts": dict(sorted(Counter(verdict.kind for verdict in verdicts).items()))}
    for name in ("bit_errors", "snr_db", "gain_db"):
        values = [getattr(verdict, name) for verdict in verdicts]
        summary[name] = [round(float(value), 3) for value in np.percentile(values, [0, 1, 50, 99, 100])]
    return summary


def confusion(results: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Return how many clips of each truth got each verdict."""
    matrix: dict[str, Counter[str]] = {}
    for entry in results.values():
        matrix.setdefault(entry["truth"], Counter()).update(entry["verdicts"])
    return {truth: dict(sorted(counts.items())) for truth, counts in matrix.items()}


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    amazon_queen: Path | None = field(default=None, metadata={"help": "queen.1c: clips in MP3, for the decoders"})
    limit: int = field(default=300, metadata={"help": "clips of each source"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def main() -> None:
    """Measure and write the result."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m benchmarks.fingerprints", description=__doc__)
    clips = [clip for clip, _ in read_clips(sample.read_episodes(), args.limit)]
    encoded = []
    if args.amazon_queen:
        encoded = list(read_clips(amazon_queen.read_episodes(args.amazon_queen), args.limit))
        clips += [clip for clip, _ in encoded]
    results = measure(clips, VERSIONS, is_short=False)
    if encoded:
        pairs = [compare(fingerprint(clip), decode_with_ffmpeg(data)) for clip, data in encoded if data]
        results["mp3_by_ffmpeg_instead_of_libsndfile"] = {"truth": "same", **summarise(pairs)}
    # Of no truth: at low bit rates the decoders of Opus differ as much as codecs do.
    decoders = {f"opus_{name}_by_ffmpeg": compare_opus_decoders(clips, level) for name, level in _OPUS_LEVELS.items()}
    spoken = [clip for clip in clips if clip.size > 3 * _SHORT_SAMPLES and np.abs(_middle(clip)).max() > 0.05]
    # A delay moves other sound into the 0.3 s.
    short = measure(spoken, {name: v for name, v in VERSIONS.items() if not name.startswith("delayed")}, is_short=True)
    seconds = sum(clip.size for clip in clips) / SAMPLING_RATE
    characters = sum(len(fingerprint(clip)) for clip in clips)
    write_provenance(
        args.output,
        num_clips=len(clips),
        hours=round(seconds / 3600, 3),
        characters_per_10_s=round(10 * characters / seconds, 1),
        thresholds={
            name: getattr(fingerprints, name) for name in ("MAX_BIT_ERRORS", "MIN_SAME_SNR_DB", "MAX_SAME_GAIN_DB")
        },
        percentiles=[0, 1, 50, 99, 100],
        confusion=confusion(results),
        variants=results,
        decoders=decoders,
        clips_of_300_ms={"confusion": confusion(short), "variants": short},
    )
    print(json.dumps({"all": confusion(results), "clips_of_300_ms": confusion(short)}, indent=1))


if __name__ == "__main__":
    main()
