"""Training on a share of the pairs of each kind."""

import pytest

from sdiareward.training.arguments import TrainArguments
from sdiareward.training.augmentation import AugmentationSettings, AugmentedPairs


@pytest.fixture(scope="module")
def pairs():
    import datasets

    kinds = [("modality", "Inform")] * 300 + [("joint", "context")] * 300 + [("joint", "fluency")] * 100
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rows = [
        {"pair_id": f"p{number}", "criterion": criterion, "primary": family, "chosen": turns, "rejected": turns}
        for number, (criterion, family) in enumerate(kinds)
    ]
    return datasets.Dataset.from_list(rows)


def count(pairs, shares, **options):
    rows = AugmentedPairs(pairs, AugmentationSettings(pair_shares=shares, **options))
    kinds = list(zip(rows["criterion"], rows["primary"], strict=True))
    return {kind: kinds.count(kind) for kind in [("modality", "Inform"), ("joint", "context"), ("joint", "fluency")]}


def test_a_family_goes_before_the_criterion_and_the_rest_is_whole(pairs):
    found = count(pairs, {"context": 0.5, "joint": 0.0})
    assert found[("modality", "Inform")] == 300
    assert found[("joint", "fluency")] == 0
    # Five standard deviations of a binomial draw.
    assert 150 - 43 < found[("joint", "context")] < 150 + 43


def test_a_synthesizer_goes_before_the_family(pairs):
    spoken = pairs.add_column("synthesizer", ["flite", "piper"] * (len(pairs) // 2))
    rows = AugmentedPairs(spoken, AugmentationSettings(pair_shares={"flite": 0.0, "context": 0.5, "joint": 0.0}))
    assert set(rows["synthesizer"]) == {"piper"}
    assert list(rows["criterion"]).count("modality") == 150
    assert 75 - 31 < list(rows["primary"]).count("context") < 75 + 31


def test_a_kind_goes_before_the_synthesizer(pairs):
    kinds = pairs.add_column("synthesizer", ["recording"] * len(pairs))
    kinds = kinds.add_column("secondary", ["transcript", "order"] * (len(pairs) // 2))
    rows = AugmentedPairs(kinds, AugmentationSettings(pair_shares={"transcript": 1.0, "recording": 0.0}))
    assert rows["secondary"] == ["transcript"] * 350


def test_the_draw_depends_on_the_seed_alone(pairs):
    def draw(seed):
        return AugmentedPairs(pairs, AugmentationSettings(pair_shares={"joint": 0.5}, seed=seed))["pair_id"]

    assert draw(0) == draw(0) != draw(1)


def test_what_is_made_of_a_pair_that_is_left_out_is_left_out(pairs):
    found = count(pairs, {"joint": 0.0}, augmentations=["gain"], hard_negatives=["foreign_ending"])
    assert found == {("modality", "Inform"): 900, ("joint", "context"): 0, ("joint", "fluency"): 0}


def test_a_kind_that_no_pair_has_is_refused(pairs):
    with pytest.raises(ValueError, match="names 'contxt', but no pair is of that kind; the pairs are of Inform, con"):
        count(pairs, {"contxt": 0.5})


def test_pairs_without_a_kind_are_whole_and_have_no_shares(pairs):
    bare = pairs.remove_columns(["criterion", "primary"])
    assert len(AugmentedPairs(bare, AugmentationSettings())) == len(bare)
    with pytest.raises(ValueError, match="names 'joint', but no pair is of that kind; the pairs are of no kind"):
        AugmentedPairs(bare, AugmentationSettings(pair_shares={"joint": 0.5}))


def test_a_share_out_of_range_is_refused():
    with pytest.raises(ValueError, match="pair_shares gives 2 for 'joint'; it must lie between 0 and 1"):
        TrainArguments("model", "data", pair_shares={"joint": 2})
