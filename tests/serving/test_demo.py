"""The demo behind its page: turns, results, checks and their words, without a browser."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from sdiareward.audio_sdiareward import Heard
from sdiareward.chat_sdiareward import DialogueError
from sdiareward.common.package_files import EXAMPLES, NANO
from sdiareward.pairs.messages import read_dialogue
from sdiareward.scoring.model_spec import ScoringError
from sdiareward.scoring.scorer import Scorer
from sdiareward.serving.demo import app
from sdiareward.serving.demo.turns import (
    MAX_FILE_BYTES,
    MAX_WORDS_CHARACTERS,
    RecordedTurn,
    add_turns,
    make_messages,
    read_example,
    read_files,
    read_turn,
)


pytestmark = pytest.mark.slow


def wav(array, rate=16_000):
    buffer = io.BytesIO()
    soundfile.write(buffer, array, rate, format="WAV", subtype="FLOAT")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def nano():
    return Scorer.from_pretrained(NANO, device="cpu")


@pytest.fixture(scope="module")
def examples():
    """The messages of the bundled pair, as the page makes them."""
    return [make_messages(*read_example(EXAMPLES / f"{name}.json"), name) for name in ("human", "synthetic")]


@pytest.fixture
def turn(make_tone):
    return read_turn(wav(make_tone(0.5)), "a.wav")


def test_models_without_a_common_criterion_are_refused(nano):
    other = SimpleNamespace(processor=SimpleNamespace(prompts={"warmth": "Judge it."}))
    with pytest.raises(ScoringError, match=r"no criterion in common, but \[.*'joint'.*\] and \['warmth'\]"):
        app.build(nano, [other])


def test_an_uploaded_turn_is_kept_mono_at_16_khz(make_tone):
    stereo = np.stack([make_tone(1.0), make_tone(1.0)], axis=1)
    turn = read_turn(wav(stereo, 32_000), "a.wav")
    array, rate = soundfile.read(io.BytesIO(turn.flac), dtype="float32")
    assert (array.shape, rate, turn.duration_s) == ((8000,), 16_000, 0.5)


def test_files_are_read_in_the_order_of_their_names(tmp_path, make_tone):
    paths = [tmp_path / f"turn{number}.wav" for number in (10, 2, 1)]
    for path, duration_s in zip(paths, (0.3, 0.2, 0.1), strict=True):
        path.write_bytes(wav(make_tone(duration_s)))
    (tmp_path / "._turn1.wav").write_bytes(b"\0\5\x16\7")
    assert [turn.duration_s for turn in read_files([*paths, tmp_path / "._turn1.wav"])] == [0.1, 0.2, 0.3]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("gone.wav", None),
        ("note.wav", b"not audio at all"),
        ("note.txt", b"words"),
        ("short.wav", wav(np.zeros(300, dtype=np.float32))),
        ("long.wav", wav(np.zeros(61 * 8000, dtype=np.float32), 8000)),
        ("nan.wav", wav(np.full(8000, np.nan, dtype=np.float32))),
        ("big.wav", b"x" * (MAX_FILE_BYTES + 1)),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, name, content):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DialogueError, match=f"^{name}: ") as raised:
        read_files([path])
    assert "\n" not in str(raised.value)
    assert str(tmp_path) not in str(raised.value)


@pytest.mark.parametrize("content", [b"not audio at all", wav(np.zeros(8000, dtype=np.float32))])
def test_an_upload_is_deleted_whether_it_is_right_or_wrong(tmp_path, content):
    path = tmp_path / "folder" / "turn.wav"
    path.parent.mkdir()
    path.write_bytes(content)
    app._take_files("A", (), [str(path)])
    assert not list(tmp_path.iterdir())


def test_a_small_file_that_would_fill_the_memory_is_refused_before_it_is_decoded(monkeypatch):
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros((4_000_000, 8), dtype=np.int16), 655_350, format="FLAC")
    assert buffer.tell() < 100_000
    monkeypatch.setattr("sdiareward.serving.demo.turns.read_recording", lambda *_, **__: pytest.fail("it was decoded"))
    with pytest.raises(DialogueError, match="^bomb.flac: has 8 channels at 655350 Hz"):
        read_turn(buffer.getvalue(), "bomb.flac")


def test_a_dialogue_has_no_more_than_16_turns_and_300_seconds(turn):
    assert len(add_turns((turn,) * 15, [turn])) == 16
    with pytest.raises(DialogueError, match="17 turns; a dialogue has at most 16. Nothing was added"):
        add_turns((turn,) * 16, [turn])
    with pytest.raises(DialogueError, match="301 s; a dialogue has at most 300 s"):
        add_turns((RecordedTurn(b"", 60.0),) * 5, [RecordedTurn(b"", 0.6)])


def test_words_belong_to_turns_line_by_line(turn):
    messages = make_messages((turn, turn, turn, turn), "hello\n\n so \n", "dialogue A")
    texts = [[item["text"] for item in message["content"] if item["type"] == "text"] for message in messages]
    assert texts == [["hello"], [], ["so"], []]
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2


@pytest.mark.parametrize(
    ("num_turns", "words"), [(2, "a\nb\nc"), (3, ""), (0, ""), (2, "a" * (MAX_WORDS_CHARACTERS + 1))]
)
def test_words_and_turns_that_make_no_dialogue_are_refused(turn, num_turns, words):
    with pytest.raises(DialogueError, match="^(the words of )?dialogue A"):
        make_messages((turn,) * num_turns, words, "dialogue A")


def test_an_example_on_the_page_has_the_reward_of_its_files(nano, examples):
    from_files = nano.score([read_dialogue(EXAMPLES / "human.json")], "modality")
    assert nano.score([examples[0]], "modality") == pytest.approx(from_files, abs=1e-5)


def test_a_model_of_the_hub_is_linked_and_a_folder_is_named_without_its_path(tmp_path, monkeypatch):
    def name(path):
        return app._name_model(SimpleNamespace(model=SimpleNamespace(config=SimpleNamespace(name_or_path=path))))

    assert name("org/model-1") == "[org/model-1](https://huggingface.co/org/model-1)"
    assert name(str(tmp_path / "private" / "model")) == "**model**"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "model").mkdir(parents=True)
    assert name("runs/model") == "**model**"
    assert name("a/b](javascript:alert(1))") == r"**b\](javascript:alert(1))**"
    pages = ["Documentation, https://docs.example/sdiareward", "Odd, javascript:alert(1)"]
    monkeypatch.setattr(app.metadata, "metadata", lambda _: SimpleNamespace(get_all=lambda _: pages))
    head = app.write_introduction("**nano**")
    assert "[Documentation](https://docs.example/sdiareward)" in head and "**nano**" in head
    assert "javascript" not in head


def test_a_result_has_rewards_margin_and_what_is_not_heard_and_no_markup_from_outside():
    whole, cut = Heard(1.0, 1.0, 2), Heard(12.3, 11.8, 2, cut_turns=(1,))
    markup = '<img src=x onerror="alert(1)">'
    shown = app.render_result(markup, [0.25, 1.5], [whole, cut])
    assert [text in shown for text in ("+0.25", "+1.50", "\N{MINUS SIGN}1.25", "B is scored higher")] == [True] * 4
    assert "Dialogue B: 1 turns cut: the model hears 11.8 of 12.3 s (turn 1)." in shown
    assert "Dialogue A:" not in shown and "Margin" not in app.render_result("joint", [0.25], [whole])
    assert markup not in shown + app.render_panel("A", (), markup)
    assert "&lt;img" in app.render_panel("A", (), markup)


def parts_of(page):
    return page.get_config_file()["components"]


def test_another_model_can_be_chosen_on_the_page(nano, examples, make_tiny_model, tiny_processor):
    pytest.importorskip("gradio", reason="gradio is not installed: pip install sdiareward[demo]")
    tiny = Scorer(make_tiny_model(), tiny_processor, device="cpu")
    page = app.build(nano, [tiny])
    (radio,) = [part["props"] for part in parts_of(page) if part["props"].get("label") == "Model"]
    assert radio["visible"] and [choice[1] for choice in radio["choices"]] == [0, 1]
    (score,) = [block.fn for block in page.fns.values() if getattr(block.fn, "func", None) is app._score]
    given = read_example(EXAMPLES / "human.json")
    verdicts = [score(*given, (), "", "modality", number) for number in (0, 1)]
    assert all("Dialogue A" in verdict for verdict in verdicts) and verdicts[0] != verdicts[1]
    (alone,) = [part["props"] for part in parts_of(app.build(nano)) if part["props"].get("label") == "Model"]
    assert not alone["visible"]
