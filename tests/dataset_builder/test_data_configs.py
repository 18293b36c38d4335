"""The YAML files of the data side are read by what reads them, and the guide's commands run as they stand."""

import re
import shlex
from pathlib import Path

import pytest
from support.paths import ROOT

from sdiareward.cli import main
from sdiareward.common.llm import ChatSettings
from sdiareward.common.settings import make_settings, read_mapping
from sdiareward.dataset_builder.pairing import BenchSettings
from sdiareward.dataset_builder.pairing.filtering import FilterConfig, FilterSettings
from sdiareward.dataset_builder.pipeline import make_settings as make_pipeline_settings
from sdiareward.dataset_builder.settings import read_build_config
from sdiareward.dataset_builder.shards import read_rows
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


def festival_options():
    config = read_build_config(OPEN / "data_open.yaml", {})
    assert all("festival" in spec.left_out for spec in config.synthesizers.values())
    return config.synthesizer_options["festival"]


def test_the_unseen_source_is_all_test_and_in_no_recipe_of_a_checkpoint():
    unseen, known = (read_build_config(OPEN / f"data_{name}.yaml", {}) for name in ("unseen", "open"))
    assert (unseen.validation, unseen.test) == (0.0, 1.0)
    assert not {source.path for source in unseen.sources} & {source.path for source in known.sources}
    # What is held out there is held out here; kokoro was heard with other people.
    assert unseen.synthesizers["modality"].left_out == (*known.synthesizers["modality"].left_out, "kokoro")
    held_out = set(known.synthesizers["modality"].left_out)
    assert not any(held_out & set(spec.seen) for spec in known.synthesizers.values())
    assert unseen.synthesizer_options["festival"] == festival_options()


def test_the_papers_configs_build_the_papers_data():
    config = read_build_config(CONFIGS / "data_paper.yaml", {})
    settings = make_pipeline_settings(config.pipeline)
    names = [settings.get_stage(stage).name for stage in ("enhancement", "diarization", "vad", "asr")]
    assert names == ["audio-separator", "pyannote", "silero", "faster-whisper"]
    assert settings.get_stage("asr").model == "large-v3"
    assert [source.name for source in config.sources if source.enhance] == ["meld", "dailytalk"]
    assert (config.channel, config.test) == (None, 0)
    options = config.synthesizer_options["soulx-podcast"]
    assert "voices" not in options and options["script_voices"]
    # Everywhere else both sides go through one channel.
    assert all(read_build_config(path, {}).channel for path in BUILDS)
    # The benchmark is drawn from all pairs and loses none.
    values = read_mapping(CONFIGS / "bench_paper.yaml")
    values.pop("output_dir")
    bench = make_settings(BenchSettings, values, "bench_paper")
    assert (bench.candidates, bench.draw, bench.rest) == ("all", "whole_groups", "train")


@pytest.mark.parametrize("name", ["filter", "fetch_youtube", "fetch_scripts"])
def test_the_filter_and_fetch_configs_are_read(name):
    config = read_mapping(CONFIGS / f"{name}.yaml")
    if name == "filter":
        make_settings(FilterConfig, config, name)
    assert make_settings(FilterSettings, config.get("filter", {}), name) == FilterSettings()
    if config.get("youtube"):
        assert make_settings(FetchSettings, config["youtube"], name).format == "bestaudio/best"
    if endpoint := config.get("judge") or (config.get("scripts") or {}).get("endpoint"):
        make_settings(ChatSettings, endpoint, name)


def test_recipes_send_the_same_parameters_to_the_same_model():
    judges = read_mapping(CONFIGS / "judges.yaml").values()
    endpoints = [each for each in judges if each["backend"] == "endpoint"]
    sent = {}
    for settings in (read_mapping(CONFIGS / "filter.yaml")["judge"], *endpoints):
        parameters = {name: settings.get(name, "default") for name in ("seed", "max_tokens", "base_url")}
        sent.setdefault(settings["model"], []).append(parameters)
    assert len(sent["gemini-2.5-pro"]) == 2
    assert all(each == parameters[0] for parameters in sent.values() for each in parameters)


@pytest.mark.slow
def test_the_commands_of_the_guide_run_as_they_stand(tmp_path, monkeypatch, capsys):
    guide = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    block = re.search(r"<!-- walkthrough -->\n```bash\n(.*?)```", guide, re.DOTALL).group(1)
    for folder in ("examples", "sample"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    for line in block.strip().splitlines():
        assert main(shlex.split(line)[1:]) == 0, f"{line}\n{capsys.readouterr()}"
    built, again = Path("runs/docs/bench/sdiareward"), Path("runs/docs/again/sdiareward")
    before = {row["pair_id"]: row["chosen"] for _, row in read_rows(built, ["pair_id", "chosen"])}
    after = {row["pair_id"]: row["chosen"] for _, row in read_rows(again, ["pair_id", "chosen"])}
    assert before == after
