"""Every kind of bad input in one folder: each is a clear row in the report, and nothing else is lost."""

import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import yaml

from sdiareward.audio_sdiareward import read_audio
from sdiareward.common.package import SAMPLE
from sdiareward.dataset_builder import builder
from sdiareward.dataset_builder.__main__ import main as run_command
from sdiareward.pairs.loading import load_pairs


pytestmark = pytest.mark.slow


def make_line(name, audio, text="Please hold the line.", second=None, **fields):
    """Return a dialogue; `second` are the fields of its answer, which is another file with the same sound."""
    answer = {"role": "assistant", "text": text, "audio": f"{audio[:-4]}.2{audio[-4:]}", **(second or {})}
    turns = [{"role": "user", "text": text, "audio": audio}, answer]
    return {"id": name, "language": "en", "license": "CC-BY-SA-3.0", **fields, "turns": turns}


# What is wrong -> (line of the manifest, kind in the report); "noted" lines are used all the same.
DROPPED = {
    "text": (make_line("text", "text.wav"), "unusable_audio"),
    "truncated": (make_line("truncated", "truncated.mp3"), "truncated_audio"),
    "silence": (make_line("silence", "silence.wav"), "silent_audio"),
    "long": (make_line("long", "long.wav"), "unusable_audio"),
    "not there": (make_line("not-there", "nowhere.wav"), "missing_audio"),
    "one sound": (make_line("one-sound", "good.wav", second={"audio": "good.wav"}), "bad_times"),
    "other words": (make_line("other-words", "good.wav", second={"text": "I never said that."}), "implausible_speech"),
    "word errors": (make_line("word-errors", "good.wav", "Plimpfk grbl snorvit kwex zzyp."), "implausible_speech"),
    "only marks": (make_line("only-marks", "good.wav", second={"text": "[laughter] *coughs*"}), "no_words"),
    "language": (make_line("language", "good.wav", "Bitte warten Sie.", language="de"), "language"),
    "duplicate": (make_line("good", "good.wav", text="Again."), "duplicate_id"),
}
NOTED = {
    "eight_bit": make_line("eight-bit", "eight_bit.wav"),
    "many_channels": make_line("six", "six.wav", text="Mm-hmm."),
    "high_rate": make_line("fast", "fast.wav"),
    "clipping": make_line("clipped", "clipped.wav"),
    "marks": make_line("marks", "good.wav", text="[laughter] Please hold the line."),
}


def write_recordings(root):
    speech = read_audio(min(SAMPLE.glob("asterisk/*.ogg")))[:38_400]
    soundfile.write(root / "good.wav", speech, 16_000)
    (root / "text.wav").write_text("this is no recording\n" * 50)
    soundfile.write(root / "eight_bit.wav", speech, 16_000, subtype="PCM_U8")
    soundfile.write(root / "fast.wav", np.repeat(speech, 6), 96_000)
    soundfile.write(root / "six.wav", np.stack([speech] * 6, axis=1), 16_000)
    soundfile.write(root / "silence.wav", np.zeros_like(speech), 16_000)
    soundfile.write(root / "clipped.wav", np.clip(speech * 60, -1, 1), 16_000)
    soundfile.write(root / "long.wav", np.zeros(36 * 60 * 16_000, np.int16), 16_000)
    mp3 = io.BytesIO()
    soundfile.write(mp3, np.tile(speech, 4), 16_000, format="MP3")
    (root / "truncated.mp3").write_bytes(mp3.getvalue()[: len(mp3.getvalue()) // 3])
    for path in list(root.iterdir()):
        (root / f"{path.stem}.2{path.suffix}").hardlink_to(path)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad")
    root = folder / "recordings"
    root.mkdir()
    write_recordings(root)
    rows = [make_line("good", "good.wav"), *(row for row, _ in DROPPED.values()), *NOTED.values()]
    latin = json.dumps(make_line("latin", "good.wav", text="caf\u00e9"), ensure_ascii=False).encode("latin-1")
    lines = [*(json.dumps(row).encode() for row in rows), latin, b"{not json", b""]
    (root / "manifest.jsonl").write_bytes(b"\n".join(lines))
    settings = {
        "output_dir": str(folder / "sdiareward"),
        "sources": [{"name": "folder", "path": str(root)}],
        "synthesizers": {"modality": {"seen": ["espeak-ng"]}},
        "max_wer": 0.5,
        "test": 0.0,
        "validation": 0.0,
        "num_workers": 1,
    }
    (folder / "build.yaml").write_text(yaml.safe_dump(settings))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "WordErrors", lambda asr: SimpleNamespace(rate=lambda text, *_: float("grbl" in text)))
        status = run_command(["--config", str(folder / "build.yaml"), "--strict"])
    found = json.loads((folder / "sdiareward" / "report.json").read_text())
    return found | {"exit_status": status, "folder": str(folder / "sdiareward")}


@pytest.mark.parametrize("problem", DROPPED)
def test_what_cannot_be_used_is_a_row_of_its_kind(report, problem):
    line, kind = DROPPED[problem]
    places = (f"line {2 + list(DROPPED).index(problem)} ", f"folder {line['id']} ")
    rows = [row for row in report["skipped"] if any(place in f"{row['item']} " for place in places)]
    assert [row["kind"] for row in rows] == [kind]


def test_a_strict_build_fails_notes_what_is_unusual_and_loses_nothing_else(report):
    assert report["exit_status"] == 1
    assert len(load_pairs(report["folder"], "train")) == 1 + len(NOTED)
    assert len(report["skipped"]) == len(DROPPED) + 2
    assert report["drops"]["not_utf8"] == report["drops"]["not_json"] == 1
    noted = {(row["kind"], row["item"]) for row in report["noted"]}
    expected = {(kind, f"folder {line['id']}, turn {n}") for kind, line in NOTED.items() for n in range(2)}
    assert noted <= expected and {(kind, f"folder {line['id']}, turn 0") for kind, line in NOTED.items()} <= noted
    # Refused before it is read.
    assert "lasts 0.60 h" in next(row["reason"] for row in report["skipped"] if "long" in row["item"])
