"""Voices of casts, endpoints and cloned speakers, and the emotions heard in them."""

import json
import sys
from dataclasses import replace
from email import message_from_bytes
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import soundfile

from sdiareward.audio_sdiareward import resample
from sdiareward.dataset_builder.chatreward.builder import Recorder, load_event, mix_event
from sdiareward.dataset_builder.chatreward.scenarios import read_scenarios
from sdiareward.dataset_builder.chatreward.voices import (
    CASTS,
    ChatRewardConfig,
    CloningSettings,
    EmotionSettings,
    Voice,
    load_classifier,
    make_cloning_cast,
    make_endpoint_cast,
    speak_line,
)
from sdiareward.dataset_builder.episodes import SkipError
from sdiareward.dataset_builder.synthesis import SynthesisError, load_synthesizer
from sdiareward.perturbations.channel import encode


RATE = 16_000
TEXT = "The second train leaves a little later."
MAN = Voice("espeak-ng")


def level_db(array):
    return 10 * np.log10(np.mean(np.square(array, dtype=np.float64)))


def test_volume_changes_the_level_alone():
    low, high = (speak_line(TEXT, MAN, "volume", category, is_shaped=True) for category in ("low", "high"))
    assert level_db(high) - level_db(low) == pytest.approx(23.0, abs=0.01)
    np.testing.assert_allclose(low / np.abs(low).max(), high / np.abs(high).max(), atol=1e-4)


def test_for_every_bundled_scenario_a_cast_has_all_voices_offline():
    for scenario in read_scenarios():
        lines = (scenario.question, *scenario.answers.values())
        needs = [(scenario.voices, line.category, gender) for line in lines for gender in ("male", "female")]
        assert any(all(cast.find_voice(*need) for need in needs) for cast in CASTS.values()), scenario.scenario_id


def answer_speech(path, headers, body):
    """Answer as `/v1/audio/speech` does."""
    speech = load_synthesizer("espeak-ng").speak(TEXT, voice=0)
    return 200, encode(resample(speech, RATE, 24_000), 24_000, "WAV", "FLOAT", None)


def test_an_endpoint_gets_instructions_for_its_voice(serve):
    server = serve(answer_speech)
    options = {"base_url": f"{server.url}/v1", "model": "tts", "voices": ["nova", "onyx"]}
    cast = make_endpoint_cast(options, ("emotion", "accent"))
    for attribute, category, gender in (("emotion", "sad", "male"), ("accent", "indian", "female")):
        voice = cast.find_voice(attribute, category, gender)
        speech = speak_line(TEXT, voice, attribute, category, is_shaped=cast.is_shaped(attribute))
        assert level_db(speech) == pytest.approx(-28.0, abs=0.01)
    asked = [json.loads(body) for _, _, body in server.requests]
    assert [(body["voice"], body["input"]) for body in asked] == [("onyx", TEXT), ("nova", TEXT)]
    assert "sad" in asked[0]["instructions"] and "indian accent" in asked[1]["instructions"]
    assert cast.find_voice("accent", None, "male").options == cast.voices["male"].options


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


@pytest.fixture(scope="module")
def speakers(tmp_path_factory):
    """Return a file of four speakers of each age, two of each gender; a speaker's words tell who it is."""
    folder, lines = tmp_path_factory.mktemp("speakers"), []
    for number in range(16):
        age, gender = AGES[number // 4], ("female", "male")[number % 2]
        soundfile.write(folder / f"s{number}.wav", np.sin(np.arange(8000) / (9 + number)) / 4, 16_000)
        row = {"audio": f"s{number}.wav", "text": f"{age} {gender} {number}", "age": age, "gender": gender}
        lines.append(json.dumps(row))
    (folder / "speakers.jsonl").write_text("\n".join(lines))
    return folder / "speakers.jsonl"


def read_form(request):
    """Return the fields of a multipart request."""
    _, headers, body = request
    message = message_from_bytes(b"Content-Type: " + headers["Content-Type"].encode() + b"\r\n\r\n" + body)
    parts = {part.get_param("name", header="content-disposition"): part for part in message.get_payload()}
    return {name: part.get_payload(decode=True) for name, part in parts.items()}


def cosyvoice_or_step_audio(path, headers, body):
    """Answer as the two servers do: raw samples of a second at 24 kHz, or a WAV."""
    tone = np.sin(np.arange(24_000) * 2 * np.pi * 200 / 24_000) / 2
    if path == "/inference_zero_shot":
        return 200, (tone * 2**15).astype("<i2").tobytes()
    return 200, encode(tone.astype(np.float32), 24_000, "WAV", "PCM_16", None)


@pytest.fixture
def server(serve):
    return serve(cosyvoice_or_step_audio)


def options(server, speakers, **changes):
    return {"base_url": server.url, "speakers": str(speakers), "max_retries": 0, **changes}


@pytest.mark.parametrize(
    ("api", "request_line"), [("cosyvoice", "GET /inference_zero_shot"), ("step-audio", "POST /clone")]
)
def test_a_speaker_is_cloned_from_its_recording_and_its_words(api, request_line, server, speakers):
    engine = load_synthesizer("voice-cloning", options(server, speakers, api=api, where={"age": "elderly"}))
    speech = engine.speak("Good morning.", voice=5)
    assert len(speech) == pytest.approx(16_000, abs=2) and np.abs(speech).max() == pytest.approx(0.5, abs=0.02)
    (request,) = server.requests
    fields = read_form(request)
    assert request[0] == request_line
    # The second of the four old speakers: 5 modulo 4.
    assert fields["tts_text"] == b"Good morning." and fields["prompt_text"] == b"elderly male 13"
    assert fields["prompt_wav"] == (speakers.parent / "s13.wav").read_bytes()
    assert fields.get("speaker_name") == (b"s13" if api == "step-audio" else None)


@pytest.mark.parametrize("answer", [(500, b"CUDA error"), (200, b""), (200, b"odd")])
def test_an_answer_that_is_no_speech_is_an_error_that_quotes_it(answer, server, speakers):
    server.answer = lambda *request: answer
    engine = load_synthesizer("voice-cloning", options(server, speakers))
    with pytest.raises(SynthesisError, match="no speech for 'Hello.'.*(500: CUDA|odd|0,)"):
        engine.speak("Hello.", voice=0)


@pytest.mark.parametrize(
    "line", ['{"audio": "a.wav"}', "[]", '{"audio": "../a.wav", "text": "Hi."}', '{"audio": "a.wav", "text": " "}', ""]
)
def test_speakers_that_cannot_be_used_are_refused_by_line(line, server, tmp_path):
    (tmp_path / "s.jsonl").write_text(line)
    with pytest.raises(ValueError, match="line 1: " if line else "s.jsonl"):
        load_synthesizer("voice-cloning", options(server, tmp_path / "s.jsonl"))


def test_ages_are_spoken_by_people_of_these_ages_and_by_no_rule(server, speakers):
    cast = make_cloning_cast(options(server, speakers), ("age",))
    assert not cast.is_shaped("age") and cast.is_shaped("emotion")
    for age in AGES:
        speech = speak_line("Hello.", cast.find_voice("age", age, "female").draw(2), "age", age, is_shaped=False)
        assert read_form(server.requests[-1])["prompt_text"].startswith(age.encode())
        assert len(speech) / 16_000 == pytest.approx(1.0, abs=0.1)
    assert cast.find_voice("accent", "indian", "female") is None
    with pytest.raises(ValueError, match=r"speakers of accent \[\]"):
        make_cloning_cast(options(server, speakers), ("accent",))


def test_each_scenario_draws_its_speakers_and_its_answers_share_one(server, speakers, tmp_path, events, monkeypatch):
    # The server gives one second for any words.
    monkeypatch.setattr("sdiareward.dataset_builder.chatreward.voices.require_plausible", lambda *_, **__: None)
    cloning = CloningSettings(options(server, speakers))
    fixed = {"casts": ("voice-cloning",), "events": events, "max_wer": None, "min_s": 1.0, "max_s": 60.0}
    recorder = Recorder(ChatRewardConfig(str(tmp_path / "out"), cloning=cloning, **fixed))
    asking, answering = set(), set()
    chosen = [scenario for scenario in read_scenarios() if scenario.voices == "volume"]
    for scenario in chosen:
        server.requests.clear()
        recorder.record(scenario, "train")
        question, *answers = (read_form(request)["prompt_text"] for request in server.requests)
        assert len(answers) == 3 and len(set(answers)) == 1 and question.split()[1] != answers[0].split()[1]
        asking.add(question)
        answering.add(answers[0])
    assert len(chosen) > 8 and min(len(asking), len(answering)) > 4


def test_ten_voices_of_an_endpoint_alternate():
    cast = make_endpoint_cast({"voices": list("fmfmfmfmfm")}, ("emotion",))
    drawn = {gender: {cast.voices[gender].draw(seed).numbers[0] for seed in range(9)} for gender in ("female", "male")}
    assert drawn == {"female": {0, 2, 4, 6, 8}, "male": {1, 3, 5, 7, 9}}
    for voices, attribute, named in (("fmf", "emotion", "voices"), ("fm", "volume", "volume")):
        with pytest.raises(ValueError, match=named):
            make_endpoint_cast({"voices": list(voices)}, (attribute,))


@pytest.fixture
def funasr(monkeypatch):
    """Stand in for FunASR 1.4 with Emotion2Vec's nine labels; its weights are not in any package."""
    calls = []

    labels = ["生气/angry", "厌恶/disgusted", "恐惧/fearful", "开心/happy", "中立/neutral", "其他/other"]
    labels += ["难过/sad", "吃惊/surprised", "<unk>"]
    scores = [0.6, 0.1, 0.05, 0.05, 0.1, 0.04, 0.03, 0.02, 0.01]

    class AutoModel:
        def __init__(self, **kwargs):
            calls.append(kwargs)
            self.scores = [] if kwargs["model"] == "headless" else scores

        def generate(self, data, **kwargs):
            calls.append((data.shape, data.dtype.name, kwargs))
            return [{"key": "rand", "labels": labels, "scores": self.scores}]

    module = ModuleType("funasr")
    module.AutoModel = AutoModel
    monkeypatch.setitem(sys.modules, "funasr", module)
    return calls


def test_emotion2vec_scores_the_seven_emotions_of_table_4(funasr, make_tone):
    settings = EmotionSettings("emotion2vec/emotion2vec_plus_large", backend="funasr", device="cpu")
    expected = {"angry": 0.6, "disgusted": 0.1, "fearful": 0.05, "happy": 0.05, "neutral": 0.1}
    assert load_classifier(settings)(make_tone(1.0)) == expected | {"sad": 0.03, "surprised": 0.02}
    made, asked = funasr
    assert (made["model"], made["hub"], made["device"]) == (settings.model, "hf", "cpu")
    assert asked == ((16_000,), "float32", {"fs": 16_000, "granularity": "utterance", "extract_embedding": False})
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
