"""Pairs about the conversation: one voice, one channel, and one side that makes no sense."""

from dataclasses import replace

import numpy as np
import pytest
import soundfile

from sdiareward.audio_sdiareward import read_audio
from sdiareward.dataset_builder.episodes import RECORDING, Episode, Part, ScriptPair, Turn
from sdiareward.dataset_builder.pairing.families import (
    FamilySpec,
    Pool,
    break_dialogue,
    plan_family_pairs,
    validate_families,
)
from sdiareward.dataset_builder.pairing.pairing import SynthesizerSpec, make_row, plan_pairs
from sdiareward.dataset_builder.pairing.splits import split_unit
from sdiareward.pairs.schema import validate_row


SPOKEN = SynthesizerSpec(seen=("flite", "espeak-ng"), left_out=("hibari",), per_dialogue=1)


def make_episode(name, *lines, group=None, audio=None, start_s=0.0):
    spans = [(start_s + 0.5 * i, start_s + 0.5 * i + 0.5) for i in range(len(lines))]
    parts = [Part(line, audio, *span) for line, span in zip(lines, spans, strict=True)]
    turns = tuple(Turn(("user", "assistant")[i % 2], (part,)) for i, part in enumerate(parts))
    return Episode(name, "asterisk", "scripted", group or name, turns, "Inform", "Unknown", "en", "CC0-1.0")


EPISODES = [
    make_episode("a", "how are you", "fine thank you", "what is it", "a very old lamp"),
    make_episode("b", "who goes there", "only a friend", "come in then", "thanks I will do"),
    make_episode("c", "is it far", "ten miles or so", "is there a bus", "not on a Sunday", group="a"),
]


@pytest.fixture
def recorded(make_tone, tmp_path):
    wav = str(tmp_path / "recorded.wav")
    soundfile.write(wav, np.concatenate([make_tone(0.5, 150 + 20 * turn) for turn in range(12)]), 16_000)
    return [
        make_episode(e.name, *(t.text for t in e.turns), group=e.group, audio=wav, start_s=2.0 * number)
        for number, e in enumerate(EPISODES)
    ]


def change(kind, episode=EPISODES[0], pool=EPISODES):
    return break_dialogue(kind, episode, Pool(pool), np.random.default_rng(0))


def texts(episode):
    return [turn.text for turn in episode.turns]


FIRST = texts(EPISODES[0])
OTHER_ANSWERS = texts(EPISODES[1])[1::2]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # From another group.
        ("last_answer", [[*FIRST[:3], "thanks I will do"]]),
        # Four words, as the answer that it replaces, and of the same group.
        ("near_answer", [[*FIRST[:3], "ten miles or so"], [*FIRST[:3], "not on a Sunday"]]),
        ("all_answers", [[FIRST[0], a, FIRST[2], b] for a, b in (OTHER_ANSWERS, OTHER_ANSWERS[::-1])]),
        ("order", [[FIRST[0], FIRST[3], FIRST[2], FIRST[1]]]),
        ("repetition", [[*FIRST, *FIRST[2:]]]),
        # A third to two thirds of the words.
        ("cut_off", [[*FIRST[:3], "a"], [*FIRST[:3], "a very"]]),
    ],
)
def test_a_broken_dialogue_has_the_turns_of_its_kind(kind, expected):
    assert texts(change(kind)) in expected


def test_shuffled_words_are_the_words_of_the_answers_and_a_dialogue_that_would_stay_the_same_gives_no_pair():
    changed = texts(change("shuffled_words"))
    assert changed != FIRST and [sorted(text.split()) for text in changed] == [sorted(text.split()) for text in FIRST]
    same = make_episode("x", "is it", "yes", "now", "yes")
    assert all(change(kind, same) is None for kind in ("shuffled_words", "order", "cut_off", "flat"))


def test_two_dialogues_exchange_their_words_and_keep_their_recordings(recorded):
    changed, other = (change("transcript", episode, recorded) for episode in recorded[:2])
    assert texts(changed) == texts(recorded[1])
    assert texts(other) == texts(recorded[0])
    assert [turn.parts[0].audio for turn in changed.turns] == [turn.parts[0].audio for turn in recorded[0].turns]
    # The third is of the first one's group, and the second one is taken.
    assert change("transcript", recorded[2], recorded) is None
    # Words that a synthesizer speaks are the transcript.
    assert change("transcript") is None


def plan(items, families, synthesizers=SPOKEN, split="train", options=None):
    episodes = [item.spoken if isinstance(item, ScriptPair) else item for item in items]
    assignment = {split_unit(episode): split for episode in episodes}
    specs = {name: FamilySpec(**spec) for name, spec in families.items()}
    return list(plan_family_pairs(items, assignment, specs, synthesizers, None, 0, options))


def test_each_dialogue_gives_as_many_pairs_of_other_kinds_as_are_asked_for():
    plans, again = (plan(EPISODES, {"context": {"per_dialogue": 2}, "fluency": {}}) for _ in range(2))
    kinds = [(p.chosen.name, p.family, p.chosen.secondary) for p in plans]
    assert len(kinds) == len(set(kinds)) == 3 * 3
    assert {p.synthesizer for p in plans} <= {"flite", "espeak-ng"}
    assert len({p.pair_id for p in plans}) == len(plans)
    assert [p.pair_id for p in again] == [p.pair_id for p in plans]


def test_what_replaces_a_turn_is_of_the_same_split():
    assignment = {split_unit(e): ("test" if e.name == "b" else "train") for e in EPISODES}
    specs = {"context": FamilySpec(kinds=("last_answer",))}
    assert list(plan_family_pairs(EPISODES, assignment, specs, SPOKEN, None, 0)) == []


def test_scripts_in_the_test_split_are_spoken_by_every_synthesizer_and_caricatures_are_no_dialogue_of_their_own():
    spoken, written = EPISODES[0], EPISODES[1]
    copy = ScriptPair(replace(written, secondary="caricature"), replace(spoken, name="a-c", secondary="caricature"))
    plans = plan([ScriptPair(written, spoken), copy], {"fluency": {"kinds": ("cut_off",)}}, split="test")
    assert sorted(p.synthesizer for p in plans) == ["espeak-ng", "flite", "hibari"]


def test_both_sides_are_recordings_or_go_through_the_vocoder(recorded):
    (found,) = plan(recorded[:2], {"context": {"kinds": ("last_answer",)}})[:1]
    validate_row(row := make_row(found))
    names = [row[name] for name in ("criterion", "subset", "primary", "secondary", "synthesizer")]
    assert names == ["joint", "all", "context", "last_answer", RECORDING]
    np.testing.assert_array_equal(read_audio(row["chosen"][0]["audio"]), read_audio(row["rejected"][0]["audio"]))
    assert [turn["text"] for turn in row["chosen"]][:3] == [turn["text"] for turn in row["rejected"]][:3]
    (found,) = plan(recorded[:1], {"prosody": {"kinds": ("flat",)}})
    engines = [found.find_engine(side) for side in ("chosen", "rejected")]
    assert engines == [("world", {"contour": "kept"}), ("world", {"contour": "flat"})]
    validate_row(row := make_row(found))
    assert [turn["text"] for turn in row["chosen"]] == [turn["text"] for turn in row["rejected"]]
    assert row["chosen"][0]["audio"]["bytes"] != row["rejected"][0]["audio"]["bytes"]


def test_an_unknown_family_or_kind_is_refused():
    for families, named in (({"grammar": {}}, "grammar"), ({"context": {"kinds": ("flat",)}}, "context.*'flat'")):
        with pytest.raises(ValueError, match=named):
            validate_families({name: FamilySpec(**spec) for name, spec in families.items()})
    with pytest.raises(ValueError, match="per_dialogue is 0"):
        FamilySpec(per_dialogue=0)


def test_pairs_across_voices_have_a_synthesizer_of_their_own_on_either_side():
    pair = ScriptPair(written=EPISODES[1], spoken=EPISODES[0])
    choices = {"colloquialness": SynthesizerSpec(seen=("hibari", "espeak-ng"), per_dialogue=1, across=1)}
    same, across = plan_pairs([pair], {split_unit(pair.spoken): "train"}, choices, None, 0)
    assert same.voices in ("hibari", "espeak-ng") and across.voices in ("hibari+espeak-ng", "espeak-ng+hibari")
    row = make_row(across)
    uris = [{ref["uri"] for turn in row[side] for ref in turn["audio_ref"]} for side in ("chosen", "rejected")]
    assert uris == [{f"synthetic:{name}"} for name in across.voices.split("+")]
