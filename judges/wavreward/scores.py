"""Samples with scores, simple baselines, the metrics of Table 1, and the report.

Samples are from ChatReward or from a custom folder, which replaces RealDialogue, the paper's unpublished out-of-domain
set: recordings of question, silence and answer, as in ChatReward, and `scores.csv` or `scores.jsonl` with `file`,
`score` and, if known, `scenario_id`.

A sample counts in one column: `content`, `implicit`, the attribute of an explicit instruction, or `out_of_domain` for
other data sets. An answer without a score is wrong, because skipping it would favour judges that often give none.
Intervals resample whole scenarios, because answers to one question are not independent. The interval of a macro
average combines the intervals of its independent columns.

A judge must beat three baselines before its accuracy means anything:

- `most_frequent`: always the most frequent score of the training split.
- `text`: words and word pairs of question and answer, and their word overlap. If it separates 5 from 3 without audio,
  the words reveal the style of speech.
- `acoustic`: mean and standard deviation over time of the log-mel bands of question and answer. If it predicts score 1
  without words, wrong answers sound different.
The last two are multinomial logistic regressions on the training split; they need neither torch nor a GPU.
"""

from __future__ import annotations

import csv
import io
import logging
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field

from sdiareward.common.files import parse_json, split_lines
from sdiareward.common.settings import explain_error
from sdiareward.common.tables import (
    ABSENT,
    escape_markdown,
    format_interval,
    format_number,
    format_percent,
    render_table,
)
from sdiareward.esdr_accuracy.pairwise import combine_intervals
from sdiareward.evaluation.statistics import Clusters, describe_share
from sdiareward.evaluation.summary import describe_changed

from .judge import SCORES, vote


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
_TITLES = {
    **{name: name.replace("_", " ") for name in COLUMNS},
    "overall_micro": "micro",
    "overall_macro": "macro",
    "all_columns_macro": "macro with out of domain",
}
# Options of the bootstrap for all intervals.
DRAWS = {"num_bootstrap": 1000, "seed": 0}
Kind = Literal["most_frequent", "text", "acoustic"]
KINDS: tuple[Kind, ...] = ("most_frequent", "text", "acoustic")
_PLACES = (("benchmark", "in_domain"), ("out of domain", OUT_OF_DOMAIN))
_NUM_THREADS = 2
_MAX_ITERATIONS = 2000
# Inverse strength of the penalty: text features have norm 1, acoustic features are 320 values of variance 1.
_TEXT_C, _ACOUSTIC_C = 10.0, 0.1

logger = logging.getLogger(__name__)
Record = Mapping[str, Any]
Records = Sequence[Record]


class Samples:
    """Samples with their labels in memory and their recordings read on access."""

    def __init__(self, rows: datasets.Dataset):
        self.rows = rows
        self.labels: list[dict[str, Any]] = rows.select_columns(list(LABELS)).to_list()
        # Whether texts and durations of question and answer are known, as in ChatReward.
        self.has_texts = {"question", "response"} <= set(rows.column_names)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]

    def take_first(self, limit: int | None) -> Samples:
        return self if limit is None else Samples(self.rows.take(min(limit, len(self))))

    def find_rows(self, sample_ids: Sequence[str]) -> dict[str, int]:
        rows = {label["sample_id"]: row for row, label in enumerate(self.labels)}
        if missing := [sample_id for sample_id in sample_ids if sample_id not in rows]:
            found = f"{len(missing)} of {len(sample_ids)} samples are not in the data, such as {missing[0]!r}"
            raise ValueError(f"{found}; give the data set and split that were evaluated.")
        return rows


def read_samples(path: str | Path, split: str) -> Samples:
    from sdiareward.dataset_builder.chatreward.scenarios import load_samples

    samples = Samples(load_samples(path, split))
    for label in samples.labels:
        if label["score"] not in SCORES:
            raise ValueError(f"{path}, split {split}, sample {label['sample_id']}: its score is {label['score']!r}.")
        find_column(label)
    return _require_unique(samples, f"{path}, split {split}")


def _require_unique(samples: Samples, name: str) -> Samples:
    if twice := [key for key, count in Counter(each["sample_id"] for each in samples.labels).items() if count > 1]:
        raise ValueError(f"{name}: sample {twice[0]} is listed twice; remove one.")
    return samples


class _Entry(BaseModel):
    """An entry of a list of out-of-domain recordings."""

    file: Annotated[str, Field(min_length=1)]
    score: Annotated[int, Field(ge=1, le=5)]
    scenario_id: Any = None


def read_out_of_domain(path: str | Path, split: str) -> Samples:
    """Read out-of-domain samples: recordings with a list of scores, or a data set in ChatReward's format."""
    import datasets

    from sdiareward.audio_sdiareward import audio_duration_s

    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder of recordings.")
    lists = sorted(entry for entry in folder.iterdir() if entry.suffix in (".csv", ".jsonl"))
    if not lists:
        return read_samples(folder, split)
    if len(lists) > 1:
        raise ValueError(f"{folder}: has several lists ({', '.join(map(str, lists))}); keep one.")
    text, is_csv = lists[0].read_text(encoding="utf-8-sig"), lists[0].suffix == ".csv"
    found = csv.DictReader(io.StringIO(text, newline="")) if is_csv else map(parse_json, split_lines(text))
    rows: list[dict[str, Any]] = []
    try:
        for given in found:
            # Numbers in a CSV are text.
            entry = _Entry.model_validate(given, strict=not is_csv).model_dump()
            file = folder / entry.pop("file")
            if not file.is_file():
                raise ValueError(f"{file} does not exist; give paths relative to the list's folder.")
            more = {"duration_s": audio_duration_s(file), "audio": {"bytes": None, "path": str(file)}}
            scenario = None if entry["scenario_id"] in (None, "") else str(entry["scenario_id"])
            named = {"sample_id": given["file"], "scenario_id": scenario, "score": entry["score"]}
            rows.append({**dict.fromkeys(LABELS), **named, **more})
    except (ValueError, csv.Error) as error:
        place = f"{lists[0]}, entry {len(rows) + 1}"
        raise ValueError(f"{place}: {explain_error(error)} Each recording needs file and score, 1 to 5.") from error
    if not rows:
        raise ValueError(f"{lists[0]}: lists no recordings; give at least one.")
    return _require_unique(Samples(datasets.Dataset.from_list(rows)), str(lists[0]))


def predict_scores(kind: Kind, train: Samples, evaluated: Samples) -> list[int | None]:
    """Fit a baseline and return scores 1-5, None for unreadable recordings; skip unreadable training samples."""
    import numpy as np

    gold = [label["score"] for label in train.labels]
    if len(set(gold)) < 2:
        raise ValueError(f"the training split has {len(gold)} samples of score {set(gold)}; baselines need two.")
    if kind == "most_frequent":
        return [vote(gold)] * len(evaluated)
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if kind == "text":
        known, asked = _compute_text_features(train, evaluated)
        fitted = LogisticRegression(max_iter=_MAX_ITERATIONS, C=_TEXT_C).fit(known, gold)
        return [int(score) for score in fitted.predict(asked)]
    rows, heard = (_compute_acoustic_features(samples) for samples in (train, evaluated))
    used = {index: row for index, row in enumerate(rows) if row is not None}
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=_MAX_ITERATIONS, C=_ACOUSTIC_C))
    model.fit(np.stack(list(used.values())), [gold[index] for index in used])
    return [None if row is None else int(model.predict(row[None])[0]) for row in heard]


def _compute_text_features(train: Samples, evaluated: Samples) -> list[Any]:
    """Return features of training and evaluated samples: words, word pairs and the overlap of both sides."""
    from scipy import sparse
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = [
        [[text or "" for text in samples.rows[side]] for side in ("question", "response")]
        for samples in (train, evaluated)
    ]
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\b\w+\b", sublinear_tf=True)
    vectorizer.fit([*texts[0][0], *texts[0][1]])
    features = []
    for sides in texts:
        question, response = map(vectorizer.transform, sides)
        overlap = sparse.csr_matrix(question.multiply(response).sum(axis=1))
        features.append(sparse.hstack([question, response, overlap]).tocsr())
    return features


def _compute_acoustic_features(samples: Samples) -> list[np.ndarray | None]:
    """Return the features of question and answer of each sample, shape `(320,)`; None for an unreadable recording."""
    import numpy as np
    from tqdm.auto import tqdm

    from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, read_audio
    from sdiareward.evaluation.baselines import compute_acoustic_features

    def compute(index: int) -> np.ndarray | None:
        row = samples[index]
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

    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        found = pool.map(compute, range(len(samples)))
        return list(tqdm(found, "acoustic baseline", len(samples), unit="sample", leave=False))


def find_column(record: Record) -> str:
    """Return the column of Table 1 for a ChatReward sample."""
    part, attribute = record["part"], record["attribute"]
    if part in ("content", "implicit"):
        return str(part)
    if attribute not in ATTRIBUTES:
        found = f"sample {record['sample_id']}: its part is {part!r} and its attribute {attribute!r}"
        raise ValueError(f"{found}; an explicit instruction needs one of {list(ATTRIBUTES)}.")
    return str(attribute)


def find_scenario(record: Record) -> Hashable:
    """Return the scenario of a sample; a sample without one is its own scenario."""
    return record.get("scenario_id") or record["sample_id"]


def summarise_scores(predictions: Records, out_of_domain: Records = (), **options: int) -> dict[str, Any]:
    """Compute all metrics of one scorer."""
    if not predictions:
        raise ValueError("no predictions; give at least one sample.")
    members = {name: [each for each in predictions if find_column(each) == name] for name in IN_DOMAIN}
    members[OUT_OF_DOMAIN] = list(out_of_domain)
    columns = {name: measure_accuracy(records, options) if records else None for name, records in members.items()}
    inside, outside = [columns[name] for name in IN_DOMAIN if columns[name]], columns[OUT_OF_DOMAIN]
    return {
        "columns": columns,
        "overall_micro": measure_accuracy(predictions, options),
        "overall_macro": average_columns(inside),
        # The average in the paper's abstract.
        "all_columns_macro": average_columns([*inside, outside]) if outside else None,
        "in_domain": measure_answers(predictions, options),
        "out_of_domain": measure_answers(out_of_domain, options) if out_of_domain else None,
    }


def measure_share(values: Sequence[bool], records: Records, options: Mapping[str, Any] = DRAWS) -> dict[str, Any]:
    """Return `describe_share` of one value per record, over whole scenarios."""
    return describe_share(values, *_list_clusters(records), **options)


def _list_clusters(records: Records) -> tuple[list[Hashable], list[str]]:
    columns = [find_column(record) if record["part"] else OUT_OF_DOMAIN for record in records]
    return [find_scenario(record) for record in records], columns


def measure_accuracy(records: Records, options: Mapping[str, Any]) -> dict[str, Any]:
    """Count exactly right scores; an answer without a score is wrong; None if no answer has one."""
    invalid = [record for record in records if record["predicted"] is None]
    is_correct = [record["predicted"] == record["score"] for record in records]
    found = measure_share(is_correct, records, options)
    is_usable = len(invalid) < len(records)
    return {
        "num_samples": len(records),
        "num_scenarios": found["num_groups"],
        "num_correct": sum(is_correct),
        "num_invalid": len(invalid),
        "num_cut": sum(bool(record.get("num_cut")) for record in invalid),
        "accuracy": found["share"] if is_usable else None,
        "interval": found["interval"] if is_usable else None,
    }


def average_columns(columns: Sequence[Any]) -> dict[str, Any]:
    """Return the plain mean of the accuracies of independent columns, with its interval."""
    accuracy = bounds = None
    if all(column["accuracy"] is not None for column in columns):
        accuracy = mean(column["accuracy"] for column in columns)
        bounds = combine_intervals([(column["accuracy"], column["interval"]) for column in columns])
    return {"num_columns": len(columns), "accuracy": accuracy, "interval": bounds}


def measure_answers(records: Records, options: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the distance from the gold scores, the order within scenarios, and the form of one or more answers.

    `confusion` counts by gold score, then by predicted score.
    """
    counts = Counter((record["score"], record["predicted"]) for record in records)
    answers = {**{str(score): score for score in SCORES}, INVALID: None}
    valid = [record for record in records if record["predicted"] is not None]
    errors = [abs(record["predicted"] - record["score"]) for record in valid]
    distance = Clusters(*_list_clusters(valid), **options).measure(errors)
    has_expected = any(record.get("expected_score") is not None for record in records)
    return {
        "confusion": {
            str(gold): {name: counts[gold, predicted] for name, predicted in answers.items()} for gold in SCORES
        },
        "mean_absolute_error": {
            "num_samples": len(valid),
            "num_scenarios": distance["num_groups"],
            "error": distance["mean"],
            "interval": distance["interval"],
        },
        "order": measure_order(records, options),
        "expected_order": measure_order(records, options, "expected_score") if has_expected else None,
        "form": _measure_form(records, len(valid)) if "follows_format" in records[0] else None,
    }


def _measure_form(records: Records, num_valid: int) -> dict[str, float | None]:
    """Return form and cost of answers; `real_time_factor` is seconds per second of audio."""
    seconds, audio_s = (sum(record[name] for record in records) for name in ("seconds", "duration_s"))
    return {
        "share_follows_format": mean(bool(record["follows_format"]) for record in records),
        "share_valid": num_valid / len(records),
        "mean_tokens": mean(record["num_tokens"] for record in records),
        "seconds": seconds,
        "audio_s": audio_s,
        "real_time_factor": seconds / audio_s if audio_s else None,
    }


def measure_order(records: Records, options: Mapping[str, Any], field: str = "predicted") -> dict[str, Any]:
    """Count how predictions order a scenario's three gold scores: strictly, tied (none inverted) or inverted."""
    by_scenario: dict[Hashable, dict[int, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        by_scenario[find_scenario(record)][record["score"]].append(record)
    complete = [levels for levels in by_scenario.values() if len(levels) == 3]
    triples = [triple for levels in complete for triple in product(*(levels[gold] for gold in sorted(levels)))]
    outcomes = [_order(*(record[field] for record in triple)) for triple in triples]
    found = measure_share([outcome == "ordered" for outcome in outcomes], [triple[0] for triple in triples], options)
    is_usable = any(outcome != INVALID for outcome in outcomes)
    return {
        "num_triples": len(triples),
        "num_scenarios": found["num_groups"],
        **{f"num_{name}": outcomes.count(name) for name in ("ordered", "tied", "inverted", INVALID)},
        "share_ordered": found["share"] if is_usable else None,
        "interval": found["interval"] if is_usable else None,
        "num_left_out": len(by_scenario) - len(complete),
    }


def _order(low: float | None, middle: float | None, high: float | None) -> str:
    if low is None or middle is None or high is None:
        return INVALID
    if low < middle < high:
        return "ordered"
    return "tied" if low <= middle <= high else "inverted"


def render_evaluation(results: Mapping[str, Any]) -> str:
    """Render `results.json` of `evaluate` as Markdown, for files and terminals."""
    config, scorers = results["config"], results["scorers"]
    how = "thoughts before the score" if config["reasoning"] else "the score alone"
    parts = [
        f"# {config['judge'] or config['model']} on {config['dataset']}, split {config['split']}",
        f"Requested: {how}. Exactly right scores in percent, higher is better; 95% intervals over scenarios. "
        "An answer without a score is wrong.",
        _render_table_one(scorers),
        "\n".join(f"- {note}" for note in _list_notes(results)),
        "## Order and distance\n\n" + _render_distances(scorers),
        *(_render_details(title, scorers[JUDGE][where]) for title, where in _PLACES if scorers[JUDGE][where]),
    ]
    return "\n\n".join(parts) + "\n"


def _render_table_one(scorers: Mapping[str, Record]) -> str:
    """Render the columns that at least one scorer has, then the averages."""
    cells = {title: {**summary, **summary["columns"]} for title, summary in scorers.items()}
    # The answers outside the benchmark have the name of their column.
    names = [name for name in _TITLES if any(found[name] for found in cells.values())]
    first = next(iter(cells.values()))
    rows: list[list[Any]] = [
        [title, *((first[name] or {}).get(f"num_{title}", "") for name in names)] for title in ("samples", "scenarios")
    ]
    for title, by_name in cells.items():
        found = [by_name[name] for name in names]
        rows.append([f"**{title}**", *(format_percent(cell and cell["accuracy"]) for cell in found)])
        rows.append(["95%", *(format_interval(cell["interval"]) if cell else ABSENT for cell in found)])
        if any(cell and cell.get("num_cut") for cell in found):
            rows.append(["cut", *(cell.get("num_cut", "") if cell else ABSENT for cell in found)])
    return "\n".join(render_table(["", *(_TITLES[name] for name in names)], rows))


def _list_notes(results: Mapping[str, Any]) -> list[str]:
    judge = results["scorers"][JUDGE]
    found = ["`macro` is the plain mean of the benchmark's columns."]
    if absent := [_TITLES[name] for name in COLUMNS if not judge["columns"][name]]:
        found.append(f"No samples of {', '.join(absent)}: averages use the other columns.")
    whole = judge["overall_micro"]
    end = ", so there is no accuracy" if whole["accuracy"] is None else " and count as wrong"
    found.append(f"{whole['num_invalid']} of {whole['num_samples']} answers have no score{end}.")
    if whole["num_cut"]:
        remedy = "raise max_new_tokens (for an endpoint: max_tokens)."
        found.append(f"{whole['num_cut']} of these were cut at the token limit; {remedy}")
    found += [f"For example: {escape_markdown(reason)}" for reason in results["problems"]]
    found += describe_changed(results["changed_parameters"])
    if results["skipped"]:
        found.append(f"{len(results['skipped'])} samples were skipped; the skipped files list the reasons.")
    if fitted := results["num_train"]:
        found.append(f"Baselines were fitted on {fitted} training samples; `text` uses no audio, `acoustic` no text.")
    return found


def _render_distances(scorers: Mapping[str, Record]) -> str:
    """Render the distance from the gold score and the order within scenarios, by scorer and data set."""
    rows = []
    for title, (place, where) in product(scorers, _PLACES):
        if (found := scorers[title][where]) is None:
            continue
        error = found["mean_absolute_error"]
        bounds = ABSENT if error["interval"] is None else "{:.2f}-{:.2f}".format(*error["interval"])
        distance = [error["num_scenarios"], format_number(error["error"]), bounds]
        rows.append([f"**{title}**", place, *distance, *_list_order_cells(found["order"])])
        if found["expected_order"]:
            cells = _list_order_cells(found["expected_order"])
            rows.append([f"**{title}**, expected score", place, *[ABSENT] * 3, *cells])
    heads = ("scenarios", "mean absolute error", "95%", "triples", "scenarios", "in order", "95%")
    return "\n".join(render_table(["", "samples", *heads, "tied", "inverted", INVALID], rows, num_left=2))


def _list_order_cells(order: Mapping[str, Any]) -> list[Any]:
    share = [format_percent(order["share_ordered"]), format_interval(order["interval"])]
    counts = [order[f"num_{name}"] for name in ("triples", "scenarios", "tied", "inverted", INVALID)]
    return [*counts[:2], *share, *counts[2:]]


def _render_details(place: str, answers: Mapping[str, Any]) -> str:
    rows: list[list[Any]] = [
        [gold, *counts.values()] for gold, counts in answers["confusion"].items() if any(counts.values())
    ]
    table = "\n".join(render_table(["gold", *map(str, SCORES), INVALID], rows))
    form = answers["form"]
    factor = form["real_time_factor"]
    cost = "" if factor is None else f", real-time factor {factor:.4f}"
    return (
        f"## Scores of the judge, {place}\n\n{table}\n\n"
        f"{format_percent(form['share_follows_format'])}% of the answers have exactly the requested form, "
        f"{format_percent(form['share_valid'])}% have a score; {form['mean_tokens']:.1f} tokens each; "
        f"{form['seconds']:.1f} s for {form['audio_s']:.1f} s of audio{cost}."
    )
