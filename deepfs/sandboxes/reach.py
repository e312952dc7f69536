"""Which files of a backend commands reach, and by which paths."""

import os
from functools import partial

from deepfs.backends.composite import CompositeBackend, mount_of
from deepfs.backends.filesystem import FilesystemBackend
from deepfs.backends.local_shell import LocalShellBackend
from deepfs.backends.protocol import BackendProtocol, supports_execute
from deepfs.backends.wrapper import WrapperBackend
from deepfs.sync import in_thread

__all__ = ["command_path", "executor_of", "reachable_path"]


def executor_of(backend: object) -> BackendProtocol | None:
    """The backend in whose storage commands run: that of a composite, or `backend` itself; None if it runs none."""
    if not isinstance(backend, BackendProtocol) or not supports_execute(backend):
        return None
    inner: object = backend
    while isinstance(inner, WrapperBackend):
        inner = inner.inner
    return executor_of(inner.executor) if isinstance(inner, CompositeBackend) else backend


async def command_path(sandbox: BackendProtocol, path: str) -> str:
    """The path for commands of the file `path` of a sandbox."""
    return await in_thread(partial(_command_path, sandbox, path))


def _command_path(sandbox: BackendProtocol, path: str) -> str:
    """Blocks: with a relative root it makes a system call."""
    inner, _ = _innermost(sandbox, "/")
    told = getattr(inner, "sandbox_path", None) or getattr(inner, "host_path", None)
    return str(told(path)) if told is not None else path


async def reachable_path(backend: BackendProtocol, sandbox: BackendProtocol, path: str) -> str | None:
    """The path by which commands reach a directory of `backend` as it is; None if they do not.

    They do if it is one of the sandbox itself, or one on the disk of a machine where commands are not confined.
    """
    place = await backend.astorage_place(path)
    if place.keys & (await sandbox.astorage_place(path)).keys:
        return await command_path(sandbox, path)
    disk, inner = _innermost(backend, path)
    runner, _ = _innermost(sandbox, "/")
    if not isinstance(disk, FilesystemBackend) or not isinstance(runner, LocalShellBackend):
        return None
    if not place.keys & (await disk.astorage_place(inner)).keys:
        return None  # A wrapper has other paths.
    return await in_thread(lambda: os.path.join(disk.cwd, inner[1:])) if disk.virtual_mode else inner


def _innermost(backend: BackendProtocol, path: str) -> tuple[BackendProtocol, str]:
    """The backend with the files at `path`, without wrappers, and the path in it."""
    while True:
        if isinstance(backend, WrapperBackend):
            backend = backend.inner
        elif isinstance(backend, CompositeBackend):
            backend, path = mount_of(backend, path)
        else:
            return backend, path
