"""Pairs are grouped by what differs between their sides, and every scorer is measured on the same ones."""

import json

import pytest

from benchmarks import families
from benchmarks.guides.rendering import make_environment, render_blocks


def label(name, criterion="joint", *, primary="context", secondary="order", synthesizer="recording", texts=("a", "b")):
    sides = {side: [{"content": text}] for side, text in zip(("chosen", "rejected"), texts, strict=True)}
    return {
        "pair_id": name,
        "criterion": criterion,
        "subset": "all" if criterion == "joint" else criterion,
        "source": "amazon_queen",
        "primary": primary,
        "secondary": secondary,
        "synthesizer": synthesizer,
        "group_id": name,
        "texts": sides,
    }


def write_evaluation(folder, margins, baseline=None):
    """Write a finished evaluation of one criterion, with a baseline's scores if given."""
    folder.mkdir()
    records = [{"pair_id": name, "chosen": margin, "rejected": 0.0} for name, margin in margins.items()]
    (folder / "scores.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    for name in ("results.json", "identity.json"):
        (folder / name).write_text("{}")
    if baseline is not None:
        scores = {name: {"chosen": margin, "rejected": 0.0} for name, margin in baseline.items()}
        (folder / "acoustic.json").write_text(json.dumps({"scores": scores}))
    return str(folder)


def test_pairs_are_grouped_by_kind_and_by_voices():
    labels = [
        label("a"),
        label("b", synthesizer="flite"),
        label("c", "colloquialness", primary="travel", secondary="balanced", synthesizer="flite+hibari"),
        label("d", "modality", primary="Inform", secondary="Unknown", synthesizer="hibari"),
        label("e", primary="prosody", secondary="flat", synthesizer="world"),
    ]
    groups = {key: [member["pair_id"] for member in members] for key, members in families.group(labels).items()}
    assert groups == {
        ("colloquialness", "across voices", "rejected side by hibari"): ["c"],
        ("colloquialness", "balanced", "two synthesizers"): ["c"],
        ("joint", "context: order", "all"): ["a", "b"],
        ("joint", "context: order", "one synthesizer"): ["b"],
        ("joint", "context: order", "recorded"): ["a"],
        ("joint", "prosody: flat", "world"): ["e"],
        ("modality", "amazon_queen", "hibari"): ["d"],
    }


def test_scorers_are_measured_on_the_pairs_that_all_of_them_have(tmp_path):
    folders = [
        f"small={write_evaluation(tmp_path / 'one', {'a': 1.0}, {'a': -1.0})}",
        f"small={write_evaluation(tmp_path / 'two', {'b': -1.0, 'c': 1.0}, {'b': 1.0})}",
    ]
    scores = families.read_scores(folders)
    assert families.read_dtypes(folders) == {"small": ["checkpoint"]}
    assert {name: sorted(own) for name, own in scores.items()} == {"small": ["a", "b", "c"], "acoustic": ["a", "b"]}
    labels = {name: label(name, texts=("a, b", "a b")) for name in "abc"}
    (recorded,) = families.measure(labels, scores)
    assert (recorded["voices"], recorded["num_pairs"]) == ("recorded", 2)
    assert (recorded["small"]["accuracy"], recorded["acoustic"]["accuracy"]) == (0.5, 0.5)
    assert recorded["best_count"] == {"name": "commas", "accuracy": 1.0}


def test_a_count_is_shown_only_where_the_words_differ():
    row = families.describe([label("a", texts=("same", "same"))], {"small": {"a": {"chosen": 1.0, "rejected": 1.0}}})
    assert "best_count" not in row
    assert (row["small"]["accuracy"], row["small"]["num_ties"]) == (0.0, 1)


def test_reward_is_correlated_with_length_within_one_style_and_one_voice():
    texts = [("a " * count, "b " * (20 - count)) for count in range(1, 11)]
    labels = {
        str(index): label(str(index), "colloquialness", synthesizer="flite+hibari" if index else "flite", texts=each)
        for index, each in enumerate(texts)
    }
    rewards = {str(index): {"chosen": -float(index), "rejected": 0.5 * index} for index in range(10)}
    found = families.correlate_length(labels, {"small": rewards, "text": {}})
    # The rejected sides are by two voices, of which none has ten dialogues.
    assert found == [{"side": "chosen", "voice": "flite", "num_dialogues": 10, "spearman": {"small": -1.0}}]


def test_the_pairs_of_a_training_are_its_steps_times_what_a_step_takes(tmp_path):
    run = {
        "training": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
        "history": [{"step": 10, "loss": 1.0}, {"step": 25, "eval_loss": 1.0}],
    }
    (tmp_path / "run.json").write_text(json.dumps(run))
    assert families.read_steps([f"small={tmp_path / 'run.json'}"]) == {"small": {"steps": 25, "pairs": 200}}


@pytest.fixture
def result():
    share = {"accuracy": 0.875, "num_ties": 0, "num_invalid": 0, "num_groups": 8, "interval": [0.5, 1.0]}
    row = {"criterion": "joint", "kind": "context: last_answer", "voices": "recorded", "num_pairs": 8}
    names = ("small", "nano", "acoustic", "text")
    return {
        "dtypes": {"small": ["fast"]},
        "length": [],
        "rows": [{**row, **dict.fromkeys(names, share), "best_count": {"name": "words", "accuracy": 0.625}}],
    }


def test_the_guide_shows_accuracies_and_which_goals_are_met(result):
    blocks = render_blocks("results_small", {"families.json": result})
    assert "| joint | context: last answer | recorded | 8 | **87.50 (50.0-100.0)** |" in blocks["families"]
    assert "words 62.50 |" in blocks["families"]
    assert '`small` computed with `dtype="fast"`' in blocks["families"]
    assert (
        "| last answer from another conversation, recordings | 8 | 87.50 (50.0-100.0) | 90 | not met |"
        in blocks["goals"]
    )


def test_the_goals_name_the_worst_of_the_voices_that_training_never_heard(result):
    shares = {"hibari": 0.8, "kokoro": 0.7, "festival": 1.0, "flite": 0.1}
    rows = [
        {
            **{"criterion": "modality", "kind": "drascula", "voices": voice, "num_pairs": 10},
            **{name: {"accuracy": share, "interval": [0.5, 1.0]} for name in ("small", "nano", "acoustic", "text")},
        }
        for voice, share in shares.items()
    ]
    unseen = {"rows": rows, "dtypes": {"small": ["fast"]}}
    blocks = render_blocks("results_small", {"families.json": result, "families_unseen.json": unseen})
    assert "| modality | recordings | hibari | 10 | **80.00 (50.0-100.0)** |" in blocks["unseen"]
    lines = [line for line in blocks["goals"].splitlines() if "never heard" in line or "both on" in line]
    assert lines[0].startswith("| hibari, the worse of two") and lines[0].endswith(
        "| 80.00 (50.0-100.0) | 90 | not met |"
    )
    assert lines[1] == "| both on average | 20 | 90.00 | 97 | not met |"


def test_the_picture_shows_the_families_that_were_measured(result):
    picture = make_environment().get_template("families.svg.jinja").render(read=lambda name: result)
    assert "Last answer from another conversation (8 pairs)" in picture
    assert picture.count("<rect") == 5
    assert 'width="420.0"' in picture
