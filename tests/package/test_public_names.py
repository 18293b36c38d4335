"""What `import sdiareward` gives: every name, in every form that it takes, with its example."""

import doctest
import inspect
import shutil
import sys

import numpy as np
import pytest
import soundfile
import torch
from support.tables import write_rows

import sdiareward
from sdiareward.audio_sdiareward import Clip
from sdiareward.common.package import EXAMPLES
from sdiareward.scoring.scorer import Scorer


NAMES = [name for name in sdiareward.__all__ if inspect.getdoc(getattr(sdiareward, name)) and name != "__version__"]


@pytest.fixture(scope="module")
def scorer():
    return Scorer.from_pretrained("nano", device="cpu")


@pytest.fixture(scope="module")
def recordings():
    return [sdiareward.read_audio(EXAMPLES / f"human-{number}.flac") for number in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_name_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = getattr(sdiareward, name)
    parser, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
    for test in parser.find(found, name, module=sys.modules[found.__module__], globs={name: found}):
        assert runner.run(test).failed == 0


def turns(first, second):
    return [{"role": "user", "audio": first}, {"role": "assistant", "audio": second}]


def chat(first, second):
    roles = {"user": first, "assistant": second}
    return [{"role": role, "content": [{"type": "audio", "audio": sound}]} for role, sound in roles.items()]


FORMS = {
    "two paths": lambda paths, arrays: tuple(paths),
    "two arrays": lambda paths, arrays: tuple(arrays),
    "two tensors": lambda paths, arrays: tuple(map(torch.from_numpy, arrays)),
    "turns": lambda paths, arrays: turns(*paths),
    "turns of tensors": lambda paths, arrays: turns(*map(torch.from_numpy, arrays)),
    "messages": lambda paths, arrays: chat(*map(str, paths)),
    "a stereo tensor": lambda paths, arrays: chat(
        *({"array": torch.from_numpy(np.stack([each, each])), "sampling_rate": 16_000} for each in arrays)
    ),
    "a row": lambda paths, arrays: {"id": 1, "messages": turns(*paths)},
    "a dialogue": lambda paths, arrays: sdiareward.read_dialogue(tuple(paths)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_dialogue_gets_the_same_reward(scorer, recordings, form):
    paths = [EXAMPLES / f"human-{number}.flac" for number in (0, 1)]
    given = FORMS[form](paths, recordings)
    expected = scorer.score(FORMS["turns"](paths, recordings))
    assert isinstance(expected, float)
    assert scorer.score(given) == pytest.approx(expected, abs=1e-5)
    assert scorer.score([given, given]) == pytest.approx([expected] * 2, abs=1e-5)


def test_a_file_a_folder_and_the_examples_are_the_same_dialogue(scorer, tmp_path):
    human, synthetic = sdiareward.example_dialogues()
    for number, turn in enumerate(human.turns):
        soundfile.write(tmp_path / f"{number}_{turn.role}.wav", turn.audio.read(), 16_000)
        (tmp_path / f"{number}_{turn.role}.txt").write_text(turn.text)
    expected = scorer.score([human, synthetic])
    assert scorer.score((human, synthetic)) == expected
    assert scorer.score([str(EXAMPLES / "human.json"), tmp_path]) == pytest.approx([expected[0]] * 2, abs=1e-3)


SOUND = str(EXAMPLES / "human-0.flac")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([{"role": "user", "audoi": SOUND}, {"role": "assistant", "text": "x"}], "did you mean 'audio'"),
        ([{"role": "user", "text": "hi", "audoi": SOUND}, {"role": "assistant", "text": "x"}], "turn 1: .*'audoi'"),
        ([{"role": "user", "text": "hi"}, {"role": "assistant", "contnet": "x"}], "turn 2: .*did you mean 'content'"),
        ([{"role": "user", "content": SOUND}, {"role": "assistant", "content": "x"}], "give that under 'audio'"),
        ((EXAMPLES / "human.json", EXAMPLES / "human.json"), "human.json: .* use a list"),
        ([SOUND], "human-0.flac: is a recording"),
        ({"chosen": [], "rejected": []}, r"chosen, rejected; give a list of turns, such as row\['chosen'\]"),
        (str(EXAMPLES / "humam.json"), "humam.json: no such file"),
    ],
)
def test_what_is_no_dialogue_is_refused_with_what_to_give(scorer, given, message):
    with pytest.raises(ValueError, match=message):
        scorer.score(given)


def test_a_recording_prints_short_and_plays_in_a_notebook():
    clip = Clip(SOUND)
    assert repr(clip) == "3.2 s, 16 kHz, FLAC"
    assert clip._repr_html_().startswith('<audio controls src="data:audio/flac;base64,')
    assert repr(Clip("absent.wav")) == "unreadable: absent.wav: no such audio file."


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    shutil.copytree(EXAMPLES, folder / "sounds", ignore=shutil.ignore_patterns("*.ipynb"))
    prompt, chosen, rejected = (f"sounds/{name}.flac" for name in ("human-0", "human-1", "synthetic-1"))
    return write_rows(folder / "pairs.jsonl", [{"prompt": prompt, "chosen": chosen, "rejected": rejected}])


@pytest.mark.slow
def test_an_evaluation_and_an_audit_are_their_results_and_show_them(pairs):
    found = sdiareward.evaluate("nano", pairs, criterion="modality", baselines=False)
    assert found["accuracies"]["model"]["num_pairs"]["overall_micro"] == 1
    audited = sdiareward.audit("nano", pairs, perturbations=["gain"], parts=["perturbations"])
    assert audited["num_pairs"] == 1 and audited["attacks"] is None
    for results in (found, audited):
        assert str(results).startswith("# ") and "<table>" in results._repr_html_()
    with pytest.raises(ValueError, match="'gian' is not one of"):
        sdiareward.audit("nano", pairs, perturbations=["gian"])
