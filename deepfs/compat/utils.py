"""Helpers for writing backends and tools, under the names that they have in deepagents."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias, TypeVar

from deepfs.errors import DeepFSError, InvalidContentError, InvalidPathError
from deepfs.errors import InvalidPatternError as InvalidGlobPatternError
from deepfs.search.flat import scan_stored
from deepfs.search.globs import compile_glob
from deepfs.search.request import MAX_SEARCHED_BYTES, FileFilter, GrepRequest, GrepScan
from deepfs.text import paths, records
from deepfs.text.edits import replace
from deepfs.text.flat_tree import DecodedFiles, FileTree
from deepfs.text.media import MAX_MEDIA_BYTES as MAX_VIDEO_INPUT_BYTES
from deepfs.text.records import read_data
from deepfs.text.visible import EMPTY_CONTENT_WARNING
from deepfs.types import FileInfo, GrepMatch, GrepResult, ReadResult, failure

__all__ = [
    "EMPTY_CONTENT_WARNING",
    "EMPTY_OLD_STRING_ERROR",
    "MAX_LINE_LENGTH",
    "MAX_VIDEO_INPUT_BYTES",
    "TOOL_RESULT_TOKEN_LIMIT",
    "TRUNCATION_GUIDANCE",
    "TRUNCATION_MARKER_TEMPLATE",
    "FileInfo",
    "FileType",
    "GrepMatch",
    "InvalidGlobPatternError",
    "build_grep_results_dict",
    "check_empty_content",
    "compile_grep_include_glob",
    "create_file_data",
    "file_data_to_string",
    "format_content_with_line_numbers",
    "format_grep_matches",
    "grep_matches_from_files",
    "normalize_read_bounds",
    "perform_string_replacement",
    "regex_literal_hint",
    "sanitize_tool_call_id",
    "slice_read_response",
    "to_posix_path",
    "truncate_if_too_long",
    "update_file_data",
    "validate_path",
]

FileType: TypeAlias = Literal["text", "image", "audio", "video", "file"]
"""What a file holds, as far as its name tells."""

EMPTY_OLD_STRING_ERROR: Final = "Error: The text to replace is empty."
MAX_LINE_LENGTH: Final = 5_000
"""The longest row of `format_content_with_line_numbers`, in characters of the line."""
TOOL_RESULT_TOKEN_LIMIT: Final = 20_000
"""The longest result of `truncate_if_too_long`, in tokens of four characters."""
TRUNCATION_GUIDANCE: Final = "[There is more: narrow the search]"
TRUNCATION_MARKER_TEMPLATE: Final = "[… {omitted_lines} lines are left out …]"

OutputMode: TypeAlias = Literal["files_with_matches", "content", "count"]

# --- stored files ----------------------------------------------------------------------------------------------------


def create_file_data(content: str, created_at: str | None = None, encoding: str = "utf-8") -> dict[str, Any]:
    """Return the dict to store for a file modified now; `content` is text, or base64 for bytes."""
    now = records.timestamp()
    return {"content": content, "encoding": encoding, "created_at": created_at or now, "modified_at": now}


def update_file_data(file_data: Mapping[str, Any], content: str) -> dict[str, Any]:
    """Return the dict to store for a file with new content; its encoding and creation time are kept."""
    return create_file_data(content, file_data.get("created_at"), file_data.get("encoding", "utf-8"))


def file_data_to_string(file_data: Mapping[str, Any]) -> str:
    """Return the content of a stored file of any format. Raises TypeError unless it is a text or a list of lines."""
    try:
        return records.decode_file(file_data, "").content
    except InvalidContentError as error:
        raise TypeError(str(error)) from error


def slice_read_response(file_data: Mapping[str, Any], offset: int, limit: int) -> ReadResult:
    """Read `limit` lines of a stored file, from line `offset` on, which counts from 0."""
    try:
        return read_data("", records.decode_file(file_data, ""), offset, limit, max_binary=MAX_SEARCHED_BYTES)
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
        grep = GrepScan(request, FileFilter(request))
        decoded = DecodedFiles(files)
        tree = FileTree(decoded)
        for each in tree.beneath(grep.files.root):
            if each in grep.files:
                scan_stored(grep, each, decoded)
    except DeepFSError as error:
        return failure(GrepResult, error)
    return grep.result()


def normalize_read_bounds(offset: int, limit: int) -> tuple[int, int]:
    """Return a window as two integers, neither of them under 0."""
    return max(int(offset), 0), max(int(limit), 0)


# --- paths and patterns ----------------------------------------------------------------------------------------------


def to_posix_path(path: str) -> str:
    r"""Return the path with each `\` replaced by `/`."""
    return path.replace("\\", "/")


def validate_path(path: str, *, allowed_prefixes: Sequence[str] | None = None) -> str:
    r"""Return the path in its normal form, in which `\` is `/`.

    Raises InvalidPathError, a ValueError, for a path that the contract refuses, and for one that starts with none of
    `allowed_prefixes`.
    """
    paths.normalize(path)  # A Windows path is refused as it was given.
    normal = paths.normalize(to_posix_path(path))
    if allowed_prefixes is not None and not normal.startswith(tuple(allowed_prefixes)):
        raise InvalidPathError(path, f"it must start with one of {', '.join(allowed_prefixes)}")
    return normal


def compile_grep_include_glob(pattern: str) -> Callable[[str], bool]:
    """Return a function that says whether a path, relative to where the search starts, matches the pattern.

    Raises InvalidGlobPatternError, a ValueError, for a pattern that is refused.
    """
    return compile_glob(pattern).matches


def sanitize_tool_call_id(tool_call_id: str) -> str:
    """Return a name of a file for the id of a tool call: at most 128 bytes, without `.`, `/` and backslashes."""
    name = re.sub(r"[./\\]", "_", tool_call_id)
    return name if len(name.encode()) <= 128 else f"call-{sha256(tool_call_id.encode()).hexdigest()}"


# --- texts for models ------------------------------------------------------------------------------------------------


def check_empty_content(content: str) -> str | None:
    """Return a note for a text that is empty or only white space, otherwise None."""
    return EMPTY_CONTENT_WARNING if not content.strip() else None


def format_content_with_line_numbers(content: str | list[str], start_line: int = 1) -> str:
    """Put the number of each line before it, and two blanks between.

    A line over `MAX_LINE_LENGTH` characters takes several rows, numbered `5`, `5.1`, `5.2`.
    """
    lines = content.removesuffix("\n").split("\n") if isinstance(content, str) else content
    rows = [] if content in ("", []) else [row for at, line in enumerate(lines, start_line) for row in _rows(at, line)]
    width = max((len(number) for number, _ in rows), default=0)
    return "\n".join(f"{number:>{width}}  {text}" for number, text in rows)


def _rows(number: int, line: str) -> Iterator[tuple[str, str]]:
    for part, start in enumerate(range(0, max(len(line), 1), MAX_LINE_LENGTH)):
        yield f"{number}.{part}" if part else f"{number}", line[start : start + MAX_LINE_LENGTH]


ResultT = TypeVar("ResultT", str, list[str])


def truncate_if_too_long(result: ResultT) -> ResultT:
    """Cut a text, or the end of a list of texts, that is over `TOOL_RESULT_TOKEN_LIMIT`, and say so at the end."""
    most = TOOL_RESULT_TOKEN_LIMIT * 4
    if isinstance(result, str):
        return (
            result if len(result) <= most else f"{result[: most - len(TRUNCATION_GUIDANCE) - 1]}\n{TRUNCATION_GUIDANCE}"
        )
    room = most - len(repr(TRUNCATION_GUIDANCE)) - 2
    texts: list[str] = []
    for text in result:
        room -= len(repr(text)) + 2
        if room < 0:
            return [*texts, TRUNCATION_GUIDANCE]
        texts.append(text)
    return result


_REGEX_LIKE: Final = re.compile(r"\||\.[*+]|\\[.wWdDsSbB(){}\[\]|+*?^$]")


def regex_literal_hint(pattern: str) -> str | None:
    """Return a note for a pattern that looks like a regular expression, for a literal search that found nothing."""
    if not _REGEX_LIKE.search(pattern):
        return None
    return "[The pattern was searched for as it is written. It looks like a regular expression: for one, set regex]"


def build_grep_results_dict(matches: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[int, str]]]:
    """Return the number and text of the lines that matched, by path."""
    found: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for match in matches:
        found[match["path"]].append((match["line"], match["text"]))
    return dict(found)


def format_grep_matches(matches: Sequence[Mapping[str, Any]], output_mode: OutputMode) -> str:
    """Show matches as paths, as numbered lines under their path, or as the number of them for each path.

    Context lines are marked with `-` after their number; a row `--` stands for what is left out between them.
    """
    if not matches:
        return "No matches found"
    found = build_grep_results_dict(matches)
    if output_mode == "files_with_matches":
        return "\n".join(sorted(found))
    if output_mode == "count":
        return "\n".join(f"{path}: {len(found[path])}" for path in sorted(found))
    return "\n".join(row for path in sorted(found) for row in (f"{path}:", *_file_rows(path, matches)))


def _file_rows(path: str, matches: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The rows of a file: its matches, each in a row of its own, with the context lines around them."""
    rows: dict[int, list[str]] = {}
    has_context = False
    for match in (match for match in matches if match["path"] == path):
        beside = [line for side in ("context_before", "context_after") for line in match.get(side) or ()]
        has_context = has_context or match.get("context_before") is not None
        for line in beside:
            rows.setdefault(line["line"], [f"  {line['line']}- {line['text']}"])
        own = [row for row in rows.get(match["line"], ()) if row.startswith(f"  {match['line']}:")]
        rows[match["line"]] = [*own, f"  {match['line']}: {match['text']}"]
    before: int | None = None
    for line in sorted(rows):
        if has_context and before is not None and line > before + 1:
            yield "  --"
        yield from rows[line]
        before = line
