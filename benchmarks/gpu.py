"""Scoring, training and reinforcement learning on one CUDA GPU, at the real sizes of Qwen2.5-Omni-3B and 7B.

    python -m benchmarks.gpu
    python -m benchmarks.gpu --sizes 7b --parts scoring parity
    python -m benchmarks.gpu --device cpu --dtype float32 --sizes tiny --dialogues 2 --few 2 --mean-s 2

Weights are random and drawn on the device, dialogues are noise with the lengths of ESDR-Bench: nothing is downloaded.
Parts; each is saved as soon as it is measured:

- `scoring`, `released`, `options`, `profile`: as in `scoring_speed.py`.
- `parity`: rewards and gradients of the packed batch, of each dialogue alone, and of the library's SDPA attention,
  beside the same weights in float32, because two exact ways differ by rounding in bfloat16.
- `head`, `lora`, `full`: steps of training, as in `training_speed.py`.
- `grpo`: cycles of `configs/wavreward-7b.yaml` with LoRA: answers to the three recordings of each scenario, which
  serve three optimizer steps. Answers have one length; an untrained judge's earn no reward, so the gradients are zero.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import datasets
import numpy as np
import torch
from transformers import GenerationConfig, Qwen2_5OmniThinkerForConditionalGeneration
from trl import GRPOConfig

from benchmarks import racing, scoring_speed, training_speed, workloads
from benchmarks.racing import Record
from sdiareward.common.commands import parse_options
from sdiareward.judges.thinker import MAX_RECORDING_S, ThinkerProcessor, encode_each_clip_once, make_thinker_config
from sdiareward.judges.wavreward.judge import JudgingPrompt
from sdiareward.judges.wavreward.rewards import make_reward_functions
from sdiareward.judges.wavreward.train import GRPOArguments, configure_adapters, make_prompt_rows
from sdiareward.judges.wavreward.wavreward_trainer import WavRewardTrainer
from sdiareward.perturbations.channel import encode_flac
from sdiareward.scoring import packed_attention
from sdiareward.scoring.batching import DialoguePreparer
from sdiareward.scoring.scorer import Scorer
from sdiareward.training.batches import compute_packed_rewards


MODES = ("head", "lora", "full")
_STEPS_A_CYCLE, _RECORDINGS = 3, 3


@dataclass(kw_only=True)
class Arguments:
    sizes: list[str] = field(default_factory=lambda: ["7b", "3b"])
    parts: list[str] = field(
        default_factory=lambda: ["scoring", "options", "profile", "released", "parity", *MODES, "grpo"]
    )
    device: str = "cuda"
    dtype: str = "bfloat16"
    dialogues: int = 256
    # Dialogues for other options, and for slow ways.
    few: int = 64
    fewer: int = 4
    pairs: int = 8
    mean_s: float = workloads.MEAN_DIALOGUE_S
    scenarios: int = 2
    generations: int = 8
    new_tokens: int = 128
    rounds: int = 3
    seed: int = 0
    output: Path = racing.RESULTS / "gpu.json"


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_options(Arguments, argv, prog="python -m benchmarks.gpu", description=__doc__)
    for size in args.sizes:
        for part in args.parts:
            found = measure(part, size, args)
            racing.save_record(args.output, render, part, size, device=args.device, **found)


def measure(part: str, size: str, args: Arguments) -> Record:
    if part == "grpo":
        return measure_grpo(size, args)
    if part in MODES:
        options = {name: getattr(args, name) for name in ("pairs", "mean_s", "rounds", "seed")}
        steps = training_speed.Arguments(model=size, mode=part, steps=2, **options)
        return training_speed.measure(steps, args.device, args.dtype)
    model, processor = workloads.load_model(size, args.seed, args.device, getattr(torch, args.dtype))
    number = {"scoring": args.dialogues, "options": args.few, "profile": args.few}.get(part, args.fewer)
    dialogues = workloads.SyntheticDialogues(number, args.seed, args.mean_s)
    settings = {"dialogues": number, "mean_s": args.mean_s, "rounds": args.rounds, "seed": args.seed}
    if part == "parity":
        return {"settings": settings, **check_parity(model, processor, list(dialogues))}
    return {"settings": settings, **scoring_speed.measure(part, model, processor, dialogues, args.rounds)}


def check_parity(model: Any, processor: Any, dialogues: Sequence[Any]) -> Record:
    """Compare the ways to a reward with the plain one in float32: the largest difference, the smallest cosine."""
    exact = copy.deepcopy(model).float()

    @torch.inference_mode()
    def forward(model: Any) -> list[float]:
        return [model(**processor(dialogue).to(model.device)).logits.item() for dialogue in dialogues]

    rewards = {
        "packed": Scorer(model, processor).score(dialogues),
        "alone": [Scorer(model, processor).score([dialogue])[0] for dialogue in dialogues],
        "SDPA": forward(model),
    }
    gradients = {"packed": find_gradients(model, processor, dialogues)}
    with patch.object(packed_attention, "has_varlen", lambda *_: False):
        gradients["SDPA"] = find_gradients(model, processor, dialogues)
        expected = find_gradients(exact, processor, dialogues)
    correct = torch.tensor(forward(exact))
    return {
        "reward_spread": correct.std(correction=0).item(),
        "reward_differs_by": {
            name: (torch.tensor(found) - correct).abs().max().item() for name, found in rewards.items()
        },
        "gradient_cosine": {
            name: torch.cosine_similarity(found, expected, dim=0).item() for name, found in gradients.items()
        },
    }


def find_gradients(model: Any, processor: Any, dialogues: Sequence[Any]) -> torch.Tensor:
    """Return the gradients of the first layer's attention of the sum of two packed rewards."""
    # Those of a pair's difference nearly cancel in a random model.
    prepare = DialoguePreparer(processor)
    batch = prepare.join(prepare.read_each(range(2), dialogues[:2], ["joint"] * 2)[0])
    attention = list(model.model.language_model.layers[0].self_attn.parameters())
    rewards = compute_packed_rewards(model, batch.dialogues, batch.mels).logits
    gradients = torch.autograd.grad(rewards.sum(), attention)
    return torch.cat([gradient.flatten() for gradient in gradients]).float()


def measure_grpo(size: str, args: Arguments) -> Record:
    """Train a judge with random weights in cycles; the first one is not measured."""
    processor = workloads.make_processor()
    tokenizer = processor.tokenizer
    with workloads.drawn_on(args.device, getattr(torch, args.dtype), args.seed):
        config = make_thinker_config(workloads.make_config(size, tokenizer), tokenizer)
        model = Qwen2_5OmniThinkerForConditionalGeneration(config)
    encode_each_clip_once(model.model.audio_tower)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=tokenizer.pad_token_id)
    generation_s: list[float] = []
    generate = model.generate

    @wraps(generate)
    def timed(*given: Any, **options: Any) -> Any:
        racing.wait_for_device()
        start = time.perf_counter()
        answers = generate(*given, **options)
        racing.wait_for_device()
        generation_s.append(time.perf_counter() - start)
        return answers

    model.generate = timed
    scenarios = [str(number // _RECORDINGS) for number in range(args.scenarios * _RECORDINGS)]
    clock = training_speed.Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = WavRewardTrainer(
            model,
            make_reward_functions(),
            make_config(folder, args),
            scenario_ids=scenarios,
            processing_class=ThinkerProcessor(processor.feature_extractor, tokenizer, max_turn_s=MAX_RECORDING_S),
            train_dataset=make_prompt_rows(make_samples(scenarios, args), JudgingPrompt().make_conversation),
            peft_config=configure_adapters(GRPOArguments(dataset="", use_peft=True)),
            callbacks=[clock],
        )
        peak_mib = racing.measure(trainer.train).peak_mib
    names = ("scenarios", "generations", "new_tokens", "mean_s", "rounds", "seed")
    return {
        "settings": {name: getattr(args, name) for name in names},
        "answers": len(scenarios) * args.generations,
        "cycles_s": clock.intervals(_STEPS_A_CYCLE),
        "generation_s": generation_s[1:],
        "peak_mib": peak_mib,
    }


def make_config(folder: str, args: Arguments) -> GRPOConfig:
    """Return the settings of `configs/wavreward-7b.yaml` on one GPU, for answers of one length."""
    passes = args.scenarios * _RECORDINGS
    return GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=args.generations,
        gradient_accumulation_steps=passes // _STEPS_A_CYCLE,
        steps_per_generation=passes,
        num_generations=args.generations,
        max_completion_length=args.new_tokens,
        generation_kwargs={"min_new_tokens": args.new_tokens},
        beta=0.01,
        max_steps=_STEPS_A_CYCLE * (args.rounds + 1),
        bf16=args.dtype == "bfloat16",
        use_cpu=args.device == "cpu",
        gradient_checkpointing=True,
        save_strategy="no",
        report_to="none",
        seed=args.seed,
    )


def make_samples(scenarios: Sequence[str], args: Arguments) -> datasets.Dataset:
    rng = np.random.default_rng(args.seed)
    clips = 0.05 * rng.standard_normal((len(scenarios), round(args.mean_s * 16_000)), dtype=np.float32)
    rows = {
        "audio": [{"bytes": encode_flac(clip), "path": None} for clip in clips],
        "score": rng.integers(1, 6, len(scenarios)).tolist(),
        "sample_id": [str(number) for number in range(len(scenarios))],
        "scenario_id": list(scenarios),
    }
    return datasets.Dataset.from_dict(rows)


def render(records: list[Record]) -> str:
    others = [render_parity(found) for found in racing.group_records(records, "parity")]
    others += [training_speed.render_steps(found) for found in racing.group_records(records, *MODES)]
    others += [render_grpo(found) for found in racing.group_records(records, "grpo")]
    return "\n\n".join([scoring_speed.render(records).rstrip(), *others]) + "\n"


def render_parity(records: Sequence[Record]) -> str:
    rows = []
    for record in records:
        for name, difference in record["reward_differs_by"].items():
            cosine = {"{:.5f}": record["gradient_cosine"].get(name)}
            spread = f"{record['reward_spread']:.2f}"
            rows.append((f"{record['model']}, {name}", f"{difference:.4f}", spread, *racing.format_cells(cosine)))
    columns = ("against float32", "reward difference", "standard deviation of rewards", "cosine of gradients")
    return racing.make_table(columns, rows, records)


def render_grpo(records: Sequence[Record]) -> str:
    rows = []
    for record in records:
        cycle_s, generation_s = median(record["cycles_s"]), median(record["generation_s"])
        tokens = record["answers"] * record["settings"]["new_tokens"] / generation_s
        cells = (f"{cycle_s:.1f} s", f"{generation_s / cycle_s:.0%}", f"{tokens:,.0f}")
        memory = racing.format_cells({"{:,} MiB": record["peak_mib"]})
        rows.append((record["model"], f"{60 * _STEPS_A_CYCLE / cycle_s:.1f}", *cells, *memory))
    return racing.make_table(("grpo", "steps/min", "a cycle", "generation", "tokens/s", "peak memory"), rows, records)


if __name__ == "__main__":
    main()
