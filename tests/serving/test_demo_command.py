"""How the demo's page is started: as a command and as a Space; what of it is in the package."""

import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from support.paths import ROOT

from sdiareward.cli import main


def test_a_missing_gradio_is_said_before_a_model_is_loaded(monkeypatch, capsys):
    from sdiareward.serving.demo import app

    monkeypatch.setattr(app, "load_scorer", lambda **_: pytest.fail("a model was loaded"))
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["demo"]) == 2
    message = 'sdiareward demo: error: gradio is not installed; pip install "sdiareward[demo]"\n'
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("flags", "shared", "message"),
    [
        ([], None, ""),
        (["--share"], "https://x.example", "Public address"),
        (["--share"], None, "No public"),
    ],
)
def test_the_page_is_shared_only_where_it_is_asked_for(flags, shared, message, monkeypatch, capsys):
    from sdiareward.serving.demo import app

    asked = []
    monkeypatch.setattr(app, "build", lambda **_: SimpleNamespace(block_thread=lambda: None))
    monkeypatch.setattr(app, "launch", lambda _, **options: asked.append(options["share"]) or (None, "local", shared))
    assert main(["demo", *flags]) == 0
    assert asked == [bool(flags)]
    assert capsys.readouterr().out.startswith(f"Page: local; Ctrl+C ends\n{message}")


@pytest.mark.slow
def test_a_port_that_is_taken_is_one_line(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["demo", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert str(port) in error
    assert len(error.strip().splitlines()) == 1


# What the Hub puts on a Space with ZeroGPU, in miniature.
SPACES = """
import sys

was_first, calls = "torch" not in sys.modules, []

def GPU(function):
    def call(*arguments):
        calls.append(function.__name__)
        return function(*arguments)
    return call
"""
SCORE_ON_A_SPACE = """
import runpy, sys

page = runpy.run_path(sys.argv[1])["page"]
import spaces
from sdiareward.common.package_files import EXAMPLES
from sdiareward.serving.demo import app, turns

(score,) = [block.fn for block in page.fns.values() if getattr(block.fn, "func", None) is app._score]
given = turns.read_example(EXAMPLES / "human.json")
result = score(*given, (), "", "modality")
print(spaces.was_first, spaces.calls, "Dialogue A" in result)
"""


@pytest.mark.slow
def test_a_zero_gpu_space_gets_a_device_for_each_scoring_call(tmp_path):
    pytest.importorskip("gradio", reason="gradio is not installed: pip install sdiareward[demo]")
    (tmp_path / "spaces.py").write_text(SPACES)
    environment = {name: value for name, value in os.environ.items() if name != "SDIAREWARD_MODEL"}
    command = [sys.executable, "-c", SCORE_ON_A_SPACE, str(ROOT / "serving" / "demo" / "space_app.py")]
    paths = os.pathsep.join([str(tmp_path), *filter(None, [environment.get("PYTHONPATH")])])
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment | {"PYTHONPATH": paths})
    assert done.stdout.splitlines()[-1] == "True ['score_dialogues'] True"
