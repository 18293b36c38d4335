import os

import pytest

from sdiareward.common.local_ray import joins_cluster, protect_ray, require_room


LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def test_a_token_is_drawn_for_a_ray_of_ones_own_unless_it_is_given_one(monkeypatch):
    tokens = []
    for given in ({}, {"RAY_ADDRESS": "local"}, {"RAY_AUTH_TOKEN": "a-token-of-mine"}):
        monkeypatch.setattr(os, "environ", {"RAY_AUTH_MODE": "disabled", **given})
        assert not joins_cluster()
        protect_ray()
        assert os.environ["RAY_AUTH_MODE"] == "token"
        tokens.append(os.environ["RAY_AUTH_TOKEN"])
    assert len(set(tokens)) == 3
    assert [len(token) for token in tokens[:2]] == [64, 64]
    assert tokens[2] == "a-token-of-mine"


@pytest.mark.parametrize(("given", "expected"), [({}, "0"), ({LOOPBACK: "1"}, "1")])
def test_a_ray_of_ones_own_listens_on_loopback_unless_the_user_opens_it(given, expected, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(given))
    protect_ray()
    assert os.environ[LOOPBACK] == expected


def test_a_cluster_that_is_joined_has_its_own_rules(monkeypatch):
    monkeypatch.setattr(os, "environ", {"RAY_ADDRESS": "cluster:1"})
    assert joins_cluster()
    protect_ray()
    assert os.environ == {"RAY_ADDRESS": "cluster:1"}


@pytest.mark.parametrize(
    ("num_actors", "each", "named"),
    [
        (2, {"num_cpus": 2.0}, "2 actors with 2 CPUs each .* Ray has 3 CPUs"),
        (64, {}, "64 actors with 1 CPUs each .* Ray has 3 CPUs"),
        (3, {"num_gpus": 0.6}, "3 actors with 0.6 GPUs each .* Ray has 2 GPUs"),
        (2, {"num_bytes": 2**30}, "2 actors with .* bytes of memory each"),
    ],
)
def test_more_actors_than_there_is_room_for_are_refused(num_actors, each, named, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 3.0, "GPU": 2.0, "memory": 2.0**31})
    with pytest.raises(ValueError, match=named):
        require_room(ValueError, num_actors, "actors", **each)
    require_room(ValueError, 2, "actors", num_gpus=0.5, num_bytes=2**29)
    require_room(ValueError, 1, "actors", num_bytes=2**40)
    require_room(ValueError, 3, "actors", num_cpus=0.0)
