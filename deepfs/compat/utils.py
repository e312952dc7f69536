"""Helpers for writing backends, under the names that they have in deepagents."""

from collections.abc import Mapping
from typing import Any

from deepfs.errors import DeepFSError, InvalidContentError
from deepfs.search.flat import scan_stored
from deepfs.search.request import FileFilter, GrepRequest
from deepfs.search.results import MAX_SEARCHED_BYTES, Grep
from deepfs.text import records as filedata
from deepfs.text.edits import replace
from deepfs.text.flat_tree import DecodedFiles, FileTree
from deepfs.text.records import read_data
from deepfs.types import FileInfo, GrepMatch, GrepResult, ReadResult, failure

__all__ = [
    "FileInfo",
    "GrepMatch",
    "create_file_data",
    "file_data_to_string",
    "grep_matches_from_files",
    "perform_string_replacement",
    "slice_read_response",
    "update_file_data",
]


def create_file_data(content: str, created_at: str | None = None, encoding: str = "utf-8") -> dict[str, Any]:
    """Return the dict to store for a file modified now; `content` is text, or base64 for bytes."""
    now = filedata.timestamp()
    return {"content": content, "encoding": encoding, "created_at": created_at or now, "modified_at": now}


def update_file_data(file_data: Mapping[str, Any], content: str) -> dict[str, Any]:
    """Return the dict to store for a file with new content; its encoding and creation time are kept."""
    return create_file_data(content, file_data.get("created_at"), file_data.get("encoding", "utf-8"))


def file_data_to_string(file_data: Mapping[str, Any]) -> str:
    """Return the content of a stored file of any format. Raises TypeError unless it is a text or a list of lines."""
    try:
        return filedata.decode_file(file_data, "").content
    except InvalidContentError as error:
        raise TypeError(str(error)) from error


def slice_read_response(file_data: Mapping[str, Any], offset: int, limit: int) -> ReadResult:
    """Read `limit` lines of a stored file, from line `offset` on, which counts from 0."""
    try:
        return read_data("", filedata.decode_file(file_data, ""), offset, limit, max_binary=MAX_SEARCHED_BYTES)
    except DeepFSError as error:
        return failure(ReadResult, error)


def perform_string_replacement(
    content: str, old_string: str, new_string: str, replace_all: bool = False
) -> tuple[str, int] | str:
    """Return the new content and the number of replacements, or the text of the error."""
    try:
        done = replace("", content, old_string, new_string, replace_all)
    except DeepFSError as error:
        return str(error)
    return done.content, done.occurrences


def grep_matches_from_files(
    files: Mapping[str, Any],
    pattern: str,
    path: str | None = None,
    glob: str | None = None,
    *,
    max_count: int | None = None,
) -> GrepResult:
    """Find a literal text in `files`, a mapping from paths to stored files of any format."""
    try:
        request = GrepRequest(pattern, path, glob, max_count=max_count)
        grep = Grep(request, FileFilter(request))
        decoded = DecodedFiles(files)
        tree = FileTree(decoded)
        for each in tree.beneath(grep.files.root):
            if each in grep.files:
                scan_stored(grep, each, decoded)
    except DeepFSError as error:
        return failure(GrepResult, error)
    return grep.result()
