import json
import shutil
from pathlib import Path

import pytest
from support.paths import SAMPLE

from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, ScriptPair, validate_episode
from sdiareward.dataset_builder.references import split_reference
from sdiareward.dataset_builder.sources import locate, read_source, sample


def episodes_of(items):
    return [item for item in items if isinstance(item, Episode)]


def drops_of(items):
    return [(item.item, item.kind) for item in items if isinstance(item, Skipped)]


def test_a_reference_finds_its_recording_and_none_outside_of_the_corpus():
    part = next(sample.read_episodes(SAMPLE)).turns[0].parts[0]
    source, path = split_reference(part.ref)
    assert locate(source, SAMPLE, path) == Path(part.audio)
    with pytest.raises(FileNotFoundError, match="not found"):
        locate(source, SAMPLE, "asterisk/nowhere.ogg")
    with pytest.raises(ValueError, match="lies outside"):
        locate(source, SAMPLE / "asterisk", "../manifest.jsonl")


def test_an_unknown_source_or_option_and_a_missing_corpus_are_refused(tmp_path):
    for name, options, known in (("youtoube", {}, "colloquial_scripts"), ("folder", {"langauge": "en"}, "'language'")):
        with pytest.raises(ValueError, match=known):
            read_source(name, SAMPLE, options)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        list(read_source("sample", tmp_path / "nowhere"))


def test_the_scripts_are_210_pairs_in_ten_domains():
    pairs = list(read_source("colloquial_scripts"))
    assert len(pairs) == 210
    assert len({pair.written.split_group for pair in pairs}) == 10
    for pair in pairs:
        assert isinstance(pair, ScriptPair)
        assert pair.written.group_id == pair.spoken.group_id
        assert len(pair.written.turns) == len(pair.spoken.turns)
        validate_episode(pair.written)
        validate_episode(pair.spoken)


def test_bad_lines_of_a_sample_are_dropped_and_the_rest_is_kept(tmp_path):
    good = (SAMPLE / "manifest.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[0]
    audio = tmp_path / json.loads(good)["audio"]
    audio.parent.mkdir()
    shutil.copy(SAMPLE / json.loads(good)["audio"], audio)
    outside = good.replace('"audio": "', '"audio": "../')
    (tmp_path / "manifest.jsonl").write_text("not JSON\n" + outside + '{"audio": "x"}\n' + good + good)
    items = list(sample.read_episodes(tmp_path))
    assert [kind for _, kind in drops_of(items)] == ["not_json", "outside_root", "missing_audio", "duplicate"]
    assert len(episodes_of(items)) == 1


def test_a_script_without_a_side_is_dropped(tmp_path):
    path = tmp_path / "scripts.jsonl"
    turns = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi."}]
    row = {"scenario_id": "a", "domain": "food", "hard": False, "written": turns, "spoken": turns}
    lines = [row, {**row, "scenario_id": "b", "spoken": None}, row]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    items = list(read_source("colloquial_scripts", path))
    assert [type(item).__name__ for item in items] == ["ScriptPair", "Skipped", "Skipped"]
    assert [item.kind for item in items[1:]] == ["bad_row", "duplicate"]


def test_the_bundled_sample_is_complete_and_small():
    episodes = list(sample.read_episodes(SAMPLE))
    assert all(isinstance(episode, Episode) for episode in episodes)
    assert {episode.source for episode in episodes} == {"amazon_queen", "asterisk"}
    files = {part.audio for episode in episodes for turn in episode.turns for part in turn.parts}
    assert sum(Path(file).stat().st_size for file in files) < 25_000_000
    assert (SAMPLE / "amazon_queen" / "readme.txt").is_file()
    for episode in episodes:
        validate_episode(episode)
