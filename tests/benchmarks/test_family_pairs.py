"""The pairs by which models are compared family by family."""

from collections import Counter

import yaml
from support.labelled import add_labels

from benchmarks import family_pairs
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.schema import CRITERIA, JOINT


def label(number, criterion, synthesizer, source="amazon_queen", primary=None, secondary=None):
    names = {"criterion": criterion, "synthesizer": synthesizer, "source": source}
    return {"pair_id": f"{criterion}-{synthesizer}-{number}", **names, "primary": primary, "secondary": secondary}


LABELS = [
    row
    for number in range(9)
    for row in (
        label(number, "joint", "recording", primary="context", secondary="order"),
        label(number, "joint", "world", primary="prosody", secondary="flat"),
        label(number, "joint", "flite", primary="fluency", secondary="cut_off"),
        label(number, "joint", "flite", primary="rhythm", secondary="reading"),
        label(number, "modality", "hibari"),
        label(number, "modality", "flite"),
        label(number, "modality", "flite", source="asterisk"),
        label(number, "colloquialness", "hibari", secondary="balanced"),
    )
]


def test_what_is_few_is_taken_whole_and_rhythm_not_at_all():
    taken = Counter(
        tuple(LABELS[row][name] for name in ("criterion", "synthesizer", "source"))
        for row in family_pairs.draw(LABELS, num_pairs=4)
    )
    assert taken == {
        ("joint", "recording", "amazon_queen"): 9,
        ("joint", "world", "amazon_queen"): 9,
        ("joint", "flite", "amazon_queen"): 4,
        ("modality", "hibari", "amazon_queen"): 9,
        ("modality", "flite", "amazon_queen"): 4,
        ("modality", "flite", "asterisk"): 9,
        ("colloquialness", "hibari", "amazon_queen"): 4,
    }


def test_a_larger_draw_contains_a_smaller_one_whatever_the_order():
    few, more = (set(family_pairs.draw(LABELS, num_pairs)) for num_pairs in (2, 5))
    assert few < more
    turned = family_pairs.draw(LABELS[::-1], 2)
    assert {LABELS[::-1][row]["pair_id"] for row in turned} == {LABELS[row]["pair_id"] for row in few}


def test_the_file_has_pairs_of_every_criterion_as_they_are_in_the_data_set(tone_pairs, tmp_path, capsys):
    folder, configs, rows = tmp_path / "pairs", [], {}
    for criterion in (*CRITERIA, JOINT):
        whole = add_labels(tone_pairs, [label(number, criterion, "flite") for number in range(len(tone_pairs))])
        (folder / "data" / criterion).mkdir(parents=True)
        whole.to_parquet(folder / "data" / criterion / "test.parquet")
        rows |= {row["pair_id"]: row for row in whole}
        files = [{"split": "test", "path": f"data/{criterion}/test.parquet"}]
        configs.append({"config_name": criterion, "data_files": files})
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': configs})}---\n")
    output = tmp_path / "new" / "few.parquet"
    family_pairs.main(["--dataset", str(folder), "--output", str(output), "--num_pairs", "3"])
    taken = load_pairs(output, "test")
    assert Counter(taken["criterion"]) == {"modality": 3, "colloquialness": 3, "joint": 3}
    assert all(_read_sound(rows[row["pair_id"]]) == _read_sound(row) for row in taken)
    assert "9 of 12 pairs" in capsys.readouterr().out
    # A data set may have some criteria alone.
    family_pairs.main(["--dataset", str(folder), "--output", str(output), "--criteria", "modality", "joint"])
    assert Counter(load_pairs(output, "test")["criterion"]) == {"modality": 4, "joint": 4}


def _read_sound(row):
    return [turn["audio"]["bytes"] for side in ("chosen", "rejected") for turn in row[side]]
