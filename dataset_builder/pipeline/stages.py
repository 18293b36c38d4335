"""The stages of the pipeline: each takes one recording's row to the next stage, and keeps its result on disk.

A row holds only text, so that any engine can carry it. A stage writes `STAGE-KEY.json`, and audio beside it, into the
recording's folder under the work directory. KEY is a hash of the recording's content and of the settings of this stage
and all earlier ones: a finished stage is not run again, and a changed option runs its stage and all later ones again.

An artifact is one JSON object; its times are seconds from the beginning of the recording:

    stage, component, settings   what ran
    source, recording_id         on what
    audio_s, wall_s              seconds of audio it processed and seconds it took without loading models
    result                       see each stage
    drops                        skipped items: [{"item", "kind", "reason"}]
    recording_drop               {"kind", "reason"} if the whole recording is skipped here, else null
"""

from __future__ import annotations

import errno
import json
import logging
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, ClassVar

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError
from sdiareward.common.files import JsonLines, read_sealed, seal, write_file
from sdiareward.pairs.schema import make_stable_id

from ..marks import remove_marks
from .jobs import COMPONENT_FAILURE, Job, format_job
from .media import decode_recording, read_span
from .settings import AudioSeparatorSettings, ComponentError, PipelineSettings, ResemblyzerSettings
from .turns import (
    Segment,
    SkipError,
    SkippedSpan,
    SpokenTurn,
    drop_crowded_turns,
    find_two_speakers,
    group_episodes,
    intersect,
    merge_turns,
    split_at_silent_turns,
)


logger = logging.getLogger(__name__)
_BLOCK_BYTES = 2**20


@dataclass
class Outcome:
    """The fields of an artifact that its stage decides."""

    result: Any
    audio_s: float
    wall_s: float | None = None
    skipped: Sequence[SkippedSpan] = ()
    recording_skip: dict[str, str] | None = None


class Stage(ABC):
    """A callable that takes a row and returns it one stage further; models are loaded when first needed."""

    name: ClassVar[str]

    def __init__(self, settings: PipelineSettings):
        self.settings = settings
        self.options = settings.get_stage(self.name)
        self._component: Any = None
        self._component_error: ComponentError | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Omit the model: every process loads its own."""
        return self.__dict__ | {"_component": None}

    def __call__(self, row: dict[str, str]) -> dict[str, str]:
        """Run the stage unless its artifact exists or an earlier stage ended the job."""
        job = Job.from_row(row)
        if not job.is_finished:
            self._advance(job)
        return job.to_row()

    @abstractmethod
    def run(self, job: Job) -> Outcome:
        """Process one recording."""

    def load(self) -> Any:
        """Return the model or package that does the work; None if the stage needs none."""
        return None

    def identify(self, job: Job) -> dict[str, Any]:
        """Return what the result depends on besides the previous stage's."""
        return self.options.identity()

    @property
    def has_model(self) -> bool:
        """Whether the stage loads a model, which it keeps between recordings."""
        return type(self).load is not Stage.load

    @property
    def component(self) -> Any:
        """The loaded component; a failed attempt is not repeated for every recording."""
        if self._component_error is not None:
            raise self._component_error
        if self._component is None:
            try:
                self._component = self.load()
            except ComponentError as error:
                self._component_error = error
                raise
        return self._component

    def make_path(self, job: Job, extension: str) -> Path:
        return Path(job.folder) / f"{self.name}-{job.key}.{extension}"

    def _advance(self, job: Job) -> None:
        job.key = make_stable_id(job.key, self.name, json.dumps(self.identify(job), sort_keys=True))
        path = self.make_path(job, "json")
        if not _is_whole(path):
            outcome = self._try(job)
            if outcome is None:
                return
            write_file(path, seal(self._describe(job, outcome)))
        job.artifacts[self.name] = path.name
        job.is_finished = job.read_artifact(self.name)["recording_drop"] is not None

    def _try(self, job: Job) -> Outcome | None:
        """Return the outcome, or None if the stage failed in a way that may not recur."""
        Path(job.folder).mkdir(parents=True, exist_ok=True)
        try:
            # Loaded before the clock starts: `wall_s` does not count loading.
            _ = self.component
        except ComponentError as error:
            job.fail(COMPONENT_FAILURE, str(error))
            return None
        start = time.perf_counter()
        try:
            outcome = self.run(job)
        except SkipError as skip:
            outcome = Outcome(None, 0.0, recording_skip={"kind": skip.kind, "reason": str(skip)})
        except AudioError as error:
            outcome = Outcome(None, 0.0, recording_skip={"kind": "unusable_audio", "reason": str(error)})
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise
            logger.exception("%s failed on %s", self.name, format_job(job.recording))
            job.fail("stage_failed", f"{self.name} failed: {type(error).__name__}: {error}")
            return None
        if outcome.wall_s is None:
            outcome.wall_s = time.perf_counter() - start
        return outcome

    def _describe(self, job: Job, outcome: Outcome) -> dict[str, Any]:
        return {
            "stage": self.name,
            "component": self.options.name,
            "settings": self.options.identity(),
            "source": job.recording.source,
            "recording_id": job.recording.recording_id,
            "audio_s": outcome.audio_s,
            "wall_s": round(outcome.wall_s or 0.0, 3),
            "result": outcome.result,
            "wav_crc32": _compute_checksum(Path(job.folder), outcome.result),
            "drops": [
                {"item": format_job(job.recording, span.start_s, span.end_s), "kind": span.kind, "reason": span.reason}
                for span in outcome.skipped
            ],
            "recording_drop": outcome.recording_skip,
        }


def _is_whole(path: Path) -> bool:
    if not (kept := read_sealed(path)):
        return False
    found = _compute_checksum(path.parent, kept["result"])
    # An older version kept none.
    if not (is_whole := found is not None and kept.get("wav_crc32") in (None, found)):
        logger.warning("%s: its recording is damaged; it is made again.", path)
    return is_whole


def _compute_checksum(folder: Path, result: Any) -> int | None:
    """Return the checksum of the recording that a stage made: 0 if it made none, None if it is missing."""
    checksum = 0
    if isinstance(result, dict) and "wav" in result:
        if not (wav := folder / result["wav"]).is_file():
            return None
        # Of a recording of a day, not all at once.
        with wav.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                checksum = zlib.crc32(block, checksum)
    return checksum


class DecodeStage(Stage):
    """Decode the recording; `result` is `{"wav": file name, "duration_s"}`."""

    name = "decode"

    def run(self, job: Job) -> Outcome:
        wav = self.make_path(job, "wav")
        duration_s = decode_recording(job.recording.path, wav)
        return Outcome({"wav": wav.name, "duration_s": duration_s}, duration_s)


class EnhancementStage(Stage):
    """Remove music and noise; `result` is `{"wav": file name}`, without enhancement the decoded file's."""

    name = "enhancement"

    @property
    def has_model(self) -> bool:
        return isinstance(self.settings.enhancement, AudioSeparatorSettings)

    def load(self) -> Any:
        if not isinstance(self.settings.enhancement, AudioSeparatorSettings):
            return None
        from .enhancement import AudioSeparatorEnhancer

        return AudioSeparatorEnhancer(self.settings.enhancement)

    def run(self, job: Job) -> Outcome:
        decoded = job.read_result("decode")
        if not self.has_model:
            return Outcome({"wav": decoded["wav"]}, decoded["duration_s"])
        wav = self.make_path(job, "wav")
        self.component.enhance(Path(job.recording.path), wav, round(decoded["duration_s"] * SAMPLING_RATE))
        return Outcome({"wav": wav.name}, decoded["duration_s"])


class VadStage(Stage):
    """Find speech; `result` is `{"speech": [[start_s, end_s], ...]}`."""

    name = "vad"

    def load(self) -> Any:
        from .vad import SileroVad

        return SileroVad(self.settings.vad)

    def run(self, job: Job) -> Outcome:
        speech, skipped = self.component.find_speech(job.wav)
        duration_s = job.read_result("decode")["duration_s"]
        outcome = Outcome({"speech": speech}, duration_s, skipped=skipped)
        if not speech:
            reason = f"no speech was found in {duration_s:.1f} s; a dialogue needs some."
            outcome.recording_skip = {"kind": "no_speech", "reason": reason}
        return outcome


class DiarizationStage(Stage):
    """Find speakers; `result` is `{"segments": [[start_s, end_s, speaker], ...]}`, not yet cut to the speech."""

    name = "diarization"

    def load(self) -> Any:
        from .diarization import PyannoteDiarizer, ResemblyzerDiarizer

        if isinstance(self.settings.diarization, ResemblyzerSettings):
            return ResemblyzerDiarizer(self.settings.diarization)
        return PyannoteDiarizer(self.settings.diarization)

    def run(self, job: Job) -> Outcome:
        speech = [(start_s, end_s) for start_s, end_s in job.read_result("vad")["speech"]]
        segments = self.component.find_speakers(job.wav, speech)
        return Outcome(
            {"segments": [astuple(segment) for segment in segments]}, job.read_result("decode")["duration_s"]
        )


class TurnStage(Stage):
    """Form turns and episodes; `result` is `{"speakers", "episodes": [[[start_s, end_s, speaker], ...], ...]}`."""

    name = "turns"

    def run(self, job: Job) -> Outcome:
        rules = self.settings.turns
        segments = [Segment(*segment) for segment in job.read_result("diarization")["segments"]]
        spoken = intersect(segments, job.read_result("vad")["speech"])
        speakers = find_two_speakers(spoken)
        merged, skipped_segments = merge_turns(spoken, speakers, rules)
        turns, crowded_turns = drop_crowded_turns(merged, spoken, speakers, rules)
        episodes, skipped_turns = group_episodes(turns, rules)
        listed = [[[turn.start_s, turn.end_s, turn.speaker] for turn in episode] for episode in episodes]
        result = {"speakers": speakers, "episodes": listed}
        skipped = [*skipped_segments, *crowded_turns, *skipped_turns]
        return Outcome(result, job.read_result("decode")["duration_s"], skipped=skipped)


class AsrStage(Stage):
    """Transcribe the turns of the episodes; `result` is `{"episodes": [[{"start_s", "end_s", "speaker", "text"}]]}`.

    The words of each turn are kept in `asr-KEY.jsonl`, so that a killed run resumes with the next turn. `audio_s` and
    `wall_s` count only transcribed turns.
    """

    name = "asr"

    def load(self) -> Any:
        from .asr import FasterWhisperTranscriber

        return FasterWhisperTranscriber(self.settings.asr)

    def identify(self, job: Job) -> dict[str, Any]:
        return {**super().identify(job), "language": job.recording.language}

    def run(self, job: Job) -> Outcome:
        found = job.read_result("turns")["episodes"]
        episodes = [[SpokenTurn(*turn) for turn in episode] for episode in found]
        lines = JsonLines(self.make_path(job, "jsonl"))
        texts = self._transcribe([turn for episode in episodes for turn in episode], job, lines)
        spoken, skipped = [], []
        for turns in episodes:
            said = [texts[turn.start_s, turn.end_s] for turn in turns]
            # The build takes the other marks out of the words.
            pieces, silent = split_at_silent_turns(turns, [text if remove_marks(text)[0] else "" for text in said])
            spoken += [[_make_spoken_turn(turn, text) for turn, text in piece] for piece in pieces]
            skipped += silent
        records = lines.read()
        return Outcome(
            {"episodes": spoken},
            audio_s=sum(record["end_s"] - record["start_s"] for record in records),
            wall_s=sum(record["wall_s"] for record in records),
            skipped=skipped,
        )

    def _transcribe(self, turns: Iterable[SpokenTurn], job: Job, lines: JsonLines) -> dict[tuple[float, float], str]:
        from tqdm import tqdm

        texts = {(record["start_s"], record["end_s"]): record["text"] for record in lines.read()}
        todo = [turn for turn in turns if (turn.start_s, turn.end_s) not in texts]
        wav = job.wav
        for turn in tqdm(todo, desc=f"asr {job.recording.recording_id}", unit="turn", leave=False, disable=None):
            start = time.perf_counter()
            array = read_span(wav, turn.start_s, turn.end_s)
            text = self.component.transcribe(array, job.recording.language)
            wall_s = round(time.perf_counter() - start, 3)
            lines.append([{"start_s": turn.start_s, "end_s": turn.end_s, "text": text, "wall_s": wall_s}])
            texts[turn.start_s, turn.end_s] = text
        return texts


def _make_spoken_turn(turn: SpokenTurn, text: str) -> dict[str, Any]:
    return {"start_s": turn.start_s, "end_s": turn.end_s, "speaker": turn.speaker, "text": text}


STAGES: tuple[type[Stage], ...] = (
    DecodeStage,
    EnhancementStage,
    VadStage,
    DiarizationStage,
    TurnStage,
    AsrStage,
)
