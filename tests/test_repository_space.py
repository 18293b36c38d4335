import re
from pathlib import Path

import yaml

import sdiareward
from sdiareward.publishing.space_repository import plan_space


ROOT = Path(__file__).parents[1]


def test_the_space_runs_the_demo_of_this_version():
    plan = plan_space(["me/nano"], hardware="zero-a10g")
    files = {file.path_in_repo: file.source for file in plan.files}
    assert set(files) == {"README.md", "app.py", "requirements.txt"}
    assert (plan.repo_type, plan.space_sdk) == ("space", "gradio")
    assert files["requirements.txt"] == f"sdiareward[demo]=={sdiareward.__version__}\n".encode()
    assert files["app.py"] == ROOT / "demo" / "space_app.py"
    assert "from sdiareward.demo" in files["app.py"].read_text()


def test_the_card_of_the_space_says_how_it_runs_and_what_it_shows():
    [card] = [file.source.decode() for file in plan_space(["me/nano"], hardware="zero-a10g").files[:1]]
    header = yaml.safe_load(card.split("\n---\n")[0].removeprefix("---\n"))
    assert (header["sdk"], header["app_file"], header["license"]) == ("gradio", "app.py", "apache-2.0")
    assert (header["models"], header["suggested_hardware"]) == (["me/nano"], "zero-a10g")
    assert re.fullmatch(r"3\.\d+", header["python_version"])
    assert len(header["short_description"]) <= 60
    assert "`me/nano`" in card and "$" not in card
    assert "models" not in yaml.safe_load(plan_space().files[0].source.decode().split("\n---\n")[0][4:])
