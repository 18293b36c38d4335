"""The Spaces of the demo and of the metric."""

import os
import runpy
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml
from support.paths import ROOT
from support.repository_world import content_of

import sdiareward
from sdiareward.cards.push import plan_metric, plan_space
from sdiareward.esdr_accuracy import app as metric_app
from sdiareward.esdr_accuracy.pairwise import COLUMNS, pairwise_accuracy
from sdiareward.serving.demo import app


@pytest.mark.parametrize("model", [None, "me/nano@" + "a" * 40])
def test_the_space_runs_the_demo_of_this_version(model, snapshot):
    plan = plan_space(model, hardware="zero-a10g")
    files = {file.path_in_repo: content_of(file).decode() for file in plan.files}
    assert set(files) == {"README.md", "app.py", "requirements.txt"} and plan.repo_type == "space"
    assert files["requirements.txt"] == f"sdiareward[demo]=={sdiareward.__version__}\n"
    assert files["app.py"].endswith((ROOT / "serving" / "demo" / "space_app.py").read_text())
    wheel = f"sdiareward {sdiareward.__version__}"
    assert plan.notes == [f"it installs {wheel} from PyPI and cannot be built before that version is published."]
    assert files["README.md"].replace(f"`sdiareward` {sdiareward.__version__}", "`sdiareward` VERSION") == snapshot
    with pytest.raises(ValueError, match="seems to be a folder, not a name on the Hub"):
        plan_space(str(ROOT))


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
    exec(content_of(plan_space(planned).files[1]), space)
    assert space["page"] == loaded


def test_the_spaces_name_the_gradio_that_the_tests_run_with():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    for plan in (plan_metric(), plan_space()):
        header = yaml.safe_load(content_of(plan.files[0]).decode().split("---")[1])
        assert header["sdk_version"] == pins["gradio"]


@pytest.fixture
def space(write_plan):
    """Return the folder of the metric's Space as it is published."""
    return write_plan(plan_metric("me/esdr_accuracy"))


def test_the_space_holds_the_metric_its_page_and_its_cases(space):
    names = {"README.md", "app.py", "esdr_accuracy.py", "pairwise.py", "requirements.txt", "tests.py"}
    assert {path.name for path in space.iterdir()} == names
    assert 'evaluate.load("me/esdr_accuracy")' in (space / "README.md").read_text()
    with pytest.raises(ValueError, match="only in a Space named esdr_accuracy"):
        plan_metric("me/accuracy")


@pytest.mark.slow
def test_the_space_works_where_the_package_is_not(space, tmp_path):
    pytest.importorskip("evaluate")
    code = (
        "import sys, runpy\n"
        "sys.modules['sdiareward'] = None\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "cases = runpy.run_path('tests.py', run_name='__main__')\n"
        "import evaluate\n"
        "cases['TEST_CASES'][0]['result']['wild'] = 0.25\n"
        "print(cases['find_failures'](evaluate.load('./esdr_accuracy.py')))\n"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    # The Space has no transformers either, which `evaluate` would import.
    (tmp_path / "transformers.py").write_text("raise ImportError")
    command = [sys.executable, "-I", "-c", code, tmp_path]
    done = subprocess.run(command, cwd=space, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['case 0: wild is 0.5, not 0.25']"


# The metric without `evaluate` around it.
METRIC = SimpleNamespace(compute=pairwise_accuracy)


def test_the_page_shows_the_metric_of_the_rows_that_were_typed():
    rows = [[2.0, 1.0, "wild"], ["1", "1.0", " wild "], ["", None, ""], [0.5, 0, "scripted"]]
    table = {row[0]: row[1:] for row in metric_app.compute_rows(METRIC, rows)}
    assert tuple(table) == COLUMNS
    assert table["wild"] == ["0.5000", table["wild"][1], "2", "2", "1"]
    assert table["scripted"][1] == "no interval"
    assert table["semi_wild"] == ["no pairs", "", "0", "0", "0"]
    for row, message in ([1.0, "", "wild"], "pair 1"), ([1.0, "much", "wild"], "'much'"), ([1.0, 0.0, "x"], "'x'"):
        with pytest.raises(ValueError, match=message):
            metric_app.compute_rows(METRIC, [row])


@pytest.mark.slow
def test_the_page_runs_and_answers(space):
    pytest.importorskip("evaluate")
    pytest.importorskip("gradio")
    client = pytest.importorskip("gradio_client")
    page = runpy.run_path(str(space / "app.py"))["build"]()
    _, url, _ = page.launch(prevent_thread_lock=True, quiet=True, server_name="127.0.0.1")
    try:
        rows = {"headers": ["chosen", "rejected", "subset"], "data": [[1, 0, "wild"]], "metadata": None}
        answer = client.Client(url, verbose=False).predict(rows, api_name="/compute")
        assert answer["data"][0][:2] == ["wild", "1.0000"]
    finally:
        page.close()
