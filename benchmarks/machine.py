"""Describes the machine and the versions that were measured."""

import os
import platform
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from benchmarks.inputs import DJANGO
from benchmarks.ripgrep import ripgrep

__all__ = ["machine", "versions"]

_PACKAGES: Final = (
    "deepfs",
    "deepagents",
    "aiofiles",
    "anyio",
    "langgraph",
    "langgraph-checkpoint-postgres",
    "msgspec",
)


def machine() -> dict[str, str]:
    """The processor, the system, and its load."""
    return {
        "processor": next(_processors(), platform.processor() or platform.machine()),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "system": platform.platform(),
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def _processors() -> Iterator[str]:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            yield line.partition(":")[2].strip()


def versions() -> dict[str, str]:
    """The versions of Python, the packages, the input and ripgrep."""
    found = {"Python": platform.python_version(), "input": DJANGO}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "missing"
    found["ripgrep"] = subprocess.run(
        [ripgrep(), "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    return found
