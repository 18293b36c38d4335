"""The demo behind its page: turns, results, checks and its commands, without a browser."""

import io
import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from sdiareward.audio_sdiareward import Heard
from sdiareward.chat_sdiareward import DialogueError
from sdiareward.cli import main
from sdiareward.common.package import EXAMPLES, NANO
from sdiareward.pairs.messages import read_dialogue
from sdiareward.scoring.model_spec import ScoringError
from sdiareward.scoring.scorer import Scorer
from sdiareward.serving import demo
from sdiareward.serving.demo import app
from sdiareward.serving.demo.app import RecordedTurn


pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("gradio") is None, reason="pip install sdiareward[demo]")]


def wav(array, rate=16_000):
    buffer = io.BytesIO()
    soundfile.write(buffer, array, rate, format="WAV", subtype="FLOAT")
    return buffer.getvalue()


def test_models_without_a_common_criterion_are_refused():
    models = [SimpleNamespace(processor=SimpleNamespace(prompts={name: ""})) for name in ("joint", "warmth")]
    with pytest.raises(ScoringError, match=r"no criterion in common, but \['joint'\] and \['warmth'\]"):
        app.build(models[0], models[1:])


def test_files_become_turns_in_the_order_of_their_names_and_are_deleted(tmp_path, make_tone):
    for number, duration_s in ((10, 0.6), (2, 0.4), (1, 0.2)):
        stereo = np.stack([make_tone(duration_s)] * 2, axis=1)
        (tmp_path / f"turn{number}.wav").write_bytes(wav(stereo, 32_000))
    (tmp_path / "._turn1.wav").write_bytes(b"\0\5\x16\7")
    folder = tmp_path / "wrong"
    folder.mkdir()
    (folder / "note.wav").write_bytes(b"not audio at all")
    paths = list(map(str, tmp_path.glob("*.wav")))
    turns, taken, message, _ = app.take_files((), paths)
    assert [turn.duration_s for turn in turns] == [0.1, 0.2, 0.3] and message == ""
    array, rate = soundfile.read(io.BytesIO(turns[0].flac), dtype="float32")
    assert (array.shape, rate) == ((1600,), 16_000)
    kept, wrong, message, _ = app.take_files(turns, str(folder / "note.wav"))
    assert kept == turns and message.startswith("note.wav: ")
    app.delete_files("A", turns, [*taken, *wrong], message)
    assert not list(tmp_path.rglob("*.wav")) and not folder.exists()


BOMB = io.BytesIO()
soundfile.write(BOMB, np.zeros((4_000_000, 8), dtype=np.int16), 655_350, format="FLAC")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("note.wav", b"not audio at all"),
        ("note.txt", b"words"),
        ("short.wav", wav(np.zeros(300, dtype=np.float32))),
        ("long.wav", wav(np.zeros(61 * 8000, dtype=np.float32), 8000)),
        ("nan.wav", wav(np.full(8000, np.nan, dtype=np.float32))),
        ("bomb.flac", BOMB.getvalue()),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, name, content, monkeypatch):
    if name == "bomb.flac":
        monkeypatch.setattr(app.messages, "read_recording", lambda *_, **__: pytest.fail("it was decoded"))
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DialogueError, match=f"^{name}: ") as raised:
        app.add_files((), [tmp_path / name])
    assert "\n" not in str(raised.value) and str(tmp_path) not in str(raised.value)


def test_a_dialogue_has_no_more_than_16_turns_and_300_seconds(tmp_path, make_tone):
    (tmp_path / "a.wav").write_bytes(wav(make_tone(0.5)))
    turn, paths = RecordedTurn(b"", 0.5), [tmp_path / "a.wav"]
    assert len(app.add_files((turn,) * 15, paths)) == 16
    with pytest.raises(DialogueError, match="17 turns; a dialogue has at most 16. Nothing was added"):
        app.add_files((turn,) * 16, paths)
    with pytest.raises(DialogueError, match="a dialogue has at most 300 s"):
        app.add_files((RecordedTurn(b"", 60.0),) * 5, paths)


def test_words_belong_to_turns_line_by_line(make_tone):
    turn = app.read_turn(wav(make_tone(0.5)), "a.wav")
    dialogue = app.join_words((turn,) * 4, "hello\n\n so \n", "dialogue A")
    assert [each.text for each in dialogue.turns] == ["hello", "", "so", ""]
    assert [each.role for each in dialogue.turns] == ["user", "assistant"] * 2
    for num_turns, words in ((2, "a\nb\nc"), (3, ""), (0, "")):
        with pytest.raises(DialogueError, match="^(the words of )?dialogue A"):
            app.join_words((turn,) * num_turns, words, "dialogue A")


def test_a_model_of_the_hub_is_linked_and_a_folder_is_named_without_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "model").mkdir(parents=True)
    models = {
        "org/model-1": "[org/model-1](https://huggingface.co/org/model-1)",
        str(tmp_path / "private" / "model"): "**model**",
        "runs/model": "**model**",
        "a/b](javascript:alert(1))": r"**b\](javascript:alert(1))**",
    }
    assert f"Model: {' or '.join(models.values())}." in app.write_introduction(list(models))


def test_a_result_has_rewards_margin_and_what_is_not_heard_and_no_markup_from_outside():
    whole, cut = Heard(1.0, 1.0, 2), Heard(12.3, 11.8, 2, cut_turns=(1,))
    markup = '<img src=x onerror="alert(1)">'
    shown = app.render_result(markup, [0.25, 1.5], [whole, cut])
    assert [text in shown for text in ("+0.25", "+1.50", "\N{MINUS SIGN}1.25", "To this model, B ")] == [True] * 4
    assert "Dialogue B: 1 turns cut: the model hears 11.8 of 12.3 s (turn 1)." in shown
    assert "Dialogue A:" not in shown and "Margin" not in app.render_result("joint", [0.25], [whole])
    assert markup not in shown + app.render_panel("A", (), markup)
    assert "&lt;img" in app.render_panel("A", (), markup)


def find_score(page):
    [score] = [block.fn for block in page.fns.values() if getattr(block.fn, "__name__", "") == "score"]
    return score


def test_the_page_scores_with_the_model_that_is_chosen(make_tiny_model, tiny_processor, monkeypatch):
    calls = []

    def lend_gpu(function):
        return lambda *given: calls.append(function.__name__) or function(*given)

    # What the Hub puts on a Space with ZeroGPU.
    monkeypatch.setattr(demo, "_spaces", SimpleNamespace(GPU=lend_gpu))
    nano = Scorer.from_pretrained(NANO, device="cpu")
    page = app.build(nano, [Scorer(make_tiny_model(), tiny_processor, device="cpu")])
    [radio] = [part["props"] for part in page.get_config_file()["components"] if part["props"].get("label") == "Model"]
    assert radio["visible"] and [choice[1] for choice in radio["choices"]] == [0, 1]
    given = app.read_example(EXAMPLES / "human.json")
    first, second = (find_score(page)(*given, (), "", "modality", number) for number in (0, 1))
    [expected] = nano.score([read_dialogue(EXAMPLES / "human.json")], "modality")
    assert f"{expected:+.2f}".replace("-", "\N{MINUS SIGN}") in first and first != second
    assert calls == ["score_dialogues"] * 2
    assert "dialogue A has no turns" in find_score(page)((), "", *given, "modality", 0)


def test_a_missing_gradio_is_reported_before_a_model_is_loaded(monkeypatch, capsys):
    monkeypatch.setattr(app, "load_scorer", lambda **_: pytest.fail("a model was loaded"))
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["demo"]) == 2
    message = 'sdiareward demo: error: gradio is not installed; pip install "sdiareward[demo]"\n'
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("flags", "shared", "message"),
    [([], None, ""), (["--share"], "https://x.example", "Public address"), (["--share"], None, "No public")],
)
def test_the_page_is_shared_only_if_that_is_requested(flags, shared, message, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(app, "build", lambda **_: SimpleNamespace(block_thread=lambda: None))
    monkeypatch.setattr(app, "launch", lambda _, **options: asked.append(options["share"]) or (None, "local", shared))
    assert main(["demo", *flags]) == 0
    assert asked == [bool(flags)]
    assert capsys.readouterr().out.startswith(f"Page: local; Ctrl+C ends\n{message}")


def test_a_port_that_is_taken_is_one_line(capsys, monkeypatch):
    import gradio

    with gradio.Blocks(analytics_enabled=False) as page:
        gradio.Markdown("a page")
    monkeypatch.setattr(app, "build", lambda **_: page)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["demo", "--port", port]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert port in line


def test_a_zero_gpu_space_imports_its_module_before_torch(tmp_path):
    (tmp_path / "spaces.py").write_text("import sys\nprint('torch' in sys.modules)\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", "import sdiareward.serving.demo.app"]
    done = subprocess.run(command, capture_output=True, check=True, env={**os.environ, "PYTHONPATH": paths})
    assert done.stdout == b"False\n"
