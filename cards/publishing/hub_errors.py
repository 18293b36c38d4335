"""Explain errors of the Hub in one line, with a remedy and without secrets."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sdiareward.common.redaction import redact


if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError


_LOG_IN = "log in with `hf auth login` or set HF_TOKEN"
_AGAIN = "run the same command again: it resumes and sends no file twice"


class PublishError(RuntimeError):
    """Raised when the Hub refuses or cannot be reached, with a message for the user in one line."""


@contextmanager
def redact_logs(secrets: Sequence[str]) -> Iterator[None]:
    """Remove secrets from log messages: on a retry `huggingface_hub` logs signed addresses and warnings of the Hub."""
    make_record = logging.getLogRecordFactory()

    def make_redacted(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make_record(*args, **kwargs)
        record.msg, record.args = redact(record.getMessage(), secrets), ()
        return record

    logging.setLogRecordFactory(make_redacted)
    try:
        yield
    finally:
        logging.setLogRecordFactory(make_record)


def explain_error(error: BaseException, repository: str) -> str:
    """Return an error and its remedy in one line.

    Args:
        error (`BaseException`): The error that `huggingface_hub` or the network raised.
        repository (`str`): The target of the push, for instance `"dataset ORG/name"`.
    """
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

    if isinstance(error, LocalTokenNotFoundError):
        return f"no token of the Hub was found; {_LOG_IN}."
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set, so nothing can be published; unset it."
    message = f"{repository}: {error}"
    if "xet-write-token" in message:
        message += "; if the server at HF_ENDPOINT does not support Xet, set HF_HUB_DISABLE_XET=1."
    for cause in _iter_causes(error):
        if isinstance(cause, HfHubHTTPError):
            message = _explain_response(cause, repository)
            break
        if isinstance(cause, HTTPError):
            reason = f"{type(cause).__name__}: {cause}".removesuffix(": ")
            message = f"{repository}: the connection failed ({reason}); check it and HF_ENDPOINT, then {_AGAIN}."
            break
    return redact(" ".join(message.split()))


def _iter_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and the errors that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__


def _explain_response(error: HfHubHTTPError, repository: str) -> str:
    """Explain an error response of the Hub."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    status = error.response.status_code
    said = f" ({status}: {error.server_message})" if error.server_message else f" ({status})"
    if isinstance(error, GatedRepoError):
        return f"{repository} is gated and this account has no access{said}; ask for it on the repository's page."
    if status == 404 or isinstance(error, RepositoryNotFoundError):
        return f"{repository}: not found{said}; create it, or check the name and that the token may see it."
    if status == 401:
        return f"the Hub does not know the token{said}; {_LOG_IN}."
    remedies = {
        402: "choose an account or organization with a subscription",
        403: f"use a token with write access ({_LOG_IN}), or propose the change with --create-pr",
        409: "another change to it is going on, or the name is taken; look at its page",
        412: f"somebody else changed it meanwhile; {_AGAIN}",
        413: "a file is too large; split it",
        429: f"too many requests; wait a while, then {_AGAIN}",
    }
    remedy = remedies.get(status, f"the Hub is in trouble; later, {_AGAIN}" if status >= 500 else "correct that")
    return f"{repository}: {'failed' if status >= 500 else 'refused'}{said}; {remedy}."
