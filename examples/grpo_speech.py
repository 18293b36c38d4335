"""Train a text policy with GRPO to answer in words that sound good in a conversation, judged as speech.

    python examples/grpo_speech.py --policy Qwen/Qwen2.5-0.5B-Instruct --reward_model small

Questions are recorded turns of the bundled sample; a synthesizer speaks the policy's answers. Before training and
after it, the script prints the mean reward of the policy's answers, of the recorded answers, and of the recorded words
in random order; `rewards.json` in the run's folder keeps them. Without `--policy` a tiny random policy shows on a CPU
how everything fits together. Needs the extras `train` and `build`, and `small` for that reward model.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from sdiareward import reward_fn
from sdiareward.audio_sdiareward import SAMPLING_RATE, read_audio
from sdiareward.checkpoint_io.models import find_checkpoint
from sdiareward.common.commands import parse_options
from sdiareward.common.machine import write_provenance
from sdiareward.dataset_builder.episodes import Episode
from sdiareward.dataset_builder.sources import read_source
from sdiareward.dataset_builder.synthesis import SynthesisError, load_synthesizer
from sdiareward.perturbations.channel import encode_flac


POLICY = "the policy's answers"


def read_questions(num_questions: int) -> datasets.Dataset:
    """Return the first turns of recorded dialogues: the words as prompt, the sound `voice`, the reply `answer`."""
    episodes = (episode for episode in read_source("sample") if isinstance(episode, Episode))
    rows = []
    for episode in islice(episodes, num_questions):
        part = episode.turns[0].parts[0]
        end = None if part.end_s is None else round(part.end_s * SAMPLING_RATE)
        clip = read_audio(part.audio)[round(part.start_s * SAMPLING_RATE) : end]
        voice = {"bytes": encode_flac(clip), "path": None}
        prompt = [{"role": "user", "content": part.text}]
        rows.append({"prompt": prompt, "voice": voice, "answer": episode.turns[1].parts[0].text})
    return datasets.Dataset.from_list(rows)


def make_speak(name: str) -> Callable[[list[str]], list[Any]]:
    synthesizer: Any = load_synthesizer(name)

    def say(text: str) -> dict[str, Any] | None:
        try:
            return {"array": synthesizer.speak(text, voice=0), "sampling_rate": SAMPLING_RATE}
        except SynthesisError:
            return None

    return lambda texts: [say(text) for text in texts]


def make_tiny_policy(tokenizer: Any) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config = Qwen2Config(vocab_size=len(tokenizer), num_attention_heads=2, num_key_value_heads=1, **sizes)
    return Qwen2ForCausalLM(config)


def shuffle_words(text: str) -> str:
    """Shuffle the words of a text, always in the same way."""
    words = text.split()
    return " ".join(words[index] for index in np.random.default_rng(len(text)).permutation(len(words)))


def compare_answers(
    reward: Callable[..., Any], questions: datasets.Dataset, answers: dict[str, list[str]]
) -> dict[str, dict[str, Any]]:
    found = {}
    for kind, texts in answers.items():
        completions = [[{"role": "assistant", "content": text}] for text in texts]
        rewards = reward(prompts=questions["prompt"], completions=completions, voice=questions["voice"])
        given = [each for each in rewards if each is not None]
        print(f"  {kind}: {np.mean(given):+.2f} ({len(given)} answers)" if given else f"  {kind}: no reward")
        found[kind] = {"mean_reward": float(np.mean(given)) if given else None, "num_answers": len(given)}
    return found


def answer(policy: Any, tokenizer: Any, questions: datasets.Dataset) -> list[str]:
    """Return the likeliest answer of a policy to each question."""
    options = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
    texts = []
    for prompt in questions["prompt"]:
        ids = tokenizer.apply_chat_template(prompt, **options)["input_ids"].to(policy.device)
        with torch.inference_mode():
            made = policy.generate(ids, max_new_tokens=24, do_sample=False)
        texts.append(tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True))
    return texts


@dataclass(kw_only=True)
class Arguments:
    policy: str | None = field(default=None, metadata={"help": "a chat model (default: a tiny random one)"})
    reward_model: str = field(default="small", metadata={"help": "nano, small, or a folder or Hub id"})
    criterion: str = field(default="joint", metadata={"help": "prompt to score under"})
    synthesizer: str = field(default="hibari", metadata={"help": "espeak-ng, flite, hibari or piper"})
    num_questions: int = field(default=32, metadata={"help": "recorded turns to answer"})
    max_steps: int = field(default=5, metadata={"help": "training steps"})
    output_dir: str = field(default="runs/grpo", metadata={"help": "folder of the run"})


def main(argv: list[str] | None = None) -> GRPOTrainer:
    args = parse_options(Arguments, argv, prog="grpo_speech.py", description=__doc__)
    # TRL uses older names of transformers.
    warnings.filterwarnings("ignore", "`(is_)?gradient_checkpointing", FutureWarning)
    training = GRPOConfig(
        output_dir=args.output_dir,
        max_steps=args.max_steps,
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=24,
        learning_rate=1e-6 if args.policy else 1e-3,
        bf16=torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        log_completions=True,
        num_completions_to_print=2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
    )
    tokenizer = AutoTokenizer.from_pretrained(args.policy or find_checkpoint(args.reward_model), padding_side="left")
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
    questions = read_questions(args.num_questions)
    trainer = GRPOTrainer(
        args.policy or make_tiny_policy(tokenizer),
        reward_funcs=reward,
        args=training,
        train_dataset=questions,
        processing_class=tokenizer,
    )
    script = list(questions["answer"])
    fixed = {"answers of the script": script, "their words in random order": [shuffle_words(text) for text in script]}
    print("Before training, mean rewards:")
    before = compare_answers(reward, questions, fixed | {POLICY: answer(trainer.model, tokenizer, questions)})
    trainer.train()
    print("After training:")
    after = compare_answers(reward, questions, {POLICY: answer(trainer.model, tokenizer, questions)})
    write_provenance(Path(args.output_dir) / "rewards.json", arguments=asdict(args), before=before, after=after)
    return trainer


if __name__ == "__main__":
    main()
