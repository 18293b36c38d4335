"""Whether the fast paths of a CUDA GPU give the rewards and the gradients of the plain ones, at the real sizes.

    python -m benchmarks.gpu_parity                             # 7B and 3B in bfloat16
    python -m benchmarks.gpu_parity --device cpu --dtype float32 --sizes tiny --dialogues 2 --mean-s 4

Weights are random and drawn on the device, dialogues are synthetic (`synthetic_workload.py`). `gpu.py` explains how to
run it without installing packages. Rewards of a packed batch are compared with those of each dialogue alone and with
the library's SDPA attention, one dialogue after the other; and all of them with the same weights in float32, because
two exact ways differ by rounding in bfloat16. Gradients are those of the sum of the rewards with respect to the first
layer's attention, through all layers above it. (Those of a pair's difference nearly cancel in a random model.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.gpu import GPUArguments, describe_device, table
from benchmarks.gpu_steps import CRITERION, largest_difference, release_memory
from benchmarks.racing import RESULTS, write_result
from benchmarks.speed_models import build
from benchmarks.synthetic_workload import SyntheticDialogues
from sdiareward.common.arguments import parse_arguments
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.processing_sdiareward import SDiaRewardProcessor
from sdiareward.scoring import packed_attention
from sdiareward.scoring.batching import DialoguePreparer
from sdiareward.scoring.packed_forward import encode_clips
from sdiareward.scoring.scorer import Scorer
from sdiareward.training.batches import compute_packed_rewards


RESULT = RESULTS / "gpu_parity.json"
_DIALOGUES_OF_GRADIENTS = 2


@dataclass(kw_only=True)
class Arguments(GPUArguments):
    """The arguments of the command line."""

    dialogues: int = field(default=4, metadata={"help": "dialogues that are scored in every way"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def main() -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m benchmarks.gpu_parity", description=__doc__)
    device = torch.device(args.device)
    settings = {name: getattr(args, name) for name in ("dialogues", "mean_s", "seed")}
    record: dict[str, Any] = {
        "device": describe_device(device),
        "dtype": args.dtype,
        "settings": settings,
        "sizes": {},
    }
    dialogues = list(SyntheticDialogues(args.dialogues, args.seed, args.mean_s))
    for size in args.sizes:
        model, processor = build(size, seed=args.seed, device=args.device, dtype=getattr(torch, args.dtype))
        record["sizes"][size] = check(model, processor, dialogues)
        write_result(args.output, **record)
        del model
        release_memory(device)
    print(table(record))


def check(model: SDiaRewardModel, processor: SDiaRewardProcessor, dialogues: Sequence[Any]) -> dict[str, Any]:
    """Compare the ways to compute a reward; differences are the largest of all dialogues, cosines the smallest.

    Args:
        model ([`SDiaRewardModel`]): On its device, in its dtype.
        processor ([`SDiaRewardProcessor`]): Its processor.
        dialogues (`Sequence`): Dialogues to score.
    """
    exact = deepcopy(model).float()
    rewards = {
        "packed": Scorer(model, processor).score(dialogues, CRITERION),
        "alone": [Scorer(model, processor).score([dialogue], CRITERION)[0] for dialogue in dialogues],
        "sdpa": _one_by_one(model, processor, dialogues),
        "float32": _one_by_one(exact, processor, dialogues),
    }
    vectors = {
        "packed": _encoded(model, processor, dialogues),
        "sdpa": _encoded_by_library(model, processor, dialogues),
        "float32": _encoded_by_library(exact, processor, dialogues),
    }
    gradients = {"packed": find_gradients(model, processor, dialogues)}
    with _without_varlen():
        gradients["sdpa"] = find_gradients(model, processor, dialogues)
        gradients["float32"] = find_gradients(exact, processor, dialogues)
    expected = torch.tensor(rewards["float32"])
    return {
        "uses_varlen": packed_attention.has_varlen(model.device.type, model.dtype),
        "reward_size": expected.abs().mean().item(),
        "reward_spread": expected.std(correction=0).item(),
        "reward_differs_by": _compare(rewards, largest_difference),
        "vectors_cosine": _compare(vectors, _smallest_cosine),
        "gradient_cosine": _compare(gradients, _smallest_cosine),
    }


def _compare(found: Mapping[str, Any], compare: Any) -> dict[str, float]:
    """Compare the packed way with all others, and the library's way with float32."""
    pairs = [("packed", other) for other in found if other != "packed"] + [("sdpa", "float32")]
    return {f"{one} and {other}": compare(found[one], found[other]) for one, other in pairs}


def find_gradients(model: SDiaRewardModel, processor: SDiaRewardProcessor, dialogues: Sequence[Any]) -> torch.Tensor:
    """Return the gradients of a packed batch of the first dialogues, shape `(1, num_weights)`.

    Args:
        model ([`SDiaRewardModel`]): The model.
        processor ([`SDiaRewardProcessor`]): Its processor.
        dialogues (`Sequence`): Dialogues; their system prompt is shared.
    """
    chosen = dialogues[:_DIALOGUES_OF_GRADIENTS]
    batch = DialoguePreparer(processor)(range(len(chosen)), chosen, [CRITERION] * len(chosen))
    attention = list(model.model.language_model.layers[0].self_attn.parameters())
    with packed_attention.packed_attention(model):
        rewards = compute_packed_rewards(model, batch.dialogues, batch.mels).logits
        gradients = torch.autograd.grad(rewards.sum(), attention)
    return torch.cat([gradient.flatten() for gradient in gradients])[None].float()


@contextmanager
def _without_varlen() -> Iterator[None]:
    with patch.object(packed_attention, "has_varlen", lambda *_: False):
        yield


@torch.inference_mode()
def _one_by_one(model: SDiaRewardModel, processor: SDiaRewardProcessor, dialogues: Sequence[Any]) -> list[float]:
    """Return the result of the model's own `forward` with the library's attention."""
    inputs = (processor(dialogue, criterion=CRITERION).to(model.device) for dialogue in dialogues)
    return [model(**each).logits.item() for each in inputs]


@torch.inference_mode()
def _encoded(model: SDiaRewardModel, processor: SDiaRewardProcessor, dialogues: Sequence[Any]) -> torch.Tensor:
    mels = []
    for features, mask in _mels(processor, dialogues):
        mels += [torch.from_numpy(mel[:, :frames]) for mel, frames in zip(features, mask.sum(axis=1), strict=True)]
    return torch.cat(encode_clips(model, mels)).float()


@torch.inference_mode()
def _encoded_by_library(
    model: SDiaRewardModel, processor: SDiaRewardProcessor, dialogues: Sequence[Any]
) -> torch.Tensor:
    encoded = []
    for arrays in _mels(processor, dialogues):
        encoded.append(model.encode_audio(*(torch.from_numpy(array).to(model.device) for array in arrays)))
    return torch.cat(encoded).float()


def _mels(processor: SDiaRewardProcessor, dialogues: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    for dialogue in dialogues:
        yield processor.log_mel(processor.prepare(dialogue, CRITERION).clips)


def _smallest_cosine(found: torch.Tensor, expected: torch.Tensor) -> float:
    return torch.nn.functional.cosine_similarity(found, expected, dim=-1).min().item()


if __name__ == "__main__":
    main()
