import json

import pytest

from sdiareward.configuration_sdiareward import DEFAULT_PROMPTS, SDiaRewardConfig
from sdiareward.pairs.prompts import REQUIRED, SHIPPED, PromptSet, read_prompt_file, read_prompts


def test_a_json_file_gives_the_prompt_of_each_criterion_and_a_text_file_that_of_all_to_the_letter(tmp_path):
    given = {"joint": "Judge.", "mine": "谢谢"}
    (tmp_path / "prompts.json").write_text(json.dumps(given))
    prompts = read_prompts(tmp_path / "prompts.json")
    assert prompts == SDiaRewardConfig(prompts=prompts).prompts == given
    (tmp_path / "prompt.txt").write_text("\nYou judge.\n\n")
    assert read_prompts(str(tmp_path / "prompt.txt")) == dict.fromkeys(DEFAULT_PROMPTS, "\nYou judge.\n\n")


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("a.json", b"{", "a.json"),
        ("a.json", b"{}", "at least one entry"),
        ("a.json", b'{"joint": 1}', r"prompts\['joint'\] is 1"),
        ("a.txt", b" \n", "must be non-empty"),
        ("a.txt", b"\xff\xfe", "a.txt"),
        ("a.yaml", b"filter: Listen.", "a.yaml"),
        ("absent.txt", None, "absent.txt"),
    ],
)
def test_a_file_without_prompts_is_refused(name, content, place, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(FileNotFoundError if content is None else ValueError, match=place):
        read_prompts(tmp_path / name)


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
    # White space counts; criteria that the file does not name keep the model's prompt.
    assert read_prompts(path) == {"joint": "You judge $5.\n\n"}


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("judge: Listen.", "judge"),
        ("script_writing_request: About $topic.", "number"),
        ("filter: Hear $topic.", "topic"),
        ("script_speaking: At most $words.", "words"),
        ("filter: It costs $5.", "filter"),
        ("filter: ' '", "filter"),
        ("- filter", "mapping"),
    ],
)
def test_a_prompt_that_cannot_be_asked_is_refused_by_name(content, name, tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"own.yaml: .*{name}"):
        read_prompt_file(path)
