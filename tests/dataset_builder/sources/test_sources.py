"""The corpora: MELD and DailyTalk in miniature, the bundled sample, and scripts."""

import json
from pathlib import Path

import pytest
from support.paths import SAMPLE

from sdiareward.common.errors import Skipped
from sdiareward.dataset_builder.episodes import Episode, split_reference, validate_episode
from sdiareward.dataset_builder.pairing.surface_counts import MAX_SHARE, measure_shares
from sdiareward.dataset_builder.sources import locate, read_source


HEADER = "Sr No.,Utterance,Speaker,Emotion,Sentiment,Dialogue_ID,Utterance_ID,Season,Episode,StartTime,EndTime"


def episodes_of(items):
    return [item for item in items if isinstance(item, Episode)]


def drops_of(items):
    return [(item.item, item.kind) for item in items if isinstance(item, Skipped)]


def texts_of(episode):
    return [[part.text for part in turn.parts] for turn in episode.turns]


WORDS = [f"Line {number}." for number in range(20)]


def row(dialogue, utterance, speaker, text="Hello.", emotion="neutral", sentiment="neutral"):
    quoted = text.replace('"', '""')
    return f'1,"{quoted}",{speaker},{emotion},{sentiment},{dialogue},{utterance},8,21,"00:16:16,059","00:16:21,731"'


def write_table(path, rows, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("\n".join([HEADER, *rows, ""]).encode(encoding))


@pytest.fixture
def meld_tree(tmp_path):
    """Three splits: one exchange and its continuation, several speakers, and a corrected clip."""
    root, moods = tmp_path / "MELD.Raw", [("neutral", "neutral"), ("joy", "positive"), ("surprise", "negative")]
    splits = {
        "train": (0, "train_splits", ["Chandler", "The Interviewer", "The Interviewer"]),
        "dev": (3, "dev_splits_complete", "ABCBA"),
        "test": (1, "output_repeated_splits_test", "AB"),
    }
    for split, (dialogue, folder, speakers) in splits.items():
        rows = [row(dialogue, n, name, WORDS[n], *moods[n % 3]) for n, name in enumerate(speakers)]
        write_table(root / f"{split}_sent_emo.csv", rows)
        (root / folder).mkdir()
        for n in range(len(speakers)):
            (root / folder / f"dia{dialogue}_utt{n}.mp4").write_bytes(b"sound")
    (root / "output_repeated_splits_test/final_videos_testdia1_utt1.mp4").write_bytes(b"sound")
    return root


def test_a_dialogue_is_cut_into_stretches_of_two_speakers_labelled_by_the_last_utterance(meld_tree):
    items = list(read_source("meld", meld_tree))
    episode = episodes_of(items)[0]
    validate_episode(episode)
    assert texts_of(episode) == [[WORDS[0]], WORDS[1:3]]
    assert (episode.primary, episode.secondary) == ("Negative", "Surprise")
    assert (episode.name, episode.group, episode.subset) == ("train/dia0/0", "train/dia0", "semi_wild")
    names = ["train/dia0/0", "dev/dia3/0", "dev/dia3/2", "test/dia1/0"]
    assert [(e.name, len(e.turns)) for e in episodes_of(items)] == [(name, 2) for name in names]
    assert drops_of(items) == [("meld dev dialogue 3 utterance 4", "no_answer")]


def test_meld_unpacked_into_folders_by_split_has_the_same_references(meld_tree):
    flat = [part.ref for e in episodes_of(read_source("meld", meld_tree)) for turn in e.turns for part in turn.parts]
    # Of the test split the corrected clip is taken.
    names = ["dia1_utt0.mp4", "final_videos_testdia1_utt1.mp4"]
    assert flat[-2:] == [f"meld:output_repeated_splits_test/{name}" for name in names]
    (meld_tree / "train").mkdir()
    for name in ("train_sent_emo.csv", "train_splits"):
        (meld_tree / name).rename(meld_tree / "train" / name)
    parts = [part for e in episodes_of(read_source("meld", meld_tree)) for turn in e.turns for part in turn.parts]
    assert [part.ref for part in parts] == flat
    for part in parts:
        source, path = split_reference(part.ref)
        assert locate(source, meld_tree, path) == Path(part.audio)


def test_meld_quotes_are_read_from_utf_8_windows_1252_and_control_characters(meld_tree):
    quoted = "company’s “café”"
    for written, encoding in ((quoted, "utf-8"), (quoted, "cp1252"), ("company\x92s “café”", "utf-8")):
        write_table(meld_tree / "train_sent_emo.csv", [row(0, 0, "A", written), row(0, 1, "B", "Well…")], encoding)
        assert texts_of(episodes_of(read_source("meld", meld_tree))[0]) == [[quoted], ["Well…"]]


def test_each_bad_row_of_meld_is_dropped_and_nothing_else_is_lost(meld_tree):
    bad = {
        row(0, 1, "B", "again"): "duplicate",
        row(0, 3, "B", "  "): "missing_text",
        row("x", 4, "A"): "bad_row",
        row(0, 4, "A") + ",more": "bad_row",
        '9,"an open quote,A,neutral,neutral,0,5,8,21,0,0': "bad_row",
        row(0, 7, "A"): "missing_audio",
        row(0, 8, "B"): "empty_audio",
    }
    write_table(meld_tree / "train_sent_emo.csv", [row(0, 0, "A"), row(0, 1, "B"), *bad])
    (meld_tree / "train_splits/dia0_utt8.mp4").touch()
    items = list(read_source("meld", meld_tree))
    expected = [(f"meld train_sent_emo.csv line {line}", kind) for line, kind in enumerate(bad.values(), start=4)]
    assert drops_of(items)[:7] == expected
    assert episodes_of(items)[0].name == "train/dia0/0"
    (meld_tree / "dev_sent_emo.csv").unlink()
    assert ("meld dev", "missing_table") in drops_of(read_source("meld", meld_tree))
    (meld_tree / "train_sent_emo.csv").write_text("text,label\nhello,joy\n")
    with pytest.raises(ValueError, match="lacks .*'Utterance'"):
        list(read_source("meld", meld_tree))


def test_dailytalk_dialogues_become_episodes_and_bad_entries_are_skipped(tmp_path):
    speakers = {"10": [0, 1] * 9, "2": [1, 0, 1, 0], "0": [0, 1, 0, 1], "1": [0, 1], "3": [0, 1] * 3, "5": [0, 1]}
    metadata = {}
    for dialogue, found in speakers.items():
        (tmp_path / "data" / dialogue).mkdir(parents=True)
        labels = {"emotion": "no emotion", "act": "question"}
        metadata[dialogue] = {str(n): {"text": WORDS[n], "speaker": who, **labels} for n, who in enumerate(found)}
        for utterance, speaker in enumerate(found):
            (tmp_path / f"data/{dialogue}/{utterance}_{speaker}_d{dialogue}.wav").write_bytes(b"sound")
    metadata["2"]["3"].update(act="commissive", emotion="happiness")
    metadata["0"]["2"]["text"] = None
    metadata["0"]["3"]["text"] = ""
    metadata["1"]["1"]["speaker"] = "../../1"
    del metadata["5"]["1"]["act"]
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    (tmp_path / "data/3/2_0_d3.wav").unlink()
    items = list(read_source("dailytalk", tmp_path))
    assert [f"{e.name} {e.primary} {e.secondary}" for e in episodes_of(items)] == [
        "0/0 Question No Emotion",
        "2/0 Commissive Happiness",
        *(f"3/{number} Question No Emotion" for number in (0, 3)),
        "5/0 Unknown No Emotion",
        *(f"10/{number} Question No Emotion" for number in (0, 16)),
    ]
    kinds = ["missing_text", "missing_text", *["missing_audio", "no_answer"] * 2]
    assert [kind for _, kind in drops_of(items)] == kinds
    part = episodes_of(items)[-2].turns[1].parts[0]
    assert part.ref == "dailytalk:data/10/1_1_d10.wav"
    assert locate("dailytalk", tmp_path, "data/10/1_1_d10.wav") == Path(part.audio)
    with pytest.raises(FileNotFoundError, match="not found"):
        locate("dailytalk", tmp_path, "data/nowhere.wav")


# The sample and scripts


def test_an_unknown_source_or_option_and_a_missing_corpus_are_refused(tmp_path):
    for name, options, known in (("youtoube", {}, "colloquial_scripts"), ("folder", {"langauge": "en"}, "'language'")):
        with pytest.raises(ValueError, match=known):
            read_source(name, SAMPLE, options)
    for name, remedy in (("meld", "download"), ("dailytalk", "download"), ("sample", "give the path")):
        with pytest.raises(FileNotFoundError, match=remedy):
            list(read_source(name, tmp_path))


def sides(pairs):
    return [tuple([{"content": turn.text} for turn in side.turns] for side in (p.spoken, p.written)) for p in pairs]


def test_the_scripts_have_two_levels_and_a_caricature_and_no_count_solves_the_balanced_ones():
    easy = list(read_source("colloquial_scripts"))
    balanced = list(read_source("colloquial_scripts", options={"balanced": True}))
    by_level = {level: [p for p in balanced if p.written.secondary == level] for level in ("balanced", "caricature")}
    assert {level: len(found) for level, found in by_level.items()} == {"balanced": 300, "caricature": 100}
    assert (len(easy), {pair.written.secondary for pair in easy}) == (210, {"easy"})
    assert [len({pair.written.split_group for pair in pairs}) for pairs in (easy, by_level["balanced"])] == [10, 15]
    assert {pair.written.source for pair in balanced} == {"balanced_scripts"}
    for pair in (*easy, *balanced):
        assert pair.written.group_id == pair.spoken.group_id
    assert measure_shares(sides(easy))["commas"] == 1
    assert max(measure_shares(sides(by_level["balanced"])).values()) <= MAX_SHARE


def write_scripts(path, scripts):
    """Write pairs of a written and a spoken user turn, each answered with "no"."""
    with path.open("w") as file:
        for name, *texts in scripts:
            turns = [[{"role": "user", "content": text}, {"role": "assistant", "content": "no"}] for text in texts]
            row = {"scenario_id": name, "domain": "d", **dict(zip(("written", "spoken"), turns, strict=False))}
            file.write(json.dumps(row) + "\n")
    return path


def test_a_bad_script_is_skipped_and_a_balanced_file_that_counting_solves_is_refused(tmp_path):
    scripts = [("a", "yes no", "no yes"), ("b", "yes"), ("long", "yes", "oh yes it is")]
    path = write_scripts(tmp_path / "scripts.jsonl", scripts)
    found = list(read_source("colloquial_scripts", path))
    assert [item.kind for item in found if isinstance(item, Skipped)] == ["bad_row"]
    found = list(read_source("colloquial_scripts", path, {"balanced": True}))
    skipped = [item for item in found if isinstance(item, Skipped)]
    assert [item.kind for item in skipped] == ["bad_row", "unbalanced"]
    assert "long/written: the sides have 5 and 2 words" in skipped[-1].reason
    path = write_scripts(tmp_path / "solved.jsonl", [(f"s{number}", "yes yes", "yes, yes") for number in range(3)])
    with pytest.raises(ValueError, match="commas, punctuation marks order"):
        list(read_source("colloquial_scripts", path, {"balanced": True}))
