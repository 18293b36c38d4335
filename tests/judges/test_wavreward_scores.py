import math

import pytest
from support import wavreward_eval_world
from support.wavreward_eval_world import prediction

from sdiareward.esdr_accuracy.pairwise import wilson_interval
from sdiareward.judges.wavreward.judge import follows_format, parse_score, parse_thoughts, vote
from sdiareward.judges.wavreward.rewards import accuracy_reward, make_reward_functions, read_text
from sdiareward.judges.wavreward.scores import (
    COLUMNS,
    average_columns,
    find_column,
    measure_order,
    measure_share,
    predict_scores,
    read_out_of_domain,
    read_samples,
    summarise_scores,
)


OPTIONS = {"num_bootstrap": 200, "seed": 0}
THOUGHTS_WITH_A_SCORE = "<think>I would say <score>1</score>, no.</think>\n<score> 3 </score>\n"


@pytest.mark.parametrize(
    ("score", "texts"),
    [
        (5, ["<think>It fits.</think><score>5</score>", "Rating: 5", "<score>1</score> no, <score>5</score>"]),
        (4, ["<score>4</score>", "<score>4/5</score>", "**Score:** 4/5", "4/5", "Score from 1 to 5: 4"]),
        (3, [THOUGHTS_WITH_A_SCORE, "<score>3.0</score>", "The score is 3.", " 3 ", "Score (1-5): 3"]),
        (2, ["<score>2", '{"score": 2}', "On a scale of 1 to 5, a rating of 2"]),
        (None, ["<score>7</score>", "<score>0</score>", "<score>3.5</score>", "score 10", "Score: 1 to 5", ""]),
        (None, ["It was said in 1999 by 5 people.", "<think>score: 5</think>"]),
    ],
)
def test_scores_are_parsed_from_common_forms_of_answers(score, texts):
    assert [parse_score(text) for text in texts] == [score] * len(texts)


def test_only_the_exact_form_follows_the_format():
    thoughts = ["<think>It fits.</think><score>5</score>", " <think>Two\nlines.</think>\n<score> 3 </score>\n"]
    empty = ["<think></think><score>4</score>", "<think> </think><score>4</score>", "<think>a</think>"]
    more = ["<think>a</think><score>5</score>.", "So: <think>a</think><score>5</score>"]
    nested = ["<think>a<think>b</think><score>5</score>", "<think>a</think> b </think><score>5</score>"]
    texts = [*thoughts, "<score>4</score>", *empty, *more, *nested, "<think>a</think><score>6</score>"]
    assert [text for text in texts if follows_format(text)] == thoughts
    assert [text for text in texts if follows_format(text, reasoning=False)] == ["<score>4</score>"]


def test_thoughts_are_in_their_tags_or_before_the_score_and_the_lower_of_equally_frequent_scores_wins():
    said = ["<think> a b </think><score>5</score>", "<think>cut off", "plain words <score>5</score>"]
    assert list(map(parse_thoughts, said)) == ["a b", "cut off", "plain words"]
    assert [vote([5, 3, None, 3]), vote([5, 3]), vote([None])] == [3, 3, None]


def test_the_accuracy_reward_is_equation_3():
    assert accuracy_reward(5, 5) == 10.0
    assert accuracy_reward(4, 5) == pytest.approx(6.0653066)
    assert accuracy_reward(3, 5) == accuracy_reward(5, 3) == pytest.approx(1.3533528)
    assert accuracy_reward(1, 5) == pytest.approx(10 * math.exp(-8))
    assert accuracy_reward(3, 5, sigma=2.0) == pytest.approx(10 * math.exp(-0.5))
    # Beyond the scale the paper cuts off: a gold score of 5 and a guess of 0.
    assert accuracy_reward(None, 5) == accuracy_reward(0, 5) == 0.0


def test_reward_functions_read_completions_as_text_or_messages():
    good, bare = "<think>a</think><score>5</score>", "<score>3</score>"
    completions = [good, [{"role": "assistant", "content": bare}], [{"role": "assistant", "content": "hm"}]]
    of_form, of_accuracy = make_reward_functions()
    assert of_form(completions=completions, prompts=[]) == [5.0, 0.0, 0.0]
    assert of_accuracy(completions=completions, score=[5, 5, 5]) == [10.0, pytest.approx(1.3533528), 0.0]
    (exact,) = make_reward_functions(reasoning=False, accuracy="exact")
    assert exact(completions=completions, score=[5, 3, 1]) == [5.0, 5.0, 0.0]
    assert read_text([{"role": "assistant", "content": [{"type": "text", "text": "a"}]}]) == "a"
    for wrong in ({"accuracy": "linear"}, {"sigma": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            make_reward_functions(**wrong)


def scenario(number, predicted, **place):
    """Predictions of the answers of scores 5, 3 and 1 to one question."""
    return [
        prediction(number, score, value, **place) | {"expected_score": None}
        for score, value in zip((5, 3, 1), predicted, strict=True)
    ]


def test_a_sample_counts_in_one_column_of_table_1():
    places = [("content", None), *((part, "age") for part in ("content", "understanding", "generation", "implicit"))]
    found = [find_column(prediction(0, 5, 5, part, attribute)) for part, attribute in places]
    assert found == ["content", "content", "age", "age", "implicit"]
    with pytest.raises(ValueError, match="sample generation-energy-0-5: .* needs one of"):
        find_column(prediction(0, 5, 5, "generation", "energy"))


def test_accuracy_counts_exact_scores_and_an_answer_without_one_is_wrong():
    records = scenario(0, (5, 4, None)) + scenario(1, (5, 3, 1), part="generation", attribute="volume")
    found = summarise_scores(records, **OPTIONS)
    content = found["columns"]["content"]
    counts = ("num_samples", "num_scenarios", "num_correct", "num_invalid")
    assert [content[name] for name in counts] == [3, 1, 1, 1]
    assert content["accuracy"] == pytest.approx(1 / 3)
    assert found["columns"]["volume"]["accuracy"] == 1.0
    assert found["columns"]["age"] is found["all_columns_macro"] is None
    assert found["overall_micro"]["accuracy"] == pytest.approx(4 / 6)
    assert found["overall_macro"]["accuracy"] == pytest.approx((1 / 3 + 1) / 2)


def test_out_of_domain_samples_have_their_own_column_outside_the_averages():
    elsewhere = [prediction(None, 4, 4, part=None), prediction(None, 2, 3, part=None)]
    found = summarise_scores(scenario(0, (5, 3, 1)), elsewhere, **OPTIONS)
    column = found["columns"]["out_of_domain"]
    assert (column["accuracy"], column["num_scenarios"], found["overall_micro"]["num_samples"]) == (0.5, 2, 3)
    assert (found["overall_macro"]["accuracy"], found["all_columns_macro"]["accuracy"]) == (1.0, 0.75)
    assert found["out_of_domain"]["mean_absolute_error"]["error"] == 0.5


def test_a_macro_average_is_the_mean_of_independent_columns():
    published = (90.8, 96.9, 87.7, 100, 95.5, 97.5, 89.1, 91.1, 97.6, 97.0, 74.3, 80.8)
    columns = [{"accuracy": value / 100, "interval": [0.0, 1.0]} for value in published]
    assert (len(columns), round(100 * average_columns(columns)["accuracy"], 1)) == (len(COLUMNS), 91.5)
    # Four independent columns of equal width: half the width.
    assert average_columns([{"accuracy": 0.5, "interval": [0.3, 0.7]}] * 4)["interval"] == [0.4, 0.6]
    assert average_columns([{"accuracy": 1.0, "interval": [0.2, 1.0]}])["interval"] == [0.2, 1.0]


def test_intervals_are_over_whole_scenarios():
    together = [record for number in range(8) for record in scenario(number, (5, 3, 1))]
    alone = [{**record, "scenario_id": None} for record in together]
    is_correct = [int(index < 12) for index in range(24)]
    wide, narrow = (measure_share(is_correct, records, OPTIONS)["interval"] for records in (together, alone))
    assert wide[1] - wide[0] > 1.3 * (narrow[1] - narrow[0])
    assert measure_share([1] * 12, together[:12], OPTIONS)["interval"] == wilson_interval(1.0, 4)
    assert measure_share([1, 1, 0], together[:3], OPTIONS)["interval"] is None


def test_the_mean_absolute_error_is_over_answers_with_a_score_and_without_any_no_number_is_zero():
    found = summarise_scores(scenario(0, (3, 4, None)), **OPTIONS)["in_domain"]
    assert (found["mean_absolute_error"]["num_samples"], found["mean_absolute_error"]["error"]) == (2, 1.5)
    assert found["confusion"]["5"] == {"1": 0, "2": 0, "3": 1, "4": 0, "5": 0, "invalid": 0}
    assert found["confusion"]["1"]["invalid"] == 1
    equal = summarise_scores(scenario(0, (5, 3, 1)), **OPTIONS)["in_domain"]["mean_absolute_error"]
    assert (equal["error"], equal["interval"]) == (0, None)
    none = scenario(0, (None, None, None))
    found = summarise_scores(none, **OPTIONS)
    assert [found[name]["accuracy"] for name in ("overall_micro", "overall_macro")] == [None, None]
    assert found["in_domain"]["mean_absolute_error"]["error"] is None
    found = summarise_scores([*none, *scenario(1, (5, 3, 1), part="implicit")], **OPTIONS)
    assert (found["overall_micro"]["accuracy"], found["overall_macro"]["accuracy"]) == (0.5, None)


OUTCOMES = {
    "ordered": [(5, 3, 1), (5, 4, 3)],
    "tied": [(5, 5, 1), (3, 3, 3)],
    "inverted": [(3, 5, 1), (1, 3, 5)],
    "invalid": [(5, None, 1)],
}


def test_a_triple_is_in_order_only_if_its_scores_fall_strictly():
    for outcome, predicted in ((outcome, each) for outcome, triples in OUTCOMES.items() for each in triples):
        found = measure_order(scenario(0, predicted), OPTIONS)
        assert {name: found[f"num_{name}"] for name in OUTCOMES} == {name: int(name == outcome) for name in OUTCOMES}
        assert found["share_ordered"] == (None if outcome == "invalid" else int(outcome == "ordered"))


def test_triples_are_all_answers_of_three_gold_scores_and_expected_scores_break_ties():
    more = [*scenario(0, (5, 3, 1)), prediction(0, 3, 5) | {"sample_id": "another"}, *scenario(1, (5, 3, 1))[:2]]
    found = measure_order(more, OPTIONS)
    counts = ("num_triples", "num_ordered", "num_tied", "num_left_out")
    assert [found[name] for name in counts] == [2, 1, 1, 1]
    records = [
        {**record, "expected_score": expected}
        for record, expected in zip(scenario(0, (3, 3, 3)), (3.4, 3.1, 2.8), strict=True)
    ]
    found = summarise_scores(records, **OPTIONS)["in_domain"]
    assert (found["order"]["num_tied"], found["expected_order"]["num_ordered"]) == (1, 1)


@pytest.fixture
def outside(tmp_path):
    return wavreward_eval_world.write_recordings(tmp_path / "recordings")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return wavreward_eval_world.write_chatreward(tmp_path_factory.mktemp("chatreward"))


def test_out_of_domain_recordings_are_read_from_csv_json_lines_or_another_data_set(outside, data):
    samples = read_out_of_domain(outside, "test")
    found = [(label["sample_id"], label["score"], label["scenario_id"]) for label in samples.labels]
    assert found == [("0.wav", 5, None), ("1.wav", 3, None), ("2.wav", 1, None)]
    (outside / "scores.csv").unlink()
    lines = ['{"file": "0.wav", "score": 2, "scenario_id": 0}', '{"file": "2.wav", "score": 2, "scenario_id": "s"}']
    (outside / "scores.jsonl").write_text("\n".join(lines))
    first, second = read_out_of_domain(outside, "test").labels
    absent = dict.fromkeys(("part", "attribute", "category"))
    assert first == {"sample_id": "0.wav", "scenario_id": "0", **absent, "score": 2, "duration_s": 0.2}
    assert second["scenario_id"] == "s"
    assert len(read_out_of_domain(data, "test")) == 12


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("scores.csv", "file,score\n0.wav,5\n1.wav,7\n", "entry 2: score is '7'"),
        ("scores.csv", "file,score\nnone.wav,5\n", "none.wav does not exist"),
        ("scores.csv", "name,score\n0.wav,5\n", "entry 1: file"),
        ("scores.csv", "file,score\n", "lists no recording"),
        ("scores.csv", "file,score\n0.wav,5\n0.wav,4\n", "sample 0.wav is listed twice"),
        ("scores.jsonl", '{"file": "0.wav", "score": 5}\n{"file"\n', "several lists"),
        ("only.jsonl", '{"file": "0.wav", "score": 5}\n{"file"\n', "entry 2: "),
        ("only.jsonl", '{"file": "0.wav", "score": true}\n', "entry 1: score is True"),
    ],
)
def test_an_invalid_list_is_refused_with_its_entry(outside, name, text, message):
    if name.startswith("only"):
        (outside / "scores.csv").unlink()
    (outside / name).write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_out_of_domain(outside, "test")


def test_the_baselines_find_scores_that_words_and_loudness_reveal(data):
    train, test = read_samples(data, "train"), read_samples(data, "test")
    gold = [label["score"] for label in test.labels]
    assert predict_scores("most_frequent", train, test) == [1] * 12
    assert predict_scores("acoustic", train, test) == gold
    # Answers of 5 and 3 have the same words here: reading cannot tell them apart.
    text = predict_scores("text", train, test)
    assert [score == 1 for score in text] == [score == 1 for score in gold]
    assert len({score for score in text if score != 1}) == 1
