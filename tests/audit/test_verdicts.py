import json

import pytest

from sdiareward.audit import checks, verdicts
from sdiareward.audit.checks import read_trained_with
from sdiareward.audit.verdicts import FAIL, NOT_MEASURED, PASS, Limit, Measured, judge
from sdiareward.common.package_files import SMALL
from sdiareward.common.provenance import write_provenance
from sdiareward.perturbations.attacks import ATTACKS
from sdiareward.perturbations.registry import HELD_OUT, PERTURBATIONS
from sdiareward.scoring.model_spec import ModelSpec


def given(**statuses):
    return [
        {"name": name.replace("_", "."), "status": status, "value": None if status == NOT_MEASURED else 0.5}
        for name, status in statuses.items()
    ]


def names(found):
    return [verdict["name"] for verdict in found]


def test_every_check_has_a_limit_and_every_limit_a_check():
    limits = verdicts.read_limits()
    used = {verdicts.find_limit(name, limits).pattern for name in checks.check_names()}
    assert used == {limit.pattern for limit in limits}
    with pytest.raises(KeyError, match="no limit is stated for the check 'nuisances.new'"):
        verdicts.find_limit("nuisances.new", limits)


def test_what_the_project_asks_for_is_in_the_limits():
    limits = {limit.pattern: limit for limit in verdicts.read_limits()}
    assert limits["nuisances.accuracy_change"].at_most == 0.02
    assert limits["nuisances.flip_rate"].at_most == 0.03


def test_there_is_a_check_for_every_nuisance_and_every_attack():
    assert {f"nuisance.{name}" for name in PERTURBATIONS} | {f"attack.{name}" for name in ATTACKS} <= set(
        checks.check_names()
    )


def test_the_limit_itself_still_passes():
    limits = [Limit("a.*", "the {}", "share", at_most=0.03), Limit("b", "b", "ratio", at_least=0.9)]
    found = judge({"a.x": Measured(0.03), "a.y": Measured(0.0301), "b": Measured(0.9)}, limits)
    assert [verdict["status"] for verdict in found] == [PASS, FAIL, PASS]
    assert found[0] == {
        "name": "a.x",
        "title": "the x",
        "value": 0.03,
        "unit": "share",
        "at_most": 0.03,
        "at_least": None,
        "status": PASS,
        "detail": "",
    }
    assert judge({"b": Measured(None)}, limits)[0]["status"] == NOT_MEASURED


def test_a_limit_of_zero_is_a_limit():
    limit = Limit("a", "a", "ratio", at_most=0.0)
    assert limit.is_kept(0.0)
    assert not limit.is_kept(1e-9)
    assert Limit("a", "a", "points", at_least=0.0).is_kept(0.0)
    assert Limit("a", "a", "points", at_least=0.05).is_kept(0.95 - 0.9)


def test_any_fails_on_what_failed_and_a_name_also_on_what_was_not_measured():
    found = given(a=PASS, b=FAIL, c_x=NOT_MEASURED, c_y=FAIL)
    assert names(verdicts.select(found, [])) == []
    assert names(verdicts.select(found, ["any"])) == ["b", "c.y"]
    assert names(verdicts.select(found, ["a", "c.*"])) == ["c.x", "c.y"]
    assert names(verdicts.select(found, ["any", "c.x"])) == ["b", "c.x", "c.y"]
    assert verdicts.find_unknown_patterns(["any", "c.*", "d"], names(found)) == ["d"]


def test_any_does_not_pass_where_nothing_was_measured():
    assert names(verdicts.select(given(a=NOT_MEASURED, b=NOT_MEASURED), ["any"])) == ["a", "b"]


def of_perturbations(*rates, num_pairs=(10, 10)):
    """What an audit of ten pairs measured: by perturbation the flip rate, the first of them by two severities."""
    worst = {"nuisance": "gain", "severity": 6.0, "place": "both", "flip_rate": 0.5}
    rows = [
        {"nuisance": name, "flip_rate": rate, "worst": worst} for name, rate in zip(PERTURBATIONS, rates, strict=False)
    ]
    cells = [{"nuisance": row["nuisance"], "num_pairs": count} for row in rows for count in num_pairs]
    total = {"flip_rate": 0.1, "worst": worst}
    parts = dict.fromkeys(("attacks", "hearing"))
    return {**parts, "num_pairs": 10, "nuisances": {"rows": cells, "by_nuisance": rows, "total": total}}


def test_a_total_over_some_changes_says_over_how_many():
    some, every = (checks.measure_checks(of_perturbations(*[0.1] * count)) for count in (2, len(PERTURBATIONS)))
    assert some["nuisances.flip_rate"].detail == f"over 2 of {len(PERTURBATIONS)} changes"
    worst = some["nuisances.worst_flip_rate"].detail
    assert worst == f"level 6 dB, on both sides; over 2 of {len(PERTURBATIONS)} changes"
    assert every["nuisances.flip_rate"].detail == ""
    # Pairs that could not be scored under a change are not counted in it.
    first = next(iter(PERTURBATIONS))
    found = checks.measure_checks(of_perturbations(0.0, num_pairs=(10, 4)))[f"nuisance.{first}"]
    assert found.detail.endswith("; a severity on 4 of 10 pairs only")
    assert "only" not in checks.measure_checks(of_perturbations(0.0))[f"nuisance.{first}"].detail


def test_a_verdict_says_whether_the_model_was_trained_with_what_it_withstands():
    first, second, *_ = PERTURBATIONS
    audit = {**of_perturbations(0.0, 0.0), "trained_with": {"nuisances": [second], "attacks": ["silence"]}}
    row = {"attack": "silence", "num_pairs": 4, "paid": 0.0, "paid_before": None, "gain": 0.5}
    found = checks.measure_checks({**audit, "attacks": [row, {**row, "attack": "loudest"}]})
    assert found["nuisances.flip_rate"].detail.endswith("changes; 1 of 2 in training")
    assert found[f"nuisance.{second}"].detail.endswith("; trained with it")
    assert "trained" not in found[f"nuisance.{first}"].detail
    assert found["attack.silence"].detail == "on 4, mean gain +0.50; trained with it"
    assert found["attack.loudest"].detail == "on 4, mean gain +0.50"


def test_the_held_out_channels_have_a_mean_of_their_own_without_those_of_training():
    rates = {name: 0.2 if name == "opus" else 0.4 if name in HELD_OUT else 0.0 for name in PERTURBATIONS}
    audit = of_perturbations(*rates.values())
    found = checks.measure_checks(audit)["nuisances.held_out_flip_rate"]
    assert found.value == pytest.approx(1.0 / 3) and found.detail == "over pink noise, narrow band, opus"
    trained = {"nuisances": ["narrow_band", "pink_noise"], "attacks": []}
    found = checks.measure_checks({**audit, "trained_with": trained})["nuisances.held_out_flip_rate"]
    assert found == Measured(0.2, "over opus")
    trained = {"nuisances": list(HELD_OUT), "attacks": []}
    found = checks.measure_checks({**audit, "trained_with": trained})["nuisances.held_out_flip_rate"]
    assert found == Measured(None, "all of them in training")


def test_what_a_checkpoint_of_the_package_was_trained_with_is_found_by_its_name():
    found = read_trained_with(ModelSpec("nano").checkpoint)
    assert "speed" in found["nuisances"] and "silence" in found["attacks"]


def test_what_all_stages_of_the_small_model_were_trained_with_is_in_its_record():
    # Its record is copied when it is put on its base, which takes longer than any other test of this file.
    found = read_trained_with(str(SMALL))
    assert "speed" in found["nuisances"]
    assert set(found["attacks"]) == {"foreign_ending", "foreign_transcript", "silence"}


def test_what_a_model_was_trained_with_is_read_from_its_record(tmp_path):
    assert read_trained_with(str(tmp_path)) is None
    record = tmp_path / "run.json"
    write_provenance(record, arguments={"augmentations": ["channel", "speed"], "hard_negatives": ["silence"]})
    found = read_trained_with(str(tmp_path))
    assert found["attacks"] == ["silence"] and {"gain", "speed"} <= set(found["nuisances"])
    write_provenance(record, arguments={"train": "full"})
    assert read_trained_with(str(tmp_path)) == {"nuisances": [], "attacks": []}
    for text in ("[]", "{", '{"arguments": 3}', '{"arguments": {"augmentations": ["none such"]}}'):
        record.write_text(text)
        assert read_trained_with(str(tmp_path)) is None


def test_an_attack_on_sides_that_are_all_ahead_already_passes_nothing():
    row = {"num_pairs": 4, "paid": 0.0, "gain": 0.5}
    won = {**row, "paid": None, "paid_before": 1.0}
    assert checks._check_attack("a", won) == Measured(None, "all 4 were ahead without it", "a")
    found = checks._check_attack("a", {**row, "paid_before": 0.25})
    assert found == Measured(0.0, "on 4, the 25.0% ahead without it left out, mean gain +0.50", "a")
    assert checks._check_attack("a", {**row, "paid_before": None}).detail == "on 4, mean gain +0.50"


RUN = {"model": "a", "dtype": None, "split": "test", "pairs": "abc", "seed": 0}


def test_an_earlier_audit_must_be_of_the_same_pairs():
    earlier = {"run": {**RUN, "model": "b", "dtype": "bfloat16"}, "num_pairs": 58, "skipped": [{}, {}]}
    verdicts.require_same_pairs(earlier, RUN, 60)
    with pytest.raises(ValueError, match=r"of other pairs .seed was 0, is 1; num_pairs was 60, is 20.; audit both"):
        verdicts.require_same_pairs(earlier, {**RUN, "seed": 1}, 20)
    for silent in ({}, {**earlier, "run": None}, {**earlier, "run": {"seed": 0}}):
        with pytest.raises(ValueError, match="does not say which pairs it drew"):
            verdicts.require_same_pairs(silent, RUN, 60)


def test_what_passed_before_must_pass_again():
    earlier = given(a=PASS, b=FAIL, c=PASS, d=PASS, e=NOT_MEASURED)
    now = given(a=PASS, b=FAIL, c=FAIL, e=FAIL)
    # `d` is gone: what is not looked at is not known to hold.
    lost = verdicts.find_regressions(now, earlier)
    assert names(lost) == ["c", "d"]
    assert lost[1]["status"] == NOT_MEASURED


def test_an_earlier_audit_is_read_or_refused_by_name(tmp_path):
    path = tmp_path / "audit.json"
    with pytest.raises(FileNotFoundError, match=r"audit\.json: no such file"):
        verdicts.read_audit(path)
    path.write_text('{"verdicts": [{"name": "a"}]}')
    with pytest.raises(ValueError, match=r"audit\.json"):
        verdicts.read_audit(path)
    path.write_text(json.dumps({"verdicts": given(a=PASS)}))
    assert names(verdicts.read_audit(path)["verdicts"]) == ["a"]


@pytest.mark.parametrize("bounds", ["", ", at_most: 1, at_least: 0", ", at_mots: 1"])
def test_a_file_of_limits_that_says_too_little_or_too_much_is_refused(bounds, tmp_path):
    path = tmp_path / "limits.yaml"
    path.write_text(f"a: {{title: a, unit: share{bounds}}}")
    with pytest.raises(ValueError, match=r"one of the two|at_mots"):
        verdicts.read_limits(path)


def test_values_are_written_in_their_unit():
    assert verdicts.show_value(0.0312, "share") == "3.1%"
    assert verdicts.show_value(-0.02, "points") == "-2.0 points"
    assert verdicts.show_value(0.12345, "ratio") == "0.123"
    assert verdicts.show_value(None, "share") == "n/a"
    assert verdicts.show_limit({"at_most": 0.0, "at_least": None, "unit": "ratio"}) == "at most 0"
    assert verdicts.show_limit({"at_most": None, "at_least": 0.9, "unit": "ratio"}) == "at least 0.9"
