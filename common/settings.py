"""Read YAML settings into dataclasses; a field's `metadata` may have a `minimum`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from .files import explain_escape, read_text


_Settings = TypeVar("_Settings")


def parse_yaml(text: str, label: str) -> Any:
    """Parse YAML; refuse duplicate keys, and numbers that YAML 1.1 reads as another value."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if repeated := [name for index, (tag, name) in enumerate(keys) if (tag, name) in keys[:index]]:
                raise yaml.constructor.ConstructorError(None, None, f"has {repeated[0]!r} twice", node.start_mark)
            return super().construct_mapping(node, deep=deep)

        def construct_number(self, node: Any) -> Any:
            """Return a number; refuse octal `010` and `1:30` (90 in YAML 1.1)."""
            kind = node.tag.rpartition(":")[2]
            value = getattr(self, f"construct_yaml_{kind}")(node)
            if ":" in node.value or (kind == "int" and re.match(r"[-+]?0[0-7_]", node.value)):
                problem = f"reads {node.value} as {value}; write that number, or {node.value!r} in quotes"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
            return value

    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_number)
    Loader.add_constructor("tag:yaml.org,2002:float", Loader.construct_number)
    try:
        return Loader(text).get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{label}: not YAML ({' '.join(str(error).split())}{explain_escape(error)}).") from error


def read_mapping(path: Path) -> dict[str, Any]:
    values = parse_yaml(read_text(path, "file of settings"), str(path))
    require_mapping(values, str(path))
    return values


def require_mapping(values: Any, label: str) -> None:
    if not isinstance(values, Mapping):
        raise ValueError(f"{label}: found {type(values).__name__}; give a mapping of settings.")


def require_known(names: Collection[Any], known: Collection[str], label: str, *, is_listed: bool = True) -> None:
    """Raise `ValueError` for an unknown key, with the nearest known one; `label` names the mapping."""
    if unknown := sorted(map(str, set(names) - set(known))):
        near = get_close_matches(unknown[0], map(str, known), n=1)
        listed = f"; known keys: {list(known)}" if is_listed or not near else ""
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(f"{label}: unknown keys {unknown}{listed}{hint}")


def require_minimums(settings: Any, label: str = "") -> None:
    for item in fields(settings):
        value, least = getattr(settings, item.name), item.metadata.get("minimum")
        if least is not None and value is not None and not value >= least:
            raise ValueError(f"{label}{item.name} is {value!r}; it must be at least {least}.")


def make_settings(kind: type[_Settings], values: Any, label: str) -> _Settings:
    """Make a dataclass and its nested ones from a mapping; an error names `label`, key, value, nearest key."""
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    require_mapping(values, label)
    # In a tuple, because pydantic does not accept a configuration for a dataclass.
    rules = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    adapter: TypeAdapter[Any] = TypeAdapter(tuple[kind], config=rules)  # type: ignore[valid-type]
    try:
        [settings] = adapter.validate_python((values,))
        require_minimums(settings)
    except ValidationError as error:
        for each in error.errors():
            if each["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
                *place, name = map(str, each["loc"][1:])
                known = list(dict.fromkeys(_list_fields(adapter.core_schema)))
                require_known([name], known, ".".join([label, *place]), is_listed=len(place) == 0)
        raise ValueError(f"{label}: {explain_error(error, 1)}") from error
    except (TypeError, ValueError, LookupError) as error:
        raise ValueError(f"{label}: {error}") from error
    return settings


def _list_fields(schema: Any) -> Iterator[str]:
    """Yield the field names of all dataclasses in a pydantic schema."""
    if isinstance(schema, dict) and schema.get("type") == "dataclass-field":
        yield schema["name"]
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _list_fields(part)


def explain_error(error: Exception, depth: int = 0) -> str:
    """Return an error as one line; a pydantic error lists each field below `depth` with its value."""
    if not hasattr(error, "errors"):
        return str(error)
    lines = []
    for each in error.errors():
        name, what = ".".join(map(str, each["loc"][depth:])), each["msg"].removeprefix("Value error, ")
        value = "" if not name or each["type"] == "missing" else f"is {each['input']!r:.80}: "
        hint = explain_yaml(each["input"]) if each["type"] == "string_type" else ""
        lines.append(f"{name} {value}{what.rstrip('.')}{hint}.".lstrip())
    return " ".join(lines)


def explain_yaml(value: Any) -> str:
    """Return the YAML remedy for a value that should be text: YAML does not read `no`, numbers and dates as text."""
    if isinstance(value, bool):
        return f": put it in quotes, as in {'yes' if value else 'no'!r}"
    return ": put it in quotes" if isinstance(value, (int, float, date)) else ""
