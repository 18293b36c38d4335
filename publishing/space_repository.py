"""Plan the Space of the demo: its entry, the package that it installs, and its card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import Template

import sdiareward
from sdiareward.publishing.plan import PlannedFile, RepositoryPlan


# That the demo was tested with; the Hub installs the SDK from the card, not from the requirements.
GRADIO_VERSION = "6.31.0"
PYTHON_VERSION = "3.12"
_PACKAGE = Path(__file__).resolve().parent.parent
_APP = _PACKAGE / "demo" / "space_app.py"
_CARD = _PACKAGE / "cards" / "space_card.md"


def plan_space(models: Sequence[str] = (), *, hardware: str = "cpu-basic") -> RepositoryPlan:
    """Plan the Space of the demo.

    Args:
        models (`Sequence[str]`, *optional*): Models on the Hub that it shows; by default the one of the package alone.
        hardware (`str`, *optional*, defaults to `"cpu-basic"`): What the Hub suggests to somebody who duplicates it.
    """
    files = [
        PlannedFile("README.md", _render_card(models, hardware).encode()),
        PlannedFile("app.py", _APP),
        PlannedFile("requirements.txt", f"sdiareward[demo]=={sdiareward.__version__}\n".encode()),
    ]
    return RepositoryPlan("space", files, space_sdk="gradio")


def _render_card(models: Sequence[str], hardware: str) -> str:
    from huggingface_hub import SpaceCardData

    data = SpaceCardData(
        title="Spoken dialogue rewards",
        emoji="🎧",
        colorFrom="indigo",
        colorTo="gray",
        sdk="gradio",
        sdk_version=GRADIO_VERSION,
        python_version=PYTHON_VERSION,
        app_file="app.py",
        license="apache-2.0",
        models=list(models) or None,
        tags=["reward-model", "spoken-dialogue", "sdiareward"],
        suggested_hardware=hardware,
        short_description="How much does a spoken dialogue sound like people?",
    )
    named = ", ".join(f"`{name}`" for name in models) or "a reward model"
    return Template(_CARD.read_text(encoding="utf-8")).substitute(
        header=data.to_yaml(), models=named, version=sdiareward.__version__
    )
