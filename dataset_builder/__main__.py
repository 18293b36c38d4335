"""Command line of the dataset builder: from recordings to pairs, benchmark, metadata release, and back.

    sdiareward build [COMMAND] --help       # also: python -m sdiareward.dataset_builder COMMAND --help

Settings come from a YAML file (`--config`); flags override it. Every command ends with a summary of pairs, hours and
skipped items by reason; with `--strict` a skipped item gives exit status 1.
"""

from __future__ import annotations

import logging
import sys

from sdiareward.common.commands import Command, run_command
from sdiareward.common.data_help import MANIFEST_HELP


_COMMANDS = {
    name: Command(
        f"sdiareward.dataset_builder.commands.{name}:run",
        summary,
        MANIFEST_HELP if name == "build" else None,
        extra="build",
        locked=() if name == "build" else ("output_dir",),
    )
    for name, summary in {
        "fetch": "obtain recordings (youtube), or scripts or scenarios (a language model)",
        "build": "build a data set of preference pairs",
        "filter": "apply the rules, a judge's scores and its labels to a data set",
        "bench": "draw the stratified benchmark and isolate it from training",
        "release": "write the audio-free metadata release of a data set",
        "reconstruct": "rebuild a released data set from your own audio",
        "stats": "describe a data set: tables and figures",
    }.items()
}
_CHATREWARD = "sdiareward.dataset_builder.commands.chatreward"
_COMMANDS["chatreward"] = Command(
    {
        "build": Command(
            f"{_CHATREWARD}:build", "synthesise the scenarios, filter, and write the data set", locked=()
        ),
        "rate": Command(f"{_CHATREWARD}:rate", "write the data set again with the scores of experts"),
    },
    "build ChatReward, the scored dialogues that WavReward is trained on",
    "The same command resumes a run that was interrupted or killed.",
    extra="build",
    default="build",
)
BUILD = Command(
    _COMMANDS,
    "build data sets of preference pairs from recordings; fetch, filter, release, describe them",
    "Without the name of a COMMAND, `build` runs. Every command ends with a summary of pairs, hours and skipped\n"
    "items by reason; --strict exits with 1 if an item was skipped. docs/data.md is the guide.\n\n" + MANIFEST_HELP,
    extra="build",
    default="build",
)


def main(argv: list[str] | None = None) -> int:
    log_warnings()
    return run_command(
        _COMMANDS, argv, prog="python -m sdiareward.dataset_builder", description=__doc__, extra="build"
    )


def log_warnings() -> None:
    logging.basicConfig(format="%(message)s", level=logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
