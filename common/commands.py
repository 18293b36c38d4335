"""The command line: an app of cyclopts, and what its commands share.

`--config FILE.yaml` has the options of a command; flags override it, and options marked `YAML_ONLY` have no flag.
A name with a revision gets its commit, the folder of `--output_dir` is locked, and a user error ends with one line and
exit status 2.
"""

from __future__ import annotations

import inspect
import io
import os
import sys
import traceback
from argparse import SUPPRESS
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.config import Dict

from .errors import AGAIN, UserError, explain_missing_extra, format_user_error
from .files import lock_folder, require_unlocked
from .hub import resolve_revisions
from .package import __version__
from .settings import read_mapping, require_minimums


# Set to anything, it prints the traceback of an error before its line.
TRACEBACK_VARIABLE = "SDIAREWARD_TRACEBACK"
# Of a script of TRL, which reads its flags itself.
Words = Annotated[str, Parameter(allow_leading_hyphen=True)]
# TRL's name of an option -> its name here; every command takes both.
_SYNONYMS = {"model_name_or_path": "model", "dataset_name": "dataset"}
# One row of each kind of data, which the help of every command that reads data shows.
PAIR_ROW = '{"prompt": "user.wav", "chosen": "better.wav", "rejected": "worse.wav"}'
_TURNS = """{"role": "user", "audio": "call7/0.wav", "text": "Hello?"},
    {"role": "assistant", "audio": "call7/1.wav", "text": "Hi there."}]}"""
DIALOGUE_ROW = f'{{"id": "call7", "turns": [\n    {_TURNS}'
MANIFEST_ROW = f'{{"id": "call7", "language": "en", "license": "CC0-1.0", "turns": [\n    {_TURNS}'
_MORE = "Relative paths begin at the file, then at --audio_root; docs/data_format.md lists all forms."
PAIR_HELP = f"A row of a JSON lines file of pairs:\n  {PAIR_ROW}\n{_MORE}"
DIALOGUE_HELP = f"A row of a JSON lines file of dialogues:\n  {DIALOGUE_ROW}\n{_MORE}"
SYSTEM_HELP = f"{DIALOGUE_HELP}\nA file of all systems has the name of each in the key `system`."
MANIFEST_HELP = f"A row of manifest.jsonl (source: folder):\n  {MANIFEST_ROW}\ndocs/build_data.md has every key."


def _refuse_flags(arguments: Any) -> None:
    for argument in arguments:
        if any(token.source == "cli" for token in argument.tokens):
            name = argument.name.removeprefix("--")
            raise UserError(f"{name} is a key of the YAML file of --config, not a flag; set it there.")


# Marks an option that experiments need: a key of the file of `--config` that has no flag and is not in the help.
YAML_ONLY = Parameter(show=False, group=Group("Keys", show=False, validator=_refuse_flags))


def make_app(name: str, help: str | None, **options: Any) -> App:
    """Return an app whose flags are the names of parameters and fields, such as `--output_dir`."""
    options |= {"help_format": "plaintext", "version": __version__}
    names: dict[str, Any] = {"name_transform": str, "negative_bool": "no_", "negative_iterable": ()}
    flags = Parameter(consume_multiple=True, allow_repeating=True, **names)
    return App(name, help=help, default_parameter=flags, **options)


def run_app(app: App, argv: Sequence[str] | None = None, *, extra: str | None = None) -> int:
    """Run the command that the arguments name; return its exit status, as `run_guarded`."""
    words = [_rename_flag(word) for word in (sys.argv[1:] if argv is None else argv)]
    chain = app.parse_commands(words)[0]
    prog = " ".join(dict.fromkeys(("sdiareward", *app.name, *chain)))
    return run_guarded(prog, lambda: _run(app, words), extra or "".join(chain[:1]))


def _rename_flag(word: str) -> str:
    name, sign, value = word.partition("=")
    found = _SYNONYMS.get(name[2:].replace("-", "_")) if name.startswith("--") else None
    return f"--{found}{sign}{value}" if found else word


def run_guarded(prog: str, run: Callable[[], int | None], extra: str | None = None) -> int:
    """Run a program; return its exit status, 2 for a user error, which is printed in one line, 130 if interrupted."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A path may have characters that the terminal's encoding lacks; the work is done when it is printed.
        sys.stdout.reconfigure(errors="backslashreplace")
    # The library draws a bar for every reading of a table; a command has one for each of its phases.
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    try:
        return run() or 0
    except (KeyboardInterrupt, Exception) as error:
        status, line = 130, str(error) or f"interrupted; {AGAIN}."
        if not isinstance(error, KeyboardInterrupt):
            found = format_user_error(error) or explain_missing_extra(error, extra)
            if found is None and not isinstance(error, (CycloptsError, ValueError, OSError)):
                raise
            status, line = 2, f"error: {' '.join((found or str(error)).split())}"
        if os.environ.get(TRACEBACK_VARIABLE):
            traceback.print_exc()
    sys.stderr.write(f"{prog}: {line}\n")
    return status


def _run(app: App, words: list[str]) -> int | None:
    chain, apps, rest = app.parse_commands(words)
    command = apps[-1].default_command
    known = [name for name in apps[-1] if not name.startswith("-")]
    if known and (command is None if not rest else not rest[0].startswith("-")):
        near = get_close_matches(rest[0], known, n=1) if rest else []
        found = f"unknown command {rest[0]!r}" if rest else "no command is given"
        hint = f"did you mean {near[0]}?" if near else f"the commands are {', '.join(known)}."
        raise UserError(f"{found}; {hint}")
    apps[-1].config = ()
    # A command with its own `config` reads that file itself; one that takes words passes them on.
    own = _list_parameters(apps[-1])
    values: dict[str, Any] = {}
    if is_given := "--config" in words and "config" not in own:
        place = words.index("--config")
        given, source = read_mapping(Path(*words[place + 1 : place + 2])), words[place + 1]
        values = {_SYNONYMS.get(name, name): value for name, value in given.items()}
    if (name := _choose_command(apps[-1], words, values)) is not None:
        words.insert(len(chain), name)
        chain, apps, _ = app.parse_commands(words)
        own = _list_parameters(apps[-1])
    if is_given and "words" not in own:
        place = words.index("--config")
        del words[place : place + 2]
        for name in reversed(chain):
            values = {name: values}
        apps[-1].config = Dict(data=values, source=source)
    command, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    return _start(command, bound, is_locking="config" not in own)


def _list_parameters(app: App) -> Collection[str]:
    return () if app.default_command is None else inspect.signature(app.default_command).parameters


def _choose_command(app: App, words: list[str], values: dict[str, Any]) -> str | None:
    """Take what chooses a command, such as `--recipe NAME`, from words or keys; return the command's name."""
    names = [name for name in app if "=" in name]
    for place in range(len(words)):
        if (joined := "=".join(words[place : place + 2])) in names:
            words[place : place + 2] = [joined]
    given = [*words, *(f"--{key}={value}" for key, value in values.items())]
    name = next((each for each in given if each in names), None)
    if name is None and names and any(each.partition("=")[0] == "--recipe" for each in given):
        recipes = (each for each in names if each.startswith("--recipe"))
        raise UserError(f"there is no such recipe; give {' or '.join(recipes)}.")
    if name is not None:
        values.pop(name[2:].partition("=")[0], None)
        words[:] = [word for word in words if word != name]
    return name


def _start(command: Callable[..., int | None], bound: inspect.BoundArguments, *, is_locking: bool) -> int | None:
    """Run a command with its folders locked; one that reads a file of settings finds them there, and locks them."""
    options = dict(bound.arguments)
    for value in bound.arguments.values():
        if is_dataclass(value):
            require_minimums(value, "--")
            resolve_revisions(value)
            options |= vars(value)
    with ExitStack() as locks:
        if (folder := options.get("folder")) is not None:
            require_unlocked(folder)
        if is_locking and not options.get("dry_run") and (output := options.get("output_dir")) is not None:
            locks.enter_context(lock_folder(output))
        return command(*bound.args, **bound.kwargs)


def parse_options(kind: type, argv: Sequence[str] | None, *, prog: str, description: str | None) -> Any:
    """Return a dataclass made of the flags of a script."""
    app = make_app(prog, description)

    def give(options: Any) -> Any:
        return options

    give.__annotations__["options"] = Annotated[kind, Parameter(name="*")]
    if all(item.default is not MISSING or item.default_factory is not MISSING for item in fields(kind)):
        give.__defaults__ = (kind(),)
    app.default(give)
    command, bound, _ = app.parse_args(argv)
    options: Any = _start(command, bound, is_locking=False)
    return sys.exit(0) if options is None else options


def parse_trl(
    kinds: Sequence[Any], argv: Sequence[str] | None, *, prog: str, shown: Collection[str], **options: Any
) -> list[Any]:
    """Return dataclasses made of flags and the file of `--config`, as `trl.TrlParser`; the help has those `shown`."""
    from trl import TrlParser

    class Parser(TrlParser):
        """Refuse a wrong option in one line, an unknown one with the nearest: argparse prints a hundred flags."""

        def error(self, message: str) -> Any:
            raise UserError(message)

        def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
            found, unknown = super().parse_known_args(args, namespace)
            return found, self.refuse(unknown)

        def set_defaults_with_config(self, **values: Any) -> list[str]:
            values.pop("recipe", None)
            known = {name: self._option_string_actions.get(f"--{name}") for name in values}
            values = {action.dest if (action := known[name]) else name: value for name, value in values.items()}
            return self.refuse(super().set_defaults_with_config(**values))

        def refuse(self, unknown: list[str]) -> list[str]:
            if unknown:
                near = get_close_matches(unknown[0].partition("=")[0], self._option_string_actions, n=1)
                self.error(f"unknown option {unknown[0]}{f'; did you mean {near[0]}?' if near else '.'}")
            return unknown

    # argparse takes no other metadata.
    for item in (item for kind in kinds for item in fields(kind)):
        kept = {name: value for name, value in item.metadata.items() if name != "minimum"}
        item.metadata = MappingProxyType(kept)
    parser = Parser(kinds, prog=prog, allow_abbrev=False, **{"usage": f"{prog} [options]", **options})
    flags = parser._option_string_actions
    for pair in _SYNONYMS.items():
        flags |= {f"--{name}": flags[f"--{known}"] for known in pair if f"--{known}" in flags for name in pair}
    for action in parser._actions:
        # The help has one spelling of an option and omits negations.
        first = action.option_strings[0]
        action.option_strings = [f"--{_SYNONYMS.get(action.dest, action.dest)}"]
        if action.dest not in shown or first.startswith("--no_"):
            action.help = SUPPRESS
    try:
        given = parser.parse_args_and_config(argv)
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"an option needs a library that is not installed ({reason}); install or omit it.") from error
    for arguments in given:
        resolve_revisions(arguments)
    return list(given)
