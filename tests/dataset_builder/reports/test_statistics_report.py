import json

import pytest

from sdiareward.dataset_builder.reports.data_card import compute_statistics, write_statistics
from sdiareward.dataset_builder.shards import write_rows


def make_turns(*durations_s, text="one two three"):
    turn = {"text": text, "audio": {"bytes": b"x" * 1000, "path": "x.flac"}}
    roles = ("user", "assistant") * len(durations_s)
    return [{**turn, "role": role, "duration_s": s} for role, s in zip(roles, durations_s, strict=False)]


@pytest.fixture
def folder(tmp_path):
    """Return three pairs: one dialogue against two synthesizers, and a pair of scripts."""
    modality = {"criterion": "modality", "subset": "wild", "source": "youtube", "primary": "Anger"}
    modality |= {"secondary": "Cough", "group_id": "g1", "language": "en", "license": "CC0-1.0"}
    scripts = modality | {"criterion": "colloquialness", "subset": "colloquialness", "source": "scripts"}
    scripts |= {"group_id": "g2", "synthesizer": "flite"}
    real = make_turns(18.0, 18.0)
    rows = []
    for index, (name, seconds) in enumerate([("flite", 9.0), ("piper", 27.0)]):
        pair = {"pair_id": f"p{index}", "synthesizer": name, "chosen": real}
        rows.append(("train", {**modality, **pair, "rejected": make_turns(seconds, seconds)}))
    spoken, written = make_turns(36.0, 36.0, 36.0, 36.0, text="uh"), make_turns(36.0, 36.0, 36.0, 36.0)
    rows.append(("test", {**scripts, "pair_id": "p2", "chosen": spoken, "rejected": written}))
    write_rows(tmp_path / "data_set", rows)
    return tmp_path / "data_set"


def test_pairs_hours_and_distributions_of_the_real_and_the_synthetic_side_are_written(folder, tmp_path):
    found = write_statistics(folder, tmp_path / "out")
    assert compute_statistics(folder) == found == json.loads((tmp_path / "out" / "stats.json").read_text())
    assert (found["pairs"], found["groups"], found["turns"]) == (3, 2, 16)
    # Hours count pairs, and once each recording.
    hours = [found[f"{name}_h"] for name in ("real", "distinct_real", "synthetic")]
    assert hours == pytest.approx([0.02, 0.01, 0.005 + 0.015 + 0.08])
    assert found["by"]["split"] == {
        "test": {"pairs": 1, "real_h": 0.0, "synthetic_h": 0.08},
        "train": {"pairs": 2, "real_h": 0.02, "synthetic_h": 0.02},
    }
    assert found["table1"]["wild"] == {"train": 2, "validation": 0, "test": 0, "total": 2}
    ranges = dict.fromkeys(("mean", "min", "p5", "median", "p95", "max"), 36.0)
    assert found["distributions"]["real"]["dialogue_s"] == {"n": 2, "std": 0.0, **ranges}
    synthetic = found["distributions"]["synthetic"]
    assert (synthetic["dialogue_s"]["min"], synthetic["dialogue_s"]["max"]) == (18.0, 144.0)
    assert (synthetic["turns"]["n"], synthetic["turns"]["mean"]) == (4, 3.0)
    assert synthetic["words_per_turn"]["mean"] == pytest.approx((8 * 3 + 4 * 1) / 12, abs=1e-3)
    assert found["histograms"]["turns"] == {"real": {"2": 2}, "synthetic": {"2": 2, "4": 2}}
    assert found["histograms"]["dialogue_s"]["synthetic"] == {"10": 1, "50": 1, "140": 2}
    page = (tmp_path / "out" / "stats.md").read_text()
    assert "3 pairs of 2 recordings or dialogues" in page and "| all | 2 | 0 | 1 | 3 |" in page
    assert (tmp_path / "out" / "stats.png").read_bytes().startswith(b"\x89PNG")
