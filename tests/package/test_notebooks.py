"""The notebooks of `examples/` run from top to bottom, on a tiny checkpoint and a few pairs."""

import json
import re

import pytest
from support.paths import ROOT

from sdiareward.common import package


NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def read_cells(path, kind):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == kind]


def test_no_notebook_has_outputs_and_every_link_leads_somewhere():
    assert NOTEBOOKS
    for path in NOTEBOOKS:
        assert [cell["id"] for cell in read_cells(path, "code") if cell["outputs"] or cell["execution_count"]] == []
        links = re.findall(r"\]\(([^)#:]+)", "".join("".join(cell["source"]) for cell in read_cells(path, "markdown")))
        assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_of_a_notebook_runs(path, tmp_path, tiny_checkpoint, tone_pairs, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(package, "NANO", tiny_checkpoint)
    names = {"__name__": "__main__"}
    for cell in read_cells(path, "code"):
        if "build" in cell["metadata"].get("tags", ()):
            # tests/dataset_builder runs the build of this cell, which takes long.
            for split in ("train", "test"):
                tone_pairs.to_parquet(tmp_path / "runs/docs/sdiareward-walkthrough" / f"{split}.parquet")
            continue
        exec(compile("".join(cell["source"]), f"{path.name}:{cell['id']}", "exec"), names)
    assert {"scorer", "found"} & names.keys()
