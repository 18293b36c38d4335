"""Tell actors and a synthesizer that were not heard from each other: what do copies in other voices add?

    python -m benchmarks.other_voices --synthesizer kokoro \
        --datasets runs/open/sdiareward runs/steel_sky/sdiareward runs/kokoro/sdiareward

A probe, one weight for each number of the mean vector that a model's audio tower makes of a side, learns to put
recordings above synthetic speech (Bradley-Terry). Each source that has pairs with the synthesizer is left out in turn,
and the synthesizer always: the probe learns from the pairs of the other sources and synthesizers, and is asked about
the pairs of that source with that synthesizer. It learns from the pairs alone, from the pairs and copies of them
through channels (`train --augmentations`), and from the pairs and copies of which other voices speak a part
(`train --voice_share`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from tqdm import tqdm

from benchmarks import racing
from benchmarks.hearing import compute_share
from sdiareward import Scorer
from sdiareward.common.arguments import parse_arguments
from sdiareward.common.package_files import NANO
from sdiareward.evaluation.baselines import fit_score
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.messages import turns_to_messages
from sdiareward.pairs.sampling import draw_rows
from sdiareward.pairs.schema import SIDES
from sdiareward.scoring.batching import DialoguePreparer
from sdiareward.scoring.packed_forward import encode_clips
from sdiareward.training.augmentation import AugmentationSettings, AugmentedPairs


RESULT = racing.RESULTS / "other_voices.json"
# What the probe learns from beside the pairs, by the name of a column: the share of the copies with another voice.
_VOICE_SHARES = {"pairs": None, "channels": 0.0, "voices": 0.5}
_CRITERION = "modality"
_COLUMNS = ["chosen", "rejected", "pair_id", "criterion", "source", "synthesizer"]


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    datasets: list[str] = field(metadata={"help": "folders of pairs, of whose training split `modality` is used"})
    synthesizer: str = field(metadata={"help": "synthesizer that is left out"})
    model: str = field(default=str(NANO), metadata={"help": "model whose audio tower is used"})
    num_pairs: int = field(default=120, metadata={"help": "pairs of each source to learn from, and to be asked about"})
    copies: int = field(default=2, metadata={"help": "copies of each pair"})
    seed: int = field(default=0, metadata={"help": "seed of the draws"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), argv, prog="python -m benchmarks.other_voices", description=__doc__)
    scorer = Scorer.from_pretrained(args.model)
    pairs = datasets.concatenate_datasets(
        [load_pairs(folder, "train", name=_CRITERION).select_columns(_COLUMNS) for folder in args.datasets]
    )
    found = measure(scorer, pairs, args)
    settings = {name: getattr(args, name) for name in ("synthesizer", "num_pairs", "copies", "seed")}
    racing.write_result(args.output, settings=settings, model=Path(args.model).name, sources=found)
    print(json.dumps(found, indent=2))


def measure(scorer: Scorer, pairs: datasets.Dataset, args: Arguments) -> dict[str, dict[str, Any]]:
    """Return what the probe orders without having heard a source and the synthesizer, by the name of the source."""
    sources, synthesizers = np.array(pairs["source"]), np.array(pairs["synthesizer"])
    is_left_out = synthesizers == args.synthesizer
    vectors, asked = {}, {}
    for source in sorted(set(sources)):
        if (rows := _draw(np.flatnonzero((sources == source) & ~is_left_out), args)).size:
            vectors[source] = {name: _learn_from(scorer, pairs.select(rows), name, args) for name in _VOICE_SHARES}
        if (rows := _draw(np.flatnonzero((sources == source) & is_left_out), args)).size:
            asked[source] = compute_vectors(scorer, pairs.select(rows))
    if not asked or len(vectors) < 2:
        raise SystemExit(
            f"pairs of two sources, and pairs of {args.synthesizer}, are needed; found {sorted(vectors)}."
        )
    found = {}
    for source, sides in asked.items():
        others = [each for other, each in vectors.items() if other != source]
        row: dict[str, Any] = {"num_pairs": len(sides), "num_learned": sum(len(each["pairs"]) for each in others)}
        for name in _VOICE_SHARES:
            learned = np.concatenate([each[name] for each in others])
            score: Callable[[np.ndarray], np.ndarray] = fit_score(learned[:, 0], learned[:, 1])
            row[name] = compute_share(np.stack([score(sides[:, 0]), score(sides[:, 1])], axis=1))
        found[source] = row
    return found


def _draw(rows: np.ndarray, args: Arguments) -> np.ndarray:
    return rows[draw_rows(len(rows), args.num_pairs, args.seed)]


def _learn_from(scorer: Scorer, pairs: datasets.Dataset, name: str, args: Arguments) -> np.ndarray:
    """Return the vectors of the pairs, with their copies where the column has any."""
    share = _VOICE_SHARES[name]
    if share is None:
        return compute_vectors(scorer, pairs)
    settings = AugmentationSettings(
        ["channel"], augmented_copies=args.copies, augment_sides="each", voice_share=share, seed=args.seed
    )
    return compute_vectors(scorer, AugmentedPairs(pairs, settings, scorer.processor.max_turn_s))


@torch.inference_mode()
def compute_vectors(scorer: Scorer, rows: Any) -> np.ndarray:
    """Return the mean vector that the audio tower makes of each side, shape `(num_pairs, 2, size)`."""
    preparer, vectors = DialoguePreparer(scorer.processor), []
    for number in tqdm(range(len(rows)), "pairs", unit="pair"):
        dialogues = [turns_to_messages(rows[number][side]) for side in SIDES]
        batch = preparer(range(len(SIDES)), dialogues, [_CRITERION] * len(SIDES))
        digests = list(batch.mels)
        encoded = dict(zip(digests, encode_clips(scorer.model, [batch.mels[each] for each in digests]), strict=True))
        for messages in batch.dialogues:
            heard = [encoded[digest] for message in messages for digest in message.clips]
            vectors.append(torch.cat(heard).mean(dim=0).float().numpy())
    return np.stack(vectors).reshape(len(rows), len(SIDES), -1)


if __name__ == "__main__":
    main()
