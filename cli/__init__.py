"""The command line `sdiareward COMMAND`; a module of this package for each command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from sdiareward.cli.arguments import InputError
from sdiareward.common.escaping import escape_terminal, log_printable
from sdiareward.common.optional_dependencies import required_by
from sdiareward.common.user_errors import exit_on_user_error


# Name -> what it does; a module of this package for each.
_COMMANDS = {
    "audit": "see what moves the rewards of a model though it must not, and what pays though it must not",
    "calibrate": "make rewards of different domains comparable",
    "convert": "write a released checkpoint of the authors as one of ours",
    "demo": "open a page on which a model can be tried",
    "doctor": "look at this machine and measure whether rewards are what they should be on it",
    "export": "write a checkpoint in the layout of the authors' code or of vLLM",
    "human": "let people rate pairs blindly, and measure agreement",
    "push": "publish a data set, a model, the metric or the demo on the Hub",
    "score": "score one dialogue, two and their margin, or a data set",
    "serve": "answer requests for rewards over HTTP",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv (`list[str]`, *optional*): Arguments; by default those of the process.

    Returns:
        `int`: Exit code: that of the command, or 2 for input that it cannot work on.
    """
    log_printable()
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = _parser(arguments[0] if arguments else None).parse_args(arguments)
    try:
        command = f"sdiareward {arguments[0]}"
        with exit_on_user_error(command), required_by(command, extra=arguments[0]):
            return args.run(args)
    except InputError as error:
        print(escape_terminal(f"sdiareward: error: {error}"), file=sys.stderr)
        return 2


def _parser(command: str | None) -> argparse.ArgumentParser:
    """Return the parser; only the module of the command that was named is imported."""
    parser = argparse.ArgumentParser(prog="sdiareward", description="Reward models for spoken dialogue.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, description in _COMMANDS.items():
        subparser = commands.add_parser(name, help=description, description=description, allow_abbrev=False)
        if name == command:
            module = import_module(f".{name}", __package__)
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    return parser
