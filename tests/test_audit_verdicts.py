import json

import pytest

from sdiareward.audit import checks, verdicts
from sdiareward.audit.attacks import ATTACKS
from sdiareward.audit.verdicts import FAIL, NOT_MEASURED, PASS, Limit, Measured, judge
from sdiareward.nuisances import NUISANCES


def given(**statuses):
    return [
        {"name": name.replace("_", "."), "status": status, "value": None if status == NOT_MEASURED else 0.5}
        for name, status in statuses.items()
    ]


def names(found):
    return [verdict["name"] for verdict in found]


def test_every_check_has_a_limit_and_every_limit_a_check():
    limits = verdicts.read_limits()
    used = {verdicts.limit_of(name, limits).pattern for name in checks.check_names()}
    assert used == {limit.pattern for limit in limits}
    with pytest.raises(KeyError, match="no limit is stated for the check 'nuisances.new'"):
        verdicts.limit_of("nuisances.new", limits)


def test_what_the_project_asks_for_is_in_the_limits():
    limits = {limit.pattern: limit for limit in verdicts.read_limits()}
    assert limits["nuisances.accuracy_change"].at_most == 0.02
    assert limits["nuisances.flip_rate"].at_most == 0.03
    assert limits["ties.identical"].at_most == 0.0


def test_there_is_a_check_for_every_nuisance_and_every_attack():
    assert {f"nuisance.{name}" for name in NUISANCES} | {f"attack.{name}" for name in ATTACKS} <= set(
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
    limit = Limit("a", "a", "reward", at_most=0.0)
    assert limit.is_kept(0.0)
    assert not limit.is_kept(1e-9)
    assert Limit("a", "a", "points", at_least=0.0).is_kept(0.0)


def test_any_fails_on_what_failed_and_a_name_also_on_what_was_not_measured():
    found = given(a=PASS, b=FAIL, c_x=NOT_MEASURED, c_y=FAIL)
    assert names(verdicts.select(found, [])) == []
    assert names(verdicts.select(found, ["any"])) == ["b", "c.y"]
    assert names(verdicts.select(found, ["a", "c.*"])) == ["c.x", "c.y"]
    assert names(verdicts.select(found, ["any", "c.x"])) == ["b", "c.x", "c.y"]
    assert verdicts.unknown_patterns(["any", "c.*", "d"], names(found)) == ["d"]


def test_what_passed_before_must_pass_again():
    earlier = given(a=PASS, b=FAIL, c=PASS, d=PASS, e=NOT_MEASURED)
    now = given(a=PASS, b=FAIL, c=FAIL, e=FAIL)
    # `d` is gone: what is not looked at is not known to hold.
    lost = verdicts.regressions(now, earlier)
    assert names(lost) == ["c", "d"]
    assert lost[1]["status"] == NOT_MEASURED


def test_an_earlier_audit_is_read_or_refused_by_name(tmp_path):
    path = tmp_path / "audit.json"
    with pytest.raises(FileNotFoundError, match=r"audit\.json: no such file"):
        verdicts.read_audit(path)
    for content in ("[]", "{", '{"verdicts": [{"name": "a"}]}', '{"verdicts": 3}'):
        path.write_text(content)
        with pytest.raises(ValueError, match="holds no verdicts"):
            verdicts.read_audit(path)
    path.write_text(json.dumps({"verdicts": given(a=PASS)}))
    assert names(verdicts.read_audit(path)["verdicts"]) == ["a"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {title: a, unit: share}", "one of the two"),
        ("a: {title: a, unit: share, at_most: 1, at_least: 0}", "one of the two"),
        ("a: {title: a, unit: share, at_mots: 1}", "at_mots"),
    ],
)
def test_a_file_of_limits_that_says_too_little_or_too_much_is_refused(text, message, tmp_path):
    path = tmp_path / "limits.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        verdicts.read_limits(path)


def test_values_are_written_in_their_unit():
    assert verdicts.show_value(0.0312, "share") == "3.1%"
    assert verdicts.show_value(-0.02, "points") == "-2.0 points"
    assert verdicts.show_value(0.12345, "ratio") == "0.123"
    assert verdicts.show_value(None, "share") == "n/a"
    assert verdicts.show_limit({"at_most": 0.0, "at_least": None, "unit": "reward"}) == "at most 0"
    assert verdicts.show_limit({"at_most": None, "at_least": 0.9, "unit": "ratio"}) == "at least 0.9"
