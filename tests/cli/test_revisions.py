"""Models and data of the Hub at a revision, in every command that takes their names. The Hub is a fake."""

import json
import shutil
from pathlib import Path

import datasets
import httpx
import pytest
from huggingface_hub.errors import RevisionNotFoundError
from safetensors.torch import load_file, save_file

from sdiareward.checkpoint_io.models import fingerprint_model
from sdiareward.cli import main
from sdiareward.common.package import EXAMPLES, NANO
from sdiareward.dataset_builder.chatreward.scenarios import load_samples
from sdiareward.pairs.loading import load_pairs


COMMITS = {"v0.1": "a" * 40, "same": "a" * 40, "main": "b" * 40, None: "b" * 40}


@pytest.fixture
def hub(tmp_path, monkeypatch, tone_pairs):
    """Two commits of the model `ORG/m`, with other rewards, and of the pairs `ORG/d`, the first with fewer rows."""
    for commit, scale, rows in (("a" * 40, 2.0, 4), ("b" * 40, 1.0, len(tone_pairs))):
        model, data = (tmp_path / kind / commit for kind in ("model", "dataset"))
        shutil.copytree(NANO, model)
        weights = load_file(model / "model.safetensors")
        save_file(
            {**weights, "score.weight": weights["score.weight"] * scale}, model / "model.safetensors", {"format": "pt"}
        )
        data.mkdir(parents=True)
        tone_pairs.select(range(rows)).to_parquet(data / "test.parquet")

    def snapshot_download(name, *, allow_patterns, revision, repo_type):
        assert name in ("ORG/m", "ORG/d")
        commit = COMMITS.get(revision, revision)
        if commit not in COMMITS.values():
            raise RevisionNotFoundError(
                "404", response=httpx.Response(404, request=httpx.Request("GET", "https://hub"))
            )
        return str(tmp_path / repo_type / commit)

    load_builder = datasets.load_dataset_builder

    def load_dataset_builder(path, name=None, *, revision=None, **options):
        is_on_hub = path == "ORG/d"
        return load_builder(str(tmp_path / "dataset" / COMMITS.get(revision, revision)) if is_on_hub else path, name)

    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", lambda *_, **__: None)
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    monkeypatch.setattr("datasets.load_dataset_builder", load_dataset_builder)
    monkeypatch.chdir(tmp_path)


def score(capsys, *argv):
    assert main(["score", str(EXAMPLES / "human.json"), "--json", *argv]) == 0
    return json.loads(capsys.readouterr().out)["dialogues"][0]["reward"]


def test_a_revision_is_loaded_and_recorded_with_its_commit(hub, capsys):
    rewards = [score(capsys, *flags) for flags in ((), ("--model", "ORG/m", "--revision", "v0.1"))]
    assert rewards[1] == pytest.approx(2 * rewards[0])
    assert score(capsys, "--model", "ORG/m", "--revision", "b" * 40) == rewards[0]

    data = ["score", "--model", "ORG/m", "--dataset", "ORG/d", "--output_dir", "out"]
    old = [*data, "--revision", "v0.1", "--dataset_revision", "v0.1"]
    assert main(old) == 0
    job = json.loads(Path("out/summary.json").read_text())["job"]
    assert (job["model"]["name"], job["dataset"]) == (f"ORG/m@{'a' * 40}", f"ORG/d@{'a' * 40}")
    capsys.readouterr()
    assert main([*data, "--revision", "same", "--dataset_revision", "same"]) == 0
    assert "4 of 4 rows" in (line := capsys.readouterr().out) and "0 of them scored now" in line
    assert main([*data, "--revision", "main", "--dataset_revision", "same"]) == 2
    assert "a" * 40 in (line := capsys.readouterr().err) and "b" * 40 in line


def test_an_evaluation_records_both_and_a_study_reads_the_same_pairs(hub, capsys):
    flags = ["--model", "ORG/m", "--revision", "v0.1", "--dataset", "ORG/d", "--dataset_revision", "v0.1"]
    assert main(["eval", *flags, "--no_baselines", "--output_dir", "e"]) == 0
    config = json.loads(Path("e/results.json").read_text())["config"]
    assert {name: config[name] for name in ("model", "revision", "dataset", "dataset_revision")} == {
        "model": f"ORG/m@{'a' * 40}",
        "revision": "v0.1",
        "dataset": f"ORG/d@{'a' * 40}",
        "dataset_revision": "v0.1",
    }
    assert main(["human", "sample", "e", "--output_dir", "s", "--wrong", "1", "--high", "1"]) == 0
    checkpoint = shutil.copytree(NANO, "published", ignore=shutil.ignore_patterns("about.md"))
    assert main(["push", "model", checkpoint, "ORG/p", "--results", "e", "--preview", "preview"]) == 0
    card = Path("preview/README.md").read_text()
    assert f"revision: {'a' * 40}" in card and "type: ORG/d\n" in card


def test_adapters_have_another_fingerprint_on_another_revision_of_their_base(hub, monkeypatch):
    Path("adapters").mkdir()
    found = set()
    for revision in ("v0.1", "same", "main", None):
        config = {"base_model_name_or_path": "ORG/m", "revision": revision}
        Path("adapters/adapter_config.json").write_text(json.dumps(config))
        found.add(fingerprint_model("adapters"))
    # The file counts too.
    assert len(found) == 4
    Path("adapters/adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "ORG/m"}))
    before = fingerprint_model("adapters")
    monkeypatch.setitem(COMMITS, None, "a" * 40)
    assert fingerprint_model("adapters") != before


REFUSED = {
    "a local model": (("--model", str(NANO), "--revision", "v0.1"), "no revision v0.1"),
    "a model of the package": (("--model", "nano", "--revision", "v0.1"), "no revision v0.1"),
    "the default model": (("--revision", "v0.1"), "no revision v0.1"),
    "no such revision": (("--model", "ORG/m", "--revision", "v9"), "ORG/m: has no revision 'v9'"),
    "in the name": (("--model", "ORG/m@v0.1"), "--revision v0.1"),
    "local data": (("--dataset_revision", "v0.1", "--dataset", "dataset", "--output_dir", "o"), "no revision v0.1"),
    "no data": (("--dataset_revision", "v0.1"), "--dataset_revision"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_revision_of_what_has_none_is_refused(case, hub, capsys):
    flags, message = REFUSED[case]
    dialogue = () if "--dataset" in flags else (str(EXAMPLES / "human.json"),)
    assert main(["score", *dialogue, *flags]) == 2
    assert message in capsys.readouterr().err
    assert not Path("o").exists()


def test_data_that_are_not_of_the_revision_are_refused(hub, monkeypatch):
    with pytest.raises(ValueError, match="ORG/d@v0.1.*--"):
        load_pairs("ORG/d@v0.1", "test")
    # Without the Hub, `datasets` takes whatever it loaded last.
    other = datasets.load_dataset_builder("ORG/d", revision="main")
    monkeypatch.setattr("datasets.load_dataset_builder", lambda *_, **__: other)
    for load in (load_pairs, load_samples):
        with pytest.raises(ValueError, match=f"ORG/d@{'a' * 40}"):
            load(f"ORG/d@{'a' * 40}", "test")
