"""The scenarios: async functions of these modules, which take a `Bench`; the first line of each is its title."""

import asyncio
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from benchmarks.bench import Bench

_MODULES: Final = {
    "reading": ("reads", "filesystems", "cold", "memory", "window"),
    "copying": ("cp",),
    "searching": ("globs", "greps", "together"),
    "remote": ("mounts", "objects"),
    "storages": ("sequential", "store"),
    "growing": ("growth", "sqlite", "postgres"),
    "processes": ("processes", "boxes", "neighbour"),
    "redis": ("redis",),
    "agents": ("imports", "agents", "state", "skills", "checkpoints"),
    "agents_at_work": ("agents_at_work",),
    "tool_calls": ("tool_calls",),
    "workspaces": ("workspaces",),
}
SCENARIOS: Final = {name: module for module, names in _MODULES.items() for name in names}


def scenario(name: str) -> Any:
    return getattr(import_module(f"benchmarks.scenarios.{SCENARIOS[name]}"), name)


def run(bench: "Bench") -> None:
    """Run the scenario of `bench` on an asyncio event loop of its own; the other libraries run only on asyncio."""
    start = time.perf_counter()
    asyncio.run(scenario(bench.record.scenario)(bench))
    bench.record.seconds = time.perf_counter() - start
