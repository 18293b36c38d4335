import math

import pytest

from sdiareward.judges.wavreward.answers import follows_format, parse_score, parse_thoughts
from sdiareward.judges.wavreward.judge import vote
from sdiareward.judges.wavreward.rewards import accuracy_reward, exact_reward, make_reward_functions, read_text


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


def test_thoughts_are_the_text_in_their_tags_or_before_the_score():
    assert parse_thoughts("<think> a b </think><score>5</score>") == "a b"
    assert parse_thoughts("<think>cut off") == "cut off"
    assert parse_thoughts("plain words <score>5</score>") == "plain words"


def test_the_accuracy_reward_is_equation_3():
    assert accuracy_reward(5, 5) == 10.0
    assert accuracy_reward(4, 5) == pytest.approx(6.0653066)
    assert accuracy_reward(3, 5) == pytest.approx(1.3533528)
    assert accuracy_reward(1, 5) == pytest.approx(10 * math.exp(-8))
    assert accuracy_reward(1, 3) == accuracy_reward(5, 3) == accuracy_reward(3, 1)
    assert accuracy_reward(3, 5, sigma=2.0) == pytest.approx(10 * math.exp(-0.5))
    assert accuracy_reward(None, 5) == 0.0
    # Beyond the scale the paper cuts off: a gold score of 5 and a guess of 0.
    assert accuracy_reward(0, 5) == 0.0


def test_the_exact_reward_is_for_the_right_score_only():
    assert [exact_reward(predicted, 3) for predicted in (3, 4, 1, None)] == [5.0, 0.0, 0.0, 0.0]


def test_reward_functions_read_completions_as_text_or_messages():
    good, bare = "<think>a</think><score>5</score>", "<score>3</score>"
    completions = [good, [{"role": "assistant", "content": bare}], [{"role": "assistant", "content": "hm"}]]
    of_form, of_accuracy = make_reward_functions()
    assert of_form(completions=completions, prompts=[]) == [5.0, 0.0, 0.0]
    assert of_accuracy(completions=completions, score=[5, 5, 5]) == [10.0, pytest.approx(1.3533528), 0.0]
    (exact,) = make_reward_functions(reasoning=False, accuracy="exact")
    assert exact(completions=completions, score=[5, 3, 1]) == [5.0, 5.0, 0.0]
    assert read_text([{"role": "assistant", "content": [{"type": "text", "text": "a"}]}]) == "a"


def test_unknown_rewards_are_refused():
    with pytest.raises(ValueError, match="accuracy is 'linear'; it must be 'nonlinear' or 'exact'"):
        make_reward_functions(accuracy="linear")
    with pytest.raises(ValueError, match="sigma is 0; it must be more than 0"):
        make_reward_functions(sigma=0)


def test_the_most_frequent_score_wins_and_the_lower_one_on_a_tie():
    assert vote([5, 3, None, 3]) == 3
    assert vote([5, 3]) == 3
    assert vote([None]) is None
