import json

import pytest

from sdiareward.cards.render_ablations import GUIDE, RESULT, render_blocks, render_guide


def test_every_number_of_the_guide_is_the_result_files():
    guide = GUIDE.read_text(encoding="utf-8")
    assert render_guide(guide) == guide


def test_another_result_changes_the_guide(tmp_path):
    found = json.loads(RESULT.read_text(encoding="utf-8"))
    found["rows"]["table6"][0]["accuracy"]["overall_micro"] = {"mean": 0.4321, "half_width": 0.0123}
    (tmp_path / "other.json").write_text(json.dumps(found), encoding="utf-8")
    guide = GUIDE.read_text(encoding="utf-8")
    assert "43.21 ± 1.23" in render_guide(guide, tmp_path / "other.json")
    assert "43.21 ± 1.23" not in guide


def test_a_guide_without_a_block_is_refused():
    with pytest.raises(ValueError, match="no block 'pairs'"):
        render_guide("# Ablations\n")


def test_table_4_holds_the_centered_poolings_and_both_losses():
    found = json.loads(RESULT.read_text(encoding="utf-8"))
    lines = render_blocks(found)["table4"].splitlines()
    backbones = list(dict.fromkeys(row["backbone"] for row in found["rows"]["table6"]))
    for backbone in backbones:
        settings = [line.split("|")[2].strip() for line in lines if line.startswith(f"| {backbone} |")]
        assert settings == [
            "pooling: last token",
            "pooling: attention",
            "pooling: mean",
            "loss: no centering",
            "loss: lambda 0.01",
        ]


def test_every_table_names_the_baselines_and_its_pairs():
    found = json.loads(RESULT.read_text(encoding="utf-8"))
    for name in ("table4", "table6", "lambda", "layers", "freeze"):
        lines = render_blocks(found)[name].splitlines()
        assert sum(line.startswith(("| acoustic |", "| text |")) for line in lines) == 2
        assert " ties | n |" in lines[0]
