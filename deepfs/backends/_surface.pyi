"""The sync methods as type checkers and editors see them; at run time `deepfs.sync` generates them from the async ones.

A test holds these signatures against the generated ones.
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

__all__ = ["SyncCommands", "SyncSurface"]

class SyncSurface:
    """The sync twins of the operations of `BackendProtocol`, which tells their contract at the async ones."""

    def ls(self, path: str) -> LsResult:
        """List the direct children of a directory, sorted by path; directories end in `/`."""
    def read(self, path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read `limit` lines from line `offset` (from 0) of a text file, or the whole of a binary one as base64."""
    def read_raw(self, path: str) -> ReadRawResult:
        """Read the whole file with its timestamps."""
    def write(self, path: str, content: str, *, overwrite: bool = False, if_match: str | None = None) -> WriteResult:
        """Create a text file with the directories above it; a reader sees the old file or the new one."""
    def edit(
        self, path: str, old: str, new: str, replace_all: bool = False, *, if_match: str | None = None
    ) -> EditResult:
        """Replace the literal text `old` by `new`, once, or everywhere with `replace_all`."""
    def glob(self, pattern: str, path: str = "/") -> GlobResult:
        """List the files that match, sorted by path."""
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
        """Find the lines that hold a literal text, or match a regular expression, in the files under `path`."""
    def delete(self, path: str, *, if_match: str | None = None) -> DeleteResult:
        """Delete a file, or a directory with all under it."""
    def move(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        """Move a file, or a directory with all under it; at no instant are both ends gone."""
    def copy(self, src: str, dst: str, *, overwrite: bool = False) -> WriteResult:
        """Copy a file, or a directory with all under it."""
    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Store bytes, replacing what is there; one outcome for each item, in order."""
    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Fetch bytes; one outcome for each path, in order."""

class SyncCommands:
    """The sync twin of `aexecute`."""

    def execute(self, command: str, *, timeout: float | None = None) -> ExecuteResponse:
        """Run a shell command and return its output; `timeout` is in seconds."""
