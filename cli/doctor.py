"""`sdiareward doctor`: report facts about this machine, and measure the invariants of a reward on it."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sdiareward.common.package_files import NANO
from sdiareward.common.user_errors import UserError


if TYPE_CHECKING:
    from sdiareward.doctor.findings import Finding

_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_CONFIGS = ("config.json", "adapter_config.json")


@dataclass(kw_only=True)
class DoctorArguments:
    """What to check, and where to write the findings."""

    model: str | None = field(
        default=None, metadata={"help": "checkpoint folder or Hub id (default: the nano checkpoint of the package)"}
    )
    device: str | None = field(
        default=None, metadata={"help": "device, such as cuda:0 (default: an accelerator if there is one)"}
    )
    output: Path | None = field(default=None, metadata={"help": "JSON file for the findings"})
    offline: bool = field(default=False, metadata={"help": "do not contact the Hub"})
    strict: bool = field(default=False, metadata={"help": "exit with 1 on a warning, too"})


def run(args: DoctorArguments) -> int:
    """Examine this machine; return the exit status."""
    if args.offline:
        # Read by `huggingface_hub` when it is imported.
        os.environ["HF_HUB_OFFLINE"] = "1"
    from sdiareward.doctor.examination import exit_status, find_checkpoint_problem, shorten

    model = str(NANO) if args.model is None else args.model
    _require_checkpoint(model)
    _require_place(args.output)
    shown = "the package's nano" if args.model is None else shorten(model)
    print(f"sdiareward doctor, checkpoint: {shown}", flush=True)
    started = time.perf_counter()
    findings = _examine(model, args.device)
    seconds = time.perf_counter() - started
    status = exit_status(findings, args.strict)
    # The checkpoint of the package is at fault only if the installation is.
    reason = find_checkpoint_problem(findings) if args.model or args.device else None
    _conclude(args.output, findings, shown, seconds, status if reason is None else 2)
    if reason is not None:
        raise UserError(reason)
    return status


def _examine(model: str, device: str | None) -> list[Finding]:
    """Make all checks; print each as soon as it is done."""
    from sdiareward.doctor.examination import examine, list_checks
    from sdiareward.doctor.findings import Settings
    from sdiareward.doctor.report import render_finding

    findings: list[Finding] = []
    width = max(len(check.name) for check in list_checks())
    for finding in examine(Settings(model, device)):
        if not findings or findings[-1].section != finding.section:
            print(f"\n{finding.section}")
        print(render_finding(finding, width), flush=True)
        findings.append(finding)
    return findings


def _conclude(output: Path | None, findings: list[Finding], shown: str, seconds: float, status: int) -> None:
    """Print the last line, and write the file that was asked for."""
    from sdiareward.common.files import write_file
    from sdiareward.doctor.report import record_of, render_summary

    print(f"\n{render_summary(findings, seconds)}", flush=True)
    if output is None:
        return
    try:
        write_file(output, json.dumps(record_of(findings, shown, seconds, status), indent=2) + "\n")
    except OSError as error:
        raise UserError(f"--output {output}: {error.strerror or error}; choose another file.") from error


def _require_checkpoint(model: str) -> None:
    """Raise unless this can be a checkpoint: before anything is measured for a minute."""
    if os.path.isdir(model):
        if not any(os.path.isfile(os.path.join(model, name)) for name in _CONFIGS):
            raise UserError(f"--model {model}: holds no config.json; give the folder of a checkpoint.")
    elif os.path.exists(model) or not _HUB_NAME.fullmatch(model):
        raise UserError(f"--model {model}: no such folder; give the folder of a checkpoint, or a Hub id.")


def _require_place(output: Path | None) -> None:
    if output is not None and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise UserError(f"--output {output}: no file can be there; give a file in a folder that exists.")
