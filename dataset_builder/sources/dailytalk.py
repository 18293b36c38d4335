"""DailyTalk: everyday dialogues, read by two speakers in a studio, with dialogue act and emotion (scripted).

Origin: Lee et al., 2023: 2,541 dialogues of DailyDialog, adapted and recorded by one woman and one man. Size: 23,773
utterances, about 20 hours (21.93 in the paper), 44.1 kHz. Language: en. Licence: CC-BY-SA-4.0, for academic use.

How to obtain: download the archive that https://github.com/keonlee9420/DailyTalk links to, and unpack it.
Expected tree:

    dailytalk/metadata.json          {dialogue: {utterance: {"text", "speaker", "emotion", "act", ...}}}
    dailytalk/data/<dialogue>/<utterance>_<speaker>_d<dialogue>.wav, and the same name in .txt

How it is read: words and labels are trusted, there is no VAD or ASR (section B.1). The paper enhances the clips; a
build does where the source has `enhance: true`. The speakers alternate; `assembly` cuts a dialogue of more than 16
turns into consecutive episodes, which share its group. Primary label is the dialogue act, secondary the emotion, of
the last utterance (Table 5); an act that is missing is `Unknown`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sdiareward.common.files import read_json_object
from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, Part
from sdiareward.pairs.schema import TAXONOMY, UNKNOWN

from ..references import make_reference
from .assembly import Stretch, Utterance, cut_dialogue
from .reading import find_clip


_ACTS, _EMOTIONS = TAXONOMY["dailytalk"]


def read_episodes(path: Path | None = None) -> Iterator[Episode | Skipped]:
    path = path or Path("dailytalk")
    metadata = read_json_object(path / "metadata.json", "download DailyTalk, unpack it, and give its folder")
    for dialogue, entries in _by_number(metadata, "dailytalk dialogue"):
        if isinstance(entries, Skipped):
            yield entries
            continue
        utterances = []
        for index, entry in _by_number(entries, f"dailytalk dialogue {dialogue} utterance"):
            utterance = entry if isinstance(entry, Skipped) else _read_utterance(path, dialogue, index, entry)
            if isinstance(utterance, Skipped):
                yield utterance
            else:
                utterances.append(utterance)
        for stretch in cut_dialogue(utterances, f"dailytalk dialogue {dialogue}"):
            yield stretch if isinstance(stretch, Skipped) else _make_episode(dialogue, stretch)


def _by_number(entries: dict[str, Any], label: str) -> Iterator[tuple[int, dict[str, Any] | Skipped]]:
    """Yield the entries in the order of their numbers, after a `Skipped` for each invalid one."""
    for key, entry in entries.items():
        if not (_is_number(key) and isinstance(entry, dict)):
            yield -1, Skipped(f"{label} {key}", "bad_entry", "a number as key and an object as value are needed.")
    numbered = {int(key): entry for key, entry in entries.items() if _is_number(key) and isinstance(entry, dict)}
    for number in sorted(numbered):
        yield number, numbered[number]


def _is_number(key: str) -> bool:
    # Python refuses to convert numbers of thousands of digits.
    return key.isdecimal() and len(key) < 10


def _read_utterance(root: Path, dialogue: int, index: int, entry: dict[str, Any]) -> Utterance | Skipped:
    item = f"dailytalk dialogue {dialogue} utterance {index}"
    text, speaker = entry.get("text"), entry.get("speaker")
    if not (isinstance(text, str) and text.strip()):
        return Skipped(item, "missing_text", f"text is {text!r}; an utterance needs its words.")
    primary = str(entry.get("act") or UNKNOWN).strip().capitalize()
    secondary = str(entry.get("emotion")).strip().title()
    if primary not in _ACTS or secondary not in _EMOTIONS:
        found = f"act is {entry.get('act')!r} and emotion {entry.get('emotion')!r}"
        return Skipped(item, "unknown_label", f"{found}; Table 5 has {sorted(_ACTS)} and {sorted(_EMOTIONS)}.")
    relative = f"data/{dialogue}/{index}_{speaker}_d{dialogue}.wav"
    clip = find_clip(root, relative, item)
    if isinstance(clip, Skipped):
        return clip
    part = Part(text.strip(), str(clip), ref=make_reference("dailytalk", relative))
    return Utterance(index, str(speaker), part, primary, secondary)


def _make_episode(dialogue: int, stretch: Stretch) -> Episode:
    return Episode(
        name=f"{dialogue}/{stretch.first}",
        source="dailytalk",
        subset="scripted",
        group=str(dialogue),
        turns=stretch.turns,
        primary=stretch.primary,
        secondary=stretch.secondary,
        language="en",
        license="CC-BY-SA-4.0",
    )
