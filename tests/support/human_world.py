"""Finished evaluations and pairs of tones, for the tests of human verification and of calibration."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile

from sdiareward.evaluation.human.study import sample_study
from sdiareward.evaluation.scores import read_evaluation
from sdiareward.pairs.loading import load_pairs


RATE = 16_000


def make_score(number, margin, subset="semi_wild", group=None, criterion=None, chosen=None):
    chosen = margin if chosen is None else chosen
    return {
        "pair_id": f"pair-{number:03d}",
        "criterion": criterion or ("colloquialness" if subset == "colloquialness" else "modality"),
        "subset": subset,
        "source": "made_up",
        "synthesizer": "tones",
        "group_id": group or f"recording-{number}",
        "chosen": chosen,
        "rejected": chosen - margin,
        "margin": margin,
    }


def write_evaluation(folder, scores, run=None, dataset=None):
    folder.mkdir(parents=True)
    (folder / "scores.jsonl").write_text("".join(json.dumps(score) + "\n" for score in scores))
    identity = {"model": "some/model (0123)", "dtype": None, "split": "test", "pairs": "abcd", **(run or {})}
    results = {"run": identity, "config": {"dataset": dataset, "dataset_config": None}}
    (folder / "results.json").write_text(json.dumps(results))
    return folder


def tone(frequency_hz, duration_s=0.2):
    time_s = np.arange(round(duration_s * RATE)) / RATE
    return (0.3 * np.sin(2 * np.pi * frequency_hz * time_s)).astype(np.float32)


def _turns(texts, frequencies_hz):
    turns = []
    for index, (text, frequency_hz) in enumerate(zip(texts, frequencies_hz, strict=True)):
        buffer = io.BytesIO()
        soundfile.write(buffer, tone(frequency_hz), RATE, format="WAV", subtype="PCM_16")
        audio = {"bytes": buffer.getvalue(), "path": None}
        turns.append({"role": ("user", "assistant")[index % 2], "text": text, "audio": audio})
    return turns


def write_pairs(path, scores, words_of=lambda score: score["pair_id"]):
    """Write a Parquet file: both sides begin with the same turn; chosen replies sound low, rejected ones high."""
    rows = []
    for number, score in enumerate(scores):
        texts = ("well, hello", f"{words_of(score)} <b>&amp;")
        sides = {"chosen": _turns(texts, (300, 400 + number)), "rejected": _turns(texts, (300, 2000 + number))}
        labels = ("pair_id", "criterion", "subset", "source", "synthesizer", "group_id")
        rows.append({**{name: score[name] for name in labels}, **sides})
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def draw_study(folder, margins, words="words ", **sizes):
    """Draw a study of pairs with these margins, and return its folder."""
    scores = [make_score(number, margin) for number, margin in enumerate(margins)]
    pairs = write_pairs(folder / "pairs.parquet", scores, words_of=lambda score: words)
    evaluation = read_evaluation(write_evaluation(folder / "eval", scores))
    sample_study(evaluation, load_pairs(pairs, "test"), folder / "study", seed=0, sizes=sizes)
    return folder / "study"
