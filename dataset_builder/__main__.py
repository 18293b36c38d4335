"""Command line of the dataset builder: from recordings to pairs, benchmark, metadata release, and back.

    python -m dataset_builder COMMAND --help

Settings come from a YAML file (`--config`); flags override it. Every command ends with a summary of pairs, hours and
what was left out by reason; `--strict` turns anything left out into exit status 1.
"""

from __future__ import annotations

import argparse
import logging
import sys
from importlib import import_module

from sdiareward.common.escaping import PrintableFormatter, escape_terminal
from sdiareward.common.optional_dependencies import missing_extra_hint
from sdiareward.common.user_errors import exit_on_user_error
from sdiareward.llm.client import EndpointError

from .pipeline.components import ComponentError


# Name -> (module of this package with `add_arguments(parser)` and `run(args) -> int`, what it does).
_COMMANDS = {
    "fetch": ("commands.fetch", "obtain recordings (youtube) or scripts (a language model)"),
    "build": ("commands.build", "build a data set of preference pairs"),
    "filter": ("commands.filter", "apply the rules, a judge's scores and its labels to a data set"),
    "bench": ("commands.bench", "draw the stratified benchmark and isolate it from training"),
    "release": ("commands.release", "write the audio-free metadata release of a data set"),
    "reconstruct": ("commands.reconstruct", "rebuild a released data set from your own audio"),
    "stats": ("commands.stats", "describe a data set: tables and figures"),
    "sample": ("commands.sample", "write the bundled sample from the Debian packages"),
}


def _parser(command: str | None) -> argparse.ArgumentParser:
    """Return the parser; only the module of the command that was named is imported."""
    parser = argparse.ArgumentParser(
        prog="python -m dataset_builder", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (module, description) in _COMMANDS.items():
        subparser = commands.add_parser(name, help=description, description=description, allow_abbrev=False)
        if name == command:
            implementation = import_module(f"sdiareward.dataset_builder.{module}")
            implementation.add_arguments(subparser)
            subparser.set_defaults(run=implementation.run)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # `--output-dir` and `--output_dir` are the same option.
    arguments = [_dashes(argument) if argument.startswith("--") else argument for argument in arguments]
    args = _parser(arguments[0] if arguments else None).parse_args(arguments)
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    with exit_on_user_error("dataset_builder"):
        try:
            return args.run(args)
        except (ValueError, FileNotFoundError, ImportError, ComponentError, EndpointError) as error:
            print(escape_terminal(f"error: {' '.join(missing_extra_hint(error, 'build').split())}"), file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("interrupted; the same command goes on where it stopped.", file=sys.stderr)
            return 130


def _dashes(argument: str) -> str:
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


if __name__ == "__main__":
    sys.exit(main())
