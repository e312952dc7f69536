"""Imports the benchmarks, which compare with deepagents, from the tree; deepfs is the installed package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
