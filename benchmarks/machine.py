"""Describes the machine and the versions that were measured."""

import os
import platform
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from benchmarks.inputs import DJANGO, cache
from benchmarks.ripgrep import ripgrep

__all__ = ["commit", "file_system", "machine", "versions"]

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
    """The processor, the system, its load, and the file system of the inputs."""
    return {
        "processor": next(_processors(), platform.processor() or platform.machine()),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "system": platform.platform(),
        "load": f"{os.getloadavg()[0]:.1f}",
        "file system": file_system(cache()),
    }


def file_system(path: Path) -> str:
    """The kind of file system that a path lies on, such as ext4; empty if the system does not tell."""
    mounts, kind = Path("/proc/mounts"), ""
    longest = 0
    for line in mounts.read_text(errors="replace").splitlines() if mounts.exists() else ():
        _, place, named, *_ = line.split(" ")
        if path.resolve().is_relative_to(place) and len(place) >= longest:
            longest, kind = len(place), named
    return kind


def commit() -> str:
    """The commit of this tree, with a `+` if files of the package have changed since; empty if git does not tell."""
    named, changed = _git("rev-parse", "--short=10", "HEAD"), _git("status", "--porcelain", "--", "deepfs")
    return f"{named}{'+' * bool(changed)}"


def _git(*arguments: str) -> str:
    """What a git command prints about this tree; empty if it fails, as in a tree that is no checkout."""
    command = ["git", *arguments]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


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
