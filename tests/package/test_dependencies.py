"""The pinned set is listed with its licences, which `make audit` reads from the installed packages."""

import json
import re
import tomllib

import pytest
from packaging.utils import canonicalize_name
from support.paths import ROOT


POLICY = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pip-licenses"]
PINS = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def packages():
    return json.loads((ROOT / "benchmarks/results/dependencies.json").read_text())


def test_every_pinned_package_is_listed_with_its_version(packages):
    listed = {canonicalize_name(package["Name"]): package["Version"].partition("+")[0] for package in packages}
    pinned = {canonicalize_name(name): version for name, version in PINS.items()}
    assert {name: listed.get(name) for name in pinned if name not in POLICY["ignore-packages"]} == {
        name: version for name, version in pinned.items() if name not in POLICY["ignore-packages"]
    }


def test_every_listed_package_has_an_allowed_licence(packages):
    allowed = {name.strip() for name in POLICY["allow-only"].split(";")}
    refused = [package for package in packages if allowed.isdisjoint(package["License"].split("; "))]
    assert refused == []


def test_every_package_under_another_licence_is_pinned():
    pinned = {canonicalize_name(name) for name in PINS}
    assert set(POLICY["ignore-packages"]) - pinned == {"pip", "sdiareward"}
