"""List the pinned set of packages with their licences, and check both: `python -m sdiareward.cards.dependencies`.

`--write` reads the licences from the metadata of the installed packages and writes the list. Without it the list is
compared with what is allowed (`dependency_policy.yaml`), and `pip-audit` is asked for known vulnerabilities. A service
that knows none of the one that everybody knows is taken for one that knows nothing: then it is said that nothing could
be checked, and that is no failure.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from sdiareward.common.files import write_file
from sdiareward.common.yaml_files import parse_yaml


_ROOT = Path(__file__).resolve().parent.parent
PINS, PROJECT = _ROOT / "constraints.txt", _ROOT / "pyproject.toml"
RESULT = _ROOT / "benchmarks" / "results" / "dependencies.json"
POLICY = Path(__file__).with_name("dependency_policy.yaml")
# A release with a vulnerability that was published in 2024 (CVE-2024-3651): who does not know it knows none.
CONTROL = {"idna": "3.6"}
_PIN = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)
_TIMEOUT_S = 900.0
# Stands for a part of an expression that is allowed; no licence is called so.
_MET = "\0"
UNCHECKED = "Vulnerabilities could not be checked here: {}. Run `make audit` where PyPI can be reached."


def read_pins(text: str) -> dict[str, str]:
    """Return the version of every package that a file of constraints pins, by name as it is written there."""
    return dict(_PIN.findall(text))


def declared_licence(name: str, policy: Mapping[str, Any]) -> str:
    """Return the licence that an installed package declares, in SPDX's words; empty where it declares none.

    Args:
        name (`str`): The package.
        policy (`Mapping`): Its `spellings` translate what is no SPDX expression.

    Raises:
        importlib.metadata.PackageNotFoundError: It is not installed.
    """
    found: Any = metadata.metadata(name)
    if expression := found.get("License-Expression"):
        return str(expression)
    classifiers = [text.rpartition(" :: ")[2] for text in found.get_all("Classifier") or () if "License ::" in text]
    stated = classifiers or [found.get("License") or ""]
    # Several classifiers are a choice; a whole licence in place of its name is none.
    names = [policy["spellings"].get(text.strip(), text.strip()) for text in stated]
    return " OR ".join(dict.fromkeys(text for text in names if len(text) < 60 and "\n" not in text))


def collect(policy: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return name, version, licence and the extras that ask for it of each pinned package that is installed.

    Args:
        policy (`Mapping`): What `dependency_policy.yaml` holds.
    """
    asked_for = _extras_by_package()
    rows = []
    for name, version in read_pins(PINS.read_text(encoding="utf-8")).items():
        known = policy["exceptions"].get(name, {}).get("licence")
        licence = known or declared_licence(name, policy)
        extras = asked_for.get(re.sub(r"[-_.]+", "-", name).lower(), [])
        rows.append({"name": name, "version": version, "licence": licence, "asked_for_by": extras})
    return rows


def _extras_by_package() -> dict[str, list[str]]:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    groups = {"core": project["dependencies"], **project["optional-dependencies"]}
    found: dict[str, list[str]] = {}
    for group, requirements in groups.items():
        for requirement in requirements:
            name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), []).append(group)
    return found


def is_allowed(expression: str, allowed: Sequence[str]) -> bool:
    """Tell whether an SPDX expression can be met by allowed licences alone; exceptions (`WITH`) only permit more.

    Example:
        >>> is_allowed("MIT AND (GPL-3.0-only OR BSD-3-Clause)", ["MIT", "BSD-3-Clause"])
        True
    """
    known = {*allowed, _MET}
    expression = re.sub(r"\s+WITH\s+[\w.-]+", "", expression)
    while inner := re.search(r"\(([^()]*)\)", expression):
        verdict = _MET if is_allowed(inner[1], allowed) else "refused"
        expression = expression[: inner.start()] + verdict + expression[inner.end() :]
    return any(all(name.strip() in known for name in choice.split(" AND ")) for choice in expression.split(" OR "))


def licence_problems(rows: Sequence[Mapping[str, Any]], policy: Mapping[str, Any]) -> Iterator[str]:
    """Yield what keeps packages from being used, one line each.

    Args:
        rows (`Sequence[Mapping]`): What `collect` gave.
        policy (`Mapping`): What `dependency_policy.yaml` holds.
    """
    for row in rows:
        if row["name"] not in policy["exceptions"] and not is_allowed(row["licence"], policy["allowed"]):
            yield (
                f"{row['name']} {row['version']}: is under {row['licence'] or 'no licence that it names'!r}, which is "
                f"not allowed; replace it, or say in {POLICY.name} why it is used."
            )
    for name in sorted(set(policy["exceptions"]) - {row["name"] for row in rows}):
        yield f"{name}: has an exception in {POLICY.name} and is not pinned; take the exception out."


def find_vulnerabilities(pins: Mapping[str, str], service: Sequence[str] = ()) -> dict[str, Any]:
    """Ask `pip-audit` for the known vulnerabilities of some packages.

    Args:
        pins (`Mapping[str, str]`): Versions by name.
        service (`Sequence[str]`): Arguments of `pip-audit` that choose whom to ask; PyPI by default.

    Returns:
        `dict`: `found`, a list of `name`, `version` and `ids` (aliases included), and `unknown`, names of the packages
        that the service does not know.

    Raises:
        RuntimeError: `pip-audit` gave no answer.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requirements.txt"
        file.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()), encoding="utf-8")
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(file), "--no-deps", "--disable-pip"]
        command += ["--progress-spinner", "off", "--format", "json", *service]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
            packages = json.loads(done.stdout)["dependencies"]
        except (subprocess.TimeoutExpired, ValueError, LookupError) as error:
            raise RuntimeError(f"pip-audit gave no answer ({type(error).__name__})") from error
    found = [
        {"name": each["name"], "version": each["version"], "ids": [vuln["id"], *vuln["aliases"]]}
        for each in packages
        for vuln in each.get("vulns", ())
    ]
    return {"found": found, "unknown": [each["name"] for each in packages if "skip_reason" in each]}


def vulnerability_problems(
    pins: Mapping[str, str], policy: Mapping[str, Any], service: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Return what is wrong with the pinned set, and what else has to be said of the check.

    Args:
        pins (`Mapping[str, str]`): Versions by name.
        policy (`Mapping`): Its `vulnerabilities` are accepted.
        service (`Sequence[str]`): As in `find_vulnerabilities`.
    """
    try:
        if not find_vulnerabilities(CONTROL, service)["found"]:
            return [], [UNCHECKED.format("the service does not know a vulnerability that is years old")]
        answer = find_vulnerabilities(pins, service)
    except RuntimeError as error:
        return [], [UNCHECKED.format(error)]
    accepted = set(policy["vulnerabilities"])
    problems = [
        f"{each['name']} {each['version']}: has the vulnerability {each['ids'][0]}; pin a version without it, or say "
        f"in {POLICY.name} why it does no harm."
        for each in answer["found"]
        if accepted.isdisjoint(each["ids"])
    ]
    unknown = answer["unknown"]
    notes = [f"{len(unknown)} packages are not known to the service: {', '.join(unknown)}."] if unknown else []
    return problems, [f"{len(pins) - len(unknown)} packages were checked for known vulnerabilities.", *notes]


def main(argv: list[str] | None = None) -> int:
    """Write the list, or check it; return the exit status, 1 for a licence or a vulnerability that is not accepted."""
    parser = argparse.ArgumentParser(prog="python -m sdiareward.cards.dependencies", description=__doc__)
    parser.add_argument("--write", action="store_true", help="read the licences of what is installed")
    parser.add_argument("--osv-url", help="ask this OSV service in place of PyPI for vulnerabilities")
    args = parser.parse_args(argv)
    policy = parse_yaml(POLICY.read_text(encoding="utf-8"), POLICY.name)
    if args.write:
        write_file(RESULT, json.dumps({"packages": collect(policy)}, indent=1, ensure_ascii=False) + "\n")
    rows = json.loads(RESULT.read_text(encoding="utf-8"))["packages"]
    problems = list(licence_problems(rows, policy))
    service = ["--vulnerability-service", "osv", "--osv-url", args.osv_url] if args.osv_url else []
    if not args.write:
        found, notes = vulnerability_problems(read_pins(PINS.read_text(encoding="utf-8")), policy, service)
        sys.stdout.write("".join(f"{note}\n" for note in notes))
        problems += found
    sys.stderr.write("".join(f"{problem}\n" for problem in problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
