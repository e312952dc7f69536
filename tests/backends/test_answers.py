"""Parsing the numbered text and the error texts of deepagents' backends."""

import pytest

from deepfs.backends.answers import code_from, parse_numbered
from deepfs.errors import ErrorCode


@pytest.mark.parametrize(
    ("answer", "lines", "start_line"),
    [
        ("     1\tone\n     2\ttwo", ["one", "two"], 1),
        ("     7\tone\n     8\t", ["one", ""], 7),
        ("     5\tone\n   5.1\t and more\n     6\ttwo", ["one and more", "two"], 5),
        ("100000\tone\n100001\ttwo", ["one", "two"], 100_000),
        ("     1\tError: File 'x' not found", ["Error: File 'x' not found"], 1),
        ("     1\t     2\tnot a number of ours\r", ["     2\tnot a number of ours\r"], 1),
        ("", [], 1),
        ("System reminder: File exists but has empty contents", [], 1),
    ],
)
def test_line_numbers_are_stripped(answer: str, lines: list[str], start_line: int) -> None:
    text = parse_numbered(answer)
    assert text is not None
    assert (text.lines, text.start_line) == (lines, start_line)


@pytest.mark.parametrize("answer", ["Error: File '/x' not found", "File '/1\t' not found", "Permission denied"])
def test_text_without_line_numbers_is_an_error(answer: str) -> None:
    assert parse_numbered(answer) is None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("Error: File '/x' not found", ErrorCode.FILE_NOT_FOUND),
        ("Path '/x': path_not_found", ErrorCode.FILE_NOT_FOUND),
        ("file_not_found", ErrorCode.FILE_NOT_FOUND),
        ("Error: String not found in file: 'already exists'", ErrorCode.NO_MATCH),
        ("Error: String 'not found' appears 3 times in file.", ErrorCode.AMBIGUOUS_MATCH),
        ("Cannot write to /x because it already exists.", ErrorCode.ALREADY_EXISTS),
        ("Path '/x': not_a_directory", ErrorCode.NOT_A_DIRECTORY),
        ("Writes are not allowed under /x", ErrorCode.PERMISSION_DENIED),
        ("Invalid regex pattern: unbalanced parenthesis", ErrorCode.INVALID_PATTERN),
        ("Line offset 5 exceeds file length (1 lines)", ErrorCode.INVALID_CONTENT),
        ("the cat ate it", ErrorCode.BACKEND_ERROR),
    ],
)
def test_the_error_code_is_parsed_from_the_text(error: str, code: ErrorCode) -> None:
    assert code_from(error) is code
