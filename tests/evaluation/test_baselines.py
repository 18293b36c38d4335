import io
import subprocess
import sys

import numpy as np
import pytest
import soundfile
from datasets import Dataset

from sdiareward.audio_sdiareward import AudioError
from sdiareward.evaluation.baselines import compute_acoustic_features, log_mel, score_baseline


RATE = 16_000


def encode(signal):
    buffer = io.BytesIO()
    soundfile.write(buffer, signal, RATE, format="FLAC")
    return {"bytes": buffer.getvalue(), "path": None}


def voice(seed, *, noise=0.0, duration_s=0.4):
    generator = np.random.default_rng(seed)
    time_s = np.arange(int(duration_s * RATE)) / RATE
    pitch = generator.uniform(90, 250)
    tone = sum(np.sin(2 * np.pi * pitch * harmonic * time_s) / harmonic for harmonic in range(1, 6))
    return (0.1 * tone + noise * generator.normal(size=len(time_s))).astype(np.float32)


def turns(text, signal):
    return [{"role": "user", "text": text, "audio": encode(signal)}]


@pytest.fixture
def noisy_rejected():
    """Pairs that say the same; the rejected side has another noise floor."""
    rows = [
        {
            "pair_id": f"pair-{seed}",
            "chosen": turns(f"hello number {seed}", voice(seed)),
            "rejected": turns(f"hello number {seed}", voice(seed + 100, noise=0.02)),
        }
        for seed in range(12)
    ]
    return Dataset.from_list(rows[:8]), Dataset.from_list(rows[8:])


def with_texts(pairs):
    row = {"audio": encode(voice(0))}
    return Dataset.from_list(
        [
            {
                side: [{"role": "user", "text": text, **row}]
                for side, text in zip(("chosen", "rejected"), pair, strict=True)
            }
            for pair in pairs
        ]
    )


def test_log_mel_puts_a_tone_into_the_band_that_holds_its_frequency():
    time_s = np.arange(RATE) / RATE
    low, high = (log_mel(np.sin(2 * np.pi * hertz * time_s).astype(np.float32)).mean(axis=0) for hertz in (300, 3000))
    # Slaney's scale is linear below 1 kHz: 80 bands to 8 kHz put 300 Hz near the eighth.
    assert low.argmax() == pytest.approx(7, abs=1)
    assert high.argmax() > 40
    assert log_mel(np.zeros(321, dtype=np.float32)).shape == (1, 80)


def test_acoustic_features_are_mean_and_deviation_over_all_turns():
    first, second = voice(1, noise=0.01), voice(2, noise=0.02)
    frames = np.concatenate([log_mel(first), log_mel(second)])
    expected = np.concatenate([frames.mean(axis=0), frames.std(axis=0)])
    side = turns("a", first) + turns("b", second)
    assert compute_acoustic_features(side) == pytest.approx(expected, abs=0.01)


def test_acoustic_features_read_messages_too():
    audio = encode(voice(1))
    message = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "audio", "audio": audio}]}
    schema = {"role": "user", "text": "a", "audio": audio}
    untyped = {"role": "user", "content": [{"text": "a"}, {"audio": audio}]}
    for found in (message, untyped):
        assert (compute_acoustic_features([found]) == compute_acoustic_features([schema])).all()


def test_a_side_without_audio_has_no_acoustic_features():
    with pytest.raises(AudioError, match="pair-1, chosen: no turn has audio"):
        compute_acoustic_features([{"role": "user", "text": "a", "audio": None}], "pair-1, chosen")


@pytest.mark.parametrize("kind", ["acoustic", "text"])
def test_equal_sides_tie_exactly(noisy_rejected, kind):
    train, evaluated = noisy_rejected
    same = evaluated.map(lambda row: {"rejected": row["chosen"]}) if kind == "acoustic" else evaluated
    result = score_baseline(kind, train, ["modality"] * 8, same, ["modality"] * 4)
    assert (result.chosen == result.rejected).all()


def test_equal_transcripts_tie_exactly_even_when_words_carry_weight():
    train = with_texts([("yeah so um I guess", "I would suppose so"), ("um yeah no", "I would decline")] * 3)
    evaluated = with_texts([("um yeah", "I would"), ("yeah I would um go", "yeah I would um go"), ("", "...")])
    result = score_baseline("text", train, ["colloquialness"] * 6, evaluated, ["colloquialness"] * 3)
    assert result.chosen[0] > result.rejected[0]
    assert result.chosen[1] == result.rejected[1] != 0
    assert result.chosen[2] == result.rejected[2] == 0


def test_each_criterion_has_a_fit_of_its_own(noisy_rejected):
    train, evaluated = noisy_rejected
    swapped = train.rename_columns({"chosen": "rejected", "rejected": "chosen"})
    both = Dataset.from_list([*train, *swapped])
    criteria = ["modality"] * 8 + ["colloquialness"] * 8
    result = score_baseline("acoustic", both, criteria, evaluated, ["modality", "colloquialness"] * 2)
    assert (result.chosen > result.rejected).tolist() == [True, False] * 2


def test_pairs_with_bad_audio_are_left_out_of_the_fit_or_tie_and_are_reported(noisy_rejected):
    train, evaluated = map(list, noisy_rejected)
    train[3]["chosen"][0]["audio"]["bytes"] = evaluated[1]["rejected"][0]["audio"]["bytes"] = b"not audio"
    pairs = map(Dataset.from_list, (train, evaluated))
    train, evaluated = pairs
    result = score_baseline("acoustic", train, ["modality"] * 8, evaluated, ["modality"] * 4)
    assert (result.chosen > result.rejected).tolist() == [True, False, True, True]
    assert result.chosen[1] == result.rejected[1] and result.num_train == {"modality": 7}
    assert result.skipped_train[0].startswith("pair-3, chosen: cannot be decoded")
    assert result.unread[0].startswith("pair-9, rejected: cannot be decoded")
    with pytest.raises(ValueError, match="no criterion .*colloquialness"):
        score_baseline("text", train, ["modality"] * 8, evaluated, ["colloquialness"] * 4)


def test_a_training_pair_without_a_side_is_left_out_of_the_text_baseline():
    pairs = [("oh well fine", "it is adequate"), ("yeah sure", "that is acceptable"), ("oh yeah", "it is correct")]
    rows = with_texts(pairs).to_list()
    rows[1]["chosen"] = None
    found = score_baseline("text", Dataset.from_list(rows), ["joint"] * 3, with_texts(pairs[:1]), ["joint"])
    assert found.num_train == {"joint": 2} and found.chosen[0] > found.rejected[0]
    assert len(found.skipped_train) == 1 and found.skipped_train[0].startswith("row 1: its sides cannot be read (")
    for row in rows:
        row["chosen"] = None
    with pytest.raises(ValueError, match="no training pair of joint can be read, row 0: its sides cannot be read"):
        score_baseline("text", Dataset.from_list(rows), ["joint"] * 3, with_texts(pairs[:1]), ["joint"])


@pytest.mark.slow
def test_the_baselines_do_not_import_torch():
    code = (
        "import sys; import numpy as np; from sdiareward.evaluation.baselines import fit_score, log_mel\n"
        "mel = log_mel(np.random.default_rng(0).normal(size=1600).astype('f'))\n"
        "fit_score(mel, mel[::-1])(mel)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
