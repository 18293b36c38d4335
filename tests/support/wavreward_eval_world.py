"""A small data set in the form of ChatReward: the words and the loudness of an answer tell its score."""

import io
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile

from sdiareward.dataset_builder.chatreward.scenarios import features
from sdiareward.pairs.messages import join_turns


RATE = 16_000
# Loudness of the answer by score.
LEVELS = {5: 0.2, 3: 0.05, 1: 0.01}
WORDS = {5: "of course it is noon", 3: "of course it is noon", 1: "my turtle learned to dance"}
PLACES = (("content", None), ("understanding", "age"), ("generation", "volume"), ("implicit", "emotion"))


def noise(level, seed, duration_s=0.2):
    return (level * np.random.default_rng(seed).standard_normal(round(duration_s * RATE))).astype(np.float32)


def make_sample(scenario, score, part, attribute):
    seed = zlib.crc32(f"{part}-{scenario}".encode())
    array = join_turns([noise(0.1, seed), noise(LEVELS[score], seed + 1, 0.3)])
    buffer = io.BytesIO()
    soundfile.write(buffer, array, RATE, format="WAV", subtype="PCM_16")
    return dict.fromkeys(features()) | {
        "sample_id": f"{part}-{scenario}-{score}",
        "scenario_id": f"{part}-{scenario}",
        "part": part,
        "attribute": attribute,
        "topic": "daily_life",
        "score": score,
        "design_score": score,
        "question": f"what time is it in town {scenario}",
        "response": WORDS[score],
        "question_s": 0.2,
        "response_s": 0.3,
        "duration_s": 1.5,
        "audio": {"bytes": buffer.getvalue(), "path": None},
        "synthesizer": "tones",
        "language": "en",
        "license": "CC0-1.0",
    }


def make_scenarios(numbers, places=PLACES):
    return [
        make_sample(number, score, part, attribute)
        for number in numbers
        for part, attribute in places
        for score in (5, 3, 1)
    ]


def write_split(folder, split, rows):
    (folder / "data").mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows, schema=features().arrow_schema)
    pq.write_table(table, folder / "data" / f"{split}-00000.parquet")


def write_chatreward(folder, num_train=3, num_test=1):
    """Write a folder of scenarios in each of four parts, three answers each."""
    write_split(folder, "train", make_scenarios(range(num_train)))
    write_split(folder, "test", make_scenarios(range(num_train, num_train + num_test)))
    return folder


def prediction(scenario, score, predicted, part="content", attribute=None, **more):
    return {
        "sample_id": f"{part}-{attribute}-{scenario}-{score}",
        "scenario_id": None if scenario is None else f"{part}-{attribute}-{scenario}",
        "part": part,
        "attribute": attribute,
        "score": score,
        "predicted": predicted,
        **more,
    }


def write_recordings(folder):
    """Write three recordings and the list of their scores."""
    folder.mkdir()
    for number, level in enumerate((0.2, 0.05, 0.01)):
        soundfile.write(folder / f"{number}.wav", noise(level, number), RATE)
    (folder / "scores.csv").write_text("file,score\n0.wav,5\n1.wav,3\n2.wav,1\n")
    return folder
