"""The same thing has the same name in every command; older names are aliases."""

from dataclasses import fields
from pathlib import Path

import pytest

from sdiareward.cli import audit, calibrate, human, score
from sdiareward.common.arguments import parse_arguments
from sdiareward.common.package_files import NANO
from sdiareward.evaluation.arguments import EvalArguments
from sdiareward.judges.wavreward.train import JudgeArguments
from sdiareward.training.arguments import SDiaRewardModelConfig, SDiaRewardScriptArguments


NEEDED = {
    score.ScoreArguments: ["--dataset", "d", "--output_dir", "o"],
    audit.AuditArguments: ["--output_dir", "o"],
    calibrate.CalibrateArguments: ["c", "e"],
    human.SampleArguments: ["e"],
    human.CompareArguments: ["a", "b"],
    EvalArguments: ["--dataset", "d", "--output_dir", "o"],
    JudgeArguments: ["--dataset", "d"],
}
NAMES = [
    (score.ScoreArguments, "output", ["--output_dir", "--output-dir", "--output"]),
    (score.ScoreArguments, "name", ["--dataset_config", "--dataset_name", "--name"]),
    (audit.AuditArguments, "data", ["--dataset", "--data"]),
    (calibrate.CalibrateArguments, "output", ["--output_dir", "--output"]),
    (human.SampleArguments, "output", ["--output_dir", "--output"]),
    (human.CompareArguments, "output", ["--output_dir", "--output"]),
    (EvalArguments, "dataset_name", ["--dataset_config", "--dataset-config", "--dataset_name"]),
    (JudgeArguments, "model_name_or_path", ["--model", "--model_name_or_path"]),
]


@pytest.mark.parametrize(("kind", "name", "flag"), [(kind, name, flag) for kind, name, all in NAMES for flag in all])
def test_a_name_and_its_aliases_are_the_same_flag(kind, name, flag):
    (found,) = parse_arguments([kind], [*NEEDED[kind], flag, "x"], prog="p", description=None)
    assert getattr(found, name) in ("x", Path("x"))


def test_nano_is_the_default_model():
    (found,) = parse_arguments([EvalArguments], NEEDED[EvalArguments], prog="p", description=None)
    assert found.model == SDiaRewardModelConfig().model_name_or_path == str(NANO)


@pytest.mark.parametrize("kind", [*NEEDED, SDiaRewardScriptArguments, SDiaRewardModelConfig])
def test_every_flag_has_help(kind):
    assert [item.name for item in fields(kind) if item.init and not item.metadata.get("help")] == []
