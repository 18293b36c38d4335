"""An `audit.json` with made-up values."""

from sdiareward.auditing.verdicts import Measured, judge


def make_audit(**values):
    """Make an audit with these values by name of the check, `__` for the dot."""
    verdicts = judge({name.replace("__", "."): Measured(value) for name, value in values.items()})
    natural = {"all": {"accuracy": 0.975, "natural_margin": 2.5}}
    counts = {"num_pairs": 12, "num_available": 40, "num_groups": 7}
    return {**counts, "natural": natural, "verdicts": verdicts, "skipped": [], "failures": [], "run": {}}
