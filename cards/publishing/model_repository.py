"""Plan the repository of a model: a whole checkpoint, adapters with their head, or a head alone.

The publisher names base and data set. The name in a training's record may be a local folder: `checkpoints/nano` looks
like a name on the Hub, where somebody else may own it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sdiareward.cards.model_card import FIGURE, ModelRelease, read_about, render_model_repository_card
from sdiareward.cards.results_metadata import find_hub_id, name_evaluated, name_results_file, render_eval_results
from sdiareward.checkpoint_io.files import ADAPTER_CONFIG, REMOTE_CODE, read_json
from sdiareward.checkpoint_io.training_record import PAIRS_RECORD, find_record
from sdiareward.common.package_files import PACKAGE

from . import model_files
from .plan import NOTICES, PlannedFile, RepositoryPlan, is_hub_id, require_hub_ids


_RESULTS = "results.json"
# Their licence must accompany every copy of their weights.
_WHISPER_IDS, _WHISPER_NOTICE = "openai/whisper-", "whisper.txt"


def plan_model(
    checkpoint: Path,
    *,
    results: Path | None = None,
    repo_id: str | None = None,
    revision: str | None = None,
    base_model: str | None = None,
    datasets: Sequence[str] = (),  # The training data.
    head_only: bool = False,
) -> RepositoryPlan:
    """Plan the repository of a model; a folder with an `adapter_config.json` holds adapters."""
    require_hub_ids([*datasets, *([base_model] if base_model else [])])
    is_adapter = model_files.is_adapter_folder(checkpoint)
    kind: Any = "lora" if is_adapter else "head" if head_only else "model"
    run = _read_run(checkpoint)
    if not (checkpoint / model_files.CONFIG).is_file():
        raise FileNotFoundError(f"{checkpoint}: holds no config.json; give the folder of a checkpoint.")
    about = read_about(checkpoint)
    base = base_model or about.get("base_model")
    recorded = _read_recorded(checkpoint, run, is_adapter)
    if head_only:
        _require_frozen(checkpoint, run)
    files = _list_files(checkpoint, kind, base, recorded["base_model"])
    measured, measured_path = _read_results(checkpoint, results)
    release = ModelRelease(
        checkpoint,
        kind,
        measured,
        run,
        repo_id or f"ORG/{checkpoint.resolve().name}",
        revision,
        base,
        tuple(datasets) or tuple(about.get("datasets", ())),
        has_figure=measured is not None and (measured_path.parent / FIGURE).is_file(),
    )
    described = [PlannedFile("README.md", render_model_repository_card(release).encode())]
    if (hashes := find_record(checkpoint, PAIRS_RECORD, beside=is_adapter)) is not None:
        described.append(PlannedFile(PAIRS_RECORD, hashes))
    if release.has_figure:
        described.append(PlannedFile(FIGURE, measured_path.parent / FIGURE))
    if measured and (data := find_hub_id(measured)):
        described.append(PlannedFile(name_results_file(measured), render_eval_results(measured, data).encode()))
    notes = [*_list_notes(release, about, measured_path), *_list_unnamed(release, recorded)]
    return RepositoryPlan("model", [*described, *files], notes=notes)


def _list_files(checkpoint: Path, kind: str, base: str | None, recorded_base: str | None) -> list[PlannedFile]:
    if kind == "model":
        has_whisper = recorded_base == "nano" or str(base).startswith(_WHISPER_IDS)
        notice = PlannedFile(f"notices/{_WHISPER_NOTICE}", (NOTICES / _WHISPER_NOTICE).read_bytes())
        return [*model_files.list_model_files(checkpoint), *([notice] if has_whisper else [])]
    if base is None or not is_hub_id(base):
        raise ValueError(
            f"{checkpoint}: needs the base {base or recorded_base!r}, which is not on the Hub; publish the base "
            "first, and name it with base_model (ORG/NAME)."
        )
    list_files = model_files.list_adapter_files if kind == "lora" else model_files.make_head_files
    return list_files(checkpoint, base)


def _read_run(checkpoint: Path) -> dict[str, Any] | None:
    """Return the record of the training; that of adapters is in the parent folder."""
    path = find_record(checkpoint, beside=True)
    found = {} if path is None else read_json(path)
    # An evaluation writes a file of that name too.
    return found if "arguments" in found else None


def _read_results(checkpoint: Path, results: Path | None) -> tuple[dict[str, Any] | None, Path]:
    path = results / _RESULTS if results is not None and results.is_dir() else results or checkpoint / _RESULTS
    if results is None and not path.is_file():
        return None, path
    found = read_json(path)
    if missing := [key for key in ("accuracies", "by_synthesizer", "config") if key not in found]:
        raise ValueError(f"{path}: has no {', '.join(missing)}; give the results.json of a finished evaluation.")
    if found["config"].get("judge") is not None:
        raise ValueError(f"{path}: is of the judge {found['config']['judge']}, not of a reward model.")
    if not isinstance(found["config"].get("model"), str):
        raise ValueError(f"{path}: its config names no model; give the results.json of a finished evaluation.")
    return found, path


def _read_recorded(checkpoint: Path, run: dict[str, Any] | None, is_adapter: bool) -> dict[str, Any]:
    """Return base and data set as recorded by the adapters or the training, by the name of their option."""
    arguments = (run or {}).get("arguments", {})
    named = read_json(checkpoint / ADAPTER_CONFIG).get("base_model_name_or_path") if is_adapter else None
    return {"base_model": named or arguments.get("model_name_or_path"), "dataset": arguments.get("dataset")}


def _require_frozen(checkpoint: Path, run: dict[str, Any] | None) -> None:
    trained = (run or {}).get("arguments", {}).get("train")
    if trained != "head":
        raise ValueError(
            f"{checkpoint}: its run.json records train {trained!r}, not 'head': its backbone differs from the base; "
            "publish the whole model."
        )


def _list_unnamed(release: ModelRelease, recorded: dict[str, Any]) -> list[str]:
    """Return a note for each recorded name that looks like a name on the Hub, if none was given."""
    given = {"base_model": release.base_model, "dataset": release.datasets}
    return [
        f"the training's record names {name!r}; if that is its name on the Hub and not a folder, add "
        f"--{option.replace('_', '-')} {name}."
        for option, name in recorded.items()
        if not given[option] and is_hub_id(name)
    ]


def _list_notes(release: ModelRelease, about: dict[str, Any], results: Path) -> list[str]:
    notes = []
    if release.kind != "model":
        notes.append(f"it needs the base {release.base_model}, which others load from the Hub under that name.")
    if release.results is None:
        notes.append(f"there is no {results}: the card states that the model was not evaluated.")
    elif Path(release.results["config"]["model"]).name != release.checkpoint.resolve().name:
        notes.append(f"the results are of {Path(release.results['config']['model']).name}; make sure it is this one.")
    if release.results and not find_hub_id(release.results):
        notes.append(
            f"{name_evaluated(release.results)} was not read from the Hub, so there is no .eval_results, which names "
            "a data set there; evaluate with its name on the Hub to have one."
        )
    if "license" not in about:
        notes.append(f"no licence is stated: write `license` into the header of {release.checkpoint / 'about.md'}.")
    stale = [
        name
        for name in REMOTE_CODE
        if (own := release.checkpoint / name).is_file() and own.read_bytes() != (PACKAGE / name).read_bytes()
    ]
    if stale:
        notes.append(f"{', '.join(stale)} in the folder differ from this package's, which are published.")
    return notes
