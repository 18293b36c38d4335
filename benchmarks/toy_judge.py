"""Train a nano judge by GRPO on a simple task with three scores, starting at chance.

    python -m benchmarks.toy_judge

Each clip is a real recording, made loud or soft and fast or slow. The score is 5 for loud and fast, 3 for one of the
two, 1 for neither; a scenario is the same recording three times, one clip per score. SFT on random scores first
teaches the form of an answer and nothing about the scores. Then the judge learns by GRPO alone, with the rewards of
WavReward, and is evaluated on clips of held-out recordings.

The result is `benchmarks/results/toy_judge.json`, with the curve (.png) made of it.

Notable choices:

- The thoughts are the same words in every answer. The benchmark shows that rewards teach the scores, not that a model
  of this size reasons.
- Sigma is 0.5, not 1: otherwise the middle score, at most off by two, is a safe choice and a long plateau.
- The KL weight is 0.2, not 0.01: the reference is the model with random scores, and staying near it prevents the judge
  from settling on two of the three scores.
- The learning rate is constant, then falls to 0 over the last steps.
- The audio tower, Whisper tiny.en's encoder, is frozen; the text model starts from random weights.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm.auto import tqdm
from transformers import TrainerCallback

from benchmarks.racing import RESULTS, describe_cpu, write_result
from sdiareward.audio_sdiareward import SAMPLING_RATE
from sdiareward.common.arguments import parse_arguments
from sdiareward.perturbations.effects import ChangeTempo, SetLevel


if TYPE_CHECKING:
    import datasets

RESULT = RESULTS / "toy_judge.json"
SCORES = (5, 3, 1)
# Loud or soft, fast or slow, of each score; a 3 is one of two.
_SETTINGS = {5: ((True, True),), 3: ((True, False), (False, True)), 1: ((False, False),)}
_LEVELS_DBFS = {True: -20.0, False: -46.0}
_TEMPOS = {True: 1.8, False: 0.75}
_CLIP_S = 1.0
_QUESTION = "Loud and fast?"
_ANSWER = "<think>so</think><score>{}</score>"
_MAX_TOKENS = 24


@dataclass(kw_only=True)
class Arguments:
    """The arguments of the command line."""

    steps: int = field(default=260, metadata={"help": "steps of GRPO"})
    decay_steps: int = field(default=80, metadata={"help": "the last ones, over which the rate falls to 0"})
    warm_up_steps: int = field(default=200, metadata={"help": "steps of imitation"})
    learning_rate: float = field(default=3e-4, metadata={"help": "learning rate"})
    num_generations: int = field(default=4, metadata={"help": "answers to each prompt"})
    scenarios_per_step: int = field(default=4, metadata={"help": "scenarios in a step"})
    num_clips: int = field(default=120, metadata={"help": "recordings to train on"})
    num_test_clips: int = field(default=60, metadata={"help": "recordings to test on"})
    accuracy: str = field(
        default="nonlinear", metadata={"choices": ("nonlinear", "exact"), "help": "reward of accuracy"}
    )
    beta: float = field(default=0.2, metadata={"help": "weight of the KL term"})
    sigma: float = field(default=0.5, metadata={"help": "sigma of equation 3"})
    eval_steps: int = field(default=20, metadata={"help": "steps between two evaluations"})
    seed: int = field(default=0, metadata={"help": "seed of everything that is drawn"})
    work_dir: Path = field(default=Path("runs/toy_judge"), metadata={"help": "folder of the runs"})
    output: Path = field(default=RESULT, metadata={"help": "file of the result"})


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    (args,) = parse_arguments((Arguments,), argv, prog="python -m benchmarks.toy_judge", description=__doc__)
    result = run(args)
    write_result(args.output, arguments={**vars(args), "work_dir": None, "output": None}, cpu=describe_cpu(), **result)
    draw_curve(result["curve"], args.output.with_suffix(".png"))
    print(json.dumps(result["curve"][-1], indent=2))


def run(args: Arguments) -> dict[str, Any]:
    """Make the clips, warm up, train, and return the curve with its times."""
    start = time.perf_counter()
    clips = list(short_clips())
    groups = sorted({group for group, _ in clips})
    order = np.random.default_rng(args.seed).permutation(len(groups))
    held_out = {groups[index] for index in order[: len(groups) // 4]}
    train = make_samples([clip for group, clip in clips if group not in held_out][: args.num_clips], args.seed)
    test = make_samples([clip for group, clip in clips if group in held_out][: args.num_test_clips], args.seed + 1)
    folder = warm_up(train, args)
    warm_up_s = time.perf_counter() - start
    curve = learn(folder, train, test, args)
    sizes = {"num_train_samples": len(train), "num_test_samples": len(test), "num_test_recordings": len(held_out)}
    return {**sizes, "warm_up_s": warm_up_s, "total_s": time.perf_counter() - start, "curve": curve}


def warm_up(samples: datasets.Dataset, args: Arguments) -> Path:
    """Teach a new nano judge the form of an answer, with scores drawn at random, and return its folder."""
    from trl import SFTConfig

    from sdiareward.judges.nano_judge import build_nano_judge
    from sdiareward.judges.wavreward.settings import JudgeArguments, load_judge_to_train, run_training
    from sdiareward.judges.wavreward.train_sft import make_trainer
    from sdiareward.judges.wavreward.training_rows import make_target_rows

    folder = args.work_dir / "warm_up"
    generator = np.random.default_rng(args.seed)
    targets = [_ANSWER.format(score) for score in generator.choice(SCORES, len(samples))]
    start = str(build_nano_judge(args.work_dir / "init", seed=args.seed))
    judge = JudgeArguments(start, "clips of the benchmark", freeze_audio_tower=True)
    training = SFTConfig(
        str(folder),
        per_device_train_batch_size=12,
        max_steps=args.warm_up_steps,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        **_options(args),
    )
    model, processor, _ = load_judge_to_train(judge, training)
    rows = make_target_rows(samples.add_column("target", targets), ask, reasoning=True)
    return run_training(make_trainer(model, processor, rows, training), processor, judge, training)


def learn(folder: Path, train: datasets.Dataset, test: datasets.Dataset, args: Arguments) -> list[dict[str, Any]]:
    """Train by GRPO and return the accuracy on the held-out clips after so many steps."""
    from trl import GRPOConfig

    from sdiareward.judges.wavreward.rewards import make_reward_functions
    from sdiareward.judges.wavreward.settings import GRPOArguments, load_judge_to_train, run_training
    from sdiareward.judges.wavreward.training_rows import make_prompt_rows
    from sdiareward.judges.wavreward.wavreward_trainer import WavRewardTrainer

    judge = GRPOArguments(
        str(folder), "clips of the benchmark", freeze_audio_tower=True, accuracy_reward=args.accuracy
    )
    training = GRPOConfig(
        str(args.work_dir / "grpo"),
        per_device_train_batch_size=len(SCORES) * args.scenarios_per_step * args.num_generations,
        num_generations=args.num_generations,
        max_completion_length=_MAX_TOKENS,
        max_steps=args.steps,
        learning_rate=args.learning_rate,
        lr_scheduler_type="warmup_stable_decay",
        lr_scheduler_kwargs={"num_decay_steps": args.decay_steps, "decay_type": "linear"},
        loss_type="grpo",
        use_bias_correction_kl=False,
        beta=args.beta,
        **_options(args),
    )
    model, processor, _ = load_judge_to_train(judge, training)
    curve = Curve(model, processor, test, args.eval_steps)
    trainer = WavRewardTrainer(
        model,
        make_reward_functions(accuracy=args.accuracy, sigma=args.sigma),
        training,
        scenario_ids=train["scenario_id"],
        processing_class=processor,
        train_dataset=make_prompt_rows(train, ask),
        callbacks=[curve],
    )
    run_training(trainer, processor, judge, training)
    return curve.points


def _options(args: Arguments) -> dict[str, Any]:
    return {
        "warmup_steps": 10,
        "use_cpu": True,
        "bf16": True,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": args.eval_steps,
        "seed": args.seed,
    }


class Curve(TrainerCallback):
    """Evaluate a judge on held-out clips during training.

    Args:
        model (`Qwen2_5OmniThinkerForConditionalGeneration`): The judge that is trained.
        processor (`ThinkerProcessor`): Its processor.
        samples (`datasets.Dataset`): Held-out clips with `audio` and `score`.
        every_steps (`int`): Steps between two evaluations.
    """

    def __init__(self, model: Any, processor: Any, samples: datasets.Dataset, every_steps: int):
        self.model, self.processor, self.samples, self.every_steps = model, processor, samples, every_steps
        self.points: list[dict[str, Any]] = []
        self.start = time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluate before training."""
        self._measure(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluate every `every_steps` steps and at the end."""
        if state.global_step % self.every_steps == 0 or state.global_step == state.max_steps:
            self._measure(state.global_step)

    def _measure(self, step: int) -> None:
        from sdiareward.judges.thinker import Thinker
        from sdiareward.judges.wavreward.answers import follows_format, parse_score

        seconds = time.perf_counter() - self.start
        thinker = Thinker(self.model, self.processor, batch_size=30)
        answers = thinker.generate([ask(audio) for audio in self.samples["audio"]], max_new_tokens=_MAX_TOKENS)
        texts = [found[0].text for found in answers]
        self.model.train()
        right = [parse_score(text) == score for text, score in zip(texts, self.samples["score"], strict=True)]
        form = sum(map(follows_format, texts)) / len(texts)
        self.points.append({"step": step, "seconds": seconds, "accuracy": sum(right) / len(right), "format": form})
        tqdm.write(json.dumps(self.points[-1]))


def draw_curve(curve: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw accuracy against steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.add_subplot(xlabel="GRPO steps", ylabel="accuracy on held-out recordings", ylim=(0, 1.02))
    axes.plot([point["step"] for point in curve], [point["accuracy"] for point in curve], marker="o", color="black")
    axes.axhline(1 / len(SCORES), linestyle="--", color="gray")
    axes.annotate("chance", (0, 1 / len(SCORES)), xytext=(2, 3), textcoords="offset points", color="gray")
    figure.savefig(path, dpi=150)


def ask(recording: Any) -> list[dict[str, Any]]:
    """Build the messages that ask for the score of a clip."""
    content = [{"type": "audio", "audio": recording}, {"type": "text", "text": _QUESTION}]
    return [{"role": "user", "content": content}]


def short_clips() -> Iterator[tuple[str, np.ndarray]]:
    """Yield the group and the first second of each turn of the bundled recordings that lasts a second."""
    from sdiareward.audio_sdiareward import read_audio
    from sdiareward.dataset_builder.episodes import Episode
    from sdiareward.dataset_builder.sources import sample

    num_samples = round(_CLIP_S * SAMPLING_RATE)
    for episode in sample.read_episodes():
        if not isinstance(episode, Episode) or episode.source != "amazon_queen":
            continue
        whole = read_audio(episode.turns[0].parts[0].audio)
        for turn in episode.turns:
            start = round(turn.parts[0].start_s * SAMPLING_RATE)
            # The sample's parts all have an end.
            if float(turn.parts[0].end_s or 0.0) - turn.parts[0].start_s >= _CLIP_S:
                yield episode.group, whole[start : start + num_samples]


def make_samples(clips: Sequence[np.ndarray], seed: int) -> datasets.Dataset:
    """Make a scenario of three samples per clip: `audio`, `score`, `sample_id` and `scenario_id`."""
    import datasets

    from sdiareward.perturbations.channel import encode

    generator = np.random.default_rng(seed)
    rows = []
    for number, clip in enumerate(clips):
        for score in SCORES:
            is_loud, is_fast = _SETTINGS[score][generator.integers(len(_SETTINGS[score]))]
            level_dbfs = _LEVELS_DBFS[is_loud] + generator.uniform(-3, 3)
            faster = ChangeTempo(_TEMPOS[is_fast])(clip, SAMPLING_RATE)
            recording = SetLevel(level_dbfs)(faster, SAMPLING_RATE)
            audio = {"bytes": encode(recording, SAMPLING_RATE, "WAV", "PCM_16", None), "path": None}
            row = {"sample_id": f"{number}-{score}", "scenario_id": str(number), "score": score, "audio": audio}
            rows.append(row)
    return datasets.Dataset.from_list(rows)


if __name__ == "__main__":
    main()
