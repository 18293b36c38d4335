import os
import runpy
import subprocess
import sys

import pytest
import yaml
from support.paths import ROOT

from sdiareward.cards.publishing.spaces import GRADIO_VERSION, plan_metric
from sdiareward.esdr_accuracy import app
from sdiareward.esdr_accuracy.pairwise import COLUMNS, pairwise_accuracy


@pytest.fixture
def space(tmp_path):
    """Return the folder of the metric's Space as it is published."""
    folder = tmp_path / "space"
    folder.mkdir()
    for file in plan_metric("me/esdr_accuracy").files:
        content = file.source if isinstance(file.source, bytes) else file.source.read_bytes()
        (folder / file.path_in_repo).write_bytes(content)
    return folder


def test_the_space_holds_the_metric_its_page_and_its_cases(space):
    names = {"README.md", "app.py", "esdr_accuracy.py", "pairwise.py", "requirements.txt", "tests.py"}
    assert {path.name for path in space.iterdir()} == names
    header = yaml.safe_load((space / "README.md").read_text().split("---")[1])
    assert (header["sdk"], header["app_file"]) == ("gradio", "app.py")
    assert {"evaluate", "metric"} <= set(header["tags"])
    assert 'evaluate.load("me/esdr_accuracy")' in (space / "README.md").read_text()


@pytest.mark.slow
def test_the_space_works_where_the_package_is_not(space, tmp_path):
    pytest.importorskip("evaluate")
    code = (
        "import sys, runpy\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'sdiareward': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hide())\n"
        "cases = runpy.run_path('tests.py', run_name='__main__')\n"
        "import evaluate\n"
        "cases['TEST_CASES'][0]['result']['wild'] = 0.25\n"
        "print(cases['find_failures'](evaluate.load('./esdr_accuracy.py')))\n"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-I", "-c", code]
    done = subprocess.run(command, cwd=space, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['case 0: wild is 0.5, not 0.25']"


def test_a_space_of_another_name_is_refused():
    with pytest.raises(ValueError, match="only in a Space named esdr_accuracy"):
        plan_metric("me/accuracy")


def test_the_page_shows_the_metric_of_the_rows_that_were_typed():
    rows = [[2.0, 1.0, "wild"], ["1", "1.0", " wild "], ["", None, ""], [0.5, 0, "scripted"]]
    table = {row[0]: row[1:] for row in app.compute_rows(PlainMetric(), rows)}
    assert tuple(table) == COLUMNS
    assert table["wild"] == ["0.5000", table["wild"][1], "2", "2", "1"]
    assert table["scripted"][1] == "no interval"
    assert table["semi_wild"] == ["no pairs", "", "0", "0", "0"]


class PlainMetric:
    """The metric without `evaluate` around it."""

    compute = staticmethod(pairwise_accuracy)


@pytest.mark.parametrize(
    ("row", "message"),
    [([1.0, "", "wild"], "pair 1"), ([1.0, "much", "wild"], "'much'"), ([1.0, 0.0, "wilde"], "wilde")],
)
def test_a_row_that_is_none_is_refused_with_the_reason(row, message):
    with pytest.raises(ValueError, match=message):
        app.compute_rows(PlainMetric(), [row])


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


def test_the_spaces_name_the_gradio_that_the_tests_run_with():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    header = yaml.safe_load((ROOT / "esdr_accuracy/README.md").read_text().split("---")[1])
    assert header["sdk_version"] == GRADIO_VERSION == pins["gradio"]
