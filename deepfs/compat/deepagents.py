"""Backends of deepfs for deepagents, and backends of deepagents for deepfs."""

import re
from functools import cache
from importlib import metadata
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from deepfs.backends.protocol import BACKEND_TYPES, BackendProtocol

if TYPE_CHECKING:
    from deepfs.compat.deepagents_backends import ToDeepagents

__all__ = ["from_deepagents", "to_deepagents"]


_NEEDED: Final = "deepfs.compat.deepagents needs deepagents: pip install 'deepagents>=0.7.32'"
_FIRST: Final = (0, 7, 32)
"""The first version of deepagents that the adapters support."""


def to_deepagents(backend: BACKEND_TYPES) -> "ToDeepagents":
    """Adapt `backend` to deepagents: for its `create_deep_agent(backend=...)` and its `CompositeBackend`.

    The result is a `SandboxBackendProtocol` of deepagents if `backend` runs commands, a `CompositeBackend` if it is
    one, and a `FilesystemBackend` if it has links, so that the rules of deepagents also check where links lead. `write`
    replaces an existing file, as users of deepagents 0.7 expect. Raises ImportError if deepagents is missing or older
    than 0.7.32.
    """
    adapted: ToDeepagents = _adapters().to_deepagents(backend)
    return adapted


def from_deepagents(backend: Any) -> "BackendProtocol":
    """Adapt a backend of deepagents, also a partner's sandbox, to deepfs.

    What the backend lacks is built from what it has: `write` refuses an existing file unless `overwrite` is set, and
    `if_match` is checked within the process. Async methods that its class defines are used on asyncio; otherwise its
    sync methods run in worker threads. Raises ImportError if deepagents is missing or older than 0.7.32, TypeError if
    `backend` is not a backend of deepagents.
    """
    adapted: BackendProtocol = _adapters().from_deepagents(backend)
    return adapted


@cache
def _adapters() -> ModuleType:
    """The module of the adapters. Raises ImportError if deepagents is missing, or older than they support."""
    try:
        installed = metadata.version("deepagents")
        if tuple(map(int, re.findall(r"\d+", installed)[:3])) < _FIRST:
            raise ImportError(f"{_NEEDED}; {installed} is installed")
        from deepfs.compat import deepagents_backends
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "deepagents":
            raise ImportError(_NEEDED) from error
        raise
    return deepagents_backends
