"""The backends; each is loaded when it is first used."""

from typing import TYPE_CHECKING

from deepfs._lazy import lazy_exports

if TYPE_CHECKING:
    from deepfs.backends._fsspec_filesystem import register_backend, unregister_backend
    from deepfs.backends.composite import CompositeBackend
    from deepfs.backends.filesystem import FilesystemBackend
    from deepfs.backends.flat import FlatBackend
    from deepfs.backends.fsspec import FsspecBackend
    from deepfs.backends.local_shell import LocalShellBackend
    from deepfs.backends.memory import MemoryBackend
    from deepfs.backends.object_store import ObjectStoreBackend, S3Backend
    from deepfs.backends.postgres import PostgresBackend
    from deepfs.backends.protocol import BackendProtocol
    from deepfs.backends.retries import RetryPolicy
    from deepfs.backends.sqlite import SqliteBackend
    from deepfs.backends.state import StateBackend
    from deepfs.backends.store import NamespaceFactory, StoreBackend
    from deepfs.compat.constants import DEFAULT_EXECUTE_TIMEOUT
    from deepfs.compat.factories import BackendContext
    from deepfs.sandboxes.base import BaseSandbox
    from deepfs.sandboxes.bubblewrap import BubblewrapSandbox
    from deepfs.sandboxes.daytona import DaytonaSandbox
    from deepfs.sandboxes.deno import DenoSandbox
    from deepfs.sandboxes.landlock import LandlockSandbox
    from deepfs.sandboxes.modal import ModalSandbox

__all__ = [
    "DEFAULT_EXECUTE_TIMEOUT",
    "BackendContext",
    "BackendProtocol",
    "BaseSandbox",
    "BubblewrapSandbox",
    "CompositeBackend",
    "DaytonaSandbox",
    "DenoSandbox",
    "FilesystemBackend",
    "FlatBackend",
    "FsspecBackend",
    "LandlockSandbox",
    "LocalShellBackend",
    "MemoryBackend",
    "ModalSandbox",
    "NamespaceFactory",
    "ObjectStoreBackend",
    "PostgresBackend",
    "RetryPolicy",
    "S3Backend",
    "SqliteBackend",
    "StateBackend",
    "StoreBackend",
    "register_backend",
    "unregister_backend",
]

if not TYPE_CHECKING:  # Type checkers use the imports above, and report unknown names.
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "composite": ["CompositeBackend"],
            "filesystem": ["FilesystemBackend"],
            "flat": ["FlatBackend"],
            "fsspec": ["FsspecBackend"],
            "_fsspec_filesystem": ["register_backend", "unregister_backend"],
            "local_shell": ["LocalShellBackend"],
            "memory": ["MemoryBackend"],
            "object_store": ["ObjectStoreBackend", "S3Backend"],
            "postgres": ["PostgresBackend"],
            "protocol": ["BackendProtocol"],
            "retries": ["RetryPolicy"],
            "sqlite": ["SqliteBackend"],
            "state": ["StateBackend"],
            "store": ["NamespaceFactory", "StoreBackend"],
            "deepfs.compat.constants": ["DEFAULT_EXECUTE_TIMEOUT"],
            "deepfs.compat.factories": ["BackendContext"],
            "deepfs.sandboxes.base": ["BaseSandbox"],
            "deepfs.sandboxes.bubblewrap": ["BubblewrapSandbox"],
            "deepfs.sandboxes.daytona": ["DaytonaSandbox"],
            "deepfs.sandboxes.deno": ["DenoSandbox"],
            "deepfs.sandboxes.landlock": ["LandlockSandbox"],
            "deepfs.sandboxes.modal": ["ModalSandbox"],
        },
    )
