"""Hooks of MkDocs, which `make docs` runs: take files outside of `docs` into the site, and show types of docstrings.

The guides link to files of the repository, such as `../SECURITY.md`. In the site they lie under `repository/`, and the
links of the pages among them are followed too.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page


ROOT = Path(__file__).resolve().parents[2]
_FOLDER = "repository"
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")


def on_startup(command: str, dirty: bool) -> None:
    """Link the package's modules into a folder of its name, in which mkdocstrings looks for them.

    The repository itself is the package, but every file below it would be looked at, environments and builds included.
    """
    package = ROOT / "build" / "api" / "sdiareward"
    if package.is_symlink():
        package.unlink()
    package.mkdir(parents=True, exist_ok=True)
    for link in package.iterdir():
        link.unlink()
    for module in [*ROOT.glob("*.py"), *(init.parent for init in ROOT.glob("*/__init__.py"))]:
        (package / module.name).symlink_to(module)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every file of the repository that a page links to, and those that such pages link to."""
    pending = [Path("docs", file.src_uri) for file in files.documentation_pages()]
    seen = set(pending)
    while pending:
        for target in find_targets(pending.pop()):
            if target in seen:
                continue
            seen.add(target)
            if target.parts[0] == "docs":
                continue
            files.append(File.generated(config, f"{_FOLDER}/{target}", abs_src_path=str(ROOT / target)))
            if target.suffix == ".md":
                pending.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the places that the files have in the site."""
    source = locate_source(page.file.src_uri)
    here = posixpath.dirname(page.file.src_uri)

    def place(link: re.Match[str]) -> str:
        target = resolve_link(source, link[0])
        if not (ROOT / target).is_file():
            return link[0]
        found = target.relative_to("docs") if target.parts[0] == "docs" else Path(_FOLDER, target)
        return posixpath.relpath(found.as_posix(), here or ".")

    return _LINK.sub(place, markdown)


def find_targets(page: Path) -> Iterator[Path]:
    """Yield the files of the repository that a page links to, relative to its root."""
    for link in _LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        target = resolve_link(page, link)
        if (ROOT / target).is_file():
            yield target


def resolve_link(page: Path, link: str) -> Path:
    """Return the path that a link of a page leads to, relative to the root of the repository."""
    return Path(posixpath.normpath(posixpath.join(page.parent.as_posix(), link)))


def locate_source(src_uri: str) -> Path:
    """Return the file in the repository of a page of the site."""
    outside = src_uri.removeprefix(f"{_FOLDER}/")
    return Path(outside) if outside != src_uri else Path("docs", src_uri)
