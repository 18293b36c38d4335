import itertools
import json
import re
import shlex
import shutil
from contextlib import redirect_stdout
from io import StringIO

import pytest
import yaml
from support.chat_server import ChatServer, Reply
from support.paths import ROOT, SAMPLE

from sdiareward.cli import main as run_cli
from sdiareward.common.package import EXAMPLES
from sdiareward.common.parts import Processes, run_here
from sdiareward.common.settings import read_mapping
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
def walk(tmp_path_factory):
    """Run the commands of the guide's walkthrough on fewer and faster rows; return what they print and the folder."""
    folder = tmp_path_factory.mktemp("walk")
    settings = read_mapping(EXAMPLES / "walkthrough.yaml")
    for source, limit in zip(settings["sources"], (5, 2), strict=True):
        source["limit"] = limit
    # Opus, which the recordings went through, takes most of the time.
    settings["sources"][0]["native_coding"] = []
    settings |= {"synthesizers": dict.fromkeys(settings["synthesizers"], {"seen": ["espeak-ng"]}), "num_workers": 1}
    (folder / "examples").mkdir()
    (folder / "examples" / "walkthrough.yaml").write_text(yaml.safe_dump(settings))
    (folder / "sample").symlink_to(SAMPLE)
    guide = (ROOT / "docs" / "build_data.md").read_text(encoding="utf-8")
    block = re.search(r"<!-- walkthrough -->\n```bash\n(.*?)```", guide, re.DOTALL).group(1)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out:
        patch.chdir(folder)
        # Workers would import everything again.
        patch.setattr(Processes, "__call__", lambda self, load, parts: run_here(load, parts))
        for line in block.strip().splitlines():
            assert run_cli(shlex.split(line)[1:]) == 0, line
    return out.getvalue(), folder / "runs" / "docs"


@pytest.fixture
def built(walk):
    return walk[1] / "sdiareward-walkthrough"


def test_the_commands_of_the_guide_run_and_lead_back_to_the_same_rows(walk):
    out, folder = walk
    assert "| scripted |" in out
    names = ("sdiareward-walkthrough", "bench/sdiareward-bench", "again/sdiareward")
    built, drawn, again = (list(read_rows(folder / name)) for name in names)
    assert drawn == again and {split for split, _ in drawn} == {"train", "test"}
    by_id = {row["pair_id"]: row for _, row in built}
    assert all(row == by_id[row["pair_id"]] for _, row in drawn)
    report = json.loads((folder / "filtered/sdiareward-filtered/report.json").read_text())
    assert (
        report["filtered_from"] == json.loads((folder / "sdiareward-walkthrough/report.json").read_text())["build_id"]
    )
    assert json.loads((folder / "again/sdiareward/report.json").read_text())["turns"]["scrubbed"] == 0
    assert (folder / "bench/sdiareward-bench/bench.png").stat().st_size > 1000


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
    verdicts = iter([5, 2, 3, 5, 5])
    with ChatServer(judge(lambda: next(verdicts))) as server:
        endpoint = {"model": "ears", "base_url": server.url, "api_key_env": "JUDGE_KEY", "concurrency": 1}
        path = write_settings(folder=str(built), output_dir=str(tmp_path / "kept"), judge=endpoint)
        assert main(["filter", "--config", path]) == 0
        assert main(["filter", "--config", path, "--strict", "--output_dir", str(tmp_path / "kept")]) == 1
        assert len(server.requests) == 5
        (tmp_path / "prompts.yaml").write_text("filter: Listen well.")
        other = {"judge": endpoint, "prompt_file": str(tmp_path / "prompts.yaml")}
        path = write_settings(folder=str(built), output_dir=str(tmp_path / "other"), **other)
        verdicts = itertools.repeat(5)
        assert main(["filter", "--config", path]) == 0
        assert len(server.requests) == 10
    assert server.requests[-1]["messages"][0]["content"] == "Listen well."
    report, asked_again = (json.loads((tmp_path / name / "report.json").read_text()) for name in ("kept", "other"))
    versions = {each["config"]["filter"]["prompt_versions"]["filter"] for each in (report, asked_again)}
    assert len(versions) == 2
    assert report["drops"] == {"low_quality": 1}
    assert report["judge_usage"]["cached"] == 5
    assert report["judge_usage"]["reused_prompt_tokens"] == 500
    rows = [row for _, row in read_rows(tmp_path / "kept")]
    judged = [row["quality"] for row in rows if row["criterion"] == "modality"]
    assert sorted(quality["rejected"]["content"] for quality in judged) == [3, 5, 5, 5]
    assert {quality["judge"] for quality in judged} == {"ears"}
    assert "secret-of-the-judge" not in "".join(p.read_text() for p in tmp_path.rglob("*.json"))


def test_filter_without_a_judge_takes_a_folder_of_shards_alone_and_a_dry_run_writes_nothing(
    built, tmp_path, write_settings, capsys
):
    shutil.copytree(built / "data", tmp_path / "bare" / "data")
    path = write_settings(folder=str(tmp_path / "bare"), output_dir=str(tmp_path / "kept"))
    assert main(["filter", "--config", path, "--dry-run"]) == 0
    assert "7 pairs" in capsys.readouterr().out
    assert not (tmp_path / "kept").exists()
    assert main(["filter", "--config", path, "--strict"]) == 0
    report = json.loads((tmp_path / "kept" / "report.json").read_text())
    assert (report["languages"], report["filtered_from"], list(report["config"])) == (["en"], None, ["filter"])


def test_fetch_takes_recordings_that_the_youtube_source_then_reads(tmp_path, write_settings, capsys):
    shutil.copy(min((SAMPLE / "asterisk").glob("*.ogg")), tmp_path / "talk.ogg")
    options = {"videos": [(tmp_path / "talk.ogg").as_uri()], "allow_file_urls": True, "sleep_s": 0}
    path = write_settings(youtube={"output_dir": str(tmp_path / "audio"), **options})
    assert main(["fetch", "--config", path, "--dry-run"]) == 0
    assert not (tmp_path / "audio").exists()
    assert main(["fetch", "--config", path, "--strict"]) == 0
    out = capsys.readouterr().out
    assert "would fetch bestaudio/best" in out and "1 fetched, 0 already present" in out
    assert [item.source for item in read_source("youtube", tmp_path / "audio")] == ["youtube"]


def test_dry_runs_of_bench_and_release_count_and_stats_may_be_of_one_split(built, tmp_path, capsys):
    bench = tmp_path / "bench" / "sdiareward"
    arguments = ["bench", str(built), "--output-dir", str(bench), "--cap", "1", "--candidates", "all"]
    assert main([*arguments, "--dry-run"]) == 0
    assert main(["release", str(built), "--output-dir", str(tmp_path / "release"), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "by split: test 3, train" in out and f"{tmp_path / 'release'}: 7 pairs" in out
    assert list(tmp_path.iterdir()) == []
    assert main(["stats", str(built), "--output-dir", str(tmp_path / "stats"), "--split", "test"]) == 0
    found = json.loads((tmp_path / "stats" / "stats.json").read_text())["pairs"]
    assert found == sum(split == "test" for split, _ in read_rows(built, ["pair_id"]))


@pytest.mark.parametrize(
    ("command", "text", "problem"),
    [
        ("fetch", "{}", "exactly one of youtube, scripts and chatreward"),
        ("fetch", "{scripts: {output: x}}", "scripts needs output"),
        ("filter", "{folder: a, output_dir: ./a}", "is the data set itself"),
        ("filter", "{folder: a, output_dir: b, annotate: true}", "needs a judge"),
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
