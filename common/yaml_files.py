"""Read settings in YAML."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .files import explain_escape, read_text


def parse_yaml(text: str, label: str) -> Any:
    """Return the value of a YAML text; a key that appears twice raises `ValueError`, because PyYAML keeps the last."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if repeated := [name for index, (tag, name) in enumerate(keys) if (tag, name) in keys[:index]]:
                raise yaml.constructor.ConstructorError(None, None, f"has {repeated[0]!r} twice", node.start_mark)
            if odd := [name for tag, name in keys if tag.endswith(":bool")]:
                problem = f"reads the key {odd[0]} as true or false; put it in quotes"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
            return super().construct_mapping(node, deep=deep)

        def construct_number(self, node: Any) -> Any:
            """Return a number; refuse octal `010` and `1:30`, which is 90."""
            kind = node.tag.rpartition(":")[2]
            value = getattr(self, f"construct_yaml_{kind}")(node)
            if ":" in node.value or (kind == "int" and re.match(r"[-+]?0[0-7_]", node.value)):
                problem = f"reads {node.value} as {value}; write that number, or {node.value!r} in quotes for a text"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
            return value

    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_number)
    Loader.add_constructor("tag:yaml.org,2002:float", Loader.construct_number)

    try:
        return Loader(text).get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{label}: not YAML ({' '.join(str(error).split())}{explain_escape(error)}).") from error


def read_yaml(path: Path) -> Any:
    return parse_yaml(read_text(path, "file of settings"), str(path))
