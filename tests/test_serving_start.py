"""A server whose model cannot be loaded, with a Ray of its own."""

import os
import subprocess
import sys

import pytest


pytest.importorskip("fastapi", reason="no serving: pip install 'sdiareward[serve]'")


def test_a_model_that_cannot_be_loaded_ends_the_server_with_its_reason(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    command = [sys.executable, "-m", "sdiareward.cli", "serve", "--model", str(tmp_path), "--port", "0"]
    command += ["--device", "cpu", "--cpus-per-replica", "0", "--object-store-mib", "80"]
    environment = os.environ | {"RAY_ADDRESS": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("sdiareward: error: ")]
    assert line.startswith(f"sdiareward: error: model {tmp_path}: cannot be loaded (model_type is 'bert'")
    assert "Traceback" not in done.stderr
