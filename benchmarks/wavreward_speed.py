"""Measure the time of a WavReward score with and without thoughts, in one run (Table 5).

    python -m benchmarks.wavreward_speed --model runs/wavreward --dataset runs/chatreward
    python -m benchmarks.wavreward_speed --dataset runs/chatreward          # a new nano judge, fixed lengths

The real-time factor is the time of all scores divided by the duration of the dialogues; lower is better. Every way
scores the same recordings, one at a time and in batches; every second round is in the reverse order. The result is
`benchmarks/results/wavreward_speed.json`.

Notable choices:

- Recordings are decoded before the clock starts; the mel features are part of the time.
- The length of an untrained judge's answers is random, so a new nano judge has a fixed number of tokens:
  `--reasoning_tokens` with thoughts, `--score_tokens` without. A trained judge stops by itself unless these are given.
  The length of the answers is always reported.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.racing import RESULTS, describe_cpu, time_rounds, write_result
from sdiareward.audio_sdiareward import SAMPLING_RATE, read_audio
from sdiareward.common.arguments import parse_arguments
from sdiareward.dataset_builder.recipes.chatreward.loading import load_samples
from sdiareward.judges.nano_judge import build_nano_judge
from sdiareward.judges.thinker import Thinker
from sdiareward.judges.wavreward.judge import WavRewardJudge
from sdiareward.judges.wavreward.prompts import JudgingPrompt, load_prompt_of_judge


RESULT = RESULTS / "wavreward_speed.json"
NEW_NANO = "a new nano judge"
_NANO_TOKENS = {True: 128, False: 8}


@dataclass(frozen=True)
class Way:
    """A way to ask for scores.

    Args:
        reasoning (`bool`): Ask for thoughts before the score.
        batch_size (`int`): Recordings heard at once.
        num_tokens (`int`, *optional*): Exact length of an answer; None leaves it to the judge.
        prompt ([`JudgingPrompt`]): What to ask with.
    """

    reasoning: bool
    batch_size: int
    num_tokens: int | None
    prompt: JudgingPrompt = JudgingPrompt()

    @property
    def name(self) -> str:
        """Name in the result."""
        return f"{'with' if self.reasoning else 'without'} thoughts, batch {self.batch_size}"

    def judge(self, thinker: Thinker, recordings: Sequence[Any], max_new_tokens: int) -> list[Any]:
        """Score recordings in this way."""
        own = Thinker(thinker.model, thinker.processor, self.batch_size)
        length = self.num_tokens or max_new_tokens
        judge = WavRewardJudge(own, reasoning=self.reasoning, prompt=self.prompt)
        return judge.judge(recordings, max_new_tokens=length, min_new_tokens=self.num_tokens)


def main(argv: Sequence[str] | None = None) -> Path:
    """Run the command line and return the path of the result."""
    args = _parse_arguments(argv)
    samples = load_samples(args.dataset, args.split)
    recordings = [read_audio(row["audio"]) for row in samples.select(range(min(args.limit, len(samples))))]
    with tempfile.TemporaryDirectory() as folder:
        model = str(build_nano_judge(Path(folder) / "judge")) if args.model == NEW_NANO else args.model
        prompt = load_prompt_of_judge(model)
        thinker = Thinker.from_pretrained(model, dtype=args.dtype, device=args.device)
    ways = [
        Way(reasoning, batch_size, args.reasoning_tokens if reasoning else args.score_tokens, prompt)
        for batch_size in dict.fromkeys((1, args.batch_size))
        for reasoning in (True, False)
    ]
    found = measure(thinker, ways, recordings, args.rounds, args.max_new_tokens)
    write_result(args.result, settings=_settings(args), device=describe_device(thinker), cpu=describe_cpu(), **found)
    print(args.result.read_text(encoding="utf-8"))
    return args.result


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    model: str = field(default=NEW_NANO, metadata={"help": "folder or Hub name of the judge"})
    dataset: str = field(metadata={"help": "folder of ChatReward"})
    split: str = field(default="test", metadata={"help": "split of the data set"})
    limit: int = field(default=16, metadata={"help": "dialogues to score"})
    rounds: int = field(default=3, metadata={"help": "rounds of measurement"})
    batch_size: int = field(default=8, metadata={"help": "batch size to compare with single dialogues"})
    max_new_tokens: int = field(default=512, metadata={"help": "longest answer"})
    reasoning_tokens: int | None = field(default=None, metadata={"help": "exact length of an answer with thoughts"})
    score_tokens: int | None = field(default=None, metadata={"help": "exact length of an answer without"})
    dtype: str | None = field(
        default=None, metadata={"help": "dtype of the model, such as bfloat16 (default: the checkpoint's)"}
    )
    device: str | None = field(
        default=None, metadata={"help": "device, such as cuda:0 (default: an accelerator if there is one)"}
    )
    result: Path = field(default=RESULT, metadata={"help": "file of the result"})


def _parse_arguments(argv: Sequence[str] | None) -> Arguments:
    (args,) = parse_arguments((Arguments,), argv, prog="python -m benchmarks.wavreward_speed", description=__doc__)
    if args.model == NEW_NANO:
        args.reasoning_tokens = args.reasoning_tokens or _NANO_TOKENS[True]
        args.score_tokens = args.score_tokens or _NANO_TOKENS[False]
    return args


def measure(
    thinker: Thinker, ways: Sequence[Way], recordings: Sequence[Any], rounds: int, max_new_tokens: int
) -> dict[str, Any]:
    """Time every way on the same recordings.

    Args:
        thinker ([`Thinker`]): The model.
        ways (`Sequence[Way]`): The ways to compare.
        recordings (`list[np.ndarray]`): Mono, 16 kHz.
        rounds (`int`): Number of rounds.
        max_new_tokens (`int`): Longest answer if a way does not fix its length.

    Returns:
        `dict`: `dialogues`, `audio_s`, and `ways`: by name `seconds` of each round, `real_time_factor` (of the median
        round), `mean_tokens` and `share_with_score`.
    """
    for way in ways:
        way.judge(thinker, recordings[: way.batch_size], max_new_tokens)
    tasks = {way.name: partial(way.judge, thinker, recordings, max_new_tokens) for way in ways}
    seconds, answers = time_rounds(tasks, rounds)
    audio_s = sum(array.size for array in recordings) / SAMPLING_RATE
    found = {
        name: {
            "seconds": times,
            "real_time_factor": median(times) / audio_s,
            "mean_tokens": mean(answer.num_tokens for answer in answers[name][-1]),
            "share_with_score": mean(answer.score is not None for answer in answers[name][-1]),
        }
        for name, times in seconds.items()
    }
    return {"dialogues": len(recordings), "audio_s": audio_s, "ways": found}


def describe_device(thinker: Thinker) -> dict[str, Any]:
    """Return the device, the dtype and the size of a model."""
    import torch

    device = thinker.model.device
    return {
        "name": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "dtype": str(thinker.model.dtype).removeprefix("torch."),
        "million_parameters": round(sum(weight.numel() for weight in thinker.model.parameters()) / 1e6, 1),
    }


def _settings(args: Arguments) -> dict[str, Any]:
    return {name: value for name, value in vars(args).items() if name not in ("result", "device")}


if __name__ == "__main__":
    main()
