"""Voices of casts, endpoints and cloned speakers, and the emotions heard in them."""

import json
import sys
from dataclasses import replace
from email import message_from_bytes
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from sdiareward.dataset_builder.chatreward import voices
from sdiareward.dataset_builder.chatreward.builder import Recorder, load_event, mix_event
from sdiareward.dataset_builder.chatreward.scenarios import read_scenarios
from sdiareward.dataset_builder.chatreward.voices import CASTS, EmotionSettings, load_classifier
from sdiareward.dataset_builder.episodes import SkipError
from sdiareward.dataset_builder.synthesis import SynthesisError, load_synthesizer
from sdiareward.perturbations.channel import encode


RATE = 16_000
TEXT = "The second train leaves a little later."


def level_db(array):
    return 10 * np.log10(np.mean(np.square(array, dtype=np.float64)))


def test_volume_changes_the_level_alone():
    low, high = (CASTS["espeak-ng"].speak(TEXT, "volume", category, "male")[0] for category in ("low", "high"))
    assert level_db(high) - level_db(low) == pytest.approx(23.0, abs=0.01)
    np.testing.assert_allclose(low / np.abs(low).max(), high / np.abs(high).max(), atol=1e-4)


def test_for_every_bundled_scenario_a_cast_has_all_voices_offline():
    for scenario in read_scenarios():
        lines = (scenario.question, *scenario.answers.values())
        needs = [(scenario.voices, line.category, gender) for line in lines for gender in ("male", "female")]
        assert any(all(cast.find_voice(*need) for need in needs) for cast in CASTS.values()), scenario.scenario_id


def test_an_endpoint_gets_instructions_for_a_voice_and_its_voices_alternate(serve):
    tone = encode(np.sin(np.arange(36_000) / 9) / 2, 24_000, "WAV", "FLOAT", None)
    server = serve(lambda *request: (200, tone))
    options = {"base_url": f"{server.url}/v1", "model": "tts", "voices": ["nova", "onyx", "coral", "ash"]}
    cast = voices.make_endpoint_cast(options, ("emotion", "accent"))
    for attribute, category, gender in (("emotion", "sad", "male"), ("accent", "indian", "female")):
        speech, _ = cast.speak(TEXT, attribute, category, gender)
        assert level_db(speech) == pytest.approx(-28.0, abs=0.01)
    asked = [json.loads(body) for _, _, body in server.requests]
    assert [(body["voice"], body["input"]) for body in asked] == [("onyx", TEXT), ("nova", TEXT)]
    assert "sad" in asked[0]["instructions"] and "indian accent" in asked[1]["instructions"]
    assert cast.find_voice("accent", None, "male").options == cast.voices["male"].options
    assert {gender: [*voice.numbers] for gender, voice in cast.voices.items()} == {"female": [0, 2], "male": [1, 3]}
    for names, attribute, named in (("fmf", "emotion", "voices"), ("fm", "volume", "volume")):
        with pytest.raises(ValueError, match=named):
            voices.make_endpoint_cast({"voices": list(names)}, (attribute,))


def test_a_sound_lies_under_speech_at_the_ratio_asked_for(make_tone, events):
    speech, clip = 0.2 * make_tone(1.0, 300.0), load_event("bee", 0, events)
    mixed = mix_event(speech, clip, replace(events, lead_s=0.5))
    assert len(mixed) == 1.5 * RATE
    under = mixed.copy()
    under[RATE // 2 :] -= speech
    assert level_db(speech) - level_db(under) == pytest.approx(6.0, abs=0.05)
    assert level_db(mixed[: RATE // 2]) > level_db(speech) - 20
    assert np.abs(mix_event(speech, clip, replace(events, snr_db=-40.0))).max() == pytest.approx(0.99)


def test_a_clip_is_drawn_from_the_folders_of_its_category(events):
    def pitches_hz(category):
        clips = [load_event(category, seed, events) for seed in range(9)]
        return {int(np.abs(np.fft.rfft(clip)).argmax() * RATE / len(clip)) for clip in clips}

    assert pitches_hz("knocking") == {500, 900}
    assert pitches_hz("waterfall burbling") == {700}
    with pytest.raises(SkipError, match="sound 'cat' has no clip"):
        load_event("cat", 0, events)


AGES = ("children", "adolescent", "middle-aged", "elderly")


@pytest.fixture
def cloning(serve, tmp_path):
    """Return a server and a function that gives its options, with four speakers of each age, two of each gender."""
    lines = []
    for number in range(16):
        labels = {"age": AGES[number // 4], "gender": ("female", "male")[number % 2]}
        soundfile.write(tmp_path / f"s{number}.wav", np.sin(np.arange(8000) / (9 + number)) / 4, RATE)
        lines.append({"audio": f"s{number}.wav", "text": f"{' '.join(labels.values())} {number}", **labels})
    (tmp_path / "speakers.jsonl").write_text("\n".join(map(json.dumps, lines)))

    def answer(path, headers, body):
        """Answer as the two servers do: raw samples of a second at 24 kHz, or a WAV."""
        tone = np.sin(np.arange(24_000) * 2 * np.pi * 200 / 24_000) / 2
        if path == "/inference_zero_shot":
            return 200, (tone * 2**15).astype("<i2").tobytes()
        return 200, encode(tone.astype(np.float32), 24_000, "WAV", "PCM_16", None)

    server = serve(answer)
    fixed = {"base_url": server.url, "speakers": str(tmp_path / "speakers.jsonl"), "max_retries": 0}
    return server, lambda **changes: {**fixed, **changes}


def read_form(request):
    """Return the fields of a multipart request."""
    _, headers, body = request
    message = message_from_bytes(b"Content-Type: " + headers["Content-Type"].encode() + b"\r\n\r\n" + body)
    parts = {part.get_param("name", header="content-disposition"): part for part in message.get_payload()}
    return {name: part.get_payload(decode=True) for name, part in parts.items()}


@pytest.mark.parametrize(
    ("api", "request_line"), [("cosyvoice", "GET /inference_zero_shot"), ("step-audio", "POST /clone")]
)
def test_a_speaker_is_cloned_from_its_recording_and_its_words(api, request_line, cloning, tmp_path):
    server, options = cloning
    engine = load_synthesizer("voice-cloning", options(api=api, where={"age": "elderly"}))
    speech = engine.speak("Good morning.", voice=5)
    assert len(speech) == pytest.approx(RATE, abs=2) and np.abs(speech).max() == pytest.approx(0.5, abs=0.02)
    (request,) = server.requests
    # The second of the four old speakers: 5 modulo 4.
    expected = {"tts_text": b"Good morning.", "prompt_text": b"elderly male 13"}
    expected |= {"prompt_wav": (tmp_path / "s13.wav").read_bytes()}
    expected |= {"speaker_name": b"s13"} if api == "step-audio" else {}
    assert (request[0], read_form(request)) == (request_line, expected)
    for answer in ((500, b"CUDA error"), (200, b"odd")):
        server.faults = [answer]
        with pytest.raises(SynthesisError, match=rf"no speech for 'Hello.'.* begins b'{answer[1].decode()}'"):
            engine.speak("Hello.", voice=0)


@pytest.mark.parametrize(
    "line", ['{"audio": "a.wav"}', "[]", '{"audio": "../a.wav", "text": "Hi."}', '{"audio": "a.wav", "text": " "}', ""]
)
def test_speakers_that_cannot_be_used_are_refused_by_line(line, tmp_path):
    (tmp_path / "s.jsonl").write_text(line)
    options = {"base_url": "http://localhost:1", "speakers": str(tmp_path / "s.jsonl")}
    with pytest.raises(ValueError, match="line 1: " if line else "s.jsonl"):
        load_synthesizer("voice-cloning", options)


def test_ages_are_spoken_by_people_of_these_ages_and_by_no_rule(cloning):
    server, options = cloning
    cast = voices.make_cloning_cast(options(), ("age",))
    for age in AGES:
        speech, engine = cast.speak("Hello.", "age", age, "female", seed=2)
        assert read_form(server.requests[-1])["prompt_text"].startswith(age.encode())
        # As the server speaks, but for the level.
        assert (len(speech), engine) == (pytest.approx(RATE, abs=0.1 * RATE), "voice-cloning")
    assert cast.find_voice("accent", "indian", "female") is None
    with pytest.raises(ValueError, match=r"accent \[\]"):
        voices.make_cloning_cast(options(), ("accent",))


def test_each_scenario_draws_its_speakers_and_its_answers_share_one(cloning, tmp_path, events, monkeypatch):
    server, options = cloning
    # The server gives one second for any words.
    monkeypatch.setattr("sdiareward.dataset_builder.chatreward.voices.require_plausible", lambda *_, **__: None)
    fixed = {"casts": ("voice-cloning",), "events": events, "max_wer": None, "min_s": 1.0, "max_s": 60.0}
    recorder = Recorder(
        voices.ChatRewardConfig(str(tmp_path / "out"), cloning=voices.CloningSettings(options()), **fixed)
    )
    asking, answering = set(), set()
    for scenario in [scenario for scenario in read_scenarios() if scenario.voices == "volume"][:9]:
        server.requests.clear()
        recorder.record(scenario, "train")
        question, *answers = (read_form(request)["prompt_text"] for request in server.requests)
        assert len(answers) == 3 and len(set(answers)) == 1 and question.split()[1] != answers[0].split()[1]
        asking.add(question)
        answering.add(answers[0])
    assert min(len(asking), len(answering)) > 4


def test_emotion2vec_scores_the_seven_emotions_of_table_4(monkeypatch, make_tone):
    # Emotion2Vec's nine labels in FunASR 1.4; its weights are not in any package.
    labels = ["生气/angry", "厌恶/disgusted", "恐惧/fearful", "开心/happy", "中立/neutral", "其他/other"]
    labels += ["难过/sad", "吃惊/surprised", "<unk>"]
    scores, calls = [0.6, 0.1, 0.05, 0.05, 0.1, 0.04, 0.03, 0.02, 0.01], []

    def load(model, hub, device, **_):
        calls.append((model, hub, device))
        found = [{"key": "rand", "labels": labels, "scores": [] if model == "headless" else scores}]
        return SimpleNamespace(
            generate=lambda data, **asked: calls.append((data.shape, data.dtype.name, asked)) or found
        )

    monkeypatch.setitem(sys.modules, "funasr", SimpleNamespace(AutoModel=load))
    settings = EmotionSettings("emotion2vec/emotion2vec_plus_large", backend="funasr", device="cpu")
    expected = {"angry": 0.6, "disgusted": 0.1, "fearful": 0.05, "happy": 0.05, "neutral": 0.1}
    assert load_classifier(settings)(make_tone(1.0)) == expected | {"sad": 0.03, "surprised": 0.02}
    asked = {"fs": 16_000, "granularity": "utterance", "extract_embedding": False}
    assert calls == [(settings.model, "hf", "cpu"), ((16_000,), "float32", asked)]
    with pytest.raises(ValueError, match="headless"):
        load_classifier(EmotionSettings("headless", backend="funasr"))(make_tone(1.0))


def test_a_classifier_scores_the_emotions_its_labels_stand_for(monkeypatch, make_tone):
    found = [{"label": label, "score": score} for label, score in (("ang", 0.5), ("calm", 0.2), ("neu", 0.3))]
    pipeline = SimpleNamespace(pipeline=lambda *args, **kwargs: lambda *args, **kwargs: found)
    monkeypatch.setitem(sys.modules, "transformers", pipeline)
    labels = {"ang": "angry", "calm": "neutral", "neu": "neutral"}
    assert load_classifier(EmotionSettings("m", labels))(make_tone(1.0)) == {"angry": 0.5, "neutral": 0.5}
    with pytest.raises(ValueError, match="'ang', 'calm'"):
        load_classifier(EmotionSettings("m"))(make_tone(1.0))
    with pytest.raises(ValueError, match="bored"):
        EmotionSettings("model", {"b": "bored"})
