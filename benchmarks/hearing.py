"""What models hear: how much likelier the words of a dialogue are with its sound, beside the words of another one.

    sdiareward build --config configs/data_transcripts.yaml
    python -m benchmarks.hearing --dataset runs/transcripts/sdiareward --models runs/small_alignment small

Pairs of the kind `transcript` have the same recordings on both sides, and the words of another dialogue on one. The
language model inside a checkpoint says, without any reward, how much the sound of a side adds to the likelihood of its
words, if it comes before them: the mean over tokens of log p(words | sound) less log p(words). The reward of the
checkpoint, with both in the order that it is made for, stands beside it. Where the first orders more pairs than the
second, the reward does not use what can be heard.

Two dialogues exchange their words in these pairs. A reward that likes the words of one better orders one pair of the
two, without hearing anything. So there is the order of couples: one is right if the rewards of both dialogues with
their own words are together above those with the other's. What the reward makes of words, or of sounds, by themselves
is on both sides of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from benchmarks import racing
from sdiareward import Scorer
from sdiareward.common.arguments import parse_arguments
from sdiareward.dataset_builder.pairing.families import OTHER_TRANSCRIPT
from sdiareward.esdr_accuracy.pairwise import wilson_interval
from sdiareward.messages_sdiareward import list_items
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.messages import turns_to_messages
from sdiareward.pairs.schema import JOINT, SIDES


RESULT = racing.RESULTS / "hearing.json"


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    dataset: Path = field(metadata={"help": "folder of pairs, of which those of the kind `transcript` are used"})
    models: list[str] = field(metadata={"help": "checkpoints with a language model inside"})
    split: str = field(default="test", metadata={"help": "split of the pairs"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def read_dialogues(dataset: Path, split: str) -> list[dict[str, list[dict[str, Any]]]]:
    """Return both sides of each pair, every turn with its sound and its words."""
    pairs = load_pairs(dataset, split, name=JOINT).filter(lambda row: row["secondary"] == OTHER_TRANSCRIPT)
    return [{side: turns_to_messages(pair[side]) for side in SIDES} for pair in pairs]


def put_sound_first(dialogue: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a dialogue with the sound of each turn before its words, as the projection is trained."""
    return [
        {"role": message["role"], "content": sorted(message["content"], key=lambda item: item["type"] == "text")}
        for message in dialogue
    ]


def couple(pairs: Sequence[Mapping[str, Sequence[Mapping[str, Any]]]]) -> list[tuple[int, int]]:
    """Return the numbers of pairs two by two: each has the other's words on its rejected side."""
    own, lent = ([tuple(map(_read_words, pair[side])) for pair in pairs] for side in SIDES)
    numbers = {words: number for number, words in enumerate(own)}
    partners = [numbers.get(words) for words in lent]
    return [
        (number, other)
        for number, other in enumerate(partners)
        if other is not None and number < other and partners[other] == number
    ]


def _read_words(message: Mapping[str, Any]) -> str:
    return " ".join(item["text"] for item in message["content"] if item["type"] == "text")


def without_sound(dialogue: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the words of a dialogue alone."""
    return [
        {"role": message["role"], "content": [item for item in list_items(message) if item["type"] == "text"]}
        for message in dialogue
    ]


@torch.inference_mode()
def compute_likelihoods(scorer: Scorer, dialogue: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Return log p of each token of the turns that is no marker, given all before it."""
    inputs = scorer.processor([dialogue], criterion=JOINT)
    hidden = scorer.model(**inputs, output_hidden_states=True).hidden_states[-1][0].float()
    ids = inputs["input_ids"][0]
    tokenizer: Any = scorer.processor.tokenizer
    markers = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    # The first turn is the prompt.
    begin = ids.tolist().index(tokenizer.convert_tokens_to_ids("<|im_end|>"))
    places = torch.tensor([place for place in range(begin, len(ids)) if int(ids[place]) not in markers])
    logits = hidden[places - 1] @ scorer.model.get_input_embeddings().weight.float().T
    return logits.log_softmax(-1)[torch.arange(len(places)), ids[places]].numpy()


def measure_sound(scorer: Scorer, dialogue: Sequence[Mapping[str, Any]]) -> float:
    """Return by how many nats a token the sound of a dialogue makes its words likelier."""
    own, alone = (compute_likelihoods(scorer, form(dialogue)) for form in (put_sound_first, without_sound))
    return float((own - alone).mean())


def measure(name: str, pairs: Sequence[Mapping[str, Any]], couples: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return the shares of the pairs that are ordered by what the sound adds, and by the reward; of couples, too."""
    scorer = Scorer.from_pretrained(name)
    added = np.array([[measure_sound(scorer, pair[side]) for side in SIDES] for pair in tqdm(pairs, desc=name)])
    sides = [pair[side] for pair in pairs for side in SIDES]
    rewards = np.array(scorer.score(sides, criterion=JOINT)).reshape(-1, len(SIDES))
    # The head of a model that learned no reward gives zeros.
    has_reward = bool(np.ptp(rewards))
    return {
        "own_words_nats": round(float(added[:, 0].mean()), 4),
        "other_words_nats": round(float(added[:, 1].mean()), 4),
        "by_sound": compute_share(added),
        "by_reward": compute_share(rewards) if has_reward else None,
        "by_couples": measure_couples(rewards, couples) if has_reward and couples else None,
    }


def measure_couples(rewards: np.ndarray, couples: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return the share of couples whose own words have more reward together; `rewards` has shape `(num_pairs, 2)`."""
    return compute_share(rewards[np.array(couples)].sum(axis=1))


def compute_share(values: np.ndarray) -> dict[str, Any]:
    """Return the share of rows whose first value is the larger one, with Wilson's interval."""
    share = float((values[:, 0] > values[:, 1]).mean())
    return {"accuracy": share, "interval": wilson_interval(share, len(values))}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), argv, prog="python -m benchmarks.hearing", description=__doc__)
    pairs = read_dialogues(args.dataset, args.split)
    couples = couple(pairs)
    found = {Path(name).name: measure(name, pairs, couples) for name in args.models}
    racing.write_result(args.output, split=args.split, num_pairs=len(pairs), num_couples=len(couples), models=found)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
