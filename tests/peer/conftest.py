"""The benchmarks, which compare with deepagents, are imported from the tree; deepfs is the one that is installed."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
