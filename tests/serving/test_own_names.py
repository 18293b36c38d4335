import asyncio
import socket

import pytest
from starlette.responses import PlainTextResponse

from sdiareward.serving.own_names import OwnNames


def ask(headers, host="127.0.0.1"):
    """Return the status and the body that a request with these headers gets."""
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "headers": [(name.encode(), value.encode()) for name, value in headers.items()]}
    asyncio.run(OwnNames(PlainTextResponse("answer"), host)(scope, None, send))
    return sent[0]["status"], sent[1]["body"].decode()


@pytest.mark.parametrize(
    "host",
    [
        *["127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:8000", "10.0.0.7:80", "own.name"],
        socket.gethostname(),
    ],
)
def test_a_server_answers_to_its_addresses_and_names(host):
    assert ask({"host": host}, "own.name") == (200, "answer")
    assert ask({"host": host, "origin": f"http://{host}"}, "own.name") == (200, "answer")


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.", "localhost@evil.example", "", "["],
)
def test_a_name_that_may_have_been_rebound_is_refused(host):
    status, body = ask({"host": host})
    assert status == ask({})[0] == 403
    assert "use an address of the server, or start it with an API key" in body


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:8001", "http://localhost:8000", "127.0.0.1:8000", ""]
)
def test_a_page_of_another_site_is_refused(origin):
    status, body = ask({"host": "127.0.0.1:8000", "origin": origin})
    assert status == 403
    assert "may not use a server without an API key" in body
