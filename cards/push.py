"""Publish on the Hub: plan a repository (all of its files, known before anything is sent), check the plan, push it.

- Only planned files are sent, in one commit with `create_commit`: a reader never sees half a data set. A push that is
  run again sends no file twice: the Hub is asked for each hash (LFS) or chunk (Xet) first.
- Gates and privacy are set before the first file is sent. The commit names its parent, so a commit in between is
  never overwritten.
- The builder keeps pairs whose audio may not be published in shards of their own; here every row is checked again.
- The publisher names base and training data of a model. The name in a training's record may be a local folder:
  `checkpoints/nano` looks like a name on the Hub, where somebody else may own it.
"""

from __future__ import annotations

import base64
import json
import mimetypes
import mmap
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sdiareward.checkpoint_io.files import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    FOLDS,
    REMOTE_CODE,
    WEIGHTS,
    WEIGHTS_INDEX,
    find_file,
    iter_tensors,
    list_weight_files,
    read_json,
)
from sdiareward.checkpoint_io.training_record import PAIRS_RECORD, find_record
from sdiareward.common.files import require_new_folder, write_file
from sdiareward.common.hub import split_commit
from sdiareward.common.package import CARDS, DEMO, METRIC, NANO, NEW_NANO, PACKAGE, __version__
from sdiareward.common.tables import Row, Table
from sdiareward.evaluation.report.page import Section, render_page

from . import dataset_card, model_card


if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd

CONFIG, PROCESSOR = "config.json", "processor_config.json"
_PROCESSOR_FILES = (
    *(PROCESSOR, "added_tokens.json", "chat_template.jinja", "merges.txt", "preprocessor_config.json"),
    *("special_tokens_map.json", "tokenizer.json", "tokenizer_config.json", "vocab.json"),
)
# Keys that hold the folder that a configuration was loaded from.
_PLACES = ("_name_or_path", "name_or_path")
# Of `peft`: an adapter that changes no projection and only brings modules of its own.
_NO_PROJECTIONS = "dummy-target-modules"
_PICTURES = (".gif", ".jpg", ".png", ".svg")
# Fields of a card's header that the Hub shows elsewhere, as a viewer or a leaderboard.
_LONG_FIELDS = ("configs", "dataset_info", "model-index")
_METRIC = "esdr_accuracy"
# What runs its own code when it is loaded.
_PICKLES = {".bin", ".ckpt", ".dill", ".joblib", ".pickle", ".pkl", ".pt", ".pth"}
_SECRETS = {
    "an access token of the Hub": re.compile(rb"hf_[A-Za-z0-9]{30,}"),
    "a private key": re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----"),
}
# Files of an earlier push with these endings would be loaded with, or instead of, the new ones.
_LOADED_TOGETHER = (".parquet", ".safetensors", ".safetensors.index.json")
_REMEDIES = {
    401: "log in with `hf auth login` or set HF_TOKEN",
    403: "use a token with write access, or propose the change with --create-pr",
    404: "create it, or check the name and that the token may see it",
}


@dataclass(frozen=True)
class RepositoryPlan:
    """The files of a push; nothing else is uploaded."""

    repo_type: Literal["dataset", "model", "space"]
    files: list[CommitOperationAdd]
    notes: list[str] = field(default_factory=list)  # To read before publishing.


class PublishError(RuntimeError):
    """Raised when the Hub refuses or cannot be reached."""


@dataclass(frozen=True)
class Pushed:
    url: str
    commit: str  # Holds the plan; an earlier one unless `is_changed`.
    is_changed: bool
    pull_request_url: str | None
    kept: list[str]  # Files of the repository that are not planned, and stay.


def plan_dataset(folder: Path, *, metadata: Path | None = None, repo_id: str = "ORG/sdiareward") -> RepositoryPlan:
    """Plan the repository of a data set: the shards whose audio may be published, and all rows of `metadata`."""
    from sdiareward.dataset_builder.licences import find_licence
    from sdiareward.dataset_builder.release.release import release_features
    from sdiareward.pairs.schema import features

    shards = dataset_card.read_shards(folder, features(), "has other columns than a data set; build it again")
    public = [shard for shard in shards if _is_public(shard)]
    released = []
    if metadata is not None:
        remedy = "does not have the columns of a metadata release, which has no audio; write one with"
        released = dataset_card.read_shards(metadata, release_features(), f"{remedy} sdiareward build release")
    elif not public:
        raise ValueError(f"{folder}: no audio may be published; give its metadata release with --metadata.")
    labels = [label for shard in shards for label in shard.labels]
    ids = {label["pair_id"] for shard in released for label in shard.labels}
    if unknown := sorted(map(str, ids - {label["pair_id"] for label in labels})):
        found = f"{len(unknown)} of its {len(ids)} pairs, such as {unknown[0]}, are not in the data set"
        raise ValueError(f"{metadata}: {found}; give the release of this data set.")
    card = dataset_card.render_dataset_card(folder, shards, public, released, repo_id)
    files = [_plan("README.md", card)]
    for name, table in {"data": public, "metadata": released}.items():
        files += [_plan(f"{name}/{shard.place}", shard.path) for shard in table]
    licences = [find_licence(label["license"]) for shard in public for label in shard.labels]
    for name in sorted({licence.notice for licence in licences if licence and licence.notice}):
        files.append(_plan_notice(name))
    notes = []
    if withheld := [label for label in labels if label["why_withheld"]]:
        counts = ", ".join(f"{name} {n}" for name, (_, n) in dataset_card.count_by(withheld, "license").items())
        notes.append(f"the audio of {len(withheld)} of {len(labels)} pairs is not published; by licence: {counts}.")
        reasons = Counter(label["why_withheld"] for label in withheld)
        notes += [f"{count} withheld: {reason}." for reason, count in reasons.most_common()]
    if metadata is None:
        remedy = "sdiareward build release writes one, for --metadata."
        notes.append(f"there is no metadata release, so nobody can rebuild pairs; {remedy}")
    elif num_left_out := len(labels) - sum(len(shard.labels) for shard in released):
        notes.append(f"{num_left_out} pairs are not in the metadata release.")
    return RepositoryPlan("dataset", files, notes)


def _is_public(shard: dataset_card.Shard) -> bool:
    """Return whether the audio of a shard may be published; raise if that holds for some of its rows only."""
    withheld = [label for label in shard.labels if label["why_withheld"]]
    if withheld and len(withheld) < len(shard.labels):
        found = f"pair {withheld[0]['pair_id']} must not be published ({withheld[0]['why_withheld']}), others may"
        raise ValueError(f"{shard.path}: {found}; build the data set again, which keeps them apart.")
    return not withheld


def _plan(path_in_repo: str, source: Path | str | bytes) -> CommitOperationAdd:
    """Return a file of a repository: a local one, which is read when it is sent, or one of this content."""
    from huggingface_hub import CommitOperationAdd

    return CommitOperationAdd(path_in_repo, source.encode() if isinstance(source, str) else source)


def _plan_notice(name: str) -> CommitOperationAdd:
    """Return a text that must accompany the works of others."""
    return _plan(f"notices/{name}", CARDS / "notices" / name)


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
    _require_hub_ids([*datasets, *([base_model] if base_model else [])])
    if not (checkpoint / CONFIG).is_file():
        raise FileNotFoundError(f"{checkpoint}: has no config.json; give the folder of a checkpoint.")
    is_adapter = (checkpoint / ADAPTER_CONFIG).is_file()
    # The record of adapters is in the parent folder. An evaluation writes a file of that name too.
    path = find_record(checkpoint, beside=True)
    run = {} if path is None else read_json(path)
    arguments = run.get("arguments", {})
    if head_only and arguments.get("train") != "head":
        found = f"its run.json records train {arguments.get('train')!r}, not 'head'"
        raise ValueError(f"{checkpoint}: {found}, so its backbone differs from the base; publish the whole model.")
    about, _ = model_card.read_about(checkpoint)
    measured, measured_path = _read_results(checkpoint, results)
    release = model_card.ModelRelease(
        checkpoint,
        "lora" if is_adapter else "head" if head_only else "model",
        measured,
        run if "arguments" in run else None,
        repo_id or f"ORG/{checkpoint.resolve().name}",
        revision,
        base_model or about.get("base_model"),
        tuple(datasets) or tuple(about.get("datasets") or ()),
        has_figure=measured is not None and (measured_path.parent / model_card.FIGURE).is_file(),
    )
    named = read_json(checkpoint / ADAPTER_CONFIG).get("base_model_name_or_path") if is_adapter else None
    recorded = {"base_model": named or arguments.get("model_name_or_path"), "dataset": arguments.get("dataset")}
    weights = _list_checkpoint_files(release, recorded["base_model"])
    files = [_plan("README.md", model_card.render_model_card(release))]
    if (hashes := find_record(checkpoint, PAIRS_RECORD, beside=is_adapter)) is not None:
        files.append(_plan(PAIRS_RECORD, hashes))
    if (checkpoint / FOLDS).is_file():
        files.append(_plan_file(checkpoint, FOLDS))
    if release.has_figure:
        files.append(_plan(model_card.FIGURE, measured_path.parent / model_card.FIGURE))
    if measured and (data := model_card.find_hub_id(measured)):
        content = model_card.render_eval_results(measured, data)
        files.append(_plan(model_card.name_results_file(measured), content))
    return RepositoryPlan("model", [*files, *weights], _list_notes(release, about, measured_path, recorded))


def _read_results(checkpoint: Path, results: Path | None) -> tuple[dict[str, Any] | None, Path]:
    path = results / "results.json" if results and results.is_dir() else results or checkpoint / "results.json"
    if results is None and not path.is_file():
        return None, path
    found = read_json(path)
    config = found.get("config", {})
    if config.get("judge") is not None:
        raise ValueError(f"{path}: is of the judge {config['judge']}, not of a reward model.")
    missing = [key for key in ("accuracies", "by_synthesizer", "config") if key not in found]
    if missing or not config.get("model"):
        lacking = ", ".join(missing or ["model in its config"])
        raise ValueError(f"{path}: has no {lacking}; give the results.json of a finished evaluation.")
    return found, path


def _list_notes(
    release: model_card.ModelRelease, about: Mapping[str, Any], results: Path, recorded: Mapping[str, Any]
) -> list[str]:
    notes, checkpoint = [], release.checkpoint
    if release.kind != "model":
        notes.append(f"it needs the base {release.base_model}, which others load from the Hub under that name.")
    if release.results is None:
        measured = "reports the cross-validation only" if (checkpoint / FOLDS).is_file() else "reports no evaluation"
        notes.append(f"there is no {results}: the card {measured}.")
    elif (name := Path(release.results["config"]["model"]).name) != checkpoint.resolve().name:
        notes.append(f"the results are of {name}; make sure it is this one.")
    if release.results and not model_card.find_hub_id(release.results):
        reason = f"{model_card.name_evaluated(release.results)} was not read from the Hub"
        notes.append(f"there is no .eval_results, as {reason}; evaluate with its name on the Hub to have one.")
    if "license" not in about:
        notes.append(f"no licence is stated: write `license` into the header of {checkpoint / 'about.md'}.")
    own = [name for name in REMOTE_CODE if (checkpoint / name).is_file()]
    if stale := [name for name in own if (checkpoint / name).read_bytes() != (PACKAGE / name).read_bytes()]:
        notes.append(f"{', '.join(stale)} in the folder differ from this package's, which are published.")
    given = {"base_model": release.base_model, "dataset": release.datasets}
    for option, name in recorded.items():
        if not given[option] and model_card.is_hub_id(name):
            flag = f"--{option.replace('_', '-')} {name}"
            notes.append(f"the record names {name!r}; if that is its name on the Hub and not a folder, add {flag}.")
    return notes


def _list_checkpoint_files(release: model_card.ModelRelease, recorded_base: str | None) -> list[CommitOperationAdd]:
    """Return weights, configuration, processor and code; other files in the folder are never published."""
    checkpoint, base = release.checkpoint, release.base_model
    if release.kind != "model" and not model_card.is_hub_id(base):
        found = f"needs the base {base or recorded_base!r}, which is not on the Hub"
        raise ValueError(f"{checkpoint}: {found}; publish the base first, and name it with base_model (ORG/NAME).")
    _require_own_code(checkpoint, has_model=release.kind == "model")
    files: list[CommitOperationAdd] = []
    names = [CONFIG]
    if release.kind == "model":
        weights = list_weight_files(checkpoint)
        names += weights if weights == [WEIGHTS] else [WEIGHTS_INDEX, *weights]
        if recorded_base in (NANO.name, NEW_NANO) or str(base).startswith("openai/whisper-"):
            files.append(_plan_notice("whisper.txt"))
    elif release.kind == "lora":
        names.append(ADAPTER_WEIGHTS)
        if not any(".score." in name for name, _ in iter_tensors(checkpoint, [ADAPTER_WEIGHTS])):
            raise ValueError(f"{checkpoint / ADAPTER_WEIGHTS}: has no score head; save the adapters with train.py.")
        config = _remove_places(read_json(checkpoint / ADAPTER_CONFIG)) | {"base_model_name_or_path": base}
        files.append(_plan_json(ADAPTER_CONFIG, config))
    else:
        files += _make_head_files(checkpoint, str(base))
    files += [_plan_file(checkpoint, name) for name in names]
    files += [_plan_file(checkpoint, name) for name in _PROCESSOR_FILES if (checkpoint / name).is_file()]
    return files + [_plan(name, PACKAGE / name) for name in REMOTE_CODE]


def _make_head_files(checkpoint: Path, base: str) -> list[CommitOperationAdd]:
    """Return the head of a complete model in the form of adapters, without its frozen backbone."""
    from safetensors.numpy import save

    tensors = {}
    for name, tensor in iter_tensors(checkpoint, list_weight_files(checkpoint)):
        if name.startswith(("score.", "pooler.")):
            if tensor.get_dtype() != "F32":
                raise ValueError(f"{checkpoint}: {name} is not in float32; save the model with this package.")
            tensors[name] = tensor[:]
    if "score.weight" not in tensors:
        raise FileNotFoundError(f"{checkpoint}: has no score.weight; give the folder of a complete model.")
    config = {
        "base_model_name_or_path": base,
        "modules_to_save": sorted({name.split(".")[0] for name in tensors}),
        "peft_type": "LORA",
        "target_modules": _NO_PROJECTIONS,
    }
    weights = save({f"base_model.model.{name}": tensor for name, tensor in tensors.items()})
    return [_plan_json(ADAPTER_CONFIG, config), _plan(ADAPTER_WEIGHTS, weights)]


def _plan_file(checkpoint: Path, name: str) -> CommitOperationAdd:
    """Return a file; a configuration without the folder that it was loaded from."""
    path = find_file(checkpoint, name)
    if name.endswith("config.json") and (public := _remove_places(content := read_json(path))) != content:
        return _plan_json(name, public)
    return _plan(name, path)


def _plan_json(name: str, content: Mapping[str, Any]) -> CommitOperationAdd:
    return _plan(name, json.dumps(content, indent=2, sort_keys=True) + "\n")


def _remove_places(value: Any) -> Any:
    """Return a value of a configuration without the folders in it or in the configurations of its parts."""
    if isinstance(value, dict):
        return {key: _remove_places(part) for key, part in value.items() if key not in _PLACES}
    return [_remove_places(part) for part in value] if isinstance(value, list) else value


def _require_own_code(checkpoint: Path, *, has_model: bool) -> None:
    """Raise unless auto classes, and tasks of pipelines, are mapped to classes of this package only."""
    config = read_json(checkpoint / CONFIG)
    if (found := config.get("model_type")) != "sdiareward":
        remedy = "make a checkpoint of this package of it first, with sdiareward build convert"
        raise ValueError(f"{checkpoint}: its model_type is {found!r}; {remedy}.")
    wanted = {"AutoConfig": CONFIG, "AutoProcessor": PROCESSOR} | ({"AutoModel": CONFIG} if has_model else {})
    for auto_class, name in wanted.items():
        content = read_json(checkpoint / name)
        auto_map, pipelines = content.get("auto_map") or {}, content.get("custom_pipelines") or {}
        if auto_class not in auto_map:
            raise ValueError(f"{checkpoint / name}: auto_map has no {auto_class}; save it again with this package.")
        for reference in [*auto_map.values(), *(task.get("impl") for task in pipelines.values())]:
            if f"{str(reference).partition('.')[0]}.py" not in REMOTE_CODE:
                found = f"names {reference!r}, which is not code of this package"
                raise ValueError(f"{checkpoint / name}: {found}; save it again with this package.")


def plan_space(model: str | None = None, *, hardware: str = "cpu-basic") -> RepositoryPlan:
    """Plan the Space of the demo, which loads `model`."""
    import jinja2

    name = split_commit(model)[0] if model else None
    _require_hub_ids([name] if name else [])
    template = jinja2.Template((CARDS / "space_card.md").read_text(encoding="utf-8"), keep_trailing_newline=True)
    card = template.render(model=model, repo_id=name, hardware=hardware, version=__version__)
    app = (DEMO / "space_app.py").read_text(encoding="utf-8")
    if model:
        # In the code, as a pull request cannot set a variable of a Space, which overrides it.
        app = f'import os\n\nos.environ.setdefault("SDIAREWARD_MODEL", "{model}")\n\n{app}'
    contents = {"README.md": card, "app.py": app, "requirements.txt": f"sdiareward[demo]=={__version__}\n"}
    files = [_plan(name, content) for name, content in contents.items()]
    note = f"it installs sdiareward {__version__} from PyPI and cannot be built before that version is published."
    return RepositoryPlan("space", files, [note])


def plan_metric(repo_id: str | None = None) -> RepositoryPlan:
    """Plan the Space of the metric, which `evaluate.load("ORG/esdr_accuracy")` takes from there."""
    if repo_id is not None and repo_id.rpartition("/")[2] != _METRIC:
        raise ValueError(f"{repo_id}: evaluate.load finds the metric only in a Space named {_METRIC}; name it so.")
    card = (METRIC / "README.md").read_text(encoding="utf-8").replace(f"ORG/{_METRIC}", repo_id or f"ORG/{_METRIC}")
    names = ("app.py", f"{_METRIC}.py", "pairwise.py", "requirements.txt", "tests.py")
    return RepositoryPlan("space", [_plan("README.md", card), *(_plan(name, METRIC / name) for name in names)])


def _require_hub_ids(names: Iterable[str]) -> None:
    for name in names:
        if not model_card.is_hub_id(name):
            raise ValueError(f"{name!r}: seems to be a folder, not a name on the Hub; give ORG/NAME.")


def render_plan(plan: RepositoryPlan, repo: str) -> str:
    """Return the files of a plan with their sizes, and its notes."""
    from tqdm import tqdm

    rows = sorted((file.path_in_repo, tqdm.format_sizeof(file.upload_info.size, "B")) for file in plan.files)
    count = "1 file" if len(rows) == 1 else f"{len(rows)} files"
    rows.append(("total", tqdm.format_sizeof(sum(file.upload_info.size for file in plan.files), "B")))
    width = max(len(path) for path, _ in rows)
    lines = [f"{plan.repo_type} {repo}: {count}"]
    lines += [f"  {path:<{width}}  {size:>9}" for path, size in rows]
    return "\n".join(lines + [f"note: {note}" for note in plan.notes])


def write_preview(plan: RepositoryPlan, listing: str, folder: Path) -> Path:
    """Write card, pictures, `listing` and a page of them into a new or empty folder; return the page."""
    require_new_folder(folder)
    for file in plan.files:
        if file.path_in_repo == "README.md" or file.path_in_repo.endswith(_PICTURES):
            path = folder / file.path_in_repo
            path.parent.mkdir(parents=True, exist_ok=True)
            with file.as_file() as content:
                write_file(path, content.read())
    write_file(folder / "files.txt", listing + "\n")
    write_file(folder / "index.html", _render_preview(folder, listing))
    return folder / "index.html"


def _render_preview(folder: Path, listing: str) -> str:
    """Render a card as the Hub does: its header as a table, its text and pictures, and the list of files."""
    from huggingface_hub import RepoCard
    from markdown_it import MarkdownIt
    from markupsafe import Markup

    card = RepoCard.load(folder / "README.md", ignore_metadata_errors=True)
    repository, *files = listing.splitlines()
    html = MarkdownIt("commonmark", {"html": False}).enable("table").render(card.text)
    html = re.sub(r' style="text-align:\w+"', "", html)
    html = html.replace("<table>", '<div class="scroll" tabindex="0"><table>').replace("</table>", "</table></div>")
    for path in (path for path in folder.rglob("*") if path.suffix in _PICTURES):
        data = f"data:{mimetypes.guess_type(path)[0]};base64,{base64.b64encode(path.read_bytes()).decode()}"
        html = html.replace(f'src="{path.relative_to(folder).as_posix()}"', f'src="{data}"')
    fields = {name: value for name, value in card.data.to_dict().items() if name not in _LONG_FIELDS}
    rows = [
        Row([name, ", ".join(map(str, value)) if isinstance(value, list) else value]) for name, value in fields.items()
    ]
    table = Table("Header of the card", ["field", "value"], rows, ("value",))
    sections: list[Section] = [("card", "Card", [("table", table), ("html", Markup(html))])]
    return render_page(
        title=repository,
        kind="Preview of a repository on the Hub",
        subject=repository.partition(":")[0],
        subtitle="Nothing was sent.",
        sections=[*sections, ("files", "Files", [("list", files)])],
    )


def check_plan(plan: RepositoryPlan, secrets: Sequence[str] = ()) -> None:
    """Raise for a pickle or a secret; the Hub scans only what has arrived."""
    from tqdm import tqdm

    for file in plan.files:
        if (suffix := Path(file.path_in_repo).suffix.lower()) in _PICKLES:
            raise ValueError(f"{file.path_in_repo}: {suffix} files can run code when loaded; save as safetensors.")
    # `disable=None`: no bar without a terminal.
    for file in tqdm(plan.files, desc="check", unit="file", leave=False, disable=None):
        for content in _read_contents(file):
            if found := find_secret(content, secrets):
                raise ValueError(f"{file.path_in_repo}: seems to hold {found}; remove it, and revoke it.")


def find_secret(content: bytes | mmap.mmap, known: Sequence[str] = ()) -> str | None:
    """Return which kind of secret a content holds, if any; `known` are the tokens in use."""
    if any(content.find(secret.encode()) >= 0 for secret in known):
        return "the token in use"
    return next((name for name, pattern in _SECRETS.items() if pattern.search(content)), None)


def _read_contents(file: CommitOperationAdd) -> Iterator[bytes | mmap.mmap]:
    """Yield the content of a file, then the text columns of a Parquet file, which are compressed in its bytes."""
    source = file.path_or_fileobj
    if isinstance(source, bytes) or not file.upload_info.size:
        yield source if isinstance(source, bytes) else b""
        return
    with file.as_file() as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield content
    if file.path_in_repo.endswith(".parquet"):
        import pyarrow.parquet as pq

        with pq.ParquetFile(source) as table:
            leaves = [table.schema.column(index) for index in range(len(table.schema))]
            columns = [leaf.path for leaf in leaves if leaf.logical_type.type in ("STRING", "JSON", "ENUM")]
            for batch in table.iter_batches(batch_size=100, columns=columns) if columns else ():
                yield json.dumps(batch.to_pylist(), ensure_ascii=False, default=str).encode()


def publish(
    plan: RepositoryPlan,
    repo_id: str,
    *,
    private: bool = False,  # Also makes an existing public repository private.
    gated: Literal["auto", "manual"] | None = None,
    revision: str = "main",
    create_pr: bool = False,
    message: str | None = None,
    tag: str | None = None,
    prune: bool = False,  # Delete, in the same commit, files that are not in the plan.
) -> Pushed:
    """Publish a plan; the same call resumes an interrupted push and sends no file again that has arrived."""
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HTTPError

    message = "Publish with sdiareward" if message is None else message
    if create_pr and (private or gated or tag):
        raise ValueError("a pull request changes files only; omit private, gated and tag, or create_pr.")
    if not message.strip():
        raise ValueError("the commit has no message; give it one.")
    if found := find_secret(message.encode()):
        raise ValueError(f"the commit's message seems to hold {found}; remove it, and revoke it.")
    check_plan(plan, [token] if (token := get_token()) else [])
    api = HfApi(library_name="sdiareward")
    try:
        # First, so that an unknown token is reported as such.
        account = api.whoami()["name"]
        where: dict[str, Any] = {"repo_id": repo_id if "/" in repo_id else f"{account}/{repo_id}"}
        where["repo_type"] = plan.repo_type
        if not create_pr:
            # None: the organization's default, which may be private.
            sdk = "gradio" if plan.repo_type == "space" else None
            api.create_repo(private=private or None, space_sdk=sdk, exist_ok=True, **where)
        if private or gated:
            # Before the repository holds a file.
            settings: dict[str, Any] = {"private": private or None, "gated": gated}
            api.update_repo_settings(**settings, **where)
        tags = {each.name: each.target_commit for each in api.list_repo_refs(**where).tags}
        if revision in tags:
            raise ValueError(f"{revision!r} is a tag, which cannot move; give a branch as revision.")
        if revision != "main" and not create_pr and not revision.startswith("refs/"):
            api.create_branch(branch=revision, exist_ok=True, **where)
        head = str(api.repo_info(revision=revision, **where).sha)
        if tag in tags and tags[tag] != head:
            raise ValueError(f"tag {tag!r} is already at commit {tags[tag]}; choose another.")
        deletions, kept = _list_deletions(plan, api.list_repo_files(revision=head, **where), prune)
        options: dict[str, Any] = {"revision": revision, "create_pr": create_pr, "parent_commit": head}
        commit = api.create_commit(operations=[*plan.files, *deletions], commit_message=message, **options, **where)
        if tag in tags and commit.oid != head:
            raise ValueError(f"published as {commit.oid}, but the tag stays at {head}; choose another.")
        if tag and tag not in tags:
            api.create_tag(tag=tag, revision=commit.oid, **where)
    # The library raises RuntimeError for failures of its threads, ValueError for wrong names.
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        remedy = _REMEDIES.get(status or 0, "correct that and run the same command again, which resumes")
        text = " ".join(str(error).split()).rstrip(".")
        raise PublishError(f"{plan.repo_type} {repo_id}: {text}; {remedy}.") from error
    return Pushed(str(commit.repo_url), commit.oid, commit.oid != head, commit.pr_url, kept)


def _list_deletions(plan: RepositoryPlan, present: Iterable[str], prune: bool) -> tuple[list[Any], list[str]]:
    """Return the deletions of the commit, and files that stay though not planned."""
    from huggingface_hub import CommitOperationDelete

    others = sorted(set(present) - {file.path_in_repo for file in plan.files} - {".gitattributes"})
    if prune:
        return list(map(CommitOperationDelete, others)), []
    if clashing := [path for path in others if path.endswith(_LOADED_TOGETHER)]:
        found = f"the repository holds {len(clashing)} data files that are not planned ({clashing[0]}, ...)"
        raise ValueError(f"{found} and would be loaded with the new ones; delete them with --prune.")
    return [], others
