"""The sync methods as type checkers and editors see them; at run time `deepfs.sync` generates them from the async ones.

A test holds these signatures against the generated ones.
"""

from deepfs.types import (
    DeleteResult,
    EditResult,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadRawResult,
    ReadResult,
    WriteResult,
)

__all__ = ["SyncSurface"]


class SyncSurface:
    """Sync twins of the operations of `BackendProtocol`."""

    def ls(self, path: str) -> LsResult: ...
    def read(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult: ...
    def read_raw(self, path: str) -> ReadRawResult: ...
    def write(
        self, path: str, content: str, *, overwrite: bool = False, if_match: str | None = None
    ) -> WriteResult: ...
    def edit(
        self, path: str, old: str, new: str, replace_all: bool = False, *, if_match: str | None = None
    ) -> EditResult: ...
    def glob(self, pattern: str, path: str = "/") -> GlobResult: ...
    def grep(
        self,
        pattern: str,
        path: str | None = None,
        glob: str | None = None,
        *,
        regex: bool = False,
        ignore_case: bool = False,
        context_lines: int = 0,
        max_count: int | None = None,
    ) -> GrepResult: ...
    def delete(self, path: str) -> DeleteResult: ...
    def move(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult: ...
    def copy(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult: ...
    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]: ...
    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]: ...
