"""Take out of a text what must not be shown to strangers, so that a report can be pasted into an issue."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from sdiareward.common.redaction import redact


_SECRET_NAME = re.compile(r"TOKENS?(_|$)|SECRET|PASSW|CREDENTIAL|(^|_)(API_?)?KEY$|(^|_)AUTH$", re.IGNORECASE)
# A shorter one would be found in the middle of ordinary words.
_MIN_SECRET_CHARS = 6
_WITH_CREDENTIALS = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/\s@'\"]+@[^/\s'\",;)]+")
_HOME_OF_SOMEBODY = re.compile(r"(/(?:home|Users)/)[^/\s'\",:;)]+")
_HIDDEN = "***"


class Redactor:
    """Replace secrets of the environment, tokens, credentials in addresses, proxies, and the names of home folders.

    Args:
        environment (`Mapping[str, str]`, *optional*): By default that of the process.
    """

    def __init__(self, environment: Mapping[str, str] | None = None):
        environment = os.environ if environment is None else environment
        self._secrets = [
            value
            for name, value in environment.items()
            if _SECRET_NAME.search(name) and len(value) >= _MIN_SECRET_CHARS
        ]
        self._secrets += _hosts_of_proxies(environment)
        # Longest first: one may be a part of another.
        self._secrets.sort(key=len, reverse=True)
        self._replacements = [(re.compile(rf"{re.escape(home)}(?=[/\s'\",:;)]|$)"), "~") for home in _homes()]
        if (user := _user_name()) is not None:
            self._replacements.append((re.compile(rf"(?<=/){re.escape(user)}(?=/)"), _HIDDEN))

    def clean(self, value: Any) -> Any:
        """Return a text, or the texts in lists and mappings, without what must not be shown; other values as is."""
        if isinstance(value, str):
            return self._clean_text(value)
        if isinstance(value, Mapping):
            return {name: self.clean(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.clean(item) for item in value]
        return value

    def _clean_text(self, text: str) -> str:
        # Before the secrets: a password taken out first would leave the rest of its address.
        text = redact(_WITH_CREDENTIALS.sub(rf"\1{_HIDDEN}", text), self._secrets)
        for pattern, replacement in self._replacements:
            text = pattern.sub(replacement, text)
        return _HOME_OF_SOMEBODY.sub(rf"\1{_HIDDEN}", text)


def _hosts_of_proxies(environment: Mapping[str, str]) -> list[str]:
    """Return the hosts of proxies, with and without what stands around them in the address."""
    hosts = []
    for name, value in environment.items():
        if not name.lower().endswith("_proxy") or name.lower() == "no_proxy":
            continue
        try:
            parts = urlsplit(value if "://" in value else f"//{value}")
            hosts += [text for text in (value, parts.netloc, parts.hostname) if text]
        except ValueError:
            hosts.append(value)
    return [host for host in hosts if len(host) >= _MIN_SECRET_CHARS]


def _homes() -> list[str]:
    """Return the home folder as it is called and as it is; nothing where there is none or it is the root."""
    home = os.path.expanduser("~")
    return sorted({path for path in (home, os.path.realpath(home)) if len(path) > 1}, key=len, reverse=True)


def _user_name() -> str | None:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        return None
    return None if name == "root" else name
