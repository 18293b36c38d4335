"""Score the pairs of an audit under every condition."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.common.files import JsonLines, seal, write_file
from sdiareward.common.parts import Items, Make, PartFolder, Rows, run_parts
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.synthesis import find_voice
from sdiareward.pairs.schema import SIDES
from sdiareward.perturbations.attacks import Attack, AttackContext, is_heard
from sdiareward.perturbations.decoded_pairs import AuditPair, Messages, Turn, decode_pairs, to_messages
from sdiareward.perturbations.registry import PERTURBATIONS, apply
from sdiareward.scoring.outcomes import (
    UNREADABLE,
    Outcome,
    Record,
    check_finite,
    complete_items,
)


if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

    from sdiareward.scoring.scorer import Scorer

NATURAL = "natural"
# Name of the reward of an attacked dialogue.
ATTACKED = "attacked"
# Keys of a line: the condition does not apply to the pair, or an error occurred.
REASON, ERROR = "reason", "error"
# Pairs that are decoded together, and scored in one call under each condition.
_CHUNK_PAIRS = 8
# Decoded pairs in memory: neighbours are scored together.
_KEPT_PAIRS = 16
# Raised for a pair that a condition cannot change; any other error is a bug and ends the run.
_CONDITION_ERRORS = (ValueError, TypeError, FileNotFoundError)

# Of an item: key of a condition and id of a pair.
_SEPARATOR = "\t"
Distractors = Callable[[], Sequence[AuditPair]]
# Lines by condition and pair.
Rewards = dict[str, dict[str, Record]]


class PairSample(Sequence[Any]):
    """Rows of a data set of pairs, decoded on access; only a few are in memory at a time."""

    def __init__(self, pairs: datasets.Dataset, labels: Sequence[Mapping[str, Any]], rows: Sequence[int]):
        self._pairs = pairs
        self._all_labels = labels
        self._rows = list(rows)
        self._decode = lru_cache(_KEPT_PAIRS)(lambda row: decode_pairs(pairs, [row])[0])
        self.labels = [labels[row] for row in rows]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        """Return a pair, or the sample of a slice; raises the errors of `decoded_pairs.decode_pairs`."""
        if isinstance(index, slice):
            return PairSample(self._pairs, self._all_labels, self._rows[index])
        return self._decode(self._rows[index])

    def select_encoded(self) -> datasets.Dataset:
        return self._pairs.select(self._rows)

    def keep(self, pair_ids: Iterable[str]) -> PairSample:
        """Return the pairs with one of these ids, in the sample's order."""
        wanted = set(pair_ids)
        rows = [row for row, label in zip(self._rows, self.labels, strict=True) if label["pair_id"] in wanted]
        return PairSample(self._pairs, self._all_labels, rows)


@dataclass(frozen=True)
class Condition:
    """One way in which pairs are presented to the model."""

    # Name in the run's folder, such as "nuisance/gain/-6".
    key: str
    # Returns the dialogues of a pair, by the name of the reward of each, or why the condition does not apply to it.
    build: Callable[[AuditPair], Mapping[str, Messages] | str]
    # Why it cannot be tried on this machine. Not written: the same run tries it once the requirement is installed.
    unavailable_reason: str = ""


def make_perturbation_key(name: str, severity: float) -> str:
    return f"nuisance/{name}/{severity:g}"


def list_severities(names: Iterable[str]) -> list[tuple[str, float]]:
    """Return each perturbation with its usual severities, from weak to strong, or else with its default severity."""
    return [
        (name, severity)
        for name in names
        for severity in PERTURBATIONS[name].severities or (PERTURBATIONS[name].default,)
    ]


def make_perturbation_conditions(settings: Iterable[tuple[str, float]], seed: int = 0) -> list[Condition]:
    return [_make_perturbation_condition(name, severity, seed) for name, severity in settings]


def _make_perturbation_condition(name: str, severity: float, seed: int) -> Condition:
    def change(pair: AuditPair, number: int, turn: Turn) -> Turn:
        # The same noise on both sides, as from one microphone, and at every severity.
        turn_seed = derive_seed(seed, pair.pair_id, number)
        return replace(turn, array=apply(name, turn.array, SAMPLING_RATE, severity, seed=turn_seed))

    def build(pair: AuditPair) -> dict[str, Messages]:
        sides = {side: enumerate(getattr(pair, side)) for side in SIDES}
        return {side: to_messages(change(pair, *turn) for turn in turns) for side, turns in sides.items()}

    return Condition(make_perturbation_key(name, severity), build)


def make_attack_key(name: str) -> str:
    return f"attack/{name}"


def make_attack_conditions(
    attacks: Mapping[str, Attack],
    distractors: Distractors,
    heard_s: Callable[[], float],
    seed: int = 0,
    sounds_dir: str | None = None,
) -> list[Condition]:
    """Return a condition for each attack; `heard_s` returns the number of seconds of a turn that the model hears."""
    speak = find_voice()

    def make_condition(name: str, attack: Attack) -> Condition:
        def build(pair: AuditPair) -> dict[str, Messages] | str:
            rng = np.random.default_rng(derive_seed(seed, pair.pair_id, name))
            turns = attack.build(pair, AttackContext(rng, distractors(), heard_s(), sounds_dir, speak=speak))
            if turns is None:
                return f"needs {attack.needs}"
            if not is_heard(getattr(pair, attack.baseline), turns, heard_s()):
                return "changes nothing that the model is given"
            return {ATTACKED: to_messages(turns)}

        unavailable = "" if attack.is_possible(sounds_dir, speak) else f"needs {attack.needs}"
        return Condition(make_attack_key(name), build, unavailable)

    return [make_condition(name, attack) for name, attack in attacks.items()]


def derive_seed(*parts: Any) -> int:
    """Return a seed that depends on all parts and is the same on any machine."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:4])


def collect_rewards(
    load_scorer: Callable[[], Scorer],
    sample: PairSample,
    conditions: Sequence[Condition],
    folder: Path,
    meta: Mapping[str, Any],
) -> Rewards:
    """Score the pairs unchanged and under each condition; what the folder has is kept, errors are tried again."""
    natural = Condition(NATURAL, lambda pair: {side: to_messages(getattr(pair, side)) for side in SIDES})
    plan = [natural, *(condition for condition in conditions if not condition.unavailable_reason)]
    chunks = [sample[start : start + _CHUNK_PAIRS] for start in range(0, len(sample), _CHUNK_PAIRS)]
    items = [
        _SEPARATOR.join((condition.key, label["pair_id"]))
        for chunk in chunks
        for condition in plan
        for label in chunk.labels
    ]
    parts = PartFolder(folder, meta, _make_schema())
    pending = parts.find_pending(items, lambda rows: [row[ERROR] is not None for row in rows], ERROR)
    scorers: list[ConditionScorer] = []

    def load() -> Make:
        scorers.append(ConditionScorer(load_scorer(), sample, plan))
        return scorers[0].make

    seconds = run_parts(parts, pending, load, _CHUNK_PAIRS, label="audit", unit="changed pair")
    for scorer in scorers:
        counts = {"num_dialogues": scorer.num_dialogues, "audio_s": scorer.audio_s, "seconds": seconds}
        JsonLines(folder / "sessions.jsonl").append([counts])
    return _collect(parts, sample, conditions, folder)


def _make_schema() -> pa.Schema:
    import pyarrow as pa

    rewards = pa.struct(dict.fromkeys((*SIDES, ATTACKED), pa.float64()))
    return pa.schema({"item": pa.string(), "rewards": rewards, REASON: pa.string(), ERROR: pa.string()})


def _collect(parts: PartFolder, sample: PairSample, conditions: Sequence[Condition], folder: Path) -> Rewards:
    """Return the lines by condition and pair, and write those of all runs to `rewards.jsonl`."""
    found: Rewards = {NATURAL: {}, **{condition.key: {} for condition in conditions}}
    lines = []
    for row in parts.iter_rows(("rewards", REASON, ERROR)):
        key, _, pair_id = row.pop("item").partition(_SEPARATOR)
        row["rewards"] = _drop_absent(row["rewards"] or {})
        line = _drop_absent({"pair_id": pair_id, "condition": key, **row})
        lines.append(line)
        if key in found:
            found[key][pair_id] = line
    lines.sort(key=lambda line: (line["pair_id"], line["condition"]))
    write_file(folder / "rewards.jsonl", "".join(map(seal, lines)))
    wanted = [label["pair_id"] for label in sample.labels]
    rewards = {key: {i: of_key[i] for i in wanted if i in of_key} for key, of_key in found.items()}
    # A condition of a pair that cannot be read any more.
    unread = {pair_id for pair_id, line in rewards[NATURAL].items() if ERROR in line}
    for condition in conditions:
        of_key = rewards[condition.key]
        if condition.unavailable_reason:
            absent = {i: {REASON: condition.unavailable_reason} for i in rewards[NATURAL]}
            rewards[condition.key] = absent | of_key
        else:
            rewards[condition.key] = {i: line for i, line in of_key.items() if i not in unread}
    return rewards


def _drop_absent(row: Mapping[str, Any]) -> Record:
    return {name: value for name, value in row.items() if value not in (None, {})}


class ConditionScorer:
    """Score pairs of a sample under conditions, the natural one first."""

    def __init__(self, scorer: Scorer, sample: PairSample, plan: Sequence[Condition]):
        self._scorer = scorer
        self._rows = {label["pair_id"]: number for number, label in enumerate(sample.labels)}
        self._sample = sample
        self._plan = plan
        self._audio_before_s = scorer.audio_s
        self._unusable: set[str] = set()
        self.num_dialogues = 0

    @property
    def audio_s(self) -> float:
        return self._scorer.audio_s - self._audio_before_s

    def make(self, parts: Iterable[Items]) -> Iterator[Rows]:
        for part in parts:
            yield [
                {"item": item, **({ERROR: found.reason} if isinstance(found, Skipped) else found)}
                for item, found in self._score(set(part))
            ]

    def _score(self, wanted: set[str]) -> Iterator[tuple[str, Outcome]]:
        """Yield each pair under each condition; one that fails unchanged is not tried under any other."""
        pair_ids = dict.fromkeys(item.partition(_SEPARATOR)[2] for item in wanted)
        pairs = []
        for pair_id in sorted(set(pair_ids) - self._unusable, key=self._rows.__getitem__):
            try:
                pairs.append(self._sample[self._rows[pair_id]])
            except _CONDITION_ERRORS as error:
                self._unusable.add(pair_id)
                yield _SEPARATOR.join((NATURAL, pair_id)), Skipped(pair_id, UNREADABLE, str(error))
        for condition in self._plan:
            items = {pair.pair_id: _SEPARATOR.join((condition.key, pair.pair_id)) for pair in pairs}
            pending = [pair for pair in pairs if items[pair.pair_id] in wanted and pair.pair_id not in self._unusable]
            for pair_id, outcome in self._score_condition(pending, condition):
                if condition.key == NATURAL and isinstance(outcome, Skipped):
                    self._unusable.add(pair_id)
                yield items[pair_id], outcome

    def _score_condition(self, pairs: Sequence[AuditPair], condition: Condition) -> Iterator[tuple[str, Outcome]]:
        """Yield each pair under one condition, first the pairs that it does not apply to."""
        built: list[tuple[AuditPair, Mapping[str, Messages]]] = []
        for pair in pairs:
            try:
                dialogues = condition.build(pair)
            except _CONDITION_ERRORS as error:
                yield pair.pair_id, Skipped(pair.pair_id, UNREADABLE, str(error))
                continue
            if isinstance(dialogues, str):
                yield pair.pair_id, {REASON: dialogues}
            else:
                built.append((pair, dialogues))
        if not built:
            return
        names, pair_ids = list(built[0][1]), [pair.pair_id for pair, _ in built]
        dialogues_of_all = [dialogues[name] for _, dialogues in built for name in names]
        criteria = [pair.criterion for pair, _ in built for _ in names]
        self.num_dialogues += len(dialogues_of_all)
        failures: dict[int, str] = {}
        results = self._scorer.iter_scores(dialogues_of_all, criteria, skipped=failures, heard={})
        for position, found in complete_items(results, failures, names, pair_ids):
            if not isinstance(found, Skipped):
                rewards = dict(zip(names, found, strict=True))
                yield pair_ids[position], check_finite(pair_ids[position], found) or {"rewards": rewards}
            else:
                yield pair_ids[position], found
