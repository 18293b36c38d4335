"""Words and sound of single pairs: what the page plays and shows of those with the lowest margins."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..audio_sdiareward import SAMPLING_RATE, AudioError, read_audio
from ..pairs import SIDES, turns_to_messages
from .margins import lowest


if TYPE_CHECKING:
    import datasets

EmbedAudio = Literal["open", "all", "none"]
NUM_EXAMPLES = 20
# Of data URIs; with figures and words the page stays below 25 MB.
MAX_AUDIO_CHARACTERS = 22_000_000
# Licences under which a recording may be passed on; SPDX ids, their usual long names, and one corpus of ours.
_OPEN_LICENSES = re.compile(
    r"cc0|cc[- ]by|creative commons|[al]?gpl|apache|mit\b|bsd|pddl|odc|odbl|public domain|"
    r"licenseref-flight-of-the-amazon-queen",
    re.IGNORECASE,
)
_LABELS = ("criterion", "subset", "source", "primary", "secondary", "synthesizer", "language", "license")
_URI = "data:audio/mpeg;base64,"
# Fine enough to hear what a synthesizer did rather than what the coding does.
_COMPRESSION_LEVEL = 0.4


@dataclass
class Examples:
    """Some pairs of a data set.

    Args:
        rows (`list[dict]`): For `report.json`: labels, rewards, and by side the turns with `role`, `text` and `clips`:
            `duration_s`, and `clip` (a key of `clips`) or `no_audio` (why there is none).
        clips (`dict[str, str]`): MP3 as data URIs by a hash of the samples.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    clips: dict[str, str] = field(default_factory=dict)


def describe_lowest(
    pairs: datasets.Dataset,
    records: Sequence[Mapping[str, Any]],
    scores: Mapping[str, Mapping[str, Any]],
    embed_audio: EmbedAudio = "open",
    max_audio_characters: int = MAX_AUDIO_CHARACTERS,
) -> Examples:
    """Collect words and sound of the pairs with the lowest margins, wrong ones first.

    Args:
        pairs (`datasets.Dataset`): The scored pairs as `pairs.load_pairs` gives them.
        records (`Sequence[Mapping]`): Labels of each, in the same order.
        scores (`Mapping`): `chosen` and `rejected` by `pair_id`; a pair whose margin is NaN is left out.
        embed_audio (`str`, *optional*, defaults to `"open"`): Which recordings to take: those of licences that let
            anyone pass them on, `"all"` or `"none"`.
        max_audio_characters (`int`, *optional*): What all data URIs of the page may come to.
    """
    from tqdm import tqdm

    margins = [scores[record["pair_id"]]["chosen"] - scores[record["pair_id"]]["rejected"] for record in records]
    collector = _Collector(embed_audio, max_audio_characters)
    found = Examples(clips=collector.clips)
    positions = lowest(margins, NUM_EXAMPLES).tolist()
    for position in tqdm(positions, "lowest margins", unit="pair", disable=None):
        record, pair = records[position], pairs[position]
        score = scores[record["pair_id"]]
        found.rows.append(
            {
                "pair_id": record["pair_id"],
                **{name: record.get(name) for name in _LABELS},
                "margin": margins[position],
                **{f"{side}_reward": score[side] for side in SIDES},
                **{side: collector.describe_side(pair[side], record.get("license")) for side in SIDES},
            }
        )
    return found


def may_be_passed_on(license: str | None) -> bool:
    """Return whether a licence, by its name, lets anyone pass recordings on; one that is not known does not."""
    return bool(license and _OPEN_LICENSES.match(license.strip()))


class _Collector:
    """Collects clips up to a size; what is not taken is told why."""

    def __init__(self, embed_audio: EmbedAudio, max_audio_characters: int):
        self.embed_audio = embed_audio
        self.left_characters = max_audio_characters
        self.clips: dict[str, str] = {}

    def describe_side(self, turns: Sequence[Mapping[str, Any]], license: str | None) -> list[dict[str, Any]]:
        described = []
        for message in turns_to_messages(turns):
            content = message["content"]
            items = [{"type": "text", "text": content}] if isinstance(content, str) else content
            words = " ".join(item["text"] for item in items if item["type"] == "text")
            sounds = [item["audio"] for item in items if item["type"] == "audio"]
            clips = [self.describe_clip(sound, license) for sound in sounds]
            described.append({"role": message["role"], "text": words, "clips": clips})
        return described

    def describe_clip(self, source: Any, license: str | None) -> dict[str, Any]:
        try:
            array = read_audio(source)
        except (AudioError, FileNotFoundError, TypeError) as error:
            return {"duration_s": None, "clip": None, "no_audio": str(error)}
        clip, reason = self.take(array, license)
        return {"duration_s": len(array) / SAMPLING_RATE, "clip": clip, "no_audio": reason}

    def take(self, array: np.ndarray, license: str | None) -> tuple[str | None, str | None]:
        """Return the key of the clip, or why it is not taken."""
        if self.embed_audio == "none":
            return None, "audio is switched off"
        if self.embed_audio == "open" and not may_be_passed_on(license):
            return None, f"its licence, {license or 'unknown'}, is not known to let anyone pass it on"
        key = hashlib.sha256(array.tobytes()).hexdigest()[:16]
        uri = self.clips.get(key) or _URI + base64.b64encode(encode_clip(array)).decode()
        # A recording that is played twice is in the page twice.
        if len(uri) > self.left_characters:
            return None, "the page would become too large"
        self.left_characters -= len(uri)
        self.clips[key] = uri
        return key, None


def encode_clip(array: np.ndarray) -> bytes:
    """Encode speech as MP3 at about 48 kbit/s: what any browser plays, and the same samples give the same bytes.

    Args:
        array (`np.ndarray` of shape `(num_samples,)`): 16 kHz mono.
    """
    from ..dataset_builder.channel import encode

    return encode(array, SAMPLING_RATE, "MP3", "MPEG_LAYER_III", _COMPRESSION_LEVEL)
