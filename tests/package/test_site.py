"""The site of the guides: its navigation, its reference, and that its pages request nothing from other hosts."""

import re
from html.parser import HTMLParser

import pytest
import yaml
from support.paths import ROOT

import sdiareward
from sdiareward.cli import APP


DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


class Requests(HTMLParser):
    """Collects what a browser would load with a page."""

    def __init__(self):
        super().__init__()
        self.addresses = []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag == "link" and values.get("rel") not in ("stylesheet", "icon", "preload", "preconnect"):
            return
        name = {"script": "src", "img": "src", "iframe": "src", "link": "href"}.get(tag)
        if values.get(name):
            self.addresses.append(values[name])


def test_the_site_and_the_index_have_every_page_under_the_same_heading():
    site = {
        group: [page for entry in pages for page in entry.values()]
        for [(group, pages)] in map(dict.items, SITE["nav"])
    }
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    parts = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", index, re.MULTILINE | re.DOTALL)
    listed = {heading: re.findall(r"^- \[.*?\]\((\w+\.md)\)", text, re.MULTILINE) for heading, text in parts}
    assert site["Start"][0] == "index.md"
    assert site | {"Start": site["Start"][1:]} == listed
    assert sorted(page for pages in site.values() for page in pages) == sorted(path.name for path in DOCS.glob("*.md"))


def test_the_reference_has_every_public_name():
    names = re.findall(r"^::: sdiareward\.(\w+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted([*names, "__version__"]) == sorted(sdiareward.__all__)


@pytest.mark.slow
def test_the_site_builds_strictly_and_requests_nothing_from_other_hosts(tmp_path, monkeypatch):
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    # The configuration names files relative to the repository.
    monkeypatch.chdir(ROOT)
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path))
    config.plugins.on_startup(command="build", dirty=False)
    build(config)

    found = Requests()
    for page in tmp_path.rglob("*.html"):
        found.feed(page.read_text(encoding="utf-8"))
    assert [address for address in found.addresses if re.match(r"(https?:)?//", address)] == []
    sheets = "".join(path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import )[\"']?https?:[^)]*", sheets) == []
    assert len(found.addresses) > 100
    pages = {name: (tmp_path / f"{name}.html").read_text(encoding="utf-8") for name in ("api", "cli", "results")}
    assert pages["results"].count("<table>") > 4 and "--8<--" not in pages["results"]
    assert "reward_scale" in pages["api"]
    assert [name for name in APP if name[0] != "-" and f"sdiareward {name}" not in pages["cli"]] == []
    assert "--per_device_train_batch_size" in pages["cli"]
