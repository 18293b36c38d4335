"""Parse the flags and the YAML of a command whose settings are dataclasses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def parse_arguments(
    kinds: Sequence[type], argv: Sequence[str] | None, *, prog: str, description: str | None
) -> tuple[Any, ...]:
    """Return an instance of each dataclass, from flags and the file that `--config` names; flags override the file.

    Args:
        kinds (`Sequence[type]`): Dataclasses whose fields are flags and keys.
        argv (`Sequence[str]`, *optional*): Arguments; by default those of the process.
        prog (`str`): Name of the command.
        description (`str`, *optional*): What `--help` begins with.

    Raises:
        ValueError: A key or flag is unknown. Abbreviations are: a misspelt key shall fail, not stand for another one.
    """
    from trl import TrlParser

    parser = TrlParser(list(kinds), prog=prog, description=description, allow_abbrev=False)  # type: ignore[arg-type]
    return tuple(parser.parse_args_and_config(argv, fail_with_unknown_args=True))
