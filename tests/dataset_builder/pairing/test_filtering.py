import base64
import io
import json

import numpy as np
import pytest
import soundfile
from support import repository_world
from support.chat_server import ChatServer

from sdiareward.common.errors import Skipped
from sdiareward.common.llm import EndpointError
from sdiareward.dataset_builder.pairing import filtering
from sdiareward.dataset_builder.pairing.filtering import DIMENSIONS, FilterSettings, annotate_rows, filter_rows
from sdiareward.pairs.prompts import PromptSet
from sdiareward.pairs.schema import TAXONOMY
from sdiareward.perturbations.channel import encode_flac


def verdict(chosen=(4, 5, 4), rejected=(4, 2, 3), **changes):
    names = DIMENSIONS.values()
    scores = {name: {"A": a, "B": b} for name, a, b in zip(names, chosen, rejected, strict=True)}
    return {"scores": scores, "overall_preference": "A", "reason": "A sounds meant.", **changes}


@pytest.fixture
def make_row(make_tone):
    """Return a function giving a pair whose turns are tones of their own pitch, as FLAC."""
    labels = {"source": "amazon_queen", "subset": "scripted", "synthesizer": "flite", "license": "CC0-1.0"}

    def make(pair_id="p0", turns=2, **changes):
        row = repository_world.make_row(pair_id, **labels)
        for side, hertz in (("chosen", 200.0), ("rejected", 600.0)):
            audio = [encode_flac(make_tone(0.1, hertz + 50 * place)) for place in range(turns)]
            roles, found = ("user", "assistant") * (turns // 2), {"duration_s": 0.1, "audio_ref": []}
            sounds = [{"audio": {"bytes": data, "path": "a.flac"}, **found} for data in audio]
            row[side] = [{"role": roles[n], "text": f"words {n}", **sound} for n, sound in enumerate(sounds)]
        return {**row, **changes}

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
    skip = filtering.check_rules(row)
    assert skip is None if kind is None else (skip.kind, "pair p0" in skip.item) == (kind, True)


def test_the_judge_hears_both_versions_and_reads_none_and_its_scores_are_the_column_quality(ask, make_row):
    row = make_row(turns=4)
    with ChatServer(verdict()) as server:
        (kept,) = filter_rows([row], ask(server))
    system, user = server.requests[0]["messages"]
    assert system == {"role": "system", "content": PromptSet().fill("filter")}
    texts = [part["text"] for part in user["content"] if part["type"] == "text"]
    version = ["turn 1, user:", "turn 2, assistant:", "turn 3, user:", "last turn, assistant:"]
    assert texts[:-1] == ["Version A:", *version, "Version B:", *version]
    audio = [part["input_audio"]["data"] for part in user["content"] if part["type"] == "input_audio"]
    for data, turn in zip(audio, [*row["chosen"], *row["rejected"]], strict=True):
        sent, own = (soundfile.read(io.BytesIO(b))[0] for b in (base64.b64decode(data), turn["audio"]["bytes"]))
        np.testing.assert_array_equal(sent, own)
    assert "words" not in "".join(texts) and "amazon" not in json.dumps(server.requests)
    assert {**kept, "quality": None} == row
    quality = {"judge": "writer", "prompt_version": PromptSet().compute_version(*filtering.PROMPTS)}
    for side, scores in (("chosen", (4, 5, 4)), ("rejected", (4, 2, 3))):
        quality[side] = dict(zip(DIMENSIONS, scores, strict=True))
    assert kept["quality"] == quality


def test_scores_keep_a_pair_an_invalid_verdict_is_asked_for_again_and_a_failure_costs_its_pair(ask, make_row):
    good, low = verdict(rejected=(3, 1, 3), reason="word " * 200), verdict(rejected=(2, 5, 2))
    wrong = {"scores": {}}, verdict(chosen=(4, 6, 4)), verdict(rejected=(4, 2, 3.5))
    rows = [make_row(f"p{number}", turns=2 * number + 2) for number in range(6)]
    with ChatServer(good, low, *(reply for each in wrong for reply in (each, good)), "hm", "hm") as server:
        client = ask(server, concurrency=1)
        kept, dropped, *again, failed = filter_rows(rows, client, FilterSettings(max_failed=0.5))
        assert [row["quality"]["judge"] for row in (kept, *again)] == ["writer"] * 4
        assert dropped.kind == "low_quality" and "A sounds meant." in dropped.reason
        assert "rejected content 2, rejected coherence 2" in dropped.reason
        assert (failed.kind, failed.item, "'hm'" in failed.reason) == ("judge_failed", "amazon_queen pair p5", True)
        remarks = [server.requests[number]["messages"][-1]["content"] for number in (3, 5, 7)]
        assert all(key in remark for key, remark in zip(DIMENSIONS.values(), remarks, strict=True))
        # Other settings ask nothing again.
        lenient, strict = FilterSettings(sides=("chosen",)), FilterSettings(min_score=4, dimensions=("coherence",))
        found = [*filter_rows(rows[:2], client, lenient), *filter_rows(rows[:2], client, strict)]
        assert [isinstance(row, Skipped) for row in found] == [False] * 2 + [True] * 2
        assert len(server.requests) == 10


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


def unlabelled(make_row, primary="", secondary=""):
    return make_row(source="youtube", primary=primary, secondary=secondary, rejected="not heard")


def test_missing_labels_are_asked_for_and_spelt_as_in_table_5(ask, make_row):
    row = unlabelled(make_row, "Unknown", "Unknown")
    with ChatServer({"primary": "sadness", "secondary": " FILLED PAUSES "}) as server:
        # The pairs of one recording cost one question.
        labelled, *_ = annotate_rows([row] * 3, ask(server))
        assert len(server.requests) == 1
    assert labelled == {**row, "primary": "Sadness", "secondary": "Filled Pauses"}
    system, user = server.requests[0]["messages"]
    assert all(label in system["content"] for labels in TAXONOMY["youtube"] for label in labels)
    assert [part["type"] for part in user["content"]] == ["text", "input_audio"] * 2 + ["text"]


def test_a_label_outside_table_5_is_asked_for_again_and_drops_the_pair_and_labelled_ones_cost_nothing(ask, make_row):
    labelled, row = unlabelled(make_row, "Neutral", "No Feature"), unlabelled(make_row)
    with ChatServer("[]", {"primary": "Joy", "secondary": "Laughter"}) as server:
        client = ask(server)
        *kept, skip = annotate_rows([labelled, row], client, max_failed=1.0)
        assert (len(server.requests), client.usage["failures"]) == (2, 1)
        with pytest.raises(EndpointError, match="1 of 1 pairs.*'Joy'"):
            list(annotate_rows([labelled] * 30 + [row], client))
    assert kept == [labelled] and skip.kind == "annotation_failed" and "'Joy'" in skip.reason
