"""The measurements of `gpu.py` for one model: throughput, each optimisation, plain `transformers`, exactness."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.flops import audio_flops, text_flops
from benchmarks.opponents import PlainTransformers
from benchmarks.speed_models import RELEASED_CHUNK_LENGTH_S
from benchmarks.synthetic_workload import NUM_BENCH_DIALOGUES, SyntheticDialogues
from sdiareward.scoring.batching import DialoguePreparer, prefetch
from sdiareward.scoring.packed_forward import encode_clips
from sdiareward.scoring.scorer import Scorer


if TYPE_CHECKING:
    from sdiareward.modeling_sdiareward import SDiaRewardModel
    from sdiareward.processing_sdiareward import SDiaRewardProcessor

_SWITCHED_OFF: dict[str, dict[str, Any]] = {
    "ours": {},
    "pack": {"pack": False},
    "share_prefixes": {"share_prefixes": False},
    "share_clips": {"share_clips": False},
    "num_workers": {"num_workers": 0},
}
_WARM_UP_DIALOGUES = 8
_CRITERION = "joint"


@dataclass(frozen=True)
class Settings:
    """The amount of work.

    Args:
        dialogues (`int`): Scored with everything switched on.
        ablation_dialogues (`int`): Scored with each speed-up switched off.
        check_dialogues (`int`): Scored the plain way and compared.
        mean_s (`float`): Mean seconds of audio in a dialogue.
        batch_tokens (`int`, *optional*): Tokens in a forward pass; the scorer's own by default.
        num_workers (`int`): Threads that read ahead.
        compile (`bool`): Measure with `compile=True` too.
        profile (`bool`): Say where the time goes.
        seed (`int`): Of weights and dialogues.
    """

    dialogues: int
    ablation_dialogues: int
    check_dialogues: int
    mean_s: float
    batch_tokens: int | None
    num_workers: int
    compile: bool
    profile: bool
    seed: int


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
        self._wait()
        start = time.perf_counter()
        result = task()
        self._wait()
        return time.perf_counter() - start, result

    def _wait(self) -> None:
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
        dialogues = self._dialogues(self.settings.dialogues)
        self._warm_up()
        if self._is_cuda:
            torch.cuda.reset_peak_memory_stats()
        scorer = self._scorer()
        seconds, _ = self.clock.seconds(lambda: scorer.score(dialogues, _CRITERION, groups=dialogues.groups))
        flops = self._flops(dialogues)
        return {
            "dialogues": len(dialogues),
            "audio_s": scorer.audio_s,
            "seconds": seconds,
            "dialogues_per_s": len(dialogues) / seconds,
            "audio_s_per_s": scorer.audio_s / seconds,
            "real_time_factor": seconds / scorer.audio_s,
            "esdr_bench_s": seconds / len(dialogues) * NUM_BENCH_DIALOGUES,
            "flops": flops,
            "utilisation": flops / seconds / rate,
            **self._memory(),
        }

    def preparation(self) -> dict[str, float]:
        """Measure the preparation of inputs alone, with the scorer's number of threads."""
        dialogues = self._dialogues(self.settings.ablation_dialogues)
        prepare = DialoguePreparer(self.processor)
        criteria = [_CRITERION] * len(dialogues)
        batches = [range(first, min(first + 8, len(dialogues))) for first in range(0, len(dialogues), 8)]
        tasks = prefetch(lambda indices: prepare(indices, dialogues, criteria), batches, self.settings.num_workers)
        seconds, num_samples = self.clock.seconds(lambda: sum(batch.num_samples for batch in tasks))
        audio_s = num_samples / self.processor.sampling_rate
        return {"seconds": seconds, "real_time_factor": seconds / audio_s}

    def profile(self) -> str:
        """Return a table of the slowest operations."""
        from torch.profiler import ProfilerActivity, profile

        dialogues = self._dialogues(self.settings.check_dialogues)
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._is_cuda else [])]
        with profile(activities=activities) as profiler:
            self._scorer().score(dialogues, _CRITERION)
        order = f"self_{'cuda' if self._is_cuda else 'cpu'}_time_total"
        return str(profiler.key_averages().table(sort_by=order, row_limit=25, max_name_column_width=50))

    def switched_off(self) -> dict[str, Any]:
        """Measure the scorer with one optimisation switched off at a time; return seconds by name."""
        dialogues = self._dialogues(self.settings.ablation_dialogues)
        ways = {**_SWITCHED_OFF, **({"with compile": {"compile": True}} if self.settings.compile else {})}
        found: dict[str, Any] = {"dialogues": len(dialogues)}
        for name, options in ways.items():
            if not self.clock.is_over():
                self._warm_up(**options)
                scorer = self._scorer(**options)
                seconds, _ = self.clock.seconds(lambda: scorer.score(dialogues, _CRITERION, groups=dialogues.groups))  # noqa: B023 (called at once)
                found[f"{name}_s"] = seconds
        return found

    def plain(self) -> dict[str, Any]:
        """Measure `opponents.py` and the scorer on a few dialogues."""
        dialogues = self._dialogues(self.settings.check_dialogues)
        plain = PlainTransformers(self.model, self.processor, chunk_length_s=RELEASED_CHUNK_LENGTH_S)
        plain.score(self._dialogues(1, other=True))
        plain_s, expected = self.clock.seconds(lambda: plain.score(dialogues, _CRITERION))
        ours_s, rewards = self.clock.seconds(lambda: self._scorer().score(dialogues, _CRITERION))
        return {
            "dialogues": len(dialogues),
            "plain_s": plain_s,
            "ours_s": ours_s,
            "speedup": plain_s / ours_s,
            "largest_difference": _largest(rewards, expected),
        }

    def check(self) -> dict[str, Any]:
        """Compare the scorer with the library's SDPA attention, and both with the same weights in float32.

        In bfloat16 two exact ways differ by rounding; float32 says by how much each is off.
        """
        dialogues = list(self._dialogues(self.settings.check_dialogues))
        scores = {"ours": self._scorer().score(dialogues, _CRITERION), "sdpa": self._one_by_one(self.model, dialogues)}
        vectors = {"ours": self._encoded(dialogues), "sdpa": self._encoded_by_library(self.model, dialogues)}
        found: dict[str, Any] = {
            "reward_ours_sdpa": _largest(scores["ours"], scores["sdpa"]),
            "cosine_ours_sdpa": _smallest_cosine(vectors["ours"], vectors["sdpa"]),
        }
        if self._has_room_for_float32():
            exact = deepcopy(self.model).float()
            rewards, encoded = self._one_by_one(exact, dialogues), self._encoded_by_library(exact, dialogues)
            found["reward_spread"] = torch.tensor(rewards).std(correction=0).item()
            found["reward_size"] = torch.tensor(rewards).abs().mean().item()
            for name in scores:
                found[f"reward_{name}_float32"] = _largest(scores[name], rewards)
                found[f"cosine_{name}_float32"] = _smallest_cosine(vectors[name], encoded)
        return found

    def _dialogues(self, num_dialogues: int, other: bool = False) -> SyntheticDialogues:
        """Return the measured dialogues, or others without any measured clip to warm up with."""
        return SyntheticDialogues(num_dialogues, self.settings.seed + other, self.settings.mean_s)

    def _scorer(self, **options: Any) -> Scorer:
        given = {"batch_tokens": self.settings.batch_tokens, "num_workers": self.settings.num_workers}
        return Scorer(self.model, self.processor, **{**given, **options})

    def _warm_up(self, **options: Any) -> None:
        self._scorer(**options).score(self._dialogues(_WARM_UP_DIALOGUES, other=True), _CRITERION)

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
        prompt = {"role": "system", "content": self.processor.prompts[_CRITERION]}
        num_before = self.processor.num_tokens([prompt])
        total = 0
        for dialogue in dialogues:
            num_tokens = self.processor.num_tokens(dialogue, _CRITERION) - num_before
            total += text_flops(config.text_config, num_tokens, num_before)
            for turn in dialogue:
                num_frames = -(-turn["content"][1]["audio"]["array"].size // hop)
                total += audio_flops(config.audio_config, num_frames)
        return total

    @torch.inference_mode()
    def _one_by_one(self, model: SDiaRewardModel, dialogues: Sequence[Any]) -> list[float]:
        """Return the result of the model's own `forward` with the library's attention."""
        inputs = (self.processor(dialogue, criterion=_CRITERION).to(self.clock.device) for dialogue in dialogues)
        return [model(**each).logits.item() for each in inputs]

    @torch.inference_mode()
    def _encoded(self, dialogues: Sequence[Any]) -> torch.Tensor:
        mels = []
        for dialogue in dialogues:
            features, mask = self.processor.log_mel(self.processor.prepare(dialogue, _CRITERION).clips)
            mels += [torch.from_numpy(mel[:, :frames]) for mel, frames in zip(features, mask.sum(axis=1), strict=True)]
        return torch.cat(encode_clips(self.model, mels)).float()

    @torch.inference_mode()
    def _encoded_by_library(self, model: SDiaRewardModel, dialogues: Sequence[Any]) -> torch.Tensor:
        encoded = []
        for dialogue in dialogues:
            features, mask = self.processor.log_mel(self.processor.prepare(dialogue, _CRITERION).clips)
            inputs = (torch.from_numpy(array).to(self.clock.device) for array in (features, mask))
            encoded.append(model.encode_audio(*inputs))
        return torch.cat(encoded).float()

    def _has_room_for_float32(self) -> bool:
        if not self._is_cuda:
            return True
        torch.cuda.empty_cache()
        num_parameters = sum(weights.numel() for weights in self.model.parameters())
        return torch.cuda.mem_get_info()[0] > 5 * num_parameters


def _largest(found: Sequence[float], expected: Sequence[float]) -> float:
    return max(abs(one - other) for one, other in zip(found, expected, strict=True))


def _smallest_cosine(found: torch.Tensor, expected: torch.Tensor) -> float:
    return torch.nn.functional.cosine_similarity(found, expected, dim=-1).min().item()
