"""Training steps on one CUDA GPU at the real sizes: seconds, tokens per second, utilisation and peak memory.

    python -m benchmarks.gpu_training                            # 3B and 7B, head, lora and full, in bfloat16
    python -m benchmarks.gpu_training --device cpu --dtype float32 --sizes tiny --pairs 2 --steps 2 --mean-s 4

Weights are random and drawn on the device, pairs are synthetic (`synthetic_workload.py`): nothing is downloaded. It
needs neither TRL nor accelerate; `lora` needs `peft`. `gpu.py` explains how to run it without installing packages.

A step is that of `SDiaRewardTrainer` in one process: the pairs are split into micro-batches by tokens, each with a
packed forward and backward pass, Bradley-Terry with centering, gradient clipping, fused AdamW. The audio tower is
frozen and runs in each step; gradient checkpointing is on, as in the recipes. Utilisation counts the required
operations of the mode: the forward pass once for frozen weights, twice if only gradients pass through, three times for
trained weights. Recomputation by checkpointing does not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.nn.functional import logsigmoid

from benchmarks.flops import audio_flops, text_flops
from benchmarks.gpu import describe_device, matmul_rate
from benchmarks.gpu_steps import Clock
from benchmarks.racing import RESULTS, write_result
from benchmarks.speed_models import SIZES, build
from benchmarks.synthetic_workload import MEAN_DIALOGUE_S, SyntheticDialogues
from sdiareward.common.arguments import parse_arguments
from sdiareward.scoring.batching import DialoguePreparer
from sdiareward.scoring.packed_attention import packed_attention
from sdiareward.training.batches import PairBatch, compute_packed_rewards, split_by_tokens


RESULT = RESULTS / "gpu_training.json"
MODES = ("head", "lora", "full")
# Passes over the text model that a mode must compute, in forward passes.
_TEXT_PASSES = {"head": 1, "lora": 2, "full": 3}
_CENTER_REWARDS = 0.01


def main() -> None:
    """Run the benchmark from the command line."""
    args = _parse_arguments()
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    clock = Clock(device, args.limit_s)
    settings = {name: getattr(args, name) for name in ("pairs", "steps", "batch_tokens", "mean_s", "seed")}
    record: dict[str, Any] = {"device": describe_device(device), "dtype": args.dtype, "settings": settings}
    record["matmul_flops_per_s"] = matmul_rate(clock, device, dtype)
    record["sizes"] = {size: {} for size in args.sizes}
    for size in args.sizes:
        for mode in args.modes:
            found: dict[str, Any] = {"left_out": True}
            if not clock.is_over():
                found = measure(size, mode, device, dtype, clock, args)
            if "seconds" in found:
                found["utilisation"] = found["flops"] / median(found["seconds"]) / record["matmul_flops_per_s"]
            record["sizes"][size][mode] = found
            write_result(args.output, **record)
    print(table(record))


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    sizes: list[str] = field(
        default_factory=lambda: ["3b", "7b"], metadata={"choices": list(SIZES), "help": "sizes of the model"}
    )
    modes: list[str] = field(
        default_factory=lambda: list(MODES), metadata={"choices": MODES, "help": "what is trained"}
    )
    device: str = field(default="cuda", metadata={"help": "device"})
    dtype: str = field(
        default="bfloat16", metadata={"choices": ("bfloat16", "float32"), "help": "dtype of the backbone"}
    )
    pairs: int = field(default=8, metadata={"help": "pairs in a step"})
    steps: int = field(default=5, metadata={"help": "measured steps, after one that is not"})
    batch_tokens: int = field(default=16_384, metadata={"help": "tokens in one forward pass"})
    mean_s: float = field(default=MEAN_DIALOGUE_S, metadata={"help": "seconds of audio in a dialogue"})
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn"})
    limit_s: float = field(default=480.0, metadata={"help": "start nothing after this number of seconds"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def _parse_arguments() -> Arguments:
    return parse_arguments((Arguments,), None, prog="python -m benchmarks.gpu_training", description=__doc__)[0]


def measure(
    size: str, mode: str, device: torch.device, dtype: torch.dtype, clock: Clock, args: Arguments
) -> dict[str, Any]:
    """Measure the steps of one size in one mode.

    Args:
        size (`str`): One of `speed_models.SIZES`.
        mode (`str`): One of `MODES`.
        device (`torch.device`): Where the model is.
        dtype (`torch.dtype`): Of the backbone.
        clock (`Clock`): Measures.
        args (`Arguments`): The rest of the command line.
    """
    model, processor = build(size, seed=args.seed, device=str(device), dtype=dtype)
    batches = [_pairs(processor, args, step) for step in range(args.steps + 1)]
    bare = model
    model = _trainable(model, mode)
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-5, weight_decay=0.05, fused=device.type == "cuda")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with packed_attention(bare):
        seconds = [clock.seconds(lambda: _step(model, batch, optimizer, args.batch_tokens))[0] for batch in batches]  # noqa: B023 (called at once)
    flops = [_flops(bare.config, batch, mode) for batch in batches]
    found = {
        "million_parameters": round(sum(weights.numel() for weights in bare.parameters()) / 1e6, 1),
        "million_trained": round(sum(weights.numel() for weights in trained) / 1e6, 3),
        "seconds": seconds[1:],
        "tokens_per_second": sum(sum(batch.lengths_tokens) for batch in batches[1:]) / sum(seconds[1:]),
        "flops": median(flops[1:]),
    }
    if device.type == "cuda":
        found["peak_bytes"] = torch.cuda.max_memory_allocated()
        del model, bare, optimizer, trained
        torch.cuda.empty_cache()
    return found


def _trainable(model: Any, mode: str) -> Any:
    """Freeze the weights that the mode does not train; checkpoint the activations of the others."""
    if mode == "head":
        model.freeze_backbone()
        return model
    model.gradient_checkpointing_enable({"use_reentrant": False})
    if mode == "full":
        model.freeze_audio_tower()
        return model
    from sdiareward.checkpoint_io.adapters import add_adapters

    model.model.audio_tower.requires_grad_(False)
    model.enable_input_require_grads()
    return add_adapters(model, r=16, alpha=32)


def _pairs(processor: Any, args: Arguments, step: int) -> PairBatch:
    """Return the pairs of a step, read and ready."""
    dialogues = SyntheticDialogues(2 * args.pairs, args.seed + step, args.mean_s)
    batch = DialoguePreparer(processor)(range(len(dialogues)), dialogues, ["joint"] * len(dialogues))
    lengths = [sum(len(message.input_ids) for message in messages) for messages in batch.dialogues]
    both = [one + other for one, other in zip(lengths[::2], lengths[1::2], strict=True)]
    order = sorted(range(args.pairs), key=lambda pair: -both[pair])
    return PairBatch(
        [str(pair) for pair in order],
        [both[pair] for pair in order],
        [True] * args.pairs,
        [batch.dialogues[2 * pair] for pair in order],
        [batch.dialogues[2 * pair + 1] for pair in order],
        batch.mels,
    )


def _step(model: Any, pairs: PairBatch, optimizer: torch.optim.Optimizer, batch_tokens: int) -> None:
    for first, stop in split_by_tokens(pairs.lengths_tokens, batch_tokens, 0):
        inputs = pairs.select(first, stop).make_inputs()
        chosen, rejected = model(compute=compute_packed_rewards, **inputs).logits.squeeze(-1).chunk(2)
        loss = -logsigmoid(chosen - rejected).sum() + _CENTER_REWARDS * ((chosen + rejected) ** 2).sum()
        (loss / len(pairs)).backward()
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    optimizer.zero_grad()


def _flops(config: Any, pairs: PairBatch, mode: str) -> int:
    """Count the operations of a step; the system prompt counts once per dialogue, although micro-batches share it."""
    text = audio = 0
    for messages in pairs.chosen + pairs.rejected:
        num_tokens = sum(len(message.input_ids) for message in messages)
        text += text_flops(config.text_config, num_tokens)
        digests = {digest for message in messages for digest in message.clips}
        audio += sum(audio_flops(config.audio_config, pairs.clips[digest].shape[1]) for digest in digests)
    return _TEXT_PASSES[mode] * text + audio


def table(record: Mapping[str, Any]) -> str:
    """Render the results as text, one line per size and mode."""
    lines = [f"{'':<10}{'s a step':>10}{'tokens/s':>12}{'utilisation':>13}{'peak GiB':>10}"]
    for size, modes in record["sizes"].items():
        for mode, found in modes.items():
            if "seconds" not in found:
                lines.append(f"{size + ' ' + mode:<10} left out for lack of time")
                continue
            peak = f"{found['peak_bytes'] / 2**30:.1f}" if "peak_bytes" in found else "-"
            speed = f"{median(found['seconds']):>10.3f}{found['tokens_per_second']:>12.0f}"
            lines.append(f"{size + ' ' + mode:<10}{speed}{found['utilisation']:>13.1%}{peak:>10}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
