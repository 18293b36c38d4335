"""The targets of the Makefile that a new user runs first."""

import re
import shutil
import subprocess

import pytest
from support.paths import ROOT


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.slow
def test_the_demo_tells_its_plan_its_stages_and_where_to_look():
    command = ["make", "--dry-run", "--always-make", "demo", "RUN=runs/none"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    told = [line for line in lines if line.startswith("echo ")]
    assert told[0].startswith('echo "make demo makes a reward model from the bundled recordings')
    assert lines.index(told[0]) < next(row for row, line in enumerate(lines) if " -m pip " in line)
    words = re.findall(r"make demo, (\d) of 3|bin/sdiareward (\w+) --", "\n".join(lines))
    assert [number or command for number, command in words] == ["1", "build", "2", "train", "3", "eval"]
    assert told[-1].startswith('echo "make demo is done. Look at runs/none/results/report/index.html')
