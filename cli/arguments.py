"""The commands of `sdiareward`, a module each, with `add_arguments(parser)` and `run(args) -> exit status`."""

import argparse


class InputError(ValueError):
    """Raised for input that a command cannot work on, with a message for the user in one line."""


def count(text: str) -> int:
    """Return the number of things that an argument gives; to be its `type`.

    Raises:
        argparse.ArgumentTypeError: It is less than 0.
    """
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return number
