"""Validity at a tiny size: pairs are drawn, scored, grouped by what differs between their sides, and audited."""

import json

import pytest
import yaml
from support.labelled import add_labels

from benchmarks import validity
from sdiareward.pairs.schema import CRITERIA, JOINT


_KINDS = {
    "modality": {"synthesizer": "hibari", "primary": "Inform", "secondary": "Unknown", "subset": "scripted"},
    "colloquialness": {"synthesizer": "flite+hibari", "primary": "travel", "secondary": "balanced"},
    JOINT: {"synthesizer": "recording", "primary": "context", "secondary": "order", "subset": "all"},
}


@pytest.fixture
def data(tmp_path, tone_pairs):
    """Write a data set with a configuration for each criterion; the pairs of `joint` in two voices."""
    configs, folder = [], tmp_path / "pairs"
    for criterion in (*CRITERIA, JOINT):
        for split in ("train", "test"):
            rows = [
                {
                    **{"pair_id": f"{split} {criterion} {number}", "group_id": f"{split} {number}"},
                    **{"criterion": criterion, "subset": criterion, "source": "drascula", **_KINDS[criterion]},
                }
                for number in range(len(tone_pairs))
            ]
            if criterion == JOINT:
                rows[0]["synthesizer"] = "flite"
            (folder / criterion).mkdir(parents=True, exist_ok=True)
            add_labels(tone_pairs, rows).to_parquet(folder / criterion / f"{split}.parquet")
        files = {split: f"{criterion}/{split}.parquet" for split in ("train", "test")}
        configs.append({"config_name": criterion, "data_files": [{"split": s, "path": p} for s, p in files.items()]})
    # As in a built data set, the baselines learn from all criteria.
    paths = {"train": [*CRITERIA, JOINT], "test": CRITERIA}
    every = [{"split": split, "path": [f"{name}/{split}.parquet" for name in names]} for split, names in paths.items()]
    configs.insert(0, {"config_name": "all", "data_files": every, "default": True})
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': configs})}---\n")
    return folder


@pytest.mark.slow
def test_families_of_known_and_unseen_pairs_and_attacks_are_in_the_tables(
    data, tiny_checkpoint, tmp_path, monkeypatch
):
    output = tmp_path / "validity.json"
    sizes = ["--num_pairs", "2", "--num_audited", "2", "--output_dir", str(tmp_path / "work")]
    folders = ["--known", str(data), "--unseen", str(data), "--output", str(output)]
    validity.main([*folders, "--models", str(tiny_checkpoint), *sizes])
    found = json.loads(output.read_text())

    name = tiny_checkpoint.name
    counts = {(row["criterion"], row["kind"], row["voices"]): row["num_pairs"] for row in found["known"]}
    # Hibari and recorded conversations are taken whole.
    assert counts == {
        ("colloquialness", "across voices", "rejected side by hibari"): 2,
        ("colloquialness", "balanced", "two synthesizers"): 2,
        (JOINT, "context: order", "all"): 4,
        (JOINT, "context: order", "one synthesizer"): 1,
        (JOINT, "context: order", "recorded"): 3,
        ("modality", "drascula", "hibari"): 4,
    }
    assert {row["criterion"] for row in found["unseen"]} == {"modality", JOINT}
    modality = found["known"][-1]
    # Both sides of a tone pair say the same.
    assert (modality["acoustic"]["accuracy"], modality["text"]["num_ties"]) == (1.0, 4)
    assert "best_count" not in modality
    audited = found["audits"][name]
    assert (audited["num_pairs"], len(audited["attacks"])) == (2, 16)

    report = output.with_suffix(".md").read_text()
    assert report == validity.render(found) + "\n"
    (line,) = [line for line in report.splitlines() if "| joint | context: order | recorded | 3 " in line][:1]
    assert line.endswith("not met |") == (found["known"][4][name]["accuracy"] < 0.9)


def test_a_count_that_orders_the_pairs_is_shown_beside_the_scorers(tone_pairs):
    rows = [{"pair_id": str(number), "group_id": None, "source": "s", "criterion": JOINT} for number in range(4)]
    labels = [
        {**row, "subset": "all", "synthesizer": "flite", "primary": "fluency", "secondary": "cut_off"} for row in rows
    ]
    pairs = add_labels(tone_pairs, labels).map(
        lambda row: {"rejected": [{**turn, "text": "line, cut"} for turn in row["rejected"]]}
    )
    scores = {"model": {str(number): {"chosen": float(number), "rejected": 1.5} for number in range(4)}}
    (row,) = validity.measure(pairs, scores)
    assert (row["model"]["accuracy"], row["best_count"]) == (0.5, {"name": "commas", "accuracy": 1.0})
