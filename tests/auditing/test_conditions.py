import numpy as np
import pytest
from support.audit_world import FunctionScorer, loudness, make_pair, make_reader, make_turns

from sdiareward.auditing.conditions import (
    NATURAL,
    Condition,
    collect_rewards,
    derive_seed,
    make_attack_conditions,
    make_modality_conditions,
    make_perturbation_conditions,
    present,
)
from sdiareward.perturbations import attacks
from sdiareward.perturbations.attacks import Attack
from sdiareward.perturbations.decoded_pairs import Turn, to_messages


LOUDER, QUIETER = make_perturbation_conditions([("gain", 6.0), ("gain", -6.0)])


@pytest.fixture
def collect(tmp_path):
    """Return a function that collects rewards in a folder, by default with the loudness."""

    def collect(pairs, conditions, scorer=None, folder=tmp_path, broken=()):
        ids = [pair.pair_id for pair in pairs]
        reader = make_reader(pairs, broken)
        return collect_rewards(lambda: scorer or FunctionScorer(), reader, ids, conditions, folder, {})

    return collect


def never(*arguments):
    pytest.fail("the model was asked")


@pytest.fixture
def pairs():
    return [make_pair(f"p{row}", 0.5, 0.25) for row in range(10)]


def test_both_sides_of_each_pair_are_scored_as_they_are_and_under_each_condition(pairs, collect):
    found = collect(pairs, [LOUDER, *make_perturbation_conditions([("polarity", 0.0)])])
    assert list(found) == [NATURAL, "nuisance/gain/6", "nuisance/polarity/0"]
    assert found[NATURAL]["p3"]["rewards"] == {"chosen": 0.5, "rejected": 0.25}
    gain = 10 ** (6 / 20)
    assert found["nuisance/gain/6"]["p3"]["rewards"] == pytest.approx({"chosen": 0.5 * gain, "rejected": 0.25 * gain})
    assert found["nuisance/polarity/0"]["p9"]["rewards"] == {"chosen": -0.5, "rejected": -0.25}


def test_another_condition_or_more_pairs_cost_what_is_new_alone(pairs, collect):
    collect(pairs[:4], [LOUDER])
    more = FunctionScorer()
    collect(pairs[:5], [LOUDER, QUIETER], more)
    assert more.num_dialogues == 4 * 2 + 3 * 2


def test_a_pair_that_cannot_be_read_is_recorded_skipped_and_tried_again(pairs, collect):
    counting, again = FunctionScorer(), FunctionScorer()
    found = collect(pairs, [LOUDER], counting, broken=("p2",))
    assert found[NATURAL]["p2"] == {"pair_id": "p2", "condition": NATURAL, "error": "p2: no such audio file."}
    assert "p2" not in found["nuisance/gain/6"]
    assert counting.num_dialogues == 9 * 2 * 2
    assert collect(pairs, [LOUDER], again)[NATURAL]["p2"]["rewards"] == {"chosen": 0.5, "rejected": 0.25}
    assert again.num_dialogues == 2 * 2


def test_one_dialogue_that_cannot_be_scored_costs_its_own_pair_alone(pairs, collect):
    def picky(dialogues, criteria):
        if any("p4" in message["content"][0]["text"] for dialogue in dialogues for message in dialogue):
            raise ValueError("a dialogue without an end")
        return loudness(dialogues, criteria)

    pairs[4].chosen[0] = Turn("user", "p4", pairs[4].chosen[0].array)
    found = collect(pairs, [LOUDER], FunctionScorer(picky))
    assert found[NATURAL]["p4"]["error"] == "chosen: a dialogue without an end"
    assert len(found["nuisance/gain/6"]) == 9


def test_why_a_condition_does_not_apply_is_kept_and_why_it_is_unavailable_is_not(pairs, collect):
    asked = []

    def build(pair):
        asked.append(pair.pair_id)
        return "too short" if pair.pair_id == "p0" else {"attacked": to_messages(pair.chosen)}

    unavailable = Condition("attack/none", build, unavailable_reason="needs a voice")
    found = collect(pairs[:2], [unavailable])["attack/none"]
    assert found == {name: {"reason": "needs a voice"} for name in ("p0", "p1")} and asked == []
    for _ in range(2):
        kept = collect(pairs[:2], [Condition("attack/none", build)])["attack/none"]
    assert (kept["p0"]["reason"], kept["p1"]["rewards"], asked) == ("too short", {"attacked": 0.5}, ["p0", "p1"])
    # What was scored elsewhere stays.
    assert collect(pairs[:2], [unavailable])["attack/none"] == kept


def test_noise_is_the_same_on_both_sides_and_at_every_severity_but_for_its_level():
    pair = make_pair("p", 0.5, 0.5)
    settings = [("noise", 40.0), ("noise", 20.0)]
    quiet, loud = (condition.build(pair) for condition in make_perturbation_conditions(settings))

    def noise(messages, turn=0):
        return messages[turn]["content"][-1]["audio"]["array"] - 0.5

    assert noise(quiet["chosen"]) == pytest.approx(noise(quiet["rejected"]))
    assert noise(loud["chosen"]) == pytest.approx(10 * noise(quiet["chosen"]), rel=1e-3, abs=1e-6)
    assert not np.allclose(noise(quiet["chosen"]), noise(quiet["chosen"], turn=1))
    other = make_perturbation_conditions(settings[:1], seed=1)[0].build(pair)
    assert not np.allclose(noise(quiet["chosen"]), noise(other["chosen"]))
    assert derive_seed(0, "p", 1) == derive_seed(0, "p", 1) != derive_seed(0, "p", 2)


def test_an_attack_is_built_within_what_the_model_hears(monkeypatch):
    seen = []

    def build(pair, context):
        seen.append((context.heard_s, len(context.others)))
        return {"a": pair.rejected, "b": None}.get(pair.pair_id, [*pair.rejected[:-1], pair.chosen[-1]])

    monkeypatch.setitem(attacks.ATTACKS, "swap", Attack("a swap", "rejected", "chosen", "a twin", build))
    (condition,) = make_attack_conditions(["swap"], lambda: ["other"], lambda: 6.0)
    assert condition.key == "attack/swap"
    pairs = [make_pair(name, 0.5, 0.25) for name in "abc"]
    assert condition.build(pairs[0]) == "changes nothing that the model hears or reads"
    assert condition.build(pairs[1]) == "needs a twin"
    assert condition.build(pairs[2]) == {"attacked": to_messages([pairs[2].rejected[0], pairs[2].chosen[1]])}
    assert seen == [(6.0, 1)] * 3


def test_sound_or_words_are_removed_from_every_turn():
    pair = make_pair("a", 0.5, 0.25)
    conditions = {condition.key: condition.build for condition in make_modality_conditions()}
    kinds = {
        key: [[item["type"] for item in message["content"]] for message in build(pair)["chosen"]]
        for key, build in {NATURAL: present, **conditions}.items()
    }
    assert kinds == {
        NATURAL: [["text", "audio"]] * 2,
        "hearing/audio_only": [["audio"]] * 2,
        "hearing/text_only": [["text"]] * 2,
    }
    pair.rejected[:] = [make_turns(0.5)[0], Turn("assistant", "", pair.rejected[1].array)]
    assert conditions["hearing/text_only"](pair) == "has a turn without words"
