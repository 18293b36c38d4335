"""Every parser of outside data that is fuzzed, by name."""

import fuzz_answers
import fuzz_audio
import fuzz_files
import fuzz_rows
import fuzz_settings
import fuzz_sources
import fuzz_tables
from fuzz_running import KINDS, Target


_MODULES = (fuzz_audio, fuzz_sources, fuzz_rows, fuzz_settings, fuzz_answers, fuzz_files, fuzz_tables)
TARGETS: dict[str, Target] = {target.name: target for module in _MODULES for target in module.TARGETS}
assert {target.kind for target in TARGETS.values()} == set(KINDS)
