"""Let people choose between the scores of two judges, blindly (section 4.3 and Table 2 of WavReward).

A study is a folder of `human_study`, rated on the same page: a rater hears one recording, sees two scores as A and B,
and says which is the more reasonable. Which judge is A is drawn anew for each item, and the gold score is not shown.

Notable choices:

- By default only samples with two different scores are drawn: between equal ones there is nothing to choose.
- Samples that one judge gave no score are left out and counted; there is no number to show.
- Samples are spread over the columns of Table 1, and no scenario is heard twice while there are others.
- `win`, `lose` and `tie` are shares of all answers; `decided` is what Table 2 prints, the share of wins among the
  answers that chose. Intervals draw whole scenarios.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.evaluation.summary import interval, percent
from sdiareward.human.agreement import TIE, describe_raters, read_rated_study, render_raters, write_results
from sdiareward.human.study import (
    SCORES_FORM,
    draw_evenly,
    draw_letters,
    neutral_name,
    new_folder,
    write_clip,
    write_study,
)

from .score_metrics import OUT_OF_DOMAIN, column_of, mean_interval, scenario_of


if TYPE_CHECKING:
    from .score_samples import Samples

QUESTION = (
    "Which score is more reasonable for the answer? 5: its words and how it is spoken fit. 3: only its words fit. "
    "1: its words do not fit."
)
_SPEAKERS = {"question": "Question", "response": "Answer"}
OUTCOMES = ("win", "lose", "tie")
_OPTIONS = {"num_bootstrap": 1000, "seed": 0}

Record = dict[str, Any]


def pair_scores(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], *, include_equal: bool = False
) -> tuple[list[Record], dict[str, int]]:
    """Return the samples that two judges scored, with both scores.

    Args:
        first (`Sequence[Mapping]`): Predictions of the judge whose wins are counted.
        second (`Sequence[Mapping]`): Predictions of the other.
        include_equal (`bool`, *optional*, defaults to `False`): Also return samples with two equal scores.

    Returns:
        `tuple[list, dict]`: Of each sample its labels, `first` and `second`; and `num_shared`, `num_equal` and
        `num_without_score`, how many samples both judged and how many of these are left out because of which reason.

    Raises:
        ValueError: No sample was judged by both.
    """
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
    return [_describe_pair(*pair) for pair in kept], counts


def _describe_pair(first: Mapping[str, Any], second: Mapping[str, Any]) -> Record:
    labels = {name: first[name] for name in ("sample_id", "scenario_id", "part", "attribute", "score")}
    return {
        # What `human_study` and `human_scoring` look for.
        "pair_id": first["sample_id"],
        "group_id": str(scenario_of(first)),
        "subset": column_of(first) if first["part"] else OUT_OF_DOMAIN,
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
    **facts: Any,
) -> dict[str, Any]:
    """Draw a study of two judges and write its folder, which appears when it is complete.

    Args:
        pairs (`list[dict]`): What `pair_scores` gives.
        samples ([`Samples`]): The samples that were judged.
        output_dir (`str` or `Path`): The study's folder; new or empty.
        seed (`int`): Decides what is drawn, which judge is A, names and order; the same one writes the same bytes.
        size (`int`): How many samples to draw, if there are as many.
        judges (`Sequence[str]`): What to call the two judges, for whoever has the key.
        allow_tie (`bool`, *optional*, defaults to `True`): Whether raters may say that they cannot tell.
        **facts: What else `key.json` is to say.

    Returns:
        `dict`: What `key.json` holds.

    Raises:
        FileExistsError: The folder holds something.
        ValueError: A sample of the evaluations is not in the data, or nothing is to be drawn.
        AudioError, FileNotFoundError: A recording cannot be read.
    """
    target = new_folder(output_dir)
    row_of = {label["sample_id"]: row for row, label in enumerate(samples.labels)}
    if missing := [pair["sample_id"] for pair in pairs if pair["sample_id"] not in row_of]:
        raise ValueError(
            f"{len(missing)} of {len(pairs)} samples are not in the data, such as {missing[0]!r}; give the data set "
            "and split that were evaluated."
        )
    drawn = _draw(pairs, size, seed)
    if not drawn:
        raise ValueError("no sample is drawn: the two judges agree on all of them, or none was asked for.")
    study = neutral_name(seed, *(record["sample_id"] for record in drawn))
    items = {
        neutral_name(seed, study, record["sample_id"]): {"chosen_is": letter, **record}
        for letter, record in zip(draw_letters(len(drawn), seed), drawn, strict=True)
    }
    key = {"study": study, "form": SCORES_FORM, "seed": seed, "asked": size, "judges": list(judges), **facts}
    key["items"] = dict(sorted(items.items()))

    def write_item(name: str, truth: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        return _write_item(name, truth, samples[row_of[truth["sample_id"]]], seed, folder)

    write_study(target, key, write_item, form=SCORES_FORM, allow_tie=allow_tie)
    return key


def _draw(pairs: Sequence[Record], size: int, seed: int) -> list[Record]:
    pool = sorted(pairs, key=lambda record: record["sample_id"])
    rng = random.Random(seed)
    rng.shuffle(pool)
    scenarios = {record["pair_id"]: record["group_id"] for record in pool}
    return draw_evenly(pool, size, rng, set(), scenarios.__getitem__)


def _write_item(
    name: str, truth: Mapping[str, Any], sample: Mapping[str, Any], seed: int, folder: Path
) -> dict[str, Any]:
    """Write the recording of an item; return what raters may know of it: the words, and the scores as A and B."""
    from sdiareward.audio_sdiareward import SAMPLING_RATE, read_audio

    array = read_audio(sample["audio"], name=f"sample {truth['sample_id']}")
    words = [f"{speaker}: {sample[side]}" for side, speaker in _SPEAKERS.items() if sample.get(side)]
    clip = write_clip(array, name, seed, folder)
    duration_s = round(array.size / SAMPLING_RATE, 2)
    context = {"role": None, "text": "\n".join(words), "audio": clip, "duration_s": duration_s}
    order = ("first", "second") if truth["chosen_is"] == "a" else ("second", "first")
    sides = {
        letter: [{"role": None, "text": f"{truth[judge]} of 5", "audio": None}]
        for letter, judge in zip("ab", order, strict=True)
    }
    return {"item": name, "question": QUESTION, "context": [context], **sides}


def score_ab_study(folder: str | Path, key_file: str | Path | None = None) -> dict[str, Any]:
    """Score a study's answers; write `results.json` and `results.md` beside them.

    Args:
        folder (`str` or `Path`): The study's folder.
        key_file (`str` or `Path`, *optional*): Its `key.json`, if that lies elsewhere.

    Returns:
        `dict`: What `summarise_ab_study` gives.

    Raises:
        FileNotFoundError: There is no study, no key, or nobody answered.
        ValueError: The key or an answer is of another study.
    """
    results = summarise_ab_study(*read_rated_study(folder, key_file))
    write_results(Path(folder), results, render_ab_study(results))
    return results


def summarise_ab_study(
    key: Mapping[str, Any], answers: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> dict[str, Any]:
    """Count how often the first judge's score was preferred.

    Args:
        key (`Mapping`): What `key.json` holds.
        answers (`Mapping`): By rater and item, the rater's last answer to it.

    Returns:
        `dict`: `overall` and, by column of Table 1, `columns` (as `describe_outcomes` gives them), `by_majority`
        (items whose raters mostly prefer the first score, the second, or neither), `raters`, `inter_rater`, and what
        the key says of the study.
    """
    given = [(item, answer["choice"]) for by_item in answers.values() for item, answer in by_item.items()]
    truths = [key["items"][item] for item, _ in given]
    outcomes = [_outcome(choice, truth["chosen_is"]) for (_, choice), truth in zip(given, truths, strict=True)]
    by_column: dict[str, list[int]] = {}
    for position, truth in enumerate(truths):
        by_column.setdefault(truth["subset"], []).append(position)
    return {
        **{name: value for name, value in key.items() if name not in ("items", "seed")},
        "num_items": len(key["items"]),
        "num_rated": len({item for item, _ in given}),
        "overall": describe_outcomes(outcomes, truths),
        "by_majority": _count_majorities(given, outcomes),
        "columns": {
            name: describe_outcomes([outcomes[index] for index in indices], [truths[index] for index in indices])
            for name, indices in sorted(by_column.items())
        },
        **describe_raters(key, answers),
    }


def _outcome(choice: str, first_is: str) -> str:
    if choice == TIE:
        return "tie"
    return "win" if choice == first_is else "lose"


def describe_outcomes(outcomes: Sequence[str], truths: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the shares of wins, losses and ties among some answers.

    Args:
        outcomes (`Sequence[str]`): `"win"`, `"lose"` or `"tie"` of each answer, at least one.
        truths (`Sequence[Mapping]`): Labels of the sample that each answer is about.

    Returns:
        `dict`: `num_answers`; by outcome its number, share and `interval`; and `decided`, the share of wins among the
        answers that chose, with its number and interval (None where nobody chose).
    """
    found: dict[str, Any] = {"num_answers": len(outcomes)}
    for name in OUTCOMES:
        found[name] = _share([int(outcome == name) for outcome in outcomes], truths)
    chosen = [position for position, outcome in enumerate(outcomes) if outcome != "tie"]
    wins = [int(outcomes[position] == "win") for position in chosen]
    return {**found, "decided": _share(wins, [truths[position] for position in chosen]) if chosen else None}


def _share(values: Sequence[int], truths: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "num_answers": len(values),
        "num": sum(values),
        "share": sum(values) / len(values),
        "interval": mean_interval(values, truths, _OPTIONS),
    }


def _count_majorities(given: Sequence[tuple[str, str]], outcomes: Sequence[str]) -> dict[str, int]:
    """Count items by which judge more of its raters prefer; as many for both is a tie."""
    balance: Counter[str] = Counter()
    for (item, _), outcome in zip(given, outcomes, strict=True):
        balance[item] += {"win": 1, "lose": -1, "tie": 0}[outcome]
    signs = list(balance.values())
    return {"win": sum(s > 0 for s in signs), "lose": sum(s < 0 for s in signs), "tie": signs.count(0)}


def render_ab_study(results: Mapping[str, Any]) -> str:
    """Render the results of a study of two judges as Markdown: Table 2, by column, the raters.

    Args:
        results (`Mapping`): What `summarise_ab_study` gives.
    """
    from sdiareward.common.markdown import render_table

    first, second = results["judges"]
    rows = [["**all**", *_outcome_cells(results["overall"])]]
    rows += [[name, *_outcome_cells(found)] for name, found in results["columns"].items()]
    heads = ("samples", "answers", "win", "95%", "lose", "95%", "tie", "95%", "win of decided", "95%")
    majority = results["by_majority"]
    parts = [
        f"# {first} against {second}",
        f"{results['num_rated']} of {results['num_items']} samples rated. Share of the answers that prefer the score "
        f"of {first} (win), of {second} (lose) or neither (tie), in percent; intervals over scenarios.",
        f"Not in the study: {results['num_equal']} samples with equal scores, {results['num_without_score']} that one "
        f"of the two gave no score, of {results['num_shared']}.",
        "\n".join(render_table(heads, rows)),
        f"By the majority of their raters: {majority['win']} samples won, {majority['lose']} lost, "
        f"{majority['tie']} tied.",
        render_raters(results, "answered without hearing it", f"prefers {first}"),
    ]
    return "\n\n".join(parts) + "\n"


def _outcome_cells(found: Mapping[str, Any]) -> list[str]:
    cells = [str(found["num_answers"])]
    for name in (*OUTCOMES, "decided"):
        share = found[name]
        cells += ["-", "-"] if share is None else [percent(share["share"]), interval(share["interval"])]
    return cells
