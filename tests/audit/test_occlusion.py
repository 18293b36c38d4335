import json

import numpy as np
import pytest

from sdiareward.audit.occlusion import draw, measure_occlusion, silence
from sdiareward.perturbations.decoded_pairs import AuditPair, Turn, to_messages
from sdiareward.scoring.scorer import Scorer


RATE = 16_000


def turn(role, words, *levels, stretch_s=0.5):
    """Return a turn of stretches of constant level, each with silence at its ends, so that fades change nothing."""
    stretches = np.concatenate([np.full(round(stretch_s * RATE), level, dtype=np.float32) for level in levels])
    stretches.reshape(len(levels), -1)[:, :100] = 0
    stretches.reshape(len(levels), -1)[:, -100:] = 0
    return Turn(role, words, stretches)


def one_pair(chosen, rejected=None):
    return AuditPair("p", "modality", "scripted", "source", "piper", "g", None, chosen, rejected or chosen)


def loudness_and_words(dialogues, criteria):
    """The sum of the samples in units of a stretch of level 1, and a hundredth for each character."""
    unit = 0.5 * RATE - 200
    items = [[item for message in dialogue for item in message["content"]] for dialogue in dialogues]
    return [
        sum(
            float(item["audio"]["array"].sum(dtype=np.float64)) / unit if "audio" in item else len(item["text"]) / 100
            for item in of_dialogue
        )
        for of_dialogue in items
    ]


@pytest.fixture
def dialogue():
    return [turn("user", "yes", 0.25, 0.5), turn("assistant", "", -0.5, 1.0, 0.25)]


def test_a_turn_contributes_what_the_reward_loses_without_it(dialogue):
    found = measure_occlusion([one_pair(dialogue)], loudness_and_words, sides=["chosen"])
    (described,) = found["dialogues"]
    assert described["reward"] == pytest.approx(0.75 + 0.75 + 0.03)
    first, second = described["turns"]
    assert first["audio"]["contribution"] == pytest.approx(0.75)
    assert first["audio"]["reward"] == pytest.approx(0.78)
    assert first["text"]["contribution"] == pytest.approx(0.03)
    assert second["text"] is None
    assert [part["contribution"] for part in first["segments"]] == pytest.approx([0.25, 0.5])
    assert [part["contribution"] for part in second["segments"]] == pytest.approx([-0.5, 1.0, 0.25])
    assert described["all_audio"]["reward"] == pytest.approx(0.03)
    assert described["all_text"]["contribution"] == pytest.approx(0.03)
    sizes = found["mean_absolute"]
    assert sizes["audio"] == {"user": pytest.approx(0.75), "assistant": pytest.approx(0.75)}
    assert sizes["text"] == {"user": pytest.approx(0.03)}
    json.dumps(found)


def test_turns_lie_end_to_end_and_segments_within_their_turn(dialogue):
    found = measure_occlusion([one_pair(dialogue)], loudness_and_words, sides=["chosen"])
    first, second = found["dialogues"][0]["turns"]
    assert (first["start_s"], first["duration_s"], second["start_s"]) == (0.0, 1.0, 1.0)
    bounds = [(part["start_s"], part["stop_s"]) for part in second["segments"]]
    assert bounds == [(0.0, 0.5), (0.5, 1.0), (1.0, 1.5)]


def test_what_the_model_does_not_hear_is_not_computed(dialogue):
    found = measure_occlusion([one_pair(dialogue)], loudness_and_words, sides=["chosen"], max_turn_s=0.5)
    first, second = found["dialogues"][0]["turns"]
    assert (first["heard_s"], second["heard_s"]) == (0.5, 0.5)
    assert [len(described["segments"]) for described in (first, second)] == [1, 1]
    assert second["segments"][0]["contribution"] == pytest.approx(-0.5)


def test_all_dialogues_are_scored_in_one_call_and_made_when_they_are_read(dialogue):
    calls = []

    def count(dialogues, criteria):
        calls.append((len(dialogues), set(criteria)))
        assert dialogues[0] is not dialogues[0]
        return loudness_and_words(dialogues, criteria)

    found = measure_occlusion([one_pair(dialogue), one_pair(dialogue)], count)
    # Each side: as it is, without sound, without words; two turns' sound, one's words; five segments.
    assert calls == [(4 * 11, {"modality"})]
    assert [(each["pair_id"], each["side"]) for each in found["dialogues"]] == [("p", "chosen"), ("p", "rejected")] * 2


def test_without_segments_only_turns_are_taken_away(dialogue):
    found = measure_occlusion([one_pair(dialogue)], loudness_and_words, sides=["chosen"], segment_s=None)
    assert all(described["segments"] == [] for described in found["dialogues"][0]["turns"])


def test_a_segment_that_nobody_can_hear_is_refused(dialogue):
    with pytest.raises(ValueError, match="segment_s is 0.01; give at least 0.02"):
        measure_occlusion([one_pair(dialogue)], loudness_and_words, segment_s=0.01)


def test_silence_fades_where_sound_goes_on_and_leaves_the_rest_alone():
    array = np.ones(1000, dtype=np.float32)
    quiet = silence(array, 200, 600)
    assert (array == 1).all()
    assert (quiet[:200] == 1).all()
    assert (quiet[600:] == 1).all()
    # 5 ms are 80 samples.
    assert (quiet[280:520] == 0).all()
    assert (np.diff(quiet[200:280]) < 0).all()
    assert quiet[200] == pytest.approx(80 / 81)
    np.testing.assert_array_equal(quiet[520:600], quiet[200:280][::-1])
    assert silence(array, 0, 600)[0] == 0
    assert silence(array, 600)[-1] == 0


def test_a_segment_shorter_than_two_fades_still_ends_quieter():
    quiet = silence(np.ones(100, dtype=np.float32), 40, 50)
    assert (quiet[40:50] < 1).all()
    assert silence(np.ones(3, dtype=np.float32), 1, 2).tolist() == [1.0, 0.0, 1.0]


def test_the_contributions_of_a_model_are_differences_of_its_rewards(make_tiny_model, tiny_processor, make_tone):
    turns = [Turn("user", "so, um", make_tone(0.4, 200.0)), Turn("assistant", "yes", make_tone(0.5, 300.0, seed=1))]
    rewards = Scorer(make_tiny_model(), tiny_processor).score
    found = measure_occlusion([one_pair(turns)], rewards, sides=["chosen"], segment_s=0.25)
    silent = [turns[0], Turn("assistant", "yes", np.zeros(8000, dtype=np.float32))]
    whole, without = (rewards([to_messages(each)], ["modality"])[0] for each in (turns, silent))
    (described,) = found["dialogues"]
    assert described["reward"] == pytest.approx(whole, abs=1e-6)
    assert described["turns"][1]["audio"]["contribution"] == pytest.approx(whole - without, abs=1e-6)
    assert abs(whole - without) > 1e-4


@pytest.fixture
def axes():
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure()
    FigureCanvasAgg(figure)
    return figure.subplots()


def test_the_drawing_has_a_bar_for_each_segment_and_says_its_sign_without_colour(axes, dialogue):
    found = measure_occlusion([one_pair(dialogue)], loudness_and_words, sides=["chosen"], max_turn_s=1.0)
    draw(axes, found["dialogues"][0], dialogue)
    heights = {
        container.get_label(): sorted(round(bar.get_height(), 3) for bar in container) for container in axes.containers
    }
    assert heights == {"raises the reward": [0.25, 0.5, 1.0], "lowers the reward": [-0.5]}
    assert len({container[0].get_hatch() for container in axes.containers}) == 2
    lefts = sorted(bar.get_x() for container in axes.containers for bar in container)
    assert lefts == [0.0, 0.5, 1.0, 1.5]
    words = next(line for line in axes.get_lines() if line.get_label() == "its words")
    assert words.get_xdata().tolist() == [0.5]
    assert words.get_ydata().tolist() == pytest.approx([0.03])
    axes.figure.canvas.draw()


def test_turns_without_segments_are_drawn_whole(axes, dialogue):
    found = measure_occlusion([one_pair(dialogue)], loudness_and_words, sides=["chosen"], segment_s=None)
    draw(axes, found["dialogues"][0], dialogue)
    bars = [bar for container in axes.containers for bar in container]
    assert [(bar.get_x(), bar.get_width()) for bar in bars] == [(0.0, 1.0), (1.0, 1.5)]
