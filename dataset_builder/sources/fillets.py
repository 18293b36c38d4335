"""Fish Fillets: acted Czech dialogue of a puzzle game's two fish, with other characters here and there (semi-wild).

Origin: the game by ALTAR interactive, now Fish Fillets NG; every line is spoken by an actor for its character.
Size: 1,782 clips, 1.7 hours, OGG/Vorbis. The two fish, one small (`m`, female, malá) and one big (`v`, male, velká),
speak about 1,400 of them; 256 of their exchanges, 39 minutes, become episodes. The package does not name the actors.
Language: cs. Licence: GPL-2.0-only, text and sound.

How to obtain: `apt-get install fillets-ng-data fillets-ng-data-cs` (Debian main), the scripts and the sound. Expected
tree below `/usr/share/games/fillets-ng`:

    sound/<level>/cs/<id>.ogg
    script/<level>/dialogs_cs.lua     dialogId("<id>", "<font>", "<English>")  dialogStr("<Czech>")
    script/<level>/code.lua           addm(<delay>, "<id>") and addv(<delay>, "<id>"), demo*.lua likewise

Conversations: `dialogs_cs.lua` is a table without an order. The order comes from the level's code, which queues lines
 of the small (`addm`) and the big fish (`addv`): lines queued one after another, with nothing
but delays, assignments and an `if` without `else` between them, are spoken in that order, and are an exchange. Such an
`if` is read as taken. Any other statement (an alternative, a loop, a computed id, another character)
ends the exchange. What the player does between two exchanges is unknown, so none are joined. Lines that the fish say
alone, and those of other characters, are in no exchange and counted for each level. Groups are the levels.

Regular expressions suffice: the tables hold nothing but calls with literal strings, and of the code only the order of
its lines is wanted, which a Lua parser knows no better.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sdiareward.common.skipped import Skipped
from sdiareward.dataset_builder.episodes import Episode, Part
from sdiareward.pairs.schema import make_stable_id

from ..references import make_reference
from .assembly import Stretch, cut_lines, make_acted_episode
from .reading import find_clip


DEFAULT_PATH = Path("/usr/share/games/fillets-ng")
_STRING = r'"((?:[^"\\]|\\.)*)"'
_DIALOG = re.compile(
    rf"dialogId\(\s*{_STRING}\s*,\s*{_STRING}(?:\s*,\s*{_STRING})?\s*\)\s*dialogStr\(\s*{_STRING}\s*\)"
)
_LINE = re.compile(r'\s*add([mv])\(.*,\s*"([^"]*)"\s*\);?\s*')
_OPENING = re.compile(r"\s*if\b.*\bthen\s*")
_CLOSING = re.compile(r"\s*end\s*")
# Comments, delays and assignments of values do not end an exchange.
_PASSING = re.compile(r"\s*(--.*|adddel\(.*\)|[\w.\[\]]+\s*=(?!.*\bfunction\b)[^{]*)?")


class Line(NamedTuple):
    """A line that the code queues: the fish (`m` or `v`) and the id of its words."""

    fish: str
    dialog: str


def read_episodes(path: Path | None = None) -> Iterator[Episode | Skipped]:
    """Yield the exchanges of the two fish, level by level.

    Args:
        path (`Path`, *optional*): The folder above `sound/` and `script/`; Debian's place by default.

    Raises:
        FileNotFoundError: There are no Czech clips or no scripts.
    """
    root = path or DEFAULT_PATH
    levels = sorted(folder.parent.name for folder in root.glob("sound/*/cs") if folder.is_dir())
    if not levels or not (root / "script").is_dir():
        raise FileNotFoundError(
            f"{root}: sound/<level>/cs or script not found; apt-get install fillets-ng-data fillets-ng-data-cs, "
            "or give a path."
        )
    for level in levels:
        yield from _read_level(root, level)


def _read_level(root: Path, level: str) -> Iterator[Episode | Skipped]:
    item = f"fillets {level}"
    folder = root / "script" / level
    if not (folder / "dialogs_cs.lua").is_file():
        yield Skipped(
            item, "missing_text", f"script/{level}/dialogs_cs.lua: not found; the words of the clips are there."
        )
        return
    words = read_dialogs((folder / "dialogs_cs.lua").read_text(encoding="utf-8", errors="replace"))
    exchanges: dict[str, list[Line]] = {}
    for script in sorted([*folder.glob("code.lua"), *folder.glob("demo*.lua")]):
        for exchange in read_exchanges(script.read_text(encoding="utf-8", errors="replace").splitlines()):
            exchanges.setdefault(make_stable_id(*exchange)[:8], exchange)
    used: set[str] = set()
    for name, exchange in exchanges.items():
        for built in _cut(root, level, exchange, words):
            if isinstance(built, Skipped):
                yield built
            else:
                used.update(part.ref or "" for turn in built.turns for part in turn.parts)
                yield _make_episode(f"{level}/{name}", level, built)
    clips = {
        make_reference("fillets", _make_path(level, path.stem)) for path in (root / f"sound/{level}/cs").iterdir()
    }
    if alone := clips - used:
        yield Skipped(item, "no_answer", f"{len(alone)} of {len(clips)} clips are in no exchange of the two fish.")


def read_dialogs(script: str) -> dict[str, str]:
    """Return the Czech words by id, from the text of a `dialogs_cs.lua`."""
    return {call[1]: re.sub(r"\\(.)", r"\1", call[4]).strip() for call in _DIALOG.finditer(script)}


def read_exchanges(code: Iterable[str]) -> Iterator[list[Line]]:
    """Yield the lines that are queued one after another, where both fish speak."""
    exchange: list[Line] = []
    depth = 0
    for line in [*code, "return"]:
        if queued := _LINE.fullmatch(line):
            exchange.append(Line(*queued.groups()))
        elif _OPENING.fullmatch(line):
            depth += 1 if exchange else 0
        elif _CLOSING.fullmatch(line) and depth:
            depth -= 1
        elif not _PASSING.fullmatch(line):
            if len({queued.fish for queued in exchange}) == 2:
                yield exchange
            exchange, depth = [], 0


def _cut(root: Path, level: str, exchange: list[Line], words: Mapping[str, str]) -> Iterator[Stretch | Skipped]:
    parts = ((fish, _make_part(root, level, dialog, words)) for fish, dialog in exchange)
    yield from cut_lines(parts, f"fillets {level}/{exchange[0].dialog}")


def _make_part(root: Path, level: str, dialog: str, words: Mapping[str, str]) -> Part | Skipped:
    item, relative = f"fillets {level}/{dialog}", _make_path(level, dialog)
    clip = find_clip(root, relative, item)
    if isinstance(clip, Skipped):
        return clip
    if not words.get(dialog):
        return Skipped(item, "missing_text", "dialogs_cs.lua has no words for it; a turn needs its words.")
    return Part(words[dialog], str(clip), ref=make_reference("fillets", relative))


def _make_path(level: str, dialog: str) -> str:
    return f"sound/{level}/cs/{dialog}.ogg"


_make_episode = partial(
    make_acted_episode, "fillets", language="cs", license="GPL-2.0-only", native_coding="vorbis_22k"
)
