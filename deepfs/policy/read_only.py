"""A wrapper that refuses all changes."""

from typing import Any

from msgspec.structs import replace

from deepfs.backends.protocol import BackendProtocol, Capabilities
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import NotSupportedError, PermissionDeniedError
from deepfs.operations import Batch, Execute, ListTree, Operation
from deepfs.text import paths

__all__ = ["ReadOnlyBackend"]


class ReadOnlyBackend(WrapperBackend):
    """Refuses every change with `permission_denied`. Commands are refused as well, since they could change files.

    Args:
        inner: The backend.
    """

    is_synchronous: bool = True
    offers_changes: bool = False

    def __init__(self, inner: BackendProtocol) -> None:
        super().__init__(inner)
        self.capabilities: Capabilities = replace(self.capabilities, executes=False, deletes=False)

    async def run(self, operation: Operation) -> Any:
        match operation:
            case Batch() if operation.changes:
                return await operation.where(_refuse, self.inner.arun)
            case Execute():
                raise NotSupportedError(None, "The files are read-only, so no commands are run")
            case ListTree(path, deleting=True):
                await self.inner.arun(ListTree(path))
                await _refuse(operation)
        if operation.changes:
            await _refuse(operation)
        return await self.inner.arun(operation)


async def _refuse(operation: Operation) -> None:
    path = (operation.changed_paths or operation.paths)[0]
    raise PermissionDeniedError(paths.normalize(path), "the files are read-only")
