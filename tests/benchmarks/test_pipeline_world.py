import subprocess
import sys

import numpy as np
import pytest
from support.paths import ROOT


sys.path.insert(0, str(ROOT))

from benchmarks import dialogue_metrics as metrics  # noqa: E402
from benchmarks import pipeline_world  # noqa: E402
from benchmarks import speech_mixing as mixing  # noqa: E402
from benchmarks import speech_world as world  # noqa: E402
from benchmarks.dialogue_metrics import Span  # noqa: E402


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small_world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    recordings, about = world.make_world(ROOT / "sample", folder, num_pairs=1, minutes=3.0, seed=3)
    return folder, {recording.condition: recording for recording in recordings}, about


def _speech(recording, speaker=None):
    return [span for turn in recording.turns if speaker in (None, turn.speaker) for span in turn.speech_s]


def test_the_world_has_every_condition_and_says_where_it_is_from(small_world):
    _, recordings, about = small_world
    assert set(recordings) == {"clean", "noisy", "overlap", "third_below", "third_above"}
    assert about["source"] == "sample"
    assert about["audio_s"] == pytest.approx(sum(recording.duration_s for recording in recordings.values()))


def test_true_speech_lies_inside_its_turn_and_the_recording(small_world):
    _, recordings, _ = small_world
    for recording in recordings.values():
        for turn in recording.turns:
            assert turn.start_s == turn.speech_s[0][0] and turn.end_s == turn.speech_s[-1][1]
            edges = [edge for span in turn.speech_s for edge in span]
            assert edges == sorted(edges)
            assert 0 < turn.start_s < turn.end_s < recording.duration_s


def test_the_files_hold_what_the_truth_says(small_world):
    import soundfile

    folder, recordings, _ = small_world
    recording = recordings["overlap"]
    info = soundfile.info(folder / f"{recording.name}.wav")
    assert (info.samplerate, info.channels, info.subtype) == (16_000, 1, "PCM_16")
    assert info.frames / 16_000 == recording.duration_s
    rows = [line.split() for line in (folder / f"{recording.name}.rttm").read_text().splitlines()]
    assert len(rows) == len(_speech(recording))
    assert sum(float(row[4]) for row in rows) == pytest.approx(sum(end - start for start, end in _speech(recording)))
    assert {row[7] for row in rows} == {turn.speaker for turn in recording.turns}


def test_speech_is_much_louder_than_what_lies_between(small_world):
    import soundfile

    folder, recordings, _ = small_world
    recording = recordings["clean"]
    audio, _ = soundfile.read(folder / f"{recording.name}.wav")
    is_speech = np.zeros(len(audio), bool)
    for start_s, end_s in _speech(recording):
        is_speech[round((start_s - 0.05) * 16_000) : round((end_s + 0.05) * 16_000)] = True
    ratio_db = 10 * np.log10(np.square(audio[is_speech]).mean() / np.square(audio[~is_speech]).mean())
    assert 35 < ratio_db < 45


def test_noise_is_added_at_the_ratio_asked_for(small_world):
    import soundfile

    folder, recordings, _ = small_world
    recording = recordings["noisy"]
    audio, _ = soundfile.read(folder / f"{recording.name}.wav")
    # Before the first turn there is nothing but noise.
    noise = np.square(audio[: round(0.9 * 16_000)]).mean()
    speech = np.mean(
        np.concatenate([audio[round(s * 16_000) : round(e * 16_000)] for s, e in _speech(recording)]) ** 2
    )
    assert 10 * np.log10(speech / noise - 1) == pytest.approx(12.0, abs=1.5)


def test_words_are_those_of_the_transcript(small_world):
    _, recordings, about = small_world
    (pair,) = about["conversations"]
    turns = world.read_conversations(ROOT / "sample")[0][pair["name"]]
    expected = [turn.text for turn in turns]
    for name in ("clean", "noisy", "overlap"):
        found = [turn.text for turn in recordings[name].turns]
        assert found == expected[: len(found)]
    two = [turn.text for turn in recordings["third_above"].turns if turn.speaker in (world.HERO, pair["name"])]
    assert two == expected[: len(two)]


def test_conditions_share_conversation_and_pauses(small_world):
    _, recordings, _ = small_world
    assert recordings["clean"].turns == recordings["noisy"].turns


def test_overlaps_are_as_long_as_drawn(small_world):
    _, recordings, _ = small_world
    turns = recordings["overlap"].turns
    assert any(recordings["overlap"].drawn_overlaps)
    for before, after, ratio in zip(turns, turns[1:], recordings["overlap"].drawn_overlaps, strict=False):
        shorter_s = min(before.end_s - before.start_s, after.end_s - after.start_s)
        assert max(0.0, before.end_s - after.start_s) / shorter_s == pytest.approx(ratio, abs=1e-6)
    assert not any(recordings["clean"].drawn_overlaps)


def test_overlaps_lie_clearly_below_or_above_the_ratio_that_splits_and_pauses_are_mostly_short():
    silent = np.zeros(160, np.float32)
    utterances = [mixing.Utterance("ab"[index % 2], "", silent, ((0, 300 + index),)) for index in range(400)]
    starts, ratios = mixing.lay_out(utterances, 0.5, np.random.default_rng(0))
    ends = [start + utterance.num_frames for start, utterance in zip(starts, utterances, strict=True)]
    below, above = (sum(low < ratio < high for ratio in ratios) for low, high in ((0.015, 0.085), (0.145, 0.405)))
    assert below + above == sum(ratio > 0 for ratio in ratios)
    assert 170 < below + above < 230 and 80 < below < 120
    pauses_s = [(after - before) / 100 for before, after in zip(ends, starts[1:], strict=False) if after > before]
    long = [pause_s for pause_s in pauses_s if pause_s > 1.5]
    assert min(pauses_s) >= 0.2 and min(long) >= 3 and max(long) <= 12 and 5 < len(long) < 30
    # No three turns at once.
    assert all(start >= end for start, end in zip(starts[2:], ends, strict=False))


def test_the_third_speaker_has_the_share_asked_for(small_world):
    _, recordings, about = small_world
    third = about["conversations"][0]["third_speaker"]
    for name, share in (("clean", 0.0), ("third_below", 0.05), ("third_above", 0.2)):
        own, everyone = (
            sum(end - start for start, end in _speech(recordings[name], speaker)) for speaker in (third, None)
        )
        assert recordings[name].third_share == pytest.approx(own / everyone)
        assert own / everyone == pytest.approx(share, abs=0.03)


def test_the_same_seed_gives_the_same_files_and_another_seed_others(small_world, tmp_path):
    folder, recordings, _ = small_world
    name = f"{recordings['noisy'].name}.wav"
    world.make_world(ROOT / "sample", tmp_path, num_pairs=1, minutes=3.0, seed=3)
    assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    others, _ = world.make_world(ROOT / "sample", tmp_path / "other", num_pairs=1, minutes=3.0, seed=4)
    assert others[0].turns != recordings["clean"].turns


def test_no_character_is_in_both_halves():
    conversations, _ = world.read_conversations(ROOT / "sample")
    chosen = {
        half: {
            name.rstrip("0123456789") for pair in world.choose_pairs(conversations, 2, 20.0, 0, half) for name in pair
        }
        for half in ("development", "report")
    }
    assert not chosen["development"] & chosen["report"]


def test_too_few_conversations_are_an_error_that_says_what_to_do():
    with pytest.raises(ValueError, match="lower --minutes"):
        world.choose_pairs({}, 1, 20.0, 0, "report")


def test_speech_is_parted_only_at_pauses_of_half_a_second():
    tone = np.sin(np.arange(1600)).astype(np.float32)
    silence = np.zeros(160, np.float32)
    clip = np.concatenate([silence, tone, np.tile(silence, 40), tone, np.tile(silence, 60), tone, silence])
    assert mixing.find_speech(clip) == [(1, 61), (121, 131)]
    assert mixing.find_speech(np.zeros(1600, np.float32)) == []


REFERENCE = [Span("a", 0.0, 4.0), Span("b", 5.0, 9.0)]


def _der(hypothesis, scoring="collar_0", reference=REFERENCE, duration_s=10.0):
    counts = metrics.diarization_errors(reference, hypothesis, duration_s)
    errors = sum(counts[f"{scoring}/{kind}"] for kind in ("missed_s", "false_alarm_s", "confusion_s"))
    return errors / counts[f"{scoring}/total_s"]


def test_a_perfect_diarization_has_no_error_whatever_the_speakers_are_called():
    swapped = [Span("b", 0.0, 4.0), Span("a", 5.0, 9.0)]
    for scoring in metrics.DIARIZATION_SCORINGS:
        assert _der(REFERENCE, scoring) == 0
        assert _der(swapped, scoring) == 0


def test_missed_speech_false_alarms_and_confusion_are_errors_of_their_length():
    assert _der([Span("a", 0.0, 4.0), Span("b", 5.0, 7.0)]) == pytest.approx(2 / 8)
    assert _der([*REFERENCE, Span("a", 9.0, 10.0)]) == pytest.approx(1 / 8)
    assert _der([Span("a", 0.0, 4.0), Span("b", 5.0, 8.0), Span("a", 8.0, 9.0)]) == pytest.approx(1 / 8)


def test_the_collar_forgives_a_quarter_of_a_second_on_each_side():
    shifted = [Span("a", 0.0, 4.25), Span("b", 4.8, 9.0)]
    assert _der(shifted, "collar_0.25") == pytest.approx(0.0, abs=1e-9)
    assert _der(shifted) == pytest.approx(0.45 / 8)
    assert _der([Span("a", 0.0, 4.5), Span("b", 5.0, 9.0)], "collar_0.25") == pytest.approx(0.25 / 7)


def test_skipping_overlap_leaves_out_what_one_speaker_hides():
    reference = [Span("a", 0.0, 5.0), Span("b", 4.0, 9.0)]
    hypothesis = [Span("a", 0.0, 4.5), Span("b", 4.5, 9.0)]
    assert _der(hypothesis, "collar_0", reference) == pytest.approx(1 / 10)
    assert _der(hypothesis, "collar_0_skip_overlap", reference) == 0


def test_boundaries_match_one_to_one_within_half_a_second():
    assert metrics.count_matches([1.0, 2.0], [1.5, 2.6]) == 1
    assert metrics.count_matches([1.0, 1.2], [1.1]) == 1
    assert metrics.count_matches([1.0, 1.4], [1.5, 0.6]) == 2
    found = [Span("x", 0.0, 4.3), Span("y", 5.6, 9.0), Span("x", 9.2, 9.4)]
    counts = metrics.boundary_counts(REFERENCE, found)
    # Both ends and the first start are near; the second start is 0.6 s off, and the third turn has no counterpart.
    assert counts == {"boundaries_true": 4, "boundaries_found": 6, "boundaries_matched": 3}


def test_words_are_compared_without_case_punctuation_and_dashes_but_with_fillers():
    assert metrics.normalize("Um... Well-known, DON'T\u2014go!") == "um well known dont go"
    assert metrics.word_errors("Um, I don't know.", "i dont know") == {
        "words": 4,
        "substitutions": 0,
        "deletions": 1,
        "insertions": 0,
    }
    assert metrics.word_errors("", "two words")["insertions"] == 2
    assert metrics.word_errors("two words", "")["deletions"] == 2


def test_a_turn_is_compared_with_the_one_it_shares_most_time_with():
    true = [Span("a", 0.0, 4.0, "one two"), Span("b", 5.0, 9.0, "three four")]
    found = [Span("x", 0.1, 4.1, "one too"), Span("y", 5.0, 6.5, "three"), Span("x", 12.0, 13.0, "noise")]
    everything, aligned = metrics.turn_word_errors(true, found)
    assert everything == {"words": 4, "substitutions": 1, "deletions": 1, "insertions": 1}
    assert aligned == {"words": 2, "substitutions": 1, "deletions": 0, "insertions": 0}


def _episode(*edges_s, roles=("user", "assistant")):
    return [Span(roles[index % 2], start_s, end_s) for index, (start_s, end_s) in enumerate(edges_s)]


def test_an_episode_is_recovered_when_every_turn_is_within_half_a_second():
    true = [_episode((0, 2), (3, 5)), _episode((6, 8), (9, 11))]
    near = [_episode((0.4, 2), (3, 5.5)), _episode((6, 8), (9, 11.6))]
    counts = metrics.episode_counts(true, near)
    assert (counts["episodes_matched"], counts["turns_matched"], counts["exchanges_matched"]) == (1, 3, 1)
    assert counts["episodes_matched_softly"] == 2
    assert metrics.episode_counts(true, true)["episodes_matched"] == 2
    assert metrics.episode_counts(true, [])["episodes_matched"] == 0


def test_two_episodes_run_together_recover_turns_and_exchanges_but_no_episode():
    true = [_episode((0, 2), (3, 5)), _episode((6, 8), (9, 11))]
    counts = metrics.episode_counts(true, [_episode((0, 2), (3, 5), (6, 8), (9, 11))])
    assert (counts["episodes_matched"], counts["episodes_matched_softly"]) == (0, 0)
    assert (counts["turns_matched"], counts["exchanges_matched"], counts["exchanges_found"]) == (4, 2, 3)


def test_agreement_is_time_in_common_over_time_in_either_with_roles_exchanged_if_need_be():
    assert metrics.agreement(_episode((0, 2), (3, 5)), _episode((0, 2), (3, 5))) == 1
    assert metrics.agreement(_episode((0, 2), (3, 5)), _episode((0, 2), (3, 5), roles=("assistant", "user"))) == 1
    assert metrics.agreement(_episode((0, 2), (3, 5)), _episode((0, 2), (3, 4))) == pytest.approx(3 / 4)


def test_a_role_that_two_people_share_is_impure():
    speech = [Span("a", 0, 2), Span("b", 3, 5), Span("a", 6, 8), Span("b", 8, 10)]
    found = [_episode((0, 2), (3, 5), (6, 10))]
    # The user's turns hold 4 s of a and 2 s of b.
    assert metrics.purity_counts(speech, found) == {"in_turns_s": 8, "of_role_s": 6}


def test_rates_are_computed_from_sums_and_missing_where_nothing_was_found():
    sums = {
        **metrics.boundary_counts(REFERENCE, []),
        **metrics.episode_counts([REFERENCE], []),
        **metrics.purity_counts(REFERENCE, []),
        **{f"turn/{key}": value for key, value in metrics.word_errors("one two", "one").items()},
    }
    rates = metrics.rates(sums)
    assert rates["boundary_recall"] == 0 and rates["boundary_precision"] is None
    assert rates["word_error_rate/turn"] == 0.5 and rates["word_error_rate/recording"] is None
    assert rates["role_purity"] is None


def _recording(*turns, third=None, share=0.0, condition="clean"):
    """Return a recording of `(speaker, start_s, end_s)`, each turn one stretch of speech that says its number."""
    true = tuple(
        world.TrueTurn(who, start_s, end_s, f"turn {index}", ((start_s, end_s),))
        for index, (who, start_s, end_s) in enumerate(turns)
    )
    return world.TrueRecording(f"r-{condition}", condition, turns[-1][2] + 1, true, (), third, share)


def _starts(recording):
    return [[turn.start_s for turn in episode] for episode in world.true_episodes(recording)]


def _alternate(*edges_s):
    return [("ab"[index % 2], start_s, end_s) for index, (start_s, end_s) in enumerate(edges_s)]


def test_an_odd_turn_at_the_end_is_in_no_episode():
    assert _starts(_recording(*_alternate((0, 2), (3, 5), (6, 8)))) == [[0, 3]]


def test_a_large_overlap_parts_two_episodes_and_a_small_one_does_not():
    assert _starts(_recording(*_alternate((0, 10), (9.5, 20), (21, 30), (31, 40)))) == [[0, 9.5, 21, 31]]
    # A tenth of the shorter turn is enough; the first turn is alone and lost.
    assert _starts(_recording(*_alternate((0, 10), (9, 20), (21, 30), (31, 40)))) == [[9, 21]]


def test_an_episode_ends_at_90_s_and_its_odd_turn_begins_the_next():
    turns = _alternate((0, 30), (31, 60), (61, 89), (91, 110), (111, 112))
    assert _starts(_recording(*turns)) == [[0, 31], [61, 91]]


def test_an_episode_has_at_most_16_turns():
    turns = _alternate(*((2 * index, 2 * index + 1) for index in range(20)))
    assert [len(starts) for starts in _starts(_recording(*turns))] == [16, 4]


@pytest.mark.parametrize("share", [0.02, 0.11])
def test_a_third_speaker_parts_episodes_and_leaves_the_others(share):
    turns = [("a", 0, 10), ("b", 11, 20), ("c", 21, 22), ("a", 23, 30), ("b", 31, 40)]
    assert _starts(_recording(*turns, third="c", share=share)) == [[0, 11], [23, 31]]


def test_the_pipeline_groups_the_true_turns_into_the_true_episodes(small_world):
    from sdiareward.dataset_builder.pipeline.settings import TurnSettings
    from sdiareward.dataset_builder.pipeline.turns import Segment, drop_crowded_turns, group_episodes, merge_turns

    _, recordings, _ = small_world
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(30):
        lengths, gaps = rng.uniform(1, 20, 40), rng.uniform(-1, 3, 40)
        ends = np.cumsum(lengths + np.maximum(gaps, -0.4 * lengths))
        drawn.append(_recording(*_alternate(*zip((ends - lengths).round(2), ends.round(2), strict=True))))
    for recording in [*recordings.values(), *drawn]:
        segments = [Segment(turn.start_s, turn.end_s, turn.speaker) for turn in recording.turns]
        pair = tuple(sorted({turn.speaker for turn in recording.dialogue}))
        merged, _ = merge_turns(segments, pair, TurnSettings())
        turns, _ = drop_crowded_turns(merged, segments, pair, TurnSettings())
        episodes, _ = group_episodes(turns, TurnSettings())
        assert [[turn.start_s for turn in episode] for episode in episodes] == _starts(recording)


def _found(recording, shift_s=0.0):
    spans = [Span(f"x{turn.speaker}", turn.start_s + shift_s, turn.end_s + shift_s) for turn in recording.turns]
    roles = ("user", "assistant")
    episodes = [
        [Span(roles[i % 2], turn.start_s + shift_s, turn.end_s + shift_s, turn.text) for i, turn in enumerate(episode)]
        for episode in world.true_episodes(recording)
    ]
    return pipeline_world.Found(spans, spans, episodes)


def test_a_perfect_result_scores_perfectly_and_a_shifted_one_does_not():
    recording = _recording(*_alternate((0, 4), (5, 9), (10, 14), (15, 19)))
    rates = pipeline_world.summarise([recording], {recording.name: _found(recording)})["overall"]["rates"]
    assert all(rates[name] == 0 for name in rates if "error_rate" in name)
    assert all(rates[name] == 1 for name in rates if "error_rate" not in name)
    shifted = pipeline_world.summarise([recording], {recording.name: _found(recording, 0.6)})["overall"]["rates"]
    assert shifted["boundary_f1"] == 0 and shifted["episodes_recovered"] == 0
    # Of each turn of 4 s, 0.6 s are missed and 0.6 s false.
    assert shifted["diarization_error_rate/collar_0"] == pytest.approx(0.3)
    assert shifted["word_error_rate/turn"] == 0 and shifted["word_error_rate/aligned_turn"] is None


def test_dropped_recordings_are_counted_by_condition():
    turns = [("a", 0, 10), ("b", 11, 20), ("c", 21, 25)]
    kept, dropped = (
        _recording(*turns, third="c", share=share, condition=name) for share, name in ((0.05, "below"), (0.2, "above"))
    )
    found = {kept.name: _found(kept), dropped.name: pipeline_world.Found(is_dropped=True)}
    summary = pipeline_world.summarise([kept, dropped], found)
    assert summary["by_condition"]["below"]["counts"]["dropped"] == 0
    assert summary["by_condition"]["above"]["counts"]["dropped"] == 1
    assert summary["by_condition"]["above"]["rates"]["episodes_recovered"] == 0
    assert summary["overall"]["counts"]["dropped"] == 1


def test_help_is_instant_and_imports_no_model():
    code = (
        "import sys, benchmarks.pipeline_world; print(sorted({'torch', 'ray', 'jiwer', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
