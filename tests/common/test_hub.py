"""What looks like a path is never asked of the Hub; for a name that is nowhere, the Hub is asked once."""

import pytest

from sdiareward.common.hub import ModelNotFoundError, require_local, require_model


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    (tmp_path / "checkpoints" / "nano").mkdir(parents=True)
    (tmp_path / "pairs.jsonl").touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["checkpoints/nano", "pairs.jsonl", "openai/whisper-tiny.en", "gpt2", "hf://a/b/c"])
def test_paths_that_exist_and_names_of_repositories_pass(name):
    require_local(name)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("checkpoint/nano", r"did you mean checkpoints/nano\?"),
        ("checkpoints/nanno", r"did you mean checkpoints/nano\?"),
        ("checkpoints/other", "correct the path, or give the name of a repository"),
        ("./nano", "correct the path"),
        ("~/nano", "correct the path"),
        ("/nowhere/nano", "correct the path"),
        ("runs/my/model", "correct the path"),
        ("nano/", "correct the path"),
        ("rows.parquet", "correct the path"),
        ("others.jsonl", "correct the path"),
        ("pair.jsonl", r"did you mean pairs.jsonl\?"),
    ],
)
def test_a_path_to_nothing_is_refused_with_the_nearest_that_exists(name, remedy):
    with pytest.raises(FileNotFoundError, match=f"^{name}: no such file or folder; {remedy}"):
        require_local(name)


class ConnectError(Exception):
    """As the library of connections has it."""


def test_without_a_connection_a_name_that_is_not_in_the_cache_is_asked_for_once(monkeypatch):
    asked = []

    def fail(self, name, **options):
        asked.append((name, options["timeout"]))
        raise ConnectError

    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", fail)
    with pytest.raises(ModelNotFoundError, match="some/model: .*the Hub cannot be reached"):
        require_model("some/model")
    assert asked == [("some/model", 2.0)]


def test_a_name_like_that_of_a_model_of_the_package_is_answered_with_it():
    with pytest.raises(ModelNotFoundError, match=r"nanno: .* did you mean nano\?"):
        require_model("nanno")
