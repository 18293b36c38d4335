import io

import pytest
import soundfile
from support.chat_server import ChatServer, Reply

from sdiareward.common.llm import EndpointError
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.pairing.annotation import annotate_rows
from sdiareward.pairs.schema import TAXONOMY


LABELS = {"primary": "sadness", "secondary": " FILLED PAUSES "}


@pytest.fixture
def make_row(make_tone):
    buffer = io.BytesIO()
    soundfile.write(buffer, make_tone(0.2), 16_000, format="FLAC", subtype="PCM_16")
    audio = {"bytes": buffer.getvalue(), "path": "turn.flac"}

    def make(source="youtube", primary="", secondary="", criterion="modality"):
        turns = [{"role": role, "audio": audio} for role in ("user", "assistant")]
        labels = {"criterion": criterion, "primary": primary, "secondary": secondary}
        return {"pair_id": "p0", "source": source, **labels, "chosen": turns, "rejected": "not heard"}

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
    ("source", "primary", "secondary", "criterion"),
    [
        ("youtube", "Neutral", "No Feature", "modality"),
        ("meld", "Positive", "Joy", "modality"),
        ("amazon_queen", "Unknown", "Unknown", "modality"),
        ("meld", "context", "order", "joint"),
    ],
)
def test_labels_of_a_source_or_a_family_are_kept(ask, make_row, source, primary, secondary, criterion):
    row = make_row(source, primary, secondary, criterion)
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
        (skip,) = annotate_rows([make_row()], client, max_failed=1.0)
    assert isinstance(skip, Skipped) and skip.kind == "annotation_failed" and "'Joy'" in skip.reason
    assert (len(server.requests), client.usage["failures"]) == (2, 1)


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


def test_a_recording_that_cannot_be_heard_is_skipped(ask, make_row):
    row = make_row()
    row["chosen"] = [{**turn, "audio": {"bytes": b"noise", "path": "turn.flac"}} for turn in row["chosen"]]
    with ChatServer(LABELS) as server:
        (skip,) = annotate_rows([row], ask(server))
    assert (skip.item, skip.kind) == ("youtube pair p0", "unusable_audio")


def test_an_unusable_endpoint_ends_the_run(ask, make_row):
    with ChatServer(Reply(status=404)) as server, pytest.raises(EndpointError):
        list(annotate_rows([make_row()], ask(server)))


def test_a_judge_that_fails_on_more_than_a_stated_share_stops_the_annotation(ask, make_row):
    labelled = make_row("youtube", "Neutral", "No Feature")
    rows = ({**make_row(), "pair_id": f"p{number}"} for number in range(500))
    with ChatServer(Reply(status=400, error="no such parameter")) as server:
        with pytest.raises(EndpointError, match="20 of 20 pairs.*no such parameter"):
            list(annotate_rows(rows, ask(server, concurrency=2)))
        assert len(server.requests) <= 40
        # Pairs with labels of their source are no questions, and few pairs are counted at the end.
        with pytest.raises(EndpointError, match="1 of 1 pairs"):
            list(annotate_rows([labelled] * 30 + [make_row()], ask(server)))
        *kept, skip = annotate_rows([labelled, make_row()], ask(server), max_failed=1.0)
    assert kept == [labelled] and skip.kind == "annotation_failed"
