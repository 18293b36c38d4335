"""Pushes over HTTP to a Hub on this machine, by the unmodified `huggingface_hub`."""

import hashlib
import json

import pytest
from support.hub_client import MEMBER, READER, WRITER


CARD = "---\nlicense: mit\n---\n# A card\n"
WEIGHTS, SHARD = "weights " * 100, "rows " * 100


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture(scope="module", autouse=True)
def refusals_and_cards(user):
    """Know that what is searched for tokens at the end has what was printed and what was published."""
    yield
    everything = user.traces()
    assert b"PublishError" in everything and b"# A card" in everything


@pytest.fixture(autouse=True)
def healthy(hub):
    hub.requests.clear()
    yield
    hub.heal()


def files_of(hub, repo_id, revision="main", kind="model"):
    """Return what a repository holds, without what the Hub puts there itself."""
    store = hub.store
    files = store.repositories[kind, repo_id].files(revision)
    content = {path: store.objects[blob.sha256] if blob.sha256 else blob.content for path, blob in files.items()}
    return {path: text.decode() for path, text in content.items() if path != ".gitattributes"}


def test_all_files_arrive_in_one_commit_and_the_storage_sees_no_token(hub, user, tmp_path):
    shard = tmp_path / "shard"
    shard.write_text(SHARD)
    planned = {"README.md": CARD, "data/train.flac": shard, "model.safetensors": WEIGHTS}
    pushed = user.publish("ORG/whole", planned, message="First words").json
    assert files_of(hub, "ORG/whole") == {**planned, "data/train.flac": SHARD}
    repository = hub.store.repositories["model", "ORG/whole"]
    assert repository.messages[pushed["commit"]] == "First words" and len(repository.commits) == 2
    assert pushed["url"] == f"{hub.url}/ORG/whole" and pushed["is_changed"] and not pushed["notices"]
    assert [request.authorization for request in hub.sent("PUT", "^/objects/")] == [None, None]
    assert {request.authorization for request in hub.sent("POST", "/commit/")} == {f"Bearer {WRITER}"}


def test_a_name_alone_is_in_the_account_of_the_token(hub, user):
    assert user.publish("alone", {"README.md": CARD}).json["url"] == f"{hub.url}/ann/alone"
    assert files_of(hub, "ann/alone") == {"README.md": CARD}


def test_the_same_push_again_sends_nothing_and_changes_nothing(hub, user):
    first = user.publish("ORG/again", {"README.md": CARD, "model.safetensors": WEIGHTS + "a"}).json
    hub.requests.clear()
    second = user.publish("ORG/again", {"README.md": CARD, "model.safetensors": WEIGHTS + "a"}).json
    assert second["commit"] == first["commit"] and not second["is_changed"]
    assert not hub.sent("PUT", "") and not hub.sent("POST", "/commit/")


def test_a_large_file_goes_in_parts(hub, user):
    large = "".join(map(str, range(1000)))
    hub.part_bytes = 1000
    try:
        user.publish("ORG/large", {"README.md": CARD, "model.safetensors": large}).json  # noqa: B018
    finally:
        hub.part_bytes = 2**24
    assert len(large) == 2890 and len(hub.sent("PUT", "^/parts/")) == 3 and not hub.sent("PUT", "^/objects/")
    assert files_of(hub, "ORG/large")["model.safetensors"] == large


def test_a_long_list_of_files_is_read_page_by_page(hub, user):
    planned = {"README.md": CARD, **{f"data/{number}.txt": str(number) for number in range(7)}}
    hub.page_entries = 3
    try:
        user.publish("ORG/pages", planned).json  # noqa: B018
    finally:
        hub.page_entries = 1000
    assert files_of(hub, "ORG/pages") == planned


def test_a_private_repository_is_private_from_the_first_file_on(hub, user):
    user.publish("ORG/secret", {"README.md": CARD}, private=True)
    assert hub.store.repositories["model", "ORG/secret"].is_private
    assert hub.sent("POST", "/repos/create")[0].json["visibility"] == "private"


def test_a_public_repository_is_made_private_before_anything_is_sent(hub, user):
    user.publish("ORG/hidden", {"README.md": CARD})
    hub.requests.clear()
    user.publish("ORG/hidden", {"README.md": CARD + "more"}, private=True)
    assert hub.store.repositories["model", "ORG/hidden"].is_private
    order = [request.path.rpartition("ORG/hidden")[2] for request in hub.requests]
    assert order.index("/settings") < order.index("/preupload/main")


@pytest.mark.parametrize("gate", ["auto", "manual"])
def test_the_gate_is_set_before_anything_is_sent(hub, user, gate):
    user.publish(f"ORG/{gate}", {"README.md": CARD}, gated=gate, repo_type="dataset")
    assert hub.store.repositories["dataset", f"ORG/{gate}"].gated == gate
    order = [request.path.rpartition(f"ORG/{gate}")[2] for request in hub.requests]
    assert order.index("/settings") < order.index("/preupload/main")


def test_a_missing_branch_is_made_and_main_stays(hub, user):
    user.publish("ORG/branch", {"README.md": CARD})
    user.publish("ORG/branch", {"README.md": CARD + "dev"}, revision="dev")
    assert files_of(hub, "ORG/branch", "dev") == {"README.md": CARD + "dev"}
    assert files_of(hub, "ORG/branch") == {"README.md": CARD}


def test_who_may_only_read_proposes_a_pull_request(hub, user):
    user.publish("ORG/open", {"README.md": CARD})
    proposed = user.publish("ORG/open", {"README.md": CARD + "better"}, token=READER, create_pr=True).json
    assert proposed["pull_request_url"] == f"{hub.url}/ORG/open/discussions/1"
    assert files_of(hub, "ORG/open") == {"README.md": CARD}
    assert files_of(hub, "ORG/open", "refs/pr/1") == {"README.md": CARD + "better"}


@pytest.mark.slow
def test_a_tag_names_the_commit_and_is_never_moved(hub, user):
    first = user.publish("ORG/tagged", {"README.md": CARD}, tag="v1").json
    assert hub.store.repositories["model", "ORG/tagged"].tags == {"v1": first["commit"]}
    assert user.publish("ORG/tagged", {"README.md": CARD}, tag="v1").json["commit"] == first["commit"]
    user.publish("ORG/tagged", {"README.md": CARD + "new"})
    hub.requests.clear()
    refused = user.publish("ORG/tagged", {"README.md": CARD + "newer"}, tag="v1")
    assert refused.code == 2 and f"tag 'v1' is already at commit {first['commit']}" in refused.err
    assert not hub.sent("POST", "/preupload/")


def test_a_tag_is_no_branch_to_push_to(hub, user):
    user.publish("ORG/fixed", {"README.md": CARD}, tag="v1")
    refused = user.publish("ORG/fixed", {"README.md": CARD + "new"}, revision="v1")
    assert refused.code == 2 and "'v1' is a tag, which cannot move" in refused.err


def test_shards_of_an_earlier_push_are_not_mixed_with_the_new_ones(hub, user):
    two = {"README.md": CARD, "data/train-0-of-2.parquet": SHARD + "0", "data/train-1-of-2.parquet": SHARD + "1"}
    one = {"README.md": CARD, "data/train-0-of-1.parquet": SHARD}
    user.publish("ORG/shards", two, repo_type="dataset")
    refused = user.publish("ORG/shards", one, repo_type="dataset")
    assert refused.code == 2 and "holds 2 data files that are not planned" in refused.err and "--prune" in refused.err
    assert files_of(hub, "ORG/shards", kind="dataset") == two
    assert user.publish("ORG/shards", one, repo_type="dataset", prune=True).json["notices"] == []
    assert files_of(hub, "ORG/shards", kind="dataset") == one


def test_other_files_that_are_not_planned_stay_and_are_named(hub, user):
    user.publish("ORG/others", {"README.md": CARD, "notes.txt": "kept"})
    pushed = user.publish("ORG/others", {"README.md": CARD + "new"}).json
    assert pushed["notices"] == ["notes.txt is in the repository but not in the plan, and stays"]
    assert files_of(hub, "ORG/others") == {"README.md": CARD + "new", "notes.txt": "kept"}


def test_a_file_that_the_repository_ignores_is_not_lost_silently(hub, user):
    user.publish("ORG/ignores", {"README.md": CARD, ".gitignore": "model.safetensors"})
    refused = user.publish("ORG/ignores", {"README.md": CARD, "model.safetensors": WEIGHTS})
    assert refused.code == 2 and "model.safetensors is missing from commit" in refused.err


def test_the_commit_names_the_one_that_it_follows(hub, user):
    first = user.publish("ORG/parent", {"README.md": CARD}).json
    user.publish("ORG/parent", {"README.md": CARD + "new"})
    header = json.loads(hub.sent("POST", "/commit/main")[-1].body.splitlines()[0])
    assert header["value"]["parentCommit"] == first["commit"]


def test_a_card_that_the_hub_refuses_is_said_before_anything_is_sent(hub, user):
    refused = user.publish("ORG/card", {"README.md": "---\nlicense: no such\n---\n", "a.parquet": SHARD + "x"})
    assert refused.code == 2 and '"license" must be one of' in refused.err
    assert not hub.sent("PUT", "^/objects/")


@pytest.mark.slow
def test_a_connection_that_breaks_in_mid_upload_is_taken_up_again(hub, user):
    planned = {"README.md": CARD, "a.safetensors": WEIGHTS + "1", "b.safetensors": WEIGHTS + "2"}
    second = sha256(planned["b.safetensors"])
    hub.break_off(f"PUT /objects/{second}", after_bytes=100)
    user.publish("ORG/broken", planned).json  # noqa: B018
    assert hub.broken.is_set() and files_of(hub, "ORG/broken") == planned
    assert [hub.store.times_sent[sha256(planned[name])] for name in ("a.safetensors", "b.safetensors")] == [1, 1]


def test_a_push_that_was_killed_in_mid_upload_goes_on_and_sends_nothing_twice(hub, user):
    planned = {"README.md": CARD, "a.safetensors": WEIGHTS + "3", "b.safetensors": WEIGHTS + "4"}
    first, second = sha256(planned["a.safetensors"]), sha256(planned["b.safetensors"])
    hub.break_off(f"PUT /objects/{second}", after_bytes=100, hang_s=1)
    killed = user.publish("ORG/killed", planned, kill_when=lambda: hub.broken.is_set() and first in hub.store.objects)
    assert killed.code == -9 and files_of(hub, "ORG/killed") == {}
    hub.requests.clear()
    user.publish("ORG/killed", planned).json  # noqa: B018
    assert files_of(hub, "ORG/killed") == planned
    assert [request.path for request in hub.sent("PUT", "^/objects/")] == [f"/objects/{second}"]
    assert hub.store.times_sent[first] == hub.store.times_sent[second] == 1


def test_a_commit_whose_answer_is_lost_is_made_by_the_same_command(hub, user):
    planned = {"README.md": CARD, "a.safetensors": WEIGHTS + "5"}
    hub.break_off("POST .*/commit/", after_bytes=10)
    refused = user.publish("ORG/lost", planned)
    assert (
        refused.code == 2
        and "the connection failed" in refused.err
        and "resumes and sends no file twice" in refused.err
    )
    user.publish("ORG/lost", planned).json  # noqa: B018
    assert files_of(hub, "ORG/lost") == planned and hub.store.times_sent[sha256(planned["a.safetensors"])] == 1


@pytest.mark.slow
def test_a_hub_in_trouble_for_a_moment_is_asked_again(hub, user):
    planned = {"README.md": CARD, "a.safetensors": WEIGHTS + "6"}
    hub.fail("PUT /objects/", 503)
    hub.fail("POST .*/preupload/", 429)
    user.publish("ORG/moment", planned).json  # noqa: B018
    assert files_of(hub, "ORG/moment") == planned


def last_line(done):
    assert done.code == 2, done.err
    return done.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("request_", "status", "said"),
    [
        ("GET /api/whoami-v2", 503, "failed (503: as the test says); the Hub is in trouble; later, run the same"),
        ("POST /api/repos/create", 402, "refused (402: as the test says); choose an account"),
        ("POST .*/commit/", 500, "failed (500: as the test says); the Hub is in trouble"),
        ("POST .*/commit/", 412, "refused (412: as the test says); somebody else changed it meanwhile"),
        ("POST .*/commit/", 413, "refused (413: as the test says); a file is too large"),
        ("POST .*/commit/", 429, "refused (429: as the test says); too many requests; wait a while"),
        ("POST .*/tag/", 409, "refused (409: as the test says); another change"),
    ],
)
def test_what_the_hub_refuses_is_said_in_one_line_with_what_to_do(hub, user, request_, status, said):
    hub.fail(request_, status)
    name = f"ORG/refused-{status}-{len(hub.store.repositories)}"
    assert said in last_line(user.publish(name, {"README.md": CARD}, tag="v1"))


@pytest.mark.slow
def test_trouble_that_lasts_is_given_up_after_the_retries_of_the_library(hub, user):
    hub.fail("POST .*/preupload/", 502, times=6)
    assert "failed (502: as the test says)" in last_line(user.publish("ORG/lasting", {"README.md": CARD}))
    assert user.publish("ORG/lasting", {"README.md": CARD}).code == 0


@pytest.mark.parametrize(
    ("repo_id", "token", "options", "said"),
    [
        ("ORG/a", None, {}, "no token of the Hub was found; log in with `hf auth login` or set HF_TOKEN"),
        ("ORG/a", "hf_unknown", {}, "the Hub does not know the token"),
        ("ORG/a", READER, {}, 'You don\'t have the rights to create a model under the namespace "ORG"'),
        ("ORG/a", MEMBER, {}, "use a token with write access"),
        ("ORG/nowhere", READER, {"create_pr": True}, "model ORG/nowhere: not found (404: Repository not found)"),
        ("no--name", WRITER, {}, "repo_id"),
        ("a/b/c", WRITER, {}, "Repo id"),
    ],
)
def test_whoever_may_not_push_is_told_why_in_one_line(user, repo_id, token, options, said):
    assert said in last_line(user.publish(repo_id, {"README.md": CARD}, token=token, **options))


def test_nobody_writes_to_the_repository_of_another(hub, user):
    user.publish("ORG/ours", {"README.md": CARD})
    refused = user.publish("ORG/ours", {"README.md": "taken over"}, token=READER)
    assert "refused (403: Authorization error.); use a token with write access" in last_line(refused)
    assert files_of(hub, "ORG/ours") == {"README.md": CARD}


def test_a_token_that_the_hub_repeats_is_not_shown(hub, user):
    warning = {"X-HF-Warning": f"token; do not use {WRITER}"}
    hub.fail("POST .*/commit/", 500, message=f"Authorization: Bearer {WRITER} is wrong", **warning)
    refused = user.publish("ORG/echo", {"README.md": CARD})
    assert "failed (500: Authorization: ***" in last_line(refused) and "do not use ***" in refused.err


def test_a_token_that_no_header_can_hold_is_not_shown(user):
    refused = user.publish("ORG/odd", {"README.md": CARD}, token=WRITER + "\x01")
    assert refused.code == 2 and "\x01" not in refused.err


def test_a_plan_that_holds_the_token_is_not_sent(hub, user):
    refused = user.publish("ORG/leak", {"README.md": CARD, "run.json": json.dumps({"token": WRITER})})
    assert "run.json: seems to hold the token in use" in last_line(refused)
    assert not hub.requests


PUSH_ONE_FILE = """
import sys
from sdiareward.cards.publishing.plan import PlannedFile, RepositoryPlan
from sdiareward.cards.publishing.uploading import PublishError, publish
try:
    publish(RepositoryPlan("model", [PlannedFile("a.safetensors", b"# A card")]), "ORG/away")
except PublishError as error:
    sys.exit(f"PublishError: {error}")
"""


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "model ORG/away: the connection failed (ConnectError"),
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set, so nothing can be published; unset it."),
    ],
)
def test_without_a_connection_the_reason_is_given_in_one_line(user, settings, said):
    assert said in user.python(PUSH_ONE_FILE, token=WRITER, **settings).err.splitlines()[-1]


@pytest.mark.slow
def test_the_debug_log_of_the_library_shows_no_token(user):
    done = user.python(PUSH_ONE_FILE, token=WRITER, HF_DEBUG="1")
    assert "authorization: ***" in done.err and WRITER not in done.err


@pytest.mark.slow
def test_an_endpoint_without_xet_is_an_error_that_says_how_to_do_without(user):
    pytest.importorskip("hf_xet", reason="hf_xet is not installed: large files go by LFS")
    refused = user.python(PUSH_ONE_FILE, token=WRITER, HF_HUB_DISABLE_XET="0")
    assert refused.code == 1 and "set HF_HUB_DISABLE_XET=1" in refused.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "token", "said"),
    [
        (["--yes"], None, "no token of the Hub was found"),
        (["--yes"], "hf_unknown", "the Hub does not know the token (401); log in"),
        (["--yes"], READER, "refused (403: You don't have the rights to create a space"),
        (["--yes", "--create-pr", "--tag", "v1"], WRITER, "a pull request changes files only"),
        (["--message", f"with {WRITER}"], None, "the commit's message seems to hold an access token of the Hub"),
        (["--message", " "], None, "the commit has no message"),
    ],
)
def test_the_command_fails_in_one_line(hub, user, arguments, token, said):
    hub.requests.clear()
    refused = user.push("metric", "ORG/esdr_accuracy", *arguments, token=token)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert refused.err.startswith("sdiareward push metric: error: ")
    assert said in refused.err
    assert not hub.sent("POST", "/commit/")


def test_the_command_says_commit_and_page_and_what_is_new(hub, user):
    first = user.push("metric", "ORG/esdr_accuracy", "--yes", "--message", "The metric", "--tag", "v1")
    repository = hub.store.repositories["space", "ORG/esdr_accuracy"]
    commit = repository.tags["v1"]
    assert first.out.splitlines()[-2:] == [f"commit {commit}", f"{hub.url}/spaces/ORG/esdr_accuracy"]
    assert repository.messages[commit] == "The metric"
    again = user.push("metric", "ORG/esdr_accuracy", "--yes")
    assert f"nothing new: commit {commit}" in again.out
