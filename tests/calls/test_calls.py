"""Calls as they are recorded: their turns, windows and timing, and every form in which they come."""

import io
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from support.calls_world import NUM_CALLS, add_noise, compare_turns, leak, make_call
from support.paths import ROOT
from support.refusals import check_refused

from sdiareward.audio_sdiareward import read_audio
from sdiareward.calls import speech
from sdiareward.calls.reading import CallSettings, find_calls, read_call
from sdiareward.calls.recordings import CallError, list_calls
from sdiareward.calls.turns import CallRules, Segment, form_turns, make_windows, measure_timing
from sdiareward.cli import main
from sdiareward.common.package import NANO
from sdiareward.evaluation.report.calls import list_notices
from sdiareward.pairs.dialogue_folders import read_dialogue_folder
from sdiareward.pairs.systems import read_systems
from sdiareward.scoring.scorer import Scorer


RATE = 16_000
GAP_S = 0.8


@pytest.fixture(scope="module")
def human():
    """Return the two turns of the human example."""
    return [read_audio(ROOT / "examples" / f"human-{turn}.flac") for turn in range(2)]


@pytest.fixture(scope="module")
def call(human):
    """Return the channels `(num_samples, 2)` of a call of that example, and its turns in seconds."""
    user, assistant = human
    start, between = RATE, round(GAP_S * RATE)
    samples = np.zeros((start + user.size + between + assistant.size + RATE, 2), np.float32)
    samples[start : start + user.size, 0] = user
    answer = start + user.size + between
    samples[answer : answer + assistant.size, 1] = assistant
    return samples, [(start / RATE, (start + user.size) / RATE), (answer / RATE, (answer + assistant.size) / RATE)]


@pytest.fixture
def write(tmp_path, call):
    def write(name="call.wav", samples=call[0], rate=RATE, **options):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(tmp_path / name, samples, rate, **options)
        return tmp_path / name

    return write


def read(path, **options):
    [files] = find_calls(path, settings := CallSettings(**options))
    return read_call(files, settings)


def as_rttm(turns):
    return "".join(
        f"SPEAKER call 1 {start} {end - start} <NA> <NA> {who} <NA> <NA>\n"
        for who, (start, end) in zip("AB", turns, strict=True)
    )


def as_whisperx(turns):
    names = ("SPEAKER_00", "SPEAKER_01")
    said = [{"start": s, "end": e, "speaker": n, "text": " so"} for n, (s, e) in zip(names, turns, strict=True)]
    return "\ufeff" + json.dumps({"segments": said})


def as_cues(turns, sign=",", head="", mark="[{}]: so"):
    def clock(second):
        return f"00:{second // 60:02.0f}:{second % 60:06.3f}".replace(".", sign)

    cues = [
        f"{number}\r\n{clock(start)} --> {clock(end)}\r\n{mark.format(who)}\r\n"
        for number, (who, (start, end)) in enumerate(zip(("user", "agent"), turns, strict=True))
    ]
    return head + "\r\n".join(cues)


SEGMENTS = {
    "call.rttm": as_rttm,
    "call.json": as_whisperx,
    "call.srt": as_cues,
    "call.vtt": lambda turns: as_cues(turns, ".", "WEBVTT\r\n\r\n", "<v {}>so</v>"),
}


@pytest.mark.parametrize("name", SEGMENTS)
@pytest.mark.parametrize("is_mono", [False, True])
def test_segments_give_the_turns_to_the_sample(name, is_mono, write, call, human, tmp_path):
    samples, turns = call
    path = write(samples=samples.sum(axis=1) if is_mono else samples, subtype="FLOAT")
    (tmp_path / name).write_text(SEGMENTS[name](turns), newline="")
    found = read(path, **({"user": "SPEAKER_00"} if name == "call.json" else {}))
    cut = [turn.audio.read() for turn in found.read_window(0).turns]
    # SRT has milliseconds.
    for clip, given in zip(cut, human, strict=True):
        assert abs(clip.size - given.size) <= 16
        if name in ("call.rttm", "call.json"):
            np.testing.assert_array_equal(clip, given)
    assert found.timing["response_gap_median_s"] == pytest.approx(GAP_S, abs=2e-3)


@pytest.mark.slow
def test_a_call_scores_like_its_clips_in_every_form(write, call, human, tmp_path):
    samples, turns = call
    scorer = Scorer.from_pretrained(str(NANO))
    clips = [
        {"role": role, "text": "", "audio": clip} for role, clip in zip(("user", "assistant"), human, strict=True)
    ]
    stereo, swapped = write(), write("other/call.wav", samples[:, ::-1])
    write("two/x-customer-1.wav", samples[:, 0])
    write("two/x-bot-1.wav", samples[:, 1])
    write("two/merged.wav", samples.mean(axis=1))
    found = [read(stereo), read(tmp_path / "two"), read(swapped, user_channel="right")]
    (tmp_path / "call.rttm").write_text(as_rttm(turns))
    rewards = scorer.score([clips, *(each.read_window(0) for each in (*found, read(stereo)))], "modality")
    assert rewards[1] == rewards[2] == rewards[3]
    assert rewards[4] == pytest.approx(rewards[0], abs=1e-4)
    assert rewards[1] == pytest.approx(rewards[0], abs=0.35)
    assert found[0].timing["response_gap_median_s"] == pytest.approx(GAP_S, abs=0.02)
    assert [len(window) for window in found[0].windows] == [2]
    assert "left = user, right = assistant (assumed" in found[0].notices[0]
    assert found[1].notices[0].endswith("on one clock; ignored: merged.wav")
    assert any("short: 2 turns instead of 6" in notice for notice in found[0].notices)


CODINGS = {
    "all": None,
    "mu-law": {"name": "call.wav", "rate": 8_000, "subtype": "ULAW"},
    "Opus": {"name": "call.ogg", "rate": 48_000, "format": "OGG", "subtype": "OPUS"},
    "MP3": {"name": "call.mp3", "rate": 44_100, "format": "MP3", "subtype": "MPEG_LAYER_III"},
    "leak -30": lambda samples: leak(samples, -30, 0.1),
    "leak -20": lambda samples: leak(samples, -20),
    "noise 20": lambda samples: add_noise(samples, 20),
}
# Starts and ends (95th percentile), gaps (median and 95th percentile), all in ms, and false backchannels.
LIMITS = {"leak -30": (130, 130, 20, 200), "leak -20": (130, 130, 20, 200), "noise 20": (130, 260, 100, 350)}


@pytest.mark.slow
@pytest.mark.parametrize("condition", CODINGS)
def test_turns_are_found_as_they_were_put_in(condition, write):
    import soxr

    change, counts, errors = CODINGS[condition], np.zeros(4, int), ([], [], [])
    for number in range(2 if isinstance(change, dict) else NUM_CALLS):
        made = make_call(number)
        if isinstance(change, dict):
            options = {**change}
            given = soxr.resample(made.samples.T, RATE, options["rate"])
            found = read(write(options.pop("name"), given, **options)).turns
        else:
            found = (made if change is None else made.alter(change)).cut()
        num_found, *of_call = compare_turns(made, found)
        counts += num_found, len(made.turns), len(found.inside), len(made.backchannels)
        for all_calls, of_one in zip(errors, of_call, strict=True):
            all_calls += of_one
    assert counts[0] == counts[1] == (48 if isinstance(change, dict) else 114)
    # Of one of twenty the speech is not found where it is clean.
    assert counts[3] - 2 <= counts[2] <= counts[3] + (condition == "noise 20")
    start, end, gap, late_gap = LIMITS.get(condition, (25, 25, 8, 40))
    starts, ends, gaps = errors
    assert np.percentile(starts, 95) <= start
    assert np.percentile(ends, 95) <= end
    assert np.median(gaps) <= gap
    assert np.percentile(gaps, 95) <= late_gap


NAMES = [
    ("call_user.wav", "call_assistant.wav"),
    ("input.wav", "output.wav"),
    ("A.wav", "B.wav"),
    ("user_20260101.wav", "bot_20260101.wav"),
    ("call7-caller.wav", "call7-agent.wav"),
    ("speaker_1_audio.flac", "speaker_2_audio.flac"),
    ("clean_input.wav", "clean_output.wav"),
    ("human.call.wav", "assistant.call.wav"),
]


@pytest.mark.parametrize("names", NAMES)
def test_two_files_of_one_clock_are_a_call(names, write, call, tmp_path):
    for side, name in enumerate(names):
        write(f"x/{name}", call[0][:, side])
    write("x/combined_audio.wav", call[0].mean(axis=1))
    [files] = list_calls(tmp_path / "x")
    assert [source.name for source in files.sources] == list(names)
    assert files.ignored == ("combined_audio.wav",)
    assert list_calls(tmp_path / "x", "turns") == []
    [inside] = list_calls(tmp_path)
    assert inside.sources == files.sources


@pytest.mark.parametrize(
    "names",
    [
        ("turn-1-user.wav", "turn-2-assistant.wav", "conversation.wav"),
        ("0_user.wav", "1_assistant.wav"),
        ("0.wav", "1.wav"),
        ("user.wav", "assistant.wav"),
    ],
)
def test_turns_stay_turns(names, write, call, tmp_path):
    samples, turns = call
    for name, (start_s, end_s) in zip(names, [*turns, (0, 2)], strict=False):
        # Two turns of one length would be a call.
        stop = round(end_s * RATE) + 800 * len(list(tmp_path.glob("x/*")))
        write(f"x/{name}", samples[round(start_s * RATE) : stop].sum(axis=1))
    assert list_calls(tmp_path / "x") == []
    assert [turn.role for turn in read_dialogue_folder(tmp_path).dialogues["x"].turns] == ["user", "assistant"]


def test_columns_of_turnbench(call, tmp_path, capsys):
    def encode(samples):
        buffer = io.BytesIO()
        soundfile.write(buffer, samples, RATE, format="FLAC")
        return {"bytes": buffer.getvalue(), "path": None}

    sides = {f"speaker_{side + 1}_audio": [encode(call[0][:, side])] * 2 for side in (0, 1)}
    pq.write_table(pa.table({"conversation_id": ["x", "y"], **sides}), path := tmp_path / "turnbench.parquet")
    assert list(read_dialogue_folder(path, settings=CallSettings(user="speaker_1")).dialogues) == ["x#1", "y#1"]
    check_refused(capsys, "speaker_1 and speaker_2; name the user with --user", main, ["score", str(path)])


def of_left(change):
    return lambda samples: np.stack([change(samples[:, 0]), samples[:, 1]], axis=1)


HISS = np.random.default_rng(0).standard_normal(200_000).astype(np.float32) * 1e-3
REFUSED = {
    "has one channel; give two files": lambda samples: samples[:, 0],
    "has 6 channels": lambda samples: np.tile(samples, 3),
    "no speech in the user's channel; set --user_channel": of_left(np.zeros_like),
    "no speech in the user's channel": of_left(lambda user: HISS[: user.size]),
    "both channels have the same audio: this is a mono": lambda samples: np.tile(samples.sum(1, keepdims=True), 2),
    "both channels have the same audio": lambda samples: np.outer(samples.sum(1), [0.7, -1]),
    "the user's channel contains the other channel at -3 dB": lambda samples: leak(samples.T, -3).T,
    "is empty, or has NaN": of_left(lambda user: user * np.nan),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_no_call_is_refused(message, write, call, capsys):
    path = write(samples=REFUSED[message](call[0]), subtype="FLOAT")
    line = check_refused(capsys, message, main, ["score", str(path)])
    assert "call.wav" in line


def test_calls_of_one_name_are_not_mixed_up(write, tmp_path):
    write("call.flac")
    write()
    found = read_dialogue_folder(tmp_path)
    assert list(found.dialogues) == ["call#1"]
    assert "rename one" in found.skipped[str(tmp_path / "call.wav")]


def test_what_a_reader_has_to_know_is_noted(write, call):
    samples, turns = call
    noise = np.zeros_like(samples)
    noise[:, 1] = np.random.default_rng(0).standard_normal(len(samples)) * 3e-4
    assert "are the channels swapped?" in read(write("swapped.wav", samples + noise)).notices[-1]
    leaking = read(write("leaking.wav", leak(samples.T, -15).T)).notices
    assert any("contains the other channel at -15 dB; short overlaps are uncertain" in notice for notice in leaking)
    greeting = np.concatenate([samples[round(turns[1][0] * RATE) - 8_000 :], samples])
    assert any(notice.startswith("1 turns are not scored") for notice in read(write("greeting.wav", greeting)).notices)


def test_overlaps_in_one_channel_and_other_rates_are_noted(write, call, tmp_path):
    samples, ((start, end), (_, last)) = call
    path = write(samples=samples.sum(axis=1))
    said = [(start, end, "user"), (end - 1, last, "bot")]
    (tmp_path / "call.json").write_text(json.dumps([{"start": s, "end": e, "speaker": n} for s, e, n in said]))
    mono = read(path)
    assert any(notice.startswith("1 turns contain words of the other side") for notice in mono.notices)
    other = read(write("other/x.wav", np.repeat(samples, 2, axis=0), 2 * RATE))
    lines = list_notices({"a": {"x": mono}, "b": {"x": other}})
    assert lines[-1] == "Calls are recorded at different rates: a at 16000 Hz; b at 32000 Hz."


def test_a_missing_extra_is_named(write, monkeypatch, capsys):
    speech._load_silero.cache_clear()
    monkeypatch.setattr(speech, "find_spec", lambda name: None)
    check_refused(
        capsys, r'pip install "sdiareward\[calls\]", or give a file of segments', main, ["score", str(write())]
    )


def test_two_files_that_do_not_belong_together(write, call, tmp_path, capsys):
    samples = np.tile(call[0], (20, 1))
    write("call_user.wav", samples[:, 0])
    write("call_assistant.wav", samples[:-RATE, 1])
    message = r"call_user.wav lasts \d+\.\d\d s, call_assistant.wav lasts \d+\.\d\d s; .* pad them"
    check_refused(capsys, message, main, ["score", str(tmp_path)])
    write("call_assistant.wav", samples[: len(samples) // 2, 1], 8_000)
    check_refused(capsys, "call_assistant.wav has 8000 Hz", main, ["score", str(tmp_path)])


BAD_SEGMENTS = {
    "line 1: begins at 2 s and ends at 1 s": ("call.rttm", "SPEAKER c 1 2 -1 <NA> <NA> user <NA> <NA>"),
    "line 1: has 5 fields": ("call.rttm", "SPEAKER c 1 2 1"),
    "line 1: begins at nan": ("call.rttm", "SPEAKER c 1 nan 1 <NA> <NA> user <NA> <NA>"),
    "segment 1: ends at 900.00 s, the recording at": ("call.json", '[{"start": 1, "end": 900, "speaker": "user"}]'),
    "segment 1: start and end are": ("call.json", '[{"start": "x", "end": 2}]'),
    "a segment has no speaker": ("call.json", '[{"start": 1, "end": 2}]'),
    "has 3 speakers: x, y, z; choose with --user and --assistant": (
        "call.json",
        json.dumps([{"start": at, "end": at + 1, "speaker": name} for at, name in enumerate("xyz")]),
    ),
    "not JSON": ("call.json", "{"),
    "has no segments": ("call.vtt", "WEBVTT"),
    "line 1: has no times": ("call.srt", "00:00 --> 1"),
    "has no turn of the assistant after one of the user": (
        "call.json",
        '[{"start": 1, "end": 2, "speaker": "user"}, {"start": 0.1, "end": 0.9, "speaker": "bot"}]',
    ),
}


@pytest.mark.parametrize("message", BAD_SEGMENTS)
def test_bad_segments_are_refused_by_file_and_line(message, write, tmp_path, capsys):
    name, text = BAD_SEGMENTS[message]
    path = write()
    (tmp_path / name).write_text(text)
    check_refused(capsys, f"call.*{message}", main, ["score", str(path)])


def test_options_choose_speakers_and_files(write, call, tmp_path):
    path = write(samples=call[0].sum(axis=1))
    (start, end), (again, last) = call[1]
    said = [(start, end, "x"), (again, last, "y"), (0.1, 0.4, "z")]
    (tmp_path / "call.json").write_text(json.dumps([{"start": s, "end": e, "speaker": n} for s, e, n in said]))
    found = read(path, user="x", assistant="y")
    assert [turn.role for turn in found.turns.turns] == ["user", "assistant"]
    with pytest.raises(CallError, match="has no speaker 'w'"):
        read(path, user="w")


def test_turns_and_timing_by_hand():
    def side(channel, *spans):
        return [Segment(start, end, channel) for start, end in spans]

    user = side(0, (0.0, 2.0), (2.3, 3.0), (6.0, 6.4), (9.0, 11.0), (20.0, 21.0))
    assistant = side(1, (4.0, 8.0), (8.2, 8.8), (10.5, 14.0), (12.0, 13.0), (21.6, 24.0))
    found = form_turns(user + assistant, 30.0)
    spans = [(turn.role, turn.start_s, turn.end_s) for turn in found.turns]
    assert spans == [
        ("user", 0.0, 3.0),  # Joined over 0.3 s.
        ("assistant", 4.0, 8.8),
        ("user", 9.0, 11.0),
        ("assistant", 10.5, 14.0),
        ("user", 20.0, 21.0),
        ("assistant", 21.6, 24.0),
    ]
    assert [(piece.start_s, piece.end_s) for piece in found.inside] == [(6.0, 6.4)]
    timing = measure_timing([found])
    assert {name: timing[name] for name in ("early_starts", "barge_ins", "backchannels", "talked_over")} == {
        "early_starts": 1,
        "barge_ins": 0,
        "backchannels": 1,
        "talked_over": 0,
    }
    # Gaps of 1.0, -0.5 and 0.6 s; both speak for 0.4 and 0.5 s.
    assert timing["response_gap_median_s"] == 0.6
    assert timing["response_gap_p90_s"] == 0.92
    assert timing["overlap_s"] == 0.9
    assert timing["longest_silence_s"] == 6.0
    assert timing["answered_within_3_s"] == 1.0
    # The same twice has the same gaps and twice the overlap.
    assert measure_timing([found, found])["overlap_s"] == 1.8


@pytest.mark.parametrize(("num_turns", "starts"), [(2, [0]), (6, [0]), (8, [0, 2]), (12, [0, 6]), (13, [0, 6])])
def test_windows_have_one_size(num_turns, starts):
    turns = [Segment(at, at + 1, at % 2) for at in range(num_turns)]
    windows = make_windows(turns, 6)
    assert [window[0].start_s for window in windows] == starts
    assert {len(window) for window in windows} == {min(num_turns, 6)}
    # A greeting is in none.
    assert make_windows(turns[1:], 6)[:1] in ([], [turns[2:8]])
    with pytest.raises(ValueError, match="even number of turns from 2 to 16"):
        CallRules(window=5)


@pytest.fixture
def systems(tmp_path):
    """Return the folders of two systems with two calls each; the second call of one is short."""
    for number in range(2):
        made = make_call(number, overlap=0)
        for name in "ab":
            (tmp_path / name).mkdir(exist_ok=True)
            end = round(made.turns[3].end_s * RATE) + 8_000 if (name, number) == ("b", 1) else None
            soundfile.write(tmp_path / name / f"call{number}.flac", made.samples[:, :end].T, RATE)
    return [tmp_path / name for name in "ab"]


def test_calls_of_two_systems_have_windows_of_one_size(systems):
    first, second = read_systems(systems)
    sizes = {system.name: [len(call.windows[0]) for call in system.calls.values()] for system in (first, second)}
    assert sizes == {"a": [6, 4], "b": [6, 4]}
    assert set(second.names) < set(first.names)
    assert first.groups["call0#2"] == "call0"
    assert len(first.read("call1#1")) == 4


@pytest.mark.slow
def test_commands_say_how_a_call_was_read(systems, tiny_checkpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = ["--model", str(tiny_checkpoint)]
    path = str(systems[0] / "call0.flac")
    assert main(["score", path, "--json", "--output_dir", "page", "--turns_dir", "turns", *model]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"windows", "turns", "timing", "notices"} <= set(found)
    assert {"reward", "num_turns", "start_s", "end_s"} == set(found["windows"][0])
    assert found["notices"][0].startswith("left = user, right = assistant (assumed")
    assert json.loads((tmp_path / "page" / "call.json").read_text()) == found
    assert (tmp_path / "page" / "index.html").read_text().count('<svg class="lanes"') == len(found["windows"])
    # What was cut scores the same as a dialogue.
    assert main(["score", "turns/call0#1.json", "--json", *model]) == 0
    [window] = json.loads(capsys.readouterr().out)["dialogues"]
    assert window["reward"] == pytest.approx(found["windows"][0]["reward"], abs=1e-4)

    assert main(["score", path, *model]) == 0
    told = capsys.readouterr().out
    assert "left = user, right = assistant (assumed" in told
    assert "response gap, median" in told

    assert main(["score", str(systems[0]), "--output_dir", "scores", *model]) == 0
    assert "call0#1" in pq.read_table("scores/scores.parquet")["id"].to_pylist()
    capsys.readouterr()

    assert main(["compare", *map(str, systems), "--output_dir", "compared", *model]) == 0
    told = capsys.readouterr().out
    assert "Rewards do not measure it." in told
    assert "a, 2 of 2 calls: left = user" in told
    assert "call1#2 (not in b)" in told
    report = json.loads((tmp_path / "compared" / "compare.json").read_text())
    assert report["timing"]["a"]["response_gap_median_s"] > 0
    assert 'class="lanes"' in (tmp_path / "compared" / "report" / "index.html").read_text()
    shutil.rmtree(tmp_path / "compared")


@pytest.mark.slow
def test_a_long_call_is_read_whole():
    made = make_call(0)
    repeats = 600 * RATE // made.samples.shape[1] + 1
    longer = made.alter(lambda samples: np.tile(samples, repeats))
    assert abs(len(longer.cut().turns) - repeats * len(made.turns)) <= repeats
