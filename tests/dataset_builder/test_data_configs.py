"""The YAML files of the data side are read by what reads them, and have the paper's values."""

import pytest
from support.paths import ROOT

from sdiareward.common.llm import ChatSettings
from sdiareward.common.settings import make_settings, read_mapping
from sdiareward.dataset_builder.builder import read_build_config
from sdiareward.dataset_builder.pairing import BenchSettings
from sdiareward.dataset_builder.pairing.filtering import FilterConfig, FilterSettings
from sdiareward.dataset_builder.pipeline.settings import make_settings as make_pipeline_settings
from sdiareward.dataset_builder.sources import SOURCES
from sdiareward.dataset_builder.sources.fetching import FetchSettings
from sdiareward.dataset_builder.synthesis import SYNTHESIZERS


CONFIGS = ROOT / "configs"
OPEN = ROOT / "benchmarks" / "open_recordings"
BUILDS = (
    *(CONFIGS / f"{name}.yaml" for name in ("data_own", "demo_data")),
    *(OPEN / f"data_{name}.yaml" for name in ("full", "open", "unseen")),
    ROOT / "examples" / "walkthrough.yaml",
)


@pytest.mark.parametrize("path", (*BUILDS, CONFIGS / "data_paper.yaml"), ids=lambda path: path.stem)
def test_a_build_config_names_known_sources_synthesizers_and_stages(path):
    config = read_build_config(path, {})
    assert {source.name for source in config.sources} <= set(SOURCES)
    choices = config.synthesizers.values()
    names = {name for choice in choices for name in (*choice.seen, *choice.left_out)}
    assert {config.synthesizer_options.get(name, {}).get("engine", name) for name in names} <= set(SYNTHESIZERS)
    make_pipeline_settings(config.pipeline or {})


def test_the_unseen_source_is_all_test_and_in_no_recipe_of_a_checkpoint():
    unseen, known = (read_build_config(OPEN / f"data_{name}.yaml", {}) for name in ("unseen", "open"))
    assert (unseen.validation, unseen.test) == (0.0, 1.0)
    assert not {source.path for source in unseen.sources} & {source.path for source in known.sources}
    # What is held out there is held out here; kokoro was heard with other people.
    held_out = known.synthesizers["modality"].left_out
    assert unseen.synthesizers["modality"].left_out == (*held_out, "kokoro")
    assert not any({*held_out} & {*spec.seen} for spec in known.synthesizers.values())


def test_the_papers_configs_build_the_papers_data():
    config = read_build_config(CONFIGS / "data_paper.yaml", {})
    settings = make_pipeline_settings(config.pipeline)
    names = [getattr(settings, stage).name for stage in ("enhancement", "diarization", "vad", "asr")]
    assert names == ["audio-separator", "pyannote", "silero", "faster-whisper"]
    assert [source.name for source in config.sources if source.enhance] == ["meld", "dailytalk"]
    assert (config.channel, config.test) == (None, 0)
    # Everywhere else both sides go through one channel.
    assert all(read_build_config(path, {}).channel for path in BUILDS)
    # The benchmark is drawn from all pairs and loses none.
    values = read_mapping(CONFIGS / "bench_paper.yaml")
    values.pop("output_dir")
    bench = make_settings(BenchSettings, values, "bench_paper")
    assert (bench.candidates, bench.draw, bench.rest) == ("all", "whole_groups", "train")


def test_the_filter_and_fetch_configs_are_read():
    config, youtube, scripts = (
        read_mapping(CONFIGS / f"{n}.yaml") for n in ("filter", "fetch_youtube", "fetch_scripts")
    )
    make_settings(FilterConfig, config, "filter")
    assert make_settings(FilterSettings, config["filter"], "filter") == FilterSettings()
    assert make_settings(FetchSettings, youtube["youtube"], "youtube").format == "bestaudio/best"
    for endpoint in (config["judge"], scripts["scripts"]["endpoint"]):
        make_settings(ChatSettings, endpoint, "endpoint")
