import json

import pytest

from sdiareward.configuration_sdiareward import DEFAULT_PROMPTS, SDiaRewardConfig
from sdiareward.pairs.prompts import REQUIRED, SHIPPED, PromptSet, read_prompt_file, read_prompts


def test_a_json_file_gives_the_prompt_of_each_criterion(tmp_path):
    (tmp_path / "prompts.json").write_text(json.dumps({"joint": "Judge.", "mine": "谢谢"}))
    prompts = read_prompts(tmp_path / "prompts.json")
    assert prompts == {"joint": "Judge.", "mine": "谢谢"}
    assert SDiaRewardConfig(prompts=prompts).prompts == prompts


def test_a_text_file_is_the_prompt_of_every_criterion_to_the_letter(tmp_path):
    (tmp_path / "prompt.txt").write_text("\nYou judge.\n\n")
    assert read_prompts(str(tmp_path / "prompt.txt")) == dict.fromkeys(DEFAULT_PROMPTS, "\nYou judge.\n\n")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b"{", "a.json: not JSON"),
        ("a.json", b'["joint"]', "holds a list, not an object; give an object"),
        ("a.json", b"{}", "at least one entry"),
        ("a.json", b'{"joint": 1}', r"prompts\['joint'\] is 1"),
        ("a.txt", b" \n", "must be non-empty"),
        ("a.txt", b"\xff\xfe", "a.txt: is not UTF-8 text"),
    ],
)
def test_a_file_that_holds_no_prompts_is_refused_by_name(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_prompts(tmp_path / name)


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent.txt: no such prompt file"):
        read_prompts(tmp_path / "absent.txt")


def test_the_shipped_prompts_are_a_file_of_prompts_to_begin_with():
    shipped = read_prompt_file(SHIPPED)
    assert set(REQUIRED) < set(shipped.given)
    assert all(shipped.read_template(name) == PromptSet().read_template(name) for name in shipped.given)
    found = {criterion: shipped.given[f"reward_{criterion}"] for criterion in DEFAULT_PROMPTS}
    assert found == DEFAULT_PROMPTS == read_prompts(SHIPPED)


def test_a_yaml_file_replaces_the_prompts_that_it_names(tmp_path):
    path = tmp_path / "prompts.yaml"
    path.write_text("reward_joint: |+\n  You judge $$5.\n\nfilter: Listen.\n", encoding="utf-8")
    prompts = read_prompt_file(path)
    assert prompts.fill("filter") == "Listen."
    assert prompts.fill("filter_request") == PromptSet().fill("filter_request")
    assert prompts.compute_version("filter") != PromptSet().compute_version("filter")
    assert prompts.compute_version("filter_request") == PromptSet().compute_version("filter_request")
    # White space counts; criteria that the file does not name keep the model's prompt.
    assert read_prompts(path) == {"joint": "You judge $5.\n\n"}


def test_placeholders_are_filled_and_optional_ones_may_be_left_out(tmp_path):
    path = tmp_path / "prompts.yaml"
    path.write_text("script_writing_request: Number $number about ${topic}, for $$1.\n")
    values = {"number": 3, "topic": "trams", "domain": "travel", "style": "written"}
    assert read_prompt_file(path).fill("script_writing_request", **values) == "Number 3 about trams, for $1."
    assert '"trams" (domain: travel)' in PromptSet().fill(
        "script_writing_request", **values, count=10, others=9, min_rounds=4, max_rounds=8
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("judge: Listen.", r"there are no prompts \['judge'\]; prompts.yaml has \['reward_modality'"),
        ("script_writing_request: About $topic.", r"script_writing_request lacks the placeholders \['number'\]"),
        (
            "script_writing_request: No. $number, {topic}.",
            r"lacks the placeholders \['topic'\]; write them as \$topic",
        ),
        ("filter: Hear $topic.", r"filter has the placeholders \['topic'\]; it takes \[\]. Write \$\$"),
        ("script_speaking: At most $words.", r"the placeholders \['words'\]; it takes \['max_words'\]"),
        ("filter: It costs $5.", r"filter has a dollar sign that begins no placeholder; write \$\$"),
        ("filter: ' '", "filter is ' '; give a text"),
        ("filter: [Listen]", "filter is .'Listen'.; give a text"),
        ("- filter", "holds list; a mapping"),
    ],
)
def test_a_prompt_that_cannot_be_asked_is_refused_by_name(content, message, tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"own.yaml: .*{message}|own.yaml: {message}"):
        read_prompt_file(path)


def test_a_yaml_file_without_a_prompt_of_the_reward_model_is_refused(tmp_path):
    (tmp_path / "own.yaml").write_text("filter: Listen.")
    with pytest.raises(ValueError, match=r"own.yaml: has no prompt of a reward model; give some of \['reward_mod"):
        read_prompts(tmp_path / "own.yaml")
