"""Converts results of deepfs to those of deepagents, with the texts that its tools and rules search for."""

from pathlib import PurePosixPath
from typing import Any, Final

from deepagents.backends import protocol as peer

from deepfs.errors import ErrorCode, quoted
from deepfs.types import ExecuteResponse, FileDataV2, GlobResult, GrepResult, LsResult, ReadResult, Record

__all__ = ["SANDBOX_BINARY_BYTES", "SHOWN_EXTENSIONS", "executed", "glob", "grep", "listed", "read"]

SANDBOX_BINARY_BYTES: Final = 500 * 1024
"""The most bytes of a binary file that deepagents reads from a sandbox."""

_IMAGES: Final = (".png", ".jpeg", ".jpg", ".webp", ".gif", ".heic", ".heif")
_VIDEOS: Final = (".mp4", ".mpeg", ".mov", ".avi", ".flv", ".mpg", ".webm", ".wmv", ".3gpp", ".mkv")
_SOUNDS: Final = (".wav", ".mp3", ".aiff", ".aac", ".ogg", ".flac")
_DOCUMENTS: Final = (".pdf", ".ppt", ".pptx")

SHOWN_EXTENSIONS: Final = frozenset((*_IMAGES, *_VIDEOS, *_SOUNDS, *_DOCUMENTS))
"""Extensions of files that deepagents shows to a model in their own type; other binaries it sends as a document."""

_LISTING: Final = {ErrorCode.FILE_NOT_FOUND: "path_not_found", ErrorCode.NOT_A_DIRECTORY: "not_a_directory"}
"""The names of these conditions in a listing of deepagents; its rule for `delete` searches for the second."""

_TIMED_OUT: Final = 124
"""The exit code of the command `timeout` when the time is up."""


def _bare(error: str | None) -> str | None:
    """Remove the prefix `Error: `, which the tool of deepagents adds itself."""
    return None if error is None else error.removeprefix("Error: ")


def _plain(records: list[Any] | None) -> list[Any] | None:
    """Convert records to dicts, as deepagents has them."""
    return None if records is None else [_dict(record) for record in records]


def _dict(record: Record) -> Any:
    return {key: _plain(value) if isinstance(value, list) else value for key, value in record.items()}


def listed(result: LsResult, path: str) -> peer.LsResult:
    """Convert the result of `ls`."""
    error = _bare(result.error)
    if result.code in _LISTING and result.entries is None:
        error = f"Path {quoted(path)}: {_LISTING[result.code]}"
    return peer.LsResult(error=error, entries=_plain(result.entries))


def read(result: ReadResult, path: str, binary_limit: int | None) -> peer.ReadResult:
    """Convert the result of `read`; binary content that deepagents cannot show becomes an error."""
    data = result.file_data
    error = _bare(result.error) if result.error is not None or data is None else _unshown(data, path, binary_limit)
    if error is not None or data is None:
        return peer.ReadResult(error=error)
    shown: Any = {key: value for key, value in data.items() if key != "mime_type"}
    if result.start_line is None:
        return peer.ReadResult(file_data=shown, no_lines_requested=result.no_lines_requested)
    return peer.ReadResult(
        file_data=shown,
        total_lines=result.total_lines,
        start_line=result.start_line,
        end_line=result.end_line,
        next_offset=result.next_offset,
    )


def _unshown(data: FileDataV2, path: str, limit: int | None) -> str | None:
    """The error text if deepagents cannot show the content; otherwise None."""
    if data.encoding == "utf-8":
        return None
    if PurePosixPath(path).suffix.lower() not in SHOWN_EXTENSIONS:
        kind = data.mime_type or "unknown type"
        return f"File {quoted(path)} is binary ({kind}) and cannot be shown; download it, or read it by a command"
    if limit is not None and len(data.content) // 4 * 3 - data.content.count("=") > limit:
        return f"File {quoted(path)}: Binary file exceeds maximum preview size of {limit} bytes"
    return None


def grep(result: GrepResult, pattern: str) -> peer.GrepResult:
    """Convert the result of `grep`; as in deepagents, `error` may name skipped files beside the matches."""
    lines = {(match.path, match.line) for match in result.matches or ()}
    matches = _plain(result.matches)
    for match in matches or ():
        for side in ("context_before", "context_after"):
            if side in match:
                beside = [line for line in match[side] if (match["path"], line["line"]) not in lines]
                match[side] = [line for line in beside if pattern not in line["text"]]
    return peer.GrepResult(error=_with_skipped(result), matches=matches, truncated=result.truncated)


def _with_skipped(result: GrepResult) -> str | None:
    if not result.skipped:
        return result.error
    files = "1 file" if result.skipped == 1 else f"{result.skipped:,} files"
    skipped = f"Error: {files} could not be searched: binary, too large or unreadable"
    return skipped if result.error is None else f"{result.error}\n{skipped}"


def glob(result: GlobResult) -> peer.GlobResult:
    """Convert the result of `glob`."""
    reason: Any = result.truncation_reason or "budget" if result.truncated else None
    return peer.GlobResult(
        error=_bare(result.error),
        matches=_plain(result.matches),
        truncated=result.truncated,
        truncation_reason=reason,
    )


def executed(done: ExecuteResponse) -> peer.ExecuteResponse:
    """Convert the result of a command; if its time was up, the exit code is 124."""
    exit_code = done.exit_code if done.timed_out is None else _TIMED_OUT
    return peer.ExecuteResponse(output=done.output, exit_code=exit_code, truncated=done.truncated)
