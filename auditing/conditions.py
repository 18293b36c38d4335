"""The conditions under which an audit presents pairs to a model, and the rewards under each.

With only audio or only text, a low accuracy may just mean that the input is unfamiliar to a model trained on both. A
high accuracy is evidence: a model that is as good without audio does not need it, and a model that is as good without
text does not use it. A pair with a turn without words is not presented without audio.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.common.errors import Skipped
from sdiareward.common.files import JsonLines, format_line, write_file
from sdiareward.common.parts import Items, Make, PartFolder, Rows, run_parts
from sdiareward.dataset_builder.synthesis import find_voice
from sdiareward.pairs.schema import SIDES
from sdiareward.perturbations.attacks import ATTACKS, AttackContext, is_heard
from sdiareward.perturbations.decoded_pairs import AuditPair, Messages, Turn, to_messages
from sdiareward.perturbations.registry import PERTURBATIONS, apply
from sdiareward.scoring.outcomes import Record, complete_items


if TYPE_CHECKING:
    import pyarrow as pa

    from sdiareward.scoring.scorer import Scorer

NATURAL = "natural"
# Name of the reward of an attacked dialogue.
ATTACKED = "attacked"
# The parts of each turn that the model gets, by condition.
AUDIO_ONLY, TEXT_ONLY = "audio_only", "text_only"
MODALITIES: dict[str, dict[str, Any]] = {AUDIO_ONLY: {"text": False}, TEXT_ONLY: {"audio": False}}
# Keys of a line if the condition does not apply to the pair, or if an error occurred.
REASON, ERROR = "reason", "error"
# Number of pairs in memory; each condition scores them in one call.
_CHUNK_PAIRS = 8
# Raised for a pair that a condition cannot change; other errors are bugs and end the run.
_CONDITION_ERRORS = (ValueError, TypeError, FileNotFoundError)
# Item: key of a condition and id of a pair.
_SEPARATOR = "\t"
# Lines by condition and pair.
Rewards = dict[str, dict[str, Record]]


@dataclass(frozen=True)
class Condition:
    """One way of presenting pairs to the model."""

    # Name in the run's folder, such as "nuisance/gain/-6".
    key: str
    # From a pair to its dialogues by name of the reward, or to the reason why the condition does not apply.
    build: Callable[[AuditPair], Mapping[str, Messages] | str]
    # Reason if this machine cannot try it. Not stored, so that a rerun tries it once the requirement is installed.
    unavailable_reason: str = ""


def make_modality_conditions() -> list[Condition]:
    return [Condition(make_modality_key(name), partial(present, **options)) for name, options in MODALITIES.items()]


def make_modality_key(name: str) -> str:
    return f"hearing/{name}"


def present(pair: AuditPair, **options: bool) -> dict[str, Messages] | str:
    """Return both sides of a pair, without `audio` or `text` if one is False."""
    sides = {side: to_messages(getattr(pair, side), **options) for side in SIDES}
    is_whole = all(message["content"] for messages in sides.values() for message in messages)
    return sides if is_whole else "has a turn without words"


def list_severities(names: Iterable[str]) -> list[tuple[str, float]]:
    """Return each perturbation with its usual severities, from weak to strong, or with its default severity."""
    return [
        (name, severity)
        for name in names
        for severity in PERTURBATIONS[name].severities or (PERTURBATIONS[name].default,)
    ]


def make_perturbation_key(name: str, severity: float) -> str:
    return f"nuisance/{name}/{severity:g}"


def make_perturbation_conditions(settings: Iterable[tuple[str, float]], seed: int = 0) -> list[Condition]:
    def build(name: str, severity: float, pair: AuditPair) -> dict[str, Messages]:
        def change(number: int, turn: Turn) -> Turn:
            # The same noise on both sides, as from one microphone, and for every severity.
            turn_seed = derive_seed(seed, pair.pair_id, number)
            return replace(turn, array=apply(name, turn.array, SAMPLING_RATE, severity, seed=turn_seed))

        return {side: to_messages(change(*turn) for turn in enumerate(getattr(pair, side))) for side in SIDES}

    return [Condition(make_perturbation_key(*setting), partial(build, *setting)) for setting in settings]


def make_attack_key(name: str) -> str:
    return f"attack/{name}"


def make_attack_conditions(
    names: Iterable[str],
    distractors: Callable[[], Sequence[AuditPair]],
    heard_s: Callable[[], float],
    seed: int = 0,
    sounds_dir: str | None = None,
) -> list[Condition]:
    """Return a condition per attack; `heard_s` returns the seconds that the model hears of each turn."""
    speak = find_voice()

    def build(name: str, pair: AuditPair) -> dict[str, Messages] | str:
        attack = ATTACKS[name]
        rng = np.random.default_rng(derive_seed(seed, pair.pair_id, name))
        turns = attack.build(pair, AttackContext(rng, distractors(), heard_s(), sounds_dir, speak=speak))
        if turns is None:
            return f"needs {attack.needs}"
        if not is_heard(getattr(pair, attack.baseline), turns, heard_s()):
            return "changes nothing that the model hears or reads"
        return {ATTACKED: to_messages(turns)}

    found = []
    for name in names:
        is_possible = ATTACKS[name].is_possible(sounds_dir, speak)
        reason = "" if is_possible else f"needs {ATTACKS[name].needs}"
        found.append(Condition(make_attack_key(name), partial(build, name), reason))
    return found


def derive_seed(*parts: Any) -> int:
    """Return a machine-independent seed that depends on all parts."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:4])


def collect_rewards(
    load_scorer: Callable[[], Scorer],
    read_pair: Callable[[str], AuditPair],
    pair_ids: Sequence[str],
    conditions: Sequence[Condition],
    folder: Path,
    meta: Mapping[str, Any],
) -> Rewards:
    """Score the pairs unchanged and under each condition; keep finished results and retry errors."""
    plan = [Condition(NATURAL, present), *(each for each in conditions if not each.unavailable_reason)]
    items = [
        f"{condition.key}{_SEPARATOR}{pair_id}"
        for start in range(0, len(pair_ids), _CHUNK_PAIRS)
        for condition in plan
        for pair_id in pair_ids[start : start + _CHUNK_PAIRS]
    ]
    parts = PartFolder(folder, meta, _make_schema())
    pending = parts.find_pending(items, lambda rows: [row[ERROR] is not None for row in rows], ERROR)
    scorers: list[ConditionScorer] = []

    def load() -> Make:
        scorers.append(ConditionScorer(load_scorer(), read_pair, plan))
        return scorers[0].make

    seconds = run_parts(parts, pending, load, _CHUNK_PAIRS, label="audit", unit="changed pair")
    for scorer in scorers:
        counts = {"num_dialogues": scorer.num_dialogues, "audio_s": scorer.audio_s, "seconds": seconds}
        JsonLines(folder / "sessions.jsonl").append([counts])
    return _collect(parts, pair_ids, conditions, folder)


def _make_schema() -> pa.Schema:
    import pyarrow as pa

    rewards = pa.struct(dict.fromkeys((*SIDES, ATTACKED), pa.float64()))
    return pa.schema({"item": pa.string(), "rewards": rewards, REASON: pa.string(), ERROR: pa.string()})


def _collect(parts: PartFolder, pair_ids: Sequence[str], conditions: Sequence[Condition], folder: Path) -> Rewards:
    """Return the lines by condition and pair; write the lines of all runs to `rewards.jsonl`."""
    lines = []
    for row in parts.iter_rows(("rewards", REASON, ERROR)):
        key, _, pair_id = row.pop("item").partition(_SEPARATOR)
        row["rewards"] = {name: value for name, value in (row["rewards"] or {}).items() if value is not None}
        lines.append({"pair_id": pair_id, "condition": key, **{name: row[name] for name in row if row[name]}})
    lines.sort(key=lambda line: (line["pair_id"], line["condition"]))
    write_file(folder / "rewards.jsonl", "".join(map(format_line, lines)))
    by_item = {(line["condition"], line["pair_id"]): line for line in lines}
    rewards: Rewards = {}
    for condition in [Condition(NATURAL, present), *conditions]:
        reason = {REASON: condition.unavailable_reason}
        absent = dict.fromkeys(pair_ids, reason) if condition.unavailable_reason else {}
        found = {pair_id: by_item.get((condition.key, pair_id)) for pair_id in pair_ids}
        rewards[condition.key] = absent | {pair_id: line for pair_id, line in found.items() if line}
    return rewards


class ConditionScorer:
    """Score pairs under conditions."""

    def __init__(self, scorer: Scorer, read_pair: Callable[[str], AuditPair], plan: Sequence[Condition]):
        # Consecutive items are scored together.
        self._scorer, self._read = scorer, lru_cache(_CHUNK_PAIRS)(read_pair)
        self._conditions = {condition.key: condition for condition in plan}
        self._audio_before_s = scorer.audio_s
        # Pairs that failed unchanged (scored first); they are not tried under other conditions.
        self._unusable: set[str] = set()
        self.num_dialogues = 0

    @property
    def audio_s(self) -> float:
        return self._scorer.audio_s - self._audio_before_s

    def make(self, parts: Iterable[Items]) -> Iterator[Rows]:
        for part in parts:
            rows: Rows = []
            for key, members in groupby((item.split(_SEPARATOR, 1) for item in part), lambda item: item[0]):
                pair_ids = [pair_id for _, pair_id in members if pair_id not in self._unusable]
                for pair_id, row in self._score(self._conditions[key], pair_ids):
                    if key == NATURAL and ERROR in row:
                        self._unusable.add(pair_id)
                    rows.append({"item": f"{key}{_SEPARATOR}{pair_id}", **row})
            yield rows

    def _score(self, condition: Condition, pair_ids: Iterable[str]) -> Iterator[tuple[str, Record]]:
        """Yield each pair with its row."""
        built: dict[str, Mapping[str, Messages]] = {}
        criteria: list[str] = []
        for pair_id in pair_ids:
            try:
                pair = self._read(pair_id)
                dialogues = condition.build(pair)
            except _CONDITION_ERRORS as error:
                yield pair_id, {ERROR: str(error)}
                continue
            if isinstance(dialogues, str):
                yield pair_id, {REASON: dialogues}
            else:
                built[pair_id] = dialogues
                criteria += [pair.criterion] * len(dialogues)
        if not built:
            return
        names, scored = list(next(iter(built.values()))), list(built)
        dialogues_of_all = [dialogues[name] for dialogues in built.values() for name in names]
        self.num_dialogues += len(dialogues_of_all)
        failures: dict[int, str] = {}
        results = self._scorer.iter_scores(dialogues_of_all, criteria, skipped=failures, heard={})
        for position, found in complete_items(results, failures, names, scored):
            rewards = {} if isinstance(found, Skipped) else dict(zip(names, found, strict=True))
            yield scored[position], {ERROR: found.reason} if isinstance(found, Skipped) else {"rewards": rewards}
