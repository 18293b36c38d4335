import json
import shutil
from dataclasses import replace

import pytest
import soundfile
from support.paths import SAMPLE

from sdiareward.audio_sdiareward import read_audio
from sdiareward.dataset_builder import builder
from sdiareward.dataset_builder.builder import BuildConfig, SourceConfig, build
from sdiareward.dataset_builder.episodes import Episode, Part, Turn
from sdiareward.dataset_builder.pairing.pairing import SynthesizerSpec
from sdiareward.dataset_builder.pairing.splits import assign_splits, choose_synthesizers, split_unit
from sdiareward.perturbations.channel import degrade_mp3


def make_episode(name, group, source="asterisk", split_group=None):
    return Episode(name, source, "scripted", group, (), "Inform", "Unknown", "en", "CC0-1.0", split_group)


@pytest.fixture
def episodes():
    return [make_episode(f"e{i}", f"g{i % 20}", source) for source in ("a", "b") for i in range(100)]


def test_every_source_is_split_in_the_shares_asked_for(episodes):
    assignment = assign_splits(episodes, {}, validation=0.1, test=0.2, seed=0)
    for source in ("a", "b"):
        splits = [assignment[split_unit(e)] for e in episodes if e.source == source]
        assert {name: splits.count(name) for name in set(splits)} == {"train": 70, "validation": 10, "test": 20}


def test_a_coarser_unit_is_held_out_whole():
    episodes = [make_episode(f"e{i}", f"g{i}", split_group=f"domain{i % 5}") for i in range(50)]
    assignment = assign_splits(episodes, {}, validation=0.2, test=0.2, seed=0)
    assert sorted(assignment.values()) == ["test", "train", "train", "train", "validation"]


def test_joined_units_get_one_split_by_the_shares_and_the_others_keep_theirs(episodes):
    shares = {"validation": 0.1, "test": 0.2, "seed": 0}
    before = assign_splits(episodes, {}, **shares)
    units = sorted(before)
    together = assign_splits(episodes, dict.fromkeys(units[5:9], units[5]), **shares)
    assert {unit: split for unit, split in together.items() if unit not in units[5:9]} == {
        unit: split for unit, split in before.items() if unit not in units[5:9]
    }
    assert len({together[unit] for unit in units[5:9]}) == 1
    couples = {unit: units[number - number % 4] for number, unit in enumerate(units)}
    counts = [*assign_splits(episodes, couples, **shares).values()]
    assert {split: counts.count(split) for split in set(counts)} == {"train": 28, "test": 8, "validation": 4}
    assert set(assign_splits(episodes, couples, validation=0.1, test=1, seed=0).values()) == {"test"}


def call(name, audio, start_s=0.0, **more):
    turns = [
        {"role": role, "text": "well", "audio": audio, "start_s": start_s + second, "end_s": start_s + second + 1}
        for second, role in enumerate(("user", "assistant"))
    ]
    return {"id": name, "language": "en", "license": "CC0-1.0", "turns": turns, **more}


def write_corpus(folder, lines):
    """Write `a`, `b` and `c`, and copies of `a`: the file again, other encodings, and other rates and levels."""
    folder.mkdir()
    for name, path in zip("abc", sorted((SAMPLE / "amazon_queen").glob("*.ogg")), strict=False):
        array = read_audio(path)[: 16_000 * 5]
        soundfile.write(folder / f"{name}.wav", array, 16_000)
        if name == "a":
            (folder / "again").mkdir()
            shutil.copy(folder / "a.wav", folder / "again" / "a.wav")
            soundfile.write(folder / "a.flac", array, 16_000)
            soundfile.write(folder / "a.ogg", 0.4 * array, 16_000)
            soundfile.write(folder / "a.mp3", degrade_mp3(array, 16_000, None, 24), 16_000)
            soundfile.write(folder / "narrow.wav", array[::2], 8_000)
            # As a pipe leaves it: the header has no number of samples.
            content = (folder / "a.flac").read_bytes()
            (folder / "piped.flac").write_bytes(content[:21] + bytes([content[21] & 0xF0, 0, 0, 0, 0]) + content[26:])
    (folder / "manifest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return SourceConfig("folder", str(folder))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([call("0", "a.wav"), call("1", "b.wav"), call("2", "c.wav")], (3, 0, 0, 0)),
        ([call("0", "a.wav"), call("1", "a.wav", 2.0), call("2", "b.wav")], (2, 2, 0, 0)),
        ([call("0", "a.wav"), call("1", "again/a.wav"), call("2", "b.wav")], (2, 0, 1, 0)),
        (
            [call(n, n) for n in ("a.wav", "a.flac", "a.ogg", "a.mp3", "narrow.wav", "piped.flac", "b.wav")],
            (2, 0, 0, 5),
        ),
        # Through a third dialogue, whatever groups the user gave.
        ([call("0", "a.wav", group="x"), call("1", "b.wav", group="x"), call("2", "b.wav")], (1, 2, 0, 0)),
    ],
)
def test_dialogues_that_share_a_recording_are_one_group(lines, expected, tmp_path):
    spec = {"modality": SynthesizerSpec(("espeak-ng",))}
    config = BuildConfig(str(tmp_path / "out"), (write_corpus(tmp_path / "corpus", lines),), spec, test=0.5)
    report = build(config, dry_run=True)
    joined = report["joined"]
    found = (report["groups"]["all"], joined["by_file"], joined["equal_copies"], joined["near_copies"])
    assert found == expected


def test_a_recording_is_one_group_across_sources_and_through_the_pipeline(tmp_path, monkeypatch):
    lines = [{**call("talk", ""), "audio": "again/a.wav"}]
    lines[0].pop("turns")
    sources = [
        write_corpus(tmp_path / n, of) for n, of in (("x", [call("0", "a.wav")]), ("y", [*lines, call("1", "b.wav")]))
    ]
    config = BuildConfig(
        str(tmp_path / "out"), tuple(sources), {"modality": SynthesizerSpec(("espeak-ng",))}, test=0.5
    )

    def cut(recordings, *_):
        wav = str(tmp_path / "x" / "a.flac")
        turns = (Turn("user", (Part("well", wav, 0.0, 1.0),)), Turn("assistant", (Part("well", wav, 1.0, 2.0),)))
        return [
            replace(make_episode(f"{r.recording_id}/0", r.recording_id, r.source), turns=turns) for r in recordings
        ]

    monkeypatch.setattr(builder, "_run_pipeline", cut)
    plans, _, joined = builder._plan(config, False)
    assert (joined["groups"], joined["near_copies"]) == (2, 1)
    of = {plan.chosen.name: (plan.split, plan.chosen.group_id) for plan in plans}
    assert of["0"] == of["talk/0"] != of["1"] and of["0"][1] == make_episode("0", "0", "folder").group_id


def test_synthesizers_are_spread_over_dialogues_and_stay_with_them():
    names = ("piper", "world", "flite")
    chosen = [choose_synthesizers(f"d{i}", names, 1, seed=0)[0] for i in range(60)]
    assert set(chosen) == set(names)
    assert choose_synthesizers("d1", reversed(names), 1, seed=0) == chosen[1:2]
    assert sorted(choose_synthesizers("d1", names, None, seed=0)) == sorted(names)
