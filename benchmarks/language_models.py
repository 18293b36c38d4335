"""What language models know of recorded conversations before any training: is it their size that limits `small`?

    python -m benchmarks.language_models --dataset runs/open/sdiareward --split train --limit 240 \
        --models smollm2-135m.gguf gemma-3-270m.gguf qwen2.5-coder-0.5b.gguf

The words of the pairs of `context` whose sides are recordings. For each answer a model says how much likelier the
turns before make it: log p(answer | turns before) less log p(answer). The sum over the answers is a dialogue's score.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks import racing
from benchmarks.hearing import compute_share
from benchmarks.words_alone import group_rows, is_recorded_conversation
from sdiareward.checkpoint_io.small import locate_language_model
from sdiareward.common.arguments import parse_arguments
from sdiareward.dataset_builder.pairing.families import OTHER_TRANSCRIPT
from sdiareward.pairs.labels import describe_pairs
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.sampling import sample_rows
from sdiareward.pairs.schema import JOINT, SIDES


RESULT = racing.RESULTS / "language_models.json"
# Written out for models with and without a chat template alike.
_TURN = "{role}: {text}\n"


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    dataset: Path = field(metadata={"help": "folder of pairs, of which `joint` is used"})
    models: list[str] = field(metadata={"help": "language models: GGUF files, folders or Hub ids"})
    split: str = field(default="train", metadata={"help": "split of the pairs"})
    limit: int = field(default=240, metadata={"help": "number of pairs, drawn by a seed"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def is_used(label: Mapping[str, Any]) -> bool:
    """Tell whether a pair is of recorded conversations, and differs in what is answered."""
    return is_recorded_conversation(label) and label["secondary"] not in (OTHER_TRANSCRIPT, "repetition")


class LanguageModel:
    """A causal language model in bfloat16 that says how likely turns are."""

    def __init__(self, source: str) -> None:
        place, options = locate_language_model(source)
        self.tokenizer = AutoTokenizer.from_pretrained(place, **options)
        self.model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.bfloat16, **options).eval()
        self._alone: dict[str, float] = {}

    @torch.inference_mode()
    def compute_likelihood(self, before: str, text: str) -> float:
        """Return log p(text | before), in nats."""
        ids = [self.tokenizer(part, add_special_tokens=False)["input_ids"] for part in (before, text)]
        tokens = torch.tensor([ids[0] + ids[1]])
        logits = self.model(input_ids=tokens, logits_to_keep=len(ids[1]) + 1).logits[0, :-1].float()
        return float(logits.log_softmax(-1).gather(1, tokens[0, len(ids[0]) :, None]).sum())

    def compute_gain(self, turns: Sequence[Mapping[str, Any]]) -> float:
        """Return by how many nats the turns before make the answers of a dialogue likelier."""
        gain, before, opening = 0.0, "", _TURN.format(role="assistant", text="").strip()
        for turn in turns:
            if turn["role"] == "assistant":
                text = " " + turn["text"]
                if text not in self._alone:
                    self._alone[text] = self.compute_likelihood(opening, text)
                gain += self.compute_likelihood(before + opening, text) - self._alone[text]
            before += _TURN.format(**turn)
        return gain


def measure(compute_gain: Callable[[Any], float], pairs: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Return the shares of the pairs whose chosen side has the higher score, by kind and of all."""
    gains = np.array([[compute_gain(pair[side]) for side in SIDES] for pair in tqdm(pairs, desc=name)])
    groups = group_rows(pairs)
    return {group: {"num_pairs": len(rows), **compute_share(gains[rows])} for group, rows in groups.items()}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), argv, prog="python -m benchmarks.language_models", description=__doc__)
    pairs = load_pairs(args.dataset, args.split, name=JOINT).filter(is_used)
    pairs = pairs.select(sample_rows(describe_pairs(pairs), args.limit))
    found = {}
    for source in args.models:
        judge, name = LanguageModel(source), Path(source).stem
        found[name] = {"parameters": judge.model.num_parameters(), "kinds": measure(judge.compute_gain, pairs, name)}
    racing.write_result(args.output, split=args.split, num_pairs=len(pairs), models=found)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
