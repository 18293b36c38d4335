import json
from pathlib import Path

import pytest

from sdiareward.cards.render_data import GUIDE, RESULTS, render_guide


def test_every_number_of_the_guide_is_the_result_files():
    guide = GUIDE.read_text(encoding="utf-8")
    assert render_guide(guide) == guide


def test_a_guide_without_a_block_is_refused():
    with pytest.raises(ValueError, match="no block 'pipeline'"):
        render_guide("# The data\n")


def test_another_result_changes_the_guide(tmp_path: Path):
    for path in RESULTS.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    memory = tmp_path / "pipeline_memory.json"
    found = json.loads(memory.read_text(encoding="utf-8"))
    found["results"][-1]["max_rss_mib"] = 4321
    memory.write_text(json.dumps(found), encoding="utf-8")
    guide = GUIDE.read_text(encoding="utf-8")
    assert "4321 MiB" in render_guide(guide, tmp_path)
