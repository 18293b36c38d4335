"""Training steps on one CUDA GPU at the real sizes: seconds, tokens per second, utilisation and peak memory.

    python -m benchmarks.gpu_training                            # 7B and 3B, head, lora and full, in bfloat16
    python -m benchmarks.gpu_training --device cpu --dtype float32 --sizes tiny --pairs 2 --steps 2 --mean-s 4

Weights are random and drawn on the device, pairs are synthetic (`synthetic_workload.py`): nothing is downloaded. It
needs TRL; `lora` needs `peft`. `gpu.py` explains how to run it without installing packages.

- `ours` is a step of `SDiaRewardTrainer` in one process: the pairs are split into micro-batches by tokens, each with a
  packed forward and backward pass.
- `trl` is one of `trl.RewardTrainer`: all dialogues of the step padded to the longest, as the processor of the
  released checkpoints makes them, in one pass.

Both: Bradley-Terry with centering, gradient clipping, fused AdamW; the audio tower is frozen and runs in each step;
gradient checkpointing and autocast are on, as in the recipes, and weights that are all trained are in float32. Every
step takes the same pairs, prepared once; the time of that is given apart. Utilisation counts the required operations
of the mode: the forward pass once for frozen weights, twice if only gradients pass through, three times for trained
weights. Recomputation by checkpointing does not count.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import datasets
import torch
from torch.nn.functional import logsigmoid
from trl import RewardConfig, RewardTrainer

from benchmarks.flops import audio_flops, text_flops
from benchmarks.gpu import GPUArguments, describe_device, matmul_rate
from benchmarks.gpu_steps import CRITERION, Clock, release_memory
from benchmarks.opponents import prepare, stock_processor
from benchmarks.racing import RESULTS, speedup, write_result
from benchmarks.speed_models import RELEASED_CHUNK_LENGTH_S, build, make_processor
from benchmarks.synthetic_workload import SyntheticDialogues
from sdiareward.checkpoint_io.adapters import keep_input_dtype
from sdiareward.common.arguments import parse_arguments
from sdiareward.scoring.batching import DialoguePreparer
from sdiareward.scoring.packed_attention import packed_attention
from sdiareward.training.batches import PairBatch, compute_packed_rewards, split_by_tokens


RESULT = RESULTS / "gpu_training.json"
MODES = ("head", "lora", "full")
# Passes over the text model that a mode must compute, in forward passes.
_TEXT_PASSES = {"head": 1, "lora": 2, "full": 3}
WAYS = ("ours", "trl")
_CENTER_REWARDS = 0.01


def main() -> None:
    """Run the benchmark from the command line."""
    args = _parse_arguments()
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    clock = Clock(device, args.limit_s)
    settings = {name: getattr(args, name) for name in ("pairs", "rounds", "batch_tokens", "mean_s", "seed")}
    record: dict[str, Any] = {"device": describe_device(device), "dtype": args.dtype, "settings": settings}
    record["matmul_flops_per_s"] = matmul_rate(clock, device, dtype)
    prepared = prepare_pairs(args.pairs, args.seed, args.mean_s, clock)
    record["preparation_s"] = prepared.seconds
    record["sizes"] = {size: {} for size in args.sizes}
    for size in args.sizes:
        for mode in args.modes:
            found: dict[str, Any] = {"left_out": "time"}
            if not clock.is_over():
                found = measure(size, mode, dtype, clock, prepared, args)
            for way in WAYS:
                if way in found:
                    rate = found["flops"] / median(found[way]["seconds"])
                    found[way]["utilisation"] = rate / record["matmul_flops_per_s"]
            record["sizes"][size][mode] = found
            write_result(args.output, **record)
    print(table(record))


@dataclass(kw_only=True)
class Arguments(GPUArguments):
    """The arguments of the command line."""

    modes: list[str] = field(
        default_factory=lambda: list(MODES), metadata={"choices": MODES, "help": "what is trained"}
    )
    pairs: int = field(default=8, metadata={"help": "pairs in a step"})
    rounds: int = field(default=3, metadata={"help": "measured steps of each contestant, after one that is not"})
    batch_tokens: int = field(default=16_384, metadata={"help": "tokens in one forward pass"})
    limit_s: float = field(default=480.0, metadata={"help": "start nothing after this number of seconds"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def _parse_arguments() -> Arguments:
    return parse_arguments((Arguments,), None, prog="python -m benchmarks.gpu_training", description=__doc__)[0]


@dataclass(frozen=True)
class Prepared:
    """Pairs of a step as each contestant takes them, on the CPU.

    Args:
        ours ([`PairBatch`]): For `compute_packed_rewards`.
        trl (`dict[str, torch.Tensor]`): Padded inputs, the chosen dialogues in the first half.
        seconds (`dict[str, float]`): Time of the preparation by contestant.
    """

    ours: PairBatch
    trl: Mapping[str, torch.Tensor]
    seconds: Mapping[str, float]


def prepare_pairs(num_pairs: int, seed: int, mean_s: float, clock: Clock) -> Prepared:
    """Prepare the same pairs for both; every size has the same processor.

    Args:
        num_pairs (`int`): Pairs of a step.
        seed (`int`): Of the dialogues.
        mean_s (`float`): Mean seconds of audio in a dialogue.
        clock (`Clock`): Measures.
    """
    processor = make_processor()
    ours_s, ours = clock.seconds(lambda: _pairs(processor, num_pairs, seed, mean_s))
    dialogues = list(SyntheticDialogues(2 * num_pairs, seed, mean_s))
    prompted = [processor.with_prompt(dialogue, CRITERION) for dialogue in (*dialogues[::2], *dialogues[1::2])]
    stock = stock_processor(processor, RELEASED_CHUNK_LENGTH_S)
    trl_s, padded = clock.seconds(lambda: prepare(stock, prompted))
    return Prepared(ours, padded, {"ours": ours_s, "trl": trl_s})


def measure(
    size: str, mode: str, dtype: torch.dtype, clock: Clock, prepared: Prepared, args: Arguments
) -> dict[str, Any]:
    """Measure the steps of one size in one mode, those of the contestants in turn.

    Args:
        size (`str`): One of `speed_models.SIZES`.
        mode (`str`): One of `MODES`.
        dtype (`torch.dtype`): Of the backbone.
        clock (`Clock`): Measures; knows the device.
        prepared ([`Prepared`]): The pairs.
        args (`Arguments`): The rest of the command line.
    """
    device = clock.device
    release_memory(device)
    weights_dtype = torch.float32 if mode == "full" else dtype
    bare, processor = build(size, seed=args.seed, device=str(device), dtype=weights_dtype)
    model = _trainable(bare, mode)
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-5, weight_decay=0.05, fused=device.type == "cuda")
    num_trained = sum(weights.numel() for weights in trained)
    with tempfile.TemporaryDirectory() as folder:
        trainer = _make_trainer(model, processor, folder, args.pairs)
        steps = {
            "ours": partial(_step, model, prepared.ours, optimizer, args.batch_tokens),
            "trl": partial(_plain_step, trainer, prepared.trl, optimizer, device),
        }
        try:
            ways = _time_steps(steps, optimizer, clock, args.rounds)
        except torch.OutOfMemoryError:
            return {"left_out": "memory"}
    num_tokens = sum(prepared.ours.lengths_tokens)
    for found in ways.values():
        found["tokens_per_second"] = num_tokens / median(found["seconds"])
    return {
        "million_parameters": round(sum(weights.numel() for weights in bare.parameters()) / 1e6, 1),
        "million_trained": round(num_trained / 1e6, 3),
        "flops": _flops(bare.config, prepared.ours, mode),
        **ways,
        "speedup": speedup(ways["trl"]["seconds"], ways["ours"]["seconds"]),
    }


def _time_steps(
    steps: Mapping[str, Callable[[], float]], optimizer: torch.optim.Optimizer, clock: Clock, rounds: int
) -> dict[str, dict[str, Any]]:
    """Time steps in turn; the losses are those of the same weights, before any update."""
    found: dict[str, dict[str, Any]] = {}
    (group,) = optimizer.param_groups
    rates = {name: group[name] for name in ("lr", "weight_decay")}
    group.update(dict.fromkeys(rates, 0.0))
    for name, step in steps.items():
        found[name] = {"loss": step(), "seconds": []}
    group.update(rates)
    for _ in range(rounds):
        for name, step in steps.items():
            if clock.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            found[name]["seconds"].append(clock.seconds(step)[0])
            if clock.device.type == "cuda":
                found[name]["peak_bytes"] = torch.cuda.max_memory_allocated()
    return found


class _Trainer(RewardTrainer):
    """TRL's trainer with pairs that are prepared already."""

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        return dataset


def _make_trainer(model: Any, processor: Any, folder: str, num_pairs: int) -> RewardTrainer:
    options = RewardConfig(
        output_dir=folder,
        per_device_train_batch_size=num_pairs,
        center_rewards_coefficient=_CENTER_REWARDS,
        gradient_checkpointing=False,
        bf16=False,
        report_to="none",
        use_cpu=next(model.parameters()).device.type == "cpu",
    )
    rows = datasets.Dataset.from_dict({"pair": list(range(num_pairs))})
    return _Trainer(model, options, processing_class=processor.tokenizer, train_dataset=rows)


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


def _pairs(processor: Any, num_pairs: int, seed: int, mean_s: float) -> PairBatch:
    """Return the pairs of a step, read and ready."""
    dialogues = SyntheticDialogues(2 * num_pairs, seed, mean_s)
    batch = DialoguePreparer(processor)(range(len(dialogues)), dialogues, [CRITERION] * len(dialogues))
    lengths = [sum(len(message.input_ids) for message in messages) for messages in batch.dialogues]
    both = [one + other for one, other in zip(lengths[::2], lengths[1::2], strict=True)]
    order = sorted(range(num_pairs), key=lambda pair: -both[pair])
    return PairBatch(
        [str(pair) for pair in order],
        [both[pair] for pair in order],
        [True] * num_pairs,
        [batch.dialogues[2 * pair] for pair in order],
        [batch.dialogues[2 * pair + 1] for pair in order],
        batch.mels,
    )


def _step(model: Any, pairs: PairBatch, optimizer: torch.optim.Optimizer, batch_tokens: int) -> float:
    """Do one step of ours and return its loss."""
    total = 0.0
    bare = model.get_base_model() if hasattr(model, "get_base_model") else model
    is_autocast = bare.device.type == "cuda"
    with packed_attention(bare), _autocast(bare), keep_input_dtype(model, is_autocast=is_autocast):
        for first, stop in split_by_tokens(pairs.lengths_tokens, batch_tokens, 0):
            inputs = pairs.select(first, stop).make_inputs()
            chosen, rejected = model(compute=compute_packed_rewards, **inputs).logits.squeeze(-1).chunk(2)
            loss = -logsigmoid(chosen - rejected).sum() + _CENTER_REWARDS * ((chosen + rejected) ** 2).sum()
            (loss / len(pairs)).backward()
            total += loss.item() / len(pairs)
    _update(optimizer)
    return total


def _plain_step(
    trainer: Any, inputs: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer, device: torch.device
) -> float:
    """Do one step of TRL's and return its loss."""
    on_device = {name: tensor.to(device) for name, tensor in inputs.items()}
    on_device["input_features"] = on_device["input_features"].to(next(trainer.model.parameters()).dtype)
    with _autocast(trainer.model):
        loss = trainer.compute_loss(trainer.model, on_device)
    loss.backward()
    _update(optimizer)
    return loss.item()


def _autocast(model: Any) -> torch.autocast:
    """Compute in bfloat16 on a GPU, as the trainers do."""
    return torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda")


def _update(optimizer: torch.optim.Optimizer) -> None:
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
    """Render the results as text, one line per size, mode and contestant."""
    lines = [f"{'':<16}{'s a step':>10}{'tokens/s':>12}{'utilisation':>13}{'peak GiB':>10}{'loss':>9}"]
    for size, modes in record["sizes"].items():
        for mode, found in modes.items():
            if "left_out" in found:
                lines.append(f"{size + ' ' + mode:<16} left out for lack of {found['left_out']}")
                continue
            for way in WAYS:
                run = found[way]
                peak = f"{run['peak_bytes'] / 2**30:.1f}" if "peak_bytes" in run else "-"
                speed = f"{median(run['seconds']):>10.3f}{run['tokens_per_second']:>12.0f}"
                name = f"{size} {mode} {way}"
                lines.append(f"{name:<16}{speed}{run['utilisation']:>13.1%}{peak:>10}{run['loss']:>9.4f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
