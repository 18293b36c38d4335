import pytest
from support.wavreward_eval_world import prediction

from sdiareward.esdr_accuracy.pairwise import wilson_interval
from sdiareward.judges.wavreward.scores import (
    COLUMNS,
    average_columns,
    find_column,
    measure_order,
    measure_share,
    summarise_scores,
)


OPTIONS = {"num_bootstrap": 200, "seed": 0}


def scenario(number, predicted, **place):
    """Predictions of the answers of scores 5, 3 and 1 to one question."""
    return [
        prediction(number, score, value, **place) | {"expected_score": None}
        for score, value in zip((5, 3, 1), predicted, strict=True)
    ]


@pytest.mark.parametrize(
    ("part", "attribute", "column"),
    [
        ("content", None, "content"),
        ("content", "age", "content"),
        ("understanding", "age", "age"),
        ("generation", "age", "age"),
        ("implicit", "emotion", "implicit"),
    ],
)
def test_a_sample_counts_in_one_column_of_table_1(part, attribute, column):
    assert find_column(prediction(0, 5, 5, part, attribute)) == column


def test_an_explicit_instruction_without_an_attribute_is_refused_by_name():
    with pytest.raises(ValueError, match="sample generation-energy-0-5: .* needs one of"):
        find_column(prediction(0, 5, 5, "generation", "energy"))


def test_accuracy_counts_exact_scores_and_an_answer_without_one_is_wrong():
    records = scenario(0, (5, 4, None)) + scenario(1, (5, 3, 1), part="generation", attribute="volume")
    found = summarise_scores(records, **OPTIONS)
    content = found["columns"]["content"]
    assert (content["num_samples"], content["num_scenarios"], content["num_correct"]) == (3, 1, 1)
    assert content["num_invalid"] == 1
    assert content["accuracy"] == pytest.approx(1 / 3)
    assert found["columns"]["volume"]["accuracy"] == 1.0
    assert found["columns"]["age"] is None
    assert found["overall_micro"]["accuracy"] == pytest.approx(4 / 6)
    assert found["overall_macro"]["accuracy"] == pytest.approx((1 / 3 + 1) / 2)
    assert found["all_columns_macro"] is None


def test_out_of_domain_samples_have_their_own_column_outside_the_averages():
    elsewhere = [prediction(None, 4, 4, part=None), prediction(None, 2, 3, part=None)]
    found = summarise_scores(scenario(0, (5, 3, 1)), elsewhere, **OPTIONS)
    assert found["columns"]["out_of_domain"]["accuracy"] == 0.5
    assert found["columns"]["out_of_domain"]["num_scenarios"] == 2
    assert found["overall_micro"]["num_samples"] == 3
    assert found["overall_macro"]["accuracy"] == 1.0
    assert found["all_columns_macro"]["accuracy"] == 0.75
    assert found["out_of_domain"]["mean_absolute_error"]["error"] == 0.5


def test_the_average_of_the_abstract_is_the_mean_of_all_columns_of_table_1():
    published = (90.8, 96.9, 87.7, 100, 95.5, 97.5, 89.1, 91.1, 97.6, 97.0, 74.3, 80.8)
    assert len(published) == len(COLUMNS)
    columns = [{"accuracy": value / 100, "interval": [0.0, 1.0]} for value in published]
    assert round(100 * average_columns(columns)["accuracy"], 1) == 91.5


def test_the_interval_of_a_macro_average_is_narrower_and_within_0_and_1():
    column = {"accuracy": 0.5, "interval": [0.3, 0.7]}
    # Four independent columns of equal width: half the width.
    assert average_columns([column] * 4)["interval"] == [0.4, 0.6]
    assert average_columns([{"accuracy": 1.0, "interval": [0.2, 1.0]}])["interval"] == [0.2, 1.0]


def test_perfect_accuracy_has_a_wilson_interval_over_scenarios():
    records = [record for number in range(4) for record in scenario(number, (5, 3, 1))]
    assert measure_share([1] * 12, records, OPTIONS)["interval"] == wilson_interval(1.0, 4)


def test_intervals_draw_whole_scenarios():
    together = [record for number in range(8) for record in scenario(number, (5, 3, 1))]
    alone = [{**record, "scenario_id": None} for record in together]
    is_correct = [int(index < 12) for index in range(24)]
    wide, narrow = (measure_share(is_correct, records, OPTIONS)["interval"] for records in (together, alone))
    assert wide[1] - wide[0] > 1.3 * (narrow[1] - narrow[0])


def test_one_scenario_of_each_column_says_next_to_nothing():
    records = scenario(0, (5, 3, 1)) + scenario(1, (1, 1, 5), part="implicit")
    low, high = measure_share([1, 1, 1, 0, 0, 0], records, OPTIONS)["interval"]
    assert low < 0.01 and high > 0.99
    assert measure_share([1, 1, 0], records[:3], OPTIONS)["interval"] is None


def test_the_mean_absolute_error_is_over_answers_with_a_score():
    found = summarise_scores(scenario(0, (3, 4, None)), **OPTIONS)["in_domain"]
    assert found["mean_absolute_error"]["num_samples"] == 2
    assert found["mean_absolute_error"]["error"] == 1.5
    assert found["confusion"]["5"] == {"1": 0, "2": 0, "3": 1, "4": 0, "5": 0, "invalid": 0}
    assert found["confusion"]["1"]["invalid"] == 1


def test_an_accuracy_of_no_usable_answer_is_absent_and_not_zero():
    found = summarise_scores(scenario(0, (None, None, None)), **OPTIONS)
    assert [found[name]["accuracy"] for name in ("overall_micro", "overall_macro")] == [None, None]
    found = summarise_scores([*scenario(0, (None,) * 3), *scenario(1, (5, 3, 1), part="implicit")], **OPTIONS)
    assert (found["overall_micro"]["accuracy"], found["overall_macro"]["accuracy"]) == (0.5, None)


OUTCOMES = {
    "ordered": [(5, 3, 1), (5, 4, 3)],
    "tied": [(5, 5, 1), (3, 3, 3)],
    "inverted": [(3, 5, 1), (1, 3, 5)],
    "invalid": [(5, None, 1)],
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_triple_is_in_order_only_if_its_scores_fall_strictly(outcome):
    for predicted in OUTCOMES[outcome]:
        found = measure_order(scenario(0, predicted), OPTIONS)
        assert found["num_triples"] == 1
        assert {name: found[f"num_{name}"] for name in OUTCOMES} == {name: int(name == outcome) for name in OUTCOMES}
        assert found["share_ordered"] == (None if outcome == "invalid" else int(outcome == "ordered"))


def test_scenarios_without_three_gold_scores_are_skipped_and_counted():
    records = scenario(0, (5, 3, 1)) + scenario(1, (5, 3, 1))[:2]
    found = measure_order(records, OPTIONS)
    assert (found["num_triples"], found["num_left_out"]) == (1, 1)


def test_two_answers_with_the_same_gold_score_make_two_triples():
    records = [*scenario(0, (5, 3, 1)), prediction(0, 3, 5) | {"sample_id": "another"}]
    found = measure_order(records, OPTIONS)
    assert (found["num_triples"], found["num_ordered"], found["num_tied"]) == (2, 1, 1)


def test_expected_scores_break_ties_of_whole_scores():
    records = scenario(0, (3, 3, 3))
    for record, expected in zip(records, (3.4, 3.1, 2.8), strict=True):
        record["expected_score"] = expected
    found = summarise_scores(records, **OPTIONS)["in_domain"]
    assert found["order"]["num_tied"] == 1
    assert found["expected_order"]["num_ordered"] == 1


def test_form_and_cost_are_means_over_the_answers():
    records = [
        record | {"follows_format": valid, "num_tokens": tokens, "seconds": 0.5, "duration_s": 2.0}
        for record, valid, tokens in zip(scenario(0, (5, 3, None)), (True, True, False), (10, 20, 60), strict=True)
    ]
    form = summarise_scores(records, **OPTIONS)["in_domain"]["form"]
    assert form["share_follows_format"] == form["share_valid"] == pytest.approx(2 / 3)
    assert form["mean_tokens"] == 30
    assert form["real_time_factor"] == 0.25


def test_errors_that_are_all_equal_have_no_interval():
    found = summarise_scores(scenario(0, (5, 3, 1)), **OPTIONS)["in_domain"]["mean_absolute_error"]
    assert (found["error"], found["interval"]) == (0, None)
