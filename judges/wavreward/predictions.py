"""Have a judge score samples, one line of `predictions.jsonl` per sample, and resume after a kill.

Samples are scored in chunks of fixed positions, and each chunk has its own seed. Sampled answers are therefore the
same whether or not a run was interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import NonNegativeFloat, PositiveInt
from pydantic.dataclasses import dataclass

from sdiareward.audio_sdiareward import AudioError, read_audio
from sdiareward.common.files import JsonLines, write_file
from sdiareward.common.skipped import Skipped
from sdiareward.scoring.outcomes import UNREADABLE

from .answers import MAX_ANSWER_TOKENS


if TYPE_CHECKING:
    from .judge import EndpointJudge, Judgement, WavRewardJudge
    from .scores import Samples

PREDICTIONS_FILE, OUT_OF_DOMAIN_FILE = "predictions.jsonl", "out_of_domain.jsonl"
# A kill costs one chunk at most.
_CHUNK_SAMPLES = 32


@dataclass(frozen=True)
class Asking:
    """How a judge is asked."""

    num_samples: PositiveInt = 1
    temperature: NonNegativeFloat = 0.0
    expected: bool = False
    max_new_tokens: PositiveInt = MAX_ANSWER_TOKENS
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_samples > 1 and self.temperature == 0:
            raise ValueError(f"num_samples is {self.num_samples}: without a temperature all answers are the same.")


def predict(
    load_judge: Callable[[], EndpointJudge | WavRewardJudge],
    samples: Samples,
    path: Path,
    asking: Asking,
    *,
    batch_size: int = 8,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Score the samples that the file lacks; return all predictions in order, and the skipped samples with reasons."""
    from tqdm.auto import tqdm

    log = JsonLines(path)
    done = {record["sample_id"]: record for record in log.read()}
    skipped: dict[str, Skipped] = {}
    judge = cache(load_judge)
    size = max(_CHUNK_SAMPLES, batch_size)
    with tqdm(total=len(samples), desc="judging", unit="sample") as progress:
        for start in range(0, len(samples), size):
            labels = samples.labels[start : start + size]
            if any(label["sample_id"] not in done for label in labels):
                found = _judge_chunk(judge, samples, range(start, start + len(labels)), asking, done, skipped)
                log.append(found)
                done |= {record["sample_id"]: record for record in found}
            progress.update(len(labels))
    by_id = {label["sample_id"]: label for label in samples.labels}
    lines = [{**label, **skipped[id_].explain()} for id_, label in by_id.items() if id_ in skipped]
    write_file(path.with_name(f"skipped_{path.name}"), "".join(json.dumps(line) + "\n" for line in lines))
    return [done[id_] for id_ in by_id if id_ in done], lines


def _judge_chunk(
    load_judge: Callable[[], EndpointJudge | WavRewardJudge],
    samples: Samples,
    indices: range,
    asking: Asking,
    done: Mapping[str, Any],
    skipped: dict[str, Skipped],
) -> list[dict[str, Any]]:
    """Return the missing predictions of a chunk; add the skipped samples to `skipped`."""
    labels, recordings = [], []
    for index in indices:
        label = samples.labels[index]
        try:
            recordings.append(read_audio(samples[index]["audio"], name=f"sample {label['sample_id']}"))
        except (AudioError, FileNotFoundError) as error:
            skipped[label["sample_id"]] = Skipped(label["sample_id"], UNREADABLE, str(error))
        else:
            labels.append(label)
    if all(label["sample_id"] in done for label in labels):
        return []
    judgements = load_judge().judge(recordings, **{**asdict(asking), "seed": asking.seed + indices.start})
    pairs = zip(labels, judgements, strict=True)
    return [make_prediction(label, found) for label, found in pairs if label["sample_id"] not in done]


def make_prediction(label: Mapping[str, Any], judgement: Judgement) -> dict[str, Any]:
    """Make the prediction of a sample from its labels and its judgement; of several texts the first is kept."""
    return {
        **label,
        "predicted": judgement.score,
        "expected_score": judgement.expected_score,
        "scores": list(judgement.scores),
        "text": judgement.texts[0],
        "follows_format": judgement.follows_format,
        "num_tokens": judgement.num_tokens,
        "num_cut": judgement.num_cut,
        "problem": judgement.problem,
        "changed_parameters": dict(judgement.changed_parameters),
        "seconds": judgement.seconds,
    }


def read_predictions(folder: str | Path, name: str = PREDICTIONS_FILE) -> list[dict[str, Any]]:
    folder = Path(folder)
    for file in (name, "results.json"):
        # Results are written last, so a folder with results is complete.
        if not (folder / file).is_file():
            raise FileNotFoundError(f"{folder}: has no {file}; give the output_dir of a finished evaluation.")
    return JsonLines(folder / name).read()
