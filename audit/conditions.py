"""Score the pairs of an audit under every condition, a line a pair and condition, so that a killed run goes on."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError
from sdiareward.common.files import JsonLines
from sdiareward.pairs.schema import SIDES
from sdiareward.perturbations.attacks import Attack, AttackContext, is_heard
from sdiareward.perturbations.decoded_pairs import AuditPair, Messages, RewardFunction, Turn, to_messages
from sdiareward.perturbations.registry import PERTURBATIONS, apply

from .sampling import PairSample


NATURAL = "natural"
# What the reward of an attacked dialogue is kept as.
ATTACKED = "attacked"
# What a line says where a condition does not apply to a pair, and where it went wrong.
REASON, ERROR = "reason", "error"
# Decoded together; also what is scored in one call, times the dialogues of a condition.
_CHUNK_PAIRS = 8
# What an unusable pair or dialogue raises; anything else is a fault of ours and ends the run.
DECODING_ERRORS = (ValueError, TypeError, FileNotFoundError)

Record = dict[str, Any]
Donors = Callable[[], Sequence[AuditPair]]
# By condition and pair: the line of the pair, with the rewards by what they are of.
Rewards = dict[str, dict[str, Record]]


@dataclass(frozen=True)
class Condition:
    """One way in which pairs are presented to the model.

    Args:
        key (`str`): Its name in the run's folder, such as `"nuisance/gain/-6"`.
        build (`Callable`): From a pair to its dialogues, by what the reward of each is kept as; or a sentence that
            says why the condition does not apply to the pair.
        num_dialogues (`int`, *optional*, defaults to 2): How many dialogues that are.
        lacking (`str`, *optional*): Why it cannot be tried on this machine; empty if it can. Nothing of it is kept:
            once the machine has what it lacks, the same run tries it.
    """

    key: str
    build: Callable[[AuditPair], Mapping[str, Messages] | str]
    num_dialogues: int = len(SIDES)
    lacking: str = ""


def natural_condition() -> Condition:
    """Return the condition under which pairs are as they are."""
    return Condition(NATURAL, lambda pair: {side: to_messages(getattr(pair, side)) for side in SIDES})


def nuisance_key(name: str, severity: float) -> str:
    """Return the key of a nuisance's condition."""
    return f"nuisance/{name}/{severity:g}"


def settings_of(names: Iterable[str]) -> list[tuple[str, float]]:
    """Return each nuisance with each of its usual severities, from weak to strong; without any, with its default."""
    return [
        (name, severity)
        for name in names
        for severity in PERTURBATIONS[name].severities or (PERTURBATIONS[name].default,)
    ]


def nuisance_conditions(settings: Iterable[tuple[str, float]], seed: int = 0) -> list[Condition]:
    """Return a condition for each nuisance with a severity.

    Args:
        settings (`Iterable[tuple[str, float]]`): Keys of `registry.PERTURBATIONS`, each with a severity.
        seed (`int`, *optional*, defaults to 0): Of what is random.
    """
    return [_nuisance_condition(name, severity, seed) for name, severity in settings]


def _nuisance_condition(name: str, severity: float, seed: int) -> Condition:
    def build(pair: AuditPair) -> dict[str, Messages]:
        # Both sides alike, as one microphone would: the same noise in the same turn. Nor does the seed depend on the
        # severity, so that severities differ by nothing else.
        seeds = [seed_of(seed, pair.pair_id, number) for number in range(max(len(pair.chosen), len(pair.rejected)))]
        sides = {side: change_turns(getattr(pair, side), name, severity, seeds) for side in SIDES}
        return {side: to_messages(turns) for side, turns in sides.items()}

    return Condition(nuisance_key(name, severity), build)


def attack_key(name: str) -> str:
    """Return the key of an attack's condition."""
    return f"attack/{name}"


def attack_conditions(
    attacks: Mapping[str, Attack],
    donors: Donors,
    heard_s: Callable[[], float],
    seed: int = 0,
    sounds_dir: str | None = None,
) -> list[Condition]:
    """Return a condition for each attack.

    Args:
        attacks (`Mapping[str, Attack]`): The attacks by name.
        donors (`Callable`): Returns the pairs that turns and words may be taken from.
        heard_s (`Callable`): Returns how much the model hears of a turn, in seconds.
        seed (`int`, *optional*, defaults to 0): Of what is random.
        sounds_dir (`str`, *optional*): Recordings in place of made sounds; see `AttackContext`.
    """

    def condition(name: str, attack: Attack) -> Condition:
        def build(pair: AuditPair) -> dict[str, Messages] | str:
            rng = np.random.default_rng(seed_of(seed, pair.pair_id, name))
            turns = attack.build(pair, AttackContext(rng, donors(), heard_s(), sounds_dir))
            if turns is None:
                return f"needs {attack.needs}"
            if not is_heard(getattr(pair, attack.baseline), turns, heard_s()):
                return "changes nothing that the model is given"
            return {ATTACKED: to_messages(turns)}

        lacking = "" if attack.is_possible(sounds_dir) else f"needs {attack.needs}"
        return Condition(attack_key(name), build, num_dialogues=1, lacking=lacking)

    return [condition(name, attack) for name, attack in attacks.items()]


def change_turns(turns: Sequence[Turn], name: str, severity: float, seeds: Sequence[int]) -> list[Turn]:
    """Apply a nuisance to the recording of each turn.

    Args:
        turns (`Sequence[Turn]`): The dialogue; it stays as it is.
        name (`str`): A key of `registry.PERTURBATIONS`.
        severity (`float`): In the nuisance's unit.
        seeds (`Sequence[int]`): Of what is random, one a turn at least.
    """
    return [
        replace(turn, array=apply(name, turn.array, SAMPLING_RATE, severity, seed=turn_seed))
        for turn, turn_seed in zip(turns, seeds, strict=False)
    ]


def seed_of(*parts: Any) -> int:
    """Return a seed that depends on all parts and is the same on any machine."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:4])


def collect_rewards(
    rewards: RewardFunction, sample: PairSample, conditions: Sequence[Condition], log: JsonLines
) -> Rewards:
    """Score what the log does not have yet, the natural pairs among it, and write every line as it is known.

    A pair that cannot be read or scored as it is is not tried under any other condition. What went wrong is tried
    again by the next run.

    Args:
        rewards (`RewardFunction`): The model.
        sample (`PairSample`): The pairs.
        conditions (`Sequence[Condition]`): Conditions beside the natural one.
        log (`JsonLines`): Where the lines are: `pair_id`, `condition`, and `rewards` by name, or a `reason` why the
            condition does not apply to the pair, or the `error`.

    Returns:
        `dict`: The lines of the sample by condition and `pair_id`.
    """
    from tqdm.auto import tqdm

    found = read_rewards(log)
    plan = _possible(conditions)
    missing = _count_missing(sample, plan, found)
    with tqdm(total=sum(missing), unit="dialogue", desc="audit", smoothing=0.02, disable=not sum(missing)) as bar:
        for start in range(0, len(sample), _CHUNK_PAIRS):
            if not sum(missing[start : start + _CHUNK_PAIRS]):
                continue
            for records, num_dialogues in _score_chunk(rewards, sample[start : start + _CHUNK_PAIRS], plan, found):
                log.append(records)
                for record in records:
                    found.setdefault(record["condition"], {})[record["pair_id"]] = record
                bar.update(num_dialogues)
    wanted = {label["pair_id"] for label in sample.labels}
    keys = [NATURAL, *(condition.key for condition in conditions)]
    lines = {key: {i: line for i, line in found.get(key, {}).items() if i in wanted} for key in keys}
    for condition in conditions:
        if condition.lacking:
            lines[condition.key] = {i: {REASON: condition.lacking} for i in lines[NATURAL]} | lines[condition.key]
    return lines


def _possible(conditions: Sequence[Condition]) -> list[Condition]:
    """Return what is to be scored: the natural condition, and those that this machine has everything for."""
    return [natural_condition(), *(condition for condition in conditions if not condition.lacking)]


def is_complete(sample: PairSample, conditions: Sequence[Condition], log: JsonLines) -> bool:
    """Return whether a log has all that `collect_rewards` is to collect, so that no model is needed."""
    return not sum(_count_missing(sample, _possible(conditions), read_rewards(log)))


def _count_missing(sample: PairSample, plan: Sequence[Condition], found: Rewards) -> list[int]:
    """Return for each pair how many dialogues have no reward yet."""
    return [
        sum(condition.num_dialogues for condition in plan if label["pair_id"] not in found.get(condition.key, {}))
        for label in sample.labels
    ]


def read_rewards(log: JsonLines) -> Rewards:
    """Return the lines of a log by condition and `pair_id`, without those of errors."""
    found: Rewards = {}
    for record in log.read():
        if ERROR not in record:
            found.setdefault(record["condition"], {})[record["pair_id"]] = record
    return found


def _score_chunk(
    rewards: RewardFunction, chunk: PairSample, plan: Sequence[Condition], found: Rewards
) -> Iterator[tuple[list[Record], int]]:
    """Yield the new lines of each condition, and how many dialogues they cost; the natural condition comes first."""
    pairs, unreadable = _decode(chunk)
    if unreadable:
        yield unreadable, 0
    for condition in plan:
        known = found.get(condition.key, {})
        pending = [pair for pair in pairs if pair.pair_id not in known]
        if not pending:
            continue
        records = _score(rewards, pending, condition)
        yield records, condition.num_dialogues * len(pending)
        if condition.key == NATURAL:
            unusable = {record["pair_id"] for record in records if ERROR in record}
            pairs = [pair for pair in pairs if pair.pair_id not in unusable]


def _decode(chunk: PairSample) -> tuple[list[AuditPair], list[Record]]:
    """Return the pairs that can be read, and lines on those that cannot."""
    pairs, unreadable = [], []
    for number, label in enumerate(chunk.labels):
        try:
            pairs.append(chunk[number])
        except (AudioError, FileNotFoundError, TypeError) as error:
            unreadable.append({"pair_id": label["pair_id"], "condition": NATURAL, ERROR: str(error)})
    return pairs, unreadable


def _score(rewards: RewardFunction, pairs: Sequence[AuditPair], condition: Condition) -> list[Record]:
    """Return a line for each pair."""
    built: dict[str, Mapping[str, Messages]] = {}
    lines: dict[str, Record] = {}
    for pair in pairs:
        try:
            dialogues = condition.build(pair)
        except DECODING_ERRORS as error:
            lines[pair.pair_id] = {ERROR: str(error)}
            continue
        if isinstance(dialogues, str):
            lines[pair.pair_id] = {REASON: dialogues}
        else:
            built[pair.pair_id] = dialogues
    criteria = {pair.pair_id: pair.criterion for pair in pairs}
    lines |= _reward_all(rewards, built, criteria)
    return [{"pair_id": pair.pair_id, "condition": condition.key, **lines[pair.pair_id]} for pair in pairs]


def _reward_all(
    rewards: RewardFunction, built: Mapping[str, Mapping[str, Messages]], criteria: Mapping[str, str]
) -> dict[str, Record]:
    """Return the rewards of each pair's dialogues; where the call fails, pair by pair, so that one spoils no other."""
    if not built:
        return {}
    dialogues = [dialogue for of_pair in built.values() for dialogue in of_pair.values()]
    try:
        values = iter(rewards(dialogues, [criteria[pair_id] for pair_id, of_pair in built.items() for _ in of_pair]))
    except DECODING_ERRORS as error:
        if len(built) == 1:
            return dict.fromkeys(built, {ERROR: str(error)})
        alone = (_reward_all(rewards, {pair_id: of_pair}, criteria) for pair_id, of_pair in built.items())
        return {pair_id: line for lines in alone for pair_id, line in lines.items()}
    return {pair_id: _line({name: next(values) for name in of_pair}) for pair_id, of_pair in built.items()}


def _line(values: Mapping[str, float]) -> Record:
    if all(map(math.isfinite, values.values())):
        return {"rewards": dict(values)}
    return {ERROR: f"the rewards are {', '.join(map(str, values.values()))}; score with the dtype float32."}
