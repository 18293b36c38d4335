"""Train a text policy with GRPO to answer in words that sound good in a conversation, judged as speech.

    python examples/grpo_speech.py --policy Qwen/Qwen2.5-0.5B-Instruct --reward_model checkpoints/nano

Questions are recorded turns of the bundled sample; a synthesizer speaks the policy's answers. Without `--policy` a
tiny random one is built: it learns nothing worth hearing, but shows on a CPU how everything fits together. Needs the
extras `train` and `build`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import datasets
import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from sdiareward import reward_fn
from sdiareward.audio_sdiareward import SAMPLING_RATE, read_audio
from sdiareward.common.arguments import parse_arguments
from sdiareward.common.package_files import NANO
from sdiareward.dataset_builder.episodes import Episode
from sdiareward.dataset_builder.sources import sample
from sdiareward.perturbations.channel import encode_flac
from sdiareward.synthesis import SynthesisError, load_synthesizer


def read_questions(num_questions: int) -> datasets.Dataset:
    """Return the first turns of recorded dialogues: the words as prompt, the sound in the column `voice`."""
    episodes = (episode for episode in sample.episodes() if isinstance(episode, Episode))
    rows = []
    for episode in islice(episodes, num_questions):
        part = episode.turns[0].parts[0]
        end = None if part.end_s is None else round(part.end_s * SAMPLING_RATE)
        clip = read_audio(part.audio)[round(part.start_s * SAMPLING_RATE) : end]
        voice = {"bytes": encode_flac(clip), "path": None}
        rows.append({"prompt": [{"role": "user", "content": part.text}], "voice": voice})
    return datasets.Dataset.from_list(rows)


def make_speak(name: str) -> Callable[[list[str]], list[Any]]:
    """Return a function that speaks texts with one of the package's synthesizers."""
    synthesizer: Any = load_synthesizer(name)

    def say(text: str) -> dict[str, Any] | None:
        try:
            return {"array": synthesizer.speak(text, voice=0), "sampling_rate": SAMPLING_RATE}
        except SynthesisError:
            return None

    return lambda texts: [say(text) for text in texts]


def make_tiny_policy(tokenizer: Any) -> Qwen2ForCausalLM:
    """Return a random policy of a few hundred thousand parameters."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return Qwen2ForCausalLM(config)


@dataclass(kw_only=True)
class Arguments:
    """What to train, and with which reward."""

    policy: str | None = field(default=None, metadata={"help": "a chat model (default: a tiny random one)"})
    reward_model: str = field(default=str(NANO), metadata={"help": "folder or Hub id of the reward model"})
    criterion: str = field(default="colloquialness", metadata={"help": "prompt to score under"})
    synthesizer: str = field(default="hibari", metadata={"help": "espeak-ng, flite, hibari or piper"})
    num_questions: int = field(default=32, metadata={"help": "recorded turns to answer"})
    max_steps: int = field(default=5, metadata={"help": "training steps"})
    output_dir: str = field(default="runs/grpo", metadata={"help": "folder of the run"})


def main(argv: list[str] | None = None) -> GRPOTrainer:
    """Train."""
    (args,) = parse_arguments((Arguments,), argv, prog="grpo_speech.py", description=__doc__)
    training = GRPOConfig(
        output_dir=args.output_dir,
        max_steps=args.max_steps,
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=24,
        learning_rate=1e-6 if args.policy else 1e-3,
        bf16=torch.cuda.is_available(),
        log_completions=True,
        num_completions_to_print=2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
    )
    tokenizer = AutoTokenizer.from_pretrained(args.policy or args.reward_model, padding_side="left")
    # After GRPOConfig, which gives each process its accelerator.
    reward = reward_fn(
        args.reward_model,
        criterion=args.criterion,
        speak=make_speak(args.synthesizer),
        audio_column="voice",
        # Below what the committed checkpoint gives: what cannot be judged is not worth trying again.
        on_error="floor",
        floor=-10.0,
    )
    trainer = GRPOTrainer(
        args.policy or make_tiny_policy(tokenizer),
        reward_funcs=reward,
        args=training,
        train_dataset=read_questions(args.num_questions),
        processing_class=tokenizer,
    )
    trainer.train()
    return trainer


if __name__ == "__main__":
    main()
