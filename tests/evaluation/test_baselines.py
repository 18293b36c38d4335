import io

import numpy as np
import pytest
import soundfile
from datasets import Dataset

from sdiareward.audio_sdiareward import AudioError
from sdiareward.evaluation.baselines import compute_acoustic_features, log_mel, score_baseline


RATE = 16_000
SIDES = ("chosen", "rejected")


def make_voice(seed, noise=0.0):
    generator, time_s = np.random.default_rng(seed), np.arange(int(0.4 * RATE)) / RATE
    pitch = generator.uniform(90, 250)
    tone = sum(np.sin(2 * np.pi * pitch * harmonic * time_s) / harmonic for harmonic in range(1, 6))
    return (0.1 * tone + noise * generator.normal(size=len(time_s))).astype(np.float32)


def make_turns(text, signal):
    buffer = io.BytesIO()
    soundfile.write(buffer, signal, RATE, format="FLAC")
    return [{"role": "user", "text": text, "audio": {"bytes": buffer.getvalue(), "path": None}}]


def make_texts(pairs):
    voice = make_voice(0)
    return [{side: make_turns(text, voice) for side, text in zip(SIDES, pair, strict=True)} for pair in pairs]


@pytest.fixture
def noisy():
    """Pairs that say the same; the rejected side has another noise floor. Eight to fit on, four to score."""
    rows = [
        {
            "pair_id": f"pair-{seed}",
            "chosen": make_turns(f"hello number {seed}", make_voice(seed)),
            "rejected": make_turns(f"hello number {seed}", make_voice(seed + 100, 0.02)),
        }
        for seed in range(12)
    ]
    return rows[:8], rows[8:]


def score(kind, train, rows, criteria=("modality",), train_criteria=("modality",)):
    pairs = [
        (Dataset.from_list(each), list(of) * (len(each) // len(of)))
        for each, of in ((train, train_criteria), (rows, criteria))
    ]
    (chosen, rejected), about = score_baseline(kind, *pairs[0], *pairs[1])
    return chosen, rejected, about


def test_log_mel_puts_a_tone_into_the_band_that_holds_its_frequency():
    time_s = np.arange(RATE) / RATE
    low, high = (log_mel(np.sin(2 * np.pi * hertz * time_s).astype(np.float32)).mean(axis=0) for hertz in (300, 3000))
    # Slaney's scale is linear below 1 kHz: 80 bands to 8 kHz put 300 Hz near the eighth.
    assert low.argmax() == pytest.approx(7, abs=1) and high.argmax() > 40
    assert log_mel(np.zeros(321, dtype=np.float32)).shape == (1, 80)


def test_acoustic_features_are_mean_and_deviation_over_all_turns_of_any_form():
    first, second = make_voice(1, 0.01), make_voice(2, 0.02)
    frames = np.concatenate([log_mel(first), log_mel(second)])
    expected = np.concatenate([frames.mean(axis=0), frames.std(axis=0)])
    turns = make_turns("a", first) + make_turns("b", second)
    found = compute_acoustic_features(turns)
    assert found == pytest.approx(expected, abs=0.01)
    contents = [[{"type": "text", "text": turn["text"]}, {"type": "audio", "audio": turn["audio"]}] for turn in turns]
    messages = [{"role": "user", "content": content} for content in contents]
    assert (compute_acoustic_features(messages) == found).all()
    with pytest.raises(AudioError, match="pair-1, chosen: no turn has audio"):
        compute_acoustic_features([{"role": "user", "text": "a", "audio": None}], "pair-1, chosen")


def test_equal_sides_tie_exactly(noisy):
    train, rows = noisy
    chosen, rejected, _ = score("acoustic", train, [{**row, "rejected": row["chosen"]} for row in rows])
    assert (chosen == rejected).all()
    train = make_texts([("yeah so um I guess", "I would suppose so"), ("um yeah no", "I would decline")] * 3)
    rows = make_texts([("um yeah", "I would"), ("yeah I would um go", "yeah I would um go"), ("", "...")])
    chosen, rejected, _ = score("text", train, rows)
    assert chosen[0] > rejected[0] and chosen[1] == rejected[1] != 0 and chosen[2] == rejected[2] == 0


def test_each_criterion_has_a_fit_of_its_own(noisy):
    train, rows = noisy
    swapped = [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in train]
    both = [row for pair in zip(train, swapped, strict=True) for row in pair]
    criteria = ("modality", "colloquialness")
    chosen, rejected, _ = score("acoustic", both, rows, criteria, criteria)
    assert (chosen > rejected).tolist() == [True, False] * 2
    with pytest.raises(ValueError, match="no criterion .*colloquialness"):
        score("text", train, rows, ("colloquialness",))


def test_pairs_that_cannot_be_read_are_not_fitted_on_or_tie_and_are_reported(noisy):
    train, rows = noisy
    train[3]["chosen"][0]["audio"]["bytes"] = rows[1]["rejected"][0]["audio"]["bytes"] = b"not audio"
    chosen, rejected, about = score("acoustic", train, rows)
    assert (chosen > rejected).tolist() == [True, False, True, True] and chosen[1] == rejected[1]
    assert about["num_train"] == {"modality": 7}
    assert about["skipped_train"][0].startswith("pair-3, chosen: cannot be decoded")
    assert about["unread"][0].startswith("pair-9, rejected: cannot be decoded")
    texts = make_texts([("oh well fine", "it is adequate"), ("yeah sure", "that is acceptable"), ("oh", "it is")])
    texts[1]["chosen"] = None
    chosen, rejected, about = score("text", texts, texts[:1])
    assert about["num_train"] == {"modality": 2} and chosen[0] > rejected[0]
    assert about["skipped_train"][0].startswith("row 1: its sides cannot be read (")
    with pytest.raises(ValueError, match="no training pair of modality can be read: row 0: its sides cannot be read"):
        score("text", [texts[1]], texts[:1])
