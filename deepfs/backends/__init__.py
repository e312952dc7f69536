"""The backends; each is loaded when it is first used."""

from typing import TYPE_CHECKING

from deepfs._lazy import lazy_exports

if TYPE_CHECKING:
    from deepfs.backends.composite import CompositeBackend
    from deepfs.backends.context import BackendContext
    from deepfs.backends.filesystem import FilesystemBackend
    from deepfs.backends.flat import FlatBackend
    from deepfs.backends.memory import MemoryBackend
    from deepfs.backends.protocol import BackendProtocol
    from deepfs.backends.state import StateBackend
    from deepfs.backends.store import NamespaceFactory, StoreBackend

__all__ = [
    "BackendContext",
    "BackendProtocol",
    "CompositeBackend",
    "FilesystemBackend",
    "FlatBackend",
    "MemoryBackend",
    "NamespaceFactory",
    "StateBackend",
    "StoreBackend",
]

if not TYPE_CHECKING:  # Type checkers know the names, and tell of others.
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "composite": ["CompositeBackend"],
            "context": ["BackendContext"],
            "filesystem": ["FilesystemBackend"],
            "flat": ["FlatBackend"],
            "memory": ["MemoryBackend"],
            "protocol": ["BackendProtocol"],
            "state": ["StateBackend"],
            "store": ["NamespaceFactory", "StoreBackend"],
        },
    )
