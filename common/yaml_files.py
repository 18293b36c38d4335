"""Read settings in YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .files import read_text


def parse_yaml(text: str, label: str) -> Any:
    """Return the value of a YAML text; a key that appears twice raises `ValueError`, because PyYAML keeps the last."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if repeated := [name for index, (tag, name) in enumerate(keys) if (tag, name) in keys[:index]]:
                raise yaml.constructor.ConstructorError(None, None, f"has {repeated[0]!r} twice", node.start_mark)
            return super().construct_mapping(node, deep=deep)

    try:
        return Loader(text).get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{label}: not YAML ({' '.join(str(error).split())}).") from error


def read_yaml(path: Path) -> Any:
    return parse_yaml(read_text(path, "file of settings"), str(path))
