"""The invariants that the doctor measures: they hold for a sound model, and each is seen to break."""

import itertools
import json
import os

import pytest
import torch

from sdiareward.cli import main
from sdiareward.doctor import invariants, subject
from sdiareward.doctor.findings import FAILED, PASSED, SKIPPED, WARNING, Settings
from sdiareward.doctor.invariants import list_invariant_checks
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.scoring.batching import DialoguePreparer, build_prefix_tree
from sdiareward.scoring.tolerances import SAME_REWARD


CHECKS = {check.name: check for check in list_invariant_checks()}
MEASURED = [
    "repeated = identical",
    "alone = batch",
    "left = right padding",
    "eager attention",
    "prefix reuse on = off",
    "cached features = audio",
    "half precision ~ float32",
    "saved = loaded",
]


@pytest.fixture
def settings(tiny_checkpoint):
    subject.load_subject.cache_clear()
    yield Settings(str(tiny_checkpoint), device="cpu")
    subject.load_subject.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURED)
def test_a_sound_model_passes_with_the_number_measured_and_its_limit(name, settings):
    outcome = CHECKS[name].function(settings)
    assert outcome.status == PASSED
    assert 0 <= outcome.measured <= outcome.limit
    assert outcome.details["num_dialogues"] == len(subject.read_example_dialogues())


@pytest.mark.slow
def test_the_limits_are_those_stated_for_the_dtypes(settings):
    rewards = subject.load_subject(settings).rewards
    assert max(map(abs, rewards)) < 1.0, "else limits are scaled"
    limits = {name: CHECKS[name].function(settings).limit for name in (MEASURED[0], MEASURED[2], MEASURED[6])}
    assert list(limits.values()) == [0.0, SAME_REWARD["float32"], SAME_REWARD["bfloat16"]]


def shift_each_call(model):
    """Let every pass give another reward."""
    calls = itertools.count()
    model.score.register_forward_hook(lambda module, inputs, output: output + next(calls))


def shift_by_length(model):
    """Let rewards depend on how many tokens are computed together."""
    model.model.language_model.norm.register_forward_hook(
        lambda module, inputs, output: output + 1e-3 * output.shape[1]
    )


def shift_eager(model):
    """Let one attention give other rewards than the others."""
    language_model = model.model.language_model
    language_model.norm.register_forward_hook(
        lambda module, inputs, output: output + (language_model.config._attn_implementation == "eager")
    )


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("repeated = identical", shift_each_call),
        ("alone = batch", shift_by_length),
        ("left = right padding", shift_by_length),
        ("eager attention", shift_eager),
        ("prefix reuse on = off", shift_by_length),
        ("cached features = audio", shift_each_call),
    ],
)
def test_a_model_that_breaks_an_invariant_fails_it(name, fault, settings):
    fault(subject.load_subject(settings).scorer.model)
    outcome = CHECKS[name].function(settings)
    assert outcome.status == FAILED
    assert outcome.measured > outcome.limit
    assert "report this" in outcome.remedy


@pytest.mark.slow
@pytest.mark.parametrize("name", ["half precision ~ float32", "saved = loaded"])
def test_a_copy_whose_rewards_are_others_fails(name, settings):
    subject.load_subject(settings).rewards[2] += 0.5
    outcome = CHECKS[name].function(settings)
    assert (outcome.status, outcome.measured) == (FAILED, pytest.approx(0.5, abs=0.1))


@pytest.mark.slow
def test_tensors_that_are_not_those_saved_fail(settings, monkeypatch):
    save = SDiaRewardModel.save_pretrained

    def save_another(model, folder):
        with torch.no_grad():
            model.score.weight.mul_(1 + 1e-6)
        save(model, folder)
        with torch.no_grad():
            model.score.weight.div_(1.5)

    monkeypatch.setattr(SDiaRewardModel, "save_pretrained", save_another)
    outcome = CHECKS["saved = loaded"].function(settings)
    assert (outcome.status, outcome.found) == (FAILED, "tensors are not those that were saved")


def test_a_reward_that_is_not_a_number_fails_whatever_the_others_are():
    outcome = invariants._compare({"a": [1.0, float("nan")], "b": [1.0, 2.0]}, [1.0, 2.0], 1e-4)
    assert outcome.status == FAILED
    assert outcome.measured != outcome.measured


def test_the_dialogues_share_more_than_the_prompt(settings):
    found = subject.load_subject(settings)
    count = len(found.dialogues)
    prepared = DialoguePreparer(found.scorer.processor)(range(count), found.dialogues, [found.criterion] * count)
    segments, _ = build_prefix_tree(prepared.dialogues, True)
    parents = [segment.parent for segment in segments]
    assert parents.count(None) == 1
    assert any(parent is not None and parents[parent] is not None for parent in parents)


def test_what_cannot_be_computed_here_is_skipped_with_the_reason(settings, monkeypatch):
    flash = CHECKS["flash_attention_2 attention"].function(settings)
    assert (flash.status, "flash_attn" in flash.found) == (SKIPPED, True)
    assert CHECKS["sdpa attention"].function(settings).status == SKIPPED
    monkeypatch.setattr(invariants, "read_available_memory_bytes", lambda: 1000)
    for name in ("half precision ~ float32", "saved = loaded"):
        outcome = CHECKS[name].function(settings)
        assert (outcome.status, outcome.found[:32]) == (SKIPPED, "a second copy of the weights wan")


def test_a_head_that_gives_the_same_to_all_is_a_warning(tiny_config, tiny_processor, tmp_path):
    SDiaRewardModel(tiny_config()).save_pretrained(tmp_path)
    tiny_processor.save_pretrained(tmp_path)
    outcome = CHECKS["checkpoint loads"].function(Settings(str(tmp_path), device="cpu"))
    assert outcome.status == WARNING
    assert "all dialogues get the same reward" in outcome.found


@pytest.mark.slow
def test_the_command_examines_a_checkpoint_and_shows_no_home_folder(tiny_checkpoint, tmp_path, monkeypatch, capfd):
    home = tmp_path / "margaret"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    (home / "model").symlink_to(tiny_checkpoint)
    output = home / "found.json"
    assert main(["doctor", "--model", str(home / "model"), "--output", str(output)]) == 0
    shown, errors = capfd.readouterr()
    record = json.loads(output.read_text())
    assert errors == ""
    assert shown.splitlines()[0] == "sdiareward doctor, checkpoint: ~/model"
    assert "margaret" not in shown + output.read_text()
    found = {check["name"]: check for check in record["checks"]}
    assert [name for name in MEASURED if found[name]["status"] != "passed"] == []
    assert (record["model"], record["exit_status"]) == ("~/model", 0)
    assert sorted(os.listdir(home)) == ["found.json", "model"]


def test_a_folder_that_holds_no_model_is_at_fault_itself(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    outcome = CHECKS["checkpoint loads"].function(Settings(str(tmp_path), device="cpu"))
    assert (outcome.status, dict(outcome.details)) == (FAILED, {"unusable_checkpoint": True})
    assert "cannot be loaded" in outcome.found
