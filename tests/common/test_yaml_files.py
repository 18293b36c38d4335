"""YAML that somebody wrote by hand."""

import pytest

from sdiareward.common.yaml_files import parse_yaml


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3", "x: {a: 1, a: 1}", "x: [{a: 1, b: 1, a: 2}]"])
def test_a_key_that_comes_twice_is_refused_with_its_line(text):
    with pytest.raises(ValueError, match=r"build.yaml: not YAML .*has 'a' twice.*line"):
        parse_yaml(text, "build.yaml")


def test_equal_keys_of_several_mappings_and_of_several_types_are_kept():
    found = parse_yaml("x: {a: 1}\ny: {a: 2}\n1: one\n'1': text", "f")
    assert found == {"x": {"a": 1}, "y": {"a": 2}, 1: "one", "1": "text"}


@pytest.mark.parametrize("text", ["a: [1", "a: !!python/object:os.system x", "- a\nb: 1"])
def test_what_is_not_yaml_is_refused_with_its_file(text):
    with pytest.raises(ValueError, match=r"build\.yaml: not YAML"):
        parse_yaml(text, "build.yaml")
