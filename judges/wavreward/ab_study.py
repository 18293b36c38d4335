"""A blind study in which people compare the scores of two judges (section 4.3 and Table 2 of WavReward).

On the page of `evaluation.human`, a rater hears one recording, sees two scores as A and B, and chooses the more
reasonable one. The order of the judges is random per item; the gold score is hidden. By default, only samples with two
different scores are drawn. They are spread over the columns of Table 1, and a scenario repeats only after all others
have been drawn. `decided` is the value of Table 2: the share of wins among answers that are not ties. Intervals
resample whole scenarios.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.tables import ABSENT, format_interval, format_percent, render_table
from sdiareward.evaluation.human import study as human

from .scores import OUT_OF_DOMAIN, find_column, find_scenario, measure_share


if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from .scores import Samples

QUESTION = (
    "Which score is more reasonable for the answer? 5: its words and how it is spoken fit. 3: only its words fit. "
    "1: its words do not fit."
)
_SPEAKERS = {"question": "Question", "response": "Answer"}
OUTCOMES = ("win", "lose", "tie")

Record = dict[str, Any]
# The outcome of an answer, and its item in the key.
Given = tuple[str, Mapping[str, Any]]


def pair_scores(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], *, include_equal: bool = False
) -> tuple[list[Record], dict[str, int]]:
    """Pair the scores of two judges by sample; also count samples without a score from one judge."""
    others = {record["sample_id"]: record["predicted"] for record in second}
    shared = [(record, others[record["sample_id"]]) for record in first if record["sample_id"] in others]
    if not shared:
        raise ValueError("the two evaluations share no samples; give evaluations of the same data set and split.")
    scored = [(record, other) for record, other in shared if record["predicted"] is not None and other is not None]
    kept = [
        {
            # Names expected by `human`.
            "pair_id": record["sample_id"],
            "group_id": str(find_scenario(record)),
            "subset": find_column(record) if record["part"] else OUT_OF_DOMAIN,
            **{name: record[name] for name in ("sample_id", "scenario_id", "part", "attribute", "score")},
            "first": record["predicted"],
            "second": other,
        }
        for record, other in scored
        if include_equal or record["predicted"] != other
    ]
    num_equal, num_without_score = len(scored) - len(kept), len(shared) - len(scored)
    return kept, {"num_shared": len(shared), "num_equal": num_equal, "num_without_score": num_without_score}


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
    pool = sorted(pairs, key=lambda record: record["sample_id"])
    rng = random.Random(seed)
    rng.shuffle(pool)
    scenarios = {record["pair_id"]: record["group_id"] for record in pool}
    drawn = human.draw_evenly(pool, size, rng, set(), scenarios.__getitem__)
    if not drawn:
        raise ValueError("no samples to draw: the two judges agree on all samples, or the size is 0; change either.")

    def show(truth: Record, write_clip: Callable[[np.ndarray], Record]) -> Record:
        return _show_item(truth, samples[rows[truth["sample_id"]]], write_clip)

    options = {"allow_tie": allow_tie, "texts": texts or human.read_texts(form=human.SCORES)}
    facts = {"asked": size, "judges": list(judges), **facts}
    return human.write_study(output_dir, drawn, show, human.SCORES, seed, options, **facts)


def _show_item(truth: Record, sample: Mapping[str, Any], write_clip: Callable[[np.ndarray], Record]) -> Record:
    """Write the recording of an item; return what raters see: the words, and the scores as A and B."""
    from sdiareward.audio_sdiareward import read_audio

    array = read_audio(sample["audio"], name=f"sample {truth['sample_id']}")
    words = [f"{title}: {sample[side]}" for side, title in _SPEAKERS.items() if sample.get(side)]
    context = {"role": None, "text": "\n".join(words), **write_clip(array)}
    order = ("first", "second") if truth["chosen_is"] == "a" else ("second", "first")
    shown = [[{"role": None, "text": f"{truth[judge]} of 5", "audio": None}] for judge in order]
    return {"question": QUESTION, "context": [context], "a": shown[0], "b": shown[1]}


def score_ab_study(folder: str | Path, key_file: str | Path | None = None) -> dict[str, Any]:
    """Score the answers and write `results.json` and `results.md`."""
    results = summarise_ab_study(*human.read_rated_study(folder, key_file))
    human.write_results(folder, results, render_ab_study(results))
    return results


def summarise_ab_study(key: Mapping[str, Any], answers: pd.DataFrame) -> dict[str, Any]:
    """Count how often raters preferred the first judge's score."""
    given: list[Given] = []
    balance: Counter[str] = Counter()
    for answer in answers.to_dict("records"):
        item, choice = answer["item"], answer["choice"]
        outcome = "tie" if choice == human.TIE else "win" if choice == answer["chosen_is"] else "lose"
        given.append((outcome, key["items"][item]))
        balance[item] += {"win": 1, "lose": -1, "tie": 0}[outcome]
    columns = sorted({truth["subset"] for _, truth in given})
    signs = list(balance.values())
    return {
        **{name: value for name, value in key.items() if name not in ("items", "seed")},
        "num_items": len(key["items"]),
        "num_rated": len(balance),
        "overall": _count_outcomes(given),
        # By the majority of an item's raters; a draw is a tie.
        "by_majority": {"win": sum(s > 0 for s in signs), "lose": sum(s < 0 for s in signs), "tie": signs.count(0)},
        "columns": {name: _count_outcomes([each for each in given if each[1]["subset"] == name]) for name in columns},
        **human.describe_raters(key, answers),
    }


def _count_outcomes(given: Sequence[Given]) -> dict[str, Any]:
    """Return the shares of wins, losses and ties among one or more answers; `decided` excludes ties."""
    decided = [each for each in given if each[0] != "tie"]
    shares = {name: _share(name, given) for name in OUTCOMES}
    return {"num_answers": len(given), **shares, "decided": _share("win", decided) if decided else None}


def _share(outcome: str, given: Sequence[Given]) -> dict[str, Any]:
    is_so = [each == outcome for each, _ in given]
    found = measure_share(is_so, [truth for _, truth in given])
    counts = {"num_answers": found.pop("num_values"), "num_scenarios": found.pop("num_groups"), "num": sum(is_so)}
    return {**counts, **found}


def render_ab_study(results: Mapping[str, Any]) -> str:
    first, second = results["judges"]
    rows = []
    for title, found in [("**all**", results["overall"]), *results["columns"].items()]:
        rows.append([title, str(found["num_answers"])])
        for share in (found[name] for name in (*OUTCOMES, "decided")):
            bounds = [format_percent(share["share"]), format_interval(share["interval"])] if share else [ABSENT] * 2
            rows[-1] += [str(share["num_scenarios"] if share else 0), *bounds]
    shares = [("scenarios", name, "95%") for name in ("win", "lose", "tie", "win of decided")]
    parts = [
        f"# {first} against {second}",
        f"{results['num_rated']} of {results['num_items']} samples rated. Share of the answers that prefer the score "
        f"from {first} (win), from {second} (lose) or neither (tie), in percent; intervals over scenarios.",
        f"Excluded from {results['num_shared']} samples: {results['num_equal']} with equal scores, and "
        f"{results['num_without_score']} without a score from one judge.",
        "\n".join(render_table(["samples", "answers", *chain(*shares)], rows)),
        "By the majority of their raters: {win} samples won, {lose} lost, {tie} tied.".format(
            **results["by_majority"]
        ),
        human.render_raters(results, "answered without hearing it", f"prefers {first}"),
    ]
    return "\n\n".join(parts) + "\n"
