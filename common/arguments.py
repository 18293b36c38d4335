"""Parse flags and YAML into dataclasses, the same way for every command.

A field is a flag and a key of the YAML file of `--config`. Its `metadata` are arguments of `argparse`, as for
`transformers.HfArgumentParser`; ours are `minimum` (see `settings`), `positional`, `group` (a title in the help),
`flag` (replaces the field's name, which becomes an alias) and `aliases`. A dataclass with a field `config` reads it.
Custom, because jsonargparse 4.53 refuses `--max-turn-s`, `--strict`, `--no_baselines` and `--names a b`, and
HfArgumentParser imports `transformers`. TRL's fields are read as `trl.TrlParser` does; a test compares each flag.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from datetime import date
from difflib import get_close_matches
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, NoReturn, Union, get_args, get_origin, get_type_hints

from .escaping import escape_terminal
from .settings import explain_yaml, read_mapping, require_known, require_minimums
from .user_errors import UserError


_MAX_LISTED = 50
_BOOLEANS = dict.fromkeys(("yes", "true", "t", "y", "1"), True) | dict.fromkeys(("no", "false", "f", "n", "0"), False)


class Inherited(NamedTuple):
    """A dataclass of a library whose fields are options of a command, too."""

    kind: str  # `module:class`, imported when its fields are read or `--help_all` lists them.
    name: str
    shown: Mapping[str, str]  # Help of the most used fields, which `--help` lists.

    def load(self) -> type:
        module, _, name = self.kind.partition(":")
        return getattr(import_module(module), name)


def parse_arguments(
    kinds: Sequence[type],
    argv: Sequence[str] | None,
    *,
    prog: str,
    description: str | None,
    epilog: str | None = None,
    inherited: Inherited | None = None,
) -> tuple[Any, ...]:
    """Return an instance of each dataclass, the inherited one last; flags override the file that `--config` names."""
    parser = OneLineParser(
        prog=prog,
        description=description,
        epilog=epilog,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    arguments = sys.argv[1:] if argv is None else argv
    is_short = inherited is not None and bool({"-h", "--help"} & set(arguments))
    flags: dict[str, argparse.Action] = {}
    for kind in kinds:
        flags |= _add_flags(parser, kind)
    if inherited is not None:
        flags |= _add_inherited(parser, inherited, is_short)
        kinds = kinds if is_short else [*kinds, inherited.load()]
    required = [item for kind in kinds for item in fields(kind) if item.init and _find_default(item) is MISSING]
    reads_file = "config" not in flags
    if reads_file:
        parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file of these names; flags override it")
    parser.usage = _describe_usage(flags, required)
    given = {name: value for name, value in _parse_known(parser, arguments).items() if value is not MISSING}
    try:
        file = given.pop("config", None) if reads_file else None
        values = given if file is None else _read_file(file, flags) | given
        if missing := [_name_flag(item) for item in required if item.name not in values]:
            parser.error(f"the following arguments are required: {', '.join(missing)}")
        return tuple(make_arguments(kind, values) for kind in kinds)
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"an option needs a library that is not installed ({reason}); install it, or omit it."
        ) from error
    except (ValueError, FileNotFoundError) as error:
        raise UserError(str(error)) from error


def _add_inherited(parser: argparse.ArgumentParser, inherited: Inherited, is_short: bool) -> dict[str, Any]:
    """Add the fields of a library's dataclass; a short help has the most used ones, without their values."""
    texts = ("--help_all", "--help-all")
    parser.add_argument(*texts, action="help", help=f"also list every option of {inherited.name}, then exit")
    if not is_short:
        return _add_flags(parser, inherited.load(), f"options of {inherited.name}")
    group = parser.add_argument_group(f"most used options of {inherited.name}; --help_all lists the others")
    return {name: group.add_argument(f"--{name}", help=text) for name, text in inherited.shown.items()}


def _describe_usage(flags: Mapping[str, argparse.Action], required: Sequence[Field[Any]]) -> str:
    """Return the usage with what is required; a list of a hundred flags would hide it."""
    shown = ["%(prog)s"]
    for item in required:
        if not item.metadata.get("positional"):
            shown.append(f"{_name_flag(item)} {flags[item.name].metavar or _name_flag(item)[2:].upper()}")
    for flag in flags.values():
        if not flag.option_strings:
            name = f"{flag.metavar or flag.dest.upper()}{' ...' if flag.nargs == '+' else ''}"
            shown.append(f"[{name}]" if flag.nargs == "?" else name)
    return " ".join([*shown, "[options]"])


class OneLineParser(argparse.ArgumentParser):
    """Report an error in one line: the usage of a hundred flags would hide it."""

    def error(self, message: str) -> NoReturn:
        # argparse names every form of a flag.
        line = re.sub(r"^argument (--\w+)/\S*:", r"argument \1:", " ".join(message.split()))
        self.exit(2, f"{self.prog}: error: {escape_terminal(line)}\n")


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Show each flag once, by the first of its names, and no value that a switch does not need."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return str(action.metavar or action.dest.upper())
        if action.option_strings[0] == "-h":
            return ", ".join(action.option_strings)
        name, is_switch = action.option_strings[0], action.type is parse_bool or action.nargs == 0
        return name if is_switch else f"{name} {self._format_args(action, (action.dest or name[2:]).upper())}"


def _parse_known(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> dict[str, Any]:
    """Return the values of the flags; an unknown one ends the process, with the nearest name."""
    found, unknown = parser.parse_known_args(argv)
    if unknown:
        flags = [form for action in parser._actions for form in action.option_strings]
        near = get_close_matches(unknown[0].partition("=")[0], flags, n=1)
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{f'; did you mean {near[0]}?' if near else ''}")
    return vars(found)


def make_arguments(kind: type, values: Mapping[str, Any]) -> Any:
    made = kind(**{item.name: values[item.name] for item in fields(kind) if item.name in values})
    require_minimums(made, "--")
    return made


def _add_flags(parser: argparse.ArgumentParser, kind: type, title: str | None = None) -> dict[str, argparse.Action]:
    """Add the fields of a dataclass, under a title or that of each field's group; return the flags by field."""
    hints, flags = get_type_hints(kind), {}
    groups: dict[str | None, Any] = {None: parser}
    items = [item for item in fields(kind) if item.init]
    has_positionals = any(item.metadata.get("positional") for item in items)
    for item in items:
        own = {key: value for key, value in item.metadata.items() if key != "group"}
        options = {**_read_type(hints[item.name]), **own}
        group = item.metadata.get("group") if title is None else title
        if group not in groups:
            groups[group] = parser.add_argument_group(group)
        # A flag that may have a value would take the positional argument that follows it.
        if options["type"] is parse_bool and has_positionals:
            options = {"action": "store_true", **own}
        flags[item.name] = groups[group].add_argument(*_pop_names(item, options), help=_describe(item), **options)
        if options.get("type", parse_bool) is parse_bool and item.default is True:
            names = (f"--no_{item.name}", f"--no-{item.name.replace('_', '-')}")
            groups[group].add_argument(*names, dest=item.name, action="store_false", help=f"not --{item.name}")
    return flags


def _read_type(hint: Any) -> dict[str, Any]:
    """Return the options of argparse for a field's type; of several types a flag gives the one that TrlParser does."""
    is_optional = NoneType in get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        types = [kind for kind in get_args(hint) if kind is not NoneType and (is_optional or kind is not str)]
        if {str, bool} <= set(types):
            return {"type": _parse_text_or_bool}
        hint = str if str in types else types[0]
    origin = get_origin(hint) or hint
    if origin in (list, tuple):
        return {"type": get_args(hint)[0], "nargs": "+"}
    if origin is Literal:
        return _read_choices(get_args(hint))
    if isinstance(origin, type) and issubclass(origin, Enum):
        return _read_choices([member.value for member in origin])
    if origin is bool:
        return {"type": parse_bool, "nargs": "?", "const": True}
    convert = json.loads if origin in (dict, Mapping) else origin
    options: dict[str, Any] = {"metavar": "JSON"} if convert is json.loads else {}
    return options | {"type": _accept_none(convert) if is_optional and origin not in (str, Path) else convert}


def _parse_text_or_bool(text: str) -> str:
    return text


def _accept_none(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a conversion that takes the words `none` and `null` for None."""

    def parse(text: str) -> Any:
        return None if text.lower() in ("none", "null") else convert(text)

    parse.__name__ = convert.__name__
    return parse


def _read_choices(choices: Sequence[Any]) -> dict[str, Any]:
    by_text = {str(choice): choice for choice in choices}
    return {"type": lambda text: by_text.get(text, text), "choices": choices}


def parse_bool(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return _BOOLEANS[text.lower()]


def _pop_names(item: Field[Any], options: dict[str, Any]) -> list[str]:
    """Remove from the options what argparse does not have; return the names of the flag."""
    for name in ("minimum", "help", "revision_of"):
        options.pop(name, None)
    aliases = options.pop("aliases", ())
    flag = options.pop("flag", item.name)
    if options.pop("positional", False):
        if _find_default(item) is not MISSING:
            # argparse would convert the default that marks an absent flag.
            options |= {"nargs": "?", "default": MISSING}
        return [item.name]
    if options.get("action") == "append":
        options.pop("nargs")
    if flag != item.name:
        options.setdefault("dest", item.name)
        options.setdefault("metavar", None if "choices" in options else flag.upper())
    names = [f"--{flag}", f"--{item.name}", *((aliases,) if isinstance(aliases, str) else aliases)]
    return list(dict.fromkeys(form for name in names for form in (name, f"--{name[2:].replace('_', '-')}")))


def _describe(item: Field[Any]) -> str:
    text, default = item.metadata.get("help", ""), _find_default(item)
    is_empty = default is None or default is False or default is MISSING or (not default and default != 0)
    if is_empty or text == argparse.SUPPRESS or "(default" in text:
        return text
    shown = " ".join(map(str, default)) if isinstance(default, (list, tuple)) else str(default)
    return f"{text} (default: {shown.replace('%', '%%')})".lstrip()


def _find_default(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def _name_flag(item: Field[Any]) -> str:
    return item.name if item.metadata.get("positional") else f"--{item.metadata.get('flag', item.name)}"


def _read_file(path: Path, flags: Mapping[str, argparse.Action]) -> dict[str, Any]:
    """Return the values of a YAML file; text becomes what the flag would make of it, such as `1e-5` a number."""
    values = read_mapping(path)
    names = {name: name for name in flags}
    for name, flag in flags.items():
        names |= {form[2:]: name for form in flag.option_strings if "-" not in form[2:]}
    # A hundred names would hide the nearest one.
    require_known(values, names, str(path), is_listed=len(flags) <= _MAX_LISTED)
    found: dict[str, Any] = {}
    for key, value in values.items():
        if names[key] in found:
            raise ValueError(f"{path}: gives {names[key]} under two names, of which {key} is one; omit one of them.")
        found[names[key]] = _convert(value, flags[names[key]], path)
    return found


def _convert(value: Any, flag: argparse.Action, path: Path) -> Any:
    """Return what a flag would make of a value of the file; a list if the flag takes several."""
    takes_several = flag.nargs == "+" or isinstance(flag, argparse._AppendAction)
    if takes_several and value is not None:
        items = value if isinstance(value, (list, tuple)) else [value]
        return [_convert_one(item, flag, path) for item in items]
    return _convert_one(value, flag, path)


def _convert_one(value: Any, flag: argparse.Action, path: Path) -> Any:
    convert: Callable[[str], Any] = flag.type if callable(flag.type) else parse_bool
    if convert is str and isinstance(value, (bool, float, date)):
        raise ValueError(f"{path}: {flag.dest} is read as {value!r}, not as a text{explain_yaml(value)}.")
    is_number = isinstance(value, (bool, int, float)) and convert is not _parse_text_or_bool
    if not isinstance(value, str) and not is_number:
        return value
    try:
        converted = convert(str(value))
    except (ValueError, TypeError, argparse.ArgumentTypeError) as error:
        raise ValueError(f"{path}: {flag.dest} is {value!r}; it must be such as --{flag.dest} takes.") from error
    if flag.choices is not None and converted not in flag.choices:
        raise ValueError(f"{path}: {flag.dest} is {value!r}; give one of {list(flag.choices)}{explain_yaml(value)}.")
    return converted
