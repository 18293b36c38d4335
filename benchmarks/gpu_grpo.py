"""Steps of WavReward's reinforcement learning on one CUDA GPU at the real sizes, with generation on the same GPU.

    python -m benchmarks.gpu_grpo                               # 7B and 3B, LoRA, in bfloat16
    python -m benchmarks.gpu_grpo --device cpu --dtype float32 --sizes tiny --scenarios 1 --num_generations 2 \
        --answers_a_pass 2 --new_tokens 4 --mean-s 2

Weights are random and drawn on the device, recordings are noise: nothing is downloaded. `gpu.py` explains how to run
it without installing packages.

A cycle is that of `configs/wavreward-7b.yaml`: answers to the three recordings of each of two scenarios, eight to a
recording, which serve three optimizer steps; the KL term compares with the model without adapters. Here only adapters
are trained, and all answers have the same length. An untrained judge's earn no reward, so the gradients are zero.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from statistics import median
from typing import Any

import datasets
import numpy as np
import torch
from transformers import GenerationConfig, Qwen2_5OmniThinkerForConditionalGeneration, TrainerCallback
from trl import GRPOConfig

from benchmarks.gpu import GPUArguments, describe_device
from benchmarks.gpu_steps import Clock, release_memory
from benchmarks.racing import RESULTS, write_result
from benchmarks.speed_models import drawn_on, make_processor, model_config
from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.common.arguments import parse_arguments
from sdiareward.judges.nano_judge import make_thinker_config
from sdiareward.judges.repeated_clips import encode_each_clip_once
from sdiareward.judges.thinker import MAX_RECORDING_S, ThinkerProcessor
from sdiareward.judges.wavreward.prompts import JudgingPrompt
from sdiareward.judges.wavreward.rewards import make_reward_functions
from sdiareward.judges.wavreward.settings import GRPOArguments, configure_adapters
from sdiareward.judges.wavreward.training_rows import make_prompt_rows
from sdiareward.judges.wavreward.wavreward_trainer import WavRewardTrainer
from sdiareward.perturbations.channel import encode_flac


RESULT = RESULTS / "gpu_grpo.json"
_RECORDINGS_A_SCENARIO = 3
_STEPS_A_CYCLE = 3
_MAX_SCORE = 5


@dataclass(kw_only=True)
class Arguments(GPUArguments):
    """The arguments of the command line."""

    scenarios: int = field(default=2, metadata={"help": "scenarios answered at once, of three recordings each"})
    num_generations: int = field(default=8, metadata={"help": "answers to a recording"})
    answers_a_pass: int = field(default=8, metadata={"help": "answers in one forward and backward pass"})
    new_tokens: int = field(default=256, metadata={"help": "length of every answer"})
    mean_s: float = field(default=20.0, metadata={"help": "seconds of a recording"})
    cycles: int = field(default=3, metadata={"help": "measured cycles of answers and steps, after one that is not"})
    limit_s: float = field(default=300.0, metadata={"help": "start no size after this number of seconds"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def main() -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m benchmarks.gpu_grpo", description=__doc__)
    clock = Clock(torch.device(args.device), args.limit_s)
    names = ("scenarios", "num_generations", "answers_a_pass", "new_tokens", "mean_s", "cycles", "seed")
    record: dict[str, Any] = {
        "device": describe_device(clock.device),
        "dtype": args.dtype,
        "settings": {name: getattr(args, name) for name in names},
        "steps_a_cycle": _STEPS_A_CYCLE,
        "sizes": {},
    }

    def keep(size: str, found: dict[str, Any]) -> None:
        record["sizes"][size] = found
        write_result(args.output, **record)

    for size in args.sizes:
        if clock.is_over():
            keep(size, {"left_out": "time"})
        else:
            measure(size, clock, args, partial(keep, size))
    print(table(record))


class _Stopwatch(TrainerCallback):
    """Take the time at the end of each cycle, and of what is generated; tell of every cycle but the first."""

    def __init__(self, clock: Clock, tell: Callable[[Sequence[float], Sequence[float]], None]):
        self.clock = clock
        self.tell = tell
        self.ends: list[float] = []
        self.generated_s: list[float] = []

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.clock.wait()
        self.ends.append(time.perf_counter())

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % _STEPS_A_CYCLE:
            return
        self.clock.wait()
        self.ends.append(time.perf_counter())
        cycles_s = [after - before for before, after in zip(self.ends, self.ends[1:], strict=False)]
        if len(cycles_s) > 1:
            self.tell(cycles_s[1:], self.generated_s[1:])

    def timing(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, whose time is taken."""

        @wraps(generate)
        def timed(*args: Any, **kwargs: Any) -> Any:
            seconds, result = self.clock.seconds(lambda: generate(*args, **kwargs))
            self.generated_s.append(seconds)
            return result

        return timed


def measure(size: str, clock: Clock, args: Arguments, keep: Callable[[dict[str, Any]], None]) -> None:
    """Train for some cycles; keep the times after each, so that an interrupted run has those it measured.

    Args:
        size (`str`): One of `speed_models.SIZES`.
        clock (`Clock`): Measures; knows the device.
        args (`Arguments`): The rest of the command line.
        keep (`Callable`): Takes what was measured so far.
    """
    is_cuda = clock.device.type == "cuda"
    release_memory(clock.device)
    if is_cuda:
        torch.cuda.reset_peak_memory_stats()
    model, processor = build_judge(size, args.seed, args.device, getattr(torch, args.dtype))
    num_parameters = sum(weights.numel() for weights in model.parameters())
    num_answers = args.scenarios * _RECORDINGS_A_SCENARIO * args.num_generations

    def tell(cycles_s: Sequence[float], generated_s: Sequence[float]) -> None:
        found = {
            "million_parameters": round(num_parameters / 1e6, 1),
            "answers_a_cycle": num_answers,
            "cycles_s": list(cycles_s),
            "generation_s": list(generated_s),
            "steps_a_minute": 60 * _STEPS_A_CYCLE / median(cycles_s),
            "generation_share": median(generated_s) / median(cycles_s),
            "new_tokens_per_second": num_answers * args.new_tokens / median(generated_s),
        }
        keep({**found, **({"peak_bytes": torch.cuda.max_memory_allocated()} if is_cuda else {})})

    watch = _Stopwatch(clock, tell)
    model.generate = watch.timing(model.generate)
    with tempfile.TemporaryDirectory() as folder:
        trainer = WavRewardTrainer(
            model,
            make_reward_functions(),
            make_config(folder, args),
            scenario_ids=_scenario_ids(args.scenarios),
            processing_class=processor,
            train_dataset=make_prompt_rows(make_samples(args), JudgingPrompt().make_conversation),
            peft_config=configure_adapters(GRPOArguments(dataset="", train="lora")),
            callbacks=[watch],
        )
        trainer.train()


def build_judge(size: str, seed: int, device: str, dtype: torch.dtype) -> tuple[Any, ThinkerProcessor]:
    """Build a judge of a size with random weights on the device, and its processor."""
    reward_processor = make_processor()
    tokenizer = reward_processor.tokenizer
    config = make_thinker_config(model_config(size, tokenizer), tokenizer)
    with drawn_on(device, dtype, seed):
        model = Qwen2_5OmniThinkerForConditionalGeneration(config)
    encode_each_clip_once(model.model.audio_tower)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=tokenizer.pad_token_id)
    return model, ThinkerProcessor(reward_processor.feature_extractor, tokenizer, max_turn_s=MAX_RECORDING_S)


def make_config(folder: str, args: Arguments) -> GRPOConfig:
    """Return the settings of `configs/wavreward-7b.yaml` on one GPU, for answers of one length."""
    num_answers = args.scenarios * _RECORDINGS_A_SCENARIO * args.num_generations
    passes = num_answers // args.answers_a_pass
    return GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=args.answers_a_pass,
        gradient_accumulation_steps=passes // _STEPS_A_CYCLE,
        steps_per_generation=passes,
        num_generations=args.num_generations,
        max_completion_length=args.new_tokens,
        generation_kwargs={"min_new_tokens": args.new_tokens},
        temperature=1.0,
        beta=0.01,
        epsilon=0.2,
        loss_type="grpo",
        use_bias_correction_kl=False,
        scale_rewards="group",
        max_steps=_STEPS_A_CYCLE * (args.cycles + 1),
        learning_rate=1e-6,
        bf16=args.dtype == "bfloat16",
        use_cpu=args.device == "cpu",
        gradient_checkpointing=True,
        save_strategy="no",
        report_to="none",
        seed=args.seed,
    )


def make_samples(args: Arguments) -> datasets.Dataset:
    """Return recordings of noise with scores, three to a scenario."""
    generator = np.random.default_rng(args.seed)
    ids = _scenario_ids(args.scenarios)
    clips = 0.05 * generator.standard_normal((len(ids), round(args.mean_s * SAMPLING_RATE)), dtype=np.float32)
    rows = {
        "audio": [{"bytes": encode_flac(clip), "path": None} for clip in clips],
        "score": generator.integers(1, _MAX_SCORE + 1, len(ids)).tolist(),
        "sample_id": [str(index) for index in range(len(ids))],
        "scenario_id": ids,
    }
    return datasets.Dataset.from_dict(rows)


def _scenario_ids(num_scenarios: int) -> list[str]:
    return [str(scenario) for scenario in range(num_scenarios) for _ in range(_RECORDINGS_A_SCENARIO)]


def table(record: Mapping[str, Any]) -> str:
    """Render the results as text, one line per size."""
    lines = [f"{'':<8}{'steps/min':>11}{'s a cycle':>11}{'generation':>12}{'new tokens/s':>14}{'peak GiB':>10}"]
    for size, found in record["sizes"].items():
        if "left_out" in found:
            lines.append(f"{size:<8} left out for lack of {found['left_out']}")
            continue
        peak = f"{found['peak_bytes'] / 2**30:.1f}" if "peak_bytes" in found else "-"
        speed = f"{found['steps_a_minute']:>11.1f}{median(found['cycles_s']):>11.2f}{found['generation_share']:>12.0%}"
        lines.append(f"{size:<8}{speed}{found['new_tokens_per_second']:>14.0f}{peak:>10}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
