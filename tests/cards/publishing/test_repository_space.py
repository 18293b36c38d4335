import os
from types import SimpleNamespace

import pytest
import yaml
from support.paths import ROOT

import sdiareward
from sdiareward.cards.publishing.spaces import plan_space
from sdiareward.serving.demo import app


def test_the_space_runs_the_demo_of_this_version():
    plan = plan_space(hardware="zero-a10g")
    files = {file.path_in_repo: file.source for file in plan.files}
    assert set(files) == {"README.md", "app.py", "requirements.txt"}
    assert (plan.repo_type, plan.space_sdk) == ("space", "gradio")
    assert files["requirements.txt"] == f"sdiareward[demo]=={sdiareward.__version__}\n".encode()
    assert files["app.py"] == (ROOT / "serving" / "demo" / "space_app.py").read_bytes()
    wheel = f"sdiareward {sdiareward.__version__}"
    assert plan.notes == [f"it installs {wheel} from PyPI and cannot be built before that version is published."]


@pytest.mark.parametrize(
    ("planned", "variable", "loaded"),
    [(None, None, None), ("ORG/big", None, "ORG/big"), ("ORG/big", "ORG/other", "ORG/other")],
)
def test_the_space_loads_the_model_that_its_card_names_unless_its_variable_names_another(
    planned, variable, loaded, monkeypatch
):
    # Set first, so that what the app sets is undone too.
    monkeypatch.setenv(app.MODEL_VARIABLE, variable or "")
    if variable is None:
        monkeypatch.delenv(app.MODEL_VARIABLE)
    monkeypatch.setattr(app, "build", lambda: os.environ.get(app.MODEL_VARIABLE))
    space = {"__name__": "app"}
    exec(plan_space(planned).files[1].source, space)
    assert space["page"] == loaded


def test_a_folder_that_no_space_has_is_refused(tmp_path):
    with pytest.raises(ValueError, match="seems to be a folder, not a name on the Hub"):
        plan_space(str(tmp_path))


def test_the_card_of_the_space_promises_what_the_page_says_of_recordings():
    kept = "memory for an hour after"
    assert kept in plan_space().files[0].source.decode()
    assert kept in app._describe_limits([SimpleNamespace(processor=SimpleNamespace(max_turn_s=1.0))])
    assert app._KEPT_S == 3600


def test_the_card_of_the_space_says_how_it_runs_and_what_it_shows():
    card = plan_space("me/nano", hardware="zero-a10g").files[0].source.decode()
    header = yaml.safe_load(card.split("\n---\n")[0].removeprefix("---\n"))
    assert (header["sdk"], header["app_file"], header["license"]) == ("gradio", "app.py", "apache-2.0")
    assert (header["models"], header["suggested_hardware"]) == (["me/nano"], "zero-a10g")
    assert len(header["short_description"]) <= 60
    assert "`me/nano`" in card and "$" not in card
    assert "models" not in yaml.safe_load(plan_space().files[0].source.decode().split("\n---\n")[0][4:])
