"""The plan of a repository on the Hub: all of its files, known before anything is sent, and its preview."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sdiareward.common.files import write_file
from sdiareward.common.package_files import CARDS
from sdiareward.common.user_errors import UserError


RepoType = Literal["dataset", "model", "space"]
# Notices that must accompany the works of others.
NOTICES = CARDS / "notices"
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_PICTURES = (".gif", ".jpg", ".png", ".svg")


@dataclass(frozen=True)
class PlannedFile:
    path_in_repo: str
    source: Path | bytes  # A local file, which is read when it is sent, or the content.

    @property
    def size_bytes(self) -> int:
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size


@dataclass(frozen=True)
class RepositoryPlan:
    """The files of a push; nothing else is uploaded."""

    repo_type: RepoType
    files: list[PlannedFile]
    space_sdk: str | None = None
    notes: list[str] = field(default_factory=list)  # To read before publishing.

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def write_preview(plan: RepositoryPlan, listing: str, folder: Path) -> Path:
    """Write card, pictures and `listing` of a plan into a new or empty folder; return the card."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UserError(f"{folder}: is not an empty folder; give a new one for the preview.")
    for file in plan.files:
        if file.path_in_repo == "README.md" or file.path_in_repo.endswith(_PICTURES):
            path = folder / file.path_in_repo
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, file.source if isinstance(file.source, bytes) else file.source.read_bytes())
    write_file(folder / "files.txt", listing + "\n")
    return folder / "README.md"


def is_hub_id(name: Any) -> bool:
    return isinstance(name, str) and _HUB_ID.fullmatch(name) is not None and not Path(name).exists()


def require_hub_ids(names: Iterable[str]) -> None:
    for name in names:
        if not is_hub_id(name):
            raise ValueError(f"{name!r}: seems to be a folder, not a name on the Hub; give ORG/NAME.")
