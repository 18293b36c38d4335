"""Every parser of outside data that is fuzzed, by name."""

from fuzz import answers, audio, files, rows, settings, sources, tables
from fuzz.running import KINDS, Target


_MODULES = (audio, sources, rows, settings, answers, files, tables)
TARGETS: dict[str, Target] = {target.name: target for module in _MODULES for target in module.TARGETS}
assert {target.kind for target in TARGETS.values()} == set(KINDS)
