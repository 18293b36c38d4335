"""A type checker sees through the public names: correct calls pass, and it finds a misspelt option or key."""

import re

import pytest
from mypy import api
from support.paths import ROOT


CALLS = """
from sdiareward import Scorer, async_reward_fn, example_dialogues, reward_fn

human, synthetic = example_dialogues()
scorer = Scorer.from_pretrained("nano", device="cpu", batch_tokens=8192)
one: float = scorer.score(human, criterion="modality", progress=False)
both: list[float] = scorer.score([human, synthetic], ["modality", "joint"])
path: float = scorer.score("call.json")
exchange: float = scorer.score(("user.wav", "answer.wav"))
turns: float = scorer.score([{"role": "user", "audio": "user.wav"}, {"role": "assistant", "text": "Yes."}])
reward_fn("nano", speak=list, on_error="floor", floor=-1.0)
async_reward_fn(scorer, completion_audio_column="sound")
"""
WRONG = {
    'reward_fn("nano", speek=list)': "speek",
    'Scorer.from_pretrained("nano", batchtokens=1)': "batchtokens",
    'reward_fn("nano", on_error="nothing")': "on_error",
    'scorer.score([{"role": "user", "audoi": "user.wav"}])': "audoi",
    "scorer.score(human, progres=True)": "call-overload",
}


@pytest.mark.slow
def test_a_type_checker_finds_misspelt_options_and_keys(tmp_path, monkeypatch):
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sdiareward").symlink_to(ROOT)
    monkeypatch.setenv("MYPYPATH", str(tmp_path / "path"))
    sections = ["[mypy]", "ignore_missing_imports = true", "follow_imports = silent"]
    # Libraries alone take a minute.
    for name in (
        "cyclopts",
        "datasets",
        "huggingface_hub",
        "numpy",
        "pandas",
        "pyarrow",
        "pydantic",
        "torch",
        "transformers",
    ):
        sections += [f"[mypy-{name}.*]", "follow_imports = skip"]
    (tmp_path / "mypy.ini").write_text("\n".join(sections))
    snippet = tmp_path / "snippet.py"
    snippet.write_text(CALLS + "\n".join(WRONG))
    options = ["--config-file", str(tmp_path / "mypy.ini"), "--cache-dir", str(tmp_path / "cache")]
    found, _, _ = api.run([*options, "--no-error-summary", str(snippet)])
    errors = {int(line): error for line, error in re.findall(r"snippet\.py:(\d+): error: (.*)", found)}
    first = CALLS.count("\n") + 1
    assert sorted(errors) == list(range(first, first + len(WRONG))), found
    for error, named in zip((errors[line] for line in sorted(errors)), WRONG.values(), strict=True):
        assert named in error
