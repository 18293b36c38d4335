"""A blind study in which people compare the scores of two judges (section 4.3 and Table 2 of WavReward).

A rater hears one recording, sees two scores as A and B, and chooses the more reasonable one, on the page of
`evaluation.human`. Each item draws which judge is A; the gold score is hidden. By default only samples with two
different scores are drawn. They are spread over the columns of Table 1, and a scenario repeats only when all others
have been drawn. `decided` is the number of Table 2: the share of wins among the answers that are not ties. Intervals
draw whole scenarios.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.evaluation.human.study import (
    SCORES,
    TIE,
    describe_raters,
    draw_evenly,
    read_rated_study,
    read_texts,
    render_raters,
    write_results,
    write_study,
)
from sdiareward.evaluation.summary import format_interval, format_percent

from .scores import OUT_OF_DOMAIN, find_column, find_scenario, measure_share


if TYPE_CHECKING:
    import numpy as np

    from .scores import Samples

QUESTION = (
    "Which score is more reasonable for the answer? 5: its words and how it is spoken fit. 3: only its words fit. "
    "1: its words do not fit."
)
_SPEAKERS = {"question": "Question", "response": "Answer"}
OUTCOMES = ("win", "lose", "tie")

Record = dict[str, Any]


def pair_scores(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], *, include_equal: bool = False
) -> tuple[list[Record], dict[str, int]]:
    """Pair the scores of two judges by sample; the counts include samples without a score of one judge."""
    others = {record["sample_id"]: record for record in second}
    shared = [(record, others[record["sample_id"]]) for record in first if record["sample_id"] in others]
    if not shared:
        raise ValueError("the two evaluations share no sample; give evaluations of the same data set and split.")
    scored = [pair for pair in shared if all(record["predicted"] is not None for record in pair)]
    kept = [pair for pair in scored if include_equal or pair[0]["predicted"] != pair[1]["predicted"]]
    counts = {
        "num_shared": len(shared),
        "num_equal": len(scored) - len(kept),
        "num_without_score": len(shared) - len(scored),
    }
    return [_make_pair(*pair) for pair in kept], counts


def _make_pair(first: Mapping[str, Any], second: Mapping[str, Any]) -> Record:
    labels = {name: first[name] for name in ("sample_id", "scenario_id", "part", "attribute", "score")}
    return {
        # Names that the modules of `human` expect.
        "pair_id": first["sample_id"],
        "group_id": str(find_scenario(first)),
        "subset": find_column(first) if first["part"] else OUT_OF_DOMAIN,
        **labels,
        "first": first["predicted"],
        "second": second["predicted"],
    }


def sample_ab_study(
    pairs: Sequence[Record],
    samples: Samples,
    output_dir: str | Path,
    *,
    seed: int,
    size: int,
    judges: Sequence[str],
    allow_tie: bool = True,
    texts: Mapping[str, str] | None = None,
    **facts: Any,
) -> dict[str, Any]:
    """Draw a study of two judges and write its folder atomically; the same seed writes the same bytes."""
    rows = samples.find_rows([pair["sample_id"] for pair in pairs])
    drawn = _draw(pairs, size, seed)
    if not drawn:
        raise ValueError("no sample is drawn: the two judges agree on all samples, or the size is 0; change either.")

    def show_item(truth: Record, write_clip: Callable[[np.ndarray], Record]) -> Record:
        return _show_item(truth, samples[rows[truth["sample_id"]]], write_clip)

    options = {"allow_tie": allow_tie, "texts": texts or read_texts(form=SCORES)}
    facts = {"asked": size, "judges": list(judges), **facts}
    return write_study(output_dir, drawn, show_item, SCORES, seed, options, **facts)


def _draw(pairs: Sequence[Record], size: int, seed: int) -> list[Record]:
    pool = sorted(pairs, key=lambda record: record["sample_id"])
    rng = random.Random(seed)
    rng.shuffle(pool)
    scenarios = {record["pair_id"]: record["group_id"] for record in pool}
    return draw_evenly(pool, size, rng, set(), scenarios.__getitem__)


def _show_item(truth: Record, sample: Mapping[str, Any], write_clip: Callable[[np.ndarray], Record]) -> Record:
    """Write the recording of an item; return what raters see: the words, and the scores as A and B."""
    from sdiareward.audio_sdiareward import read_audio

    array = read_audio(sample["audio"], name=f"sample {truth['sample_id']}")
    words = [f"{speaker}: {sample[side]}" for side, speaker in _SPEAKERS.items() if sample.get(side)]
    context = {"role": None, "text": "\n".join(words), **write_clip(array)}
    order = ("first", "second") if truth["chosen_is"] == "a" else ("second", "first")
    sides = {
        letter: [{"role": None, "text": f"{truth[judge]} of 5", "audio": None}]
        for letter, judge in zip("ab", order, strict=True)
    }
    return {"question": QUESTION, "context": [context], **sides}


def score_ab_study(folder: str | Path, key_file: str | Path | None = None) -> dict[str, Any]:
    """Score the answers and write `results.json` and `results.md`."""
    results = summarise_ab_study(*read_rated_study(folder, key_file))
    write_results(folder, results, render_ab_study(results))
    return results


def summarise_ab_study(
    key: Mapping[str, Any], answers: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> dict[str, Any]:
    """Count how often raters preferred the first judge's score."""
    given = [(item, answer["choice"]) for by_item in answers.values() for item, answer in by_item.items()]
    truths = [key["items"][item] for item, _ in given]
    outcomes = [_find_outcome(choice, truth["chosen_is"]) for (_, choice), truth in zip(given, truths, strict=True)]
    by_column: dict[str, list[int]] = {}
    for position, truth in enumerate(truths):
        by_column.setdefault(truth["subset"], []).append(position)
    return {
        **{name: value for name, value in key.items() if name not in ("items", "seed")},
        "num_items": len(key["items"]),
        "num_rated": len({item for item, _ in given}),
        "overall": count_outcomes(outcomes, truths),
        "by_majority": _count_majorities(given, outcomes),
        "columns": {
            name: count_outcomes([outcomes[index] for index in indices], [truths[index] for index in indices])
            for name, indices in sorted(by_column.items())
        },
        **describe_raters(key, answers),
    }


def _find_outcome(choice: str, first_is: str) -> str:
    if choice == TIE:
        return "tie"
    return "win" if choice == first_is else "lose"


def count_outcomes(outcomes: Sequence[str], truths: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the shares of wins, losses and ties among at least one answer; `decided` omits ties."""
    found: dict[str, Any] = {"num_answers": len(outcomes)}
    for name in OUTCOMES:
        found[name] = _share([outcome == name for outcome in outcomes], truths)
    decided = [(outcome == "win", truth) for outcome, truth in zip(outcomes, truths, strict=True) if outcome != "tie"]
    return {**found, "decided": _share(*zip(*decided, strict=True)) if decided else None}


def _share(values: Sequence[bool], truths: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = measure_share(values, truths)
    counts = {"num_answers": found.pop("num_values"), "num_scenarios": found.pop("num_groups")}
    return {**counts, "num": sum(values), **found}


def _count_majorities(given: Sequence[tuple[str, str]], outcomes: Sequence[str]) -> dict[str, int]:
    """Count items by the judge that most raters prefer; a draw is a tie."""
    balance: Counter[str] = Counter()
    for (item, _), outcome in zip(given, outcomes, strict=True):
        balance[item] += {"win": 1, "lose": -1, "tie": 0}[outcome]
    signs = list(balance.values())
    return {"win": sum(s > 0 for s in signs), "lose": sum(s < 0 for s in signs), "tie": signs.count(0)}


def render_ab_study(results: Mapping[str, Any]) -> str:
    from sdiareward.common.tables import render_table

    first, second = results["judges"]
    rows = [["**all**", *_format_outcomes(results["overall"])]]
    rows += [[name, *_format_outcomes(found)] for name, found in results["columns"].items()]
    shares = [("scenarios", name, "95%") for name in ("win", "lose", "tie", "win of decided")]
    majority = results["by_majority"]
    parts = [
        f"# {first} against {second}",
        f"{results['num_rated']} of {results['num_items']} samples rated. Share of the answers that prefer the score "
        f"of {first} (win), of {second} (lose) or neither (tie), in percent; intervals over scenarios.",
        f"Not in the study: {results['num_equal']} samples with equal scores, and {results['num_without_score']} with "
        f"no score of one judge, of {results['num_shared']}.",
        "\n".join(render_table(["samples", "answers", *chain(*shares)], rows)),
        f"By the majority of their raters: {majority['win']} samples won, {majority['lose']} lost, "
        f"{majority['tie']} tied.",
        render_raters(results, "answered without hearing it", f"prefers {first}"),
    ]
    return "\n\n".join(parts) + "\n"


def _format_outcomes(found: Mapping[str, Any]) -> list[str]:
    cells = [str(found["num_answers"])]
    for name in (*OUTCOMES, "decided"):
        share = found[name]
        bounds = ["-"] * 2 if share is None else [format_percent(share["share"]), format_interval(share["interval"])]
        cells += [str(share["num_scenarios"] if share else 0), *bounds]
    return cells
