import json

import pytest

from sdiareward.configuration_sdiareward import DEFAULT_PROMPTS, SDiaRewardConfig
from sdiareward.pairs.prompts import read_prompts


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
