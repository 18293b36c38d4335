"""Have a judge score samples, a line of `predictions.jsonl` each, so that a killed run goes on where it stopped.

Samples are judged in chunks of fixed positions and a chunk has a seed of its own: answers that are sampled are the
same whether or not a run was interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sdiareward.audio_sdiareward import AudioError, read_audio
from sdiareward.common.files import JsonLines, write_file


if TYPE_CHECKING:
    from .judge import Judgement
    from .score_samples import Samples

PREDICTIONS_FILE, OUT_OF_DOMAIN_FILE = "predictions.jsonl", "out_of_domain.jsonl"
# What a kill costs at most.
_CHUNK_SAMPLES = 32


@dataclass(frozen=True)
class Asking:
    """How a judge is asked.

    Args:
        num_samples (`int`, *optional*, defaults to 1): Answers to each recording, whose scores vote.
        temperature (`float`, *optional*, defaults to 0.0): 0 takes the likeliest token each time.
        expected (`bool`, *optional*, defaults to `False`): Also find the expected score.
        max_new_tokens (`int`, *optional*, defaults to 512): Longest answer.
        seed (`int`, *optional*, defaults to 0): Of the sampling.

    Raises:
        ValueError: A number is out of its range, or several answers are asked for without a temperature.
    """

    num_samples: int = 1
    temperature: float = 0.0
    expected: bool = False
    max_new_tokens: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_samples", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.temperature < 0:
            raise ValueError(f"temperature is {self.temperature}; it must not be negative.")
        if self.num_samples > 1 and self.temperature == 0:
            raise ValueError(f"num_samples is {self.num_samples}: without a temperature all answers are the same.")


class ScoreJudge(Protocol):
    """What scores recordings from 1 to 5; [`WavRewardJudge`] does."""

    def judge(
        self,
        recordings: Sequence[Any],
        *,
        num_samples: int,
        temperature: float,
        expected: bool,
        max_new_tokens: int,
        seed: int,
    ) -> list[Judgement]:
        """Return a judgement of each recording, a mono array at 16 kHz."""
        ...


def predict(
    load_judge: Callable[[], ScoreJudge], samples: Samples, path: Path, asking: Asking, *, batch_size: int = 8
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Judge every sample that the file does not have yet.

    Args:
        load_judge (`Callable`): Returns the judge; called only if something is left to judge.
        samples ([`Samples`]): What to judge.
        path (`Path`): File of predictions; those whose recording cannot be read go to `skipped_` and its name.
        asking ([`Asking`]): How to ask.
        batch_size (`int`, *optional*, defaults to 8): Recordings that the judge hears at once.

    Returns:
        `tuple[list, list]`: In the order of the samples, the prediction of each (its labels, `predicted`,
        `expected_score`, `scores`, `text`, `follows_format`, `num_tokens`, `seconds`) and the labels of each skipped
        one with its `reason`.
    """
    from tqdm.auto import tqdm

    log = JsonLines(path)
    done = {record["sample_id"]: record for record in log.read()}
    reasons: dict[str, str] = {}
    judge = cache(load_judge)
    size = max(_CHUNK_SAMPLES, batch_size)
    with tqdm(total=len(samples), desc="judging", unit="sample") as progress:
        for start in range(0, len(samples), size):
            labels = samples.labels[start : start + size]
            if any(label["sample_id"] not in done for label in labels):
                found = _judge_chunk(judge, samples, range(start, start + len(labels)), asking, done, reasons)
                log.append(found)
                done |= {record["sample_id"]: record for record in found}
            progress.update(len(labels))
    skipped = [{**label, "reason": reasons[id_]} for label in samples.labels if (id_ := label["sample_id"]) in reasons]
    write_file(path.with_name(f"skipped_{path.name}"), "".join(json.dumps(record) + "\n" for record in skipped))
    return [done[id_] for label in samples.labels if (id_ := label["sample_id"]) in done], skipped


def _judge_chunk(
    load_judge: Callable[[], ScoreJudge],
    samples: Samples,
    indices: range,
    asking: Asking,
    done: Mapping[str, Any],
    reasons: dict[str, str],
) -> list[dict[str, Any]]:
    """Return the predictions of a chunk that are not there yet; put why others cannot be judged in `reasons`."""
    labels, recordings = [], []
    for index in indices:
        label = samples.labels[index]
        try:
            recordings.append(read_audio(samples[index]["audio"], name=f"sample {label['sample_id']}"))
        except (AudioError, FileNotFoundError) as error:
            reasons[label["sample_id"]] = str(error)
        else:
            labels.append(label)
    if all(label["sample_id"] in done for label in labels):
        return []
    judgements = load_judge().judge(recordings, **{**asdict(asking), "seed": asking.seed + indices.start})
    pairs = zip(labels, judgements, strict=True)
    return [describe_judgement(label, found) for label, found in pairs if label["sample_id"] not in done]


def describe_judgement(label: Mapping[str, Any], judgement: Judgement) -> dict[str, Any]:
    """Return the prediction of a sample.

    Args:
        label (`Mapping`): Its labels.
        judgement ([`Judgement`]): What the judge made of it; of several answers, the text of the first is kept.
    """
    return {
        **label,
        "predicted": judgement.score,
        "expected_score": judgement.expected_score,
        "scores": list(judgement.scores),
        "text": judgement.texts[0],
        "follows_format": judgement.follows_format,
        "num_tokens": judgement.num_tokens,
        "seconds": judgement.seconds,
    }


def read_predictions(folder: str | Path, name: str = PREDICTIONS_FILE) -> list[dict[str, Any]]:
    """Read the predictions of a finished evaluation.

    Args:
        folder (`str` or `Path`): Its `output_dir`.
        name (`str`, *optional*): `"predictions.jsonl"` or `"out_of_domain.jsonl"`.

    Raises:
        FileNotFoundError: The folder holds no evaluation, or one that is not finished.
    """
    folder = Path(folder)
    for file in (name, "results.json"):
        # Results come last, so a folder that has them is complete.
        if not (folder / file).is_file():
            raise FileNotFoundError(f"{folder}: has no {file}; give the output_dir of a finished evaluation.")
    return JsonLines(folder / name).read()
