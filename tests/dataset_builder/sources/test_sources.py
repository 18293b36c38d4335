"""The corpora: MELD and DailyTalk in miniature, the bundled sample, and scripts."""

import json
import shutil
from pathlib import Path

import pytest
from support.paths import SAMPLE

from sdiareward.common.errors import Skipped
from sdiareward.dataset_builder.episodes import Episode, Part, split_reference, validate_episode
from sdiareward.dataset_builder.pairing.surface_counts import MAX_SHARE, measure_shares
from sdiareward.dataset_builder.sources import locate, read_source
from sdiareward.dataset_builder.sources.corpora import Utterance, cut_dialogue


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
    root = tmp_path / "MELD.Raw"
    labels = [("neutral", "neutral"), ("joy", "positive"), ("surprise", "negative")]
    speakers = ("Chandler", "The Interviewer", "The Interviewer")
    rows = [row(0, n, name, WORDS[n], *labels[n]) for n, name in enumerate(speakers)]
    write_table(root / "train_sent_emo.csv", rows)
    write_table(root / "dev_sent_emo.csv", [row(3, n, name, WORDS[n]) for n, name in enumerate("ABCBA")])
    write_table(root / "test_sent_emo.csv", [row(1, n, name, WORDS[n]) for n, name in enumerate("AB")])
    names = [
        *(f"train_splits/dia0_utt{n}" for n in range(3)),
        *(f"dev_splits_complete/dia3_utt{n}" for n in range(5)),
        *(f"output_repeated_splits_test/dia1_utt{n}" for n in range(2)),
        "output_repeated_splits_test/final_videos_testdia1_utt1",
    ]
    for name in names:
        (root / name).parent.mkdir(exist_ok=True)
        (root / f"{name}.mp4").write_bytes(b"sound")
    return root


def test_utterances_of_one_speaker_become_one_turn_labelled_by_the_last(meld_tree):
    episode = episodes_of(read_source("meld", meld_tree))[0]
    validate_episode(episode)
    assert texts_of(episode) == [[WORDS[0]], WORDS[1:3]]
    assert (episode.primary, episode.secondary) == ("Negative", "Surprise")
    assert (episode.name, episode.group, episode.subset) == ("train/dia0/0", "train/dia0", "semi_wild")


def test_a_dialogue_of_three_speakers_is_cut_into_stretches_of_two(meld_tree):
    items = list(read_source("meld", meld_tree))
    assert [(e.name, len(e.turns)) for e in episodes_of(items)] == [
        ("train/dia0/0", 2),
        ("dev/dia3/0", 2),
        ("dev/dia3/2", 2),
        ("test/dia1/0", 2),
    ]
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


@pytest.mark.parametrize(
    ("written", "encoding"),
    [("company’s “café”", "utf-8"), ("company’s “café”", "cp1252"), ("company\x92s “café”", "utf-8")],
)
def test_meld_quotes_are_read_from_utf_8_windows_1252_and_control_characters(meld_tree, written, encoding):
    write_table(meld_tree / "train_sent_emo.csv", [row(0, 0, "A", written), row(0, 1, "B", "Well…")], encoding)
    assert texts_of(episodes_of(read_source("meld", meld_tree))[0]) == [["company’s “café”"], ["Well…"]]


def test_each_bad_row_of_meld_is_dropped_and_nothing_else_is_lost(meld_tree):
    bad = {
        row(0, 1, "B", "again"): "duplicate",
        row(0, 2, "A", emotion="boredom"): "unknown_label",
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
    assert drops_of(items)[:8] == expected
    assert episodes_of(items)[0].name == "train/dia0/0"
    (meld_tree / "dev_sent_emo.csv").unlink()
    assert ("meld dev", "missing_table") in drops_of(read_source("meld", meld_tree))
    (meld_tree / "train_sent_emo.csv").write_text("text,label\nhello,joy\n")
    with pytest.raises(ValueError, match="'Utterance', 'Speaker'"):
        list(read_source("meld", meld_tree))


@pytest.fixture
def write_dailytalk(tmp_path):
    """Return a function that writes dialogues, given as lists of speakers, and returns their folder."""

    def write(dialogues):
        root, metadata = tmp_path / "dailytalk", {}
        for dialogue, speakers in dialogues.items():
            (root / "data" / dialogue).mkdir(parents=True)
            for utterance, speaker in enumerate(speakers):
                (root / "data" / dialogue / f"{utterance}_{speaker}_d{dialogue}.wav").write_bytes(b"sound")
                entry = {"text": WORDS[utterance], "emotion": "no emotion", "act": "question", "speaker": speaker}
                metadata.setdefault(dialogue, {})[str(utterance)] = entry
        (root / "metadata.json").write_text(json.dumps(metadata))
        return root

    return write


def edit(root, change):
    metadata = json.loads((root / "metadata.json").read_text())
    change(metadata)
    (root / "metadata.json").write_text(json.dumps(metadata))


def test_dailytalk_dialogues_become_episodes_with_the_names_of_table_5(write_dailytalk):
    root = write_dailytalk({"10": [0, 1], "2": [1, 0, 1, 0]})
    edit(root, lambda metadata: metadata["2"]["3"].update(act="commissive", emotion="happiness"))
    first, second = read_source("dailytalk", root)
    assert [(e.name, e.primary, e.secondary) for e in (first, second)] == [
        ("2/0", "Commissive", "Happiness"),
        ("10/0", "Question", "No Emotion"),
    ]
    assert texts_of(first) == [[text] for text in WORDS[:4]]
    part = second.turns[1].parts[0]
    assert part.ref == "dailytalk:data/10/1_1_d10.wav"
    assert locate("dailytalk", root, "data/10/1_1_d10.wav") == Path(part.audio)


def test_a_dialogue_is_cut_after_sixteen_turns_within_its_group_and_at_a_missing_clip(write_dailytalk):
    root = write_dailytalk({"0": [0, 1] * 9 + [0], "1": [0, 1] * 3})
    (root / "data/1/2_0_d1.wav").unlink()
    items = list(read_source("dailytalk", root))
    found = [(e.name, len(e.turns), e.group) for e in episodes_of(items)]
    assert found == [("0/0", 16, "0"), ("0/16", 2, "0"), ("1/0", 2, "1"), ("1/3", 2, "1")]
    drops = {"0 utterance 18": "no_answer", "1 utterance 2": "missing_audio", "1 utterance 5": "no_answer"}
    assert drops_of(items) == [(f"dailytalk dialogue {place}", kind) for place, kind in drops.items()]


def test_bad_entries_of_dailytalk_are_dropped_and_a_missing_act_is_unknown(write_dailytalk):
    root = write_dailytalk({"0": [0, 1, 0, 1], "1": [0, 1], "2": [0, 1]})

    def spoil(metadata):
        metadata["0"]["2"]["emotion"] = "hungry"
        metadata["0"]["3"]["text"] = ""
        metadata["1"]["1"]["speaker"] = "../../1"
        del metadata["2"]["1"]["act"]
        metadata["x"] = {}
        metadata["4"] = ["a list"]

    edit(root, spoil)
    items = list(read_source("dailytalk", root))
    assert [(e.name, e.primary) for e in episodes_of(items)] == [("0/0", "Question"), ("2/0", "Unknown")]
    kinds = ["bad_entry", "bad_entry", "unknown_label", "missing_text", "missing_audio", "no_answer"]
    assert [kind for _, kind in drops_of(items)] == kinds


@pytest.mark.parametrize("name", ["meld", "dailytalk"])
def test_a_corpus_that_is_not_there_says_what_to_download(name, tmp_path):
    for path in (None, tmp_path):
        with pytest.raises(FileNotFoundError, match="; download"):
            list(read_source(name, path))


@pytest.mark.parametrize(
    ("speakers", "numbers", "expected"),
    [
        ("AB", (0, 1), ["AB"]),
        ("AABBB", range(5), ["AB"]),
        ("ABAB", (0, 1, 3, 4), ["AB", "AB"]),
        ("ABC", range(3), ["AB", "no C"]),
        ("ABACAC", range(6), ["AB", "ACAC"]),
        ("A", (0,), ["no A"]),
        ("AA", (0, 5), ["no A", "no A"]),
        ("", (), []),
        ("AB" * 9, range(18), ["AB" * 8, "AB"]),
    ],
)
def test_a_dialogue_is_cut_where_a_third_speaker_or_a_gap_is(speakers, numbers, expected):
    utterances = [Utterance(number, name, Part(name)) for number, name in zip(numbers, speakers, strict=True)]
    found = [
        f"no {found.reason[1]}" if isinstance(found, Skipped) else "".join(t.parts[0].text for t in found.turns)
        for found in cut_dialogue(utterances, "dialogue", "g", source="s", subset="wild", language="", license="")
    ]
    assert found == expected


# The sample and scripts


def test_a_reference_finds_its_recording_and_none_outside_of_the_corpus():
    part = next(read_source("sample")).turns[0].parts[0]
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


def test_the_scripts_are_210_pairs_in_ten_domains_and_solved_by_counting_commas():
    pairs = list(read_source("colloquial_scripts"))
    assert (len(pairs), len({pair.written.split_group for pair in pairs})) == (210, 10)
    for pair in pairs:
        assert pair.written.group_id == pair.spoken.group_id
        assert len(pair.written.turns) == len(pair.spoken.turns)
        validate_episode(pair.written)
        validate_episode(pair.spoken)
    assert {pair.written.secondary for pair in pairs} == {"easy"}
    assert measure_shares(sides(pairs))["commas"] == 1


def test_bad_lines_of_a_sample_are_dropped_and_the_rest_is_kept(tmp_path):
    good = (SAMPLE / "manifest.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[0]
    audio = tmp_path / json.loads(good)["audio"]
    audio.parent.mkdir()
    shutil.copy(SAMPLE / json.loads(good)["audio"], audio)
    outside = good.replace('"audio": "', '"audio": "../')
    (tmp_path / "manifest.jsonl").write_text("not JSON\n" + outside + '{"audio": "x"}\n' + good + good)
    items = list(read_source("sample", tmp_path))
    assert [kind for _, kind in drops_of(items)] == ["not_json", "outside_root", "missing_audio", "duplicate"]
    assert len(episodes_of(items)) == 1


def test_the_bundled_sample_is_complete_and_small():
    episodes = list(read_source("sample"))
    assert all(isinstance(episode, Episode) for episode in episodes)
    assert {episode.source for episode in episodes} == {"amazon_queen", "asterisk"}
    files = {part.audio for episode in episodes for turn in episode.turns for part in turn.parts}
    assert sum(Path(file).stat().st_size for file in files) < 25_000_000
    assert (SAMPLE / "amazon_queen" / "readme.txt").is_file()
    for episode in episodes:
        validate_episode(episode)


def sides(pairs):
    return [tuple([{"content": turn.text} for turn in side.turns] for side in (p.spoken, p.written)) for p in pairs]


@pytest.fixture(scope="module")
def pairs():
    found = list(read_source("colloquial_scripts", options={"balanced": True}))
    assert not [item for item in found if isinstance(item, Skipped)]
    return found


def test_the_set_has_300_pairs_of_15_domains_and_a_third_level_and_no_count_solves_it(pairs):
    written = [pair for pair in pairs if pair.written.secondary == "balanced"]
    caricatures = [pair for pair in pairs if pair.written.secondary == "caricature"]
    assert (len(written), len(caricatures), len({pair.spoken.name for pair in pairs})) == (300, 100, 400)
    assert len({pair.spoken.split_group for pair in written}) == 15
    assert {side.source for pair in pairs for side in (pair.written, pair.spoken)} == {"balanced_scripts"}
    assert {pair.spoken.group for pair in caricatures} <= {pair.spoken.group for pair in written}
    assert max(measure_shares(sides(written)).values()) <= MAX_SHARE


def write_scripts(path, scripts):
    """Write pairs of a written and a spoken user turn, each answered with "no"."""
    with path.open("w") as file:
        for name, *texts in scripts:
            turns = [[{"role": "user", "content": text}, {"role": "assistant", "content": "no"}] for text in texts]
            row = {"scenario_id": name, "domain": "d", **dict(zip(("written", "spoken"), turns, strict=False))}
            file.write(json.dumps(row) + "\n")
    return path


def test_a_bad_script_is_skipped_and_a_balanced_file_that_counting_solves_is_refused(
    tmp_path,
):
    scripts = [("a", "yes no", "no yes"), ("b", "yes"), ("a", "yes", "no"), ("long", "yes", "oh yes it is")]
    path = write_scripts(tmp_path / "scripts.jsonl", scripts)
    found = list(read_source("colloquial_scripts", path))
    assert [item.kind for item in found if isinstance(item, Skipped)] == ["bad_row", "duplicate"]
    found = list(read_source("colloquial_scripts", path, {"balanced": True}))
    skipped = [item for item in found if isinstance(item, Skipped)]
    assert [item.kind for item in skipped] == ["bad_row", "duplicate", "unbalanced"]
    assert "long/written: the sides have 5 and 2 words" in skipped[-1].reason
    path = write_scripts(tmp_path / "solved.jsonl", [(f"s{number}", "yes yes", "yes, yes") for number in range(3)])
    with pytest.raises(ValueError, match="commas, punctuation marks order"):
        list(read_source("colloquial_scripts", path, {"balanced": True}))
