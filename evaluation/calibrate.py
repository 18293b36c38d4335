"""Save a copy of a checkpoint with a calibration in its `config.json`; other files are unchanged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from sdiareward.checkpoint_io.models import fingerprint_model
from sdiareward.common.files import replace_atomically, require_new_folder, write_file
from sdiareward.scoring.calibration import fit

from .scores import Evaluation
from .summary import describe_overlap


_CONFIG = "config.json"
# With fewer pairs the offset is unreliable.
_FEW_PAIRS = 30


def calibrate_checkpoint(checkpoint: str | Path, evaluation: Evaluation, output_dir: str | Path) -> dict[str, Any]:
    """Fit a calibration on pairs that are not used for reported results; save it in a copy of the checkpoint."""
    from sdiareward.configuration_sdiareward import SDiaRewardConfig

    folder = Path(checkpoint)
    if not (folder / _CONFIG).is_file():
        raise FileNotFoundError(f"{folder}: has no {_CONFIG}; give the folder of a checkpoint.")
    content = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    if (kind := content.get("model_type")) != SDiaRewardConfig.model_type:
        remedy = "only a checkpoint of this package can store a calibration; convert it with sdiareward build convert"
        raise ValueError(f"{folder}: its model_type is {kind!r}; {remedy}.")
    config, run = SDiaRewardConfig.from_dict(content), evaluation.run
    prompts = config.prompts or {}
    if other := sorted(name for name, text in run.get("prompts", {}).items() if prompts.get(name) != text):
        what = f"used other prompts for {', '.join(other)} than {folder}"
        remedy = "give it these prompts with sdiareward build convert --prompt_file, or evaluate it with its own"
        raise ValueError(f"{evaluation.folder}: {what}; {remedy}.")
    calibration = fit(
        [(record["chosen"], record["rejected"]) for record in evaluation.scores],
        [record["subset"] for record in evaluation.scores],
        [record["criterion"] for record in evaluation.scores],
        prompt_version=config.prompt_version,
        data={name: run.get(name) for name in ("split", "pairs", "dtype")},
    )
    text = json.dumps({**content, "calibration": calibration}, indent=2, sort_keys=True) + "\n"
    target = Path(output_dir)
    require_new_folder(target)
    with replace_atomically(target) as temporary:
        temporary.mkdir(parents=True)
        for path in sorted(folder.iterdir()):
            if path.is_file() and not path.name.startswith(".") and path.name != _CONFIG:
                # Copy the content of links.
                shutil.copy2(path, temporary / path.name)
        write_file(temporary / _CONFIG, text)
    return calibration


def find_calibration_warnings(evaluation: Evaluation, checkpoint: str | Path) -> list[str]:
    warnings = []
    run, overlap = evaluation.run, evaluation.results.get("overlap", {})
    if run.get("split") == "test":
        warnings.append("this is the test split; calibrate on validation, or report calibrated numbers on other pairs")
    if overlap is None or (overlap and overlap["others"]["num_pairs"] < overlap["num_pairs"]):
        warnings.append(f"{describe_overlap(evaluation.results)} Calibrate on pairs that were not trained on")
    if fingerprint_model(str(checkpoint)) not in run.get("model", ""):
        what = f"the scores are of {run.get('model')}, but the files of {checkpoint} differ"
        warnings.append(f"{what}: make sure that the weights are the same")
    subsets = [record["subset"] for record in evaluation.scores]
    few = [f"{name} ({subsets.count(name)})" for name in sorted(set(subsets)) if subsets.count(name) < _FEW_PAIRS]
    if few:
        warnings.append(f"fewer than {_FEW_PAIRS} pairs of {', '.join(few)}")
    return warnings
