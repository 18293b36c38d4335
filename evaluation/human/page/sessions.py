"""The sessions of raters: a study in each rater's order; consent and answers are written to the disk at once."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sdiareward.common.files import JsonLines, read_json_object, seal, write_file
from sdiareward.pairs.path_sandbox import resolve_inside

from ..agreement import CHOICES, TIE
from ..files import read_study
from ..study import ANSWERS_FOLDER, AUDIO_FOLDER, SCORES_FORM


_RATER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_MAX_RATERS = 500


def find_audio(folder: Path, study: Mapping[str, Any]) -> dict[str, Path]:
    """Return the path of each recording by its name; raise `ValueError` for one outside of the study's folder."""
    return {
        turn["audio"]: resolve_inside(folder / AUDIO_FOLDER, turn["audio"], follow_links=False)
        for item in study["items"]
        for part in ("context", "a", "b")
        for turn in item[part]
        if turn["audio"]
    }


class RatingSession:
    """A study in the order of one rater, with the answers so far; `key.json` is not read and may be missing."""

    def __init__(self, folder: str | Path, rater: str):
        if not _RATER.fullmatch(rater):
            raise ValueError(f"the name of the rater is {rater!r}; use up to 64 letters, digits, '-' and '_'.")
        self.folder, self.rater = Path(folder), rater
        self.study = read_study(self.folder)
        # Each rater has another order, the same after a restart.
        random.Random(f"{self.study['study']}/{rater}").shuffle(self.study["items"])
        self.items = {item["item"] for item in self.study["items"]}
        self.audio = find_audio(self.folder, self.study)
        # The recordings to play: both dialogues, or the scored one.
        self.parts = ("context",) if self.study.get("form") == SCORES_FORM else ("a", "b")
        self.choices = tuple(choice for choice in CHOICES if choice != TIE or self.study["allow_tie"])
        self._path = self.folder / ANSWERS_FOLDER / f"{rater}.jsonl"
        self._consent_path = self._path.with_name(f"{rater}.consent.json")
        # Also removes an incomplete last line of a killed server.
        self.answers = {record["item"]: record["choice"] for record in JsonLines(self._path).read()}
        self._lock = threading.Lock()

    def read_state(self) -> dict[str, Any]:
        """Return the study as the page needs it, with the answers so far."""
        return {**self.study, "rater": self.rater, "answers": self.answers}

    @property
    def has_consented(self) -> bool:
        """Whether this rater agreed to the texts that the study has now."""
        if not self._consent_path.exists():
            return False
        kept = read_json_object(self._consent_path, "delete it, and the rater is asked again")
        return all(kept.get(name) == text for name, text in self.study["texts"].items())

    def consent(self) -> None:
        """Save that this rater agrees, with the texts that were shown and the time; the first time counts."""
        if self.has_consented:
            return
        at = datetime.now(UTC).isoformat(timespec="seconds")
        record = {"rater": self.rater, "at": at, **self.study["texts"]}
        with self._lock:
            self._consent_path.parent.mkdir(exist_ok=True)
            write_file(self._consent_path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")

    def answer(self, given: Any) -> int:
        """Save an answer, return the number of answered items; `heard` lists the parts that were played."""
        if not isinstance(given, Mapping) or str(given.get("item")) not in self.items:
            raise ValueError("the answer names no item of this study; reload the page.")
        if given.get("choice") not in self.choices:
            raise ValueError(f"the choice is {given.get('choice')!r}; it must be one of {', '.join(self.choices)}.")
        heard = given.get("heard", [])
        if not isinstance(heard, list) or not set(map(str, heard)) <= set(self.parts):
            raise ValueError(f"heard is {heard!r}; it must be a list of {' and '.join(map(repr, self.parts))}.")
        at = datetime.now(UTC).isoformat(timespec="seconds")
        record = {"item": str(given["item"]), "choice": given["choice"], "heard": sorted(set(heard)), "at": at}
        with self._lock:
            self._append(seal(record).encode())
            self.answers[record["item"]] = record["choice"]
            return len(self.answers)

    def _append(self, line: bytes) -> None:
        self._path.parent.mkdir(exist_ok=True)
        with self._path.open("ab", buffering=0) as file:
            num_bytes = file.tell()
            try:
                if file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
            except OSError:
                # The next answer would be written onto the part of this one that is there.
                file.truncate(num_bytes)
                raise


class Raters:
    """The raters of a study by name; `only` is the one rater."""

    def __init__(self, folder: str | Path, only: str | None = None):
        self.folder, self.only = Path(folder), only
        self._lock = threading.Lock()
        self._sessions: dict[str, RatingSession] = {}
        # The study is read once at the start, so that a wrong one is an error of the command.
        self.study = read_study(self.folder)
        self.audio = find_audio(self.folder, self.study)
        if only is not None:
            self.find(only)

    def find(self, rater: Any) -> RatingSession:
        """Return the session of a rater; with `only`, the session of that rater whatever the name."""
        name = self.only if self.only is not None else rater
        if not isinstance(name, str):
            raise ValueError("give a name to rate under.")
        with self._lock:
            if name not in self._sessions:
                if len(self._sessions) >= _MAX_RATERS:
                    raise ValueError(f"{_MAX_RATERS} raters are here already; start the page again.")
                self._sessions[name] = RatingSession(self.folder, name)
            return self._sessions[name]

    def make_welcome(self) -> dict[str, Any]:
        """Return what raters see before they begin: the texts, and the name if it is fixed."""
        agreed = self.only is not None and self.find(self.only).has_consented
        form = self.study.get("form", "dialogues")
        return {**self.study["texts"], "form": form, "rater": self.only, "has_consented": agreed}
