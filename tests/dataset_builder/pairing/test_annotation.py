import io

import pytest
import soundfile
from support.chat_server import ChatServer, Reply

from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, Part, ScriptPair, Turn
from sdiareward.dataset_builder.pairing.annotation import annotate_episodes, annotate_rows
from sdiareward.llm.client import ChatClient, ChatSettings, EndpointError
from sdiareward.pairs.schema import TAXONOMY


LABELS = {"primary": "sadness", "secondary": " FILLED PAUSES "}


@pytest.fixture
def flac(make_tone):
    buffer = io.BytesIO()
    soundfile.write(buffer, make_tone(0.2), 16_000, format="FLAC", subtype="PCM_16")
    return buffer.getvalue()


@pytest.fixture
def make_row(flac):
    def make(source="youtube", primary="", secondary=""):
        turns = [{"role": role, "audio": {"bytes": flac, "path": "turn.flac"}} for role in ("user", "assistant")]
        labels = {"primary": primary, "secondary": secondary}
        return {"pair_id": "p0", "source": source, **labels, "chosen": turns, "rejected": "not heard"}

    return make


@pytest.fixture
def make_episode(flac):
    def make(primary="Unknown", secondary="Unknown", source="youtube", audio=None):
        audio = audio or flac
        first = Turn("user", (Part("one", audio, 0.0, 0.1), Part("two", audio)))
        second = Turn("assistant", (Part("three", audio),))
        return Episode("e0", source, "wild", "g0", (first, second), primary, secondary, "en", "none")

    return make


@pytest.fixture
def ask(tmp_path):
    def make(server, **changes):
        settings = {"model": "listener", "base_url": server.url, "api_key_env": None, "max_retries": 0}
        return ChatClient(ChatSettings(**{**settings, **changes}), tmp_path / "answers")

    return make


def test_missing_labels_are_asked_for_and_spelt_as_in_table_5(ask, make_row):
    row = make_row(primary="Unknown", secondary="Unknown")
    with ChatServer(LABELS) as server:
        (labelled,) = annotate_rows([row], ask(server))
    assert labelled == {**row, "primary": "Sadness", "secondary": "Filled Pauses"}
    system, user = server.requests[0]["messages"]
    for label in (*TAXONOMY["youtube"][0], *TAXONOMY["youtube"][1]):
        assert label in system["content"]
    assert [part["type"] for part in user["content"]] == ["text", "input_audio"] * 2 + ["text"]


@pytest.mark.parametrize(
    ("source", "primary", "secondary"),
    [("youtube", "Neutral", "No Feature"), ("meld", "Positive", "Joy"), ("amazon_queen", "Unknown", "Unknown")],
)
def test_labels_that_a_source_gives_are_left_alone(ask, make_row, source, primary, secondary):
    row = make_row(source, primary, secondary)
    with ChatServer(LABELS) as server:
        assert list(annotate_rows([row], ask(server))) == [row]
        assert not server.requests


def test_only_the_label_that_is_missing_is_filled(ask, make_row):
    with ChatServer({"primary": "Positive", "secondary": "Joy"}) as server:
        (labelled,) = annotate_rows([make_row("meld", "Negative", "")], ask(server))
    assert (labelled["primary"], labelled["secondary"]) == ("Negative", "Joy")


def test_a_label_outside_table_5_is_asked_for_again_and_then_drops_the_pair(ask, make_row):
    with ChatServer({"primary": "Joy", "secondary": "Laughter"}) as server:
        client = ask(server)
        (skip,) = annotate_rows([make_row()], client)
    assert isinstance(skip, Skipped) and skip.kind == "annotation_failed"
    assert "'primary' is 'Joy'; it must be one of ['Anger'" in skip.reason
    assert len(server.requests) == 3
    assert client.usage["failures"] == 1


@pytest.mark.parametrize("answer", ["[]", '{"primary": "Fear"}', '{"primary": "Fear", "secondary": ["Cough"]}'])
def test_an_answer_of_another_form_is_asked_for_again(ask, make_row, answer):
    with ChatServer(answer, LABELS) as server:
        (labelled,) = annotate_rows([make_row()], ask(server))
    assert labelled["primary"] == "Sadness"
    assert len(server.requests) == 2


def test_pairs_of_one_recording_cost_one_question(ask, make_row):
    with ChatServer(LABELS) as server:
        assert len(list(annotate_rows([make_row()] * 5, ask(server)))) == 5
        assert len(server.requests) == 1


def test_an_episode_is_labelled_before_pairs_are_made_of_it(ask, make_episode):
    episode = make_episode()
    script = ScriptPair(written=episode, spoken=episode)
    known = make_episode("Fear", "Cough")
    with ChatServer(LABELS) as server:
        labelled, *same = annotate_episodes([episode, script, known], ask(server))
    assert (labelled.primary, labelled.secondary) == ("Sadness", "Filled Pauses")
    assert labelled.turns == episode.turns
    assert same == [script, known]
    assert len(server.requests) == 1
    data = server.requests[0]["messages"][1]["content"][1]["input_audio"]["data"]
    # Both parts of the turn, 0.1 s and 0.2 s: 4800 samples of 2 bytes after a header of 44, in base64.
    assert len(data) == (9600 + 44) // 3 * 4 + 4


@pytest.mark.parametrize(("audio", "kind"), [(b"noise", "unusable_audio"), ("/nowhere/a.wav", "missing_audio")])
def test_a_recording_that_cannot_be_heard_costs_its_episode(ask, make_episode, audio, kind):
    with ChatServer(LABELS) as server:
        (skip,) = annotate_episodes([make_episode(audio=audio)], ask(server))
    assert skip.kind == kind
    assert skip.item == "youtube e0"


def test_an_unusable_endpoint_ends_the_run(ask, make_row):
    with ChatServer(Reply(status=404)) as server, pytest.raises(EndpointError):
        list(annotate_rows([make_row()], ask(server)))
