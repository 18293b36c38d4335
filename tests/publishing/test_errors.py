import logging

import pytest

from sdiareward.common.redaction import redact
from sdiareward.publishing.hub_errors import redacted_logs


TOKEN = "hf_" + "aB3" * 11


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"401 for {TOKEN}.", "401 for hf_***."),
        (f"{{'Authorization': 'Bearer {TOKEN}', 'x': 1}}", "{'Authorization': '***', 'x': 1}"),
        ("Authorization: Bearer abc.def-ghi", "Authorization: ***"),
        ("authorization=Basic dXNlcjpwYXNz; next", "authorization=***; next"),
        ("(403: Authorization error.)", "(403: Authorization error.)"),
        ("header b'Bearer abc'", "header b'Bearer ***'"),
        ("PUT /x?X-Amz-Signature=1f2e&X-Amz-Date=3", "PUT /x?X-Amz-Signature=***&X-Amz-Date=3"),
        ("X-Amz-Credential=AKIA/2026/s3 X-Amz-Security-Token=ab", "X-Amz-Credential=*** X-Amz-Security-Token=***"),
        ("hf_hub_download of ORG/name failed", "hf_hub_download of ORG/name failed"),
    ],
)
def test_secrets_are_taken_out_of_a_text(text, shown):
    assert redact(text) == shown


def test_the_token_in_use_is_taken_out_whatever_it_looks_like():
    assert redact("wrong: open-sesame!", ["open-sesame"]) == "wrong: ***!"


def test_what_the_library_logs_is_redacted_also_where_the_secret_is_an_argument(capsys):
    logger = logging.getLogger("huggingface_hub.utils._http")
    handler = logging.StreamHandler()
    parent = logging.getLogger("huggingface_hub")
    parent.addHandler(handler)
    try:
        with redacted_logs():
            logger.warning("thrown while requesting %s with %s", "PUT /x?X-Amz-Signature=12ab", TOKEN)
        logger.warning("afterwards %s", "as it is")
    finally:
        parent.removeHandler(handler)
    shown = capsys.readouterr().err
    assert "thrown while requesting PUT /x?X-Amz-Signature=*** with hf_***" in shown
    assert "afterwards as it is" in shown


def test_no_traceback_shows_a_signed_address_whoever_logs_it(capsys):
    logger, handler = logging.getLogger("somebody.elses"), logging.StreamHandler()
    logger.addHandler(handler)
    logger.propagate = False
    try:
        with redacted_logs(["open-sesame"]):
            try:
                raise OSError("PUT /x?X-Amz-Signature=12ab with open-sesame")
            except OSError:
                logger.exception("failed")
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
    shown = capsys.readouterr().err
    assert "OSError: PUT /x?X-Amz-Signature=*** with ***" in shown
    assert "12ab" not in shown and "open-sesame" not in shown
