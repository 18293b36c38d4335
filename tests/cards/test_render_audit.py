import json
import shutil

import pytest

from sdiareward.audit.verdicts import Measured, judge
from sdiareward.cards.model_card import ModelRelease, render_model_repository_card
from sdiareward.cards.render_audit import GUIDE, VALIDITY, render_findings, render_guide, render_nano, render_validity


def make_audit(**values):
    verdicts = judge({name.replace("__", "."): Measured(value) for name, value in values.items()})
    natural = {"all": {"accuracy": 0.975, "natural_margin": 2.5}}
    counts = {"num_pairs": 12, "num_available": 40, "num_groups": 7}
    return {**counts, "natural": natural, "verdicts": verdicts, "skipped": [], "failures": []}


def test_both_guides_are_as_they_are_rendered():
    for path, render in ((GUIDE, render_guide), (VALIDITY, render_validity)):
        guide = path.read_text(encoding="utf-8")
        assert render(guide) == guide


def test_a_guide_without_a_block_is_refused():
    with pytest.raises(ValueError, match="no block 'nuisances'"):
        render_guide("# Audit\n")


def test_without_an_audit_the_guides_say_that_there_is_none(tmp_path):
    guide = GUIDE.read_text(encoding="utf-8")
    assert "Not audited yet" in render_guide(guide, tmp_path / "none.json", tmp_path / "none.json")
    assert render_findings(None).startswith("Not audited yet")


def test_before_and_after_stand_side_by_side(tmp_path):
    before = make_audit(nuisances__flip_rate=0.12, attack__silence=0.01, ties__auroc=0.8)
    now = make_audit(nuisances__flip_rate=0.02, attack__silence=0.5, ties__auroc=0.95)
    lines = render_nano(now, before).splitlines()
    assert lines[0] == (
        "12 of 40 pairs from 7 recordings or dialogues; 97.5% of them right as they are, natural margin 2.5; "
        "checks: 2 passed, 1 failed."
    )
    rows = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[3:7]] for line in lines[4:]}
    assert rows["nuisances.flip_rate"] == ["12.0%, failed", "2.0%", "at most 3.0%", "passed"]
    assert rows["attack.silence"] == ["1.0%, passed", "50.0%", "at most 5.0%", "FAILED"]
    paths = [tmp_path / name for name in ("now.json", "before.json")]
    for path, audit in zip(paths, (now, before), strict=True):
        path.write_text(json.dumps(audit))
    assert "12.0%, failed" in render_guide(GUIDE.read_text(encoding="utf-8"), *paths)


def test_findings_name_what_fails_the_worst_first_and_what_was_not_measured():
    audit = make_audit(
        nuisances__flip_rate=0.12,
        attack__silence=0.3,
        attack__clicks=0.5,
        attack__longest=0.0,
        attack__vocoded=None,
        ties__auroc=0.95,
        hearing__audio_only__modality=None,
    )
    lines = render_findings(audit).splitlines()
    assert "12.0% (at most 3.0%)" in lines[1]
    (attacks,) = (line for line in lines if line.startswith("- **Attacks that must not pay.**"))
    assert "1 of 4 checks passed, 1 not measured. Failed: " in attacks
    assert attacks.index("clicks") < attacks.index("silence")
    assert "- **Ties.** 1 of 1 checks passed." in lines
    assert "- **What it hears.** Not measured." in lines


def test_the_card_of_a_checkpoint_shows_the_audit_that_lies_with_it(tiny_checkpoint, tmp_path):
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "model")
    assert "## Audit" not in render_model_repository_card(ModelRelease(folder))
    (folder / "audit.json").write_text(json.dumps(make_audit(attack__silence=0.3)))
    card = render_model_repository_card(ModelRelease(folder))
    assert "\n## Audit\n\n- **Sample.** 12 of 40 pairs" in card
    assert card.index("## Measured") < card.index("## Audit") < card.index("## Made with")
