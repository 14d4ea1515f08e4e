"""Where things lie in a checkout, for tests in every folder."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "thinwire"
