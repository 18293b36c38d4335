"""Plans that are checked, shown and pushed to a Hub that stands in for `HfApi`."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import CommitOperationAdd

from sdiareward.cards.push import PublishError, RepositoryPlan, check_plan, publish
from sdiareward.cli import main
from sdiareward.common.package import NANO


TOKEN = "hf_" + "aB3" * 11
CARD, SHARD = b"# A card\n", b"rows"


def plan(files, repo_type="model"):
    return RepositoryPlan(repo_type, [CommitOperationAdd(path, source) for path, source in files.items()])


def push(files, repo_id="ORG/name", repo_type="model", **options):
    return publish(plan(files, repo_type), repo_id, **options)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *(
            (name, b"harmless", "can run code when loaded")
            for name in ("a.bin", "a.PTH", "a.pkl", "e=1.ckpt", "a.joblib")
        ),
        ("run.json", f'begin {{"hub_token": "{TOKEN}"}} end'.encode(), "an access token of the Hub"),
        ("a b.txt", b"begin -----BEGIN PRIVATE KEY-----\nMIIE end", "a private key"),
        ("key", b"begin -----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl end", "a private key"),
        ("run.json", b"begin the-token-in-use end", "the token in use"),
    ],
)
def test_a_file_that_must_not_be_sent_is_named_and_a_secret_not_repeated(name, content, message):
    with pytest.raises(ValueError, match=f"{name}: .*{message}") as error:
        check_plan(plan({"README.md": CARD, name: content}), ["the-token-in-use"])
    assert TOKEN not in str(error.value) and "the-token-in-use" not in str(error.value)


def test_a_plan_of_ordinary_files_and_of_what_resembles_secrets_is_accepted():
    texts = ["hf_hub_download", "hf_" + "a" * 29, "-----BEGIN PUBLIC KEY-----", "-----BEGIN CERTIFICATE-----", ""]
    check_plan(plan({f"data/{number} b.txt": text.encode() for number, text in enumerate(texts)}))


def test_a_token_deep_in_a_file_or_in_a_compressed_column_of_text_is_found(tmp_path):
    weights, table = tmp_path / "model.safetensors", tmp_path / "table.parquet"
    weights.write_bytes(b"\0" * 9_000_000 + TOKEN.encode() + b"\0" * 100)
    # The first and the last stand in the statistics too, which are not compressed.
    turns = [{"text": text} for text in ("and", f"so, {TOKEN}", "well")]
    pq.write_table(pa.table({"turns": [turns], "number": [1]}), table, compression="gzip")
    assert TOKEN.encode() not in table.read_bytes()
    for path in (weights, table):
        with pytest.raises(ValueError, match=f"data/{path.name}: seems to hold an access token"):
            check_plan(plan({"README.md": CARD, f"data/{path.name}": path}))


def test_all_files_arrive_in_one_commit(hub, tmp_path):
    shard = tmp_path / "shard"
    shard.write_bytes(SHARD)
    pushed = push({"README.md": CARD, "data/train.parquet": SHARD, "notes.txt": shard}, message="First words")
    assert hub.files() == {"README.md": CARD, "data/train.parquet": SHARD, "notes.txt": SHARD}
    [commit] = hub.called("create_commit")
    assert (commit["commit_message"], commit["parent_commit"]) == ("First words", "c0")
    assert (pushed.url, pushed.is_changed, pushed.kept) == ("http://hub/ORG/name", True, [])
    again = push({"README.md": CARD, "data/train.parquet": SHARD, "notes.txt": shard})
    assert (again.commit, again.is_changed) == (pushed.commit, False)
    assert hub.called("create_commit")[1]["parent_commit"] == pushed.commit
    assert push({"README.md": CARD}, "alone", prune=True).url == "http://hub/ann/alone"


@pytest.mark.parametrize("is_new", [True, False])
def test_gate_and_privacy_are_set_before_a_file_is_sent(hub, is_new):
    if not is_new:
        push({"README.md": CARD})
        hub.calls.clear()
    push({"README.md": CARD + b"more"}, private=True, gated="manual")
    assert hub.is_private and hub.gated == "manual"
    names = [name for name, _ in hub.calls]
    assert names.index("create_repo") < names.index("update_repo_settings") < names.index("create_commit")
    assert hub.called("create_repo")[0]["private"] is True


def test_another_branch_or_a_pull_request_leaves_main(hub):
    push({"README.md": CARD})
    push({"README.md": CARD + b"dev"}, revision="dev")
    proposed = push({"README.md": CARD + b"better"}, create_pr=True)
    assert proposed.pull_request_url == "http://hub/ORG/name/discussions/1"
    assert [hub.files(name) for name in ("main", "dev", "refs/pr/1")] == [
        {"README.md": CARD + end} for end in (b"", b"dev", b"better")
    ]


def test_a_pull_request_to_a_repository_that_is_not_there_is_refused(hub):
    with pytest.raises(PublishError, match="Repository not found; create it, or check the name"):
        push({"README.md": CARD}, create_pr=True)
    assert not hub.called("create_repo")


def test_a_tag_names_the_commit_and_is_never_moved(hub):
    first = push({"README.md": CARD}, tag="v1")
    assert hub.tags == {"v1": first.commit}
    assert push({"README.md": CARD}, tag="v1").commit == first.commit
    push({"README.md": CARD + b"new"})
    hub.calls.clear()
    for options in ({"tag": "v1"}, {"revision": "v1"}):
        with pytest.raises(PublishError, match="'v1'"):
            push({"README.md": CARD + b"newer"}, **options)
    assert not hub.called("create_commit")


def test_shards_of_an_earlier_push_are_not_mixed_with_the_new_ones_and_other_files_stay(hub):
    two = {"README.md": CARD, "notes.txt": b"kept", "data/train-0-of-2.parquet": SHARD, "data/1.parquet": SHARD}
    one = {"README.md": CARD, "data/train-0-of-1.parquet": SHARD}
    push(two, repo_type="dataset")
    with pytest.raises(PublishError, match=r"holds 2 data files that are not planned .* --prune"):
        push(one, repo_type="dataset")
    assert push({**two, "README.md": CARD * 2, "notes.txt": b"new"}, repo_type="dataset").kept == []
    del two["notes.txt"]
    assert push(two, repo_type="dataset").kept == ["notes.txt"] and hub.files()["notes.txt"] == b"new"
    assert push(one, repo_type="dataset", prune=True).kept == [] and hub.files() == one


@pytest.mark.parametrize(
    ("refused", "status", "remedy"),
    [
        ("whoami", 401, "log in with `hf auth login` or set HF_TOKEN"),
        ("create_repo", 403, "use a token with write access, or propose the change with --create-pr"),
        ("create_commit", 412, "run the same command again, which resumes"),
    ],
)
def test_what_the_hub_refuses_is_reported_in_one_line_with_what_to_do(hub, refused, status, remedy):
    hub.failing[refused] = status
    with pytest.raises(PublishError) as error:
        push({"README.md": CARD})
    assert str(error.value).startswith(f"model ORG/name: {refused} is refused")
    assert remedy in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("options", [{"message": " "}, {"message": TOKEN}, {"create_pr": True, "tag": "v1"}])
def test_wrong_options_are_refused_before_anything_is_sent(hub, options):
    with pytest.raises(ValueError):
        push({"README.md": CARD}, **options)
    assert not hub.calls


def test_the_command_publishes_with_yes(hub, capsys):
    command = ["push", "metric", "ORG/esdr_accuracy", "--yes"]
    assert main([*command, "--message", "The metric", "--tag", "v1"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [f"commit {hub.tags['v1']}", "http://hub/ORG/esdr_accuracy"]
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


def test_a_preview_is_card_pictures_and_list_in_a_new_folder(tmp_path, capsys):
    command = ["push", "model", str(NANO), "ORG/nano", "--preview", str(tmp_path / "seen")]
    assert main(command) == 0
    printed, seen = capsys.readouterr().out, tmp_path / "seen"
    assert {path.name for path in seen.iterdir()} == {"README.md", "files.txt", "index.html", "rewards.png"}
    assert f"Preview: {seen / 'index.html'}" in printed and "Nothing was sent." in printed
    assert (seen / "files.txt").read_text() in printed
    assert "](rewards.png)" in (seen / "README.md").read_text()
    assert (seen / "rewards.png").read_bytes() == (NANO / "rewards.png").read_bytes()
    page = (seen / "index.html").read_text()
    assert "<h1>SDiaReward nano</h1>" in page and 'src="data:image/png;base64,' in page and "pipeline_<wbr>tag" in page
    assert main(command) == 2 and "is not an empty folder" in capsys.readouterr().err
    shutil.rmtree(seen)
