"""Every kind of bad input in one folder, built: each is a clear row in the report, and nothing else is lost.

Run `python -m benchmarks.bad_input`; it writes `benchmarks/results/bad_input.json`. A test checks it.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
import wave
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import yaml

from sdiareward.audio_sdiareward import read_audio
from sdiareward.common.provenance import write_provenance
from sdiareward.dataset_builder.__main__ import main as run_command


ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "bad_input.json"


def read_speech() -> np.ndarray:
    """Return 2.4 s of a real recording, 16 kHz."""
    row = json.loads((ROOT / "sample" / "manifest.jsonl").read_text(encoding="utf-8").splitlines()[0])
    return read_audio(ROOT / "sample" / row["audio"])[:38_400]


def write(path: Any, array: np.ndarray, rate: int = 16_000, **options: Any) -> None:
    """Write a recording."""
    soundfile.write(path, array, rate, **options)


def write_hours(path: Path, hours: float) -> None:
    """Write a WAV file of silence whose samples take no room on the disk."""
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", "not compressed"))
        file.writeframes(b"\0\0")
    num_bytes = int(hours * 3600 * 32_000)
    with path.open("r+b") as file:
        file.seek(4)
        file.write((num_bytes + 36).to_bytes(4, "little"))
        file.seek(40)
        file.write(num_bytes.to_bytes(4, "little"))
        file.truncate(44 + num_bytes)


def write_recordings(root: Path, speech: np.ndarray) -> None:
    """Write a good recording and what goes wrong with recordings."""
    write(root / "good.wav", speech)
    (root / "zero.wav").touch()
    (root / "text.wav").write_text("this is no recording\n" * 50)
    write(root / "eight_bit.wav", speech, subtype="PCM_U8")
    write(root / "fast.wav", np.repeat(speech, 6), 96_000)
    write(root / "six.wav", np.stack([speech] * 6, axis=1))
    write(root / "silence.wav", np.zeros_like(speech))
    write(root / "clipped.wav", np.clip(speech * 60, -1, 1))
    write_hours(root / "ten_hours.wav", 10)
    mp3 = io.BytesIO()
    write(mp3, np.tile(speech, 4), format="MP3")
    (root / "truncated.mp3").write_bytes(mp3.getvalue()[: len(mp3.getvalue()) // 3])
    (root.parent / "outside.wav").write_bytes((root / "good.wav").read_bytes())


def make_line(name: str, audio: str, text: str = "Please hold the line.") -> dict[str, Any]:
    """Return a dialogue of the manifest."""
    turns = [{"role": role, "text": text, "audio": audio} for role in ("user", "assistant")]
    return {"id": name, "language": "en", "license": "CC-BY-SA-3.0", "turns": turns}


# What is wrong -> (line of the manifest, kind in the report); "noted" lines are used all the same.
DROPPED = {
    "zero": (make_line("zero", "zero.wav"), "empty_audio"),
    "text": (make_line("text", "text.wav"), "unusable_audio"),
    "truncated": (make_line("truncated", "truncated.mp3"), "truncated_audio"),
    "silence": (make_line("silence", "silence.wav"), "silent_audio"),
    "ten hours": (make_line("ten-hours", "ten_hours.wav"), "unusable_audio"),
    "no transcript": (make_line("no-transcript", "good.wav", text=""), "missing_text"),
    "not there": (make_line("not-there", "nowhere.wav"), "missing_audio"),
    "climbs out": (make_line("climbs-out", "../outside.wav"), "outside_root"),
    "duplicate": (make_line("good", "good.wav", text="Again."), "duplicate"),
}
NOTED = {
    "eight_bit": make_line("eight-bit", "eight_bit.wav"),
    "many_channels": make_line("six", "six.wav"),
    "high_rate": make_line("fast", "fast.wav"),
    "clipping": make_line("clipped", "clipped.wav"),
}


def build_folder(folder: Path) -> dict[str, Any]:
    """Write the folder of bad input and build it; return the report, with the exit status of a strict build.

    Args:
        folder (`Path`): Where; the data set is `folder / "sdiareward"`.
    """
    root = folder / "recordings"
    root.mkdir()
    write_recordings(root, read_speech())
    rows = [make_line("good", "good.wav"), *(row for row, _ in DROPPED.values()), *NOTED.values()]
    lines = [json.dumps(row).encode() for row in rows]
    latin = json.dumps(make_line("latin", "good.wav", text="caf\u00e9"), ensure_ascii=False).encode("latin-1")
    (root / "manifest.jsonl").write_bytes(b"\n".join([*lines, latin, b"{not json", b""]))
    settings = {
        "output_dir": str(folder / "sdiareward"),
        "sources": [{"name": "folder", "path": str(root)}],
        "synthesizers": {"modality": {"seen": ["hibari"]}},
        "test": 0.0,
        "validation": 0.0,
        "num_workers": 1,
    }
    (folder / "build.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    status = run_command(["build", "--config", str(folder / "build.yaml"), "--strict"])
    report = json.loads((folder / "sdiareward" / "report.json").read_text(encoding="utf-8"))
    return {**report, "exit_status": status}


def main() -> int:
    """Build the folder and write what the report says of each item."""
    with tempfile.TemporaryDirectory() as folder:
        report = build_folder(Path(folder))
    text = json.dumps({name: report[name] for name in ("skipped", "noted")}).replace(f"{folder}/", "")
    RESULT.parent.mkdir(exist_ok=True)
    write_provenance(RESULT, result=json.loads(text) | {"pairs": sum(row["pairs"] for row in report["pairs"])})
    return 0


if __name__ == "__main__":
    sys.exit(main())
