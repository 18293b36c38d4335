import itertools

import numpy as np
import pytest
from support.audit_world import FunctionScorer, Pairs, loudness, make_dataset, make_label, make_pair

from sdiareward.audit.conditions import (
    NATURAL,
    Condition,
    PairSample,
    collect_rewards,
    derive_seed,
    make_attack_conditions,
    make_perturbation_conditions,
)
from sdiareward.perturbations.attacks import Attack
from sdiareward.perturbations.decoded_pairs import to_messages


@pytest.fixture
def collect(tmp_path):
    """Return a function that collects rewards in a folder, by default with the loudness."""

    def collect(sample, conditions, scorer=None, folder=tmp_path):
        return collect_rewards(lambda: scorer or FunctionScorer(), sample, conditions, folder, {})

    return collect


def make_folder(path):
    path.mkdir()
    return path


def never():
    pytest.fail("the model was loaded")


@pytest.fixture
def sample():
    return Pairs([make_pair(f"p{row}", 0.5, 0.25) for row in range(10)])


def test_both_sides_of_each_pair_are_scored_as_they_are_and_under_each_condition(sample, collect):
    conditions = make_perturbation_conditions([("gain", 6.0), ("polarity", 0.0)])
    found = collect(sample, conditions)
    assert list(found) == [NATURAL, "nuisance/gain/6", "nuisance/polarity/0"]
    assert found[NATURAL]["p3"]["rewards"] == {"chosen": 0.5, "rejected": 0.25}
    louder = 10 ** (6 / 20)
    assert found["nuisance/gain/6"]["p3"]["rewards"] == pytest.approx(
        {"chosen": 0.5 * louder, "rejected": 0.25 * louder}
    )
    assert found["nuisance/polarity/0"]["p9"]["rewards"] == {"chosen": -0.5, "rejected": -0.25}


def test_an_interrupted_run_resumes_and_scores_nothing_twice(sample, collect, tmp_path):
    conditions = make_perturbation_conditions([("gain", 6.0), ("gain", -6.0)])
    first = FunctionScorer(stop_after=30)
    with pytest.raises(KeyboardInterrupt):
        collect(sample, conditions, first)
    second = FunctionScorer()
    found = collect(sample, conditions, second)
    assert first.num_dialogues + second.num_dialogues == 10 * 2 * 3
    assert found == collect_rewards(never, sample, conditions, tmp_path, {})
    assert found == collect(sample, conditions, folder=make_folder(tmp_path / "undisturbed"))


def test_another_condition_or_more_pairs_cost_what_is_new_alone(sample, collect):
    collect(sample[:4], make_perturbation_conditions([("gain", 6.0)]))
    more = FunctionScorer()
    collect(sample[:5], make_perturbation_conditions([("gain", 6.0), ("gain", -6.0)]), more)
    assert more.num_dialogues == 4 * 2 + 3 * 2


def test_a_pair_that_cannot_be_read_is_recorded_skipped_and_tried_again(sample, collect):
    counting = FunctionScorer()
    broken = Pairs(list(sample), broken=("p2",))
    found = collect(broken, make_perturbation_conditions([("gain", 6.0)]), counting)
    assert found[NATURAL]["p2"] == {
        "pair_id": "p2",
        "condition": NATURAL,
        "error": "p2: no such audio file.",
    }
    assert "p2" not in found["nuisance/gain/6"]
    assert counting.num_dialogues == 9 * 2 * 2
    again = FunctionScorer()
    mended = collect(sample, make_perturbation_conditions([("gain", 6.0)]), again)
    assert again.num_dialogues == 2 * 2
    assert mended[NATURAL]["p2"]["rewards"] == {"chosen": 0.5, "rejected": 0.25}


def test_one_dialogue_that_cannot_be_scored_costs_its_own_pair_alone(sample, collect):
    def picky(dialogues, criteria):
        rewards = loudness(dialogues, criteria)
        if any("p4" in message["content"][0]["text"] for dialogue in dialogues for message in dialogue):
            raise ValueError("a dialogue without an end")
        return rewards

    sample[4].chosen[0] = type(sample[4].chosen[0])("user", "p4", sample[4].chosen[0].array)
    found = collect(sample, make_perturbation_conditions([("gain", 6.0)]), FunctionScorer(picky))
    assert found[NATURAL]["p4"]["error"] == "chosen: a dialogue without an end"
    assert len(found["nuisance/gain/6"]) == 9
    assert found["nuisance/gain/6"]["p5"]["rewards"]["chosen"] > 0.5


def test_a_reward_that_is_not_finite_is_an_error_of_the_pair(sample, collect):
    def overflowing(dialogues, criteria):
        return [np.nan if reward > 0.5 else reward for reward in loudness(dialogues, criteria)]

    found = collect(sample[:1], make_perturbation_conditions([("gain", 6.0)]), FunctionScorer(overflowing))
    assert found["nuisance/gain/6"]["p0"]["error"].startswith("the rewards are nan, 0.4")


def test_a_condition_that_does_not_apply_gives_its_reason_and_is_not_tried_again(sample, collect):
    asked = []

    def build(pair):
        asked.append(pair.pair_id)
        return "too short"

    for _ in range(2):
        found = collect(sample[:2], [Condition("attack/none", build)])
    assert found["attack/none"]["p1"]["reason"] == "too short"
    assert asked == ["p0", "p1"]


def test_why_a_condition_is_unavailable_is_a_reason_that_is_not_kept(sample, collect, tmp_path):
    def changed(pair):
        return {"attacked": to_messages(pair.chosen)}

    unavailable = Condition("attack/none", changed, unavailable_reason="needs a voice")
    found = collect(sample[:2], [unavailable])
    assert found["attack/none"] == {name: {"reason": "needs a voice"} for name in ("p0", "p1")}
    assert collect_rewards(never, sample[:2], [unavailable], tmp_path, {}) == found
    possible = Condition("attack/none", changed)
    kept = collect(sample[:2], [possible])["attack/none"]
    assert kept["p0"]["rewards"] == {"attacked": 0.5}
    # What was scored elsewhere stays.
    assert collect(sample[:2], [unavailable])["attack/none"] == kept


def test_noise_is_the_same_on_both_sides_and_at_every_severity_but_for_its_level():
    pair = make_pair("p", 0.5, 0.5)
    quiet, loud = (
        condition.build(pair) for condition in make_perturbation_conditions([("noise", 40.0), ("noise", 20.0)])
    )

    def noise(messages, turn=0):
        return messages[turn]["content"][-1]["audio"]["array"] - 0.5

    assert noise(quiet["chosen"]) == pytest.approx(noise(quiet["rejected"]))
    assert noise(loud["chosen"]) == pytest.approx(10 * noise(quiet["chosen"]), rel=1e-3, abs=1e-6)
    assert not np.allclose(noise(quiet["chosen"]), noise(quiet["chosen"], turn=1))
    other = make_perturbation_conditions([("noise", 40.0)], seed=1)[0].build(pair)
    assert not np.allclose(noise(quiet["chosen"]), noise(other["chosen"]))
    assert derive_seed(0, "p", 1) == derive_seed(0, "p", 1) != derive_seed(0, "p", 2)


def test_an_attack_is_built_within_what_the_model_hears():
    seen = []

    def build(pair, context):
        seen.append((context.heard_s, len(context.others)))
        return {"a": pair.rejected, "b": None}.get(pair.pair_id, [*pair.rejected[:-1], pair.chosen[-1]])

    attacks = {"swap": Attack("a swap", "rejected", "chosen", "a twin", build)}
    (condition,) = make_attack_conditions(attacks, lambda: ["other"], lambda: 6.0)
    assert condition.key == "attack/swap"
    pairs = [make_pair(name, 0.5, 0.25) for name in "abc"]
    assert condition.build(pairs[0]) == "changes nothing that the model is given"
    assert condition.build(pairs[1]) == "needs a twin"
    changed = condition.build(pairs[2])
    assert changed == {"attacked": to_messages([pairs[2].rejected[0], pairs[2].chosen[1]])}
    assert seen == [(6.0, 1)] * 3


def test_pairs_are_decoded_when_they_are_asked_for_and_only_a_few_are_kept(make_tone):
    pairs = make_dataset(make_tone, 20)
    labels = [make_label(f"p{row}") for row in range(20)]
    sample = PairSample(pairs, labels, range(19, -1, -1))
    assert [pair.pair_id for pair in itertools.islice(sample, 3)] == ["p19", "p18", "p17"]
    assert sample[0] is sample[0]
    first = sample[0]
    assert [pair.pair_id for pair in sample] == [f"p{row}" for row in range(19, -1, -1)]
    assert sample[0] is not first
    assert [label["pair_id"] for label in sample[2:4].labels] == ["p17", "p16"]
    assert [label["pair_id"] for label in sample.keep(["p1", "p18"]).labels] == ["p18", "p1"]
