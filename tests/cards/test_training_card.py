"""The card of a run that has just ended."""

import json
import shutil

import pytest
from huggingface_hub import ModelCard

from sdiareward.cards.model_card import write_model_card


@pytest.fixture
def finished(tmp_path, tiny_checkpoint, monkeypatch):
    """Return a function that writes the card of a run and reads it; `here/base` and `here/pairs` are folders."""
    for name in ("base", "pairs"):
        (tmp_path / "here" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_checkpoint, tmp_path / "run")

    def write(model, dataset, **run):
        arguments = {"model_name_or_path": model, "dataset": dataset}
        (tmp_path / "run" / "run.json").write_text(json.dumps({"arguments": arguments, **run}))
        write_model_card(tmp_path / "run")
        return ModelCard.load(tmp_path / "run" / "README.md")

    return write


def test_names_on_the_hub_are_in_the_header_and_folders_are_not(finished):
    card = finished("Qwen/Qwen2.5-Omni-7B", "me/pairs")
    assert (card.data.base_model, card.data.datasets) == ("Qwen/Qwen2.5-Omni-7B", ["me/pairs"])
    for model, dataset in (("here/base", "here/pairs"), ("nano", "pairs.jsonl"), ("/far/away/base", "../pairs")):
        card = finished(model, dataset)
        assert (card.data.base_model, card.data.datasets) == (None, None)


def test_the_pairs_that_a_model_was_trained_on_are_in_its_table(finished):
    trained_on = {"num_pairs": 7, "synthesizers": ["flite", "piper"], "sources": [], "licenses": None}
    training = {"max_steps": 8, "num_train_epochs": 100}
    card = finished("here/base", "here/pairs", trained_on=trained_on, training=training)
    rows = [line for line in card.text.splitlines() if line.startswith("| `")]
    assert "| `num_pairs` | 7 |" in rows and "| `synthesizers` | flite, piper |" in rows
    assert "| `max_steps` | 8 |" in rows
    assert not any(name in row for row in rows for name in ("sources", "licenses", "stages", "epochs"))
    earlier = {"trained_on": {"num_pairs": 90, "synthesizers": ["espeak-ng", "flite"], "sources": ["plays"]}}
    card = finished("here/base", "here/pairs", trained_on=trained_on, earlier_stages=[earlier])
    rows = [line for line in card.text.splitlines() if line.startswith("| `")]
    assert {"| `stages` | 2 |", "| `num_pairs` | 7 |", "| `synthesizers` | espeak-ng, flite, piper |"} < set(rows)
    assert "| `sources` | plays |" in rows and not any("licenses" in row for row in rows)
