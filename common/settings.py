"""Make a dataclass of settings from a mapping; a field's `metadata` may have a `minimum`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from .yaml_files import read_yaml


_Settings = TypeVar("_Settings")
_KINDS = {
    float: "a number",
    int: "a whole number",
    str: "a text",
    bool: "true or false",
    NoneType: "nothing",
    tuple: "a list",
    dict: "a mapping",
}


def read_mapping(path: Path) -> dict[str, Any]:
    values = read_yaml(path)
    require_mapping(values, str(path))
    return values


def require_mapping(values: Any, label: str) -> None:
    if not isinstance(values, Mapping):
        raise ValueError(f"{label}: holds {type(values).__name__}; a mapping of settings is needed.")


def require_known(names: Collection[Any], known: Collection[str], label: str, *, is_listed: bool = True) -> None:
    """Raise `ValueError` with the nearest known key if a key is unknown; `label` names the mapping."""
    if unknown := sorted(map(str, set(names) - set(known))):
        near = get_close_matches(unknown[0], map(str, known), n=1)
        listed = f"; known are {list(known)}" if is_listed or not near else ""
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(f"{label}: unknown keys {unknown}{listed}{hint}")


def require_minimums(settings: Any, label: str = "") -> None:
    for item in fields(settings):
        value, least = getattr(settings, item.name), item.metadata.get("minimum")
        if least is not None and value is not None and not value >= least:
            raise ValueError(f"{label}{item.name} is {value!r}; it must be at least {least}.")


def make_settings(kind: type[_Settings], values: Any, label: str) -> _Settings:
    """Make a settings dataclass from a mapping read from YAML; lists become tuples."""
    require_mapping(values, label)
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    require_known(values, known, label)
    required = [n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING]
    if missing := [name for name in required if name not in values]:
        raise ValueError(f"{label}: keys {missing} are missing.")
    _require_types(kind, values, label)
    try:
        settings = kind(**{key: tuple(v) if isinstance(v, list) else v for key, v in values.items()})
        require_minimums(settings)
    # A value of another type fails in the checks of the dataclass, with any of these errors.
    except (TypeError, ValueError, AttributeError, LookupError, OverflowError) as error:
        raise ValueError(f"{label}: {explain_error(error)}") from error
    return settings


def explain_error(error: Exception) -> str:
    """Return the message of an error in one line; of a pydantic error, each field with its value."""
    if not hasattr(error, "errors"):
        return str(error)
    found = [(".".join(map(str, each["loc"])), each["input"], each["msg"]) for each in error.errors()]
    return " ".join(f"{name} is {value!r:.80}: {what}." if name else f"{what}." for name, value, what in found)


def _require_types(kind: type, values: Mapping[str, Any], label: str) -> None:
    """Raise `ValueError` for a value of another type than its field's, if YAML has that type."""
    hints = get_type_hints(kind)
    for name, value in values.items():
        if not _fits(value, hints[name]):
            kinds = " or ".join(dict.fromkeys(_KINDS[each] for each in _list_kinds(hints[name])))
            raise ValueError(f"{label}: {name} is {value!r:.80}; {kinds} is needed{explain_yaml(value, hints[name])}.")


def explain_yaml(value: Any, hint: Any = str) -> str:
    """Return what to write in YAML, which reads `no` and dates as no text, and `1e-3` as no number."""
    if str in _list_kinds(hint) and isinstance(value, (bool, int, float, date)):
        return ": put it in quotes" + (f", as in {'yes' if value else 'no'!r}" if isinstance(value, bool) else "")
    if {int, float} & set(_list_kinds(hint)) and isinstance(value, str):
        with suppress(ValueError):
            return f": write {float(value):g} without quotes"
    return ""


def _list_kinds(hint: Any) -> list[Any]:
    """Return the keys of `_KINDS` that a type stands for; none for one without a YAML form, which takes anything."""
    origin = get_origin(hint) or hint
    if origin in (Union, UnionType):
        kinds = [_list_kinds(each) for each in get_args(hint)]
        return [] if [] in kinds else sum(kinds, [])
    if origin in (tuple, list, Sequence):
        return [tuple]
    if origin in (dict, Mapping):
        return [dict]
    return [origin] if origin in _KINDS else []


def _fits(value: Any, hint: Any) -> bool:
    kinds = _list_kinds(hint)
    if get_origin(hint) in (Union, UnionType):
        return not kinds or any(_fits(value, each) for each in get_args(hint))
    if kinds == [tuple]:
        of_items = [each for each in get_args(hint) if each is not ...]
        is_list = isinstance(value, (tuple, list))
        return is_list and all(_fits(item, of_items[0]) for item in value if len(of_items) == 1)
    if kinds == [dict]:
        of_values = get_args(hint)[1:]
        return isinstance(value, Mapping) and all(_fits(item, each) for item in value.values() for each in of_values)
    if kinds in ([int], [float]):
        return isinstance(value, (int, kinds[0])) and not isinstance(value, bool)
    return not kinds or isinstance(value, kinds[0])
