"""A small finished evaluation of made-up pairs, for the tests of its page."""

import io

import datasets
import numpy as np
import soundfile

from sdiareward.evaluation import summary
from sdiareward.evaluation.scores import Evaluation


SUBSETS = ("wild", "semi_wild", "scripted", "colloquialness")
NUM_PAIRS = 56
TRAINED_ON = {"known"}


def clip(number, duration_s=0.25):
    time_s = np.arange(round(duration_s * 16_000)) / 16_000
    buffer = io.BytesIO()
    soundfile.write(buffer, 0.3 * np.sin(2 * np.pi * (150 + 7 * number) * time_s), 16_000, format="FLAC")
    return {"bytes": buffer.getvalue(), "path": None}


def make_pairs(text="so, um, hello", license="CC-BY-4.0"):
    """Return 56 pairs of two turns per side: 14 per subset, two per recording."""
    rows = []
    for number in range(NUM_PAIRS):
        subset = SUBSETS[number % 4]
        turns = {
            side: [
                {"role": role, "text": f"{text} {number} {side}", "audio": clip((4 * number + 2 * half + turn) % 16)}
                for turn, role in enumerate(("user", "assistant"))
            ]
            for half, side in enumerate(("chosen", "rejected"))
        }
        rows.append(
            {
                "pair_id": f"pair-{number:02}",
                "criterion": "colloquialness" if subset == "colloquialness" else "modality",
                "subset": subset,
                "source": "made_up",
                "primary": "Joy" if number < 40 else "Anger",
                "secondary": "Laughter",
                **turns,
                "synthesizer": ("known", "new")[number // 4 % 2],
                "group_id": f"recording-{number % 4}-{number // 8}",
                "language": "en",
                "license": license,
            }
        )
    return datasets.Dataset.from_list(rows)


def make_labels(pairs):
    names = ("pair_id", "criterion", "subset", "source", "synthesizer", "group_id")
    return [dict(row) for row in pairs.select_columns(list(names))]


def make_scores(labels, seed=0, quality=1.0):
    """Return rewards whose margins are normal around `quality`."""
    draws = np.random.default_rng(seed).normal(size=(len(labels), 2))
    return {
        label["pair_id"]: {"chosen": float(a + quality), "rejected": float(b)}
        for label, (a, b) in zip(labels, draws, strict=True)
    }


def make_results(labels, by_scorer, skipped=(), **config):
    options = {"nan": "error", "num_bootstrap": 50, "seed": 0}
    options |= {name: value for name, value in config.items() if name in options}
    config = {"model": "checkpoints/tiny", "dataset": "made/up", "split": "test", "train_split": "train", **options}
    fitted = {"num_train": {"modality": 36, "colloquialness": 12}, "skipped_train": []}
    return {
        **summary.summarise(labels, by_scorer, TRAINED_ON, list(skipped), **options),
        "timing": {"num_pairs": len(labels), "audio_s": 48.0, "scoring_s": 6.0, "real_time_factor": 0.125},
        "baselines": {name: fitted for name in by_scorer if name != "model"},
        "run": {"model": "checkpoints/tiny (0123)", "pairs": "4567"},
        "config": config,
        "versions": {"torch": "2.13.0", "trl": None},
        "python": "3.11.7",
        "machine": {"processor": "x86_64", "num_cores": 2},
        "git_revision": "89ab",
    }


def make_evaluation(**pair_options):
    pairs = make_pairs(**pair_options)
    labels = make_labels(pairs)
    by_scorer = {name: make_scores(labels, seed, 1.5 - seed / 2) for seed, name in enumerate(("model", "acoustic"))}
    by_scorer["text"] = {label["pair_id"]: {"chosen": 0.0, "rejected": 0.0} for label in labels}
    return pairs, labels, by_scorer


def make_judge():
    share = {"num_values": 48, "share": 0.25, "interval": [0.1, 0.4], "num_groups": 24}
    group = {
        "criterion": "all pairs",
        "num_pairs": 48,
        "decided_by": {"verdict": 30, "scores": 10, "tie": 7, "failed": 1},
        "ties": share,
        "position_bias": {**share, "bias": -0.25, "interval": [-0.4, -0.1]},
        "order_agreement": share,
        "one_order": {"chosen_first": share, "rejected_first": {**share, "share": None, "interval": None}},
    }
    problem = {"pair_id": "pair-05", "order": "chosen_first", "status": "refused", "problem": "I <can't>."}
    return {
        "name": "ear",
        "backend": "endpoint",
        "kind": "pairwise",
        "num_answers": 96,
        "num_replies": 99,
        "prompt_tokens": 9600,
        "completion_tokens": 960,
        "usd": 0.12,
        "sessions": {"calls": 99, "retries": 4},
        "answers": {"usable": 95, "refused": 1},
        "problems": [problem],
        "groups": [group],
    }


def make_training(coefficient, drift):
    history = [
        {"step": step, "mean_reward": drift * step / 100, "margin": step / 50, "loss": 0.5}
        for step in range(10, 101, 10)
    ]
    history += [{"step": step, "eval_mean_reward": drift * step / 100, "eval_margin": 1.0} for step in (50, 100)]
    return {"training": {"center_rewards_coefficient": coefficient}, "history": [*history, {"train_loss": 0.1}]}


def make_other(labels, seed=7, *, folder="runs/other", model="other/<model>", scores=None):
    """Return another evaluation of the same pairs."""
    scores = scores or make_scores(labels, seed, 0.5)
    records = [{"pair_id": pair_id, **score} for pair_id, score in scores.items()]
    return Evaluation(folder, records, {"config": {"model": model}})
