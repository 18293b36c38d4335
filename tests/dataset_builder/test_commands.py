import itertools
import json
import shutil

import pytest
import yaml
from support.chat_server import ChatServer, Reply
from support.paths import SAMPLE

from sdiareward.dataset_builder.__main__ import main
from sdiareward.dataset_builder.shards import read_rows
from sdiareward.dataset_builder.sources import read_source


pytestmark = pytest.mark.slow


@pytest.fixture
def write_settings(tmp_path):
    def write(**settings):
        path = tmp_path / "settings.yaml"
        path.write_text(yaml.safe_dump(settings))
        return str(path)

    return write


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return a data set folder of four recorded episodes."""
    folder = tmp_path_factory.mktemp("commands")
    settings = {
        "output_dir": str(folder / "sdiareward"),
        "sources": [{"name": "sample", "limit": 4}],
        "synthesizers": {"modality": {"seen": ["hibari"]}},
        "num_workers": 1,
    }
    (folder / "build.yaml").write_text(yaml.safe_dump(settings))
    assert main(["build", "--config", str(folder / "build.yaml")]) == 0
    return folder / "sdiareward"


def judge(content_of_rejected):
    """Return an endpoint's answer in which only the content of the synthetic side varies."""

    def answer(request):
        dimensions = ("final_turn_content", "final_turn_naturalness_prosody", "dialog_context_coherence")
        scores = {dimension: {"A": 4, "B": 4} for dimension in dimensions}
        scores["final_turn_content"]["B"] = content_of_rejected()
        return Reply(json.dumps({"scores": scores, "overall_preference": "A", "reason": "It sounds meant."}))

    return answer


def test_filter_keeps_what_the_judge_finds_good_and_counts_its_tokens(built, tmp_path, write_settings, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "secret-of-the-judge")
    verdicts = iter([5, 2, 3, 5])
    with ChatServer(judge(lambda: next(verdicts))) as server:
        endpoint = {"model": "ears", "base_url": server.url, "api_key_env": "JUDGE_KEY", "concurrency": 1}
        path = write_settings(folder=str(built), output_dir=str(tmp_path / "kept"), judge=endpoint)
        assert main(["filter", "--config", path]) == 0
        assert main(["filter", "--config", path, "--strict", "--output_dir", str(tmp_path / "kept")]) == 1
        assert len(server.requests) == 4
        (tmp_path / "prompts.yaml").write_text("filter: Listen well.")
        other = {"judge": endpoint, "prompt_file": str(tmp_path / "prompts.yaml")}
        path = write_settings(folder=str(built), output_dir=str(tmp_path / "other"), **other)
        verdicts = itertools.repeat(5)
        assert main(["filter", "--config", path]) == 0
        assert len(server.requests) == 8
    assert server.requests[-1]["messages"][0]["content"] == "Listen well."
    report, asked_again = (json.loads((tmp_path / name / "report.json").read_text()) for name in ("kept", "other"))
    versions = {each["config"]["filter"]["prompt_versions"]["filter"] for each in (report, asked_again)}
    assert len(versions) == 2
    assert report["drops"] == {"low_quality": 1}
    assert report["filtered_from"] == json.loads((built / "report.json").read_text())["build_id"]
    assert report["judge_usage"]["cached"] == 4
    assert report["judge_usage"]["reused_prompt_tokens"] == 400
    rows = [row for _, row in read_rows(tmp_path / "kept")]
    assert sorted(row["quality"]["rejected"]["content"] for row in rows) == [3, 5, 5]
    assert {row["quality"]["judge"] for row in rows} == {"ears"}
    assert "secret-of-the-judge" not in "".join(p.read_text() for p in tmp_path.rglob("*.json"))


def test_filter_without_a_judge_applies_the_rules_and_a_dry_run_writes_nothing(
    built, tmp_path, write_settings, capsys
):
    path = write_settings(folder=str(built), output_dir=str(tmp_path / "kept"))
    assert main(["filter", "--config", path, "--dry-run"]) == 0
    assert "4 pairs" in capsys.readouterr().out
    assert not (tmp_path / "kept").exists()
    assert main(["filter", "--config", path, "--strict"]) == 0
    assert [row for _, row in read_rows(tmp_path / "kept")] == [row for _, row in read_rows(built)]
    # A folder may have shards alone.
    shutil.copytree(built / "data", tmp_path / "bare" / "data")
    path = write_settings(folder=str(tmp_path / "bare"), output_dir=str(tmp_path / "again"))
    assert main(["filter", "--config", path, "--strict"]) == 0
    report = json.loads((tmp_path / "again" / "report.json").read_text())
    assert (report["languages"], report["filtered_from"], list(report["config"])) == (["en"], None, ["filter"])


def test_fetch_takes_recordings_that_the_youtube_source_then_reads(tmp_path, write_settings, capsys):
    shutil.copy(min((SAMPLE / "asterisk").glob("*.ogg")), tmp_path / "talk.ogg")
    options = {"videos": [(tmp_path / "talk.ogg").as_uri()], "allow_file_urls": True, "sleep_s": 0}
    path = write_settings(youtube={"output_dir": str(tmp_path / "audio"), **options})
    assert main(["fetch", "--config", path, "--dry-run"]) == 0
    assert not (tmp_path / "audio").exists()
    for _ in range(2):
        assert main(["fetch", "--config", path, "--strict"]) == 0
    out = capsys.readouterr().out
    for told in ("would fetch bestaudio/best", "1 fetched, 0 there before", "0 fetched, 1 there before"):
        assert told in out
    assert [item.source for item in read_source("youtube", tmp_path / "audio")] == ["youtube"]


def test_bench_caps_the_buckets_and_stats_describes_what_came_out(built, tmp_path, capsys):
    bench = tmp_path / "bench" / "sdiareward"
    arguments = ["bench", str(built), "--output-dir", str(bench), "--cap", "1", "--candidates", "all"]
    assert main([*arguments, "--dry-run"]) == 0
    assert "by split: test 1, train" in capsys.readouterr().out
    assert not bench.exists()
    assert main(arguments) == 0
    splits = [split for split, _ in read_rows(bench, ["pair_id"])]
    assert splits.count("test") == 1
    assert (bench / "bench.png").stat().st_size > 1000
    capsys.readouterr()
    assert main(["stats", str(bench)]) == 0
    assert "| scripted |" in capsys.readouterr().out
    assert main(["stats", str(bench), "--output-dir", str(tmp_path / "stats"), "--split", "test"]) == 0
    assert json.loads((tmp_path / "stats" / "stats.json").read_text())["pairs"] == 1


@pytest.mark.parametrize(
    ("command", "text", "problem"),
    [
        ("fetch", "{}", "exactly one of youtube, scripts and chatreward"),
        ("fetch", "{scripts: {output: x}}", "scripts needs output"),
        ("filter", "{folder: a, output_dir: ./a}", "write to another folder"),
        ("filter", "{folder: a, output_dir: b, annotate: true}", "needs a judge"),
        ("filter", "{folder: a, output_dir: b, jugde: {}}", "jugde"),
        ("filter", "{folder: nowhere, output_dir: b}", "nowhere"),
        ("filter", None, "settings.yaml"),
    ],
)
def test_wrong_settings_are_one_line_and_exit_status_two(command, text, problem, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if text:
        (tmp_path / "settings.yaml").write_text(text)
    assert main([command, "--config", "settings.yaml"]) == 2
    error = capsys.readouterr().err.strip()
    assert problem in error
    assert len(error.splitlines()) == 1
