"""Parse flags and YAML into dataclasses, the same way for every command, and run the commands of a table.

A field of the dataclass is a flag, with underscores or dashes, and a key of the YAML file that `--config` names. Its
`metadata` are keyword arguments of `argparse.ArgumentParser.add_argument`, above all `help`, as for
`transformers.HfArgumentParser`. Three more are ours: `minimum` (see `settings`), `positional`, and `aliases`.

Notable choices:

- Custom code, because the libraries need more of it: jsonargparse 4.53 refuses `--max-turn-s`, `--strict`,
  `--no_baselines` and `--names a b`; HfArgumentParser imports `transformers`, which the dataset builder does without.
- The fields of TRL's configurations are read as `trl.TrlParser` reads them, which a test compares flag by flag.
- A dataclass with a field `config` reads that file itself.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from .escaping import escape_terminal
from .optional_dependencies import missing_extra_hint
from .settings import read_mapping, require_known, require_minimums
from .user_errors import AGAIN, UserError, format_user_error


_BOOLEANS = dict.fromkeys(("yes", "true", "t", "y", "1"), True) | dict.fromkeys(("no", "false", "f", "n", "0"), False)


class Command(NamedTuple):
    """An entry of a table of commands.

    Args:
        target (`str` or `Mapping`): `module:function` that runs it, whose parameters are dataclasses of arguments and
            which returns the exit status or None; or a table of commands below this one.
        summary (`str`): What it does, in one line.
        epilog (`str`, *optional*): What `--help` ends with.
    """

    target: str | Mapping[str, Command]
    summary: str
    epilog: str | None = None


def run_command(
    commands: Mapping[str, Command],
    argv: Sequence[str] | None,
    *,
    prog: str,
    description: str | None,
    extra: str | None = None,
) -> int:
    """Run the command that the first argument names; import the module of no other.

    Args:
        commands (`Mapping[str, Command]`): The commands by name.
        argv (`Sequence[str]`, *optional*): Arguments; by default those of the process.
        prog (`str`): Name of the program.
        description (`str`, *optional*): What `--help` begins with.
        extra (`str`, *optional*): Extra of the package that the commands need; by default the one of a command's name.

    Returns:
        `int`: Exit status: that of the command, 2 for a user error, 130 if it was interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = parser.add_subparsers(required=True, metavar="COMMAND", dest="name")
    for name, command in commands.items():
        names.add_parser(name, help=command.summary, add_help=False)
    name = parser.parse_args(arguments[:1]).name
    command, prog, rest = commands[name], f"{prog} {name}", arguments[1:]
    if not isinstance(command.target, str):
        return run_command(command.target, rest, prog=prog, description=command.summary, extra=extra or name)
    return _run(command, rest, prog, extra or name)


def _run(command: Command, argv: Sequence[str], prog: str, extra: str) -> int:
    """Parse the arguments and run the command; print a user error in one line."""
    module, _, function = str(command.target).partition(":")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A path may have characters that the terminal's encoding lacks; the work is done when it is printed.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        run = getattr(import_module(module), function)
        kinds = [hint for name, hint in get_type_hints(run).items() if name != "return"]
        return run(*parse_arguments(kinds, argv, prog=prog, description=command.summary, epilog=command.epilog)) or 0
    except KeyboardInterrupt:
        sys.stderr.write(f"{prog}: interrupted; {AGAIN}.\n")
        return 130
    except Exception as error:
        line = format_user_error(error) or missing_extra_hint(error, extra)
        if line is None and isinstance(error, (ValueError, OSError)):
            line = str(error)
        if line is None:
            raise
        sys.stderr.write(f"{prog}: error: {escape_terminal(' '.join(line.split()))}\n")
        return 2


def parse_arguments(
    kinds: Sequence[type],
    argv: Sequence[str] | None,
    *,
    prog: str,
    description: str | None,
    epilog: str | None = None,
) -> tuple[Any, ...]:
    """Return an instance of each dataclass, from flags and the file that `--config` names; flags override the file.

    Args:
        kinds (`Sequence[type]`): Dataclasses whose fields are flags and keys.
        argv (`Sequence[str]`, *optional*): Arguments; by default those of the process.
        prog (`str`): Name of the command.
        description (`str`, *optional*): What `--help` begins with.
        epilog (`str`, *optional*): What `--help` ends with.

    Raises:
        SystemExit: A flag is unknown or has a wrong value, or a required one is missing. An abbreviation is unknown.
        UserError: A key of the file is unknown or has a wrong value, or a dataclass refuses its values.
    """
    parser = argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    flags: dict[str, argparse.Action] = {}
    for kind in kinds:
        flags |= _add_flags(parser, kind)
    required = [item for kind in kinds for item in fields(kind) if item.init and _default(item) is MISSING]
    reads_file = "config" not in flags
    if reads_file:
        parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file of these names; flags override it")
    given = {name: value for name, value in vars(parser.parse_args(argv)).items() if value is not MISSING}
    try:
        file = given.pop("config", None) if reads_file else None
        values = given if file is None else _read_file(file, flags) | given
        if missing := [_name_flag(item) for item in required if item.name not in values]:
            parser.error(f"the following arguments are required: {', '.join(missing)}")
        return tuple(make_arguments(kind, values) for kind in kinds)
    except (ValueError, FileNotFoundError) as error:
        raise UserError(str(error)) from error


def make_arguments(kind: type, values: Mapping[str, Any]) -> Any:
    """Make a dataclass from those values that are its fields."""
    made = kind(**{item.name: values[item.name] for item in fields(kind) if item.name in values})
    require_minimums(made, "--")
    return made


def _add_flags(parser: argparse.ArgumentParser, kind: type) -> dict[str, argparse.Action]:
    """Add the fields of a dataclass; return the flags by field."""
    hints, flags = get_type_hints(kind), {}
    items = [item for item in fields(kind) if item.init]
    has_positionals = any(item.metadata.get("positional") for item in items)
    for item in items:
        options = {**_read_type(hints[item.name]), **item.metadata}
        # A flag that may have a value would take the positional argument that follows it.
        if options["type"] is parse_bool and has_positionals:
            options = {"action": "store_true", **item.metadata}
        flags[item.name] = parser.add_argument(*_pop_names(item, options), help=_describe(item), **options)
        if options.get("type", parse_bool) is parse_bool and item.default is True:
            names = (f"--no_{item.name}", f"--no-{item.name.replace('_', '-')}")
            parser.add_argument(*names, dest=item.name, action="store_false", help=f"not --{item.name}")
    return flags


def _read_type(hint: Any) -> dict[str, Any]:
    """Return the options of argparse for a field's type; of several types a flag gives the one that TrlParser does."""
    is_optional = NoneType in get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        types = [kind for kind in get_args(hint) if kind is not NoneType and (is_optional or kind is not str)]
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
    """Return what a word such as `yes` or `False` stands for.

    Raises:
        argparse.ArgumentTypeError: It is no such word.
    """
    if text.lower() not in _BOOLEANS:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return _BOOLEANS[text.lower()]


def _pop_names(item: Field[Any], options: dict[str, Any]) -> list[str]:
    """Take out of the options what argparse does not know; return the names of the flag."""
    options.pop("minimum", None)
    options.pop("help", None)
    aliases = options.pop("aliases", ())
    if options.pop("positional", False):
        if _default(item) is not MISSING:
            # argparse would convert the default that marks an absent flag.
            options |= {"nargs": "?", "default": MISSING}
        return [item.name]
    if options.get("action") == "append":
        options.pop("nargs")
    names = [f"--{item.name}", *((aliases,) if isinstance(aliases, str) else aliases)]
    return list(dict.fromkeys(form for name in names for form in (name, f"--{name[2:].replace('_', '-')}")))


def _describe(item: Field[Any]) -> str:
    """Return the help of a field, with its default if there is one."""
    text, default = item.metadata.get("help", ""), _default(item)
    is_empty = default is None or default is False or default is MISSING or (not default and default != 0)
    if is_empty or text == argparse.SUPPRESS or "(default" in text:
        return text
    shown = " ".join(map(str, default)) if isinstance(default, (list, tuple)) else str(default)
    return f"{text} (default: {shown.replace('%', '%%')})".lstrip()


def _default(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def _name_flag(item: Field[Any]) -> str:
    return item.name if item.metadata.get("positional") else f"--{item.name}"


def _read_file(path: Path, flags: Mapping[str, argparse.Action]) -> dict[str, Any]:
    """Return the values of a YAML file; text becomes what the flag would make of it, such as `1e-5` a number."""
    values = read_mapping(path)
    require_known(values, flags, str(path))
    return {name: _convert(value, flags[name], path) for name, value in values.items()}


def _convert(value: Any, flag: argparse.Action, path: Path) -> Any:
    convert: Callable[[str], Any] = flag.type if callable(flag.type) else parse_bool
    if not isinstance(value, str):
        return value
    try:
        converted = convert(value)
    except (ValueError, TypeError, argparse.ArgumentTypeError) as error:
        raise ValueError(f"{path}: {flag.dest} is {value!r}; it must be such as --{flag.dest} takes.") from error
    if flag.choices is not None and converted not in flag.choices:
        raise ValueError(f"{path}: {flag.dest} is {value!r}; it must be one of {list(flag.choices)}.")
    return converted
