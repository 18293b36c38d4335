import io

import numpy as np
import pytest
import soundfile
from support import report_world

from sdiareward.evaluation.report import examples


LIMITS = ("embed_audio", "max_audio_characters")


def make_collector(options):
    return examples.Collector(**{name: options.pop(name) for name in LIMITS if name in options})


def lowest(**options):
    """Return the rows of a page's lowest margins and the recordings they play."""
    collector = make_collector(options)
    pairs = report_world.make_pairs(**options)
    labels = [{**label, "license": pairs["license"][0]} for label in report_world.make_labels(pairs)]
    return examples.describe_lowest(pairs, labels, report_world.make_scores(labels), collector), collector.clips


def clips_of(row):
    return [clip for side in ("chosen", "rejected") for turn in row[side] for clip in turn["clips"]]


def test_the_twenty_lowest_margins_are_shown_turn_by_turn_on_both_sides():
    rows, clips = lowest()
    margins = [row["margin"] for row in rows]
    assert len(margins) == 20
    assert margins == sorted(margins)
    row = rows[0]
    number = int(row["pair_id"].removeprefix("pair-"))
    assert [turn["role"] for turn in row["chosen"]] == ["user", "assistant"]
    assert row["rejected"][1]["text"] == f"so, um, hello {number} rejected"
    assert row["margin"] == row["chosen_reward"] - row["rejected_reward"]
    assert clips_of(row)[0]["duration_s"] == 0.25
    assert all(clip["clip"] in clips and clip["no_audio"] is None for clip in clips_of(row))


def test_only_licences_known_to_let_anyone_pass_recordings_on_count_as_open():
    named = ["CC-BY-SA-3.0", "CC0-1.0", "GPL-2.0-only", "LicenseRef-Flight-of-the-Amazon-Queen"]
    free = [*named, "Creative Commons Attribution license (reuse allowed)"]
    others = ["LicenseRef-YouTube", "LicenseRef-MELD", "MITRE internal", "unknown", "", None]
    assert [license for license in (*free, *others) if examples.is_redistributable(license)] == free


def test_a_page_plays_the_users_own_recordings_and_names_the_licences_that_keep_it_from_publication():
    array = np.zeros(4000, dtype=np.float32)
    collector = examples.Collector()
    assert collector.take(array, "CC0-1.0")[0] in collector.clips
    assert collector.private_licenses == set()
    assert collector.take(array, None) == (next(iter(collector.clips)), None)
    collector.take(array, "LicenseRef-YouTube")
    assert collector.private_licenses == {"unknown", "LicenseRef-YouTube"}
    careful = examples.Collector("open")
    assert careful.take(array, None) == (None, "its licence, unknown, is not known to let anyone pass it on")
    assert (careful.clips, careful.private_licenses) == ({}, set())
    assert examples.Collector("none").take(array, "CC0-1.0")[0] is None


@pytest.mark.slow
def test_audio_beyond_the_size_of_a_page_is_named():
    _, uris = lowest()
    limit = 5 * sum(map(len, uris.values())) // len(uris)
    rows, _ = lowest(max_audio_characters=limit)
    shown = [clip["clip"] for row in rows for clip in clips_of(row) if clip["clip"]]
    # A recording counts as often as it is played.
    assert 0 < sum(len(uris[key]) for key in shown) <= limit
    assert 4 <= len(shown) <= 6
    assert any(clip["no_audio"] == "the page would become too large" for row in rows for clip in clips_of(row))


def test_a_recording_that_cannot_be_read_any_more_is_named():
    pairs = report_world.make_pairs()
    labels = report_world.make_labels(pairs)

    def breaking(row):
        row["chosen"][0]["audio"] = {"bytes": b"not audio", "path": None}
        return row

    scores = report_world.make_scores(labels)
    rows = examples.describe_lowest(pairs.map(breaking), labels, scores, examples.Collector("all"))
    assert "cannot be decoded" in rows[0]["chosen"][0]["clips"][0]["no_audio"]


def test_an_encoded_clip_plays_back_and_is_the_same_whenever_it_is_made():
    tone = (0.3 * np.sin(2 * np.pi * 220 * np.arange(8000) / 16_000)).astype(np.float32)
    first, second = examples.encode_clip(tone), examples.encode_clip(tone)
    assert first == second
    decoded, rate = soundfile.read(io.BytesIO(first))
    assert rate == 16_000
    assert len(decoded) == 8000
    middle = slice(1000, 7000)
    assert np.abs(decoded - tone)[middle].max() < 0.02
