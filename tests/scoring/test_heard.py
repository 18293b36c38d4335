"""What the model does not hear, turns that are cut and silent turns, is named by whatever scores a dialogue."""

import base64
import json
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import soundfile
from support import tiny_model

from sdiareward import processing_sdiareward as processing
from sdiareward.audio_sdiareward import Heard
from sdiareward.cli import main
from sdiareward.pairs.messages import read_dialogue
from sdiareward.pipeline_sdiareward import SDiaRewardPipeline
from sdiareward.scoring.reward_function import reward_fn
from sdiareward.scoring.scorer import Scorer


# The second turn is cut; the third is silent, the fourth in what is heard of it.
EXPECTED = Heard(pytest.approx(1.5), pytest.approx(1.1), 4, cut_turns=(2, 4), silent_turns=(3, 4))
CUT = "2 turns cut: the model hears 1.1 of 1.5 s"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    tiny_model.make_model(max_turn_s=0.3).save_pretrained(folder)
    tiny_model.make_processor(max_turn_s=0.3).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def scorer(folder):
    return Scorer.from_pretrained(folder, device="cpu")


@pytest.fixture(scope="module")
def path(tmp_path_factory, make_tone):
    """Return the JSON file of a dialogue in files of several formats."""
    place, turns = tmp_path_factory.mktemp("dialogue"), []
    late = np.concatenate([np.zeros(4800, np.float32), make_tone(0.2)])
    # Of its channels at 8 kHz the first is empty.
    stereo = np.stack([np.zeros(4000), make_tone(0.5)[::2]], axis=1)
    sounds = {"a.ogg": make_tone(0.2), "b.wav": stereo, "c.wav": np.full(4800, 0.25), "d.flac": late}
    for number, (name, sound) in enumerate(sounds.items()):
        soundfile.write(place / name, sound, 8_000 if sound.ndim == 2 else 16_000)
        turns.append({"role": ("user", "assistant")[number % 2], "text": "so", "audio": name})
    (place / "dialogue.json").write_text(json.dumps(turns))
    return place / "dialogue.json"


def to_heard(result):
    found = {name: result[name] for name in asdict(EXPECTED)}
    return Heard(**{name: tuple(value) if isinstance(value, list) else value for name, value in found.items()})


def test_seconds_cut_turns_and_silent_turns_are_in_the_result_of_every_call(scorer, path, folder, capsys):
    heard, dialogue, before_s = {}, read_dialogue(path), scorer.audio_s
    scorer.score([dialogue], heard=heard)
    assert scorer.audio_s - before_s == pytest.approx(1.1)
    [(_, features)] = scorer.iter_features([dialogue])
    pipeline = SDiaRewardPipeline(model=scorer.model, processor=scorer.processor, task="audio-classification")
    assert heard[0] == features.heard == to_heard(pipeline(dialogue)) == EXPECTED
    assert main(["score", str(path), "--model", str(folder), "--json", "--device", "cpu"]) == 0
    printed = capsys.readouterr()
    assert f"{path}: {CUT} (turn 2, turn 4)" in printed.err and "2 silent turns: nothing" in printed.err
    assert to_heard(json.loads(printed.out)["dialogues"][0]) == EXPECTED


@pytest.mark.parametrize(("side", "more_s"), [("", 0.0), ("rejected ", 0.4)])
def test_a_scored_table_has_them_in_columns_and_in_its_summary(path, folder, tmp_path, capsys, side, more_s):
    turns = json.loads(path.read_text())
    short = [turns[0], {**turns[0], "role": "assistant"}]
    (path.parent / "rows.jsonl").write_text(
        json.dumps({"chosen": short, "rejected": turns} if side else {"turns": turns}) + "\n"
    )
    flags = ["--dataset", str(path.parent / "rows.jsonl"), "--model", str(folder), "--output_dir", str(tmp_path)]
    assert main(["score", *flags, "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert "2 turns cut: this model hears their first 0.3 s" in printed
    assert f"2 silent turns (row 0 {side}turn 3, row 0 {side}turn 4)" in printed
    summary = json.loads((tmp_path / "summary.json").read_text())["summary"]
    assert (summary["num_cut"], summary["num_silent"]) == (2, 2)
    [scored] = pq.read_table(tmp_path / "scores.parquet").to_pylist()
    assert scored["silent_turns"] == [f"{side}turn 3", f"{side}turn 4"] and scored["num_cut"] == 2
    assert (scored["given_s"], scored["heard_s"]) == pytest.approx((1.5 + more_s, 1.1 + more_s))


@pytest.fixture(scope="module")
def client(folder):
    pytest.importorskip("fastapi", reason="no serving: pip install 'sdiareward[serve]'")
    from fastapi.testclient import TestClient

    from sdiareward.scoring.model_spec import ModelSpec
    from sdiareward.serving.app import create_app
    from sdiareward.serving.client import RewardClient
    from sdiareward.serving.settings import ServiceSettings

    settings = ServiceSettings(model=ModelSpec(str(folder)))
    client = RewardClient("http://127.0.0.1")
    client.http = TestClient(create_app(settings, settings.model.load(device="cpu")), base_url="http://127.0.0.1")
    client._session = SimpleNamespace(
        request=lambda method, url, json, headers, timeout: client.http.request(
            method, url, json=json, headers=headers
        )
    )
    return client


def test_a_server_and_its_client_name_them(client, path, caplog):
    from sdiareward.serving.client import encode_dialogue

    messages, heard = read_dialogue(path), {}
    form = encode_dialogue(messages)
    answer = client.http.post("/score", json={"dialogues": [form], "calibrated": False}).json()
    assert to_heard(answer["results"][0]) == EXPECTED
    answer = client.http.post("/compare", json={"a": form, "b": form}).json()
    assert to_heard(answer["a"]) == to_heard(answer["b"]) == EXPECTED
    assert client.compare(messages, messages).heard == (EXPECTED, EXPECTED)
    client.score([messages], heard=heard)
    assert heard == {0: EXPECTED} and not caplog.text
    client.score([messages])
    assert f"{CUT} (dialogues[0] turn 2, dialogues[0] turn 4)" in caplog.text
    silent = {"role": "user", "audio": {"base64": base64.b64encode(b"no audio").decode()}}
    bad = {"dialogues": [{"turns": [silent]}], "skip_bad": True}
    assert client.http.post("/score", json=bad).json()["results"][0]["silent_turns"] is None


def test_a_call_that_takes_no_account_of_it_warns_once(scorer, path, make_dialogue, caplog):
    long = read_dialogue(path)
    scorer.score([make_dialogue(0.2, 0.2), long, long])
    assert len(caplog.records) == 2
    assert "4 turns cut: the model hears 2.2 of 3.0 s (dialogues[1] turn 2, dialogues[1] turn 4, " in caplog.text
    caplog.clear()
    scorer.score([make_dialogue(0.2, 0.2)])
    scorer.score([long], heard={})
    assert not caplog.records
    processing._warn_once.cache_clear()
    for _ in range(2):
        scorer.processor(long)
        scorer.processor.apply_chat_template(long, tokenize=True, return_dict=True)
    assert len(caplog.records) == 2


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_reward_function_counts_them_and_refuses_a_silent_completion(is_remote, scorer, request, path, caplog):
    from sdiareward.serving.client import remote_reward_fn

    long, logged = read_dialogue(path).to_messages(), {}
    reward = remote_reward_fn(request.getfixturevalue("client")) if is_remote else reward_fn(scorer)
    rewards = reward([long[:3], long[:1], long[:1]], [long[3:], long[1:2], long[1:2]], log_metric=logged.__setitem__)
    assert rewards[0] is None and "completion is silent" in reward.last_reasons[0]
    assert rewards[1] == pytest.approx(scorer.score([long[:2]])[0], abs=1e-5)
    assert reward.num_unheard == 2
    assert logged["sdiareward_joint/unheard"] == pytest.approx(2 / 3)
    assert "2 turns cut: the model hears 1.0 of 1.4 s" in caplog.text


@pytest.mark.parametrize("num_samples", [320, 321])
def test_a_turn_without_a_token_is_refused_and_the_shortest_is_heard(scorer, num_samples, make_tone):
    clip = {"array": make_tone(1.0)[:num_samples], "sampling_rate": 16_000}
    dialogue = [{"role": role, "content": [{"type": "audio", "audio": clip}]} for role in ("user", "assistant")]
    heard, skipped = {}, {}
    found = dict(scorer.iter_scores([dialogue], heard=heard, skipped=skipped))
    assert (len(found), len(skipped)) == ((1, 0) if num_samples > 320 else (0, 1))
    assert heard == ({0: Heard(2 * 321 / 16_000, 2 * 321 / 16_000, 2)} if found else {})
