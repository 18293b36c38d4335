"""What a repository on the Hub will hold: every file of it, known before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sdiareward.common.package_files import CARDS


RepoType = Literal["dataset", "model", "space"]
# Texts that go with the works of others.
NOTICES = CARDS / "notices"


@dataclass(frozen=True)
class PlannedFile:
    """One file of a repository.

    Args:
        path_in_repo (`str`): Where it will lie, relative to the repository's root, with `/` between folders.
        source (`Path` or `bytes`): A file on this machine, which is read when it is sent, or the content itself.
    """

    path_in_repo: str
    source: Path | bytes

    @property
    def size_bytes(self) -> int:
        """Return the size of the content.

        Raises:
            OSError: The file on this machine is gone.
        """
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size


@dataclass(frozen=True)
class RepositoryPlan:
    """All that a push uploads; nothing outside of a plan ever is.

    Args:
        repo_type (`str`): `"dataset"`, `"model"` or `"space"`.
        files (`list[PlannedFile]`): The files.
        space_sdk (`str`, *optional*): What runs a Space, for instance `"gradio"`.
        notes (`list[str]`): What a reader should know before publishing, a sentence each: what is withheld, and why.
    """

    repo_type: RepoType
    files: list[PlannedFile]
    space_sdk: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def total_bytes(self) -> int:
        """Return the size of all files together."""
        return sum(file.size_bytes for file in self.files)
