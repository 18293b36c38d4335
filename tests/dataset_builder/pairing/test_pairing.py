"""Pairs of the paper and of the families: how they are planned, and what is on both sides."""

from dataclasses import replace

import numpy as np
import pytest
import soundfile

from sdiareward.audio_sdiareward import AudioError, read_audio
from sdiareward.common.settings import make_settings
from sdiareward.dataset_builder.episodes import RECORDING, Episode, Part, ScriptPair, Turn
from sdiareward.dataset_builder.pairing import pairing
from sdiareward.dataset_builder.pairing.pairing import FamilySpec, PairPlan, SynthesizerSpec, make_row, plan_pairs
from sdiareward.dataset_builder.pairing.splits import split_unit
from sdiareward.dataset_builder.synthesis import ReferenceClip
from sdiareward.pairs.schema import validate_row
from sdiareward.perturbations.channel import ChannelSettings


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
WRITTEN = make_episode("s/written", "Could you tell me the time?", "It is noon.", group="s")
UTTERED = make_episode("s/spoken", "Um, what time is it?", "Noon, I think.", group="s")
SCRIPT = ScriptPair(*(replace(side, subset="colloquialness") for side in (WRITTEN, UTTERED)))
SPOKEN = SynthesizerSpec(seen=("flite", "espeak-ng"), left_out=("hibari",), per_dialogue=1)


@pytest.fixture
def recorded(make_tone, tmp_path):
    """Return the episodes with a recording of 12 tones of half a second."""
    wav = str(tmp_path / "recorded.wav")
    soundfile.write(wav, np.concatenate([make_tone(0.5, 150 + 20 * turn) for turn in range(12)]), 16_000)
    given = ((episode, {"audio": wav, "start_s": 2.0 * n}) for n, episode in enumerate(EPISODES))
    return [make_episode(e.name, *texts(e.turns), group=e.group, **where) for e, where in given]


def make_plan(episode, synthesizer="espeak-ng", channel=None):
    return PairPlan("modality", episode, episode, synthesizer, "train", channel)


def decode(turn):
    return read_audio(turn["audio"])


def texts(side):
    return [turn["text"] if isinstance(turn, dict) else turn.text for turn in side]


def test_a_modality_pair_sets_the_recording_against_the_same_words_in_its_coding(recorded, make_tone):
    first, *rest = recorded[0].turns
    two_parts = replace(first, parts=(*first.parts, replace(first.parts[0], text="Who is it?")))
    episode = replace(recorded[0], turns=(two_parts, *rest))
    validate_row(row := make_row(make_plan(episode)))
    assert texts(row["chosen"]) == texts(row["rejected"]) and row["channel"] is None
    assert len(decode(row["chosen"][0])) == 2 * 8000 + round(0.15 * 16_000)
    np.testing.assert_allclose(decode(row["chosen"][0])[:8000], make_tone(0.5, 150), atol=1e-4)
    coded = make_row(make_plan(replace(episode, native_coding=("mp3_11k",))))
    spectrum = [np.abs(np.fft.rfft(decode(each["rejected"][1]))) for each in (row, coded)]
    above = [s[len(s) * 6000 // 8000 :].sum() / s.sum() for s in spectrum]
    assert above[1] < 0.05 * above[0]
    np.testing.assert_array_equal(decode(row["chosen"][1]), decode(coded["chosen"][1]))


def test_a_colloquialness_pair_has_one_voice_on_both_sides_unless_it_is_across_voices():
    spec = SynthesizerSpec(("hibari", "espeak-ng"), per_dialogue=1, across=1)
    assignment = {split_unit(SCRIPT.spoken): "train"}
    same, across = plan_pairs([SCRIPT], assignment, {"colloquialness": spec}, None, 0)
    assert same.synthesizer in spec.seen and sorted(across.synthesizer.split("+")) == sorted(spec.seen)
    for plan, names in ((same, [same.synthesizer] * 2), (across, across.synthesizer.split("+"))):
        validate_row(row := make_row(plan))
        sides = (SCRIPT.spoken, SCRIPT.written)
        assert [texts(row[side]) for side in ("chosen", "rejected")] == [texts(side.turns) for side in sides]
        uris = [{ref["uri"] for turn in row[side] for ref in turn["audio_ref"]} for side in ("chosen", "rejected")]
        assert uris == [{f"synthetic:{name}"} for name in names]


def test_the_pair_id_depends_on_what_the_pair_is_made_from_and_nothing_else(recorded):
    plan = make_plan(recorded[0])
    assert plan.pair_id == replace(plan, split="test").pair_id
    changed = [make_plan(recorded[0], "piper"), make_plan(recorded[0], channel=ChannelSettings())]
    changed += [make_plan(recorded[1]), make_plan(recorded[0], "espeak-ng+piper")]
    assert len({each.pair_id for each in (plan, *changed)}) == 5

    # The model of an engine counts, not where it runs.
    def identify(**options):
        return replace(make_plan(recorded[0], "soulx-podcast"), options={"soulx-podcast": options}).pair_id

    here = identify(model_path="/here/SoulX-Podcast-1.7B", timeout_s=5)
    assert here == identify(model_path="/there/SoulX-Podcast-1.7B", base_url="http://localhost:1")
    assert here != identify(model_path="/here/SoulX-Podcast-1.7B", seed=2)


def test_a_turn_of_more_than_a_minute_is_refused_by_name(recorded, make_tone, tmp_path):
    soundfile.write(tmp_path / "long.wav", make_tone(61.0), 16_000)
    long = Turn("user", (Part("Hm.", str(tmp_path / "long.wav")),))
    with pytest.raises(AudioError, match=r"asterisk a, turn 0: lasts 61.00 s"):
        make_row(make_plan(replace(recorded[0], turns=(long, recorded[0].turns[1]))))


def test_both_sides_are_cloned_from_two_recordings_that_the_pool_and_the_dialogue_decide(
    tmp_path, make_tone, monkeypatch
):
    def plan(voices):
        options = {"soulx-podcast": {"model_path": "SoulX", "script_voices": voices}}
        choices = {"colloquialness": SynthesizerSpec(("soulx-podcast",))}
        return plan_pairs([SCRIPT], {split_unit(SCRIPT.spoken): "train"}, choices, None, 0, options)[0]

    words, folder = {f"v{number}": f"These are the words of voice {number}." for number in range(6)}, tmp_path / "a"
    folder.mkdir()
    for number, (name, text) in enumerate(words.items(), start=1):
        soundfile.write(folder / f"{name}.wav", make_tone(1.0) * number / 10, 16_000)
        (folder / f"{name}.txt").write_text(f"{text}\n")
    here, there = plan(str(folder)), folder.rename(tmp_path / "elsewhere")
    entries = [{"audio": str(there / f"{name}.wav"), "text": text} for name, text in words.items()]
    moved = plan(entries)
    assert moved.pair_id == here.pair_id != plan(entries[1:]).pair_id
    drawn, before = (pairing.draw_voices(each.script_voices, each.pair_id) for each in (moved, here))
    assert {r: v.identity for r, v in drawn.items()} == {r: v.identity for r, v in before.items()}
    heard = []

    class Cloner:
        is_deterministic, version = True, "cloner"

        def speak_dialogue(self, lines, references):
            heard.append({role: clip.text for role, clip in references.items()})
            return [np.roll(references[role].array, len(text)) for role, text in lines]

    # The engine does not get the pool: it would be loaded anew for each.
    monkeypatch.setattr(pairing, "load_synthesizer", lambda name, options: Cloner() if len(options) == 1 else None)
    row = make_row(moved)
    assert heard == [{role: voice.text for role, voice in drawn.items()}] * 2
    user = np.roll(read_audio(drawn["user"].audio), len("Um, what time is it?"))
    np.testing.assert_allclose(decode(row["chosen"][0]), user, atol=1e-4)


HELLO = {"audio": "x/a.wav", "text": "Hello."}


@pytest.mark.parametrize("pool", [[HELLO], [HELLO, {**HELLO, "audio": "y/a.wav"}], [{**HELLO, "text": " "}], ["a"]])
def test_a_pool_that_cannot_be_used_is_refused(pool):
    with pytest.raises(ValueError, match="script_voices has"):
        pairing.read_pool({"tts": {"script_voices": pool}}, "tts", "colloquialness")


LIMITS = [3.0, 31.0, 3.0, (20.0, 60), 2.0]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        # The longest usable turn; of equally long turns the first.
        ([6.0, 29.0, 12.0], (1,)),
        ([8.0, 8.0], (0,)),
        # 5 and 30 seconds and 59 words are usable.
        *(([(seconds, 59)], (0,)) for seconds in (5.0, 30.0)),
        *(([turn], None) for turn in (4.999, 30.001, (10.0, 60))),
        # Short turns are joined in order up to 5 s, but a single usable turn is preferred.
        ([2.0, 2.0, 1.0, 4.0], (0, 1, 2)),
        ([3.0, 3.0, 5.5], (2,)),
        # A turn that would bring too many words begins a new clip; one over the limits is in none.
        ([(2.0, 30), (4.0, 30), (1.0, 10)], (1, 2)),
        (LIMITS, None),
        ([*LIMITS, 3.0], (4, 5)),
    ],
)
def test_references_follow_the_rules_for_each_role(turns, expected):
    def clip(role, seconds, text):
        return role, ReferenceClip(np.zeros(round(seconds * 16_000), np.float32), text)

    pairs = [turn if isinstance(turn, tuple) else (turn, 10) for turn in turns]
    clips = [clip("user", seconds, " ".join([f"w{n}"] * count)) for n, (seconds, count) in enumerate(pairs)]
    if expected:
        found = pairing.choose_references([*clips, clip("assistant", 9.0, "hi")])
        words = {role: list(dict.fromkeys(chosen.text.split())) for role, chosen in found.items()}
        assert words == {"user": [f"w{n}" for n in expected], "assistant": ["hi"]}
    for bad in ([] if expected else [clips]) + [[clip("user", 8.0, "hi"), clip("assistant", 1.25, "hi")]]:
        with pytest.raises(pairing.NoReference, match="'assistant'" if bad is not clips else "'user'"):
            pairing.choose_references(bad)


def change(kind, episode=EPISODES[0], pool=EPISODES):
    return pairing.break_dialogue(kind, episode, pairing.Pool(pool), np.random.default_rng(0))


FIRST = texts(EPISODES[0].turns)
OTHER_ANSWERS = texts(EPISODES[1].turns)[1::2]


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
    assert texts(change(kind).turns) in expected


def test_shuffled_words_are_those_of_the_answers_and_a_dialogue_that_would_stay_the_same_gives_no_pair():
    changed = texts(change("shuffled_words").turns)
    assert changed != FIRST and [sorted(text.split()) for text in changed] == [sorted(text.split()) for text in FIRST]
    same = make_episode("x", "is it", "yes", "now", "yes")
    assert all(change(kind, same) is None for kind in ("shuffled_words", "order", "cut_off", "flat"))


def test_two_dialogues_exchange_their_words_and_keep_their_recordings(recorded):
    changed, other = (change("transcript", episode, recorded) for episode in recorded[:2])
    assert (texts(changed.turns), texts(other.turns)) == (texts(recorded[1].turns), texts(recorded[0].turns))
    assert [turn.parts[0].start_s for turn in changed.turns] == [turn.parts[0].start_s for turn in recorded[0].turns]
    # The third is of the first one's group, and the second one is taken; words that are spoken are the transcript.
    assert change("transcript", recorded[2], recorded) is change("transcript") is None


def plan(items, families, splits="train"):
    episodes = [item.spoken if isinstance(item, ScriptPair) else item for item in items]
    assignment = {split_unit(e): splits if isinstance(splits, str) else splits[e.name] for e in episodes}
    specs = {name: FamilySpec(**spec) for name, spec in families.items()}
    return pairing.plan_family_pairs(items, assignment, specs, SPOKEN, None, 0)


def test_each_dialogue_gives_pairs_of_other_kinds_from_its_split_and_a_caricature_is_no_dialogue_of_its_own():
    plans, again = (plan(EPISODES, {"context": {"per_dialogue": 2}, "fluency": {}}) for _ in range(2))
    kinds = [(p.chosen.name, p.family, p.chosen.secondary) for p in plans]
    assert len(kinds) == len(set(kinds)) == len({p.pair_id for p in plans}) == 3 * 3
    assert {p.synthesizer for p in plans} <= {"flite", "espeak-ng"} and again == plans
    assert plan(EPISODES, {"context": {"kinds": ("last_answer",)}}, {"a": "train", "b": "test", "c": "train"}) == []
    copy = ScriptPair(*(replace(EPISODES[n], name=f"x{n}", secondary="caricature") for n in (1, 0)))
    plans = plan([ScriptPair(EPISODES[1], EPISODES[0]), copy], {"fluency": {"kinds": ("cut_off",)}}, "test")
    assert sorted(p.synthesizer for p in plans) == ["espeak-ng", "flite", "hibari"]


def test_both_sides_are_recordings_or_go_through_the_vocoder(recorded):
    found, _ = plan(recorded[:2], {"context": {"kinds": ("last_answer",)}})
    validate_row(row := make_row(found))
    names = [row[name] for name in ("criterion", "subset", "primary", "secondary", "synthesizer")]
    assert names == ["joint", "all", "context", "last_answer", RECORDING]
    np.testing.assert_array_equal(decode(row["chosen"][0]), decode(row["rejected"][0]))
    assert texts(row["chosen"])[:3] == texts(row["rejected"])[:3]
    (found,) = plan(recorded[:1], {"prosody": {"kinds": ("flat",)}})
    engines = [found.find_engine(side) for side in ("chosen", "rejected")]
    assert engines == [("world", {"contour": "kept"}), ("world", {"contour": "flat"})]
    validate_row(row := make_row(found))
    assert texts(row["chosen"]) == texts(row["rejected"])
    assert row["chosen"][0]["audio"]["bytes"] != row["rejected"][0]["audio"]["bytes"]


@pytest.mark.parametrize(
    ("family", "spec", "named"),
    [("contxt", {}, "contxt"), ("context", {"kinds": ("flat",)}, "'flat'"), ("context", {"per_dialogue": 0}, "is 0")],
)
def test_an_unknown_family_or_kind_is_refused(family, spec, named):
    with pytest.raises(ValueError, match=named):
        pairing.validate_families({family: make_settings(FamilySpec, spec, family)})
