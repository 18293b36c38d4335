import pytest

from benchmarks.guides.rendering import read_result, render_blocks


def test_another_result_changes_the_guide():
    found = read_result("ablations_nano.json")
    found["rows"]["table6"][0]["accuracy"]["overall_micro"] = {"mean": 0.4321, "half_width": 0.0123}
    assert "43.21 ± 1.23" in render_blocks("results_ablations", {"ablations_nano.json": found})["table6"]
    assert "43.21 ± 1.23" not in render_blocks("results_ablations")["table6"]


def test_table_4_holds_the_centered_poolings_and_both_losses():
    found = read_result("ablations_nano.json")
    lines = render_blocks("results_ablations")["table4"].splitlines()
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


@pytest.mark.slow
def test_every_table_names_the_baselines_and_its_pairs():
    for name in ("table4", "table6", "lambda", "layers", "freeze"):
        lines = render_blocks("results_ablations")[name].splitlines()
        assert sum(line.startswith(("| acoustic |", "| text |")) for line in lines) == 2
        assert " ties | n |" in lines[0]
