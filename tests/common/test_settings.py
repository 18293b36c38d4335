"""Settings that somebody wrote by hand in YAML."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from sdiareward.common.settings import make_settings, parse_yaml


@dataclass(frozen=True)
class Stage:
    name: str
    size: int = field(default=1, metadata={"minimum": 1})

    def __post_init__(self):
        if self.name == "bad":
            raise ValueError("name is bad; give another.")


@dataclass(frozen=True)
class Settings:
    language: str = ""
    rate: float = 0.0
    names: tuple[str, ...] = ()
    stages: tuple[Stage, ...] = ()
    by_name: Mapping[str, Stage] = field(default_factory=dict)
    num: int | None = field(default=None, metadata={"minimum": 1})


def make(text):
    return make_settings(Settings, parse_yaml(text, "f.yaml"), "f.yaml")


def test_a_mapping_becomes_a_dataclass_with_those_in_its_fields():
    found = make("language: 'no'\nrate: 1e-3\nnames: [a]\nstages: [{name: x}]\nby_name: {y: {name: y, size: 2}}")
    assert found == Settings("no", 0.001, ("a",), (Stage("x"),), {"y": Stage("y", 2)})
    assert make_settings(Settings, {"stages": [Stage("x")]}, "f") == Settings(stages=(Stage("x"),))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", r"^f\.yaml: found list"),
        ("langage: x", r"^f\.yaml: unknown keys \['langage'\].*did you mean 'language'\?"),
        ("stages: [{name: x, sise: 2}]", r"^f\.yaml\.stages\.0: unknown keys \['sise'\].*did you mean 'size'\?"),
        ("stages: [{size: 2}]", r"^f\.yaml: stages\.0\.name Field required"),
        ("stages: [{name: bad}]", r"^f\.yaml: stages\.0 is .*name is bad; give another\.$"),
        ("by_name: {y: 3}", r"by_name\.y is 3: "),
        ("rate: fast", "rate is 'fast': .*number"),
        ("num: 0", "num is 0; it must be at least 1"),
        ("language: no", "language is False.* in quotes, as in 'no'"),
        ("language: 2024-01-02", "language is .* in quotes"),
        ("language: 012", "012 as 10; write that number, or '012' in quotes"),
        ("rate: 1:30.5", "1:30.5 as 90.5; write that number"),
        (r'language: "C:\data"', "forward slashes"),
        ("rate: 1\nlanguage: x\nrate: 2", "not YAML .*has 'rate' twice.*line"),
        ("stages: [{name: a, name: a}]", "has 'name' twice"),
        ("a: [1", "not YAML"),
        ("a: " + "[" * 600, "not YAML"),
        ("a: !!python/object:os.system x", "not YAML"),
    ],
)
def test_an_error_names_file_key_and_value(text, message):
    with pytest.raises(ValueError, match=message):
        make(text)


def test_equal_keys_of_several_mappings_and_of_several_types_are_kept():
    found = parse_yaml("x: {a: 1}\ny: {a: 2}\n1: one\n'1': text", "f")
    assert found == {"x": {"a": 1}, "y": {"a": 2}, 1: "one", "1": "text"}
