"""The measurements of `gpu.py` for one model: throughput, each optimisation, plain `transformers`, where time goes."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.flops import audio_flops, text_flops
from benchmarks.opponents import PlainTransformers
from benchmarks.racing import speedup, time_rounds
from benchmarks.scoring_parts import KINDS_OF_OPERATIONS, REST, name_kind
from benchmarks.speed_models import RELEASED_CHUNK_LENGTH_S
from benchmarks.synthetic_workload import NUM_BENCH_DIALOGUES, SyntheticDialogues
from sdiareward.scoring.batching import DialoguePreparer, prefetch
from sdiareward.scoring.scorer import Scorer


if TYPE_CHECKING:
    from sdiareward.modeling_sdiareward import SDiaRewardModel
    from sdiareward.processing_sdiareward import SDiaRewardProcessor

_CHANGED: dict[str, dict[str, Any]] = {
    "ours": {},
    "pack=False": {"pack": False},
    "share_prefixes=False": {"share_prefixes": False},
    "share_clips=False": {"share_clips": False},
    "num_workers=0": {"num_workers": 0},
    "num_workers=8": {"num_workers": 8},
}
_WARM_UP_DIALOGUES = 8
CRITERION = "joint"
IDLE = "waiting"


@dataclass(frozen=True)
class Settings:
    """The amount of work.

    Args:
        dialogues (`int`): Scored with everything switched on.
        ablation_dialogues (`int`): Scored with each option changed.
        check_dialogues (`int`): Scored the plain way too.
        rounds (`int`): Rounds of every measurement.
        mean_s (`float`): Mean seconds of audio in a dialogue.
        batch_tokens (`int`, *optional*): Tokens in a forward pass; the scorer's own by default.
        num_workers (`int`): Threads that read ahead.
        compile (`bool`): Measure with `compile=True` too.
        float8 (`bool`): Measure in float8 too.
        seed (`int`): Of weights and dialogues.
    """

    dialogues: int
    ablation_dialogues: int
    check_dialogues: int
    rounds: int
    mean_s: float
    batch_tokens: int | None
    num_workers: int
    compile: bool
    float8: bool
    seed: int


def release_memory(device: torch.device) -> None:
    """Give back the memory of models that are no longer used."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


class Clock:
    """Measure seconds of work on a device, and know the time limit.

    Args:
        device (`torch.device`): Where the work is done.
        limit_s (`float`): Seconds allowed from now on.
    """

    def __init__(self, device: torch.device, limit_s: float):
        self.device = device
        self._end = time.perf_counter() + limit_s

    def is_over(self) -> bool:
        """Tell whether the time limit has passed."""
        return time.perf_counter() > self._end

    def seconds(self, task: Callable[[], Any]) -> tuple[float, Any]:
        """Run a task until the device has finished; return its seconds and its result."""
        self.wait()
        start = time.perf_counter()
        result = task()
        self.wait()
        return time.perf_counter() - start, result

    def wait(self) -> None:
        """Return when the device has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Bench:
    """Measure one model.

    Args:
        model (`SDiaRewardModel`): On the device.
        processor (`SDiaRewardProcessor`): Its processor.
        clock (`Clock`): Measures.
        settings (`Settings`): How much.
    """

    def __init__(self, model: SDiaRewardModel, processor: SDiaRewardProcessor, clock: Clock, settings: Settings):
        self.model = model
        self.processor = processor
        self.clock = clock
        self.settings = settings
        self._is_cuda = clock.device.type == "cuda"

    def throughput(self, rate: float) -> dict[str, Any]:
        """Measure the scorer with its defaults.

        Args:
            rate (`float`): Operations a second that count as full utilisation.
        """
        dialogues = self.make_dialogues(self.settings.dialogues)
        self._warm_up()
        if self._is_cuda:
            torch.cuda.reset_peak_memory_stats()
        times, audio_s = [], 0.0
        for _ in range(self.settings.rounds):
            scorer = self.make_scorer()
            times.append(self.clock.seconds(lambda: scorer.score(dialogues, CRITERION, groups=dialogues.groups))[0])  # noqa: B023 (called at once)
            audio_s = scorer.audio_s
        seconds = median(times)
        flops = self._flops(dialogues)
        return {
            "dialogues": len(dialogues),
            "audio_s": audio_s,
            "rounds_s": times,
            "seconds": seconds,
            "dialogues_per_s": len(dialogues) / seconds,
            "audio_s_per_s": audio_s / seconds,
            "real_time_factor": seconds / audio_s,
            "esdr_bench_s": seconds / len(dialogues) * NUM_BENCH_DIALOGUES,
            "flops": flops,
            "utilisation": flops / seconds / rate,
            **self._memory(),
        }

    def preparation(self) -> dict[str, float]:
        """Measure the preparation of inputs alone, with the scorer's number of threads."""
        dialogues = self.make_dialogues(self.settings.ablation_dialogues)
        prepare = DialoguePreparer(self.processor)
        criteria = [CRITERION] * len(dialogues)
        batches = [range(first, min(first + 8, len(dialogues))) for first in range(0, len(dialogues), 8)]
        tasks = prefetch(lambda indices: prepare(indices, dialogues, criteria), batches, self.settings.num_workers)
        seconds, num_samples = self.clock.seconds(lambda: sum(batch.num_samples for batch in tasks))
        audio_s = num_samples / self.processor.sampling_rate
        return {"seconds": seconds, "real_time_factor": seconds / audio_s}

    def parts(self) -> dict[str, Any]:
        """Return the share of the time of some dialogues by kind of operation; the rest of it the device waited."""
        from torch.profiler import ProfilerActivity, profile

        dialogues = self.make_dialogues(self.settings.ablation_dialogues)
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._is_cuda else [])]
        scorer = self.make_scorer()
        with profile(activities=activities) as profiler:
            seconds, _ = self.clock.seconds(lambda: scorer.score(dialogues, CRITERION, groups=dialogues.groups))
        spent: Counter[str] = Counter()
        for event in profiler.key_averages():
            if event.device_type == torch.autograd.DeviceType.CPU:
                used_us = event.self_device_time_total if self._is_cuda else event.self_cpu_time_total
                spent[name_kind(event.key)] += used_us / 1e6
        shares = {kind: spent[kind] / seconds for kind in (*KINDS_OF_OPERATIONS, REST)}
        return {"dialogues": len(dialogues), "seconds": seconds, "shares": {**shares, IDLE: 1 - sum(shares.values())}}

    def changed(self) -> dict[str, Any]:
        """Measure the scorer with one option changed at a time; return the seconds of each round by name."""
        dialogues = self.make_dialogues(self.settings.ablation_dialogues)

        def score(options: Mapping[str, Any]) -> None:
            self.make_scorer(**options).score(dialogues, CRITERION, groups=dialogues.groups)
            self.clock.wait()

        for options in _CHANGED.values():
            self._warm_up(**options)
        tasks = {name: partial(score, options) for name, options in _CHANGED.items()}
        return {"dialogues": len(dialogues), "seconds": time_rounds(tasks, self.settings.rounds)[0]}

    def plain(self) -> dict[str, Any]:
        """Race `opponents.py` against the scorer on a few dialogues.

        `plain_forward` has its inputs ready: what is left of the plain way once its mel features cost nothing.
        """
        dialogues = self.make_dialogues(self.settings.check_dialogues)
        plain = PlainTransformers(self.model, self.processor, chunk_length_s=RELEASED_CHUNK_LENGTH_S)
        ready = [plain.prepare([dialogue], CRITERION).to(self.clock.device) for dialogue in dialogues]
        ways: dict[str, Callable[[], list[float]]] = {
            "plain": lambda: plain.score(dialogues, CRITERION),
            "plain_forward": lambda: [reward for inputs in ready for reward in plain.forward(inputs)],
            "ours": lambda: self.make_scorer().score(dialogues, CRITERION, groups=dialogues.groups),
        }
        self._warm_up()
        ways["plain_forward"]()
        seconds, rewards = time_rounds(ways, self.settings.rounds)
        first = rewards["plain"][0]
        return {
            "dialogues": len(dialogues),
            "seconds": seconds,
            "speedup": {name: speedup(seconds[name], seconds["ours"]) for name in ("plain", "plain_forward")},
            "largest_difference": largest_difference(rewards["ours"][0], first),
        }

    def compiled(self) -> dict[str, Any]:
        """Measure the scorer with `compile=True`, after the time that compilation takes, and by what rewards move."""
        dialogues = self.make_dialogues(self.settings.ablation_dialogues)
        return {"dialogues": len(dialogues), **self._compare(dialogues, {}, {"compile": True})}

    def float8(self) -> dict[str, Any]:
        """Measure compiled feed-forward blocks in float8, a scale for each row; the model stays so."""
        from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow, quantize_

        dialogues = self.make_dialogues(self.settings.ablation_dialogues)

        def convert() -> None:
            for layer in self.model.model.language_model.layers:
                quantize_(layer.mlp, Float8DynamicActivationFloat8WeightConfig(granularity=PerRow()))

        options = {"compile": True}
        return {"dialogues": len(dialogues), **self._compare(dialogues, options, options, convert)}

    def _compare(
        self,
        dialogues: SyntheticDialogues,
        before: Mapping[str, Any],
        after: Mapping[str, Any],
        change: Callable[[], None] = lambda: None,
    ) -> dict[str, Any]:
        """Time the scorer with options before and after a change of the model, and compare its rewards."""

        def measure(options: Mapping[str, Any]) -> tuple[float, list[float], list[float]]:
            warm_up_s, _ = self.clock.seconds(lambda: self._warm_up(**options))
            score = partial(self.make_scorer(**options, share_clips=False).score, dialogues, CRITERION)
            timed = [self.clock.seconds(score) for _ in range(self.settings.rounds)]
            return warm_up_s, [seconds for seconds, _ in timed], timed[0][1]

        _, before_s, expected = measure(before)
        change()
        warm_up_s, after_s, rewards = measure(after)
        return {
            "before_s": before_s,
            "after_s": after_s,
            "warm_up_s": warm_up_s,
            "speedup": speedup(before_s, after_s),
            "reward_spread": torch.tensor(expected).std(correction=0).item(),
            "reward_moves_by_at_most": largest_difference(rewards, expected),
        }

    def make_dialogues(self, num_dialogues: int, other: bool = False) -> SyntheticDialogues:
        """Return the measured dialogues, or others without any measured clip to warm up with."""
        return SyntheticDialogues(num_dialogues, self.settings.seed + other, self.settings.mean_s)

    def make_scorer(self, **options: Any) -> Scorer:
        """Return a scorer with nothing cached and the settings' number of threads."""
        given = {"batch_tokens": self.settings.batch_tokens, "num_workers": self.settings.num_workers}
        return Scorer(self.model, self.processor, **{**given, **options})

    def _warm_up(self, **options: Any) -> None:
        self.make_scorer(**options).score(self.make_dialogues(_WARM_UP_DIALOGUES, other=True), CRITERION)

    def _memory(self) -> dict[str, float]:
        if not self._is_cuda:
            return {}
        peak_bytes = torch.cuda.max_memory_allocated()
        weights_bytes = sum(weights.nbytes for weights in (*self.model.parameters(), *self.model.buffers()))
        return {
            "peak_bytes": peak_bytes,
            "peak_over_weights": peak_bytes / weights_bytes,
            "reserved_bytes": torch.cuda.max_memory_reserved(),
        }

    def _flops(self, dialogues: Sequence[Any]) -> int:
        """Count the operations of the towers for the dialogues without their system prompts."""
        config = self.model.config
        hop = self.processor.feature_extractor.hop_length
        prompt = {"role": "system", "content": self.processor.prompts[CRITERION]}
        num_before = self.processor.num_tokens([prompt])
        total = 0
        for dialogue in dialogues:
            num_tokens = self.processor.num_tokens(dialogue, CRITERION) - num_before
            total += text_flops(config.text_config, num_tokens, num_before)
            for turn in dialogue:
                num_frames = -(-turn["content"][1]["audio"]["array"].size // hop)
                total += audio_flops(config.audio_config, num_frames)
        return total


def largest_difference(found: Sequence[float], expected: Sequence[float]) -> float:
    """Return the largest absolute difference of two lists of rewards."""
    return max(abs(one - other) for one, other in zip(found, expected, strict=True))
