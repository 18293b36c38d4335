"""The Hub that the tests push to and load from, and somebody who does."""

import pytest
from support.hub_client import MEMBER, READER, STRANGER, WRITER, HubUser
from support.hub_server import HubServer


@pytest.fixture(scope="module")
def hub():
    with HubServer() as server:
        server.store.add_account(WRITER, "ann", "ORG")
        server.store.add_account(MEMBER, "dan", "ORG", can_write=False)
        server.store.add_account(READER, "bob", "OTHER")
        server.store.add_account(STRANGER, "eve")
        yield server


@pytest.fixture(scope="module")
def user(hub, tmp_path_factory):
    """Return somebody who pushes; no token may be in what was printed, logged or published."""
    with HubUser(hub, tmp_path_factory.mktemp("hub")) as user:
        yield user
    everything = user.traces()
    assert not [token for token in (WRITER, MEMBER, READER, STRANGER) if token.encode() in everything]
