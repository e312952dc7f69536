"""The sync methods as type checkers and editors see them; at run time `deepfs.sync` generates them from the async ones.

A test compares these signatures with the generated ones.
"""

from deepfs.types import (
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
    GlobResult,
    GrepResult,
    LsResult,
    ReadRawResult,
    ReadResult,
    WriteResult,
)

__all__ = ["SyncCommandsSurface", "SyncSurface"]

class SyncSurface:
    """The sync twins of the operations of `BackendProtocol`, whose async methods document the contract."""

    def ls(self, path: str) -> LsResult:
        """List the direct children of a directory, sorted by path."""
    def read(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read lines of a text file, or the whole of a binary file."""
    def read_raw(self, path: str) -> ReadRawResult:
        """Read a whole file with its times."""
    def write(self, path: str, content: str, *, overwrite: bool = False, if_match: str | None = None) -> WriteResult:
        """Create a text file, with the directories above it. A reader sees the old file or the new one."""
    def edit(
        self, path: str, old: str, new: str, replace_all: bool = False, *, if_match: str | None = None
    ) -> EditResult:
        """Replace a literal text of a file. No byte outside of the replacement changes."""
    def glob(self, pattern: str, path: str = "/") -> GlobResult:
        """Find the files that match a pattern, sorted by path."""
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
    ) -> GrepResult:
        """Find the lines that contain a text, in the files under a path."""
    def delete(self, path: str, *, if_match: str | None = None) -> DeleteResult:
        """Delete a file, or a directory with all that is in it."""
    def move(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        """Move a file, or a directory with all that is in it. At every instant one of both paths has the file."""
    def copy(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        """Copy a file, or a directory with all that is in it."""
    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Store files of any bytes, replacing what is there."""
    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Fetch the bytes of files."""

class SyncCommandsSurface:
    """The sync twin of `aexecute`."""

    def execute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        """Run a shell command."""
