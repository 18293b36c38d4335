"""The pinned set: listed with its licences, and checked for vulnerabilities against a service that is really asked."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata

import pytest

from sdiareward.cards import dependencies
from sdiareward.cards.dependencies import CONTROL, PINS, POLICY, RESULT, is_allowed, licence_problems, read_pins
from sdiareward.common.yaml_files import parse_yaml


@pytest.fixture(scope="module")
def rows():
    return json.loads(RESULT.read_text())["packages"]


@pytest.fixture(scope="module")
def policy():
    return parse_yaml(POLICY.read_text(), POLICY.name)


def test_every_pinned_package_is_listed_with_its_licence(rows, policy):
    assert {row["name"]: row["version"] for row in rows} == read_pins(PINS.read_text())
    assert list(licence_problems(rows, policy)) == []


def test_the_list_says_what_the_installed_packages_say(rows, policy):
    checked = 0
    for row in rows:
        try:
            is_pinned = metadata.version(row["name"]).partition("+")[0] == row["version"]
        except metadata.PackageNotFoundError:
            continue
        if is_pinned and row["name"] not in policy["exceptions"]:
            checked += 1
            assert dependencies.declared_licence(row["name"], policy) == row["licence"], row["name"]
    assert checked > 20


def test_every_exception_and_every_accepted_vulnerability_has_a_reason(policy):
    assert all(len(known["reason"]) > 20 for known in policy["exceptions"].values())
    assert all(len(reason) > 20 for reason in policy["vulnerabilities"].values())


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("MIT AND GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("GPL-3.0-only OR MIT AND ISC", True),
        ("(GPL-3.0-only OR MIT) AND (ISC AND MIT)", True),
        ("MIT AND (GPL-3.0-only OR (ISC AND GPL-3.0-only))", False),
        ("Apache-2.0 WITH LLVM-exception AND MIT", True),
        ("", False),
        # Words by which the check itself might mark a part.
        ("allowed", False),
        ("MIT AND allowed", False),
        ("()", False),
        ("MIT and GPL-3.0-only", False),
    ],
)
def test_an_expression_is_read_as_spdx_means_it(expression, expected):
    assert is_allowed(expression, ["MIT", "ISC", "Apache-2.0"]) is expected


def test_a_licence_that_is_not_allowed_and_an_exception_for_nothing_are_problems():
    rows = [{"name": "a", "version": "1", "licence": "AGPL-3.0-only"}, {"name": "b", "version": "2", "licence": ""}]
    found = list(licence_problems(rows, {"allowed": ["MIT"], "exceptions": {"c": {}}}))
    assert found[0].startswith("a 1: is under 'AGPL-3.0-only', which is not allowed")
    assert found[1].startswith("b 2: is under 'no licence that it names'")
    assert found[2].startswith("c: has an exception")


class Service(BaseHTTPRequestHandler):
    """Answer as an OSV service does, with the vulnerabilities that its server knows."""

    def do_POST(self):  # noqa: N802
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        found = self.server.known.get(asked["package"]["name"], [])
        body = json.dumps({"vulns": [entry(name, asked["package"]["name"]) for name in found]} if found else {})
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format, *args):
        pass


def entry(name, package):
    affected = [{"package": {"name": package, "ecosystem": "PyPI"}, "ranges": [], "versions": []}]
    return {"id": name, "aliases": [f"CVE-{name}"], "summary": "s", "details": "d", "affected": affected}


@pytest.fixture
def service():
    """Return a function that starts a service which knows some vulnerabilities, and gives the arguments to ask it."""
    pytest.importorskip("pip_audit", reason="no pip-audit: pip install pip-audit")
    servers = []

    def start(known, status=200):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
        server.known, server.status = known, status
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        url = f"http://127.0.0.1:{server.server_port}/v1/query"
        return ["--vulnerability-service", "osv", "--osv-url", url]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_known_vulnerability_fails_the_check(service):
    (control,) = CONTROL
    asked = service({control: ["OLD-1"], "somepackage": ["NEW-1"], "another": ["NEW-2"]})
    pins = {"somepackage": "1.0", "another": "2.0", "third": "3.0"}
    accepted = {"vulnerabilities": {"CVE-NEW-2": "Only where a file is read that nobody gives."}}
    problems, notes = dependencies.vulnerability_problems(pins, accepted, asked)
    assert [problem.partition(";")[0] for problem in problems] == ["somepackage 1.0: has the vulnerability CVE-NEW-1"]
    assert notes == ["3 packages were checked for known vulnerabilities."]


@pytest.mark.parametrize("status", [200, 500])
def test_a_service_that_knows_nothing_or_fails_has_checked_nothing_and_that_is_said(service, status):
    problems, notes = dependencies.vulnerability_problems({"a": "1"}, {"vulnerabilities": {}}, service({}, status))
    assert problems == []
    assert notes[0].startswith("Vulnerabilities could not be checked here")
