"""Assign pairs to splits by group, and draw ESDR-Bench from a data set (section B.1).

The test split is only for evaluation: its groups are in no other split, and only it has the held-out synthesizers.

ESDR-Bench is stratified, capped, and isolated from training (Tables 1 and 5). Our reading of the paper: appendix B.1
caps "the secondary dimensions of each dataset" at 50; section 3.2 draws "from the held-out validation split", up to 50
of "each fine-grained bucket" of "source and metadata categories". So `candidates` are all pairs or the pairs of one
split, a bucket is a source and some labels (`bucket_by`), and the cap counts pairs. The 824 wild and 466 scripted
pairs of Table 1 (more than seven times 50) need finer buckets than a secondary label, such as
`[source, primary, secondary]`. Colloquialness pairs have no taxonomy, and the paper holds out 250 of 2,500: they are
one bucket with its own cap. "Quality-aware" refers to the filter: the sampler draws from filtered pairs.

The paper removes only the selected pairs from training, which leaves 6,879 of 7,703 wild pairs (Table 1):
`excise: pairs`. By default we also remove their groups, and family pairs with a turn from these groups, because a
model trained on other minutes of a recording has heard its speakers and channel. The rest of a partly selected group
is lost, so whole groups are taken if they fit.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, read_audio
from sdiareward.common.errors import Skipped
from sdiareward.common.files import require_other_folder, write_file
from sdiareward.common.settings import require_known
from sdiareward.common.tables import render_table
from sdiareward.dataset_builder.episodes import Episode, is_recorded
from sdiareward.pairs.content import join_units
from sdiareward.pairs.labels import split_synthesizers
from sdiareward.pairs.schema import JOINT, SIDES, make_stable_id

from ..pipeline.media import read_beginning
from ..recording_check import COPY_S, find_copies, measure_energies
from ..reports import data_card
from ..reports.data_card import LABELS, compute_statistics, read_labels
from ..shards import read_rows, write_rows
from . import BenchSettings


Unit = tuple[str, str]
Labels = Sequence[Mapping[str, Any]]
BENCH_SPLIT = "test"
_COLLOQUIALNESS = "colloquialness"
# Leaf columns, so that audio is not read.
_TURN_LEAVES = ("text", "audio_ref.list.element.uri", "audio_ref.list.element.start_s")
# Shorter turns occur in any dialogue.
_MIN_WORDS = 4


def assign_splits(
    episodes: Iterable[Episode], joined: Mapping[Unit, Unit], *, validation: float, test: float, seed: int
) -> dict[Unit, str]:
    """Assign each unit `(source, split_group)` to a split by hash, in shares of each source, in any order.

    Then `joined` units (`join_groups`) share one split, the one furthest below its share.
    """
    if test != 1 and not (0 <= validation < 1 and 0 <= test < 1 and validation + test < 1):
        raise ValueError(f"validation={validation} and test={test} leave nothing for training; only test=1 may.")
    sizes = Counter(map(split_unit, episodes))
    assignment: dict[Unit, str] = {}
    for source in {source for source, _ in sizes}:
        units = sorted((unit for unit in sizes if unit[0] == source), key=lambda unit: make_stable_id(seed, *unit))
        total = sum(sizes[unit] for unit in units)
        done = 0
        for unit in units:
            middle = (done + sizes[unit] / 2) / total
            assignment[unit] = "test" if middle < test else "validation" if middle < test + validation else "train"
            done += sizes[unit]
    shares = {"test": test} if test == 1 else {"train": 1 - validation - test, "test": test, "validation": validation}
    filled: Counter[str] = Counter()
    for unit in assignment.keys() - joined.keys():
        filled[assignment[unit]] += sizes[unit]
    ordered = sorted(joined, key=lambda unit: (make_stable_id(seed, *joined[unit]), unit))
    for _, members in groupby(ordered, joined.get):
        together = list(members)
        split = min(filter(shares.get, shares), key=lambda split: filled[split] / shares[split])
        filled[split] += sum(sizes[unit] for unit in together)
        assignment |= dict.fromkeys(together, split)
    return assignment


def join_groups(
    files: Mapping[Unit, Collection[str]], hash_file: Callable[[str], str | None]
) -> tuple[dict[Unit, Unit], dict[str, int]]:
    """Return, for units that share recordings, the first of them, and counts by reason."""
    from tqdm import tqdm

    hashes = {path: hash_file(path) or path for path in sorted(set().union(*files.values()))}
    paths = {content: path for path, content in hashes.items()}
    heard: dict[str, tuple[float, np.ndarray]] = {}
    for content, path in tqdm(paths.items(), desc="copies", disable=len(paths) < 100):
        # Pairs of an unreadable file are skipped later, with the reason.
        with suppress(AudioError, OSError):
            array, seconds = read_beginning(path, COPY_S[1])
            heard[content] = seconds, measure_energies(array)
    near: dict[str, list[object]] = {content: [] for content in paths}
    for couple in find_copies(heard):
        for content in couple:
            near[content].append(couple)
    same = join_units(near)
    found = join_units({unit: [same[hashes[path]] for path in of_unit] for unit, of_unit in files.items()})
    sizes, by_file = Counter(found.values()), Counter(join_units(files).values())
    counts = {name: sum(n for n in of.values() if n > 1) for name, of in (("groups", sizes), ("by_file", by_file))}
    counts |= {"equal_copies": len(hashes) - len(paths), "near_copies": len(paths) - len(set(same.values()))}
    return {unit: first for unit, first in found.items() if sizes[first] > 1}, counts


def split_unit(episode: Episode) -> Unit:
    """Return the indivisible unit: the recording or dialogue, or the source's coarser unit."""
    return episode.source, episode.split_group or episode.group


def shuffle(names: Iterable[str], *key: Any) -> list[str]:
    """Return names in an order that depends on the key, the same on any machine."""
    return sorted(names, key=lambda name: make_stable_id(*key, name))


def _find_bucket(label: Mapping[str, Any], settings: BenchSettings) -> tuple[str, ...] | None:
    """Return the bucket of a pair; None if it is not a candidate."""
    if settings.candidates != "all" and label["split"] != BENCH_SPLIT:
        return None
    if label["criterion"] == _COLLOQUIALNESS:
        return (_COLLOQUIALNESS,)
    return tuple(str(label[name]) for name in settings.bucket_by)


def sample_bench(labels: Labels, settings: BenchSettings) -> set[str]:
    """Return the ids of ESDR-Bench's pairs, which depend only on the seed and the ids, not on their order."""
    if twice := [pair for pair, count in Counter(label["pair_id"] for label in labels).items() if count > 1]:
        raise ValueError(f"pair {twice[0]!r} occurs twice; remove one.")
    groups: dict[str, list[tuple[str, tuple[str, ...]]]] = defaultdict(list)
    for label in sorted(labels, key=lambda label: make_stable_id(settings.seed, label["pair_id"])):
        if bucket := _find_bucket(label, settings):
            groups[label["group_id"]].append((label["pair_id"], bucket))
    order = shuffle(groups, settings.seed)
    sizes = Counter(bucket for members in groups.values() for _, bucket in members)
    room = {b: settings.colloquialness_cap if b == (_COLLOQUIALNESS,) else settings.cap for b in sizes}
    rare = {bucket for bucket, size in sizes.items() if size <= room[bucket]}
    chosen: set[str] = set()

    def take(members: Iterable[tuple[str, tuple[str, ...]]]) -> None:
        for pair, bucket in members:
            if room[bucket] and pair not in chosen:
                room[bucket] -= 1
                chosen.add(pair)

    if settings.draw == "alternate":
        # In a bucket, all groups give their first pair before any gives a second.
        ranks, ranked = Counter[Any](), []
        for place, group in enumerate(order):
            for pair, bucket in groups[group]:
                ranked.append((ranks[group, bucket], place, pair, bucket))
                ranks[group, bucket] += 1
        take((pair, bucket) for _, _, pair, bucket in sorted(ranked))
        return chosen
    # To split few groups: first buckets that are taken whole anyway, then groups that fit whole, then parts of others.
    needed = {group for group in order if any(bucket in rare for _, bucket in groups[group])}
    for group in sorted(order, key=lambda group: group not in needed):
        wanted = Counter(bucket for _, bucket in groups[group])
        if group in needed or all(count <= room[bucket] for bucket, count in wanted.items()):
            take(groups[group])
    for group in order:
        take(groups[group])
    return chosen


def draw_bench(folder: Path, settings: BenchSettings) -> tuple[list[dict[str, Any]], dict[str, str], list[Skipped]]:
    """Return the labels of all pairs, the split of every kept pair, and the skipped pairs."""
    require_known(settings.bucket_by, LABELS, "bucket_by")
    joined = join_recordings(folder)
    labels = [{**label, "group_id": joined.get(label["group_id"], label["group_id"])} for label in read_labels(folder)]
    # If the build did not join groups, a joined group may be in train and validation.
    taught = {label["group_id"] for label in labels if joined and label["split"] == "train"}
    for label in labels:
        if label["split"] == "validation" and label["group_id"] in taught:
            label["split"] = "train"
    bench = sample_bench(labels, settings)
    shared = find_shared(folder, bench) if settings.excise == "groups" else ()
    return labels, *isolate(labels, bench, settings.rest, shared, settings.excise)


def join_recordings(folder: Path) -> dict[str, str]:
    """Return, for groups that share files or copies of dialogues, the first; empty if the build joined them."""
    if "joined" in data_card.read_report(folder):
        return {}
    keys: dict[str, set[Any]] = defaultdict(set)
    heard: dict[tuple[Any, ...], tuple[float, np.ndarray]] = {}
    for _, row in read_rows(folder):
        # The rejected side of a family may have turns of another dialogue.
        if not is_recorded(row["criterion"], "chosen", row["synthesizer"]):
            continue
        parts = [(part["uri"], part["start_s"]) for turn in row["chosen"] for part in turn["audio_ref"] or ()]
        keys[row["group_id"]].update(uri for uri, _ in parts if uri)
        # A dialogue is in several pairs, with different channels.
        if (dialogue := (row["group_id"], *parts)) not in heard:
            array = np.concatenate([read_audio(turn["audio"]) for turn in row["chosen"]])
            heard[dialogue] = array.size / SAMPLING_RATE, measure_energies(array)
    for couple in find_copies(heard):
        for group, *_ in couple:
            keys[group].add(couple)
    return join_units(keys)


def find_shared(folder: Path, bench: set[str]) -> set[str]:
    """Return the pairs that share a turn with a pair of the benchmark, if either is a family pair."""
    columns = ["pair_id", "criterion", *(f"{side}.list.element.{leaf}" for side in SIDES for leaf in _TURN_LEAVES)]
    of_bench: dict[bool, set[tuple[Any, ...]]] = {True: set(), False: set()}
    for _, row in read_rows(folder, columns):
        if row["pair_id"] in bench:
            of_bench[row["criterion"] == JOINT] |= _list_turns(row)
    every = of_bench[True] | of_bench[False]
    others = (row for _, row in read_rows(folder, columns) if row["pair_id"] not in bench)
    return {r["pair_id"] for r in others if _list_turns(r) & (every if r["criterion"] == JOINT else of_bench[True])}


def _list_turns(row: Mapping[str, Any]) -> set[tuple[Any, ...]]:
    """Return keys of a pair's turns: the start in a recording, or the words if at least `_MIN_WORDS`."""
    parts = [part for side in SIDES for turn in row[side] for part in turn["audio_ref"] or ()]
    recorded = {(part["uri"], part["start_s"]) for part in parts if part["start_s"] is not None}
    texts = {turn["text"] for side in SIDES for turn in row[side]}
    return recorded | {(text,) for text in texts if len(text.split()) >= _MIN_WORDS}


def isolate(
    labels: Labels, bench: set[str], rest: str = "train", shared: Collection[str] = (), excise: str = "groups"
) -> tuple[dict[str, str], list[Skipped]]:
    """Return the split of every kept pair, and the skipped pairs; `shared` is from `find_shared`."""
    bench_groups = {label["group_id"] for label in labels if label["pair_id"] in bench and excise == "groups"}
    taught: dict[str, set[str]] = defaultdict(set)
    for label in labels:
        if label["split"] != BENCH_SPLIT:
            taught[label["criterion"]] |= split_synthesizers(label["synthesizer"])
    assignment: dict[str, str] = {}
    skipped: list[Skipped] = []
    splits: dict[str, set[str]] = defaultdict(set)
    for label in labels:
        pair, group, split, speaker = (label[name] for name in ("pair_id", "group_id", "split", "synthesizer"))
        is_test, is_known = split == BENCH_SPLIT, split_synthesizers(speaker) <= taught[label["criterion"]]
        full = "its bucket of ESDR-Bench is full"
        reasons = (
            (group in bench_groups, "group_in_bench", f"its group {group} is in ESDR-Bench; removed from training"),
            (pair in shared, "turn_in_bench", "one of its turns is in ESDR-Bench; removed from training"),
            (is_test and rest == "skip", "not_in_bench", full),
            (is_test and not is_known, "held_out_synthesizer", f"{full}, and {speaker} is held out from training"),
        )
        why = next((why for applies, *why in reasons if applies), None)
        if why and pair not in bench:
            skipped.append(Skipped(pair, *why))
            continue
        assignment[pair] = BENCH_SPLIT if pair in bench else "train" if is_test else split
        splits[group].add(assignment[pair])
    leaking = sorted(group for group, names in splits.items() if len(names) > 1)
    if leaking and excise == "groups":
        named = ", ".join(f"{group} in {' and '.join(sorted(splits[group]))}" for group in leaking[:10])
        raise ValueError(f"{len(leaking)} groups are in more than one split ({named}); assign each to one.")
    return assignment, skipped


def make_bench(folder: Path, output: Path, settings: BenchSettings) -> dict[str, Any]:
    """Write a data set folder whose test split is ESDR-Bench, row by row, unless it is already finished."""
    from tqdm import tqdm

    require_other_folder(folder, output)
    plan_id = make_stable_id(data_card.make_content_id(folder), json.dumps(asdict(settings)))
    if finished := data_card.read_finished(output, plan_id):
        return finished
    labels, assignment, skipped = draw_bench(folder, settings)
    kept = ((split, row) for _, row in read_rows(folder) if (split := assignment.get(row["pair_id"])))
    counts = write_rows(output, tqdm(kept, total=len(assignment), desc="bench", unit="pair"))
    found = _describe_bench(output, labels, assignment, settings)
    data_card.plot_overview(found["statistics"], output / "bench.png")
    write_file(output / "bench.md", render_bench(found))
    write_file(output / "bench.json", json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    before = data_card.read_report(folder)
    config = {**before.get("config", {}), "bench": asdict(settings)}
    more = {"plan_id": plan_id, "bench": found, "joined": before.get("joined")}
    return data_card.write_report(output, counts, skipped, config, **more)


def _describe_bench(
    output: Path, labels: Labels, assignment: Mapping[str, str], settings: BenchSettings
) -> dict[str, Any]:
    buckets: dict[tuple[str, ...], list[tuple[str, bool]]] = defaultdict(list)
    # By membership in the benchmark.
    kept: dict[str, dict[bool, set[str]]] = {name: {True: set(), False: set()} for name in ("group_id", "synthesizer")}
    for label in labels:
        split = assignment.get(label["pair_id"])
        if bucket := _find_bucket(label, settings):
            buckets[bucket].append((label["group_id"], split == BENCH_SPLIT))
        for name in kept if split else ():
            kept[name][split == BENCH_SPLIT].add(label[name])
    counts = []
    for bucket, members in sorted(buckets.items()):
        count: dict[str, Any] = {"bucket": " / ".join(bucket)}
        for name, found in (("available", members), ("taken", [member for member in members if member[1]])):
            count |= {name: len(found), f"{name}_groups": len({group for group, _ in found})}
        counts.append(count)
    return {
        "settings": asdict(settings),
        "table1": compute_statistics(output)["table1"],
        "buckets": counts,
        "left_out_synthesizers": sorted(kept["synthesizer"][True] - kept["synthesizer"][False]),
        "num_known_groups": len(kept["group_id"][True] & kept["group_id"][False]),
        "statistics": compute_statistics(output, split=BENCH_SPLIT),
    }


def render_bench(found: Mapping[str, Any]) -> str:
    """Render `bench.json` as Markdown: Table 1, the buckets and Figure 5."""
    statistics, settings, buckets = found["statistics"], found["settings"], found["buckets"]
    columns = ["bucket", "available", "available_groups", "taken", "taken_groups"]
    return f"""# A test split drawn like ESDR-Bench

The test split: {statistics["pairs"]} pairs of {statistics["groups"]} recordings or dialogues, \
{statistics["real_h"]:.2f} h real, {statistics["synthetic_h"]:.2f} h synthetic. \
At most {settings["cap"]} pairs per {" and ".join(settings["bucket_by"])}, \
at most {settings["colloquialness_cap"]} colloquialness pairs, seed {settings["seed"]}.
Held-out synthesizers: {", ".join(found["left_out_synthesizers"]) or "none"}. \
Recordings or dialogues with other pairs in training: {found["num_known_groups"]}.

{chr(10).join(data_card.render_table1(found["table1"]))}

{chr(10).join(render_table(columns, [list(bucket.values()) for bucket in buckets]))}

![Categories, durations and turns](bench.png)
"""
