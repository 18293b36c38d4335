"""Measure the preference for cues that are no quality, in the families that SpeechJudgeAudit asks speech judges about.

Each dialogue is compared with a version of itself that differs in one cue: loudness, silence, repetition, more words
for one meaning, emotional delivery. A preference is the share of dialogues whose changed version has the higher
reward, a tie counting half; 0.5 is none. Names and measure are those of the benchmark, so that its table of a judge
and ours of a reward lie side by side; recordings and sentences are the audited pairs'. Preferences have no limit:
people have some of them, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.dataset_builder.chatreward.voices import SHAPES
from sdiareward.esdr_accuracy.pairwise import wilson_interval
from sdiareward.pairs.schema import SIDES
from sdiareward.perturbations.attack_sounds import can_load_sound, speak_text
from sdiareward.perturbations.decoded_pairs import AuditPair, Messages, Turn, to_messages
from sdiareward.dataset_builder.synthesis import SynthesisError, is_available

from .conditions import NATURAL, REASON, Condition, make_perturbation_conditions, make_perturbation_key
from .statistics import Pairs


# The same meaning as the answer in its middle; short, as models hear the first seconds of a turn only.
_RICHER = "What I would say to that is this: {} That is what I mean."
_EMOTIONS = ("happy", "sad", "angry")
_PERTURBATIONS = (
    *(("gain", gain_db) for gain_db in (-6.0, -3.0, 3.0, 6.0)),
    *((f"{place}_silence", 1.0) for place in ("leading", "trailing")),
)
_TOO_LONG = "needs a last turn that the model hears to its end after the change"
ChangeTurn = Callable[[Turn], Turn | str]


@dataclass(frozen=True)
class Variant:
    """One change of a family.

    Args:
        family (`str`): Name of the family.
        title (`str`): What the changed version has.
        changed (`str`): Key of its condition.
        reference (`str`): Key of the condition that it is compared with.
    """

    family: str
    title: str
    changed: str
    reference: str = NATURAL


def _make_key(name: str) -> str:
    return f"family/{name}"


VARIANTS = (
    *(Variant("loudness", f"{value:+g} dB", make_perturbation_key(name, value)) for name, value in _PERTURBATIONS[:4]),
    Variant("content_richness", "the answer in more words", _make_key("richer"), _make_key("concise")),
    Variant("repetition", "the last turn said twice", _make_key("repeated")),
    *(
        Variant("silence_padding", f"1 s {place} each turn", make_perturbation_key(name, value))
        for (name, value), place in zip(_PERTURBATIONS[4:], ("before", "after"), strict=True)
    ),
    *(Variant("emotion", f"{name} last turn", _make_key(name), _make_key("neutral")) for name in _EMOTIONS),
)


def make_family_conditions(heard_s: Callable[[], float], seed: int = 0) -> list[Condition]:
    """Return the conditions of all families.

    Args:
        heard_s (`Callable`): Returns the number of seconds of a turn that the model hears.
        seed (`int`, *optional*, defaults to 0): Seed of the perturbations among them.
    """
    no_voice = "" if can_load_sound("demand") else "needs a synthesizer that speaks offline"
    no_world = "" if is_available("world") else "needs pyworld (the extra `build`)"
    changes: dict[str, tuple[ChangeTurn, str]] = {
        "repeated": (_repeat, ""),
        "concise": (partial(_speak, template="{}"), no_voice),
        "richer": (partial(_speak, template=_RICHER), no_voice),
        **{name: (partial(_shape, emotion=name), no_world) for name in ("neutral", *_EMOTIONS)},
    }
    own = [
        Condition(_make_key(name), partial(_change_last, change=change, heard_s=heard_s), reason)
        for name, (change, reason) in changes.items()
    ]
    return [*make_perturbation_conditions(_PERTURBATIONS, seed), *own]


def _change_last(pair: AuditPair, change: ChangeTurn, heard_s: Callable[[], float]) -> Mapping[str, Messages] | str:
    """Return both sides with their last turn changed, or why it cannot be."""
    found: dict[str, Messages] = {}
    for side in SIDES:
        *before, last = getattr(pair, side)
        changed = change(last)
        if isinstance(changed, str):
            return changed
        if len(changed.array) > heard_s() * SAMPLING_RATE:
            return _TOO_LONG
        found[side] = to_messages([*before, changed])
    return found


def _repeat(turn: Turn) -> Turn:
    return replace(turn, text=f"{turn.text} {turn.text}".strip(), array=np.tile(turn.array, 2))


def _speak(turn: Turn, template: str) -> Turn | str:
    """Return a turn spoken by a synthesizer, so that both wordings have one voice."""
    if not turn.text:
        return "needs a transcript"
    # Not `format`: the words may hold braces.
    text = template.replace("{}", turn.text)
    try:
        return replace(turn, text=text, array=speak_text(text))
    except SynthesisError as error:
        return f"needs words that can be spoken ({error})"


def _shape(turn: Turn, emotion: str) -> Turn:
    """Return a turn as an emotion by rule; all, the neutral one included, through one vocoder and at one level."""
    shape = replace(SHAPES["emotion"][emotion], gain_db=0.0, is_vocoded=True)
    return replace(turn, array=shape(turn.array, SAMPLING_RATE))


def measure_families(pairs: Pairs) -> list[dict[str, Any]]:
    """Measure the preference for each change.

    Args:
        pairs (`Pairs`): The pairs with their rewards.

    Returns:
        `list[dict]`: `family`, `variant`, `num_pairs`, `preference` (0-1, the mean of both sides of a pair; above 0.5
        the changed version is preferred) and its `interval`, both None without pairs, and `not_applicable`, by reason
        the number of pairs that it could not be tried on.
    """
    rows = []
    for variant in VARIANTS:
        gains = [
            pairs.get_rewards(variant.changed, side) - pairs.get_rewards(variant.reference, side) for side in SIDES
        ]
        wins = np.mean([(gain > 0) + 0.5 * (gain == 0) for gain in gains], axis=0)
        is_used = np.isfinite(gains[0]) & np.isfinite(gains[1])
        found = pairs.average(wins, is_used)
        preference, interval = found["mean"], found["interval"]
        if preference is not None and interval is None:
            interval = wilson_interval(preference, len(set(pairs.groups[is_used])))
        reasons = Counter(line[REASON] for line in pairs.get_lines(variant.changed) if line.get(REASON))
        about = {"family": variant.family, "variant": variant.title, "num_pairs": int(is_used.sum())}
        rows.append({**about, "preference": preference, "interval": interval, "not_applicable": dict(reasons)})
    return rows
