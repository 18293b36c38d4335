"""No number of README, nano card or results pages differs from its result file."""

import re

import pytest
from support.paths import ROOT

from benchmarks import ablations, gpu, interval_coverage, scale, scoring_speed, tables, training_speed, validity
from sdiareward.common.package import NANO


@pytest.mark.parametrize(
    "module",
    [ablations, validity, scoring_speed, training_speed, gpu, scale, interval_coverage],
    ids=lambda module: module.__name__,
)
def test_the_tables_of_a_benchmark_are_those_of_its_result(module):
    path = tables.RESULTS / f"{module.__name__.rpartition('.')[2]}.json"
    assert path.with_suffix(".md").read_text().strip() == module.render(tables.read_result(path)).strip()


def test_the_tables_of_readme_and_nano_card_are_those_of_the_result_files():
    readme = (ROOT / "README.md").read_text()
    assert tables.render_readme(readme) == readme
    assert tables.render_nano_card() == (NANO / "README.md").read_text()
    typed = re.sub(r"76\.32", "77.32", readme)
    assert typed != readme
    assert tables.render_readme(typed) == readme
