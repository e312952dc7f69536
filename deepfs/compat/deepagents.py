"""Backends of deepfs for deepagents, and backends of deepagents for deepfs."""

from typing import TYPE_CHECKING, Any

from deepfs.backends.protocol import BACKEND_TYPES, BackendProtocol

if TYPE_CHECKING:
    from deepfs.compat._to_deepagents import ToDeepagents

__all__ = ["from_deepagents", "to_deepagents"]


def to_deepagents(backend: BACKEND_TYPES) -> "ToDeepagents":
    """`backend` as one of deepagents: for its `create_deep_agent(backend=...)` and in its `CompositeBackend`.

    It is a `SandboxBackendProtocol` of deepagents where `backend` executes. `write` replaces what is there, as the
    users of deepagents 0.7 expect. Raises ImportError where deepagents is not installed.
    """
    try:
        from deepfs.compat import _to_deepagents
    except ModuleNotFoundError as error:
        raise _not_installed(error) from error
    return _to_deepagents.to_deepagents(backend)


def from_deepagents(backend: Any) -> "BackendProtocol":
    """A backend of deepagents, partner sandboxes included, as one of deepfs.

    What it lacks is made of what it has: `write` is create-only unless told otherwise, and versions are checked within
    the process. Its own async methods run on asyncio; otherwise its sync ones run in worker threads. Raises ImportError
    where deepagents is not installed, TypeError for what is no backend of it.
    """
    try:
        from deepfs.compat import _from_deepagents
    except ModuleNotFoundError as error:
        raise _not_installed(error) from error
    return _from_deepagents.from_deepagents(backend)


def _not_installed(error: ModuleNotFoundError) -> Exception:
    if error.name is not None and error.name.partition(".")[0] == "deepagents":
        return ImportError("deepfs.compat.deepagents needs deepagents: pip install 'deepagents>=0.7'")
    return error
