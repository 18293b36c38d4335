"""Plan the Space of the metric, from which `evaluate.load("ORG/esdr_accuracy")` takes it."""

from __future__ import annotations

from sdiareward.common.package_files import METRIC

from .plan import PlannedFile, RepositoryPlan


_NAME = "esdr_accuracy"
_FILES = ("README.md", "app.py", f"{_NAME}.py", "pairwise.py", "requirements.txt", "tests.py")
_EXAMPLE_REPOSITORY = f"ORG/{_NAME}"


def plan_metric(repo_id: str | None = None) -> RepositoryPlan:
    """Plan the Space of the metric.

    Args:
        repo_id (`str`, *optional*): Name of the Space, for the example of its card.

    Raises:
        ValueError: The Space has another name than the metric: `evaluate` looks for a file of the Space's name.
    """
    if repo_id is not None and repo_id.rpartition("/")[2] != _NAME:
        raise ValueError(f"{repo_id}: evaluate.load finds the metric only in a Space named {_NAME}; name it so.")
    card = (METRIC / "README.md").read_text(encoding="utf-8")
    if repo_id is not None:
        card = card.replace(_EXAMPLE_REPOSITORY, repo_id)
    files = [PlannedFile("README.md", card.encode())]
    files += [PlannedFile(name, METRIC / name) for name in _FILES if name != "README.md"]
    return RepositoryPlan("space", files, space_sdk="gradio")
