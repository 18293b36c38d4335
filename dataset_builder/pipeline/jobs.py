"""A recording between the stages, and the row in which an engine carries it."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sdiareward.common.files import read_sealed, seal, write_file
from sdiareward.dataset_builder.episodes import Recording
from sdiareward.pairs.content import stamp_file
from sdiareward.pairs.schema import make_stable_id


# Carried in the row, as Ray Data does not let an exception through whole; `run_pipeline` raises it.
COMPONENT_FAILURE = "component"


@dataclass
class Job:
    recording: Recording
    folder: str  # Of its artifacts.
    key: str  # Hash of its content and of the stages so far.
    artifacts: dict[str, str] = field(default_factory=dict)  # File names by stage.
    failure: dict[str, str] | None = None  # `kind` and `reason` of a stage that failed without a lasting result.
    is_finished: bool = False  # No further stage runs.

    @classmethod
    def start(cls, recording: Recording, work_dir: Path) -> Job:
        safe = re.sub(r"[^A-Za-z0-9_-]+", "_", recording.recording_id)[:80]
        folder = work_dir / f"{safe}-{make_stable_id(recording.source, recording.recording_id)[:8]}"
        job = cls(recording, str(folder), "")
        try:
            job.key = _hash_source(Path(recording.path), folder / "source.json")
        except OSError as error:
            job.fail("missing_audio", f"{recording.path}: cannot be read ({error.strerror}).")
        return job

    @classmethod
    def from_row(cls, row: dict[str, str]) -> Job:
        values = json.loads(row["job"])
        return cls(**values | {"recording": Recording(**values["recording"])})

    def to_row(self) -> dict[str, str]:
        return {"job": json.dumps(asdict(self))}

    def fail(self, kind: str, reason: str) -> None:
        """End the job without a lasting result, so that the next run tries again."""
        self.failure = {"kind": kind, "reason": reason}
        self.is_finished = True

    def read_artifact(self, stage: str) -> dict[str, Any]:
        return read_sealed(Path(self.folder) / self.artifacts[stage])

    def read_result(self, stage: str) -> Any:
        return self.read_artifact(stage)["result"]

    @property
    def wav(self) -> Path:
        """The recording as later stages read it: enhanced, or as decoded."""
        return (
            Path(self.folder) / self.read_result("enhancement" if "enhancement" in self.artifacts else "decode")["wav"]
        )


def _hash_source(path: Path, notes: Path) -> str:
    """Return the hash of a file, read again only if its stamp in `notes` has changed."""
    stamp = list(stamp_file(path))
    kept = read_sealed(notes)
    if kept.get("stamp") != stamp:
        with path.open("rb") as file:
            kept = {"stamp": stamp, "key": make_stable_id(hashlib.file_digest(file, "sha256").hexdigest())}
        notes.parent.mkdir(parents=True, exist_ok=True)
        write_file(notes, seal(kept))
    return str(kept["key"])


def format_job(recording: Recording, start_s: float | None = None, end_s: float | None = None) -> str:
    stretch = "" if start_s is None else f" {start_s:.2f}-{end_s:.2f} s"
    return f"{recording.source} {recording.recording_id}{stretch}"
