import numpy as np
import pytest
from support.audit_world import Pairs, loudness, make_pair

from sdiareward.audit.conditions import (
    NATURAL,
    Condition,
    attack_conditions,
    collect_rewards,
    is_complete,
    nuisance_conditions,
    seed_of,
    settings_of,
)
from sdiareward.common.files import JsonLines
from sdiareward.perturbations.attacks import ATTACKS, Attack
from sdiareward.perturbations.decoded_pairs import to_messages


@pytest.fixture
def log(tmp_path):
    return JsonLines(tmp_path / "rewards.jsonl")


@pytest.fixture
def sample():
    return Pairs([make_pair(f"p{row}", 0.5, 0.25) for row in range(10)])


class Counting:
    """A reward that counts what it is asked for, and is interrupted after a number of dialogues."""

    def __init__(self, stop_after=None):
        self.num_dialogues, self.stop_after = 0, stop_after

    def __call__(self, dialogues, criteria):
        if self.stop_after is not None and self.num_dialogues >= self.stop_after:
            raise KeyboardInterrupt
        self.num_dialogues += len(dialogues)
        return loudness(dialogues, criteria)


def test_both_sides_of_each_pair_are_scored_as_they_are_and_under_each_condition(sample, log):
    conditions = nuisance_conditions([("gain", 6.0), ("polarity", 0.0)])
    found = collect_rewards(loudness, sample, conditions, log)
    assert list(found) == [NATURAL, "nuisance/gain/6", "nuisance/polarity/0"]
    assert found[NATURAL]["p3"]["rewards"] == {"chosen": 0.5, "rejected": 0.25}
    louder = 10 ** (6 / 20)
    assert found["nuisance/gain/6"]["p3"]["rewards"] == pytest.approx(
        {"chosen": 0.5 * louder, "rejected": 0.25 * louder}
    )
    assert found["nuisance/polarity/0"]["p9"]["rewards"] == {"chosen": -0.5, "rejected": -0.25}


def test_an_interrupted_run_goes_on_and_scores_nothing_twice(sample, log):
    conditions = nuisance_conditions([("gain", 6.0), ("gain", -6.0)])
    first = Counting(stop_after=30)
    with pytest.raises(KeyboardInterrupt):
        collect_rewards(first, sample, conditions, log)
    with log.path.open("a") as file:
        file.write('{"pair_id": "p9", "cond')  # Killed in the middle of a line.
    second, third = Counting(), Counting()
    found = collect_rewards(second, sample, conditions, log)
    assert first.num_dialogues + second.num_dialogues == 10 * 2 * 3
    assert found == collect_rewards(third, sample, conditions, log)
    assert third.num_dialogues == 0
    assert found == collect_rewards(loudness, sample, conditions, JsonLines(log.path.with_name("undisturbed.jsonl")))


def test_another_condition_or_more_pairs_cost_what_is_new_alone(sample, log):
    collect_rewards(loudness, sample[:4], nuisance_conditions([("gain", 6.0)]), log)
    more = Counting()
    collect_rewards(more, sample[:5], nuisance_conditions([("gain", 6.0), ("gain", -6.0)]), log)
    assert more.num_dialogues == 4 * 2 + 3 * 2


def test_a_pair_that_cannot_be_read_is_recorded_left_out_and_tried_again(sample, log):
    counting = Counting()
    broken = Pairs(list(sample), broken=("p2",))
    found = collect_rewards(counting, broken, nuisance_conditions([("gain", 6.0)]), log)
    assert found[NATURAL]["p2"] == {
        "pair_id": "p2",
        "condition": NATURAL,
        "error": "p2: no such audio file.",
    }
    assert "p2" not in found["nuisance/gain/6"]
    assert counting.num_dialogues == 9 * 2 * 2
    again = Counting()
    mended = collect_rewards(again, sample, nuisance_conditions([("gain", 6.0)]), log)
    assert again.num_dialogues == 2 * 2
    assert mended[NATURAL]["p2"]["rewards"] == {"chosen": 0.5, "rejected": 0.25}


def test_one_dialogue_that_cannot_be_scored_costs_its_own_pair_alone(sample, log):
    def picky(dialogues, criteria):
        rewards = loudness(dialogues, criteria)
        if any("p4" in message["content"][0]["text"] for dialogue in dialogues for message in dialogue):
            raise ValueError("a dialogue without an end")
        return rewards

    sample[4].chosen[0] = type(sample[4].chosen[0])("user", "p4", sample[4].chosen[0].array)
    found = collect_rewards(picky, sample, nuisance_conditions([("gain", 6.0)]), log)
    assert found[NATURAL]["p4"]["error"] == "a dialogue without an end"
    assert len(found["nuisance/gain/6"]) == 9
    assert found["nuisance/gain/6"]["p5"]["rewards"]["chosen"] > 0.5


def test_a_reward_that_is_not_finite_is_an_error_of_the_pair(sample, log):
    def overflowing(dialogues, criteria):
        return [np.nan if reward > 0.5 else reward for reward in loudness(dialogues, criteria)]

    found = collect_rewards(overflowing, sample[:1], nuisance_conditions([("gain", 6.0)]), log)
    assert found["nuisance/gain/6"]["p0"]["error"].startswith("the rewards are nan, 0.4")


def test_a_condition_that_does_not_apply_gives_its_reason_and_is_not_tried_again(sample, log):
    asked = []

    def build(pair):
        asked.append(pair.pair_id)
        return "too short"

    for _ in range(2):
        found = collect_rewards(loudness, sample[:2], [Condition("attack/none", build, 1)], log)
    assert found["attack/none"]["p1"]["reason"] == "too short"
    assert asked == ["p0", "p1"]


def test_what_the_machine_lacks_is_a_reason_that_is_not_kept(sample, log):
    def changed(pair):
        return {"attacked": to_messages(pair.chosen)}

    lacking = Condition("attack/none", changed, 1, lacking="needs a voice")
    found = collect_rewards(loudness, sample[:2], [lacking], log)
    assert found["attack/none"] == {name: {"reason": "needs a voice"} for name in ("p0", "p1")}
    assert is_complete(sample[:2], [lacking], log)
    possible = Condition("attack/none", changed, 1)
    assert not is_complete(sample[:2], [possible], log)
    kept = collect_rewards(loudness, sample[:2], [possible], log)["attack/none"]
    assert kept["p0"]["rewards"] == {"attacked": 0.5}
    # What was scored elsewhere stays.
    assert collect_rewards(loudness, sample[:2], [lacking], log)["attack/none"] == kept


def test_noise_is_the_same_on_both_sides_and_at_every_severity_but_for_its_level():
    pair = make_pair("p", 0.5, 0.5)
    quiet, loud = (condition.build(pair) for condition in nuisance_conditions([("noise", 40.0), ("noise", 20.0)]))

    def noise(messages, turn=0):
        return messages[turn]["content"][-1]["audio"]["array"] - 0.5

    assert noise(quiet["chosen"]) == pytest.approx(noise(quiet["rejected"]))
    assert noise(loud["chosen"]) == pytest.approx(10 * noise(quiet["chosen"]), rel=1e-3, abs=1e-6)
    assert not np.allclose(noise(quiet["chosen"]), noise(quiet["chosen"], turn=1))
    other = nuisance_conditions([("noise", 40.0)], seed=1)[0].build(pair)
    assert not np.allclose(noise(quiet["chosen"]), noise(other["chosen"]))
    assert seed_of(0, "p", 1) == seed_of(0, "p", 1) != seed_of(0, "p", 2)


def test_an_attack_is_built_within_what_the_model_hears():
    seen = []

    def build(pair, context):
        seen.append((context.heard_s, len(context.others)))
        return {"a": pair.rejected, "b": None}.get(pair.pair_id, [*pair.rejected[:-1], pair.chosen[-1]])

    attacks = {"swap": Attack("a swap", "rejected", "chosen", "a twin", build)}
    (condition,) = attack_conditions(attacks, lambda: ["donor"], lambda: 6.0)
    assert condition.key == "attack/swap"
    pairs = [make_pair(name, 0.5, 0.25) for name in "abc"]
    assert condition.build(pairs[0]) == "changes nothing that the model is given"
    assert condition.build(pairs[1]) == "needs a twin"
    changed = condition.build(pairs[2])
    assert changed == {"attacked": to_messages([pairs[2].rejected[0], pairs[2].chosen[1]])}
    assert seen == [(6.0, 1)] * 3


def test_every_nuisance_is_tried_at_each_of_its_severities():
    found = settings_of(["gain", "polarity"])
    assert [name for name, _ in found].count("polarity") == 1
    assert {severity for name, severity in found if name == "gain"} >= {-6.0, 6.0}
    assert len(ATTACKS) >= 12
