"""The Hub: whether it answers from here, and whether there is a token. Neither the token nor a proxy is shown."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path

from .findings import PASSED, SKIPPED, WARNING, Check, Outcome, Settings, reason_of
from .packages import import_of


_TIMEOUT_S = 5.0
# Signed addresses and tokens are refused by a clock that is further off.
_MAX_CLOCK_ERROR_S = 300.0
_TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def hub_checks() -> list[Check]:
    """Return the checks of the Hub."""
    hub = (import_of("huggingface_hub"),)
    # A server that sends a byte now and then outlasts the timeout of the client.
    return [Check("Hub", "answers", _answers, hub, limit_s=4 * _TIMEOUT_S), Check("Hub", "token", _token, hub)]


def _answers(settings: Settings) -> Outcome:
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    endpoint, timeout_s = constants.ENDPOINT, min(_TIMEOUT_S, constants.HF_HUB_ETAG_TIMEOUT)
    proxies = _proxies()
    details: dict[str, object] = {"endpoint": endpoint, "timeout_s": timeout_s, "proxies": proxies}
    if constants.is_offline_mode():
        why = "--offline" if settings.offline else "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE"
        return Outcome(SKIPPED, f"not asked, because of {why}", details=details)
    started = time.perf_counter()
    try:
        response = get_session().head(endpoint, timeout=timeout_s)
    # The client's own errors are of another library with each of its versions.
    except Exception as error:
        found = f"{endpoint} cannot be reached ({reason_of(error)})"
        return Outcome(WARNING, found, _advice(proxies), details=details)
    seconds = time.perf_counter() - started
    details |= {"status": response.status_code, "seconds": round(seconds, 3)}
    found = f"{endpoint} answers {response.status_code} after {seconds:.1f} s"
    if response.status_code >= 400:
        return Outcome(WARNING, found, "later again; what is in the cache can be used with --offline", details=details)
    return _with_clock(found, response.headers.get("date"), details)


def _advice(proxies: list[str]) -> str:
    through = f"; requests go through {', '.join(proxies)}" if proxies else ""
    return f"check the connection and HF_ENDPOINT{through}; local checkpoints work without the Hub"


def _with_clock(found: str, date: str | None, details: Mapping[str, object]) -> Outcome:
    """Return that the Hub answers, and warn if its clock says something else than ours."""
    try:
        error_s = time.time() - parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return Outcome(PASSED, found, details=details)
    details = {**details, "clock_error_s": round(error_s)}
    if abs(error_s) > _MAX_CLOCK_ERROR_S:
        direction = "ahead of" if error_s > 0 else "behind"
        found += f"; the clock here is {abs(error_s):.0f} s {direction} its"
        return Outcome(WARNING, found, "set the clock: tokens and signed addresses are refused", details=details)
    return Outcome(PASSED, found, details=details)


def _proxies() -> list[str]:
    """Return which variables name a proxy, not what they say."""
    names = (name for name, value in os.environ.items() if value and name.lower().endswith("_proxy"))
    return sorted(name for name in names if name.lower() != "no_proxy")


def _token(_: Settings) -> Outcome:
    from huggingface_hub import constants

    for name in _TOKEN_VARIABLES:
        if os.environ.get(name):
            return Outcome(PASSED, f"is set in {name}")
    if Path(constants.HF_TOKEN_PATH).is_file():
        return Outcome(PASSED, "is stored by `hf auth login`")
    return Outcome(PASSED, "none; needed for private and gated repositories and for sdiareward push only")
