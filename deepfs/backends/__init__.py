"""The backends; each is loaded when it is first used."""

from typing import TYPE_CHECKING

from deepfs._lazy import lazy_exports

if TYPE_CHECKING:
    from deepfs.backends.bubblewrap import BubblewrapSandbox
    from deepfs.backends.composite import CompositeBackend
    from deepfs.backends.context import BackendContext
    from deepfs.backends.daytona import DaytonaSandbox
    from deepfs.backends.deno import DenoSandbox
    from deepfs.backends.filesystem import FilesystemBackend
    from deepfs.backends.flat import FlatBackend
    from deepfs.backends.local_shell import LocalShellBackend
    from deepfs.backends.memory import MemoryBackend
    from deepfs.backends.modal import ModalSandbox
    from deepfs.backends.protocol import BackendProtocol
    from deepfs.backends.sandbox import BaseSandbox
    from deepfs.backends.state import StateBackend
    from deepfs.backends.store import NamespaceFactory, StoreBackend

__all__ = [
    "BackendContext",
    "BackendProtocol",
    "BaseSandbox",
    "BubblewrapSandbox",
    "CompositeBackend",
    "DaytonaSandbox",
    "DenoSandbox",
    "FilesystemBackend",
    "FlatBackend",
    "LocalShellBackend",
    "MemoryBackend",
    "ModalSandbox",
    "NamespaceFactory",
    "StateBackend",
    "StoreBackend",
]

if not TYPE_CHECKING:  # Type checkers know the names, and tell of others.
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "bubblewrap": ["BubblewrapSandbox"],
            "composite": ["CompositeBackend"],
            "context": ["BackendContext"],
            "daytona": ["DaytonaSandbox"],
            "deno": ["DenoSandbox"],
            "filesystem": ["FilesystemBackend"],
            "flat": ["FlatBackend"],
            "local_shell": ["LocalShellBackend"],
            "memory": ["MemoryBackend"],
            "modal": ["ModalSandbox"],
            "protocol": ["BackendProtocol"],
            "sandbox": ["BaseSandbox"],
            "state": ["StateBackend"],
            "store": ["NamespaceFactory", "StoreBackend"],
        },
    )
