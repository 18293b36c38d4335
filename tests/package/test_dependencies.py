"""The exceptions of the licence policy name pinned packages; `make audit` checks the licences of all."""

import re
import tomllib

from packaging.utils import canonicalize_name
from support.paths import ROOT


def test_every_package_under_another_licence_is_pinned():
    policy = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pip-licenses"]
    pins = re.findall(r"^([\w.-]+)==[^\s;]+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert set(policy["ignore-packages"]) - {canonicalize_name(name) for name in pins} == {"pip", "sdiareward"}
