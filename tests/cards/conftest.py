import pytest
from support.repository_world import write_data


@pytest.fixture
def make_data(tmp_path):
    """Return a function writing `(split, row)` as a data set folder."""
    return lambda *rows, name="sdiareward": write_data(tmp_path / name, *rows)
