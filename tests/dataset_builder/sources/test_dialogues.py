"""MELD and DailyTalk in miniature: the published layout, filled with recordings of the bundled sample."""

import json
import shutil
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from support.paths import SAMPLE

from sdiareward.audio_sdiareward import read_audio
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, Part, validate_episode
from sdiareward.dataset_builder.pipeline.media import read_media
from sdiareward.dataset_builder.references import split_reference
from sdiareward.dataset_builder.sources import dailytalk, locate, meld, read_source, sample
from sdiareward.dataset_builder.sources.assembly import Utterance, cut_dialogue


pytestmark = pytest.mark.slow


HEADER = "Sr No.,Utterance,Speaker,Emotion,Sentiment,Dialogue_ID,Utterance_ID,Season,Episode,StartTime,EndTime"


def episodes_of(items):
    return [item for item in items if isinstance(item, Episode)]


def drops_of(items):
    return [(item.item, item.kind) for item in items if isinstance(item, Skipped)]


def texts_of(episode):
    return [[part.text for part in turn.parts] for turn in episode.turns]


@pytest.fixture(scope="session")
def clips():
    """Real recordings: the words and the first second of some turns of the bundled sample."""
    parts = [turn.parts[0] for episode in list(sample.read_episodes(SAMPLE))[:10] for turn in episode.turns][:20]
    return [(part.text, read_audio(part.audio)[round(part.start_s * 16_000) :][:16_000]) for part in parts]


@pytest.fixture(scope="session")
def write_mp4():
    """Return a function that writes samples as an MP4 with AAC sound, as MELD's clips have."""

    def write(path, array):
        path.parent.mkdir(parents=True, exist_ok=True)
        with av.open(str(path), "w") as container:
            stream = container.add_stream("aac", rate=16_000, layout="mono")
            frame = av.AudioFrame.from_ndarray(array[None].astype(np.float32), format="fltp", layout="mono")
            frame.sample_rate = 16_000
            container.mux([packet for source in (frame, None) for packet in stream.encode(source)])

    return write


def row(dialogue, utterance, speaker, text="Hello.", emotion="neutral", sentiment="neutral"):
    quoted = text.replace('"', '""')
    return f'1,"{quoted}",{speaker},{emotion},{sentiment},{dialogue},{utterance},8,21,"00:16:16,059","00:16:21,731"'


def write_table(path, rows, encoding="utf-8"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("\n".join([HEADER, *rows, ""]).encode(encoding))


@pytest.fixture(scope="session")
def published_meld(tmp_path_factory, clips, write_mp4):
    """Three splits: one exchange and its continuation, three speakers, and a corrected clip."""
    root = tmp_path_factory.mktemp("meld") / "MELD.Raw"
    words = [text for text, _ in clips]
    write_table(
        root / "train_sent_emo.csv",
        [
            row(0, 0, "Chandler", words[0]),
            row(0, 1, "The Interviewer", words[1], "joy", "positive"),
            row(0, 2, "The Interviewer", words[2], "surprise", "negative"),
        ],
    )
    write_table(root / "dev_sent_emo.csv", [row(3, n, name, words[n]) for n, name in enumerate("ABCBA")])
    write_table(root / "test_sent_emo.csv", [row(1, 0, "A", words[0]), row(1, 1, "B", words[1])])
    names = [
        *(f"train_splits/dia0_utt{n}" for n in range(3)),
        *(f"dev_splits_complete/dia3_utt{n}" for n in range(5)),
        *(f"output_repeated_splits_test/dia1_utt{n}" for n in range(2)),
        "output_repeated_splits_test/final_videos_testdia1_utt1",
    ]
    for name in names:
        number = int(name[-1])
        write_mp4(root / f"{name}.mp4", clips[number][1])
    return root


@pytest.fixture
def meld_tree(tmp_path, published_meld):
    """A copy to change."""
    return Path(shutil.copytree(published_meld, tmp_path / "MELD.Raw"))


def test_utterances_of_one_speaker_become_one_turn_labelled_by_the_last(meld_tree, clips):
    episode = episodes_of(read_source("meld", meld_tree))[0]
    validate_episode(episode)
    assert texts_of(episode) == [[clips[0][0]], [clips[1][0], clips[2][0]]]
    assert (episode.primary, episode.secondary) == ("Negative", "Surprise")
    assert (episode.name, episode.group, episode.subset) == ("train/dia0/0", "train/dia0", "semi_wild")


def test_a_dialogue_of_three_speakers_is_cut_into_stretches_of_two(meld_tree):
    items = list(meld.read_episodes(meld_tree))
    assert [(e.name, len(e.turns)) for e in episodes_of(items)] == [
        ("train/dia0/0", 2),
        ("dev/dia3/0", 2),
        ("dev/dia3/2", 2),
        ("test/dia1/0", 2),
    ]
    assert drops_of(items) == [("meld dev dialogue 3 utterance 4", "no_answer")]


def test_the_clips_of_meld_are_mp4_and_read_as_the_recordings_they_were_written_from(meld_tree, clips):
    part = episodes_of(meld.read_episodes(meld_tree))[0].turns[0].parts[0]
    assert part.ref == "meld:train_splits/dia0_utt0.mp4"
    array, original = read_media(part.audio), clips[0][1]
    assert len(array) == pytest.approx(len(original), abs=2048)
    # The encoder may delay the sound by a frame of 1,024 samples.
    likeness = np.correlate(array, original, mode="full") / (np.linalg.norm(array) * np.linalg.norm(original))
    assert likeness.max() > 0.9
    assert abs(likeness.argmax() - (len(original) - 1)) in (0, 1024)


def test_meld_unpacked_into_folders_by_split_has_the_same_references(meld_tree):
    flat = [part.ref for e in episodes_of(meld.read_episodes(meld_tree)) for turn in e.turns for part in turn.parts]
    # Of the test split the corrected clip is taken.
    names = ["dia1_utt0.mp4", "final_videos_testdia1_utt1.mp4"]
    assert flat[-2:] == [f"meld:output_repeated_splits_test/{name}" for name in names]
    (meld_tree / "train").mkdir()
    for name in ("train_sent_emo.csv", "train_splits"):
        (meld_tree / name).rename(meld_tree / "train" / name)
    parts = [part for e in episodes_of(meld.read_episodes(meld_tree)) for turn in e.turns for part in turn.parts]
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
    assert texts_of(episodes_of(meld.read_episodes(meld_tree))[0]) == [["company’s “café”"], ["Well…"]]


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
    items = list(meld.read_episodes(meld_tree))
    expected = [(f"meld train_sent_emo.csv line {line}", kind) for line, kind in enumerate(bad.values(), start=4)]
    assert drops_of(items)[:8] == expected
    assert episodes_of(items)[0].name == "train/dia0/0"


def test_a_split_of_meld_that_is_missing_is_reported_and_another_table_is_refused(meld_tree):
    (meld_tree / "dev_sent_emo.csv").unlink()
    items = list(meld.read_episodes(meld_tree))
    assert drops_of(items) == [("meld dev", "missing_table")]
    assert len(episodes_of(items)) == 2
    (meld_tree / "train_sent_emo.csv").write_text("text,label\nhello,joy\n")
    with pytest.raises(ValueError, match="'Utterance', 'Speaker'"):
        list(meld.read_episodes(meld_tree))


@pytest.fixture
def write_dailytalk(tmp_path, clips):
    """Return a function that writes dialogues, given as lists of speakers, and returns their folder."""

    def write(dialogues):
        root = tmp_path / "dailytalk"
        metadata = {}
        for dialogue, speakers in dialogues.items():
            folder = root / "data" / dialogue
            folder.mkdir(parents=True)
            entries = metadata.setdefault(dialogue, {})
            for utterance, speaker in enumerate(speakers):
                text, array = clips[utterance % len(clips)]
                name = f"{utterance}_{speaker}_d{dialogue}"
                soundfile.write(folder / f"{name}.wav", array[:4_000], 16_000, "PCM_16")
                (folder / f"{name}.txt").write_text(text)
                labels = {"emotion": "no emotion", "act": "question", "topic": "work"}
                numbers = {"utterance_idx": utterance, "dialog_idx": int(dialogue), "speaker": speaker}
                entries[str(utterance)] = {"text": text, **labels, **numbers}
        (root / "metadata.json").write_text(json.dumps(metadata))
        return root

    return write


def edit(root, change):
    metadata = json.loads((root / "metadata.json").read_text())
    change(metadata)
    (root / "metadata.json").write_text(json.dumps(metadata))


def test_dailytalk_dialogues_become_episodes_with_the_names_of_table_5(write_dailytalk, clips):
    root = write_dailytalk({"10": [0, 1], "2": [1, 0, 1, 0]})
    edit(root, lambda metadata: metadata["2"]["3"].update(act="commissive", emotion="happiness"))
    first, second = read_source("dailytalk", root)
    assert [(e.name, e.primary, e.secondary) for e in (first, second)] == [
        ("2/0", "Commissive", "Happiness"),
        ("10/0", "Question", "No Emotion"),
    ]
    assert texts_of(first) == [[text] for text, _ in clips[:4]]
    part = second.turns[1].parts[0]
    assert part.ref == "dailytalk:data/10/1_1_d10.wav"
    assert locate("dailytalk", root, "data/10/1_1_d10.wav") == Path(part.audio)
    assert len(read_audio(part.audio)) == 4_000


def test_a_dialogue_is_cut_after_sixteen_turns_within_its_group_and_at_a_missing_clip(write_dailytalk):
    root = write_dailytalk({"0": [0, 1] * 9 + [0], "1": [0, 1] * 3})
    (root / "data/1/2_0_d1.wav").unlink()
    items = list(dailytalk.read_episodes(root))
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
    items = list(dailytalk.read_episodes(root))
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
        f"no {stretch.reason[1]}" if isinstance(stretch, Skipped) else "".join(t.parts[0].text for t in stretch.turns)
        for stretch in cut_dialogue(utterances, "dialogue")
    ]
    assert found == expected
