"""What backends of deepagents tell in texts: the condition behind an error, and the lines of a numbered read."""

import re
from typing import Final

from msgspec import Struct

from deepfs.errors import ErrorCode, error_of
from deepfs.types import ReadResult

__all__ = ["NumberedText", "code_told", "shows_file", "unnumbered"]

_CONDITIONS: Final = [
    (ErrorCode.NO_MATCH, r"string.* not found|not found in (the )?file|does not end with a newline"),
    (ErrorCode.AMBIGUOUS_MATCH, r"appears \d+ times|multiple"),
    (ErrorCode.ALREADY_EXISTS, r"already[ _]exists|file[ _]exists"),
    (ErrorCode.NOT_A_DIRECTORY, r"not[ _]a[ _]directory"),
    (ErrorCode.IS_DIRECTORY, r"is[ _](a[ _])?directory"),
    (ErrorCode.PERMISSION_DENIED, r"permission|not allowed|denied|read-only"),
    (ErrorCode.INVALID_PATTERN, r"invalid (regex|glob)|invalid.*pattern"),
    (ErrorCode.INVALID_PATH, r"invalid[ _]path|path traversal|outside root"),
    (ErrorCode.INVALID_CONTENT, r"exceeds file length|old_string"),
    (ErrorCode.BINARY_FILE, r"binary"),
    (ErrorCode.TOO_LARGE, r"too large"),
    (ErrorCode.TIMEOUT, r"timed? ?out"),
    (ErrorCode.UNSUPPORTED, r"not (supported|implemented)|unsupported"),
    (ErrorCode.FILE_NOT_FOUND, r"not[ _]found|no such file|does not exist"),
]
"""Tried in order, so that what is more special comes first."""

_QUOTED: Final = re.compile(r"'[^']*'")
_NUMBERED: Final = re.compile(r" *(\d+)(\.\d+)?\t")
_EMPTY: Final = re.compile(r"\s*|.*\bempty contents\b.*", re.DOTALL)


def code_told(error: str) -> ErrorCode:
    """The condition that a text tells; what is quoted in it, a path or the text of a file, is not looked at."""
    if error in ErrorCode.__members__.values():
        return ErrorCode(error)
    said = _QUOTED.sub("''", error)
    return next((code for code, told in _CONDITIONS if re.search(told, said, re.I)), ErrorCode.BACKEND_ERROR)


_EXISTS: Final = frozenset({ErrorCode.BINARY_FILE, ErrorCode.TOO_LARGE, ErrorCode.INVALID_CONTENT})
"""A read fails with these only if a file is at the path."""
_UNKNOWN: Final = frozenset({ErrorCode.PERMISSION_DENIED, ErrorCode.TIMEOUT})
"""A read can fail with these whether or not a file is at the path."""


def shows_file(read: ReadResult) -> bool:
    """Whether a read, successful or failed, shows that a file is at its path.

    Raises the error of the read if it timed out or was not permitted, since a file may then be there or not.
    """
    if read.error is None:
        return True
    code = read.code or code_told(read.error)
    if code in _UNKNOWN:
        raise error_of(code, read.error)
    return code in _EXISTS


class NumberedText(Struct, frozen=True):
    """The lines of a numbered read, without numbers and line ends, and the number of the first."""

    lines: list[str]
    start_line: int


def unnumbered(answer: str) -> NumberedText | None:
    r"""The lines of an answer in which each is `f"{number:6d}\t{line}"` and goes on as `5.1`, `5.2`, …

    None where the answer is no content, but an error. An empty file is the empty answer, or a reminder that says so.
    """
    if not _NUMBERED.match(answer):
        return NumberedText([], 1) if _EMPTY.fullmatch(answer) else None
    lines: list[str] = []
    start_line = 0
    for line in answer.removesuffix("\n").split("\n"):
        numbered = _NUMBERED.match(line)
        if numbered is None:
            lines[-1] += f"\n{line}"
        elif numbered[2]:
            lines[-1:] = ["".join(lines[-1:]) + line[numbered.end() :]]
        else:
            lines.append(line[numbered.end() :])
        start_line = start_line or int((numbered and numbered[1]) or 0)
    return NumberedText(lines, start_line)
