"""Builds the result of a read from the content of a file."""

from base64 import b64encode

from deepfs.errors import TooLargeError
from deepfs.text import media
from deepfs.text import records as filedata
from deepfs.text.lines import Window, version, window
from deepfs.types import FileDataV2, ReadResult

__all__ = ["MAX_BINARY_BYTES", "read_binary", "read_data", "read_text", "read_window"]

MAX_BINARY_BYTES = 10 * 1024 * 1024


def read_text(path: str, text: str, offset: int, limit: int, *, at: FileDataV2) -> ReadResult:
    """Lines `offset` to `offset + limit` of `text`, with the timestamps of `at`."""
    shown = window(text, offset, limit)
    data = FileDataV2(shown.text, "utf-8", at.created_at, at.modified_at, media.mime_type(path))
    return read_window(data, shown, version(text))


def read_window(data: FileDataV2, shown: Window, content_version: str) -> ReadResult:
    """The result for the window `shown`, whose lines `data` holds."""
    return ReadResult(
        file_data=data,
        start_line=shown.start_line,
        end_line=shown.end_line,
        total_lines=shown.total_lines,
        next_offset=shown.next_offset,
        version=content_version,
    )


def read_binary(path: str, content: bytes, *, at: FileDataV2, content_version: str, limit: int) -> ReadResult:
    """The whole of a binary file as base64; too_large where it is over `limit` bytes."""
    if len(content) > limit:
        raise TooLargeError(path, len(content), limit)
    mime_type = media.mime_type(path) if media.is_binary_name(path) else media.sniff(content)
    encoded = b64encode(content).decode("ascii")
    data = FileDataV2(encoded, "base64", at.created_at, at.modified_at, mime_type)
    return ReadResult(file_data=data, version=content_version)


def read_data(path: str, data: FileDataV2, offset: int, limit: int, *, max_binary: int) -> ReadResult:
    """The result of a read of a file that is in memory."""
    text = filedata.text_of(data, path)
    if text is not None:
        return read_text(path, text, offset, limit, at=data)
    content = filedata.content_bytes(data, path)
    return read_binary(path, content, at=data, content_version=version(content), limit=max_binary)
