"""Take secrets out of texts that are printed or logged."""

from __future__ import annotations

import re
from collections.abc import Sequence


_REPLACEMENTS = (
    (re.compile(r"hf_[A-Za-z0-9]{20,}"), "hf_***"),
    (re.compile(r"(?i)(authorization['\"]?\s*[:=]\s*['\"]?)(?:(?:bearer|basic)\s+)?[^\s'\",;}]+"), r"\1***"),
    (re.compile(r"(?i)\b(bearer\s+)[^\s'\",;}]+"), r"\1***"),
    # The addresses that large files are sent to are signed: who has one can write there.
    (re.compile(r"(?i)\b((?:x-amz-)?(?:signature|credential|security-token))=[^&\s'\"]+"), r"\1=***"),
)


def redact(text: str, secrets: Sequence[str] = ()) -> str:
    """Return a text without tokens, values of `Authorization` and signatures.

    Args:
        text (`str`): Anything that is going to be shown, logged or raised.
        secrets (`Sequence[str]`): Texts to take out wherever they are, for instance the token in use.
    """
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    for pattern, replacement in _REPLACEMENTS:
        text = pattern.sub(replacement, text)
    return text
