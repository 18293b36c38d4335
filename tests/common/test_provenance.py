from pathlib import Path

from sdiareward.common import provenance
from sdiareward.common.package_files import PACKAGE


def test_the_revision_is_that_of_the_package_and_not_of_a_repository_around_it(monkeypatch):
    found = provenance.describe_run()["git_revision"]
    assert (found is not None) == (PACKAGE / ".git").exists()
    monkeypatch.setattr(provenance, "PACKAGE", Path(PACKAGE, "common"))
    assert provenance.describe_run()["git_revision"] is None
