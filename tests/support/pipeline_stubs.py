"""Components of the pipeline without models: a second of speech of each speaker in turn, and made-up words."""

from dataclasses import dataclass

import numpy as np
import soundfile

from sdiareward.dataset_builder.episodes import SkipError
from sdiareward.dataset_builder.pipeline.settings import (
    FasterWhisperSettings,
    NoEnhancementSettings,
    PipelineSettings,
    ResemblyzerSettings,
    SileroSettings,
)
from sdiareward.dataset_builder.pipeline.turns import Segment


class Stub:
    def __init__(self, settings):
        self._settings = settings

    def find_speech(self, wav):
        array = soundfile.read(wav)[0]
        return ([(0.0, array.size / 16_000)] if np.abs(array).max() > 0.01 else []), []

    def find_speakers(self, wav, speech):
        return [Segment(float(second), second + 1.0, "ab"[second % 2]) for second in range(int(speech[0][1]))]

    def transcribe(self, array, language):
        if language == "cs":
            raise SkipError("language", "is in 'cs'")
        return f"{self._settings.prompt} {len(array)}"


@dataclass(frozen=True, kw_only=True)
class StubVad(SileroSettings):
    component = "support.pipeline_stubs:Stub"
    package = None


@dataclass(frozen=True, kw_only=True)
class StubDiarizer(ResemblyzerSettings):
    component = "support.pipeline_stubs:Stub"
    package = None


@dataclass(frozen=True, kw_only=True)
class StubTranscriber(FasterWhisperSettings):
    component = "support.pipeline_stubs:Stub"
    package = None


STUBS = PipelineSettings(
    enhancement=NoEnhancementSettings(), vad=StubVad(), diarization=StubDiarizer(), asr=StubTranscriber()
)
