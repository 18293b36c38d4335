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
from sdiareward.scoring.calibration import Calibration, fit
from sdiareward.scoring.model_spec import ScoringError
from sdiareward.scoring.scorer import Scorer
from sdiareward.serving.demo import app, results
from sdiareward.serving.demo.rendering import draw_growth, render_details, render_error, render_panel, render_verdict
from sdiareward.serving.demo.results import Result, compute_result
from sdiareward.serving.demo.shortcut_checks import CHECKS, change_dialogue, compare, write_verdict
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


def render_result(found):
    return render_verdict(found) + render_details(found)


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
    monkeypatch.setattr("sdiareward.pairs.messages.read_audio", lambda *_, **__: pytest.fail("it was decoded"))
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


@pytest.fixture(scope="module")
def found(nano, examples):
    return compute_result(nano, examples, "modality")


def test_a_result_has_the_rewards_of_the_scorer(nano, examples, found):
    assert found.rewards == pytest.approx(nano.score(examples, "modality"), abs=1e-4)
    assert found.margin == found.rewards[0] - found.rewards[1] > 0


def test_the_reward_grows_over_the_beginnings_of_a_dialogue(nano, examples, found):
    beginnings = [side[:end] for side in examples for end in (1, 2)]
    features = dict(nano.iter_features(beginnings, "modality"))
    for number, values in enumerate(found.growth):
        rewards = [features[2 * number + k].reward for k in range(2)]
        assert values == pytest.approx(rewards, abs=1e-4)
    assert [values[-1] for values in found.growth] == found.rewards


def test_a_check_scores_the_changed_dialogue(nano, examples, found):
    changed = nano.score([change_dialogue(side, "noise") for side in examples], "modality")
    check = found.checks[CHECKS.index("noise")]
    assert check.shifts == pytest.approx(np.subtract(changed, found.rewards), abs=1e-4)


def test_polarity_does_not_move_a_reward_that_hears_the_power_of_the_sound(found):
    assert found.checks[CHECKS.index("polarity")].shifts == pytest.approx([0, 0], abs=1e-3)


def test_one_dialogue_has_no_margin_and_checks_can_be_left_out(nano, examples):
    alone = compute_result(nano, examples[:1], "joint", with_checks=False)
    assert (alone.margin, alone.checks, len(alone.growth[0])) == (None, [], 2)


def test_changing_a_dialogue_leaves_the_words_and_the_original_alone(examples):
    before = examples[0][0]["content"][1]["audio"]["bytes"]
    changed = change_dialogue(examples[0], "polarity")
    assert [message["content"][0] for message in changed] == [message["content"][0] for message in examples[0]]
    assert examples[0][0]["content"][1]["audio"]["bytes"] == before
    original = soundfile.read(io.BytesIO(before), dtype="float32")[0]
    assert np.array_equal(changed[0]["content"][1]["audio"]["array"], -original)


def test_the_turns_of_a_dialogue_do_not_share_their_noise(turn):
    messages = make_messages((turn, turn), "", "dialogue A")
    first, second = (message["content"][0]["audio"]["array"] for message in change_dialogue(messages, "noise"))
    assert not np.array_equal(first, second)


def test_a_calibrated_checkpoint_gives_a_probability_for_each_subset_it_knows(make_tiny_model):
    pairs = [(2.0, 0.0), (1.0, 1.5), (3.0, 0.5), (0.5, 0.0)]
    calibration = fit(pairs * 2, ["wild"] * 4 + ["scripted"] * 4, ["modality"] * 8, prompt_version="1")
    config = make_tiny_model(prompt_version="1", calibration=calibration).config
    fields = results._calibrate(config, [1.25, 0.25], "modality")
    assert sorted(fields["probabilities"]) == ["scripted", "wild"]
    temperature = calibration["subsets"]["wild"]["temperature"]
    assert fields["probabilities"]["wild"] == pytest.approx(1 / (1 + np.exp(-1.0 / temperature)))
    page = render_result(Result("modality", [1.25, 0.25], [[1.25], [0.25]], **fields))
    assert f"{100 * fields['probabilities']['wild']:.0f}%" in page
    assert "No calibrated probability" not in page


def test_probabilities_cover_the_subsets_of_the_criterion(make_tiny_model):
    subsets = ["wild"] * 2 + ["colloquialness"] * 2
    both = fit([(2.0, 0.0), (1.0, 1.5)] * 2, subsets, prompt_version="1")
    config = make_tiny_model(prompt_version="1", calibration=both).config
    found = {name: results._calibrate(config, [1.0, 0.0], name) for name in ("modality", "colloquialness", "joint")}
    assert {name: sorted(fields["probabilities"]) for name, fields in found.items()} == {
        "modality": ["wild"],
        "colloquialness": ["colloquialness"],
        "joint": ["colloquialness", "wild"],
    }


@pytest.mark.parametrize(
    ("version", "criterion", "reason"),
    [
        (None, "modality", "the checkpoint has no calibration"),
        ("7", "modality", "fitted on rewards under the prompts '7'"),
        ("1", "colloquialness", "it was fitted on no pairs of the criterion 'colloquialness'"),
    ],
)
def test_a_calibration_that_does_not_fit_is_not_used_and_the_reason_shown(version, criterion, reason, make_tiny_model):
    fitted = {"calibration": fit([(2.0, 0.0), (1.0, 1.5)], ["wild"] * 2, prompt_version=version)} if version else {}
    config = make_tiny_model(prompt_version="1", **fitted).config
    fields = results._calibrate(config, [1.0, 0.0], criterion)
    assert list(fields) == ["uncalibrated"] and reason in fields["uncalibrated"]
    page = render_result(Result(criterion, [1.0, 0.0], [[1.0], [0.0]], **fields))
    assert "No calibrated probability can be given: " in page
    assert "73% for A, which was not checked on data" in page


def test_the_nano_checkpoint_is_calibrated_and_the_number_of_pairs_is_shown(nano, found):
    calibration = Calibration.of(nano.model.config)
    of_criterion = {name for name in calibration.parameters["subsets"] if name != "colloquialness"}
    assert of_criterion and set(found.probabilities) == of_criterion
    for subset in of_criterion:
        fitted = calibration.parameters["subsets"][subset]
        probability = calibration.compute_probability(found.margin, subset)
        assert found.probabilities[subset] == pytest.approx(probability)
        row = f"({subset.replace('_', '-')})</th><td>{100 * probability:.0f}%</td><td>{fitted['num_pairs']} pairs</td>"
        assert row in render_details(found)
    low, high = (f"{100 * each:.0f}%" for each in sorted(found.probabilities.values()))
    assert f"Probability that A is better</dt><dd>{low} to {high}</dd>" in render_verdict(found)


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


def test_what_the_model_does_not_hear_is_said(make_tone):
    long, nearly = (read_turn(wav(make_tone(duration_s)), "a.wav") for duration_s in (6.5, 5.8))
    messages = make_messages((long, nearly), "", "dialogue A")
    heard = {0: Heard(12.3, 11.8, 2, cut_turns=(1,))}
    first, second = results._list_notes([messages], heard, 6.0, with_checks=True)
    assert first == "Dialogue A: 1 turns cut: the model hears 11.8 of 12.3 s (turn 1)."
    assert "the silence of the checks pushes the end of 1 turns beyond the 6 s" in second
    assert results._list_notes([messages], {0: Heard(12.3, 12.3, 2)}, 60.0, with_checks=True) == []


@pytest.mark.parametrize(
    ("rewards", "changed", "flips"),
    [
        ([1.0, 0.5], [0.25, 0.75], ("both", "A alone")),
        # A tie after a change is an order lost; two of the same reward have none to lose.
        ([1.0, 0.5], [0.5, 0.5], ("both", "A alone")),
        ([1.0, 1.0], [0.5, 1.0], ()),
    ],
)
def test_margins_and_flips_are_those_of_a_hand(rewards, changed, flips):
    (check,) = compare(rewards, {"gain": changed})
    assert check.shifts == (changed[0] - rewards[0], changed[1] - rewards[1])
    assert check.margins == {
        "both": changed[0] - changed[1],
        "A alone": changed[0] - rewards[1],
        "B alone": rewards[0] - changed[1],
    }
    assert check.flips == flips


@pytest.mark.parametrize(
    ("rewards", "changed", "verdict"),
    [
        (
            [1.0, 0.5],
            {"gain": [1.0, 0.5], "noise": [0.25, 0.5]},
            "The order does not hold: it is lost under 'noise 30 dB below the speech' (both, A alone). The margin of "
            "+0.50 moves most, by 0.75, under 'noise 30 dB below the speech' on both.",
        ),
        ([1.0, 0.5], {"gain": [1.0, 0.5], "noise": [0.75, 0.5]}, "The order holds under all 2 changes"),
        ([1.0, 1.0], {"gain": [0.5, 1.0]}, "The two have the same reward, so there is no order to lose."),
        (
            [1.0],
            {"gain": [1.25], "polarity": [0.5]},
            "The reward of +1.00 moves most under 'polarity",
        ),
    ],
    ids=["lost", "holds", "equal", "alone"],
)
def test_a_verdict_names_what_breaks_the_order_and_the_largest_move(rewards, changed, verdict):
    assert write_verdict(rewards, compare(rewards, changed)).startswith(verdict)


def test_nothing_from_outside_becomes_markup(found):
    markup = '<img src=x onerror="alert(1)">'
    assert markup not in render_panel("A", (), markup)
    assert "&lt;img" in render_panel("A", (), markup)
    assert markup not in render_error(markup)
    noted = Result(markup, found.rewards, found.growth, notes=[markup], uncalibrated=markup)
    assert markup not in render_result(noted)


def test_the_results_hold_every_number_as_text(found):
    page = render_result(found)
    for value in (*found.rewards, *found.growth[0], *found.growth[1], found.margin):
        assert f"{value:+.2f}".replace("-", "\N{MINUS SIGN}") in page
    for check in found.checks:
        assert check.title.replace("-", "\N{MINUS SIGN}") in page
    assert page.count("lost:") == sum(bool(check.flips) for check in found.checks)


def test_dialogues_of_different_length_stand_beside_each_other():
    page = render_result(Result("joint", [0.5, 2.0], [[1.0, 0.5], [0.0, 1.0, 1.5, 2.0]], uncalibrated="none"))
    assert "4, assistant" in page
    assert "B is scored higher than A" in page


@pytest.mark.parametrize(("margin", "shown"), [(40.0, "&gt;99% for A"), (-40.0, "&lt;1% for A"), (0.0, "50% for A")])
def test_a_probability_is_not_shown_as_certain(margin, shown):
    assert shown in render_result(Result("joint", [margin, 0.0], [[margin], [0.0]], uncalibrated="none"))


def test_the_same_growth_gives_the_same_figure_that_asks_for_nothing():
    figure = draw_growth([[0.1, 0.2], [0.3, 0.1]])
    assert figure == draw_growth([[0.1, 0.2], [0.3, 0.1]])
    assert figure.startswith("data:image/svg+xml;base64,")


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
    verdicts = [score(*given, (), "", "modality", False, number)[0] for number in (0, 1)]
    assert all("Dialogue A" in verdict for verdict in verdicts) and verdicts[0] != verdicts[1]
    (alone,) = [part["props"] for part in parts_of(app.build(nano)) if part["props"].get("label") == "Model"]
    assert not alone["visible"]
