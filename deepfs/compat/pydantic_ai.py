"""The files of a backend as a workspace of pydantic-ai."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from deepfs.backends.protocol import BACKEND_TYPES
from deepfs.compat.adapters import backend_from
from deepfs.errors import ErrorCode
from deepfs.text import paths
from deepfs.text.entries import EntryChange
from deepfs.types import FileUploadResponse, Result

if TYPE_CHECKING:
    from pydantic_ai.workspaces import FileEntry

__all__ = ["WorkspaceFiles"]

_ERRORS: dict[str, type[OSError]] = {
    ErrorCode.FILE_NOT_FOUND: FileNotFoundError,
    ErrorCode.IS_DIRECTORY: IsADirectoryError,
    ErrorCode.NOT_A_DIRECTORY: NotADirectoryError,
    ErrorCode.PERMISSION_DENIED: PermissionError,
    ErrorCode.ALREADY_EXISTS: FileExistsError,
}


class WorkspaceFiles:
    """A `WorkspaceBackend` of pydantic-ai with files and without commands, for `Workspace(WorkspaceFiles(backend))`.

    Paths are those of the backend; relative ones lie in its `/`. Failures are the built-in errors that the protocol
    names, and OSError for others.

    Args:
        backend: Where the files are; a PermissionedBackend holds the agent to rules.

    Raises:
        TypeError: If `backend` is not a backend.
    """

    def __init__(self, backend: BACKEND_TYPES) -> None:
        self._backend = backend_from(backend)

    @property
    def ref(self) -> None:
        """None: there is no environment to attach to."""
        return

    async def working_dir(self) -> str:
        """Return the directory in which relative paths lie: `/`."""
        return "/"

    async def read_bytes(self, path: str) -> bytes:
        """Return the content of a file.

        Args:
            path: The file.

        Returns:
            Its bytes.

        Raises:
            OSError: The file cannot be read.
        """
        [found] = await self._backend.adownload_files([path])
        if found.content is None:
            _fail(found.error, path)
        return found.content

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Create or replace a file, with the directories above it.

        Args:
            path: The file.
            data: Its content.

        Raises:
            OSError: The file cannot be written.
        """
        _check_upload(await self._backend.aupload_files([(path, data)]))

    async def stat(self, path: str) -> "FileEntry":
        """Return what is at a path.

        Args:
            path: A file or directory.

        Returns:
            Its record.

        Raises:
            OSError: Nothing is there, or it cannot be read.
        """
        normal = paths.normalize(path)
        if normal == "/":
            return _entry("/", True, None)
        read = await self._backend.aread(normal, 0, 1)
        if read.code is ErrorCode.IS_DIRECTORY:
            return _entry(normal, True, None)
        _check(read, normal)
        above = await self._backend.als(paths.parent(normal))
        return _entry(normal, False, next((each.size for each in above.entries or () if each.path == normal), None))

    async def list_dir(self, path: str) -> "Sequence[FileEntry]":
        """Return what is in a directory.

        Args:
            path: The directory.

        Returns:
            Its entries, sorted by path.

        Raises:
            OSError: The directory cannot be listed.
        """
        listed = await self._backend.als(path)
        _check(listed, path)
        return [_entry(info.path.rstrip("/"), bool(info.is_dir), info.size) for info in listed.entries or ()]

    async def make_dir(self, path: str) -> None:
        """Create a directory. Where the backend keeps none that is empty, it appears with its first file.

        Args:
            path: The directory.

        Raises:
            OSError: A file is there or above it, or the backend refuses.
        """
        normal = paths.normalize(path)
        for directory in (*paths.ancestors(normal), normal):
            if (await self._backend.aread(directory, 0, 1)).ok:
                raise (FileExistsError if directory == normal else NotADirectoryError)(directory)
            keeps_empty = self._backend.capabilities.keeps_empty_directories
            if keeps_empty and (await self._backend.als(directory)).code is ErrorCode.FILE_NOT_FOUND:
                _check_upload(await self._backend.achange_entries([EntryChange(directory, "make_directory")]))

    async def remove(self, path: str) -> None:
        """Delete a file, or a directory with all that is in it.

        Args:
            path: The file or directory.

        Raises:
            ValueError: The path is `/`.
            OSError: Nothing is there, or the backend refuses.
        """
        if paths.normalize(path) == "/":
            raise ValueError("the working directory cannot be removed")
        _check(await self._backend.adelete(path), path)

    async def exists(self, path: str) -> bool:
        """Return whether a file or directory is at the path.

        Args:
            path: The path.

        Returns:
            Whether something is there that may be read.

        Raises:
            OSError: The backend fails.
        """
        read = await self._backend.aread(path, 0, 1)
        if read.code is ErrorCode.FILE_NOT_FOUND:
            return paths.normalize(path) == "/"
        return read.ok or read.code is ErrorCode.IS_DIRECTORY or _fail(read.code, path)


def _entry(path: str, is_dir: bool, size: int | None) -> "FileEntry":
    from pydantic_ai.workspaces import FileEntry

    return FileEntry(
        name=paths.name(path) if path != "/" else "/", path=path, is_dir=is_dir, size=None if is_dir else size
    )


def _check(result: Result, path: str) -> None:
    if result.error is not None:
        _fail(result.code, path, result.error)


def _check_upload(outcomes: Sequence[FileUploadResponse]) -> None:
    for outcome in outcomes:
        if outcome.error is not None:
            _fail(outcome.error, outcome.path)


def _fail(code: str | None, path: str, text: str = "") -> NoReturn:
    raise _ERRORS.get(code or "", OSError)(text or f"{path}: {code}")
