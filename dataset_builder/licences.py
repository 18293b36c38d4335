"""Decide whether the audio of a row may be published, by its licence and its corpora.

The licence must be in `LICENCES` and every corpus of the row in `CORPORA`. A row's licence never overrides a corpus
that forbids redistribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sdiareward.pairs.schema import SIDES

from .episodes import SYNTHETIC


@dataclass(frozen=True)
class Licence:
    """A licence that allows redistribution of cut, resampled and coded recordings."""

    name: str
    hub_id: str  # For the header of a card.
    notice: str | None = None  # File of `cards/notices` that must accompany the recordings.


@dataclass(frozen=True)
class Corpus:
    """A source, and whether its recordings may be redistributed."""

    allows_audio: bool
    attribution: str | None = None  # Required by its licence.


# Licences that forbid modified versions (ND) are excluded, because both sides of a pair are modified.
_SAME_ON_HUB = (
    *("Apache-2.0", "BSD-3-Clause", "CC-BY-3.0", "CC-BY-4.0", "CC-BY-NC-4.0", "CC-BY-NC-SA-4.0", "CC-BY-SA-3.0"),
    *("CC-BY-SA-4.0", "CC0-1.0", "CDLA-Permissive-2.0", "MIT"),
)
_GPL = ("GPL-2.0-only", "GPL-2.0-or-later", "GPL-3.0-only", "GPL-3.0-or-later")
_KNOWN = [
    *(Licence(name, name.lower()) for name in _SAME_ON_HUB),
    *(Licence(name, name[:7].lower()) for name in _GPL),
    Licence("LicenseRef-Flight-of-the-Amazon-Queen", "other", "flight-of-the-amazon-queen.txt"),
    Licence("PDDL-1.0", "pddl"),
]
LICENCES = {licence.name.lower(): licence for licence in _KNOWN}
_OUR_SCRIPTS = Corpus(True, "Scripts of the sdiareward authors, spoken by synthesizers.")
# For `folder` (the user's audio) and `sample` (the bundled audio) the row's licence decides. The last three are never
# redistributed, as in the paper (ethics section).
CORPORA = {
    "amazon_queen": Corpus(
        True, "Flight of the Amazon Queen, (c) 1995 John Passfield and Steven Stamatiadis. Modified versions."
    ),
    "asterisk": Corpus(True, "Asterisk core sounds, (c) 2003-2010 Allison Smith and Digium, Inc. Modified versions."),
    **dict.fromkeys(("balanced_scripts", "colloquial_scripts"), _OUR_SCRIPTS),
    **dict.fromkeys(("folder", "sample", SYNTHETIC), Corpus(True)),
    **dict.fromkeys(("dailytalk", "meld", "youtube"), Corpus(False)),
}


def find_licence(name: str | None) -> Licence | None:
    """Return the licence of this name (case-insensitive) if it allows redistribution."""
    return LICENCES.get((name or "").strip().lower())


def find_corpus(name: str | None) -> Corpus | None:
    return CORPORA.get((name or "").strip().lower())


def find_redistribution_block(row: Mapping[str, Any]) -> str | None:
    """Return the reason why the audio of a pair must not be published; None if it may be."""
    # For an unknown source, the licence decides. In a reference, an unknown source blocks publication, because it is
    # the origin of the recording.
    if (corpus := find_corpus(row.get("source"))) and not corpus.allows_audio:
        return f"the source {str(row['source']).strip().lower()} must not be redistributed"
    parts = [part for side in SIDES for turn in row.get(side) or () for part in turn.get("audio_ref") or ()]
    for origin in {str(part["uri"]).partition(":")[0] for part in parts if part.get("uri")}:
        if not ((corpus := find_corpus(origin)) and corpus.allows_audio):
            return f"it has audio from {origin.strip().lower()!r}, which must not be redistributed"
    if find_licence(row.get("license")) is None:
        return f"the licence {row.get('license')!r} is not known to allow redistribution"
    return None
