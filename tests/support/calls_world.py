"""Calls whose turns are known, made of the recordings of the sample: clips on two channels, with gaps and overlaps."""

import json
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from sdiareward.audio_sdiareward import SAMPLING_RATE, read_audio
from sdiareward.calls.recordings import Channels
from sdiareward.calls.speech import find_speech, measure_levels
from sdiareward.calls.turns import Segment, Turns, form_turns

from .paths import ROOT


LEVEL = 0.05
NUM_CALLS, MOST_TURNS = 5, 24


@dataclass(frozen=True)
class Call:
    samples: np.ndarray  # (2, num_samples)
    turns: list[Segment]
    backchannels: list[Segment]

    def cut(self) -> Turns:
        spans, _ = find_speech(Channels(self.samples, "call", "", SAMPLING_RATE))
        segments = [Segment(*span, side) for side in (0, 1) for span in spans[side]]
        return form_turns(segments, self.samples.shape[1] / SAMPLING_RATE)

    def alter(self, change) -> "Call":
        return replace(self, samples=change(self.samples).astype(np.float32))


def trim(clip):
    """Cut to what is within 40 dB of the loudest 10 ms: where the speech of a clip begins and ends."""
    level = measure_levels(clip, hop := SAMPLING_RATE // 100)
    loud = np.flatnonzero(level > level.max() - 40)
    clip = clip[loud[0] * hop : (loud[-1] + 1) * hop]
    return clip * LEVEL / np.sqrt(np.mean(clip**2))


@cache
def read_clips():
    """Return the turns of dialogues, and short pieces that serve as backchannels."""
    dialogues, short = [], []
    for line in (ROOT / "sample" / "manifest.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["source"] != "amazon_queen":
            continue
        audio, turns = read_audio(ROOT / "sample" / row["audio"]), []
        for turn in row["turns"]:
            spans = [[round(part[end] * SAMPLING_RATE) for end in ("start_s", "end_s")] for part in turn["parts"]]
            pieces = [trim(audio[start:stop]) for start, stop in spans]
            short += [piece for piece in pieces if 0.25 < piece.size / SAMPLING_RATE < 0.6]
            turns.append((int(turn["role"] == "assistant"), np.concatenate(pieces)))
        if all(1.2 <= clip.size / SAMPLING_RATE <= 12 for _, clip in turns):
            dialogues.append(turns)
        if len(dialogues) == 5 * NUM_CALLS:
            break
    return dialogues, short


def make_call(number, *, overlap=0.3, backchannels=0.7, pause=0.5):
    """Make a call of up to 24 turns; the shares are of changes, of long turns and of long turns."""
    dialogues, short = read_clips()
    clips = [turn for dialogue in dialogues[number * 5 : (number + 1) * 5] for turn in dialogue][:MOST_TURNS]
    rng = np.random.default_rng(number)
    placed, end_s, before_s = [], 1.0, 0.0
    for channel, clip in clips:
        if rng.random() < pause and clip.size > 3 * SAMPLING_RATE:
            silence = np.zeros(int(SAMPLING_RATE * rng.uniform(0.6, 1.4)), np.float32)
            clip = np.concatenate([clip[: clip.size // 2], silence, clip[clip.size // 2 :]])
        gap_s = -rng.uniform(0.2, 0.8) if placed and rng.random() < overlap else rng.uniform(0.15, 1.2)
        # A turn begins after the one before has begun, and ends after it: it is no backchannel.
        start_s = max(end_s + gap_s, before_s + 1.0, placed[-1][0] + 0.6 if placed else 0.0)
        placed.append((start_s, channel, clip))
        before_s, end_s = end_s, start_s + clip.size / SAMPLING_RATE
    samples = np.zeros((2, round((end_s + 1) * SAMPLING_RATE)), np.float32)
    turns = []
    for start_s, channel, clip in placed:
        start = round(start_s * SAMPLING_RATE)
        samples[channel, start : start + clip.size] += clip
        turns.append(Segment(start_s, start_s + clip.size / SAMPLING_RATE, channel))
    said = []
    for turn in turns[1:-1]:
        if turn.length_s > 3 and rng.random() < backchannels:
            clip = short[rng.integers(len(short))]
            start_s = rng.uniform(turn.start_s + 0.8, turn.end_s - 0.9 - clip.size / SAMPLING_RATE)
            first, stop = round((start_s - 0.7) * SAMPLING_RATE), round((start_s + 0.7) * SAMPLING_RATE) + clip.size
            host, other = samples[turn.channel, first:stop], samples[1 - turn.channel]
            # In a pause it would be a turn.
            if not other[first:stop].any() and measure_levels(host, SAMPLING_RATE // 5).min() > -45:
                start = round(start_s * SAMPLING_RATE)
                other[start : start + clip.size] += clip
                said.append(Segment(start_s, start_s + clip.size / SAMPLING_RATE, 1 - turn.channel))
    return Call(samples, turns, said)


def leak(samples, level_db, delay_s=0.0):
    """Return channels that each hold the other one, later and quieter."""
    delay = round(delay_s * SAMPLING_RATE)
    late = np.pad(samples[::-1], ((0, 0), (delay, 0)))[:, : samples.shape[1]]
    return samples + 10 ** (level_db / 20) * late


def add_noise(samples, below_db):
    rng = np.random.default_rng(0)
    return samples + LEVEL * 10 ** (-below_db / 20) * rng.standard_normal(samples.shape)


def compare_turns(call, found):
    """Return how many turns were found one to one, and the errors of their starts, ends and gaps in ms."""
    matched = {}
    for turn in call.turns:
        shared = [
            each
            for each in found.turns
            if each.channel == turn.channel
            and min(each.end_s, turn.end_s) - max(each.start_s, turn.start_s) > 0.5 * turn.length_s
        ]
        if len(shared) == 1:
            matched[turn] = shared[0]
    errors = {
        end: [1e3 * abs(getattr(b, end) - getattr(a, end)) for a, b in matched.items()] for end in ("start_s", "end_s")
    }
    pairs = [pair for pair in zip(call.turns, call.turns[1:], strict=False) if set(pair) <= set(matched)]
    gaps = [1e3 * abs((matched[b].start_s - matched[a].end_s) - (b.start_s - a.end_s)) for a, b in pairs]
    return len(matched), errors["start_s"], errors["end_s"], gaps
