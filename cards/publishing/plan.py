"""The plan of a repository on the Hub: all of its files, known before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sdiareward.common.package_files import CARDS


RepoType = Literal["dataset", "model", "space"]
# Notices that must accompany the works of others.
NOTICES = CARDS / "notices"


@dataclass(frozen=True)
class PlannedFile:
    """One file of a repository.

    Args:
        path_in_repo (`str`): Its path in the repository, with `/` between folders.
        source (`Path` or `bytes`): A local file, which is read when it is sent, or the content itself.
    """

    path_in_repo: str
    source: Path | bytes

    @property
    def size_bytes(self) -> int:
        """Return the size of the content.

        Raises:
            OSError: The local file is gone.
        """
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size


@dataclass(frozen=True)
class RepositoryPlan:
    """The files of a push; nothing else is uploaded.

    Args:
        repo_type (`str`): `"dataset"`, `"model"` or `"space"`.
        files (`list[PlannedFile]`): The files.
        space_sdk (`str`, *optional*): The SDK of a Space, for instance `"gradio"`.
        notes (`list[str]`): Sentences to read before publishing, for instance on withheld audio.
    """

    repo_type: RepoType
    files: list[PlannedFile]
    space_sdk: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def total_bytes(self) -> int:
        """Return the size of all files together."""
        return sum(file.size_bytes for file in self.files)
