"""YAML that somebody wrote by hand."""

from dataclasses import dataclass

import pytest

from sdiareward.common.settings import make_settings
from sdiareward.common.yaml_files import parse_yaml


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3", "x: {a: 1, a: 1}", "x: [{a: 1, b: 1, a: 2}]"])
def test_a_key_that_comes_twice_is_refused_with_its_line(text):
    with pytest.raises(ValueError, match=r"build.yaml: not YAML .*has 'a' twice.*line"):
        parse_yaml(text, "build.yaml")


def test_equal_keys_of_several_mappings_and_of_several_types_are_kept():
    found = parse_yaml("x: {a: 1}\ny: {a: 2}\n1: one\n'1': text", "f")
    assert found == {"x": {"a": 1}, "y": {"a": 2}, 1: "one", "1": "text"}


@dataclass
class Settings:
    language: str = ""
    rate: float = 0.0


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("language: no", "language is False.* in quotes, as in 'no'"),
        ("language: 2024-01-02", "language is .* in quotes"),
        ("language: 12", "language is 12.* in quotes"),
        ("language: 012", "012 as 10; write that number, or '012' in quotes"),
        ("rate: 1:30.5", "1:30.5 as 90.5; write that number"),
        ("rate: 1e-3", "rate is '1e-3'.* write 0.001 without quotes"),
        ("rate: fast", r"a number is needed\.$"),
        (r'language: "C:\data"', "forward slashes"),
        ("on: 1", "the key on as true or false; put it in quotes"),
    ],
)
def test_what_yaml_reads_as_another_value_is_named_with_what_to_write(text, remedy):
    with pytest.raises(ValueError, match=remedy):
        make_settings(Settings, parse_yaml(text, "f"), "f")
    assert make_settings(Settings, parse_yaml("language: 'no'\nrate: -0.5", "f"), "f") == Settings("no", -0.5)


@pytest.mark.parametrize("text", ["a: [1", "a: " + "[" * 2000, "a: !!python/object:os.system x", "- a\nb: 1"])
def test_what_is_not_yaml_is_refused_with_its_file(text):
    with pytest.raises(ValueError, match=r"build\.yaml: not YAML"):
        parse_yaml(text, "build.yaml")
