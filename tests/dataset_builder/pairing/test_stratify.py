import json
import random
from collections import Counter

import pytest
from support.paths import SAMPLE

from sdiareward.audio_sdiareward import read_audio
from sdiareward.dataset_builder.formats.shards import ShardWriter, read_rows
from sdiareward.dataset_builder.pairing import stratify
from sdiareward.dataset_builder.pairing.stratify import (
    BenchSettings,
    check_isolation,
    draw_bench,
    find_shared,
    isolate,
    make_bench,
    sample_bench,
)
from sdiareward.perturbations.channel import degrade_mp3, degrade_opus, encode_flac


def label(pair_id, secondary="Joy", *, group=None, split="test", source="meld", synthesizer="flite"):
    criterion = "colloquialness" if source == "scripts" else "modality"
    return {
        "pair_id": pair_id,
        "group_id": group or f"group of {pair_id}",
        "criterion": criterion,
        "split": split,
        "source": source,
        "primary": "Positive",
        "secondary": secondary,
        "synthesizer": synthesizer,
    }


def many(count, *args, name="p", **kwargs):
    return [label(f"{name}{index}", *args, **kwargs) for index in range(count)]


BY_SECONDARY = many(5, "Joy", name="joy") + many(2, "Fear", name="fear")
BY_SOURCE = many(4, name="a", source="meld") + many(4, name="b", source="dailytalk")
BY_PRIMARY = [{**row, "primary": primary} for primary in "AB" for row in many(3, name=primary)]
FINER = {"bucket_by": ("source", "primary", "secondary")}
BY_SPLIT = many(2, name="seen", split="train") + many(2, name="held")
SCRIPTS = many(5, "plain", name="a", source="scripts") + many(5, "hard", name="b", source="scripts")


@pytest.mark.parametrize(
    ("labels", "options", "expected"),
    [
        # A bucket gives its cap, and a smaller one all it has.
        (BY_SECONDARY, {"cap": 3}, {"joy": 3, "fear": 2}),
        (BY_SOURCE, {"cap": 3}, {"a": 3, "b": 3}),
        (BY_PRIMARY, {"cap": 2}, 2),
        (BY_PRIMARY, {"cap": 2, **FINER}, {"A": 2, "B": 2}),
        (BY_SPLIT, {}, {"held": 2}),
        (BY_SPLIT, {"candidates": "all"}, {"held": 2, "seen": 2}),
        # Colloquialness pairs have their own cap.
        (SCRIPTS, {"cap": 1, "colloquialness_cap": 7}, 7),
        (SCRIPTS, {"cap": 1}, {"a": 5, "b": 5}),
    ],
)
def test_buckets_are_capped(labels, options, expected):
    taken = Counter(pair.rstrip("0123456789") for pair in sample_bench(labels, BenchSettings(**options)))
    assert (taken.total() if isinstance(expected, int) else taken) == expected


def test_groups_take_turns_within_a_bucket():
    labels = many(10, name="long", group="one recording") + [label("x", group="x"), label("y", group="y")]
    bench = sample_bench(labels, BenchSettings(cap=4, draw="alternate"))
    assert {"x", "y"} <= bench
    assert Counter(pair.rstrip("0123456789") for pair in bench) == {"x": 1, "y": 1, "long": 2}


def test_groups_are_taken_whole_so_that_none_of_their_pairs_is_lost():
    # The paper's colloquialness pairs: 250 scenarios, ten variations each; 250 pairs are held out.
    labels = [
        row for n in range(250) for row in many(10, name=f"s{n}-", group=f"s{n}", source="scripts", split="train")
    ]
    settings = BenchSettings(candidates="all")
    assignment, skipped = isolate(labels, sample_bench(labels, settings), settings.rest)
    assert Counter(assignment.values()) == {"train": 2250, "test": 250} and not skipped
    alternating = sample_bench(labels, BenchSettings(candidates="all", draw="alternate"))
    assert len(alternating) == 250 and "train" not in isolate(labels, alternating)[0].values()


def random_labels(seed):
    rng = random.Random(seed)
    names = {"split": ("train", "validation", "test"), "source": ("meld", "youtube", "scripts")}
    rows = (
        {"secondary": rng.choice(("Joy", "Fear", "Anger")), "group": f"g{rng.randrange(30)}"}
        | {name: rng.choice(values) for name, values in names.items()}
        for _ in range(300)
    )
    return [label(f"p{index}", **row) for index, row in enumerate(rows)]


@pytest.mark.parametrize("draw", ["whole_groups", "alternate"])
@pytest.mark.parametrize("candidates", ["test", "all"])
@pytest.mark.parametrize("seed", range(2))
def test_every_choice_keeps_its_promises(seed, candidates, draw):
    labels = random_labels(seed)
    options = {"cap": 12, "colloquialness_cap": 20, "candidates": candidates, "seed": seed, "draw": draw}
    bench = sample_bench(labels, BenchSettings(**options))
    available, taken = Counter(), Counter()
    for row in labels:
        bucket = row["source"] if row["source"] == "scripts" else (row["source"], row["secondary"])
        available[bucket] += candidates == "all" or row["split"] == "test"
        taken[bucket] += row["pair_id"] in bench
    for bucket, count in available.items():
        assert taken[bucket] == min(count, 20 if bucket == "scripts" else 12)
    random.Random(99).shuffle(labels)
    assert sample_bench(labels, BenchSettings(**options)) == bench


@pytest.mark.parametrize(
    "options",
    [
        *({"cap": 0}, {"candidates": "train"}, {"draw": "random"}, {"rest": "test"}, {"excise": "rows"}),
        {"bucket_by": ["mood"]},
    ],
)
def test_a_wrong_option_is_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} .*"):
        BenchSettings(**options)


def test_another_seed_gives_another_choice_and_a_repeated_pair_is_refused():
    assert sample_bench(many(100), BenchSettings(seed=1)) != sample_bench(many(100), BenchSettings(seed=2))
    with pytest.raises(ValueError, match="pair 'p' comes twice"):
        sample_bench([label("p"), label("p")], BenchSettings())


def test_what_shares_a_group_with_the_bench_leaves_training():
    labels = [
        label("bench", group="g1"),
        label("full bucket", group="g2", synthesizer="left out"),
        label("same recording, test", group="g1"),
        label("returned", group="g4"),
        label("same recording", group="g1", split="train"),
        label("same recording too", group="g1", split="validation"),
        label("other", group="g3", split="train"),
    ]
    assignment, skipped = isolate(labels, {"bench"})
    assert assignment == {"bench": "test", "other": "train", "returned": "train"}
    assert [(skip.item, skip.kind) for skip in skipped] == [
        ("full bucket", "held_out_synthesizer"),
        ("same recording, test", "group_in_bench"),
        ("same recording", "group_in_bench"),
        ("same recording too", "group_in_bench"),
    ]
    assignment, skipped = isolate(labels, {"bench"}, "skip")
    assert assignment == {"bench": "test", "other": "train"}
    assert [skip.kind for skip in skipped].count("not_in_bench") == 2
    # As in the paper.
    assignment, skipped = isolate(labels, {"bench"}, excise="pairs")
    assert {name: assignment[name] for name in ("same recording", "same recording too", "same recording, test")} == {
        "same recording": "train",
        "same recording too": "validation",
        "same recording, test": "train",
    }
    assert [skip.kind for skip in skipped] == ["held_out_synthesizer"]


# Table 1: source, a number of buckets that gives the paper's benchmark, pairs, pairs of the benchmark.
TABLE_1 = [("youtube", 16, 7703, 824), ("meld", 3, 495, 186), ("dailytalk", 9, 2658, 466), ("scripts", 1, 2500, 250)]


@pytest.mark.parametrize("excise", ["pairs", "groups"])
def test_the_counts_of_table_1_are_reached_where_pairs_alone_are_excised(excise):
    labels = []
    for source, full, count, drawn in TABLE_1:
        # Buckets of which 50 are drawn, and one with the rest, which is taken whole.
        small = 0 if source == "scripts" else drawn - 50 * full
        names = ["small"] * small + [f"full {index % full}" for index in range(count - small)]
        labels += [
            label(f"{source} {index}", name, source=source, split="train", group=f"{source} {index // 7}")
            for index, name in enumerate(names)
        ]
    settings = BenchSettings(candidates="all", excise=excise)
    assignment, skipped = isolate(labels, sample_bench(labels, settings), excise=settings.excise)
    counts = Counter((row["source"], assignment.get(row["pair_id"])) for row in labels)
    assert [counts[source, "test"] for source, *_ in TABLE_1] == [drawn for *_, drawn in TABLE_1]
    trained = [counts[source, "train"] for source, *_ in TABLE_1]
    assert (trained == [6879, 309, 2192, 2250]) == (excise == "pairs") == (not skipped)
    assert sum(trained) + len(skipped) == 11_630


def test_a_turn_of_another_group_leaves_training_with_the_pair_that_took_it(tmp_path):
    def said(text, uri=None, start_s=0.0):
        reference = {"uri": uri or "synthetic:flite", "start_s": start_s if uri else None, "end_s": None, "text": text}
        return {"role": "user", "text": text, "duration_s": 1.0, "audio_ref": [reference]}

    def pair(name, rejected, family=None, **more):
        criterion = {"criterion": "joint", "primary": family} if family else {}
        own = said("the lamp is on the table", f"{name}.wav")
        split = "test" if name == "bench" else "train"
        return {**label(name, split=split), **criterion, "chosen": [own], "rejected": [rejected], **more}

    rows = [
        pair("bench", said("two", "donor.wav", 4.0), "context"),
        # Cut from the place that the benchmark has a turn from; nothing of it is in a pair of a family.
        pair("donor", said("two", "donor.wav", 4.0), chosen=[said("hm", "other.wav")]),
        pair("words", said("the lamp is on the table"), "context", chosen=[said("oh", "near.wav")]),
        pair("far", said("two", "donor.wav", 9.0), "context", chosen=[said("two", "far.wav")]),
    ]
    with ShardWriter(tmp_path / "all") as writer:
        for row in rows:
            writer.write(row.pop("split"), {**row, "subset": "all", "language": "en", "license": "CC0-1.0"})
    (tmp_path / "all" / "report.json").write_text('{"joined": null}')
    assert find_shared(tmp_path / "all", {"bench"}) == {"donor", "words"}
    # Of two pairs of recordings, what is said says nothing: the paper's recipe stays as it is.
    assert find_shared(tmp_path / "all", {"donor"}) == {"bench"}
    assert find_shared(tmp_path / "all", {"far"}) == set()
    _, assignment, skipped = draw_bench(tmp_path / "all", BenchSettings())
    assert assignment == {"bench": "test", "far": "train"}
    assert {(skip.item, skip.kind) for skip in skipped} == {(name, "turn_in_bench") for name in ("donor", "words")}


def test_copies_of_the_benchmark_leave_the_training_of_a_folder_that_was_built_before(tmp_path):
    paths = sorted((SAMPLE / "amazon_queen").glob("*.ogg"))[:4]

    def write(writer, name, split, array, uri):
        reference = {"uri": f"folder:{uri}.wav", "start_s": 0.0, "end_s": None, "text": "well"}
        half, turns = len(array) // 2, []
        for role, samples in (("user", array[:half]), ("assistant", array[half:])):
            audio = {"bytes": encode_flac(samples), "path": "t.flac"}
            seconds = len(samples) / 16_000
            turns.append(
                {"role": role, "text": "well", "audio": audio, "duration_s": seconds, "audio_ref": [reference]}
            )
        more = {"subset": "wild", "language": "en", "license": "CC0-1.0", "chosen": turns, "rejected": turns}
        writer.write(split, {**label(name), **more})

    first, second, third, fourth = (read_audio(path)[: 16_000 * 6] for path in paths)
    with ShardWriter(tmp_path / "old") as writer:
        write(writer, "bench", "test", first, "a")
        write(writer, "copy", "train", degrade_mp3(0.3 * first, 16_000, None, 32), "again/a")
        write(writer, "same file", "validation", fourth, "a")
        write(writer, "kept", "train", second, "b")
        write(writer, "moved", "validation", degrade_opus(second, 16_000, None, 24), "again/b")
        write(writer, "other", "validation", third, "c")
    labels, assignment, skipped = draw_bench(tmp_path / "old", BenchSettings())
    assert assignment == {"bench": "test", "kept": "train", "moved": "train", "other": "validation"}
    assert {(skip.item, skip.kind) for skip in skipped} == {(n, "group_in_bench") for n in ("copy", "same file")}
    assert len({found["group_id"] for found in labels}) == 3


def test_a_group_in_two_splits_is_an_error_that_names_it():
    labels = [label("a", group="g1", split="train"), label("b", group="g1", split="validation")]
    with pytest.raises(ValueError, match="1 groups are in more than one split .g1 in train and validation"):
        check_isolation(labels)
    with pytest.raises(ValueError, match="g1 in train and validation"):
        isolate([*labels, label("c")], {"c"})
    check_isolation(labels[:1])


def turn(role, duration_s):
    audio = {"bytes": b"fLaC", "path": "t.flac"}
    return {"role": role, "text": "well, hello", "audio": audio, "duration_s": duration_s, "audio_ref": []}


@pytest.fixture
def folder(tmp_path):
    labels = many(3, name="a", group="g1") + many(2, "Fear", name="b") + many(2, name="c", split="train")
    labels += [label("leak", group="g1", split="train"), label("d", split="validation", synthesizer="piper")]
    with ShardWriter(tmp_path / "all") as writer:
        for row in labels:
            sides = {"chosen": [turn("user", 3.0), turn("assistant", 6.0)], "rejected": [turn("user", 9.0)] * 2}
            more = {"subset": "semi_wild", "language": "en", "license": "CC0-1.0"}
            writer.write(row.pop("split"), {**row, **sides, **more})
    (tmp_path / "all" / "report.json").write_text(json.dumps({"config": {"seed": 7, "channel": None}, "joined": None}))
    return tmp_path / "all"


@pytest.mark.slow
def test_the_benchmark_is_written_with_its_report(folder, tmp_path):
    report = make_bench(folder, tmp_path / "sdiareward", BenchSettings(cap=2))
    rows = [(split, row["pair_id"]) for split, row in read_rows(tmp_path / "sdiareward")]
    assert Counter(split for split, _ in rows) == {"train": 2, "validation": 1, "test": 4}
    assert {pair for split, pair in rows if split == "train"} == {"c0", "c1"}
    assert (report["drops"], report["config"]["seed"]) == ({"group_in_bench": 2}, 7)
    bench = json.loads((tmp_path / "sdiareward" / "bench.json").read_text())
    assert bench == json.loads(json.dumps(report["bench"]))
    assert bench["table1"]["semi_wild"] == {"train": 2, "validation": 1, "test": 4, "total": 7}
    names = ("bucket", "available", "available_groups", "taken", "taken_groups")
    counts = [tuple(bucket[name] for name in names) for bucket in bench["buckets"]]
    assert counts == [("meld / Fear", 2, 2, 2, 2), ("meld / Joy", 3, 1, 2, 1)]
    assert bench["statistics"]["pairs"] == 4
    assert bench["num_known_groups"] == 0
    page = (tmp_path / "sdiareward" / "bench.md").read_text()
    assert "| meld / Joy | 3 | 1 | 2 | 1 |" in page
    assert "| semi_wild | 2 | 1 | 4 | 7 |" in page
    assert (tmp_path / "sdiareward" / "bench.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_rows_are_copied_whole_and_a_finished_benchmark_is_not_made_again(folder, tmp_path, monkeypatch):
    first = make_bench(folder, tmp_path / "out", BenchSettings(cap=2))
    before = {row["pair_id"]: row for _, row in read_rows(folder)}
    assert all(row == before[row["pair_id"]] for _, row in read_rows(tmp_path / "out"))
    monkeypatch.setattr(stratify, "_copy", lambda *args: pytest.fail("copied again"))
    assert json.dumps(make_bench(folder, tmp_path / "out", BenchSettings(cap=2))) == json.dumps(first)
    with pytest.raises(pytest.fail.Exception):
        make_bench(folder, tmp_path / "out", BenchSettings(cap=1))


def test_the_data_set_itself_is_not_overwritten(folder):
    with pytest.raises(ValueError, match="is the data set itself"):
        make_bench(folder, folder, BenchSettings())
