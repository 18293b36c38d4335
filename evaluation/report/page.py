"""The page of an evaluation, a comparison or an audit: one HTML file that requests nothing.

A section is `(key, title, blocks)`, a block `(kind, content)`. Text is escaped, unless it is `Markup`.

- `text`, `caution`, `rule` (small and soft), `bounds` (small): a paragraph. `heading`: within the section.
- `list`: of texts. `details`: `(title, blocks)`, folded. `html`: `Markup`, as it is.
- `verdict`, `verdict clear`: blocks in a box, with large text.
- `table`: a `common.tables.Table`. The note of a row's first cell, also of a `group` row, describes the row; other
  notes stand below their values. Columns in `words` hold text; a `Cell.style` of `pass`, `fail`, `none` or `note`
  marks a check. On a phone the rows of a table of style `checks` are blocks.
- `figures`: names of figures in the order of the page; `render_page` has by name a title and the SVG file.
- `turns`: `(turns, label of their players)`, as of a side.
- `dialogue`: a `Dialogue` with the turns of each side; `Collector.describe_side` makes them, and their clips.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sdiareward.audio_sdiareward import SAMPLING_RATE, AudioError, read_audio
from sdiareward.chat_sdiareward import list_items, turns_to_messages
from sdiareward.common.package import EVALUATION_PAGE
from sdiareward.common.tables import make_html_environment
from sdiareward.perturbations.channel import encode


if TYPE_CHECKING:
    from markupsafe import Markup

Block = tuple[str, Any]
Section = tuple[str, str, list[Block]]
EmbedAudio = Literal["open", "all", "none"]
# Of data URIs; with figures and words the page stays below 25 MB.
MAX_AUDIO_CHARACTERS = 22_000_000
# Licences under which a recording may be passed on; SPDX ids, their usual long names, and one bundled corpus.
_OPEN_LICENSES = re.compile(
    r"cc0|cc[- ]by|creative commons|[al]?gpl|apache|mit\b|bsd|pddl|odc|odbl|public domain|"
    r"licenseref-flight-of-the-amazon-queen",
    re.IGNORECASE,
)
# MP3 at about 48 kbit/s, which any browser plays: fine enough to hear the synthesizer rather than the coding.
_COMPRESSION_LEVEL = 0.4


class Side(NamedTuple):
    """One version of a dialogue; `style` is `chosen`, `rejected` or `best`."""

    name: str
    turns: Sequence[Mapping[str, Any]]
    reward: float | None = None
    style: str = ""
    marks: Sequence[str] = ()


class Dialogue(NamedTuple):
    """The sides of a dialogue, folded below a title; `place` begins the labels of its players."""

    title: str
    place: str
    sides: Sequence[Side]
    about: str = ""
    mark: str = ""
    foot: str = ""
    language: str | None = None
    level: int = 3
    is_open: bool = False


def render_page(
    *,
    sections: Sequence[Section],
    headline: str | Markup = "",
    tiles: Sequence[tuple[str, Any, str, str]] = (),
    notes: Sequence[str] = (),
    figures: Mapping[str, tuple[str, bytes]] | None = None,
    clips: Mapping[str, str] | None = None,
    foot: str = "",
    **names: str,
) -> str:
    """Render a page; `names` are its `title`, `kind`, `subject` and `subtitle`, `foot` is its last line.

    `tiles` are name, value, unit and note of the numbers that are shown large.
    """
    from markupsafe import Markup

    environment = make_html_environment(EVALUATION_PAGE)
    environment.filters |= {"typeset": _typeset, "breakable": make_breakable, "hash": _hash}
    style, script = (Markup((EVALUATION_PAGE / f"page.{name}").read_text(encoding="utf-8")) for name in ("css", "js"))
    pictures = {
        name: (alternative, f"data:image/svg+xml;base64,{base64.b64encode(data).decode()}")
        for name, (alternative, data) in (figures or {}).items()
    }
    content = {"sections": sections, "headline": headline, "tiles": tiles, "notes": notes, "foot": foot}
    files = {"clips": clips or {}, "figures": pictures, "style": style, "script": script}
    return environment.get_template("page.html").render(**names, **content, **files) + "\n"


def _hash(text: str) -> str:
    """Return the hash by which a content security policy allows a style or a script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def make_breakable(text: str) -> str:
    """Let a long name break where its parts end."""
    from markupsafe import Markup

    return text if isinstance(text, Markup) else Markup("<wbr>").join(re.split(r"(?<=[/_-])", text))


def _typeset(value: Any) -> Any:
    """Put the signs of typography into formatted numbers: minus, and the dash of intervals."""
    if not isinstance(value, str):
        return value
    if value == "-":
        return "n/a"
    return re.sub(r"(?<![\w.-])-(?=\d)", "−", re.sub(r"(?<=\.\d)-(?=\d+\.\d)", "–", value))


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

    def describe_side(self, turns: Sequence[Mapping[str, Any]], license: str | None) -> list[dict[str, Any]]:
        """Return role, words and recordings of each turn, as a `Side` of a page has them."""
        described = []
        for message in turns_to_messages(turns):
            items = list_items(message)
            words = " ".join(item["text"] for item in items if item["type"] == "text")
            clips = [self.describe_clip(item["audio"], license) for item in items if item["type"] == "audio"]
            described.append({"role": message["role"], "text": words, "clips": clips})
        return described

    def describe_clip(self, source: Any, license: str | None) -> dict[str, Any]:
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
