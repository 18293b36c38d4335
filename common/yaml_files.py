"""Read YAML that somebody wrote or sent: whatever is wrong with it is a `ValueError`, and it is as large as it looks.

`yaml.safe_load` runs no code, but a few lines of aliases can stand for billions of values, which appear as soon as
they are printed or hashed; of a key that comes twice it keeps the last; and for some malformed scalars it raises
whatever its converters happen to.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import Any

from .files import read_text


# Far more than any file of settings has.
_MAX_VALUES = 100_000
_MAX_CHARACTERS = 1_000_000
_MAX_DEPTH = 100
_BRACKET = re.compile(r"[\[\]{}]")


def parse_yaml(text: str, label: str) -> Any:
    """Return what a YAML text says.

    Args:
        text (`str`): The text.
        label (`str`): What to call it in an error, such as its file.

    Raises:
        ValueError: It is not YAML, is nested too deeply, holds NaN or a key twice, or its aliases stand for more than
            100,000 values.
    """
    import yaml

    # The time that PyYAML takes grows with the square of the depth.
    if len(text) > _MAX_CHARACTERS or _measure_depth(text) > _MAX_DEPTH:
        raise ValueError(f"{label}: has {len(text)} characters, or brackets within brackets without end; no settings.")
    try:
        value = _load(text)
        num_values = _count_values(value, {})
    except RecursionError:
        raise ValueError(f"{label}: is nested too deeply, or within itself.") from None
    # The converters of scalars raise what they happen to: `!!bool 2` a KeyError, `!!timestamp x` an AttributeError.
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        raise ValueError(f"{label}: not YAML ({' '.join(str(error).split())}).") from error
    if num_values > _MAX_VALUES:
        raise ValueError(f"{label}: its aliases stand for {num_values:.3g} values; at most {_MAX_VALUES} are read.")
    return value


def read_yaml(path: Path) -> Any:
    """Return what a YAML file says.

    Args:
        path (`Path`): The file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: As `parse_yaml`, or the file is no UTF-8 text.
    """
    return parse_yaml(read_text(path, "file of settings"), str(path))


def _load(text: str) -> Any:
    """Return what `yaml.safe_load` does; raise `yaml.YAMLError` for a key that comes twice."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if repeated := [name for (_, name), count in Counter(keys).items() if count > 1]:
                raise yaml.constructor.ConstructorError(None, None, f"has {repeated[0]!r} twice", node.start_mark)
            return super().construct_mapping(node, deep=deep)

    loader = Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _measure_depth(text: str) -> int:
    """Return how deep brackets are nested, those within words counted too."""
    steps = (1 if found[0] in "[{" else -1 for found in _BRACKET.finditer(text))
    return max(accumulate(steps), default=0)


def _count_values(value: Any, known: dict[int, int]) -> int:
    """Return how many values there are with every alias written out; raise `RecursionError` where that never ends."""
    if isinstance(value, float) and math.isnan(value):
        raise ValueError("found .nan; a number is needed")
    if not isinstance(value, (dict, list, tuple, set)):
        return 1
    if id(value) not in known:
        members = [*value, *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count_values(member, known) for member in members)
    return known[id(value)]
