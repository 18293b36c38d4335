"""A Ray of this machine, and what a result records."""

import os
from pathlib import Path

import pytest

from sdiareward.common import machine
from sdiareward.common.errors import UserError
from sdiareward.common.machine import describe_run, joins_cluster, protect_ray, require_room
from sdiareward.common.package import PACKAGE


LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, {LOOPBACK: "0"}),
        ({"RAY_ADDRESS": "local"}, {LOOPBACK: "0"}),
        ({"RAY_AUTH_TOKEN": "a-token-of-mine"}, {"RAY_AUTH_TOKEN": "a-token-of-mine"}),
        ({LOOPBACK: "1"}, {LOOPBACK: "1"}),
    ],
)
def test_a_local_ray_requires_a_token_and_listens_on_loopback_unless_the_user_opens_it(given, kept, monkeypatch):
    monkeypatch.setattr(os, "environ", {"RAY_AUTH_MODE": "disabled", **given})
    protect_ray()
    assert not joins_cluster() and os.environ["RAY_AUTH_MODE"] == "token"
    assert kept.items() <= os.environ.items()
    assert "RAY_AUTH_TOKEN" in given or len(os.environ["RAY_AUTH_TOKEN"]) == 64


def test_a_cluster_that_is_joined_has_its_own_rules(monkeypatch):
    monkeypatch.setattr(os, "environ", {"RAY_ADDRESS": "cluster:1"})
    protect_ray()
    assert joins_cluster() and os.environ == {"RAY_ADDRESS": "cluster:1"}


@pytest.mark.parametrize(
    ("num_actors", "each", "named"),
    [
        (2, {"num_cpus": 2.0}, "2 actors need 2 CPUs each; Ray has 3 CPUs"),
        (64, {}, "64 actors need 1 CPUs each; Ray has 3 CPUs"),
        (3, {"num_gpus": 0.6}, "3 actors need 0.6 GPUs each; Ray has 2 GPUs"),
        (2, {"num_bytes": 2**30}, "2 actors need .* bytes of memory each"),
    ],
)
def test_more_actors_than_there_is_room_for_are_refused(num_actors, each, named, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 3.0, "GPU": 2.0, "memory": 2.0**31})
    with pytest.raises(UserError, match=named):
        require_room(num_actors, "actors", **each)
    require_room(2, "actors", num_gpus=0.5, num_bytes=2**29)
    require_room(1, "actors", num_bytes=2**40)
    require_room(3, "actors", num_cpus=0.0)


def test_the_revision_is_that_of_the_package_and_not_of_a_repository_around_it(monkeypatch):
    assert (describe_run()["git_revision"] is not None) == (PACKAGE / ".git").exists()
    monkeypatch.setattr(machine, "PACKAGE", Path(PACKAGE, "common"))
    assert describe_run()["git_revision"] is None
