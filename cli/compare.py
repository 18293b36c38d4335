"""`sdiareward compare`: tell which of several systems sounds better, and whether that is sure."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sdiareward.common.locks import lock_folder
from sdiareward.scoring.arguments import ModelArguments


if TYPE_CHECKING:
    from sdiareward.evaluation.comparison import Comparison


_MAX_LISTED = 5


@dataclass(kw_only=True)
class CompareArguments(ModelArguments):
    systems: list[str] = field(
        metadata={
            "positional": True,
            "metavar": "SYSTEM",
            "help": "folder of dialogues, JSON lines or Parquet file of each system, or NAME=PATH; or one table with "
            "a column `system`",
        }
    )
    criterion: str = field(
        default="joint",
        metadata={
            "help": "modality: how dialogues sound, for systems that say the same words; colloquialness: how they are "
            "worded; joint: both; all: these three"
        },
    )
    output_dir: Path | None = field(
        default=None,
        metadata={
            "aliases": ("--output",),
            "help": "folder for compare.json, compare.parquet and the page (default: compare-A-B); the same command "
            "resumes a killed run",
        },
    )
    pattern: str | None = field(
        default=None,
        metadata={
            "help": "how recordings are named (default: NAME_user.wav and NAME_assistant.wav, NAME_0_user.wav); "
            "such as {dialogue}_{turn}_{role}.wav"
        },
    )
    user_turns: Path | None = field(
        default=None,
        metadata={"help": "folder of the user's turns, shared by all systems, whose folders hold the assistant's"},
    )
    form: Literal["turns"] | None = field(
        default=None,
        metadata={"help": "turns: two recordings of one length are turns, not the two channels of a call"},
    )
    audio_root: str | None = field(
        default=None,
        metadata={
            "help": "folder that relative paths in tables begin at and no recording may lie outside of (default: the "
            "table's folder, else the current one)"
        },
    )
    match_level: bool = field(
        default=False,
        metadata={"help": "bring the recordings of all systems to one level first, so that none wins by its loudness"},
    )
    num_bootstrap: int = field(default=1000, metadata={"help": "bootstrap draws of the intervals", "minimum": 1})
    seed: int = field(default=0, metadata={"help": "seed of those draws"})
    embed_audio: Literal["all", "none"] = field(default="all", metadata={"help": "recordings that the page plays"})


def run(args: CompareArguments) -> int:
    from sdiareward.evaluation.comparison import OtherProcessError, compare, name_output_dir

    names = ("criterion", "pattern", "form", "user_turns", "audio_root")
    options = {name: getattr(args, name) for name in (*names, "num_bootstrap", "seed", "embed_audio", "match_level")}
    folder = args.output_dir or name_output_dir(args.systems)
    # Of several processes the main one prints.
    with nullcontext() if args.output_dir else lock_folder(folder), suppress(OtherProcessError):
        print(describe(compare(*args.systems, model=args.make_spec(), output_dir=folder, **options)))
    return 0


def describe(found: Comparison) -> str:
    """Return what a terminal shows of a comparison: the verdict first."""
    from sdiareward.evaluation.verdicts import RULE, describe_criterion

    lines = [found.verdict, ""]
    lines += [f"{criterion}: {describe_criterion(criterion)}" for criterion in found.criteria]
    lines += [RULE, "", *(f"- {line}" for line in found.limits)]
    lines += _describe_skipped(found)
    return "\n".join([*lines, "", f"Page: {found.page}", f"Table: {found.output_dir}/compare.parquet"])


def _describe_skipped(found: Comparison) -> list[str]:
    lines = []
    if found.unmatched:
        names = ", ".join(
            f"{row['dialogue']} (not in {', '.join(row['missing_in'])})" for row in found.unmatched[:_MAX_LISTED]
        )
        more = f", {len(found.unmatched) - _MAX_LISTED} more" if len(found.unmatched) > _MAX_LISTED else ""
        lines.append(f"- {len(found.unmatched)} dialogues are not in all systems and were skipped: {names}{more}.")
    if found.skipped:
        lines.append(f"- {len(found.skipped)} dialogues could not be used:")
        lines += [f"    {row['system']}, {row['dialogue']}: {row['reason']}" for row in found.skipped[:_MAX_LISTED]]
        if len(found.skipped) > _MAX_LISTED:
            lines.append(f"    and {len(found.skipped) - _MAX_LISTED} more, in compare.json")
    return lines
