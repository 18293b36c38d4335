"""Write what a repository would show its readers: the card with its pictures, and the list of files."""

from __future__ import annotations

from pathlib import Path

from sdiareward.common.files import write_file
from sdiareward.common.user_errors import UserError

from .plan import RepositoryPlan


CARD, LISTING = "README.md", "files.txt"
_PICTURES = (".gif", ".jpg", ".png", ".svg")


def write_preview(plan: RepositoryPlan, listing: str, folder: Path) -> Path:
    """Write card, pictures and file list of a plan as they would be published.

    Args:
        plan (`RepositoryPlan`): The plan.
        listing (`str`): Its files and notes, for a reader.
        folder (`Path`): New or empty.

    Returns:
        `Path`: The card.

    Raises:
        UserError: The folder holds files, or is a file.
    """
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UserError(f"{folder}: is not an empty folder; give a new one for the preview.")
    folder.mkdir(parents=True, exist_ok=True)
    for file in plan.files:
        if file.path_in_repo == CARD or file.path_in_repo.endswith(_PICTURES):
            content = file.source if isinstance(file.source, bytes) else file.source.read_bytes()
            (folder / file.path_in_repo).parent.mkdir(parents=True, exist_ok=True)
            write_file(folder / file.path_in_repo, content)
    write_file(folder / LISTING, listing + "\n")
    return folder / CARD
