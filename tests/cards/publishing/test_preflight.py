import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sdiareward.cards.publishing.plan import PlannedFile, RepositoryPlan
from sdiareward.cards.publishing.preflight import check_plan, find_secret


TOKEN = "hf_" + "aB3" * 11
CARD = PlannedFile("README.md", b"# A card")


def plan(*files, repo_type="model"):
    return RepositoryPlan(repo_type, list(files))


def test_a_plan_of_ordinary_files_is_accepted():
    names = ["README.md", ".eval_results/esdr_bench.yaml", "data/modality/test-00000-of-00001.parquet", "a b.txt"]
    files = [PlannedFile(name, b"content") for name in names]
    check_plan(plan(*files))
    # It is the names that are accepted: with a secret in one of them the same plan is refused.
    with pytest.raises(ValueError, match="a b.txt: seems to hold"):
        check_plan(plan(*files[:-1], PlannedFile("a b.txt", TOKEN.encode())))


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "a.pt", "a.PTH", "a.pkl", "a.pickle", "epoch=1.ckpt", "a.joblib"]
)
def test_pickles_and_empty_plans_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}: .* can run code when loaded"):
        check_plan(plan(CARD, PlannedFile(name, b"harmless")))
    with pytest.raises(ValueError, match="nothing to publish"):
        check_plan(plan())


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (f'{{"hub_token": "{TOKEN}"}}', "an access token of the Hub"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE", "a private key"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl", "a private key"),
        ("-----BEGIN EC PRIVATE KEY-----\nMHcC", "a private key"),
        ("the-token-in-use", "the token in use"),
    ],
)
def test_a_file_that_holds_a_secret_is_refused_and_the_secret_not_repeated(content, found):
    with pytest.raises(ValueError, match=f"run.json: seems to hold {found}") as error:
        check_plan(plan(CARD, PlannedFile("run.json", f"begin {content} end".encode())), ["the-token-in-use"])
    assert content not in str(error.value)


@pytest.mark.parametrize(
    "content",
    [b"hf_", b"hf_hub_download", b"hf_" + b"a" * 29, b"-----BEGIN PUBLIC KEY-----", b"-----BEGIN CERTIFICATE-----"],
)
def test_what_only_resembles_a_secret_is_accepted(content):
    assert find_secret(content) is None
    check_plan(plan(CARD, PlannedFile("notes.txt", content)))


@pytest.mark.parametrize("offset", [-40, -20, -3, -1, 0])
def test_a_token_on_the_border_of_two_chunks_is_found(tmp_path, offset):
    """Large files are read in chunks of 8 MiB."""
    file = tmp_path / "table.parquet"
    file.write_bytes(b"\0" * (8 * 2**20 + offset) + TOKEN.encode() + b"\0" * 100)
    with pytest.raises(ValueError, match="table.parquet: seems to hold an access token"):
        check_plan(plan(CARD, PlannedFile("table.parquet", file)))


def test_a_token_in_a_compressed_column_of_text_is_found(tmp_path):
    file = tmp_path / "table.parquet"
    # The first and the last stand in the statistics too, which are not compressed.
    turns = [{"text": text} for text in ("and", f"so, {TOKEN}", "well")]
    pq.write_table(pa.table({"turns": [turns], "number": [1]}), file, compression="gzip")
    assert TOKEN.encode() not in file.read_bytes()
    with pytest.raises(ValueError, match=r"data/table.parquet: seems to hold an access token"):
        check_plan(plan(CARD, PlannedFile("data/table.parquet", file)))


def test_a_file_that_is_gone_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"shard\.parquet: no longer a file, but data/a\.parquet"):
        check_plan(plan(CARD, PlannedFile("data/a.parquet", tmp_path / "shard.parquet")))
