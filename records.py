"""Keep what an evaluation finds on disk: a line a pair as it is scored, so that a killed run goes on where it stopped.

A run's folder belongs to one identity (which model, which pairs): `open_run` refuses to mix two.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .atomic_files import write_file as write_file
from .esdr_accuracy.pairwise import SUBSETS
from .pairs import SIDES


if TYPE_CHECKING:
    import datasets

# Read without the audio; what a data set lacks is derived or None.
_LABELS = ("pair_id", "criterion", "subset", "source", "synthesizer", "group_id")
SUBSET_OF_SOURCE = {"youtube": "wild", "meld": "semi_wild", "dailytalk": "scripted"}
# Larger files count by size and time of change, so that a checkpoint of many gigabytes is not read twice.
_MAX_HASHED_BYTES = 64 * 2**20


def split_lines(text: str) -> list[str]:
    """Return the lines of a file of JSON lines; `str.splitlines` would cut at the line separators within texts too."""
    return text.removesuffix("\n").split("\n") if text else []


class JsonLines:
    """A file of one JSON object a line that survives being killed in the middle of a line.

    Args:
        path (`Path`): The file; created by the first `append`.
    """

    def __init__(self, path: Path):
        self.path = path

    def read(self) -> list[dict[str, Any]]:
        """Return the complete lines and cut an incomplete last one off the file.

        Raises:
            ValueError: A line other than a torn last one is no JSON object.
        """
        if not self.path.exists():
            return []
        content = self.path.read_bytes()
        complete = content[: content.rfind(b"\n") + 1]
        if len(complete) < len(content):
            with self.path.open("r+b") as file:
                file.truncate(len(complete))
        return [self._parse(line, number) for number, line in enumerate(complete.splitlines(), start=1)]

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.path}, line {number}: not JSON ({error}); take the line out.") from error
        if not isinstance(record, dict):
            found = type(record).__name__
            raise ValueError(f"{self.path}, line {number}: holds a {found}, not an object; take the line out.")
        return record

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write the records and hand them to the operating system before returning."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


def read_json_object(path: Path, remedy: str) -> dict[str, Any]:
    """Return the object in a JSON file.

    Args:
        path (`Path`): The file.
        remedy (`str`): What to do if it is not there.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It holds no JSON object.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; {remedy}.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON ({error}); {remedy}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: holds a {type(content).__name__}, not an object; {remedy}.")
    return content


def is_number(value: Any) -> bool:
    """Tell whether a JSON value is a number that can be computed with: neither infinite nor larger than a float."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def describe_pairs(pairs: datasets.Dataset) -> list[dict[str, Any]]:
    """Return what the metric and the tables need to know of each pair, without its audio.

    A row of the released SDiaReward form has no `pair_id`, `criterion` or `subset`: the id is then a hash of the row,
    the criterion `"joint"`, and the subset what `category` or `source` says.

    Args:
        pairs (`datasets.Dataset`): Pairs as `pairs.load_pairs` gives them.

    Returns:
        `list[dict]`: `pair_id`, `criterion`, `subset`, `source`, `synthesizer` and `group_id` of each pair.

    Raises:
        ValueError: A pair's subset cannot be told, or two pairs have the same id.
    """
    columns = [name for name in (*_LABELS, "category") if name in pairs.column_names]
    if "pair_id" not in columns:
        columns += SIDES
    labels = [_describe(row, index) for index, row in enumerate(pairs.select_columns(columns))]
    seen: dict[str, int] = {}
    for index, label in enumerate(labels):
        first = seen.setdefault(label["pair_id"], index)
        if first != index:
            raise ValueError(f"rows {first} and {index} have the same pair_id {label['pair_id']!r}; drop one of them.")
    return labels


def _describe(row: Mapping[str, Any], index: int) -> dict[str, Any]:
    label = {name: row.get(name) for name in _LABELS}
    label["pair_id"] = label["pair_id"] or _hash({side: row[side] for side in SIDES})[:16]
    label["criterion"] = label["criterion"] or "joint"
    candidates = [str(row.get(name) or "").lower().replace("-", "_") for name in ("subset", "category", "source")]
    candidates.append(SUBSET_OF_SOURCE.get(candidates[-1], ""))
    label["subset"] = next((name for name in candidates if name in SUBSETS), None)
    if label["subset"] is None:
        raise ValueError(
            f"row {index}: neither 'subset' nor 'category' nor 'source' (found {candidates[:3]}) names one of "
            f"{list(SUBSETS)}; add a column 'subset'."
        )
    return label


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=lambda data: hashlib.sha256(data).hexdigest())
    return hashlib.sha256(text.encode()).hexdigest()


def require_other_recordings(
    labels: Sequence[Mapping[str, Any]], train_labels: Sequence[Mapping[str, Any]], split: str, train_split: str
) -> None:
    """Raise if what is to be fitted on overlaps with what is to be measured on.

    Args:
        labels (`Sequence[Mapping]`): What `describe_pairs` says of the pairs to measure on.
        train_labels (`Sequence[Mapping]`): The same of the pairs to fit on.
        split (`str`): What to call the former.
        train_split (`str`): What to call the latter.

    Raises:
        ValueError: They share a pair or a recording.
    """
    for name in ("pair_id", "group_id"):
        shared = ({label[name] for label in labels} & {label[name] for label in train_labels}) - {None}
        if shared:
            raise ValueError(
                f"{train_split!r} and {split!r} share {len(shared)} {name}, such as {min(shared)!r}; baselines need a "
                "training split of other recordings: give train_split, or turn them off."
            )


def fingerprint_pairs(labels: Sequence[Mapping[str, Any]]) -> str:
    """Return a hash of the pairs' labels; ids say what a pair is made from, so nothing else is read."""
    return _hash(list(labels))


def fingerprint_model(model: str) -> str:
    """Return a hash of a checkpoint folder, or the commit that a Hub name stands for.

    Args:
        model (`str`): Folder, or name of a repository on the Hub.
    """
    folder = Path(model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(model, allow_patterns=["config.json"])).name
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return _hash({path.name: _fingerprint_file(path) for path in files})


def _fingerprint_file(path: Path) -> str:
    status = path.stat()
    if status.st_size > _MAX_HASHED_BYTES:
        return f"{status.st_size} bytes of {status.st_mtime_ns}"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def open_run(folder: Path, identity: Mapping[str, Any]) -> None:
    """Create a run's folder, or check that the one that exists holds results of the same identity.

    Args:
        folder (`Path`): Where the run writes.
        identity (`Mapping`): What the scores depend on, JSON values by name; kept in `run.json`.

    Raises:
        ValueError: The folder holds results of another identity.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.json"
    if not path.exists():
        write_file(path, json.dumps(dict(identity), indent=2) + "\n")
        return
    before = read_json_object(path, "use another output_dir or delete it")
    different = [name for name in {**before, **identity} if before.get(name) != identity.get(name)]
    if different:
        changes = "; ".join(f"{name} was {before.get(name)!r}, is {identity.get(name)!r}" for name in different)
        raise ValueError(f"{folder} holds results of another run ({changes}); use another output_dir or delete it.")
