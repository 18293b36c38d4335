"""The commands of `python -m dataset_builder`, one module each: its arguments and what it runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdiareward.common.escaping import escape_terminal

from ..reports.data_card import summarize


def add_common_arguments(parser: argparse.ArgumentParser, *, config: str | None = None) -> None:
    """Add the options that the commands share.

    Args:
        parser (`argparse.ArgumentParser`): Parser of the command.
        config (`str`, *optional*): What the YAML file of `--config` holds; without it the command has no such option.
    """
    if config:
        parser.add_argument("--config", type=Path, required=True, help=f"YAML file: {config}")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when anything was left out")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")


def add_audio_root_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--audio-root`, whose values `recorded_parts.AudioRoots.parse` reads."""
    parser.add_argument(
        "--audio-root",
        action="append",
        default=[],
        metavar="[SOURCE=]DIR",
        help="where the recordings lie: DIR/SOURCE/..., or one source's own place; may be given several times",
    )


def finish(folder: str | Path, report: Mapping[str, Any], strict: bool) -> int:
    """Print the summary of a report and return the exit status."""
    sys.stdout.write(escape_terminal(f"{folder}: {summarize(report)}\n"))
    return 1 if strict and report["skipped"] else 0
