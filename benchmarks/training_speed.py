"""Training throughput on a CPU against plain TRL, with the same pairs in every step and the same losses.

    python -m benchmarks.training_speed
    python -m benchmarks.training_speed --episodes 2 --steps 2 --rounds 1    # a quick look

Contestants train the nano model (its whole text model, the audio tower frozen) on pairs built from the bundled sample:

- `plain`: `trl.RewardTrainer` with a collator of `Qwen2_5OmniProcessor`: dialogues of a step are padded to the
  longest, clips to nano's own 30 s.
- `plain_300_s`: the same with clips padded to 300 s, as by the preprocessor of all released checkpoints.
- `ours_running_tower`: `SDiaRewardTrainer`; the frozen audio tower runs in each step, as in a recipe of one epoch.
- `ours`: the same with the tower's output precomputed, as in a recipe of several epochs. `first_epoch_speedup`
  includes the time of the precomputation.

A speed-up is the median over rounds of the quotient of the two times of a round. Losses must agree.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import TrainerCallback
from trl import RewardConfig, RewardTrainer

from benchmarks import racing
from benchmarks.head_training import build_pairs, training_config
from benchmarks.opponents import as_items, prepare, stock_processor
from benchmarks.speed_models import RELEASED_CHUNK_LENGTH_S, load
from sdiareward.audio_sdiareward import read_audio
from sdiareward.common.arguments import parse_arguments
from sdiareward.pairs.loading import load_pairs
from sdiareward.pairs.messages import turns_to_messages
from sdiareward.pairs.schema import SIDES
from sdiareward.training.batches import StepSampler
from sdiareward.training.precompute import precompute_pairs
from sdiareward.training.trainer import SDiaRewardTrainer


RESULT = racing.RESULTS / "training_speed.json"
_PAIRS_A_STEP = 4
# Precomputed clips are stored in float16.
_TOLERANCE = 1e-2


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    episodes: int = field(default=24, metadata={"help": "recorded episodes of the sample; half as many scripts"})
    steps: int = field(default=8, metadata={"help": "training steps"})
    rounds: int = field(default=3, metadata={"help": "rounds of measurement"})
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def main() -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), None, prog="python -m benchmarks.training_speed", description=__doc__)
    with tempfile.TemporaryDirectory() as folder:
        pairs = load_pairs(build_pairs(Path(folder), args.episodes), "train")
        result = measure(pairs, Path(folder), args.steps, args.rounds, args.seed)
    settings = {name: getattr(args, name) for name in ("episodes", "steps", "rounds", "seed")}
    racing.write_result(args.output, settings=settings, cpu=racing.describe_cpu(), **result)
    print(json.dumps(result, indent=2))


@dataclass
class Race:
    """Measurements of one contestant.

    Args:
        seconds (`list[float]`): Seconds of all steps, by round.
        losses (`list[float]`): Loss of each step of the last round.
        num_tokens (`int`): Tokens of a round, counted by TRL.
    """

    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    num_tokens: int = 0


def measure(pairs: Any, folder: Path, num_steps: int, rounds: int, seed: int) -> dict[str, Any]:
    """Train with every contestant in turn, each from the same weights.

    Args:
        pairs (`datasets.Dataset`): Training pairs.
        folder (`Path`): For precomputed features.
        num_steps (`int`): Optimizer steps of a round.
        rounds (`int`): Number of rounds.
        seed (`int`): Of the order of the pairs.

    Raises:
        ValueError: The losses of two contestants differ.
    """
    model, processor = load("nano")
    read, _ = precompute_pairs(pairs, processor, folder / "read", split="train")
    start = time.perf_counter()
    encoded, _ = precompute_pairs(pairs, processor, folder / "encoded", split="train", model=model)
    encoding_s = time.perf_counter() - start
    ways: dict[str, Callable[[Path], RewardTrainer]] = {
        "plain": lambda path: plain_trainer(processor, read, path, num_steps, seed, processor_s=None),
        "plain_300_s": lambda path: plain_trainer(
            processor, read, path, num_steps, seed, processor_s=RELEASED_CHUNK_LENGTH_S
        ),
        "ours_running_tower": lambda path: our_trainer(processor, read, path, num_steps, seed),
        "ours": lambda path: our_trainer(processor, encoded, path, num_steps, seed),
    }
    races = {name: Race() for name in ways}
    for number in tqdm(range(rounds), desc="rounds"):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            _run(ways[name](folder / "run"), races[name])
    _require_agreement(races)
    return summarise(races, len(encoded), num_steps, encoding_s)


def summarise(races: Mapping[str, Race], num_pairs: int, num_steps: int, encoding_s: float) -> dict[str, Any]:
    """Return medians and speed-ups.

    Args:
        races (`Mapping[str, Race]`): The measurements.
        num_pairs (`int`): Pairs of an epoch.
        num_steps (`int`): Steps of a round.
        encoding_s (`float`): Seconds to precompute all pairs.
    """
    ours = races["ours"].seconds
    share = encoding_s * num_steps * _PAIRS_A_STEP / num_pairs
    first_epoch = [seconds + share for seconds in ours]
    plain = {name: race.seconds for name, race in races.items() if name.startswith("plain")}
    return {
        "pairs": num_pairs,
        "pairs_a_step": _PAIRS_A_STEP,
        "encoding_s": encoding_s,
        "seconds": {name: race.seconds for name, race in races.items()},
        "tokens_per_second": {name: races["ours"].num_tokens / median(race.seconds) for name, race in races.items()},
        "speedup": {
            name: {other: racing.speedup(slow, races[other].seconds) for other in ("ours_running_tower", "ours")}
            for name, slow in plain.items()
        },
        "first_epoch_speedup": {name: racing.speedup(slow, first_epoch) for name, slow in plain.items()},
        "losses": {name: race.losses for name, race in races.items()},
    }


class _Clock(TrainerCallback):
    """Measure the time from the start of the first step to the end of the last one."""

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.start = time.perf_counter()

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds = time.perf_counter() - self.start


def _run(trainer: RewardTrainer, race: Race) -> None:
    clock = _Clock()
    trainer.add_callback(clock)
    trainer.train()
    race.seconds.append(clock.seconds)
    race.losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    race.num_tokens = int(trainer._total_train_tokens)


def _require_agreement(races: Mapping[str, Race]) -> None:
    """Compare the first losses; after an update Adam amplifies rounding errors with every step."""
    expected = next(iter(races.values())).losses
    for name, race in races.items():
        difference = abs(race.losses[0] - expected[0])
        if not difference <= _TOLERANCE:
            raise ValueError(f"{name}: its first loss differs by {difference:.2g}; at most {_TOLERANCE:g} is allowed.")


class PlainTrainer(RewardTrainer):
    """TRL's trainer with the same rows per step as `SDiaRewardTrainer`."""

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        return dataset

    def _get_train_sampler(self, train_dataset: Any = None) -> StepSampler:
        rows: Any = self.train_dataset
        return StepSampler(rows["length"], _PAIRS_A_STEP, 1, 1, seed=self.args.seed, drop_last=False)


def plain_trainer(
    processor: Any, rows: Any, folder: Path, num_steps: int, seed: int, *, processor_s: int | None
) -> PlainTrainer:
    """Return TRL's trainer with padded batches.

    Args:
        processor ([`SDiaRewardProcessor`]): Its tokenizer and prompts are used.
        rows (`datasets.Dataset`): Valid pairs.
        folder (`Path`): Output folder of the trainer.
        num_steps (`int`): Optimizer steps.
        seed (`int`): Of the order of the pairs.
        processor_s (`int`, *optional*): Seconds that clips are padded to; by default nano's own.
    """
    plain = stock_processor(processor, processor_s or processor.feature_extractor.chunk_length)

    def collate(batch: Sequence[Mapping[str, Any]]) -> Any:
        criteria = [row["criterion"] for row in batch] * 2
        dialogues = [turns_to_messages(row[side]) for side in SIDES for row in batch]
        prompted = [processor.with_prompt(*each) for each in zip(dialogues, criteria, strict=True)]
        return prepare(plain, [_decoded(dialogue, processor.max_turn_s) for dialogue in prompted])

    options = _config(folder, num_steps, seed)
    return PlainTrainer(
        _fresh_model(), options, processing_class=processor.tokenizer, train_dataset=rows, data_collator=collate
    )


def our_trainer(processor: Any, rows: Any, folder: Path, num_steps: int, seed: int) -> SDiaRewardTrainer:
    """Return our trainer; arguments as in `plain_trainer`."""
    return SDiaRewardTrainer(_fresh_model(), processor, _config(folder, num_steps, seed), train_dataset=rows)


def _fresh_model() -> Any:
    model, _ = load("nano")
    model.freeze_audio_tower()
    # A saturated loss would hide differences.
    torch.nn.init.zeros_(model.score.weight)
    return model


def _config(folder: Path, num_steps: int, seed: int) -> RewardConfig:
    return training_config(
        folder,
        max_steps=num_steps,
        per_device_train_batch_size=_PAIRS_A_STEP,
        learning_rate=5e-4,
        remove_unused_columns=False,
        logging_steps=1,
        seed=seed,
    )


def _decoded(dialogue: Sequence[Mapping[str, Any]], max_turn_s: float) -> list[dict[str, Any]]:
    """Return messages with the samples of their clips, cut to the model's limit."""
    messages = as_items(dialogue)
    for message in messages:
        message["content"] = [
            {**item, "audio": {"array": read_audio(item["audio"], max_duration_s=max_turn_s)}}
            if item["type"] == "audio"
            else item
            for item in message["content"]
        ]
    return messages


if __name__ == "__main__":
    main()
