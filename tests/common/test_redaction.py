import pytest

from sdiareward.common.redaction import redact


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
