"""Backends of deepfs for deepagents, and backends of deepagents for deepfs."""

import re
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from deepfs.backends.protocol import BACKEND_TYPES, BackendProtocol

if TYPE_CHECKING:
    from deepfs.compat.deepagents_backends import ToDeepagents

__all__ = ["from_deepagents", "to_deepagents"]


_NEEDED: Final = "deepfs.compat.deepagents needs deepagents: pip install 'deepagents>=0.7.32'"
_FIRST: Final = (0, 7, 32)
"""The version from which on results and middleware are as the adapters have them."""


def to_deepagents(backend: BACKEND_TYPES) -> "ToDeepagents":
    """`backend` as one of deepagents: for its `create_deep_agent(backend=...)` and in its `CompositeBackend`.

    It is a `SandboxBackendProtocol` of deepagents where `backend` executes, a `CompositeBackend` where it is one, and a
    `FilesystemBackend` where links may lead elsewhere, so that rules of deepagents hold. `write` replaces what is
    there, as the users of deepagents 0.7 expect. Raises ImportError where deepagents is missing or older than 0.7.32.
    """
    try:
        _check_version()
        from deepfs.compat import deepagents_backends
    except ModuleNotFoundError as error:
        raise _not_installed(error) from error
    return deepagents_backends.to_deepagents(backend)


def from_deepagents(backend: Any) -> "BackendProtocol":
    """A backend of deepagents, partner sandboxes included, as one of deepfs.

    What it lacks is made of what it has: `write` is create-only unless told otherwise, and versions are checked within
    the process. Its own async methods run on asyncio; otherwise its sync ones run in worker threads. Raises ImportError
    where deepagents is missing or older than 0.7.32, TypeError for what is no backend of it.
    """
    try:
        _check_version()
        from deepfs.compat import deepagents_backends
    except ModuleNotFoundError as error:
        raise _not_installed(error) from error
    return deepagents_backends.from_deepagents(backend)


@cache
def _check_version() -> None:
    """Raise ImportError for a deepagents older than the adapters know."""
    installed = metadata.version("deepagents")
    if tuple(map(int, re.findall(r"\d+", installed)[:3])) < _FIRST:
        raise ImportError(f"{_NEEDED}; {installed} is installed")


def _not_installed(error: ModuleNotFoundError) -> Exception:
    return ImportError(_NEEDED) if (error.name or "").partition(".")[0] == "deepagents" else error
