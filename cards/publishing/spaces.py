"""Plan the Spaces: the demo, and the metric, which `evaluate.load("ORG/esdr_accuracy")` takes from its Space."""

from __future__ import annotations

from string import Template

from sdiareward.common.hub import split_commit
from sdiareward.common.package_files import CARDS, DEMO, METRIC
from sdiareward.common.version import __version__

from .plan import PlannedFile, RepositoryPlan, require_hub_ids


# The tested version; the Hub installs the SDK from the card, not from the requirements.
GRADIO_VERSION = "6.31.0"
PYTHON_VERSION = "3.12"
_APP = DEMO / "space_app.py"
_CARD = CARDS / "space_card.md"
_DOCSTRING = '"""The page; `SDIAREWARD_MODEL`, a variable of the Space, names another model than is set here."""\n'
_IMPORT = "from sdiareward.serving.demo.app import "
_BUILD = "page = build()\n"
_METRIC = "esdr_accuracy"
_METRIC_FILES = ("app.py", f"{_METRIC}.py", "pairwise.py", "requirements.txt", "tests.py")


def plan_space(model: str | None = None, *, hardware: str = "cpu-basic") -> RepositoryPlan:
    require_hub_ids([split_commit(model)[0]] if model else [])
    files = [
        PlannedFile("README.md", _render_card(model, hardware).encode()),
        PlannedFile("app.py", _render_app(model).encode()),
        PlannedFile("requirements.txt", f"sdiareward[demo]=={__version__}\n".encode()),
    ]
    notes = [f"it installs sdiareward {__version__} from PyPI and cannot be built before that version is published."]
    return RepositoryPlan("space", files, space_sdk="gradio", notes=notes)


def _render_app(model: str | None) -> str:
    """Return the entry, with the model in its code; a pull request cannot set a variable of a Space."""
    app = _APP.read_text(encoding="utf-8")
    if model is None:
        return app
    imports = f"{_DOCSTRING}\nimport os\n\n{_IMPORT}MODEL_VARIABLE, "
    default = f'os.environ.setdefault(MODEL_VARIABLE, "{model}")\n'
    return imports + app.partition(_IMPORT)[2].replace(_BUILD, default + _BUILD)


def _render_card(model: str | None, hardware: str) -> str:
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
        models=[split_commit(model)[0]] if model else None,
        tags=["reward-model", "spoken-dialogue", "sdiareward"],
        suggested_hardware=hardware,
        short_description="How much does a spoken dialogue sound like people?",
    )
    return Template(_CARD.read_text(encoding="utf-8")).substitute(
        header=data.to_yaml(),
        model=f"`{model}`" if model else "the small model of the package",
        version=__version__,
    )


def plan_metric(repo_id: str | None = None) -> RepositoryPlan:
    if repo_id is not None and repo_id.rpartition("/")[2] != _METRIC:
        raise ValueError(f"{repo_id}: evaluate.load finds the metric only in a Space named {_METRIC}; name it so.")
    card = (METRIC / "README.md").read_text(encoding="utf-8")
    if repo_id is not None:
        card = card.replace(f"ORG/{_METRIC}", repo_id)
    files = [PlannedFile("README.md", card.encode())]
    files += [PlannedFile(name, METRIC / name) for name in _METRIC_FILES]
    return RepositoryPlan("space", files, space_sdk="gradio")
