"""Read the files of a rating study, which may be untrusted: check the fields that its page and tables need."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sdiareward.common.files import is_number, read_json_object
from sdiareward.common.settings import make_settings

from .study import KEY_FILE, SCORES_FORM, SIZES, STUDY_FILE
from .texts import INSTRUCTIONS_OF_SCORES, StudyTexts


_PARTS = ("context", "a", "b")


def read_study(folder: Path) -> dict[str, Any]:
    """Return the content of `study.json`, which raters may see."""
    path, remedy = folder / STUDY_FILE, "draw a study with sdiareward human sample"
    study = read_json_object(path, remedy)
    items = study.get("items")
    if not isinstance(study.get("study"), str) or not isinstance(items, list) or not all(map(_is_item, items)):
        raise ValueError(f"{path}: is no study, or one of its items is malformed; {remedy}.")
    # Studies of earlier versions have no texts.
    given = study.get("texts", {"instructions": INSTRUCTIONS_OF_SCORES} if study.get("form") == SCORES_FORM else {})
    texts = make_settings(StudyTexts, given, f"{path}, texts").as_fields()
    return {"allow_tie": True, **study, "texts": texts}


def _is_item(item: Any) -> bool:
    is_named = isinstance(item, Mapping) and all(isinstance(item.get(name), str) for name in ("item", "question"))
    return is_named and all(isinstance(item.get(part), list) and all(map(_is_turn, item[part])) for part in _PARTS)


def _is_turn(turn: Any) -> bool:
    if not isinstance(turn, Mapping) or not isinstance(turn.get("role"), (str, type(None))) or "audio" not in turn:
        return False
    name = turn["audio"]
    return name is None or (isinstance(name, str) and Path(name).name == name and name.isprintable())


def read_key(folder: Path, key_file: str | Path | None = None) -> dict[str, Any]:
    path, remedy = Path(key_file or folder / KEY_FILE), "name it with --key if it is in another folder"
    key = read_json_object(path, remedy)
    is_pairs = key.get("form") != SCORES_FORM
    items = key.get("items")
    counts = [key.get(name) for name in ("asked", "drawn")] if is_pairs else []
    is_key = isinstance(key.get("study"), str) and all(map(_are_counts, counts))
    if not (is_key and isinstance(items, dict) and all(_is_truth(truth, is_pairs) for truth in items.values())):
        raise ValueError(f"{path}: is no key of a study, or one of its items is malformed; {remedy}.")
    return {**key, **{name: {**dict.fromkeys(SIZES, 0), **key[name]} for name in ("asked", "drawn") if is_pairs}}


def _are_counts(value: Any) -> bool:
    return isinstance(value, dict) and set(value) <= set(SIZES) and all(type(count) is int for count in value.values())


def _is_truth(truth: Any, is_pairs: bool) -> bool:
    if not isinstance(truth, Mapping) or truth.get("chosen_is") not in ("a", "b"):
        return False
    if not all(isinstance(truth.get(name), str) for name in ("pair_id", "subset")):
        return False
    if not isinstance(truth.get("group_id"), (str, type(None))):
        return False
    return not is_pairs or (is_number(truth.get("margin")) and truth.get("stratum") in tuple(SIZES))
