"""One module for each scenario, with `TITLE` and `measure(bench)`."""

from typing import Final

__all__ = ["SCENARIOS"]

SCENARIOS: Final = (
    "reads",
    "filesystems",
    "cold",
    "cp",
    "memory",
    "globs",
    "greps",
    "together",
    "neighbour",
    "mounts",
    "state",
    "store",
    "processes",
    "sqlite",
    "postgres",
    "objects",
    "sequential",
    "listing",
    "boxes",
    "window",
    "growth",
    "imports",
    "agents",
    "skills",
    "tool_calls",
    "checkpoints",
)
