"""A wrapper that refuses all changes."""

from collections.abc import AsyncIterable, Sequence

from msgspec.structs import replace

from deepfs.backends.protocol import BackendProtocol, Capabilities
from deepfs.backends.wrapper import WrapperBackend
from deepfs.errors import DeepFSError, NotSupportedError, PermissionDeniedError
from deepfs.text import paths
from deepfs.text.entries import EntryChange, TreeListing
from deepfs.types import DeleteResult, EditResult, ExecuteResponse, FileUploadResponse, WriteResult

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

    async def alist_tree(self, path: str, *, deleting: bool = False) -> TreeListing:
        listing = await super().alist_tree(path)
        if deleting:
            raise _refusal(path)
        return listing

    async def achange_entries(self, changes: Sequence[EntryChange]) -> list[FileUploadResponse]:
        return [FileUploadResponse(change.path, _code(change.path)) for change in changes]

    async def awrite(
        self, path: str, content: str, *, overwrite: bool = False, if_match: str | None = None
    ) -> WriteResult:
        raise _refusal(path)

    async def aedit(
        self, path: str, old: str, new: str, replace_all: bool = False, *, if_match: str | None = None
    ) -> EditResult:
        raise _refusal(path)

    async def adelete(self, path: str, *, if_match: str | None = None) -> DeleteResult:
        raise _refusal(path)

    async def acopy(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        raise _refusal(dst)

    async def amove(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        raise _refusal(src)

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [FileUploadResponse(path, _code(path)) for path, _ in files]

    async def aupload_stream(self, path: str, chunks: AsyncIterable[bytes]) -> FileUploadResponse:
        raise _refusal(path)

    async def aexecute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        raise NotSupportedError(None, "The files are read-only, so no commands are run")


def _refusal(path: str) -> DeepFSError:
    return PermissionDeniedError(paths.normalize(path), "the files are read-only")


def _code(path: str) -> str:
    try:
        return _refusal(path).code.value
    except DeepFSError as error:
        return error.code.value
