import json
import math
import shutil

import numpy as np
import pytest
from support.human_world import make_score, write_evaluation

from sdiareward.checkpoint_io.convert import convert_checkpoint, export_checkpoint
from sdiareward.checkpoint_io.models import fingerprint_model
from sdiareward.cli import main
from sdiareward.configuration_sdiareward import SDiaRewardConfig
from sdiareward.evaluation.calibrate import calibrate_checkpoint, find_calibration_warnings
from sdiareward.evaluation.scores import read_evaluation
from sdiareward.modeling_sdiareward import SDiaRewardModel
from sdiareward.scoring.calibration import NUM_QUANTILES, Calibration, fit, fit_offset_and_temperature, sigmoid
from sdiareward.scoring.scorer import Scorer


# Two subsets on different places of the scale; the first holds three pairs, the second one.
REWARDS = [[3.0, 1.0], [4.0, 2.0], [5.0, 3.0], [-6.0, -8.0]]
SUBSETS = ["wild", "wild", "wild", "colloquialness"]
CRITERIA = ["modality"] * 3 + ["colloquialness"]


@pytest.fixture(scope="module")
def parameters():
    return fit(REWARDS, SUBSETS, CRITERIA, prompt_version="1", data={"split": "validation"})


@pytest.fixture
def scorer(make_tiny_model, tiny_processor, parameters):
    return Scorer(make_tiny_model(calibration=parameters), tiny_processor)


def test_the_offset_of_mirrored_rewards_is_their_middle_and_the_temperature_solves_its_equation():
    offset, temperature = fit_offset_and_temperature([3.0, 3.0], [1.0, 1.0])
    assert offset == pytest.approx(2.0, abs=1e-9)
    # All four rewards are one standard deviation (1.0) from the middle; where the derivative of
    # 4 log(1 + exp(-1 / T)) + log(T)^2 / 2 by log(T) is zero:
    assert 4 / temperature / (1 + math.exp(1 / temperature)) + math.log(temperature) == pytest.approx(0.0, abs=1e-6)


def test_the_log_odds_of_two_normal_distributions_are_recovered_at_any_scale():
    # Of equal variance: log-odds 2 d (r - m) / s^2 for means m + d and m - d.
    chosen, rejected = np.random.default_rng(0).normal([[2.5], [1.5]], 1.0, (2, 20_000))
    offset, temperature = fit_offset_and_temperature(chosen, rejected)
    assert (offset, temperature) == pytest.approx((2.0, 1.0), abs=0.03)
    scaled = fit_offset_and_temperature(10 * chosen - 7, 10 * rejected - 7)
    assert scaled == pytest.approx((10 * offset - 7, 10 * temperature), rel=1e-5)


@pytest.mark.parametrize(
    ("chosen", "rejected"),
    [([5.0, 6.0], [-5.0, -6.0]), ([0.0, 1.0], [2.0, 3.0]), ([1.0, 1.0], [1.0, 1.0]), ([1.0], [0.0])],
    ids=["separated", "upside down", "all the same", "one pair"],
)
def test_every_data_gives_a_finite_offset_and_a_positive_finite_temperature(chosen, rejected):
    offset, temperature = fit_offset_and_temperature(chosen, rejected)
    assert min(chosen + rejected) <= offset <= max(chosen + rejected)
    assert 0 < temperature < 100


def test_by_subset_is_the_formula_with_the_parameters_of_each_subset(parameters):
    calibration, fitted = Calibration(parameters), parameters["subsets"]
    assert [fitted[name]["num_pairs"] for name in ("wild", "colloquialness")] == [3, 1]
    assert fitted["wild"]["offset"] == pytest.approx(3.0, abs=1e-6)
    for subset, of_subset in fitted.items():
        expected = (3.5 - of_subset["offset"]) / of_subset["temperature"]
        assert calibration.by_subset(3.5, subset) == expected
        assert calibration.compute_probability(math.log(3) * of_subset["temperature"], subset) == pytest.approx(0.75)
    assert calibration.by_subset(-7.0, "colloquialness") == pytest.approx(0.0, abs=1e-6)
    with pytest.raises(ValueError, match="the calibration has the subsets"):
        calibration.compute_probability(1.0, "nowhere")
    assert [sigmoid(each) for each in (0.0, math.log(3), 800.0, -800.0)] == pytest.approx([0.5, 0.75, 1.0, 0.0])


def test_by_quantile_is_the_share_of_a_reference_in_which_subsets_weigh_the_same(parameters):
    calibration, table = Calibration(parameters), parameters["quantiles"]
    assert len(table) == NUM_QUANTILES
    assert (table[0], table[-1]) == (-8.0, 5.0)
    # The two rewards of the small subset stand for a quarter each, the six of the large one for a twelfth each.
    assert table[25] == pytest.approx(-7.0)
    assert calibration.by_quantile(-2.0, "joint") == pytest.approx(0.5, abs=0.05)
    # A criterion has a table of its own, an unknown one that of all pairs.
    values = [calibration.by_quantile(*each) for each in ((3.0, "modality"), (-7.0, "colloquialness"), (3.0, "joint"))]
    assert values == pytest.approx([0.5, 0.5, 0.75], abs=0.02)
    rising = [calibration.by_quantile(reward, "joint") for reward in np.linspace(-20, 20, 101)]
    assert rising == sorted(rising) and (rising[0], rising[-1]) == (0.0, 1.0)
    # A reward that occurs often is in the middle of its share.
    ties = Calibration(fit([[1.0, 0.0], [1.0, 0.0]], ["wild"] * 2))
    assert [ties.by_quantile(each, "joint") for each in (0.0, 0.5, 1.0)] == pytest.approx([0.18, 0.5, 0.82], abs=0.08)


def test_a_calibration_survives_saving_converting_and_exporting(make_tiny_model, tiny_processor, parameters, tmp_path):
    make_tiny_model(calibration=parameters).save_pretrained(tmp_path / "saved")
    tiny_processor.save_pretrained(tmp_path / "saved")
    convert_checkpoint(tmp_path / "saved", tmp_path / "converted")
    export_checkpoint(tmp_path / "saved", tmp_path / "exported", layout="official")
    for name in ("saved", "converted", "exported"):
        assert SDiaRewardModel.from_pretrained(tmp_path / name).config.calibration == parameters
    with pytest.raises(
        ValueError, match="calibration lacks quantiles, data; make it with sdiareward eval --calibrate"
    ):
        SDiaRewardConfig(calibration={k: v for k, v in parameters.items() if k not in ("quantiles", "data")})


def test_calibrated_scores_are_the_calibration_of_the_rewards(scorer, parameters, make_dialogue):
    dialogues, calibration = [make_dialogue(0.5, 0.4), make_dialogue(0.3, 0.6)], Calibration(parameters)
    criteria, subsets = ["modality", "joint"], ["colloquialness", "wild"]
    rewards = scorer.score(dialogues, criteria)
    given = {"calibrated": True}
    assert scorer.score(dialogues, criteria, **given) == list(map(calibration.by_quantile, rewards, criteria))
    by_subset = scorer.score(dialogues, criteria, subsets=subsets, **given)
    assert by_subset == list(map(calibration.by_subset, rewards, subsets))
    for_all = scorer.score(dialogues, criteria, subsets="wild", **given)
    assert for_all == list(map(calibration.by_subset, rewards, ["wild", "wild"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subsets": "wild"}, "subsets are for calibrated rewards"),
        ({"calibrated": True, "subsets": "radio"}, "has the subsets colloquialness, wild, not radio"),
        ({"calibrated": True, "subsets": ["wild"]}, "got 1 subsets for 2 dialogues"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_is_scored(scorer, make_dialogue, options, message):
    with pytest.raises(ValueError, match=message):
        scorer.iter_scores([make_dialogue(), make_dialogue()], **options)


def test_no_calibration_and_one_of_other_prompts_are_not_applied(parameters):
    for fields in ({}, {"calibration": parameters, "prompts": {"joint": "Other."}, "prompt_version": "2"}):
        with pytest.raises(ValueError, match="sdiareward eval --calibrate"):
            Calibration.of(SDiaRewardConfig(**fields))


@pytest.fixture
def finished(tmp_path, tiny_checkpoint):
    """Return a function writing a finished evaluation of the tiny checkpoint."""
    pairs = enumerate(zip(REWARDS, SUBSETS, CRITERIA, strict=True))
    scores = [
        make_score(index, chosen - rejected, subset, criterion=criterion, chosen=chosen)
        for index, ((chosen, rejected), subset, criterion) in pairs
    ]

    def write(**run):
        run = {"model": f"tiny ({fingerprint_model(str(tiny_checkpoint))})", "split": "validation", **run}
        return write_evaluation(tmp_path / "eval", scores, run)

    return write


def test_a_calibrated_copy_differs_in_its_configuration_alone(
    finished, tiny_checkpoint, tmp_path, parameters, make_dialogue
):
    output, evaluation = tmp_path / "calibrated", read_evaluation(finished())
    calibration = calibrate_checkpoint(tiny_checkpoint, evaluation, output)
    before, after = ({path.name: path.read_bytes() for path in f.iterdir()} for f in (tiny_checkpoint, output))
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == {"config.json"}
    old, new = (json.loads(files["config.json"]) for files in (before, after))
    assert new.pop("calibration") == calibration
    old.pop("calibration", None)
    assert old == new
    assert {**calibration, "data": None} == {**parameters, "data": None}
    assert calibration["data"] == {"split": "validation", "pairs": "abcd", "dtype": None}
    few = "fewer than 30 pairs of colloquialness (1), wild (3)"
    assert find_calibration_warnings(evaluation, tiny_checkpoint) == [few]
    plain, scorer = (Scorer.from_pretrained(folder) for folder in (tiny_checkpoint, output))
    [reward] = plain.score([make_dialogue()])
    assert scorer.score([make_dialogue()]) == [reward]
    shutil.rmtree(tmp_path / "eval")
    other = find_calibration_warnings(read_evaluation(finished(model="other (77)", split="test")), tiny_checkpoint)
    assert "this is the test split" in other[0]
    assert f"the scores are of other (77), but the files of {tiny_checkpoint} differ" in other[1]


def test_an_evaluation_calibrates_its_model(tiny_checkpoint, tone_pairs, tmp_path, capsys):
    tone_pairs.to_parquet(tmp_path / "pairs.parquet")
    words = ["--model", tiny_checkpoint, "--dataset", tmp_path / "pairs.parquet", "--no_baselines"]
    places = ["--output_dir", tmp_path / "eval", "--calibrate", tmp_path / "calibrated"]
    assert main(["eval", *map(str, [*words, *places])]) == 0
    captured = capsys.readouterr()
    assert captured.out.endswith(f"Calibrated checkpoint: {tmp_path / 'calibrated'}\n")
    assert "sdiareward: notice: fewer than 30 pairs" in captured.err
    assert json.loads((tmp_path / "calibrated" / "config.json").read_text())["calibration"]["subsets"]
    # The evaluation is finished, and the folder is not empty.
    assert main(["eval", *map(str, [*words, *places])]) == 2
    assert "nothing is overwritten" in capsys.readouterr().err


SPOILS = {
    "has no pairs": lambda folder, output: (folder / "scores.jsonl").write_text(""),
    "pair pair-007 has a missing or non-finite reward": lambda folder, output: (folder / "scores.jsonl").write_text(
        json.dumps(make_score(7, math.nan)) + "\n"
    ),
    "nothing is overwritten": lambda folder, output: output.mkdir() or (output / "x").touch(),
    "used other prompts for joint": lambda folder, output: (folder / "results.json").write_text(
        '{"run": {"prompts": {"joint": "Other."}}}'
    ),
    "convert it with sdiareward build convert": None,
}


@pytest.mark.parametrize("message", SPOILS)
def test_what_cannot_be_calibrated_is_refused_and_leaves_no_output(
    finished, tiny_checkpoint, fixtures_dir, tmp_path, message
):
    folder, output, checkpoint = finished(), tmp_path / "calibrated", fixtures_dir / "base_tiny"
    if SPOILS[message]:
        checkpoint = tiny_checkpoint
        SPOILS[message](folder, output)
    with pytest.raises((ValueError, FileExistsError), match=message):
        calibrate_checkpoint(checkpoint, read_evaluation(folder), output)
    assert not (output / "config.json").exists()
