"""Read the package's docstrings for the API reference: an extension of griffe, which mkdocstrings loads.

Types stand in backticks there, as in `transformers`, with marks such as *optional*, which the column of defaults shows
anyway. An `Example` becomes a section of code.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object


_TYPED = re.compile(r"^( +[\w*]+ \()(.*)(\):)", re.MULTILINE)
_RETURNED = re.compile(r"^( +)(`[^:\n]+):", re.MULTILINE)
_MARK = re.compile(r",? ?\*optional\*|, defaults to [^,)]*|`")


class PlainTypes(Extension):
    """Replace docstrings by what the parser of Google's style understands."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = rewrite_docstring(obj.docstring.value)


def rewrite_docstring(text: str) -> str:
    """Return a docstring with bare types, shapes included, and `Examples` as the name of that section."""
    text = _TYPED.sub(lambda found: _join(found[1], _MARK.sub("", found[2]), found[3]), text)
    text = _RETURNED.sub(lambda found: f"{found[1]}{found[2].replace('`', '')}:", text)
    return re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)


def _join(before: str, kind: str, after: str) -> str:
    return f"{before}{kind}{after}" if kind else f"{before.removesuffix(' (')}:"
