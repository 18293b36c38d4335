"""`sdiareward compare`: report which of several systems sounds better, and whether the difference is clear."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cyclopts.types import PositiveInt

from sdiareward.calls.recordings import Form, UserChannel
from sdiareward.common.files import lock_folder
from sdiareward.scoring.model_spec import MODEL, ModelArguments


if TYPE_CHECKING:
    from sdiareward.evaluation.comparison import Comparison


_MAX_LISTED = 5


def compare(
    systems: list[str],
    /,
    *,
    criterion: str = "joint",
    output_dir: Path | None = None,
    pattern: str | None = None,
    user_turns: Path | None = None,
    form: Form | None = None,
    user_channel: UserChannel | None = None,
    window: int = 6,
    audio_root: str | None = None,
    match_level: bool = False,
    num_bootstrap: PositiveInt = 1000,
    seed: int = 0,
    embed_audio: Literal["all", "none"] = "all",
    model: ModelArguments = MODEL,
) -> int:
    """Report which of several systems sounds better, and whether the difference is clear.

    docs/compare.md describes the folders and tables.

    Args:
        systems: Folder or table of dialogues of each system, or NAME=PATH; or one table of all.
        criterion: modality (how dialogues sound), colloquialness (how they are worded), joint (both), or all three.
        output_dir: Folder for compare.json, compare.parquet and the page; compare-A-B by default.
        pattern: How recordings are named, such as {dialogue}_{turn}_{role}.wav; NAME_0_user.wav by default.
        user_turns: Folder of the user's turns, shared by all systems; their folders hold the assistant's turns.
        form: Whether recordings are turns or calls; by default decided from their names, lengths and channels.
        user_channel: The user's channel of stereo calls; left is assumed.
        window: Turns of a call that are scored together: an even number from 2 to 16.
        audio_root: Folder for relative paths in tables; recordings outside of it are refused.
        match_level: Bring all recordings to one level first, so that loudness does not decide.
        num_bootstrap: Bootstrap draws of the intervals.
        seed: Seed of the draws.
        embed_audio: Recordings that the page plays.
    """
    from sdiareward.evaluation.comparison import OtherProcessError, compare, name_output_dir

    folder = output_dir or name_output_dir(systems)
    # Of several processes the main one prints.
    with nullcontext() if output_dir else lock_folder(folder), suppress(OtherProcessError):
        found = compare(
            *systems,
            model=model.make_spec(),
            criterion=criterion,
            output_dir=folder,
            pattern=pattern,
            form=form,
            user_channel=user_channel,
            window=window,
            user_turns=user_turns,
            audio_root=audio_root,
            num_bootstrap=num_bootstrap,
            seed=seed,
            embed_audio=embed_audio,
            match_level=match_level,
        )
        print(describe(found))
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
