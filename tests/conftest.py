"""Shared by all tests: the folder of shared helpers is importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
