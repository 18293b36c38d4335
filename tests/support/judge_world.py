"""Six made-up pairs whose chosen side is low and whose rejected side is high, and judges that hear it or do not."""

import base64
import io

import datasets
import numpy as np
import soundfile


LOW_HZ, HIGH_HZ = 200.0, 900.0
SUBSETS = ("wild", "semi_wild", "scripted", "wild", "colloquialness", "colloquialness")
DIMENSIONS = {
    "modality": ("final_turn_content", "final_turn_naturalness_prosody", "dialog_context_coherence"),
    "colloquialness": (
        *("lexical_informality", "syntactic_simplicity", "disfluencies", "pragmatic_naturalness", "prosody"),
    ),
}


def recording(frequency_hz, seed, duration_s=0.1):
    time_s = np.arange(round(duration_s * 16_000)) / 16_000
    noise = 0.001 * np.random.default_rng(seed).normal(size=time_s.size)
    tone = 0.3 * np.sin(2 * np.pi * frequency_hz * time_s) + noise
    buffer = io.BytesIO()
    soundfile.write(buffer, tone, 16_000, format="FLAC")
    return {"bytes": buffer.getvalue(), "path": None}


def make_pairs(num_turns=2):
    rows = []
    for number, subset in enumerate(SUBSETS):
        sides = {
            side: [
                {"role": ("user", "assistant")[turn % 2], "text": f"secret {side}", "audio": recording(hertz, number)}
                for turn in range(num_turns)
            ]
            for side, hertz in (("chosen", LOW_HZ), ("rejected", HIGH_HZ))
        }
        criterion = "colloquialness" if subset == "colloquialness" else "modality"
        labels = {"pair_id": f"pair-{number}", "criterion": criterion, "subset": subset, "source": "made_up"}
        more = {"synthesizer": "known", "group_id": f"group-{number}", "language": "en", "license": "CC0-1.0"}
        rows.append({**labels, **sides, **more})
    return datasets.Dataset.from_list(rows)


def hertz_of(part):
    """Return the pitch of a recording as an endpoint receives it."""
    array, rate = soundfile.read(io.BytesIO(base64.b64decode(part["input_audio"]["data"])))
    return (np.diff(np.signbit(array)) != 0).sum() / 2 / (len(array) / rate)


def first_is_low(body):
    """Return whether the version that a judge hears first is the low one, and what it is to grade."""
    system, user = body["messages"][:2]
    sounds = [part for part in user["content"] if part["type"] == "input_audio"]
    criterion = next(name for name, keys in DIMENSIONS.items() if keys[0] in system["content"])
    return hertz_of(sounds[0]) < (LOW_HZ + HIGH_HZ) / 2, criterion


def verdict(preference, criterion="modality", first=4, second=2):
    """Return an answer with the same scores of A, and of B, in every dimension."""
    scores = {name: {"A": first, "B": second} for name in DIMENSIONS[criterion]}
    return {"scores": scores, "overall_preference": preference, "reason": "It is how it sounds."}


def listening(body):
    """Answer as a judge that hears the difference."""
    is_low, criterion = first_is_low(body)
    return verdict("A", criterion, 4, 2) if is_low else verdict("B", criterion, 2, 4)


def always_first(body):
    """Answer as a judge that prefers whatever it hears first, but grades by ear."""
    is_low, criterion = first_is_low(body)
    return verdict("A", criterion, *((3, 2) if is_low else (2, 3)))


def deaf(body):
    """Answer as a judge that prefers whatever it hears first and grades all alike."""
    return verdict("A", first_is_low(body)[1], 3, 3)
