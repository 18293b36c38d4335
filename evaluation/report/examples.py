"""Words and sound of single pairs: what the page plays of the lowest margins and of disagreements."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, read_audio
from sdiareward.chat_sdiareward import list_items, turns_to_messages
from sdiareward.pairs.schema import SIDES
from sdiareward.perturbations.channel import encode

from ..scores import compute_margin
from ..summary import Labels, Record, Scores


if TYPE_CHECKING:
    import datasets

EmbedAudio = Literal["open", "all", "none"]
NUM_EXAMPLES = 20
# Of data URIs; with figures and words the page stays below 25 MB.
MAX_AUDIO_CHARACTERS = 22_000_000
# Licences under which a recording may be passed on; SPDX ids, their usual long names, and one bundled corpus.
_OPEN_LICENSES = re.compile(
    r"cc0|cc[- ]by|creative commons|[al]?gpl|apache|mit\b|bsd|pddl|odc|odbl|public domain|"
    r"licenseref-flight-of-the-amazon-queen",
    re.IGNORECASE,
)
_LABELS = ("criterion", "subset", "source", "primary", "secondary", "synthesizer", "language", "license")
# MP3 at about 48 kbit/s, which any browser plays: fine enough to hear the synthesizer rather than the coding.
_COMPRESSION_LEVEL = 0.4


def find_lowest(records: Labels, scores: Scores) -> list[Record]:
    """Return the pairs with the lowest margins, wrong ones first, and their rewards."""
    found = []
    for record in records:
        score = scores[record["pair_id"]]
        if (margin := compute_margin(score)) is not None:
            rewards = {f"{side}_reward": score[side] for side in SIDES}
            found.append({"pair_id": record["pair_id"], "margin": margin, **rewards})
    return sorted(found, key=lambda row: row["margin"])[:NUM_EXAMPLES]


def add_dialogues(
    rows: Sequence[Record], pairs: datasets.Dataset, records: Labels, collector: Collector
) -> list[Record]:
    """Add labels, words and recordings to rows with a `pair_id`."""
    from tqdm import tqdm

    found = []
    positions = {record["pair_id"]: position for position, record in enumerate(records)}
    for row in tqdm(rows, "recordings of the page", unit="pair", disable=None):
        position = positions[row["pair_id"]]
        record, pair = records[position], pairs[position]
        sides = {side: collector.describe_side(pair[side], record.get("license")) for side in SIDES}
        found.append({**row, **{name: record.get(name) for name in _LABELS}, **sides})
    return found


def is_redistributable(license: str | None) -> bool:
    """Return whether a licence, by its name, lets anyone pass recordings on; one that is not known does not."""
    return bool(license and _OPEN_LICENSES.match(license.strip()))


class Collector:
    """Collect recordings for a page up to a size, with a reason for each one that is not embedded."""

    def __init__(self, embed_audio: EmbedAudio = "all", max_audio_characters: int = MAX_AUDIO_CHARACTERS):
        self.embed_audio = embed_audio
        self.left_characters = max_audio_characters
        self.clips: dict[str, str] = {}
        # A page with recordings under these licences must not be published.
        self.private_licenses: set[str] = set()

    def describe_side(self, turns: Sequence[Mapping[str, Any]], license: str | None) -> list[Record]:
        """Return role, words and recordings of each turn, as a `Side` of a page has them."""
        described = []
        for message in turns_to_messages(turns):
            items = list_items(message)
            words = " ".join(item["text"] for item in items if item["type"] == "text")
            clips = [self.describe_clip(item["audio"], license) for item in items if item["type"] == "audio"]
            described.append({"role": message["role"], "text": words, "clips": clips})
        return described

    def describe_clip(self, source: Any, license: str | None) -> Record:
        """Return a recording's length, and its key or why there is none."""
        try:
            array = read_audio(source)
        except (AudioError, FileNotFoundError, TypeError) as error:
            return {"duration_s": None, "clip": None, "no_audio": str(error)}
        found = {"duration_s": len(array) / SAMPLING_RATE, "clip": None}
        is_private = not is_redistributable(license)
        if self.embed_audio == "none":
            return {**found, "no_audio": "audio is switched off"}
        if self.embed_audio == "open" and is_private:
            reason = f"its licence, {license or 'unknown'}, is not known to let anyone pass it on"
            return {**found, "no_audio": reason}
        key = hashlib.sha256(array.tobytes()).hexdigest()[:16]
        if key not in self.clips:
            data = encode(array, SAMPLING_RATE, "MP3", "MPEG_LAYER_III", _COMPRESSION_LEVEL)
            self.clips[key] = f"data:audio/mpeg;base64,{base64.b64encode(data).decode()}"
        # A recording that is played twice is in the page twice.
        if len(self.clips[key]) > self.left_characters:
            return {**found, "no_audio": "the page would become too large"}
        self.left_characters -= len(self.clips[key])
        if is_private:
            self.private_licenses.add(license or "unknown")
        return {**found, "clip": key, "no_audio": None}
