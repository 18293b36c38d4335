import logging

from sdiareward.cards.publishing.hub_errors import redact_logs


TOKEN = "hf_" + "aB3" * 11


def test_logs_of_the_library_are_redacted_also_where_the_secret_is_an_argument(capsys):
    logger = logging.getLogger("huggingface_hub.utils._http")
    handler = logging.StreamHandler()
    parent = logging.getLogger("huggingface_hub")
    parent.addHandler(handler)
    try:
        with redact_logs([]):
            logger.warning("thrown while requesting %s with %s", "PUT /x?X-Amz-Signature=12ab", TOKEN)
        logger.warning("afterwards %s", "as it is")
    finally:
        parent.removeHandler(handler)
    shown = capsys.readouterr().err
    assert "thrown while requesting PUT /x?X-Amz-Signature=*** with hf_***" in shown
    assert "afterwards as it is" in shown
