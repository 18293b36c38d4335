"""Build ChatReward: scenarios -> splits -> speech -> filters -> Parquet with a card and a report (section 3.2.3).

Finished scenarios stay in part files until the last shard is written: a killed build resumes, a changed configuration
starts over, and a finished build is not repeated. Deterministic synthesizers reproduce the samples.

Casts are tried in an order that depends on the scenario, each with a female and a male voice: for the question until
one passes the filters, for the answers until one speaker passes with all of them. One speaker gives all three answers,
so that the voice does not predict the score. If no speaker passes, the one with the most answers is kept.

Then human experts (five in the paper) verify text, speech and scores. Raters write a CSV with the columns `sample_id`,
`rater` and `score` (1 to 5), one row per sample. The gold score is the median, rounded half up. The optional column
`wrong` rejects a sample: `text` or `speech` names the fault, `sample` means that it is unusable; no score is needed
then. One rater is enough to reject a sample, and the new data set excludes it. Invalid rows are reported by line and
ignored.
"""

from __future__ import annotations

import csv
import json
import logging
import math
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from string import Template
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, read_audio
from sdiareward.common.errors import Skipped
from sdiareward.common.files import lock_folder, require_other_folder
from sdiareward.common.package import CARDS
from sdiareward.common.tables import escape_markdown, render_table
from sdiareward.dataset_builder.episodes import SkipError
from sdiareward.dataset_builder.synthesis import SynthesisError, load_synthesizer
from sdiareward.pairs.messages import join_turns
from sdiareward.pairs.schema import make_stable_id, make_stable_seed
from sdiareward.perturbations.attack_sounds import find_clips
from sdiareward.perturbations.channel import encode_flac
from sdiareward.perturbations.effects import measure_level, scale_to_level

from ..reports import data_card
from ..shards import make_parts, read_rows, write_rows, write_shards
from . import scenarios, voices
from .scenarios import Line, Scenario
from .voices import GENDERS, Cast, ChatRewardConfig, EventSettings


logger = logging.getLogger(__name__)
_COLUMNS = ("sample_id", "rater", "score")
_WRONG, _SCORES = ("text", "speech", "sample"), ("1", "2", "3", "4", "5")
# Sample -> rater -> score.
Ratings = Mapping[str, Mapping[str, int]]
# A cast, and the gender of its voice for categories without one.
Speaker = tuple[Cast, str]


@dataclass(frozen=True)
class Take:
    array: np.ndarray  # (num_samples,), mono, 16 kHz
    synthesizer: str
    wer: float | None  # None: not checked.
    language: str


Takes = dict[Any, Take | Skipped]


class Recorder:
    def __init__(self, config: ChatRewardConfig):
        self._config = config
        self._casts = config.read_casts()
        self._words = voices.WordErrors(config.asr)

    @cached_property
    def _score_emotions(self) -> Any:
        return voices.load_classifier(self._config.emotion) if self._config.emotion else None

    def record(self, scenario: Scenario, split: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return the samples of a scenario, and notes on missing samples and on the failed lines of all casts."""
        rejected: list[Skipped] = []
        asking, answering = self._choose_speakers(scenario, split)
        lines: dict[Any, Line] = {"question": scenario.question}
        takes = self._record_lines(scenario, lines, asking, rejected)
        if isinstance(question := takes.get("question"), Take):
            takes |= self._record_lines(scenario, scenario.answers, answering, rejected)
        rows, skipped = [], []
        for score in scenario.answers:
            missing = Skipped("", "no_question", "no voice could speak the question; see the rejected lines.")
            found: Any = takes.get(score, missing)
            if isinstance(question, Take) and isinstance(found, Take):
                found = self._join(scenario, score, question, found)
            if isinstance(found, Skipped):
                skipped.append(asdict(replace(found, item=f"{scenario.scenario_id} {score}")))
            else:
                rows.append(found)
        return rows, {"skipped": skipped, "rejected": [*map(asdict, rejected)]}

    def _choose_speakers(self, scenario: Scenario, split: str) -> tuple[list[Speaker], list[Speaker]]:
        """Return the speakers for question and answers, different genders first."""
        config, key = self._config, (self._config.seed, scenario.scenario_id)
        held_out = frozenset(config.left_out) if split == "train" else frozenset()
        named = config.casts_by_attribute.get(scenario.voices, config.casts)
        speaking = [cast.drop_engines(held_out) for cast in self._casts if cast.name in named]
        casts = sorted(speaking, key=lambda cast: make_stable_id(*key, cast.name))
        # A female voice suits all ages best.
        if scenario.voices == "age":
            women = [(cast, "female") for cast in casts]
            return women, women
        first = make_stable_seed(*key) % 2
        answering, asking = ([(cast, GENDERS[i]) for cast in casts] for i in (first, 1 - first))
        return asking + answering, answering + asking

    def _record_lines(
        self, scenario: Scenario, lines: Mapping[Any, Line], speakers: list[Speaker], rejected: list[Skipped]
    ) -> Takes:
        """Return the lines of the first speaker who passes with all of them, or else of the one with the most.

        The first failed line rejects a speaker; the remaining lines are synthesised only if all speakers fail.
        """
        attempts: list[Takes] = [{} for _ in speakers]
        for is_last_round in (False, True):
            for (cast, gender), takes in zip(speakers, attempts, strict=True):
                for name in [name for name in lines if name not in takes]:
                    try:
                        takes[name] = self._speak(cast, gender, scenario, lines[name], is_question=name == "question")
                    except (SkipError, SynthesisError, AudioError) as error:
                        # Only event clips are read here.
                        kind = getattr(error, "kind", "no_event")
                        skip = Skipped(f"{scenario.scenario_id} {name}", kind, f"{cast.name}: {error}")
                        takes[name] = skip
                        rejected.append(skip)
                        if not is_last_round:
                            break
                if _rank(takes)[0] == len(lines):
                    return takes
        return max(attempts, key=_rank, default={})

    def _speak(self, cast: Cast, gender: str, scenario: Scenario, line: Line, *, is_question: bool) -> Take:
        """Speak and check a line; add the sound to a question with the attribute `audio`."""
        attribute, category, config = scenario.voices, line.category, self._config
        # One speaker for all answers, unless the category decides.
        seed = make_stable_seed(config.seed, scenario.scenario_id, is_question)
        language = scenarios.LANGUAGE_TAGS[category or "english"] if attribute == "language" else "en"
        array, engine = cast.speak(line.text, attribute, category, gender, language=language, seed=seed)
        wer = None if config.max_wer is None else self._words.rate(line.text, array, language)
        if wer is not None and wer > (config.max_wer or 0.0):
            raise SkipError("wer", f"the word error rate is {wer:.3f}; the limit is {config.max_wer}.")
        if attribute == "emotion" and category and config.emotion:
            score, least = self._score_emotions(array).get(category, 0.0), config.emotion.threshold
            if score < least:
                raise SkipError("emotion", f"{category!r} scores {score:.3f}; the minimum is {least}.")
        if attribute == "audio" and is_question:
            seed = make_stable_seed(config.seed, scenario.scenario_id, category)
            array = mix_event(array, load_event(str(category), seed, config.events), config.events)
        return Take(array, engine, wer, language)

    def _join(self, scenario: Scenario, score: int, question: Take, answer: Take) -> dict[str, Any] | Skipped:
        """Return the sample of a question and an answer, or the reason why it is skipped."""
        array = join_turns([question.array, answer.array], self._config.gap_s)
        *lasts_s, duration_s = (len(each) / SAMPLING_RATE for each in (question.array, answer.array, array))
        least_s, most_s = self._config.min_s, self._config.max_s
        if not least_s <= duration_s <= most_s:
            return Skipped("", "duration", f"it lasts {duration_s:.1f} s; allowed: {least_s:.0f} to {most_s:.0f} s.")
        line = scenario.answers[score]
        labels = (scenario.part, scenario.attribute, scenario.category, scenario.question.category, line.category)
        sample_id = make_stable_id(scenario.scenario_id, score, *labels, scenario.question.text, line.text)
        of_scenario = ("scenario_id", "part", "attribute", "category", "topic", "license")
        return {
            "sample_id": sample_id,
            **{name: getattr(scenario, name) for name in of_scenario},
            "response_category": line.category,
            **{"score": score, "design_score": score, "expert_scores": None},
            **{"question": scenario.question.text, "response": line.text},
            **{"question_s": lasts_s[0], "response_s": lasts_s[1], "duration_s": duration_s},
            "audio": {"bytes": encode_flac(array), "path": f"{sample_id}.flac"},
            **{"question_synthesizer": question.synthesizer, "synthesizer": answer.synthesizer},
            **{"question_wer": question.wer, "response_wer": answer.wer},
            "language": question.language if question.language == answer.language else scenarios.MIXED_LANGUAGES,
        }


def load_event(category: str, seed: int, events: EventSettings) -> np.ndarray:
    names = events.classes.get(category, (category,))
    clips = [path for name in names for path in find_clips(name, events.folder)]
    if not clips:
        raise SkipError("no_event", f"sound {category!r} has no clip; put one into {Path(events.folder, names[0])}.")
    return read_audio(clips[np.random.default_rng(seed).integers(len(clips))])


def mix_event(speech: np.ndarray, clip: np.ndarray, events: EventSettings) -> np.ndarray:
    """Mix a repeated clip under speech, starting `lead_s` before it, within full scale."""
    mixed = np.concatenate([np.zeros(round(events.lead_s * SAMPLING_RATE), dtype=np.float32), speech])
    sound = np.resize(clip, len(mixed))
    mixed += scale_to_level(sound, measure_level(speech) * 10 ** (-events.snr_db / 20)).astype(np.float32)
    return (mixed / max(1.0, float(np.abs(mixed).max(initial=0.0)) / 0.99)).astype(np.float32)


def _rank(takes: Takes) -> tuple[int, int]:
    """Rank by number of lines, then by number of voices: a missing voice is the least informative reason."""
    num_missing = sum(isinstance(take, Skipped) and take.kind == scenarios.NO_VOICE for take in takes.values())
    return sum(isinstance(take, Take) for take in takes.values()), -num_missing


def build(config: ChatRewardConfig) -> dict[str, Any]:
    """Build the data set of `config`; return its report."""
    output = Path(config.output_dir)
    with lock_folder(output):
        chosen = scenarios.take_evenly(scenarios.read_scenarios(config.scenarios), config.limit)
        identity = json.loads(json.dumps(config.identity()))
        plan_id = make_stable_id(json.dumps([identity, [each.as_row() for each in chosen]], sort_keys=True))
        work = output / ".parts" / plan_id
        if finished := None if work.parent.exists() else data_card.read_finished(output, plan_id):
            logger.warning("%s is up to date; delete its report.json to build it again.", output)
            return finished
        engines = {voice.engine: voice.options for cast in config.read_casts() for voice in cast.voices.values()}
        splits = scenarios.assign_splits(chosen, test=config.test, seed=config.seed)
        plans = {scenario.scenario_id: (scenario, splits[scenario.scenario_id]) for scenario in chosen}
        options: Any = {"num_workers": config.num_workers, "columns": scenarios.features(), "unit": "scenario"}
        parts = make_parts(work, plans, Recorder(config).record, **options)
        found = {row["item"]: json.loads(row["notes"]) for row in parts.iter_rows(["notes"])}
        kinds = ("skipped", "rejected")
        skipped, rejected = ([skip for name in plans for skip in found[name][kind]] for kind in kinds)
        if len(skipped) == sum(len(scenario.answers) for scenario in chosen):
            raise ValueError(f"no samples from {len(plans)} scenarios: {[s['reason'] for s in skipped[:3]]}.")
        write_shards(parts, {name: split for name, (_, split) in plans.items()}, output, scenarios.features())
        report = {
            "plan_id": plan_id,
            "config": identity,
            "synthesizers": {name: load_synthesizer(name, engines[name]).version for name in sorted(engines)},
            "rejected_lines": dict(sorted(Counter(skip["kind"] for skip in rejected).items())),
            **data_card.summarise_skipped([Skipped(**skip) for skip in skipped]),
            "rejected": rejected,
            "scenarios": {"read": len(plans), **Counter(splits.values())},
        }
        report = _save_report(output, report)
        shutil.rmtree(work.parent)
        return report


def _save_report(output: Path, report: dict[str, Any]) -> dict[str, Any]:
    """Write the card and report of a folder; return the report with the counts of its shards."""
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
    codes = set()
    for split, row in read_rows(output, ("attribute", "duration_s", "language")):
        seconds[split, row["attribute"] or "content"].append(row["duration_s"])
        is_mixed = row["language"] == scenarios.MIXED_LANGUAGES
        codes |= {*scenarios.LANGUAGE_TAGS.values()} if is_mixed else {row["language"]}
    # Samples and hours by split and attribute, as in Table 4.
    samples = [
        {"split": split, "attribute": attribute, "samples": len(found), "hours": round(sum(found) / 3600, 4)}
        for (split, attribute), found in sorted(seconds.items())
    ]
    report |= {"build_id": data_card.make_content_id(output), "samples": samples}
    report |= {"languages": data_card.list_languages(codes)}
    splits = sorted({split for split, _ in seconds}, reverse=True)
    files = [{"split": split, "path": f"data/{split}-*.parquet"} for split in splits]
    configs = [{"config_name": "default", "data_files": files}]
    tags = ["spoken-dialogue", "reward-model", "synthetic"]
    header = data_card.render_header(report, configs, pretty_name="ChatReward", tags=tags)
    card = Template((CARDS / "chatreward_card.md").read_text(encoding="utf-8")).substitute(
        seed=report["config"]["seed"],
        gap_s=report["config"]["gap_s"],
        table="\n".join(render_table(list(samples[0]), [list(row.values()) for row in samples], num_left=2)),
        synthesizers=", ".join(map(escape_markdown, report["synthesizers"].values())),
        skipped=len(report["skipped"]),
    )
    return data_card.save_report(output, report, f"---\n{header}\n---\n{card}")


def read_ratings(path: Path, known: set[str]) -> tuple[dict[str, dict[str, int]], list[Skipped], list[Skipped]]:
    """Return the ratings of a CSV, the rejected samples and the invalid rows as `Skipped`."""
    ratings: dict[str, dict[str, int]] = defaultdict(dict)
    rejected, skipped = [], []
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file)
        if missing := [name for name in _COLUMNS if name not in (rows.fieldnames or ())]:
            raise ValueError(f"{path}: the header lacks {missing}; the columns are {list(_COLUMNS)}.")
        for row in rows:
            sample, rater, score, wrong = ((row.get(name) or "").strip() for name in (*_COLUMNS, "wrong"))
            bad_score = f"score is {score!r}; it must be a whole number from 1 to 5."
            again = f"{rater!r} rated {sample} twice; the first score is kept."
            problems = (
                (sample not in known, "unknown_sample", f"sample_id {sample!r} is not in the data set."),
                (not rater, "missing_rater", "rater is empty; give one."),
                (wrong not in ("", *_WRONG), "bad_wrong", f"wrong is {wrong!r}; it must be one of {list(_WRONG)}."),
                (not wrong and score not in _SCORES, "bad_score", bad_score),
                (not wrong and rater in ratings[sample], "rated_twice", again),
            )
            if problem := next((problem for is_wrong, *problem in problems if is_wrong), None):
                skipped.append(Skipped(f"{path.name} line {rows.line_num}", *problem))
            elif wrong:
                rejected.append(Skipped(sample, f"wrong_{wrong}", f"{rater} rejects it."))
            else:
                ratings[sample][rater] = int(score)
    gone = {skip.item for skip in rejected}
    return {sample: given for sample, given in ratings.items() if given and sample not in gone}, rejected, skipped


def compute_gold_score(scores: Sequence[int]) -> int:
    return math.floor(median(scores) + 0.5)


def measure_agreement(design: Mapping[str, int], ratings: Ratings) -> dict[str, Any]:
    """Measure agreement of raters with each other (ranges) and with the designed scores (changes)."""
    golds = {sample: compute_gold_score(list(given.values())) for sample, given in ratings.items()}
    changes = Counter(f"{design[sample]} -> {gold}" for sample, gold in golds.items() if gold != design[sample])
    ranges = {sample: max(given.values()) - min(given.values()) for sample, given in ratings.items() if len(given) > 1}
    # Two raters disagree clearly if they differ by 2 or more.
    wide = sorted(sample for sample, width in ranges.items() if width >= 2)
    return {
        "rated": len(ratings),
        "ratings": sum(map(len, ratings.values())),
        "raters": len({rater for given in ratings.values() for rater in given}),
        "changed": changes.total(),
        "changes": dict(sorted(changes.items())),
        "mean_range": round(fmean(ranges.values()), 4) if ranges else None,
        "wide": len(wide),
        "disagreements": wide,
    }


def merge_experts(folder: Path, ratings_path: Path, output: Path) -> dict[str, Any]:
    """Copy a data set with expert scores from a CSV, without rejected samples; return the copy's report."""
    require_other_folder(folder, output)
    design = {row["sample_id"]: row["design_score"] for _, row in read_rows(folder, ("sample_id", "design_score"))}
    ratings, rejected, bad_rows = read_ratings(ratings_path, set(design))
    gone = {skip.item for skip in rejected}
    if gone >= set(design):
        raise ValueError(f"{ratings_path}: rejects all {len(design)} samples; nothing remains to write.")
    if not ratings and not rejected:
        raise ValueError(f"{ratings_path}: no row can be used ({[skip.reason for skip in bad_rows[:3]]}).")

    def rate() -> Iterator[tuple[str, dict[str, Any]]]:
        for split, row in read_rows(folder):
            if given := ratings.get(row["sample_id"]):
                # Sorted by the raters' names.
                scores = [given[rater] for rater in sorted(given)]
                row |= {"expert_scores": scores, "score": compute_gold_score(scores)}
            if row["sample_id"] not in gone:
                yield split, row

    write_rows(output, rate(), scenarios.features())
    report = data_card.read_report(folder)
    report |= {
        "plan_id": make_stable_id(report["plan_id"], data_card.make_content_id(output)),
        "experts": {**measure_agreement(design, ratings), "rejected": len(gone)},
        "rejected_by_experts": [*report.get("rejected_by_experts", ()), *map(asdict, rejected)],
        "bad_rows": [asdict(skip) for skip in bad_rows],
    }
    return _save_report(output, report)
