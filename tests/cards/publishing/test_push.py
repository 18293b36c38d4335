"""Pushes to a Hub that stands in for `HfApi`: what is asked of it, in which order."""

import json
import os
import shutil

import pytest

from sdiareward.cards.publishing.plan import PlannedFile, RepositoryPlan
from sdiareward.cards.publishing.uploading import PublishError, PushOptions, publish
from sdiareward.cli import main


CARD, WEIGHTS, SHARD = b"# A card\n", b"weights", b"rows"


def push(files, repo_id="ORG/name", repo_type="model", **options):
    plan = RepositoryPlan(repo_type, [PlannedFile(path, source) for path, source in files.items()])
    return publish(plan, repo_id, PushOptions(**options))


def test_all_files_arrive_in_one_commit(hub, tmp_path):
    shard = tmp_path / "shard"
    shard.write_bytes(SHARD)
    pushed = push({"README.md": CARD, "data/train.parquet": shard}, message="First words")
    assert hub.files() == {"README.md": CARD, "data/train.parquet": SHARD}
    [commit] = hub.called("create_commit")
    assert (commit["commit_message"], commit["parent_commit"]) == ("First words", "c0")
    assert (pushed.url, pushed.is_changed, pushed.notices) == ("http://hub/ORG/name", True, [])
    again = push({"README.md": CARD, "data/train.parquet": shard})
    assert (again.commit, again.is_changed) == (pushed.commit, False)
    assert hub.called("create_commit")[1]["parent_commit"] == pushed.commit


def test_a_name_alone_is_in_the_account_of_the_token(hub):
    assert push({"README.md": CARD}, "alone").url == "http://hub/ann/alone"


@pytest.mark.parametrize("is_new", [True, False])
def test_gate_and_privacy_are_set_before_a_file_is_sent(hub, is_new):
    if not is_new:
        push({"README.md": CARD})
        hub.calls.clear()
    push({"README.md": CARD + b"more"}, private=True, gated="manual")
    assert hub.is_private and hub.gated == "manual"
    names = [name for name, _ in hub.calls]
    assert names.index("update_repo_settings") < names.index("create_commit")
    assert [given["private"] for given in hub.called("create_repo")] == [True] * is_new


def test_a_missing_branch_is_made_and_main_stays(hub):
    push({"README.md": CARD})
    push({"README.md": CARD + b"dev"}, revision="dev")
    assert (hub.files(), hub.files("dev")) == ({"README.md": CARD}, {"README.md": CARD + b"dev"})


def test_a_pull_request_changes_no_branch(hub):
    push({"README.md": CARD})
    proposed = push({"README.md": CARD + b"better"}, create_pr=True)
    assert proposed.pull_request_url == "http://hub/ORG/name/discussions/1"
    assert (hub.files(), hub.files("refs/pr/1")) == ({"README.md": CARD}, {"README.md": CARD + b"better"})


def test_a_tag_names_the_commit_and_is_never_moved(hub):
    first = push({"README.md": CARD}, tag="v1")
    assert hub.tags == {"v1": first.commit}
    assert push({"README.md": CARD}, tag="v1").commit == first.commit
    push({"README.md": CARD + b"new"})
    hub.calls.clear()
    with pytest.raises(PublishError, match=f"tag 'v1' is already at commit {first.commit}"):
        push({"README.md": CARD + b"newer"}, tag="v1")
    with pytest.raises(PublishError, match="'v1' is a tag, which cannot move"):
        push({"README.md": CARD + b"newer"}, revision="v1")
    assert not hub.called("create_commit")


def test_shards_of_an_earlier_push_are_not_mixed_with_the_new_ones(hub):
    two = {"README.md": CARD, "data/train-0-of-2.parquet": SHARD, "data/train-1-of-2.parquet": SHARD}
    one = {"README.md": CARD, "data/train-0-of-1.parquet": SHARD}
    push(two, repo_type="dataset")
    with pytest.raises(PublishError, match=r"holds 2 data files that are not planned .* --prune"):
        push(one, repo_type="dataset")
    assert hub.files() == two
    assert push(one, repo_type="dataset", prune=True).notices == []
    assert hub.files() == one


def test_other_files_that_are_not_planned_stay_and_are_named(hub):
    push({"README.md": CARD, "notes.txt": b"kept"})
    pushed = push({"README.md": CARD + b"new"})
    assert pushed.notices == ["notes.txt is in the repository but not in the plan, and stays"]
    assert hub.files() == {"README.md": CARD + b"new", "notes.txt": b"kept"}


@pytest.mark.parametrize(
    ("refused", "status", "remedy"),
    [
        ("whoami", 401, "log in with `hf auth login` or set HF_TOKEN"),
        ("create_repo", 403, "use a token with write access, or propose the change with --create-pr"),
        ("create_commit", 412, "run the same command again, which resumes"),
        ("create_commit", 500, "run the same command again, which resumes"),
    ],
)
def test_what_the_hub_refuses_is_said_in_one_line_with_what_to_do(hub, refused, status, remedy):
    hub.failing[refused] = status
    with pytest.raises(PublishError) as error:
        push({"README.md": CARD})
    assert str(error.value).startswith(f"model ORG/name: {refused} is refused")
    assert remedy in str(error.value) and "\n" not in str(error.value)


def test_a_pull_request_to_a_repository_that_is_not_there_is_refused(hub):
    with pytest.raises(PublishError, match="Repository not found; create it, or check the name"):
        push({"README.md": CARD}, create_pr=True)
    assert not hub.called("create_repo")


def test_a_plan_that_holds_the_token_is_not_sent(hub):
    with pytest.raises(ValueError, match=r"run.json: seems to hold .*token"):
        push({"README.md": CARD, "run.json": json.dumps({"token": os.environ["HF_TOKEN"]}).encode()})
    assert not hub.calls


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--yes", "--create-pr", "--tag", "v1"], "a pull request changes files only"),
        (["--message", "with hf_" + "aB3" * 11], "the commit's message seems to hold an access token of the Hub"),
        (["--message", " "], "the commit has no message"),
    ],
)
def test_the_command_fails_in_one_line(hub, capsys, arguments, said):
    assert main(["push", "metric", "ORG/esdr_accuracy", *arguments]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and said in printed
    assert not hub.calls


def test_the_command_says_commit_and_page_and_what_is_new(hub, capsys):
    command = ["push", "metric", "ORG/esdr_accuracy", "--yes"]
    assert main([*command, "--message", "The metric", "--tag", "v1"]) == 0
    said = [f"commit {hub.tags['v1']}", "http://hub/ORG/esdr_accuracy"]
    assert capsys.readouterr().out.splitlines()[-2:] == said
    assert hub.called("create_repo")[0]["space_sdk"] == "gradio"
    assert main(command) == 0
    assert f"nothing new: commit {hub.tags['v1']}" in capsys.readouterr().out


def test_without_yes_the_files_are_listed_with_their_sizes_and_nothing_is_sent(hub, tiny_checkpoint, capsys):
    assert main(["push", "model", str(tiny_checkpoint), "ORG/dry"]) == 0
    printed = capsys.readouterr().out
    lines = {line.split()[0]: line.split()[1:] for line in printed.splitlines() if line.startswith("  ")}
    weights_kb = (tiny_checkpoint / "model.safetensors").stat().st_size / 1000
    assert float(lines["model.safetensors"][0].removesuffix("kB")) == pytest.approx(weights_kb, rel=0.01)
    assert float(lines["total"][0].removesuffix("kB")) > weights_kb
    assert "Nothing was sent" in printed and not hub.calls


def test_a_pickle_in_a_checkpoint_or_a_secret_beside_it_does_not_get_out(hub, tiny_checkpoint, tmp_path):
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")
    (folder / "optimizer.pt").write_bytes(b"pickle")
    (folder / "run.json").write_text(json.dumps({"hub_token": os.environ["HF_TOKEN"]}))
    assert main(["push", "model", str(folder), "ORG/clean", "--yes"]) == 0
    assert "model.safetensors" in hub.files() and not {"optimizer.pt", "run.json"} & set(hub.files())
