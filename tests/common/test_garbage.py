"""Imports without the garbage collector."""

import gc
import sys

import pytest

from sdiareward.common.garbage import without_collection


@pytest.fixture(autouse=True)
def forget_the_import(monkeypatch):
    monkeypatch.delitem(sys.modules, "transformers.modeling_utils", raising=False)
    yield
    gc.enable()


def test_what_is_made_meanwhile_is_never_looked_at_again():
    before = gc.get_freeze_count()
    with without_collection():
        assert not gc.isenabled()
        made = [{} for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(made)


def test_a_collector_that_is_off_stays_off():
    gc.disable()
    with without_collection():
        pass
    assert not gc.isenabled()


def test_a_failed_import_turns_it_on_again():
    with pytest.raises(ImportError, match="no such"), without_collection():
        raise ImportError("no such library")
    assert gc.isenabled()


def test_where_the_libraries_are_there_nothing_changes(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.modeling_utils", sys)
    before = gc.get_freeze_count()
    with without_collection():
        assert gc.isenabled()
    assert gc.get_freeze_count() <= before
