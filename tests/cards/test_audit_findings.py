import json
import shutil

from support.made_audit import make_audit

from sdiareward.cards.audit_findings import render_findings
from sdiareward.cards.model_card import ModelRelease, render_model_repository_card


def test_findings_name_what_fails_the_worst_first_and_what_was_not_measured():
    audit = make_audit(
        nuisances__flip_rate=0.12,
        attack__silence=0.3,
        attack__clicks=0.5,
        attack__longest=0.0,
        attack__vocoded=None,
        hearing__audio_only__modality=None,
        baselines__modality=0.06,
    )
    lines = render_findings(audit).splitlines()
    assert "12.0% (at most 3.0%)" in lines[1]
    (attacks,) = (line for line in lines if line.startswith("- **Attacks that must not pay.**"))
    assert "1 of 4 checks passed, 1 not measured. Failed: " in attacks
    assert attacks.index("clicks") < attacks.index("silence")
    assert "- **Beside cheap baselines.** 1 of 1 checks passed." in lines
    assert "- **What it hears.** Not measured." in lines


def test_the_card_of_a_checkpoint_shows_the_audit_that_lies_with_it(tiny_checkpoint, tmp_path):
    folder = shutil.copytree(tiny_checkpoint, tmp_path / "model")
    assert "## Audit" not in render_model_repository_card(ModelRelease(folder))
    (folder / "audit.json").write_text(json.dumps(make_audit(attack__silence=0.3)))
    card = render_model_repository_card(ModelRelease(folder))
    assert "\n## Audit\n\n- **Sample.** 12 of 40 pairs" in card
    assert card.index("## Measured") < card.index("## Audit") < card.index("## Made with")
