"""Render the card of a checkpoint, in its folder or in a repository on the Hub, from the files beside it.

An `about.md` beside the checkpoint holds the facts that only a person knows (purpose, misuse, licence): YAML for the
header of the card, then prose with `$fields` for every number. The default is `model_about.md`, which holds for every
model of this package.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from string import Template
from typing import Any, Literal

from sdiareward.audit.verdicts import read_audit
from sdiareward.checkpoint_io.files import ADAPTER_WEIGHTS, list_weight_files, read_json
from sdiareward.checkpoint_io.training_record import describe_stages, list_stages
from sdiareward.common.escaping import escape_code, escape_markdown
from sdiareward.common.files import write_file
from sdiareward.common.package_files import CARDS
from sdiareward.common.settings import parse_yaml
from sdiareward.common.tables import render_markdown_table
from sdiareward.evaluation.summary import ALL_LEFT_OUT, ALL_SEEN, render_report
from sdiareward.pairs.labels import TRAINED_ON
from sdiareward.pairs.loading import name_data

from .audit_findings import render_findings
from .results_metadata import find_split, make_model_index, name_evaluated


ABOUT = "about.md"
AUDIT = "audit.json"
FIGURE = "rewards.png"
_NOT_EVALUATED = (
    "Not evaluated. `sdiareward eval` does it and writes the `results.json` that this section is made from."
)
_KINDS = {
    "lora": "Low-rank adapters of the text model, and the head that was trained beside them,",
    "head": "A head that was trained",
}
_TAGS = ["reward-model", "reward-trainer", "spoken-dialogue", "sdiareward"]
# The fields of a run's record that are needed to repeat it.
_ARGUMENTS = ("train", "model_name_or_path", "dataset", "pooling_mode")
_ORIGINS = ("model_name_or_path", "dataset")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_TRAINING = ("learning_rate", "center_rewards_coefficient", "seed")


@dataclass(frozen=True)
class ModelRelease:
    """The facts that a card is rendered from; base and data sets by their names on the Hub."""

    checkpoint: Path
    kind: Literal["model", "lora", "head"] = "model"
    results: Mapping[str, Any] | None = None  # `results.json` of the evaluation.
    run: Mapping[str, Any] | None = None  # `run.json` of the training.
    name: str | None = None  # None for a card that stays in the folder.
    revision: str | None = None
    base_model: str | None = None
    datasets: tuple[str, ...] = ()
    has_figure: bool = False


def write_model_card(checkpoint: Path) -> None:
    """Write the card of a trained checkpoint into its folder, from its `run.json` and `about.md`."""
    run = read_json(checkpoint / "run.json")
    base_model, dataset = (_name_on_hub(run.get("arguments", {}).get(name)) for name in _ORIGINS)
    datasets = () if dataset is None else (dataset,)
    release = ModelRelease(checkpoint, run=run, base_model=base_model, datasets=datasets)
    write_file(checkpoint / "README.md", render_model_repository_card(release))


def _name_on_hub(name: str | None) -> str | None:
    """Return the name if the run that has just ended read it from the Hub, as there is no such file or folder."""
    return name if name and _HUB_ID.fullmatch(name) and not Path(name).exists() else None


def render_model_repository_card(release: ModelRelease) -> str:
    header, about = _read_about(release)
    results = release.results
    is_here = release.has_figure or (release.name is None and (release.checkpoint / FIGURE).is_file())
    return _read_template("model_card.md").substitute(
        header=_render_header(release, header),
        about=about,
        usage=_render_usage(release, header),
        results=_render_results(results) if results else _NOT_EVALUATED,
        figure=f"\n![Rewards by subset]({FIGURE})\n" if is_here and results else "",
        audit=_audit(release.checkpoint),
        training=_render_training(release.run),
    )


def _render_results(results: Mapping[str, Any]) -> str:
    data = escape_markdown(name_data(name_evaluated(results), find_split(results)))
    return f"On {data}.\n\n{strip_title(render_report(results))}"


def _audit(checkpoint: Path) -> str:
    path = checkpoint / AUDIT
    return f"\n## Audit\n\n{render_findings(read_audit(path))}\n" if path.is_file() else ""


def strip_title(results_md: str) -> str:
    """Return a report without its title, its headings one level lower."""
    return re.sub(r"^## ", "### ", results_md.split("\n", 1)[1], flags=re.MULTILINE).strip()


def read_about(checkpoint: Path) -> dict[str, Any]:
    """Return the header of the `about.md` of a checkpoint, empty without one."""
    return _split_about(checkpoint)[0]


def _split_about(checkpoint: Path) -> tuple[dict[str, Any], str]:
    """Return header and prose of the `about.md` beside a checkpoint, or of the default."""
    path = checkpoint / ABOUT
    if not path.is_file():
        path = CARDS / "model_about.md"
    text = path.read_text(encoding="utf-8")
    if not text.startswith("---\n"):
        return {}, text
    header, _, prose = text.removeprefix("---\n").partition("\n---\n")
    try:
        found = parse_yaml(header, "header")
    except ValueError as error:
        raise ValueError(f"{path}: its header is not YAML ({error}); correct it.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: its header is not a mapping of names to values; correct it.")
    for name in {"datasets", "tags"} & set(found):
        # As on the Hub, one name needs no list.
        found[name] = [found[name]] if isinstance(found[name], str) else found[name] or []
        if not (isinstance(found[name], list) and all(isinstance(entry, str) for entry in found[name])):
            raise ValueError(f"{path}: its {name} are {found[name]!r:.80}; give a list of names.")
    return found, prose


def _read_about(release: ModelRelease) -> tuple[dict[str, Any], str]:
    header, prose = _split_about(release.checkpoint)
    fields = _collect_fields(release)
    try:
        return header, Template(prose).substitute(fields).strip()
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"{release.checkpoint / ABOUT}: has an unknown field {error}; known fields are "
            f"{sorted(fields)}, and $$ is a dollar."
        ) from error


def _collect_fields(release: ModelRelease) -> dict[str, Any]:
    """Return the numbers that the prose of `about.md` may use."""
    config = json.loads((release.checkpoint / "config.json").read_text(encoding="utf-8"))
    parameters, size_bytes = _measure_size(release)
    fields: dict[str, Any] = {
        "name": (release.name or release.checkpoint.resolve().name).rpartition("/")[2],
        "num_parameters": f"{parameters:,}",
        "size_mb": f"{size_bytes / 1e6:.1f}",
        **{name: config[name] for name in ("pooling_mode", "prompt_version")},
        "max_turn_s": f"{config['max_turn_s']:g}",
    }
    if release.results:
        seen = _find_seen_synthesizers(release.results)
        fields |= {"num_synthesizers": len(seen), "synthesizers": ", ".join(sorted(seen))}
        if acoustic := release.results.get("baselines", {}).get("acoustic"):
            fields["num_train"] = sum(acoustic["num_train"].values())
    return fields


def _measure_size(release: ModelRelease) -> tuple[int, int]:
    """Return the number of parameters that are published, and the size of the files that hold them, in bytes."""
    from safetensors import safe_open

    names = [ADAPTER_WEIGHTS] if release.kind == "lora" else list_weight_files(release.checkpoint)
    parameters, size_bytes = 0, 0
    for path in (release.checkpoint / name for name in names):
        with safe_open(path, "np") as weights:
            for name in weights.keys():  # noqa: SIM118 (not a mapping)
                if release.kind != "head" or name.startswith(("score.", "pooler.")):
                    parameters += math.prod(weights.get_slice(name).get_shape())
        size_bytes += path.stat().st_size
    # A head is in float32.
    return parameters, 4 * parameters if release.kind == "head" else size_bytes


def _find_seen_synthesizers(results: Mapping[str, Any]) -> set[str]:
    of_modality = {row["synthesizer"] for row in results["by_synthesizer"] if row["criterion"] == "modality"}
    return of_modality - {ALL_SEEN, ALL_LEFT_OUT, *(results["left_out_synthesizers"] or ())}


def _render_header(release: ModelRelease, about: Mapping[str, Any]) -> str:
    """Return the YAML of the card; what `about.md` says comes first."""
    from huggingface_hub import ModelCardData

    name = (release.name or release.checkpoint.resolve().name).rpartition("/")[2]
    datasets = list(release.datasets) or about.get("datasets")
    known = {key: value for key, value in about.items() if key not in ("tags", "datasets", "base_model")}
    if release.kind != "model":
        known["base_model_relation"] = "adapter"
    data = ModelCardData(
        library_name="transformers" if release.kind == "model" else "peft",
        pipeline_tag="audio-classification",
        tags=[*_TAGS, *about.get("tags", ())],
        base_model=release.base_model or about.get("base_model"),
        datasets=datasets,
        metrics=["esdr_accuracy"],
        model_name=name if release.results else None,
        eval_results=make_model_index(release.results) if release.results else None,
        **known,
    )
    return data.to_yaml()


def _render_usage(release: ModelRelease, about: Mapping[str, Any]) -> str:
    name = release.name or _shorten_path(release.checkpoint)
    pin = f', revision="{release.revision or "main"}"' if release.name else ""
    if release.kind == "model":
        return _read_template("model_usage.md").substitute(name=name, pin=pin).strip()
    base = release.base_model or about.get("base_model")
    fields = {"name": name, "pin": pin, "base_model": base, "what": _KINDS[release.kind]}
    return _read_template("adapter_usage.md").substitute(fields).strip()


def _shorten_path(checkpoint: Path) -> str:
    """Return the path of a folder within this repository, otherwise its name alone."""
    root = CARDS.parent
    inside = checkpoint.resolve().is_relative_to(root)
    return checkpoint.resolve().relative_to(root).as_posix() if inside else checkpoint.name


def _render_training(run: Mapping[str, Any] | None) -> str:
    """Return the record of a run as a table, without local folders; what all stages heard is in it."""
    if not run:
        return "There is no record of the training with this checkpoint."
    found = {name: run.get("arguments", {}).get(name) for name in _ARGUMENTS}
    training = run.get("training", {})
    length = "max_steps" if training.get("max_steps", 0) > 0 else "num_train_epochs"
    found |= {name: training.get(name) for name in (length, *_TRAINING)}
    stages = list_stages(run)
    found |= {"stages": len(stages) if len(stages) > 1 else None}
    found |= _describe_heard(run.get(TRAINED_ON, {}), describe_stages(stages), is_first=len(stages) == 1)
    found |= {name: version for name, version in run.get("versions", {}).items() if version}
    found["git_revision"] = run.get("git_revision")
    rows = [
        [escape_code(name), escape_markdown(_strip_folder(value))]
        for name, value in found.items()
        if value is not None
    ]
    return "\n".join(render_markdown_table(["", ""], rows, num_left=2))


def _describe_heard(last: Mapping[str, Any], whole: Mapping[str, Any], *, is_first: bool) -> dict[str, Any]:
    """Return what all stages heard, or the last one where the others have no record."""
    found = {name: _join_words(value) for name, value in {**last, **whole}.items()}
    for name, value in whole.items():
        if value is None and not is_first and (words := _join_words(last.get(name))):
            found[name] = f"{words}; not known of the stages before"
    return found


def _join_words(value: Any) -> Any:
    return ", ".join(value) or None if isinstance(value, list) else value


def _strip_folder(value: Any) -> Any:
    is_path = isinstance(value, str) and (PurePath(value).is_absolute() or value.startswith(("~", "..")))
    return PurePath(value).name if is_path else value


def _read_template(name: str) -> Template:
    return Template((CARDS / name).read_text(encoding="utf-8"))
