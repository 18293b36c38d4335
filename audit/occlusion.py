"""Measure the contribution of each part of a dialogue to its reward: silence a turn or a segment, or omit words.

A part's contribution is the reward of the whole dialogue minus that of the dialogue without the part: positive if the
part raises the reward. Contributions need not add up, because parts interact; the results therefore also hold the
rewards without any sound and without any words.

Notable choices:

- Silence has the length of the sound that it replaces. It is digital silence, which no recording has, so a
  contribution includes how unfamiliar silence is to the model.
- A segment within a turn fades out and in over a few milliseconds inside its bounds, because its edges would click.
- Segments after the part of a turn that the model hears (`max_turn_s`) are not computed.
- All changed dialogues are scored in one call, and created on access.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sdiareward.audio_sdiareward import MIN_SAMPLES, SAMPLING_RATE
from sdiareward.pairs.schema import SIDES
from sdiareward.perturbations.decoded_pairs import AuditPair, RewardFunction, Turn, to_messages


_FADE_S = 0.005
_MAX_POINTS = 2000
# Okabe and Ito's blue and orange; hatches tell them apart without colour.
_BAR_STYLES: dict[bool, dict[str, Any]] = {
    True: {"facecolor": "#56b4e9", "hatch": "///", "label": "raises the reward"},
    False: {"facecolor": "#e69f00", "hatch": "...", "label": "lowers the reward"},
}


@dataclass(frozen=True)
class _Part:
    """A part of a dialogue: the words, or the samples from `start` to `stop`, of one turn or of all turns."""

    kind: str
    turn: int | None
    start: int = 0
    stop: int | None = None

    def remove_from(self, turn: Turn) -> Turn:
        if self.kind == "text":
            return replace(turn, text="")
        return replace(turn, array=silence(turn.array, self.start, self.stop))

    @property
    def bounds_s(self) -> dict[str, float]:
        assert self.stop is not None
        return {"start_s": self.start / SAMPLING_RATE, "stop_s": self.stop / SAMPLING_RATE}


def silence(array: np.ndarray, start: int = 0, stop: int | None = None) -> np.ndarray:
    """Return a copy of a recording with a segment silenced; next to other sound, its first and last 5 ms fade.

    Args:
        array (`np.ndarray` of shape `(num_samples,)`): Mono signal at `SAMPLING_RATE`; it is not changed.
        start (`int`, *optional*, defaults to 0): First sample of the segment.
        stop (`int`, *optional*): End of the segment, exclusive; by default that of the recording.

    Example:
        >>> silence(np.ones(4, dtype=np.float32)).tolist()
        [0.0, 0.0, 0.0, 0.0]
    """
    stop = len(array) if stop is None else stop
    silenced = array.copy()
    gain = np.zeros(stop - start, dtype=np.float32)
    ramp = np.linspace(1.0, 0.0, min(round(_FADE_S * SAMPLING_RATE), len(gain) // 2) + 2, dtype=np.float32)[1:-1]
    if start > 0:
        gain[: len(ramp)] = ramp
    if stop < len(array):
        gain[len(gain) - len(ramp) :] = ramp[::-1]
    silenced[start:stop] *= gain
    return silenced


class _Occluded(Sequence[Any]):
    """Dialogues without a part, created on access: many copies of a long dialogue would fill the memory."""

    def __init__(self, items: Sequence[tuple[Sequence[Turn], _Part | None]]):
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        turns, part = self.items[index]
        if part is None:
            return to_messages(turns)
        is_changed = [part.turn in (None, number) for number in range(len(turns))]
        return to_messages(part.remove_from(t) if c else t for t, c in zip(turns, is_changed, strict=True))


def measure_occlusion(
    pairs: Sequence[AuditPair],
    rewards: RewardFunction,
    *,
    sides: Sequence[str] = SIDES,
    segment_s: float | None = 0.5,
    max_turn_s: float | None = None,
) -> dict[str, Any]:
    """Remove each part from dialogues and measure how their rewards change.

    Args:
        pairs (`Sequence[AuditPair]`): A few pairs: a dialogue of 4 turns of 6 s takes about 60 rewards.
        rewards (`RewardFunction`): The model; called once.
        sides (`Sequence[str]`, *optional*): Sides to measure; by default both.
        segment_s (`float`, *optional*, defaults to 0.5): Approximate length of a segment, in seconds; None for none.
        max_turn_s (`float`, *optional*): Seconds of a turn that the model hears; None for all.

    Returns:
        `dict`: `segment_s`, `max_turn_s`; `dialogues`, for each side of each pair `pair_id`, `side`, `criterion`,
        `subset`, `reward`, `all_audio` and `all_text`, and `turns`: `role`, `start_s` (turns laid end to end),
        `duration_s`, `heard_s`, `audio`, `text` (None without words) and `segments`, with `start_s` and `stop_s`
        within their turn. Each part has `reward`, that of the dialogue without it, and `contribution`. Then
        `mean_absolute`, the mean absolute contribution of a turn by `"audio"` and `"text"` and role.

    Raises:
        ValueError: `segment_s` is too short for the model to hear a segment.
    """
    if segment_s is not None and segment_s * SAMPLING_RATE < MIN_SAMPLES:
        raise ValueError(f"segment_s is {segment_s:g}; give at least {MIN_SAMPLES / SAMPLING_RATE:g}, or None.")
    chosen = [(pair, side, getattr(pair, side)) for pair in pairs for side in sides]
    plans = [_plan(turns, segment_s, max_turn_s) for _, _, turns in chosen]
    items = [(turns, part) for (_, _, turns), plan in zip(chosen, plans, strict=True) for part in plan]
    criteria = [pair.criterion for (pair, _, _), plan in zip(chosen, plans, strict=True) for _ in plan]
    values = iter(rewards(_Occluded(items), criteria) if items else [])
    dialogues = []
    for (pair, side, turns), plan in zip(chosen, plans, strict=True):
        found = {part: float(next(values)) for part in plan}
        about = {"pair_id": pair.pair_id, "side": side, "criterion": pair.criterion, "subset": pair.subset}
        dialogues.append({**about, **_describe(turns, found, max_turn_s)})
    settings = {"segment_s": segment_s, "max_turn_s": max_turn_s}
    return {**settings, "dialogues": dialogues, "mean_absolute": _average_contributions(dialogues)}


def _plan(turns: Sequence[Turn], segment_s: float | None, max_turn_s: float | None) -> list[_Part | None]:
    """Return every part to remove from a dialogue, and None for the whole dialogue."""
    plan: list[_Part | None] = [None, _Part("audio", None), _Part("text", None)]
    for number, turn in enumerate(turns):
        plan.append(_Part("audio", number))
        if turn.text:
            plan.append(_Part("text", number))
        plan += [_Part("segment", number, *bounds) for bounds in _cut_segments(turn, segment_s, max_turn_s)]
    return plan


def _cut_segments(turn: Turn, segment_s: float | None, max_turn_s: float | None) -> list[tuple[int, int]]:
    """Cut the part of a turn that is heard into equal segments of about `segment_s`."""
    if segment_s is None:
        return []
    num_heard = _num_heard(turn, max_turn_s)
    edges = np.linspace(0, num_heard, max(1, round(num_heard / (segment_s * SAMPLING_RATE))) + 1).round().astype(int)
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))


def _num_heard(turn: Turn, max_turn_s: float | None) -> int:
    return len(turn.array) if max_turn_s is None else min(len(turn.array), round(max_turn_s * SAMPLING_RATE))


def _describe(turns: Sequence[Turn], found: dict[_Part | None, float], max_turn_s: float | None) -> dict[str, Any]:
    whole = found[None]

    def effect(part: _Part) -> dict[str, float]:
        return {"reward": found[part], "contribution": whole - found[part]}

    described, start_s = [], 0.0
    for number, turn in enumerate(turns):
        duration_s = len(turn.array) / SAMPLING_RATE
        segments = [part for part in found if part and (part.kind, part.turn) == ("segment", number)]
        described.append(
            {
                "role": turn.role,
                "start_s": start_s,
                "duration_s": duration_s,
                "heard_s": _num_heard(turn, max_turn_s) / SAMPLING_RATE,
                "audio": effect(_Part("audio", number)),
                "text": effect(_Part("text", number)) if turn.text else None,
                "segments": [{**part.bounds_s, **effect(part)} for part in segments],
            }
        )
        start_s += duration_s
    totals = {f"all_{kind}": effect(_Part(kind, None)) for kind in ("audio", "text")}
    return {"reward": whole, **totals, "turns": described}


def _average_contributions(dialogues: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the mean absolute contribution of a turn, by kind and by role."""
    sizes: dict[str, dict[str, list[float]]] = {"audio": {}, "text": {}}
    for turn in (turn for dialogue in dialogues for turn in dialogue["turns"]):
        for kind, by_role in sizes.items():
            if turn[kind] is not None:
                by_role.setdefault(turn["role"], []).append(abs(turn[kind]["contribution"]))
    return {kind: {role: float(np.mean(found)) for role, found in by_role.items()} for kind, by_role in sizes.items()}


def draw(axes: Any, dialogue: dict[str, Any], turns: Sequence[Turn] | None) -> None:
    """Draw the contributions of one of the `dialogues` of `measure_occlusion` over its waveform.

    A bar for each segment (or turn, without segments) rises or falls from the middle of the grey waveform, hatched by
    its sign; a triangle in each turn is the contribution of its words. Sound that the model does not hear is crossed
    out. Without `turns` there is no waveform.
    """
    end_s = sum(turn["duration_s"] for turn in dialogue["turns"])
    waveform = axes.twinx()
    axes.set_zorder(waveform.get_zorder() + 1)
    axes.patch.set_visible(False)
    _draw_waveform(waveform, dialogue, turns)
    _draw_bars(axes, dialogue)
    words = [(turn["start_s"] + turn["duration_s"] / 2, turn["text"]) for turn in dialogue["turns"] if turn["text"]]
    if words:
        heights = [effect["contribution"] for _, effect in words]
        style = {"marker": "v", "color": "black", "markerfacecolor": "white", "linestyle": "", "label": "its words"}
        axes.plot([x for x, _ in words], heights, **style)
    axes.axhline(0, color="black", linewidth=1)
    title = f"{dialogue['side']}, {dialogue['criterion']}: reward {dialogue['reward']:+.2f}"
    axes.set(title=title, xlabel="seconds", ylabel="contribution to the reward", xlim=(0, end_s))
    # Contribution 0 on the waveform's middle, so that a bar points from the sound up or down.
    limit = 1.25 * max(map(abs, axes.get_ylim()))
    axes.set_ylim(-limit, limit)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3, fontsize=9, frameon=False)


def _draw_waveform(axes: Any, dialogue: dict[str, Any], turns: Sequence[Turn] | None) -> None:
    """Draw the outline of the samples and the beginning of each turn."""
    arrays = [turn.array for turn in turns] if turns is not None else [np.zeros(1)] * len(dialogue["turns"])
    for array, described in zip(arrays, dialogue["turns"], strict=True):
        start_s, duration_s = described["start_s"], described["duration_s"]
        low, high = _compute_outline(array)
        times_s = start_s + (np.arange(len(low)) + 0.5) * duration_s / len(low)
        axes.fill_between(times_s, low, high, color="0.55", linewidth=0)
        axes.axvline(start_s, color="0.5", linestyle=":", linewidth=1)
        place = {"xycoords": ("data", "axes fraction"), "xytext": (3, -3), "textcoords": "offset points"}
        axes.annotate(described["role"], (start_s, 1.0), va="top", fontsize=9, **place)
        if described["heard_s"] < duration_s:
            span = (start_s + described["heard_s"], start_s + duration_s)
            axes.axvspan(*span, facecolor="none", edgecolor="0.6", hatch="xx", linewidth=0)
    peak = max(float(np.abs(array).max(initial=0.0)) for array in arrays)
    axes.set(ylim=(-1.1 * (peak or 1.0), 1.1 * (peak or 1.0)), yticks=[])
    axes.grid(visible=False)


def _compute_outline(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the greatest sample of each of at most `_MAX_POINTS` equal segments."""
    starts = np.linspace(0, len(array), min(len(array), _MAX_POINTS), endpoint=False).astype(int)
    return np.minimum.reduceat(array, starts), np.maximum.reduceat(array, starts)


def _draw_bars(axes: Any, dialogue: dict[str, Any]) -> None:
    """Draw the contribution of each segment, or of each turn, as a bar of its duration."""
    bars = []
    for turn in dialogue["turns"]:
        whole = {"start_s": 0.0, "stop_s": turn["heard_s"], **turn["audio"]}
        for part in turn["segments"] or [whole]:
            left = turn["start_s"] + part["start_s"]
            bars.append((left, part["stop_s"] - part["start_s"], part["contribution"]))
    for raises, style in _BAR_STYLES.items():
        drawn = [bar for bar in bars if (bar[2] >= 0) == raises]
        if drawn:
            left, width, height = zip(*drawn, strict=True)
            axes.bar(left, height, width=width, align="edge", edgecolor="black", linewidth=0.5, alpha=0.6, **style)
