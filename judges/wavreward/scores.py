"""Samples with scores, simple baselines, the metrics of Table 1, and the report.

Samples are of ChatReward, or a custom folder in place of RealDialogue, the out-of-domain set of the paper, which is
not published: recordings of question, silence and answer, as in ChatReward, and `scores.csv` or `scores.jsonl` with
`file`, `score` and, if known, `scenario_id`.

A sample counts in one column: `content`, `implicit`, the attribute of an explicit instruction, or `out_of_domain` for
other data sets. An answer without a score is wrong: skipping it would favour a judge that often gives none. Intervals
are over whole scenarios, because the answers to one question are not independent. The interval of a macro average
combines those of its independent columns.

A judge must beat three baselines before its accuracy means anything:

- `most_frequent`: always the most frequent score of the training split.
- `text`: words and word pairs of question and answer, and the overlap of their words. If it separates 5 from 3 without
  audio, the words reveal the style of speech.
- `acoustic`: mean and standard deviation over time of the log-mel bands of question and answer. If it predicts score 1
  without words, wrong answers sound different.
The last two are multinomial logistic regressions on the training split, and need neither torch nor a GPU.
"""

from __future__ import annotations

import csv
import io
import json
import logging
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, Literal

from sdiareward.common.escaping import escape_markdown
from sdiareward.common.files import split_lines
from sdiareward.common.tables import render_table
from sdiareward.esdr_accuracy.pairwise import combine_intervals
from sdiareward.evaluation.statistics import Clusters, describe_share
from sdiareward.evaluation.summary import describe_changed, format_interval, format_percent

from .answers import SCORES
from .judge import vote


if TYPE_CHECKING:
    import datasets
    import numpy as np

LABELS = ("sample_id", "scenario_id", "part", "attribute", "category", "score", "duration_s")
# In the order of Table 1.
ATTRIBUTES = ("age", "accent", "language", "gender", "emotion", "pitch", "speed", "volume", "audio")
IN_DOMAIN = ("content", *ATTRIBUTES, "implicit")
OUT_OF_DOMAIN = "out_of_domain"
COLUMNS = (*IN_DOMAIN, OUT_OF_DOMAIN)
INVALID = "invalid"
JUDGE = "judge"
TITLES = {
    **{name: name for name in COLUMNS},
    OUT_OF_DOMAIN: "out of domain",
    "overall_micro": "micro",
    "overall_macro": "macro",
    "all_columns_macro": "macro with out of domain",
}
# Options of the bootstrap behind every interval.
DRAWS = {"num_bootstrap": 1000, "seed": 0}
Kind = Literal["most_frequent", "text", "acoustic"]
KINDS: tuple[Kind, ...] = ("most_frequent", "text", "acoustic")
# Where no answer is usable.
_NO_SHARE = {"share": None, "interval": None}
_ABSENT = "-"
_AVERAGES = ("overall_micro", "overall_macro", "all_columns_macro")
_PLACES = (("benchmark", "in_domain"), ("out of domain", OUT_OF_DOMAIN))
_NUM_THREADS = 2
_MAX_ITERATIONS = 2000
# Inverse strength of the penalty: text features have norm 1, acoustic features are 320 values of variance 1.
_TEXT_C, _ACOUSTIC_C = 10.0, 0.1

logger = logging.getLogger(__name__)
Labels = list[dict[str, Any]]
Record = Mapping[str, Any]
Records = Sequence[Record]


class Samples(Sequence[Any]):
    """Samples with their labels in memory and their recordings read on access."""

    def __init__(self, rows: datasets.Dataset):
        self.rows = rows
        self.labels: Labels = rows.select_columns(list(LABELS)).to_list()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    @property
    def has_texts(self) -> bool:
        """Whether the texts and durations of question and answer are known, as in ChatReward."""
        return {"question", "response"} <= set(self.rows.column_names)

    def take_first(self, limit: int | None) -> Samples:
        return self if limit is None else Samples(self.rows.take(min(limit, len(self))))

    def find_rows(self, sample_ids: Sequence[str]) -> dict[str, int]:
        rows = {label["sample_id"]: row for row, label in enumerate(self.labels)}
        if missing := [sample_id for sample_id in sample_ids if sample_id not in rows]:
            raise ValueError(
                f"{len(missing)} of {len(sample_ids)} samples are not in the data, such as {missing[0]!r}; give the "
                "data set and split that were evaluated."
            )
        return rows


def read_samples(path: str | Path, split: str) -> Samples:
    from sdiareward.dataset_builder.chatreward.schema import load_samples

    samples = Samples(load_samples(path, split))
    for label in samples.labels:
        _check_score(label["score"], f"{path}, split {split}, sample {label['sample_id']}")
        find_column(label)
    _check_ids(samples.labels, f"{path}, split {split}")
    return samples


def read_out_of_domain(path: str | Path, split: str) -> Samples:
    """Read out-of-domain samples: recordings with a list of scores, or another data set in the form of ChatReward."""
    import datasets

    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder of recordings.")
    lists = sorted(entry for entry in folder.iterdir() if entry.suffix in (".csv", ".jsonl"))
    if not lists:
        return read_samples(folder, split)
    if len(lists) > 1:
        raise ValueError(f"{folder}: holds several lists ({', '.join(map(str, lists))}); leave one.")
    rows = [_read_entry(entry, f"{lists[0]}, entry {number}", folder) for number, entry in _read_entries(lists[0])]
    if not rows:
        raise ValueError(f"{lists[0]}: lists no recording; give at least one line of file and score.")
    _check_ids(rows, str(lists[0]))
    return Samples(datasets.Dataset.from_list(rows))


def _read_entries(path: Path) -> list[tuple[int, Record]]:
    """Return the entries of a list with their numbers, from 1."""
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".csv":
        # `str.splitlines` would also split at line separators within a text.
        try:
            return list(enumerate(csv.DictReader(io.StringIO(text, newline="")), start=1))
        except csv.Error as error:
            raise ValueError(f"{path}: not CSV ({error}); give a line of file and score per recording.") from error
    entries: list[tuple[int, Record]] = []
    for number, line in enumerate(split_lines(text), start=1):
        try:
            entries.append((number, dict(json.loads(line))))
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{path}, entry {number}: not JSON ({error}); give an object with file, score."
            ) from error
    return entries


def _read_entry(entry: Record, name: str, folder: Path) -> dict[str, Any]:
    from sdiareward.audio_sdiareward import audio_duration_s

    if missing := [column for column in ("file", "score") if entry.get(column) in (None, "")]:
        raise ValueError(f"{name}: has no {' and no '.join(missing)}; each recording needs file and score.")
    file, score = str(entry["file"]), entry["score"]
    if not (folder / file).is_file():
        raise FileNotFoundError(f"{name}: {folder / file} does not exist; give paths from the list's folder.")
    if isinstance(score, str) and score.strip().isdecimal():  # In a CSV.
        score = int(score)
    return {
        **dict.fromkeys(LABELS),
        "sample_id": file,
        "scenario_id": None if entry.get("scenario_id") in (None, "") else str(entry["scenario_id"]),
        "score": _check_score(score, name),
        "duration_s": audio_duration_s(folder / file),
        "audio": {"bytes": None, "path": str(folder / file)},
    }


def _check_score(score: Any, name: str) -> int:
    if type(score) is not int or score not in SCORES:
        raise ValueError(f"{name}: its score is {score!r}; it must be a whole number from 1 to 5.")
    return score


def _check_ids(labels: Labels, name: str) -> None:
    seen: set[str] = set()
    for label in labels:
        if label["sample_id"] in seen:
            raise ValueError(f"{name}: sample {label['sample_id']} is listed twice; remove one of the two.")
        seen.add(label["sample_id"])


def predict_scores(kind: Kind, train: Samples, evaluated: Samples) -> list[int | None]:
    """Fit a baseline and return scores 1-5; None without a readable recording. Such training samples are skipped."""
    scores = [label["score"] for label in train.labels]
    if len(set(scores)) < 2:
        raise ValueError(f"the training split has {len(scores)} samples of score {set(scores)}; baselines need two.")
    if kind == "most_frequent":
        return [vote(scores)] * len(evaluated)
    if kind == "text":
        return _predict_from_text(train, scores, evaluated)
    return _predict_from_sound(train, scores, evaluated)


def _predict_from_text(train: Samples, scores: Sequence[int], evaluated: Samples) -> list[int | None]:
    from scipy import sparse
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    sides = ("question", "response")
    fitted_on, asked = (
        {side: [text or "" for text in each.rows[side]] for side in sides} for each in (train, evaluated)
    )
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", sublinear_tf=True)
    vectorizer.fit([*fitted_on["question"], *fitted_on["response"]])

    def features(texts: Mapping[str, list[str]]) -> Any:
        question, response = (vectorizer.transform(texts[side]) for side in sides)
        overlap = sparse.csr_matrix(question.multiply(response).sum(axis=1))
        return sparse.hstack([question, response, overlap]).tocsr()

    model = LogisticRegression(max_iter=_MAX_ITERATIONS, C=_TEXT_C).fit(features(fitted_on), scores)
    return [int(score) for score in model.predict(features(asked))]


def _predict_from_sound(train: Samples, scores: Sequence[int], evaluated: Samples) -> list[int | None]:
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    known = _compute_acoustic_rows(train, "training samples")
    asked = _compute_acoustic_rows(evaluated, "evaluated samples")
    pairs = [(row, score) for row, score in zip(known, scores, strict=True) if row is not None]
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=_MAX_ITERATIONS, C=_ACOUSTIC_C))
    model.fit(np.stack([row for row, _ in pairs]), [score for _, score in pairs])
    return [None if row is None else int(model.predict(row[None])[0]) for row in asked]


def _compute_acoustic_rows(samples: Samples, title: str) -> list[np.ndarray | None]:
    from tqdm.auto import tqdm

    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        results = pool.map(lambda index: _compute_acoustic_row(samples[index]), range(len(samples)))
        return list(tqdm(results, title, len(samples), unit="sample", leave=False))


def _compute_acoustic_row(row: Mapping[str, Any]) -> np.ndarray | None:
    """Return the features of question and answer, shape `(320,)`; None without a readable recording."""
    import numpy as np

    from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, read_audio
    from sdiareward.evaluation.baselines import compute_acoustic_features

    name = f"sample {row['sample_id']}"
    try:
        array = read_audio(row["audio"], name=name)
        end, start = (round(row[field] * SAMPLING_RATE) for field in ("question_s", "response_s"))
        sides = [
            {"role": "user", "audio": {"array": part, "sampling_rate": SAMPLING_RATE}}
            for part in (array[:end], array[max(len(array) - start, 0) :])
        ]
        return np.concatenate([compute_acoustic_features([side], name) for side in sides])
    except (AudioError, FileNotFoundError) as error:
        logger.warning("acoustic baseline: %s", error)
        return None


def find_column(record: Record) -> str:
    """Return the column of Table 1 that a sample of ChatReward counts in."""
    part, attribute = record["part"], record["attribute"]
    if part in ("content", "implicit"):
        return str(part)
    if attribute not in ATTRIBUTES:
        raise ValueError(
            f"sample {record['sample_id']}: its part is {part!r} and its attribute {attribute!r}; an explicit "
            f"instruction needs one of {list(ATTRIBUTES)}."
        )
    return str(attribute)


def find_scenario(record: Record) -> Hashable:
    """Return the scenario of a sample; a sample without one is its own scenario."""
    return record.get("scenario_id") or record["sample_id"]


def summarise_scores(
    predictions: Records, out_of_domain: Records = (), *, num_bootstrap: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """Compute all metrics of one scorer."""
    if not predictions:
        raise ValueError("there are no predictions; at least one sample is needed.")
    options = {"num_bootstrap": num_bootstrap, "seed": seed}
    members: dict[str, list[Record]] = {name: [] for name in COLUMNS}
    for record in predictions:
        members[find_column(record)].append(record)
    members[OUT_OF_DOMAIN] = list(out_of_domain)
    columns = {name: measure_accuracy(records, options) if records else None for name, records in members.items()}
    inside = [column for name in IN_DOMAIN if (column := columns[name])]
    outside = columns[OUT_OF_DOMAIN]
    return {
        "columns": columns,
        "overall_micro": measure_accuracy(predictions, options),
        "overall_macro": average_columns(inside),
        # The average of the paper's abstract.
        "all_columns_macro": average_columns([*inside, outside]) if outside else None,
        "in_domain": measure_answers(predictions, options),
        "out_of_domain": measure_answers(out_of_domain, options) if out_of_domain else None,
    }


def measure_accuracy(records: Records, options: Mapping[str, Any]) -> dict[str, Any]:
    """Count the scores that are exactly right; an answer without a score is wrong, but None if no answer has one."""
    is_correct = [record["predicted"] == record["score"] for record in records]
    is_usable = any(record["predicted"] is not None for record in records)
    found = measure_share(is_correct, records, options) if is_usable else _NO_SHARE
    return {
        "num_samples": len(records),
        "num_scenarios": len({find_scenario(record) for record in records}),
        "num_correct": sum(is_correct),
        "num_invalid": sum(record["predicted"] is None for record in records),
        "num_cut": sum(record["predicted"] is None and bool(record.get("num_cut")) for record in records),
        "accuracy": found["share"],
        "interval": found["interval"],
    }


def measure_share(values: Sequence[bool], records: Records, options: Mapping[str, Any] = DRAWS) -> dict[str, Any]:
    """Return `describe_share` of a value for each record, over whole scenarios."""
    return describe_share(values, *_list_clusters(records), **options)


def _list_clusters(records: Records) -> tuple[list[Hashable], list[str]]:
    columns = [find_column(record) if record["part"] else OUT_OF_DOMAIN for record in records]
    return [find_scenario(record) for record in records], columns


def average_columns(columns: Sequence[Record]) -> dict[str, Any]:
    """Return the plain mean of the accuracies of independent columns, with its interval."""
    if any(column["accuracy"] is None for column in columns):
        return {"num_columns": len(columns), "accuracy": None, "interval": None}
    accuracy = mean(column["accuracy"] for column in columns)
    bounds = combine_intervals([(column["accuracy"], column["interval"]) for column in columns])
    return {"num_columns": len(columns), "accuracy": accuracy, "interval": bounds}


def measure_answers(records: Records, options: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the distance from the gold scores, the order within scenarios, and the form of at least one answer."""
    has_expected = any(record.get("expected_score") is not None for record in records)
    return {
        "confusion": confusion_matrix(records),
        "mean_absolute_error": mean_absolute_error(records, options),
        "order": measure_order(records, options),
        "expected_order": measure_order(records, options, "expected_score") if has_expected else None,
        "form": measure_form(records) if "follows_format" in records[0] else None,
    }


def confusion_matrix(records: Records) -> dict[str, dict[str, int]]:
    """Count predictions: by gold score, then by predicted score or `"invalid"`."""
    answers = [*map(str, SCORES), INVALID]
    counts = {str(gold): dict.fromkeys(answers, 0) for gold in SCORES}
    for record in records:
        predicted = INVALID if record["predicted"] is None else str(record["predicted"])
        counts[str(record["score"])][predicted] += 1
    return counts


def mean_absolute_error(records: Records, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean distance from the gold score over the answers that have a score; lower is better."""
    valid = [record for record in records if record["predicted"] is not None]
    if not valid:
        return {"num_samples": 0, "num_scenarios": 0, "error": None, "interval": None}
    errors = [abs(record["predicted"] - record["score"]) for record in valid]
    found = Clusters(*_list_clusters(valid), **options).measure(errors)
    found["error"], found["num_scenarios"] = found.pop("mean"), found.pop("num_groups")
    return {"num_samples": len(valid), **found}


def measure_order(records: Records, options: Mapping[str, Any], field: str = "predicted") -> dict[str, Any]:
    """Count how the three gold scores of a scenario are ordered: strictly, tied (none inverted) or inverted."""
    by_scenario: dict[Hashable, list[Record]] = defaultdict(list)
    for record in records:
        by_scenario[find_scenario(record)].append(record)
    outcomes, members = [], []
    num_incomplete = 0
    for samples in by_scenario.values():
        levels = [[r for r in samples if r["score"] == gold] for gold in sorted({r["score"] for r in samples})]
        if len(levels) != 3:
            num_incomplete += 1
            continue
        for triple in product(*levels):
            outcomes.append(_order(*(record[field] for record in triple)))
            members.append(triple[0])
    counts = {f"num_{name}": outcomes.count(name) for name in ("ordered", "tied", "inverted", "invalid")}
    is_ordered = [outcome == "ordered" for outcome in outcomes]
    ordered = measure_share(is_ordered, members, options) if {*outcomes} - {INVALID} else _NO_SHARE
    num_scenarios = len({find_scenario(record) for record in members})
    found = {"num_triples": len(outcomes), "num_scenarios": num_scenarios, **counts, "share_ordered": ordered["share"]}
    return {**found, "interval": ordered["interval"], "num_left_out": num_incomplete}


def _order(low: float | None, middle: float | None, high: float | None) -> str:
    if low is None or middle is None or high is None:
        return INVALID
    if low < middle < high:
        return "ordered"
    return "tied" if low <= middle <= high else "inverted"


def measure_form(records: Records) -> dict[str, Any]:
    """Measure form and cost; `real_time_factor` is seconds per second of audio (Table 5), lower is better."""
    seconds, audio_s = (sum(record[name] for record in records) for name in ("seconds", "duration_s"))
    return {
        "share_follows_format": mean(bool(record["follows_format"]) for record in records),
        "share_valid": mean(record["predicted"] is not None for record in records),
        "mean_tokens": mean(record["num_tokens"] for record in records),
        "seconds": seconds,
        "audio_s": audio_s,
        "real_time_factor": seconds / audio_s if audio_s else None,
    }


def render_evaluation(results: Mapping[str, Any]) -> str:
    """Render `results.json` of `evaluate` as Markdown that also reads well in a terminal."""
    config, scorers = results["config"], results["scorers"]
    names = find_shown_columns(scorers.values())
    how = "thoughts before the score" if config["reasoning"] else "the score alone"
    parts = [
        f"# {config['judge'] or config['model']} on {config['dataset']}, split {config['split']}",
        f"Requested: {how}. Scores that are exactly right in percent, higher is better; 95% intervals over scenarios. "
        "An answer without a score is wrong.",
        "\n".join(render_table_one(scorers, names)),
        "\n".join(f"- {note}" for note in _list_notes(results)),
        "## Order and distance\n\n" + "\n".join(_render_distances(scorers)),
        *(_render_details(title, scorers[JUDGE][where]) for title, where in _PLACES if scorers[JUDGE][where]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def find_shown_columns(summaries: Any) -> list[str]:
    """Return the columns, then the averages, that at least one summary has."""
    found = list(summaries)
    names = [name for name in COLUMNS if any(each["columns"][name] for each in found)]
    return names + [name for name in _AVERAGES if any(each[name] for each in found)]


def render_table_one(scorers: Mapping[str, Record], names: Sequence[str]) -> list[str]:
    rows = []
    first = next(iter(scorers.values()))
    for field, title in (("num_samples", "samples"), ("num_scenarios", "scenarios")):
        rows.append([title, *(str((_find_cell(first, name) or {}).get(field, "")) for name in names)])
    for title, summary in scorers.items():
        cells = [_find_cell(summary, name) for name in names]
        rows.append(
            [f"**{title}**", *(_ABSENT if cell is None else format_percent(cell["accuracy"]) for cell in cells)]
        )
        rows.append(["95%", *(_ABSENT if cell is None else format_interval(cell["interval"]) for cell in cells)])
        if any(cell and cell.get("num_cut") for cell in cells):
            rows.append(["cut", *(str(cell.get("num_cut", "")) if cell else _ABSENT for cell in cells)])
    return render_table(["", *(TITLES[name] for name in names)], rows)


def _find_cell(summary: Record, name: str) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = summary[name] if name in _AVERAGES else summary["columns"][name]
    return found


def _list_notes(results: Mapping[str, Any]) -> list[str]:
    judge = results["scorers"][JUDGE]
    found = ["`macro` is the plain mean of the benchmark's columns."]
    if absent := [TITLES[name] for name in COLUMNS if not judge["columns"][name]]:
        found.append(f"No samples of {', '.join(absent)}: averages run over the other columns.")
    whole = judge["overall_micro"]
    end = ", so there is no accuracy" if whole["accuracy"] is None else " and count as wrong"
    found.append(f"{whole['num_invalid']} of {whole['num_samples']} answers have no score{end}.")
    if whole["num_cut"]:
        found.append(
            f"{whole['num_cut']} of these were cut at the token limit; max_new_tokens (of an endpoint: max_tokens) "
            "raises it."
        )
    found += [f"For example: {escape_markdown(reason)}" for reason in results["problems"]]
    found += describe_changed(results["changed_parameters"])
    if results["skipped"]:
        num_skipped = len(results["skipped"])
        found.append(f"{num_skipped} samples were skipped; the skipped files list the reasons.")
    if fitted := results.get("num_train"):
        found.append(f"Baselines were fitted on {fitted} training samples; `text` uses no audio, `acoustic` no text.")
    return found


def _render_distances(scorers: Mapping[str, Record]) -> list[str]:
    """Return a table of the distance from the gold score and the order within scenarios, by scorer and data set."""
    rows = []
    for title, summary in scorers.items():
        for place, where in _PLACES:
            if not summary[where]:
                continue
            error, order = summary[where]["mean_absolute_error"], summary[where]["order"]
            rows.append([f"**{title}**", place, *_format_error(error), *_order_cells(order)])
            if expected := summary[where]["expected_order"]:
                rows.append([f"**{title}**, expected score", place, *[_ABSENT] * 3, *_order_cells(expected)])
    heads = ("scenarios", "mean absolute error", "95%", "triples", "scenarios", "in order", "95%")
    return render_table(["", "samples", *heads, "tied", "inverted", INVALID], rows, num_left=2)


def _format_error(error: Mapping[str, Any]) -> list[str]:
    bounds = error["interval"]
    value = _ABSENT if error["error"] is None else f"{error['error']:.2f}"
    return [str(error["num_scenarios"]), value, _ABSENT if bounds is None else f"{bounds[0]:.2f}-{bounds[1]:.2f}"]


def _order_cells(order: Mapping[str, Any]) -> list[str]:
    share = [format_percent(order["share_ordered"]), format_interval(order["interval"])]
    counts = [str(order[f"num_{name}"]) for name in ("triples", "scenarios", "tied", "inverted", INVALID)]
    return [*counts[:2], *share, *counts[2:]]


def _render_details(place: str, answers: Mapping[str, Any]) -> str:
    answered = [*map(str, SCORES), INVALID]
    rows = [
        [gold, *(str(counts[name]) for name in answered)]
        for gold, counts in answers["confusion"].items()
        if any(counts.values())
    ]
    table = "\n".join(render_table(["gold", *answered], rows))
    return f"## Scores of the judge, {place}\n\n{table}\n\n{render_cost(answers['form'])}"


def render_cost(form: Mapping[str, Any]) -> str:
    factor = form["real_time_factor"]
    cost = "" if factor is None else f", real-time factor {factor:.4f}"
    return (
        f"{format_percent(form['share_follows_format'])}% of the answers have exactly the requested form, "
        f"{format_percent(form['share_valid'])}% have a score; {form['mean_tokens']:.1f} tokens each; "
        f"{form['seconds']:.1f} s for {form['audio_s']:.1f} s of audio{cost}."
    )
