"""Run the commands of a table: parse their arguments, and end a mistake in one line.

The modules of commands are imported only when they run, and the libraries behind inherited options only when those are
read or `--help_all` lists them: `--help` is instant.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import is_dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from .arguments import Inherited, OneLineParser, parse_arguments
from .escaping import escape_terminal
from .hub import resolve_revisions
from .locks import lock_folder
from .optional_dependencies import explain_missing_extra
from .user_errors import AGAIN, format_user_error
from .version import __version__


# Set to anything, it prints the traceback of an error before its line.
TRACEBACK_VARIABLE = "SDIAREWARD_TRACEBACK"


class Command(NamedTuple):
    target: str | Mapping[str, Command]  # `module:function`, called with dataclasses; or commands below this one.
    summary: str
    epilog: str | None = None
    extra: str | None = None
    inherited: Inherited | None = None
    default: str | None = None
    # Arguments that name a folder to write, which is locked. None for a command that finds it in its settings.
    locked: Sequence[str] = ("output_dir", "output")
    # Whether the target is a `main` that parses the command line itself.
    is_program: bool = False


def run_command(
    commands: Mapping[str, Command],
    argv: Sequence[str] | None,
    *,
    prog: str,
    description: str | None,
    epilog: str | None = None,
    extra: str | None = None,
    default: str | None = None,
) -> int:
    """Run the command that the first argument names; return its status, 2 for a user error, 130 if interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if default is not None and arguments and arguments[0][:1] == "-" and arguments[0] not in ("-h", "--help"):
        return run_single(commands[default], arguments, prog=prog, extra=extra or default)
    name = _choose_command(commands, arguments, prog, description, epilog)
    command, prog, rest = commands[name], f"{prog} {name}", arguments[1:]
    extra = command.extra or extra or name
    if isinstance(command.target, str):
        return run_single(command, rest, prog=prog, extra=extra)
    texts = {"description": command.summary, "epilog": command.epilog}
    return run_command(command.target, rest, prog=prog, **texts, extra=extra, default=command.default)


def _choose_command(
    commands: Mapping[str, Command], arguments: Sequence[str], prog: str, description: str | None, epilog: str | None
) -> str:
    """Return the name of the command; print help or the version, or refuse an unknown one."""
    parser = OneLineParser(
        prog=prog, description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"sdiareward {__version__}")
    names = parser.add_subparsers(required=True, metavar="COMMAND", dest="name")
    for name, command in commands.items():
        names.add_parser(name, help=command.summary, add_help=False)
    known = ", ".join(commands)
    if not arguments:
        parser.error(f"no command is given; the commands are {known}: see `{prog} --help`.")
    flags = ("-h", "--help", "--version")
    if arguments[0] not in (*commands, *flags):
        near = get_close_matches(arguments[0], [*commands, *flags], n=1)
        hint = f"did you mean {near[0]}?" if near else f"the commands are {known}."
        parser.error(f"unknown command {arguments[0]!r}; {hint}")
    return str(parser.parse_args(arguments[:1]).name)


def run_single(command: Command, argv: Sequence[str] | None, *, prog: str, extra: str | None = None) -> int:
    """Run one command; return as `run_command`."""
    module, _, function = str(command.target).partition(":")

    def run_command() -> int | None:
        run = getattr(import_module(module), function)
        if command.is_program:
            return run(argv)
        texts = {"description": command.summary, "epilog": command.epilog}
        given = parse_arguments(_read_kinds(run), argv, prog=prog, **texts, inherited=command.inherited)
        for arguments in given:
            resolve_revisions(arguments)
        with ExitStack() as locks:
            for folder in filter(Path.is_dir, _list_folders(given, ["folder"])):
                # An input that is being written is refused.
                with lock_folder(folder):
                    pass
            for folder in _list_folders(given, command.locked):
                locks.enter_context(lock_folder(folder))
            return run(*given)

    return run_guarded(prog, run_command, extra or command.extra)


def run_guarded(prog: str, run: Callable[[], int | None], extra: str | None = None) -> int:
    """Run a program; end a user error or an interrupt in one line, and return the exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A path may have characters that the terminal's encoding lacks; the work is done when it is printed.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return run() or 0
    except KeyboardInterrupt as interruption:
        _print_traceback()
        sys.stderr.write(f"{prog}: {str(interruption) or f'interrupted; {AGAIN}.'}\n")
        return 130
    except Exception as error:
        line = _explain(error, extra)
        if line is None:
            raise
        _print_traceback()
        sys.stderr.write(f"{prog}: error: {escape_terminal(' '.join(line.split()))}\n")
        return 2


def _list_folders(given: Sequence[Any], names: Sequence[str]) -> list[Path]:
    found = [getattr(arguments, name, None) for arguments in given for name in names]
    is_dry = any(getattr(arguments, "dry_run", False) for arguments in given)
    return [] if is_dry else [Path(folder) for folder in found if folder is not None]


def _read_kinds(run: Any) -> list[type]:
    """Return the dataclasses that a command takes, without one that it inherits, whose module is not imported."""
    absent = {str(hint): None for hint in run.__annotations__.values() if str(hint) not in run.__globals__}
    hints = get_type_hints(run, localns={name: value for name, value in absent.items() if name.isidentifier()})
    kinds = [hint for name, hint in hints.items() if name != "return"]
    return [kind for kind in kinds if isinstance(kind, type) and is_dataclass(kind)]


def _explain(error: Exception, extra: str | None) -> str | None:
    """Return what to print of an error, or None for a bug."""
    line = format_user_error(error) or explain_missing_extra(error, extra)
    return str(error) if line is None and isinstance(error, (ValueError, OSError)) else line


def _print_traceback() -> None:
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exc()


def name_program(*names: str) -> str:
    """Return the name that a program was called by if it is one of these, else the first of them."""
    called = Path(sys.argv[0]).name if sys.argv else ""
    return called if called in names else names[0]
