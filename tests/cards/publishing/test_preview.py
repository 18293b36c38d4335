"""What a push would publish, written into a folder."""

import pytest

from sdiareward.cards.publishing.plan import PlannedFile, RepositoryPlan, write_preview
from sdiareward.cli import main
from sdiareward.common.package_files import NANO
from sdiareward.common.user_errors import UserError


def test_card_pictures_and_list_are_written_and_nothing_else(tmp_path):
    (tmp_path / "card.md").write_text("# Card")
    files = [
        PlannedFile("README.md", tmp_path / "card.md"),
        PlannedFile("images/rewards.png", b"png"),
        PlannedFile("model.safetensors", b"weights"),
    ]
    card = write_preview(RepositoryPlan("model", files), "model ORG/x: 3 files", tmp_path / "seen")
    assert card.read_text() == "# Card"
    found = {path.relative_to(tmp_path / "seen").as_posix() for path in card.parent.rglob("*") if path.is_file()}
    assert found == {"README.md", "files.txt", "images/rewards.png"}
    assert (tmp_path / "seen" / "files.txt").read_text() == "model ORG/x: 3 files\n"
    with pytest.raises(UserError, match="seen: is not an empty folder"):
        write_preview(RepositoryPlan("model", files), "", tmp_path / "seen")


def test_the_command_shows_the_card_and_sends_nothing(tmp_path, capsys):
    assert main(["push", "metric", "ORG/esdr_accuracy", "--preview", str(tmp_path / "seen")]) == 0
    printed = capsys.readouterr().out
    assert f"Card: {tmp_path / 'seen' / 'README.md'}" in printed and "Nothing was sent." in printed
    listing = (tmp_path / "seen" / "files.txt").read_text()
    assert listing.splitlines()[0] in printed and "README.md" in listing
    assert (tmp_path / "seen" / "README.md").read_text().startswith("---\n")


def test_a_pushed_model_keeps_the_picture_of_its_results(tmp_path):
    assert main(["push", "model", str(NANO), "ORG/nano", "--preview", str(tmp_path / "seen")]) == 0
    assert "](rewards.png)" in (tmp_path / "seen" / "README.md").read_text()
    assert (tmp_path / "seen" / "rewards.png").read_bytes() == (NANO / "rewards.png").read_bytes()
