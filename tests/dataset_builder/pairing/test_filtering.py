import base64
import io
import json

import numpy as np
import pytest
import soundfile
from support.chat_server import ChatServer, Reply

from sdiareward.common.errors import Skipped
from sdiareward.common.llm import EndpointError
from sdiareward.dataset_builder.pairing.filtering import (
    DIMENSIONS,
    PROMPTS,
    FilterSettings,
    annotate_rows,
    check_rules,
    filter_rows,
)
from sdiareward.pairs.prompts import PromptSet
from sdiareward.pairs.schema import TAXONOMY
from sdiareward.perturbations.channel import encode_flac


LABELS = {"criterion": "modality", "subset": "scripted", "source": "amazon_queen", "primary": "Unknown"}
LABELS |= {"secondary": "Unknown", "synthesizer": "flite", "group_id": "g0", "language": "en", "license": "CC0-1.0"}


def verdict(chosen=(4, 5, 4), rejected=(4, 2, 3), **changes):
    scores = {
        dimension: {"A": chosen[index], "B": rejected[index]} for index, dimension in enumerate(DIMENSIONS.values())
    }
    return {"scores": scores, "overall_preference": "A", "reason": "A sounds meant.", **changes}


@pytest.fixture
def make_row(make_tone):
    """Return a function giving a pair whose turns are tones of their own pitch, as FLAC."""

    def make_turn(position, side):
        tone = make_tone(0.1, 200.0 + 50 * position + 400 * (side == "rejected"))
        audio = {"bytes": encode_flac(tone), "path": f"{side}-{position}.flac"}
        role = ("user", "assistant")[position % 2]
        return {"role": role, "text": f"words {position}", "audio": audio, "duration_s": 0.1}

    def make(pair_id="p0", turns=2, **changes):
        sides = {side: [make_turn(position, side) for position in range(turns)] for side in ("chosen", "rejected")}
        return {"pair_id": pair_id, **LABELS, **sides, "quality": None, **changes}

    return make


def swap_roles(row):
    row["chosen"][0]["role"], row["chosen"][1]["role"] = "assistant", "user"


@pytest.mark.parametrize(
    ("turns", "spoil", "kind"),
    [
        (16, lambda row: None, None),
        (18, lambda row: None, "turn_count"),
        (2, lambda row: row["rejected"].pop(), "turn_count"),
        (2, swap_roles, "turn_order"),
        (2, lambda row: row["chosen"][1].update(duration_s=60.1), "turn_duration"),
        (2, lambda row: row["chosen"][1].update(duration_s=None), "invalid_row"),
        (2, lambda row: row.update(license="", rejected=row["rejected"][:1]), "invalid_row"),
        (2, lambda row: row.pop("subset"), "invalid_row"),
    ],
)
def test_a_pair_that_breaks_a_rule_is_dropped_under_the_name_of_the_rule(make_row, turns, spoil, kind):
    row = make_row(turns=turns)
    spoil(row)
    skip = check_rules(row)
    assert skip is None if kind is None else (skip.kind, "pair p0" in skip.item) == (kind, True)


def heard(part):
    data = io.BytesIO(base64.b64decode(part["input_audio"]["data"]))
    return soundfile.read(data, dtype="int16")[0]


def test_the_judge_hears_both_versions_and_reads_none_and_its_scores_are_the_column_quality(ask, make_row):
    row = make_row(turns=4)
    with ChatServer(verdict()) as server:
        (kept,) = filter_rows([row], ask(server))
    system, user = server.requests[0]["messages"]
    assert system == {"role": "system", "content": PromptSet().fill("filter")}
    parts = user["content"]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    version = ["turn 1, user:", "turn 2, assistant:", "turn 3, user:", "last turn, assistant:"]
    assert texts[:-1] == ["Version A:", *version, "Version B:", *version]
    audio = [heard(part) for part in parts if part["type"] == "input_audio"]
    for array, turn in zip(audio, [*row["chosen"], *row["rejected"]], strict=True):
        sent, _ = soundfile.read(io.BytesIO(turn["audio"]["bytes"]), dtype="int16")
        np.testing.assert_array_equal(array, sent)
    assert "words" not in "".join(texts) and "amazon" not in json.dumps(server.requests)
    assert {**kept, "quality": None} == row
    assert kept["quality"] == {
        "chosen": {"content": 4, "naturalness": 5, "coherence": 4},
        "rejected": {"content": 4, "naturalness": 2, "coherence": 3},
        "judge": "writer",
        "prompt_version": PromptSet().compute_version(*PROMPTS),
    }


@pytest.mark.parametrize(
    ("answer", "settings", "low"),
    [
        (verdict(rejected=(3, 1, 3)), {}, ""),
        (verdict(rejected=(2, 5, 2)), {}, "rejected content 2, rejected coherence 2"),
        (verdict(rejected=(2, 5, 2)), {"sides": ("chosen",)}, ""),
        (verdict(), {"min_score": 4, "dimensions": ("coherence",)}, "rejected coherence 3"),
    ],
)
def test_a_pair_is_kept_if_the_scores_that_count_reach_the_threshold(ask, make_row, answer, settings, low):
    with ChatServer(answer) as server:
        (result,) = filter_rows([make_row()], ask(server), FilterSettings(**settings))
    if low:
        assert isinstance(result, Skipped) and result.kind == "low_quality"
        assert low in result.reason and "A sounds meant." in result.reason
    else:
        assert result["quality"]["judge"] == "writer"


@pytest.mark.parametrize(
    ("bad", "remark"),
    [
        ({"scores": {}}, "final_turn_content"),
        (verdict(chosen=(4, 6, 4)), "final_turn_naturalness_prosody"),
        (verdict(rejected=(4, 2, 3.5)), "dialog_context_coherence"),
    ],
)
def test_an_invalid_verdict_is_asked_for_again_with_the_field(ask, make_row, bad, remark):
    with ChatServer(bad, verdict(reason="word " * 200)) as server:
        (kept,) = filter_rows([make_row()], ask(server))
    assert kept["quality"]["judge"] == "writer"
    assert remark in server.requests[1]["messages"][-1]["content"]


def test_a_judge_that_fails_for_good_costs_its_pair_unless_the_settings_keep_it(ask, make_row):
    rows = [make_row("p0"), make_row("p1", turns=4)]
    with ChatServer("hm", "hm", "hm", verdict()) as server:
        client = ask(server, concurrency=1)
        skip, kept = filter_rows(rows, client, FilterSettings(max_failed=0.5))
    assert (skip.kind, skip.item, "'hm'" in skip.reason) == ("judge_failed", "amazon_queen pair p0", True)
    assert (kept["pair_id"], client.usage["failures"]) == ("p1", 1)
    with ChatServer("hm") as server:
        unjudged, again = filter_rows(rows, ask(server), FilterSettings(keep_unjudged=True))
    assert unjudged == rows[0]
    assert again["quality"] == kept["quality"]


def test_what_is_not_judged_passes_and_what_cannot_be_heard_costs_its_pair(ask, make_row):
    script = make_row(criterion="colloquialness", subset="colloquialness", source="colloquial_scripts")
    deaf = make_row(source="youtube")
    deaf["chosen"][1]["audio"]["bytes"] = b"no audio"
    with ChatServer(verdict()) as server:
        judged = list(filter_rows([script, {**deaf, "primary": "Neutral", "secondary": "No Feature"}], ask(server)))
        labelled = list(annotate_rows([script, deaf], ask(server)))
        assert not server.requests
    assert [found[0] for found in (judged, labelled)] == [script] * 2
    assert [found[1].kind for found in (judged, labelled)] == ["unusable_audio"] * 2
    assert "chosen turn 1" in judged[1].reason


@pytest.mark.parametrize(
    "changes",
    [{"min_score": 6}, {"dimensions": ("prosody",)}, {"max_failed": 1.5}],
)
def test_settings_outside_their_vocabulary_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        FilterSettings(**changes)


FOUND = {"primary": "sadness", "secondary": " FILLED PAUSES "}


@pytest.fixture
def unlabelled(make_row):
    def make(source="youtube", primary="", secondary="", criterion="modality"):
        return make_row(source=source, primary=primary, secondary=secondary, criterion=criterion, rejected="not heard")

    return make


def test_missing_labels_are_asked_for_and_spelt_as_in_table_5(ask, unlabelled):
    row = unlabelled(primary="Unknown", secondary="Unknown")
    with ChatServer(FOUND) as server:
        # The pairs of one recording cost one question.
        labelled, *_ = annotate_rows([row] * 3, ask(server))
        assert len(server.requests) == 1
    assert labelled == {**row, "primary": "Sadness", "secondary": "Filled Pauses"}
    system, user = server.requests[0]["messages"]
    for label in (*TAXONOMY["youtube"][0], *TAXONOMY["youtube"][1]):
        assert label in system["content"]
    assert [part["type"] for part in user["content"]] == ["text", "input_audio"] * 2 + ["text"]


def test_a_label_outside_table_5_is_asked_for_again_and_then_drops_the_pair(ask, unlabelled):
    with ChatServer("[]", {"primary": "Joy", "secondary": "Laughter"}) as server:
        client = ask(server)
        (skip,) = annotate_rows([unlabelled()], client, max_failed=1.0)
    assert isinstance(skip, Skipped) and skip.kind == "annotation_failed" and "'Joy'" in skip.reason
    assert (len(server.requests), client.usage["failures"]) == (2, 1)


def test_labelled_pairs_do_not_count_as_questions_of_which_too_many_fail(ask, unlabelled):
    labelled = unlabelled("youtube", "Neutral", "No Feature")
    with ChatServer(Reply(status=400, error="no such parameter")) as server:
        with pytest.raises(EndpointError, match="1 of 1 pairs.*no such parameter"):
            list(annotate_rows([labelled] * 30 + [unlabelled()], ask(server)))
        *kept, skip = annotate_rows([labelled, unlabelled()], ask(server), max_failed=1.0)
    assert kept == [labelled] and skip.kind == "annotation_failed"
