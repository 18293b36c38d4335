import hashlib
import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from support.paths import SAMPLE

from sdiareward.audio_sdiareward import read_audio
from sdiareward.dataset_builder.episodes import Episode
from sdiareward.dataset_builder.pairing import BenchSettings, splits
from sdiareward.dataset_builder.pairing.splits import assign_splits, draw_bench, isolate, make_bench, sample_bench
from sdiareward.dataset_builder.shards import read_rows, write_rows
from sdiareward.perturbations.channel import degrade_mp3, degrade_opus, encode_flac


def make_episodes(source):
    labels = {"primary": "Inform", "secondary": "Unknown", "language": "en", "license": "CC0-1.0"}
    return [Episode(f"e{i}", source, "scripted", f"g{i % 20}", (), **labels) for i in range(100)]


def test_every_source_is_split_in_its_shares_and_joined_units_get_one_split_while_the_others_keep_theirs():
    episodes = [*make_episodes("a"), *make_episodes("b")]
    shares = {"validation": 0.1, "test": 0.2, "seed": 0}
    before = assign_splits(episodes, {}, **shares)
    for source in ("a", "b"):
        found = Counter(before[splits.split_unit(e)] for e in episodes if e.source == source)
        assert found == {"train": 70, "validation": 10, "test": 20}
    joined = sorted(before)[5:9]
    together = assign_splits(episodes, dict.fromkeys(joined, joined[0]), **shares)
    assert {unit: together[unit] for unit in before if unit not in joined}.items() <= before.items()
    assert len({together[unit] for unit in joined}) == 1
    # A coarser unit is held out whole.
    domains = [replace(e, split_group=f"domain{i % 5}") for i, e in enumerate(make_episodes("a"))]
    assignment = assign_splits(domains, {}, validation=0.2, test=0.2, seed=0)
    assert sorted(assignment.values()) == ["test", "train", "train", "train", "validation"]


def test_units_that_share_a_recording_are_one_group_in_all_sources(tmp_path):
    first, second, third = (
        read_audio(path)[: 16_000 * 5] for path in sorted((SAMPLE / "amazon_queen").glob("*.ogg"))[:3]
    )
    copies = {"a.flac": first, "quiet.ogg": 0.4 * first, "a.mp3": degrade_mp3(first, 16_000, None, 24)}
    for name, array in {"a.wav": first, **copies, "b.wav": second, "c.wav": third}.items():
        soundfile.write(tmp_path / name, array, 16_000)
    shutil.copy(tmp_path / "a.wav", tmp_path / "again.wav")
    named = {"a": "a.wav", "again": "again.wav", "near": "a.mp3", "b": "b.wav", "c": "c.wav", "same": "c.wav"}
    files = {("folder" if name == "a" else "meld", name): [str(tmp_path / path)] for name, path in named.items()}
    files["meld", "both"] = [str(tmp_path / "a.flac"), str(tmp_path / "quiet.ogg")]
    joined, counts = splits.join_groups(files, lambda path: hashlib.sha256(Path(path).read_bytes()).hexdigest())
    of_a = {("folder", "a"), ("meld", "again"), ("meld", "near"), ("meld", "both")}
    assert {unit for unit, unit_of in joined.items() if unit_of == joined["folder", "a"]} == of_a
    assert {unit for unit in joined if unit not in of_a} == {("meld", "c"), ("meld", "same")}
    assert counts == {"groups": 6, "by_file": 2, "equal_copies": 1, "near_copies": 3}


def label(pair_id, secondary="Joy", *, group=None, split="test", source="meld", synthesizer="flite", **more):
    labels = {"pair_id": pair_id, "group_id": group or f"group of {pair_id}", "split": split, "source": source}
    labels |= {"primary": "Positive", "secondary": secondary, "synthesizer": synthesizer, "language": "en"}
    criterion = "colloquialness" if source == "scripts" else "modality"
    return {**labels, "subset": "semi_wild", "license": "CC0-1.0", "criterion": criterion, **more}


def many(count, *args, name="p", **kwargs):
    return [label(f"{name}{index}", *args, **kwargs) for index in range(count)]


def write_folder(folder, rows, **report):
    write_rows(folder, [(row["split"], row) for row in rows])
    (folder / "report.json").write_text(json.dumps(report))
    return folder


def count_names(pairs):
    return Counter(pair.rstrip("0123456789") for pair in pairs)


BY_PRIMARY = [row for primary in "AB" for row in many(3, name=primary, primary=primary)]
BY_SPLIT = many(2, name="seen", split="train") + many(2, name="held")
UNEVEN = [*many(10, name="long", group="one"), label("x"), label("y")]
SCRIPTS = many(5, "plain", name="a", source="scripts") + many(5, "hard", name="b", source="scripts")


@pytest.mark.parametrize(
    ("labels", "options", "expected"),
    [
        # A bucket gives its cap, and a smaller one all it has.
        (many(5, "Joy", name="joy") + many(2, "Fear", name="fear"), {"cap": 3}, {"joy": 3, "fear": 2}),
        (many(4, name="a") + many(4, name="b", source="dailytalk"), {"cap": 3}, {"a": 3, "b": 3}),
        (BY_PRIMARY, {"cap": 2}, 2),
        (BY_PRIMARY, {"cap": 2, "bucket_by": ("source", "primary", "secondary")}, {"A": 2, "B": 2}),
        (BY_SPLIT, {}, {"held": 2}),
        (BY_SPLIT, {"candidates": "all"}, {"held": 2, "seen": 2}),
        # Colloquialness pairs have their own cap.
        (SCRIPTS, {"cap": 1, "colloquialness_cap": 7}, 7),
        (SCRIPTS, {"cap": 1}, {"a": 5, "b": 5}),
        # Groups take turns.
        (UNEVEN, {"cap": 4, "draw": "alternate"}, {"x": 1, "y": 1, "long": 2}),
    ],
)
def test_buckets_are_capped(labels, options, expected):
    chosen = sample_bench(labels, BenchSettings(**options))
    assert sample_bench(labels[::-1], BenchSettings(**options)) == chosen
    taken = count_names(chosen)
    assert (taken.total() if isinstance(expected, int) else taken) == expected


def test_another_seed_gives_another_choice_and_a_repeated_pair_is_refused():
    assert sample_bench(many(100), BenchSettings(seed=1)) != sample_bench(many(100), BenchSettings(seed=2))
    with pytest.raises(ValueError, match="pair 'p' occurs twice"):
        sample_bench([label("p"), label("p")], BenchSettings())


def test_what_shares_a_group_with_the_bench_leaves_training():
    labels = [label("bench", group="g1"), label("full bucket", synthesizer="left out"), label("part", group="g1")]
    labels += [label("back"), label("train", group="g1", split="train"), label("other", split="train")]
    labels.append(label("valid", group="g1", split="validation"))
    held_out, all_but_bench = {"held_out_synthesizer": 1}, dict.fromkeys(("back", "train", "part"), "train")
    for options, expected, kinds in (
        ({}, {"back": "train"}, {**held_out, "group_in_bench": 3}),
        ({"rest": "skip"}, {}, {"not_in_bench": 2, "group_in_bench": 3}),
        # As in the paper.
        ({"excise": "pairs"}, {**all_but_bench, "valid": "validation"}, held_out),
    ):
        assignment, skipped = isolate(labels, {"bench"}, **options)
        assert assignment == {"bench": "test", "other": "train", **expected}
        assert Counter(skip.kind for skip in skipped) == kinds
    with pytest.raises(ValueError, match="1 groups are in more than one split .g1 in train and validation"):
        isolate([*labels, label("c")], {"c"})


def test_a_turn_of_another_group_leaves_training_with_the_pair_that_took_it(tmp_path):
    def said(text, uri=None, start_s=0.0):
        reference = {"uri": uri or "synthetic:flite", "start_s": start_s if uri else None, "end_s": None, "text": text}
        return [{"role": "user", "text": text, "duration_s": 1.0, "audio_ref": [reference]}]

    lamp, family = "the lamp is on the table", {"criterion": "joint", "primary": "context", "split": "train"}
    taken = said("two", "donor.wav", 4.0)
    rows = [
        label("bench", **{**family, "split": "test"}, chosen=said(lamp, "bench.wav"), rejected=taken),
        # Cut from the place that the benchmark has a turn from; nothing of it is in a pair of a family.
        label("donor", split="train", chosen=said("hm", "other.wav"), rejected=taken),
        label("words", **family, chosen=said("oh", "near.wav"), rejected=said(lamp)),
        label("far", **family, chosen=said("two", "far.wav"), rejected=said("two", "donor.wav", 9.0)),
    ]
    folder = write_folder(tmp_path / "all", rows, joined=None)
    assert splits.find_shared(folder, {"bench"}) == {"donor", "words"}
    # Of two pairs of recordings, what is said says nothing: the paper's recipe stays as it is.
    assert splits.find_shared(folder, {"donor"}) == {"bench"}
    _, assignment, skipped = draw_bench(folder, BenchSettings())
    assert assignment == {"bench": "test", "far": "train"}
    assert {(skip.item, skip.kind) for skip in skipped} == {(name, "turn_in_bench") for name in ("donor", "words")}


def test_copies_of_the_benchmark_leave_the_training_of_a_folder_that_was_not_joined(tmp_path):
    first, second, third, fourth = (
        read_audio(path)[: 16_000 * 4] for path in sorted((SAMPLE / "amazon_queen").glob("*.ogg"))[:4]
    )
    copies = degrade_mp3(0.3 * first, 16_000, None, 32), degrade_opus(second, 16_000, None, 24)
    pairs = {
        "bench": ("test", first, "a"),
        "copy": ("train", copies[0], "again/a"),
        "same file": ("validation", fourth, "a"),
        "kept": ("train", second, "b"),
        "moved": ("validation", copies[1], "again/b"),
        "other": ("validation", third, "c"),
    }
    rows = []
    for name, (split, array, uri) in pairs.items():
        reference = {"uri": f"folder:{uri}.wav", "start_s": 0.0, "end_s": None, "text": "well"}
        turn = {"text": "well", "duration_s": 2.0, "audio_ref": [reference]}
        halves = zip(("user", "assistant"), np.split(array, 2), strict=True)
        turns = [{**turn, "role": r, "audio": {"bytes": encode_flac(a), "path": "t.flac"}} for r, a in halves]
        rows.append(label(name, chosen=turns, rejected=turns, split=split))
    labels, assignment, skipped = draw_bench(write_folder(tmp_path / "old", rows), BenchSettings())
    assert assignment == {"bench": "test", "kept": "train", "moved": "train", "other": "validation"}
    assert {(skip.item, skip.kind) for skip in skipped} == {(n, "group_in_bench") for n in ("copy", "same file")}
    assert len({found["group_id"] for found in labels}) == 3


def test_the_benchmark_is_written_with_its_report(tmp_path):
    turn = {"text": "well, hello", "audio": {"bytes": b"fLaC", "path": "t.flac"}, "audio_ref": [], "duration_s": 3.0}
    side = [turn | {"role": role} for role in ("user", "assistant")]
    labels = many(3, name="a", group="g1") + many(2, "Fear", name="b") + many(2, name="c", split="train")
    labels += [label("leak", group="g1", split="train"), label("d", split="validation", synthesizer="piper")]
    rows = [{**row, "chosen": side, "rejected": side} for row in labels]
    folder = write_folder(tmp_path / "all", rows, config={"seed": 7, "channel": None}, joined=None)
    output = tmp_path / "bench"
    report = make_bench(folder, output, BenchSettings(cap=2))
    assert json.dumps(make_bench(folder, output, BenchSettings(cap=2))) == json.dumps(report)
    found = list(read_rows(output, ["pair_id"]))
    assert Counter(split for split, _ in found) == {"train": 2, "validation": 1, "test": 4}
    assert {row["pair_id"] for split, row in found if split == "train"} == {"c0", "c1"}
    assert (report["drops"], report["config"]["seed"]) == ({"group_in_bench": 2}, 7)
    bench = json.loads((output / "bench.json").read_text())
    assert bench == json.loads(json.dumps(report["bench"]))
    assert bench["table1"]["semi_wild"] == {"train": 2, "validation": 1, "test": 4, "total": 7}
    buckets = [("meld / Fear", 2, 2, 2, 2), ("meld / Joy", 3, 1, 2, 1)]
    assert [tuple(bucket.values()) for bucket in bench["buckets"]] == buckets
    assert (bench["statistics"]["pairs"], bench["num_known_groups"]) == (4, 0)
    page = (output / "bench.md").read_text()
    assert "| meld / Joy | 3 | 1 | 2 | 1 |" in page and "| semi_wild | 2 | 1 | 4 | 7 |" in page
    assert (output / "bench.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="is the data set itself"):
        make_bench(folder, folder, BenchSettings())
    with pytest.raises(ValueError, match="mood"):
        draw_bench(folder, BenchSettings(bucket_by=("mood",)))
