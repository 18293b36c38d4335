"""Choose the pairs that the baselines are fitted on, or report why there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sdiareward.common.user_errors import PairsError, UserError
from sdiareward.pairs.labels import WRITTEN_ID, describe_pairs, require_other_recordings
from sdiareward.pairs.loading import load_pairs


if TYPE_CHECKING:
    import datasets

LabelledPairs = tuple["datasets.Dataset", list[dict[str, Any]]]
TRAIN_SPLIT = "train"
_REMEDY = "--baseline_data names pairs to fit them on"


def load_baseline_pairs(
    labels: Sequence[Mapping[str, Any]],
    dataset: str,
    split: str | None,
    train_split: str = TRAIN_SPLIT,
    *,
    baseline_data: str | None = None,
    name: str | None = None,
    audio_root: str | None = None,
) -> tuple[LabelledPairs | None, str | None]:
    """Load the training pairs, or None with the reason; raise if they share recordings with the evaluated ones."""
    if baseline_data is None and Path(dataset).is_file():
        return None, f"without baselines: {dataset} is one split; {_REMEDY}"
    try:
        pairs = load_pairs(
            baseline_data or dataset, train_split, name=None if baseline_data else name, audio_root=audio_root
        )
    except PairsError as error:
        if baseline_data is None and train_split == TRAIN_SPLIT:
            return None, f"without baselines: {str(error).rstrip('.')}; {_REMEDY}"
        remedy = "name another split with --train_split, or turn the baselines off with --no_baselines"
        raise UserError(f"there are no pairs to fit the baselines on ({error}); {remedy}.") from error
    train_labels = describe_pairs(pairs)
    absent = {label["criterion"] for label in labels} - {label["criterion"] for label in train_labels}
    if baseline_data is None and absent:
        return None, f"without baselines: {dataset} has no training pairs under {', '.join(sorted(absent))}; {_REMEDY}"
    compared = train_labels
    if baseline_data and WRITTEN_ID in pairs.column_names and Path(baseline_data).parent != Path(dataset).parent:
        # Ids made of relative paths: two folders may have recordings of the same names.
        compared = [{**label, "pair_id": None} for label in train_labels]
    require_other_recordings(
        labels, compared, split or dataset, f"{baseline_data} {train_split}" if baseline_data else train_split
    )
    return (pairs, train_labels), None
