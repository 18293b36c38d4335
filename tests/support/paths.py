"""Where the tests find the repository and their fixtures."""

from pathlib import Path


TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
FIXTURES = TESTS / "fixtures"
SAMPLE = ROOT / "sample"
CONFIGS = ROOT / "configs"
