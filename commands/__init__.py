"""The commands of `sdiareward`, a module each, with `add_arguments(parser)` and `run(args) -> exit status`."""


class InputError(ValueError):
    """Raised for input that a command cannot work on, with a message for the user in one line."""
