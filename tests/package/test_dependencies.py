"""The exceptions of the policy for licences, which `make audit` applies to the installed packages."""

import re
import tomllib

from packaging.utils import canonicalize_name
from support.paths import ROOT


POLICY = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pip-licenses"]


def test_every_package_under_another_licence_is_pinned():
    names = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert set(POLICY["ignore-packages"]) - set(map(canonicalize_name, names)) == {"pip", "sdiareward"}
