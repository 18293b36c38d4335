"""Draw a blind study in which people choose a side of each pair, and score it (section 5.2, Table 3 of the paper).

A study folder has `study.json` and `audio/*.wav` for raters, `answers.jsonl` with all consents and answers, and
`key.json` (pair, stratum, margin, chosen side) for the person who scores.

The strata are disjoint and drawn in this order: `wrong` (mis-ordered pairs and ties), `high` (random, from the quarter
of the correctly ordered pairs with the largest margins), `low` (the smallest margins, from the lowest quarter),
`random` (all others). Each stratum is spread over the subsets as evenly as possible. Words repeat only if a stratum
has no other pairs, because a rater would recognize the recording.

An answer counts 1 for the chosen side, 0 for the other, 0.5 for "cannot tell". Agreement is averaged over the raters
of an item, then over items, so that strata count by their sizes, as in the paper. `interval` resamples recordings,
because items of one recording are not independent; the overall one resamples within strata, because the study fixes
their sizes. `se_binomial`, `sqrt(p (1 - p) / n)` over items, reproduces every value in the paper. Krippendorff's alpha
is nominal, over the answers A, B and "cannot tell"; over right and wrong, mostly right answers would look like chance.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.chat_sdiareward import make_dialogue
from sdiareward.common.files import JsonLines, format_line, read_json_object, replace_atomically, write_file
from sdiareward.common.settings import read_mapping, require_known
from sdiareward.common.tables import format_interval, format_number, format_percent, render_table
from sdiareward.pairs.schema import SIDES


if TYPE_CHECKING:
    import datasets
    import numpy as np
    import pandas as pd

    from sdiareward.evaluation.scores import Evaluation

Record = dict[str, Any]
# In the order of Table 3, with the paper's numbers of pairs.
SIZES = {"high": 20, "low": 20, "random": 20, "wrong": 15}
_TITLES = {"high": "High confidence", "low": "Low confidence", "random": "Random sampling", "wrong": "Model wrong"}
# Raters compare two dialogues, or two scores of one dialogue. The values are the parts that they must hear.
DIALOGUES, SCORES = "dialogues", "scores"
HEARD = {DIALOGUES: ("a", "b"), SCORES: ("context",)}
TIE = "tie"
CHOICES = ("a", "b", TIE)
QUESTIONS = {
    "modality": "Which sounds more like a real conversation?",
    "colloquialness": "Which conversation is closer to spontaneous, everyday speech?",
}
_percent = partial(format_percent, digits=1)
STUDY_FILE, KEY_FILE, ANSWERS_FILE, AUDIO_FOLDER = "study.json", "key.json", "answers.jsonl", "audio"
INSTRUCTIONS = {
    DIALOGUES: """You will hear pairs of short conversations. Answer the question above each pair.

Listen to both conversations before you choose. Headphones and a quiet room help.

Pay attention to how the people speak and which words they use, not to who they are or what they want. There are no \
right or wrong answers. You can change an answer, take a break, and come back later under the same name.""",
    SCORES: """You will hear conversations, each with two scores from 1 to 5. Choose the score that fits \
the answer better.

Listen to the whole conversation before you choose. Headphones and a quiet room help.

There are no right or wrong answers. You can change an answer, take a break, and come back under the same name.""",
}
CONSENT = """Taking part is voluntary. You can stop at any time by closing this page.

The study saves your answers, the time of each answer, the recordings you played, and the name you enter. You do not \
need to use your real name. The answers are used to measure how well models agree with people.

The person who invited you can tell you who is responsible for the study, how long the answers are kept, and how to \
have yours deleted."""


def read_texts(path: Path | None = None, form: str = DIALOGUES) -> dict[str, str]:
    """Return the texts for raters, the defaults or from a YAML file; an empty line begins a paragraph."""
    texts = {"instructions": INSTRUCTIONS[form], "consent": CONSENT}
    given = {} if path is None else read_mapping(path)
    require_known(given, texts, str(path))
    return texts | given


def draw_strata(
    scores: Sequence[Record],
    seed: int,
    sizes: Mapping[str, int] = SIZES,
    words_of: Callable[[str], Hashable] = lambda pair_id: pair_id,
) -> dict[str, list[Record]]:
    """Draw disjoint strata of pairs; the draw depends on the seed, not on the order of `scores`."""
    rng = random.Random(seed)
    ordered = sorted(scores, key=lambda record: (record["margin"], record["pair_id"]))
    correct = [record for record in ordered if record["margin"] > 0]
    quarter = math.ceil(len(correct) / 4)
    pools = {
        "wrong": [record for record in ordered if record["margin"] <= 0],
        "high": correct[-max(quarter, sizes.get("high", 0)) :],
        "low": correct[: max(quarter, sizes.get("low", 0))],
        "random": ordered,
    }
    strata: dict[str, list[Record]] = {}
    drawn: set[str] = set()
    heard: set[Hashable] = set()
    for name, pool in pools.items():
        left = [record for record in pool if record["pair_id"] not in drawn]
        if name != "low":
            rng.shuffle(left)
        strata[name] = draw_evenly(left, sizes.get(name, 0), rng, heard, words_of)
        drawn |= {record["pair_id"] for record in strata[name]}
    return {name: strata[name] for name in SIZES}


def draw_evenly(
    pool: Sequence[Record], size: int, rng: random.Random, heard: set[Hashable], words_of: Callable[[str], Hashable]
) -> list[Record]:
    """Draw from the subsets in turn: the first pair with new words, or else the first pair."""
    subsets = sorted({record["subset"] for record in pool})
    rng.shuffle(subsets)
    queues = [[record for record in pool if record["subset"] == name] for name in subsets]
    drawn: list[Record] = []
    while len(drawn) < size and any(queues):
        for queue in filter(None, queues[:]):
            if len(drawn) < size:
                fresh = (index for index, record in enumerate(queue) if words_of(record["pair_id"]) not in heard)
                drawn.append(queue.pop(next(fresh, 0)))
                heard.add(words_of(drawn[-1]["pair_id"]))
    return drawn


def sample_study(
    evaluation: Evaluation,
    pairs: datasets.Dataset,
    output_dir: str | Path,
    *,
    seed: int,
    sizes: Mapping[str, int] = SIZES,
    allow_tie: bool = True,
    texts: Mapping[str, str] | None = None,
) -> Record:
    """Draw a study from an evaluation, write its folder atomically, return its key; one seed gives the same bytes."""
    import numpy as np

    from sdiareward.pairs.labels import describe_pairs

    row_of = {label["pair_id"]: row for row, label in enumerate(describe_pairs(pairs))}
    if missing := [record["pair_id"] for record in evaluation.scores if record["pair_id"] not in row_of]:
        found = f"{len(missing)} of {len(evaluation.scores)} pairs of {evaluation.folder} are not in the data"
        raise ValueError(f"{found}, such as {missing[0]!r}; give the data set and split that were evaluated.")

    @cache
    def read_words(pair_id: str) -> Hashable:
        chosen = pairs[row_of[pair_id]][SIDES[0]]
        words = tuple(turn.text for turn in make_dialogue(chosen).turns)
        return words if any(words) else repr(chosen)

    def show_turn(turn: Any, write_clip: Callable[[np.ndarray], Record]) -> Record:
        clips = [clip.read() for clip in turn.clips]
        recording = write_clip(np.concatenate(clips)) if clips else {"audio": None}
        return {"role": turn.role, "text": turn.text, **recording}

    def show_item(truth: Record, write_clip: Callable[[np.ndarray], Record]) -> Record:
        pair = pairs[row_of[truth["pair_id"]]]
        # A before B, so that file times do not reveal the chosen side.
        sides = SIDES if truth["chosen_is"] == "a" else SIDES[::-1]
        a, b = ([show_turn(turn, write_clip) for turn in make_dialogue(pair[side]).turns] for side in sides)
        # The last turns are never shared.
        longest = min(len(a), len(b)) - 1
        shared = next((index for index in range(longest) if a[index] != b[index]), longest)
        question = QUESTIONS.get(truth["criterion"], QUESTIONS["modality"])
        return {"question": question, "context": a[:shared], "a": a[shared:], "b": b[shared:]}

    strata = draw_strata(evaluation.scores, seed, sizes, read_words)
    records = [{"stratum": name, **record} for name, drawn in strata.items() for record in drawn]
    if not records:
        raise ValueError("no pairs to draw; request at least one pair from a stratum that has some.")
    facts = {
        "asked": dict(sizes),
        "drawn": {name: len(drawn) for name, drawn in strata.items()},
        "evaluation": {name: evaluation.run.get(name) for name in ("model", "split", "pairs")},
    }
    options = {"allow_tie": allow_tie, "texts": texts or read_texts()}
    return write_study(output_dir, records, show_item, DIALOGUES, seed, options, **facts)


def write_study(
    output_dir: str | Path,
    records: Sequence[Record],
    show_item: Callable[[Record, Callable[[np.ndarray], Record]], Record],
    form: str,
    seed: int,
    options: Mapping[str, Any],
    **facts: Any,
) -> Record:
    """Write a study atomically and return its key, which has the records and the `facts`.

    `options` are the texts of the study and whether raters may answer "cannot tell". Items have neutral names; in each
    two neighbours, the chosen side is A once and B once. `show_item` gets a record and a function that writes a clip,
    and returns what raters may see.
    """
    from tqdm import tqdm

    target = Path(output_dir)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target}: exists, and a study is not overwritten; choose another folder.")
    study = _hide(seed, *(record["pair_id"] for record in records))
    rng = random.Random(f"{seed}/sides")
    letters = [letter for _ in range(0, len(records), 2) for letter in rng.sample("ab", 2)]
    items = {
        _hide(seed, study, record["pair_id"]): {"chosen_is": letter, **record}
        for letter, record in zip(letters, records, strict=False)
    }
    key = {"study": study, "form": form, "seed": seed, **facts, "items": dict(sorted(items.items()))}
    names = sorted(items)
    random.Random(f"{seed}/order").shuffle(names)
    with replace_atomically(target) as temporary:
        (temporary / AUDIO_FOLDER).mkdir(parents=True)
        shown = []
        for name in tqdm(names, "Writing recordings", unit="item", leave=False):
            write_clip = partial(_write_clip, temporary / AUDIO_FOLDER, seed, name)
            shown.append({"item": name, **show_item(items[name], write_clip)})
        content = {"study": study, "form": form, **options, "items": shown}
        for file, value in ((STUDY_FILE, content), (KEY_FILE, key)):
            write_file(temporary / file, json.dumps(value, indent=1, ensure_ascii=False) + "\n")
    return key


def _hide(*parts: Any) -> str:
    """Return a name that reveals nothing about its parts."""
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:16]


def _write_clip(folder: Path, seed: int, item: str, array: np.ndarray) -> Record:
    import soundfile

    # WAV, because Chromium cannot play very short FLAC files, and a turn may be one word.
    name = f"{_hide(seed, item, hashlib.sha256(array.tobytes()).hexdigest())}.wav"
    if not (folder / name).exists():
        soundfile.write(folder / name, array, SAMPLING_RATE, subtype="PCM_16")
    return {"audio": name, "duration_s": round(array.size / SAMPLING_RATE, 2)}


class Study:
    """A study folder, with each rater's consent and last answer to each item."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.content = _read(self.folder / STUDY_FILE, "draw a study with sdiareward human sample")
        self.items = [item["item"] for item in self.content["items"]]
        self.consents: dict[str, Any] = {}
        self.answers: dict[str, dict[str, Record]] = {}
        self._path = self.folder / ANSWERS_FILE
        # Also removes the incomplete last line of a killed server.
        for record in JsonLines(self._path).read():
            self._take(record)

    def _take(self, record: Record) -> None:
        match record:
            case {"rater": str(rater), "texts": texts}:
                self.consents[rater] = texts
            case {"rater": str(rater), "item": item, "choice": choice, "heard": list()} if (
                item in self.items and choice in CHOICES
            ):
                self.answers.setdefault(rater, {})[item] = record
            case _:
                raise ValueError(f"{self._path}: {record} does not belong to this study; remove the line.")

    def save(self, rater: str, **record: Any) -> None:
        """Append an answer, or a consent with its `texts`; it is on the disk when this returns."""
        record = {"rater": rater, "at": datetime.now(UTC).isoformat(timespec="seconds"), **record}
        line = format_line(record).encode()
        with self._path.open("ab", buffering=0) as file:
            num_bytes = file.tell()
            try:
                if file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError:
                # The next answer would be appended to this incomplete line.
                file.truncate(num_bytes)
                raise
        self._take(record)

    def order_items(self, rater: str) -> list[Record]:
        """Return the items as raters see them, in an order that differs by rater and survives a restart."""
        items = list(self.content["items"])
        random.Random(f"{self.content['study']}/{rater}").shuffle(items)
        return items


def _read(path: Path, remedy: str) -> Record:
    content = read_json_object(path, remedy)
    if missing := {"study", "form", "items"} - set(content):
        raise ValueError(f"{path}: not part of a study, {', '.join(sorted(missing))} missing; {remedy}.")
    return content


def read_rated_study(folder: str | Path, key_file: str | Path | None = None) -> tuple[Record, pd.DataFrame]:
    """Return the key, and one row per rater and item with the last answer and the key's values."""
    study = Study(folder)
    key = _read(Path(key_file or study.folder / KEY_FILE), "name it with --key if it is in another folder")
    if study.content["study"] != key["study"]:
        found = f"is study {study.content['study']}, but the key is for {key['study']}"
        raise ValueError(f"{folder}: {found}; give the key of this study.")
    if not study.answers:
        raise FileNotFoundError(f"{folder}: has no answers; rate with sdiareward human rate first.")
    return key, tabulate_answers(key, study.answers)


def tabulate_answers(key: Mapping[str, Any], answers: Mapping[str, Mapping[str, Record]]) -> pd.DataFrame:
    import pandas as pd

    rows = [
        {"rater": rater, "item": item, **answer, **key["items"][item]}
        for rater, given in sorted(answers.items())
        for item, answer in given.items()
    ]
    table = pd.DataFrame(rows)
    is_right = (table["choice"] == table["chosen_is"]).astype(float)
    is_heard = table["heard"].map(set).map(len) == len(HEARD[key["form"]])
    return table.assign(agreement=is_right.mask(table["choice"] == TIE, 0.5), is_heard=is_heard)


def score_study(folder: str | Path, key_file: str | Path | None = None) -> Record:
    """Measure the agreement of answers with labels; write `results.json` and `results.md`, return the results."""
    results = summarise_study(*read_rated_study(folder, key_file))
    write_results(folder, results, render_study(results))
    return results


def write_results(folder: str | Path, results: Mapping[str, Any], report: str) -> None:
    write_file(Path(folder) / "results.json", json.dumps(results, indent=2) + "\n")
    write_file(Path(folder) / "results.md", report)


def summarise_study(key: Mapping[str, Any], answers: pd.DataFrame) -> Record:
    items = collect_items(answers)
    # Each stratum and each subset is one row.
    alike, subsets = items.assign(stratum=""), sorted({truth["subset"] for truth in key["items"].values()})
    drawn = [name for name in SIZES if key["drawn"][name]]
    return {
        "study": key["study"],
        "num_items": len(key["items"]),
        "num_rated": len(items),
        "asked": key["asked"],
        "drawn": key["drawn"],
        "strata": {name: summarise_items(items[items["stratum"] == name]) for name in drawn},
        "overall": summarise_items(items),
        "subsets": {name: summarise_items(alike[items["subset"] == name]) for name in subsets},
        **describe_raters(key, answers),
    }


def collect_items(answers: pd.DataFrame) -> pd.DataFrame:
    """Return one row per rated item: labels, mean agreement of its raters, and counts of answers."""
    by_item = answers.groupby("item", sort=False)
    counts = {"num_answers": by_item.size(), "agreement": by_item["agreement"].mean()}
    counts["num_cannot_tell"] = (answers["choice"] == TIE).groupby(answers["item"]).sum()
    return answers.drop_duplicates("item").set_index("item").assign(**counts)


def summarise_items(items: pd.DataFrame) -> Record:
    """Return a row of Table 3; higher agreement is better, and the interval resamples within `stratum`."""
    from sdiareward.evaluation.statistics import describe_share

    found = {name: int(items[name].sum()) for name in ("num_answers", "num_cannot_tell")}
    found = {"num_items": len(items), **found, "num_groups": 0}
    if items.empty:
        return found | dict.fromkeys(("average_margin", "agreement", "interval", "se_binomial"))
    agreement = float(items["agreement"].mean())
    within = agreement + items["agreement"] - items.groupby("stratum")["agreement"].transform("mean")
    # An item of unknown origin counts as one recording.
    groups = items["group_id"].fillna("")
    share = describe_share(within, groups.where(groups != "", items["pair_id"]).tolist())
    return found | {
        "num_groups": share["num_groups"],
        "average_margin": float(items["margin"].mean()),
        "agreement": agreement,
        "interval": share["interval"],
        "se_binomial": math.sqrt(agreement * (1 - agreement) / len(items)),
    }


def describe_raters(key: Mapping[str, Any], answers: pd.DataFrame) -> Record:
    """Return each rater's progress (`num_not_heard`: answers before everything was played) and agreement."""
    raters = {
        name: {
            "num_answered": len(given),
            "num_missing": len(key["items"]) - len(given),
            "num_cannot_tell": int((given["choice"] == TIE).sum()),
            "num_not_heard": int((~given["is_heard"]).sum()),
            "agreement": float(given["agreement"].mean()),
        }
        for name, given in answers.groupby("rater")
    }
    return {"raters": raters, "inter_rater": measure_raters(answers)}


def measure_raters(answers: pd.DataFrame) -> Record:
    """Return Krippendorff's alpha (1: full agreement, 0: chance) and percent agreement, also per pair of raters."""
    import krippendorff
    import numpy as np

    choices = answers.pivot(index="item", columns="rater", values="choice")
    pairs: list[Record] = []
    for one, other in combinations(choices.columns, 2):
        shared = choices[[one, other]].dropna()
        num_equal = int((shared[one] == shared[other]).sum())
        pairs.append({"raters": [one, other], "num_items": len(shared), "num_equal": num_equal})
    num_shared = sum(pair["num_items"] for pair in pairs)
    counts = np.stack([(choices == choice).sum(axis=1) for choice in CHOICES], axis=1)
    counts = counts[counts.sum(axis=1) > 1]
    undefined = None if len(counts) else "no item has answers of two raters"
    if len(counts) and counts.any(axis=0).sum() < 2:
        undefined = "all answers are the same"
    alpha = None if undefined else float(krippendorff.alpha(value_counts=counts, level_of_measurement="nominal"))
    return {
        "krippendorff_alpha": alpha,
        "undefined": undefined,
        "percent_agreement": sum(pair["num_equal"] for pair in pairs) / num_shared if num_shared else None,
        "pairs": pairs,
    }


def render_study(results: Mapping[str, Any]) -> str:
    rows = {_TITLES[name]: row for name, row in results["strata"].items()}
    drawn = results["drawn"]
    short = [f"{name} ({drawn[name]} of {size})" for name, size in results["asked"].items() if drawn[name] < size]
    parts = [
        "# Human verification",
        f"{results['num_rated']} of {results['num_items']} items rated. Agreement with the data's labels in "
        "percent, higher is better; 95% intervals over recordings, and the paper's binomial SE.",
        *([f"Fewer pairs than requested: {', '.join(short)}."] if short else []),
        _render_rows("sample", {**rows, "**Overall (weighted)**": results["overall"]}),
        _render_rows("subset", results["subsets"]),
        render_raters(results, "answered without hearing both", "human agree."),
    ]
    return "\n\n".join(parts) + "\n"


def _render_rows(title: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    head = [title, "items", "recordings", "answers", "cannot tell", "avg. margin", "human agree.", "95%", "SE"]
    table = []
    for name, row in rows.items():
        counts = [row[of] for of in ("num_items", "num_groups", "num_answers", "num_cannot_tell")]
        se = f"± {_percent(row['se_binomial'])}" if row["se_binomial"] else "-"
        shares = [_percent(row["agreement"]), format_interval(row["interval"]), se]
        table.append([name, *counts, format_number(row["average_margin"]), *shares])
    return "\n".join(render_table(head, table))


def render_raters(results: Mapping[str, Any], unheard: str, agreement: str) -> str:
    """Render the result of `describe_raters`; `unheard` and `agreement` are column headings."""
    among = results["inter_rater"]
    alpha, why = among["krippendorff_alpha"], among["undefined"]
    found = f"is not defined: {why}" if why else f"(nominal): {alpha:.3f}"
    lines = ["## Raters", "", f"Krippendorff's alpha {found}."]
    if among["percent_agreement"] is not None:
        lines.append(f"Two raters give the same answer to {_percent(among['percent_agreement'])}% of the items.")
    rows = []
    for name, rater in results["raters"].items():
        answered = f"{rater['num_answered']} of {rater['num_answered'] + rater['num_missing']}"
        counts = (rater["num_cannot_tell"], rater["num_not_heard"], _percent(rater["agreement"]))
        rows.append([name, answered + (" (incomplete)" if rater["num_missing"] else ""), *counts])
    return "\n".join([*lines, "", *render_table(["rater", "answered", "cannot tell", unheard, agreement], rows)])
