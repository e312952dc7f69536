"""Parsing the numbered text and the error texts of deepagents' backends."""

from deepfs.backends.foreign import code_from, parse_numbered
from deepfs.errors import ErrorCode

LINES = [
    ("     1\tone\n     2\ttwo", ["one", "two"]),
    ("     7\tone\n     8\t", ["one", ""]),
    ("     5\tone\n   5.1\t and more\n     6\ttwo", ["one and more", "two"]),
    ("100000\tone\n100001\ttwo", ["one", "two"]),
    ("     1\tError: File 'x' not found", ["Error: File 'x' not found"]),
    ("     1\t     2\tnot a number of ours\r", ["     2\tnot a number of ours\r"]),
    ("", []),
    ("System reminder: File exists but has empty contents", []),
]


def test_line_numbers_are_stripped_and_other_text_is_an_error() -> None:
    assert [parse_numbered(answer) for answer, _ in LINES] == [lines for _, lines in LINES]
    for answer in ("Error: File '/x' not found", "File '/1\t' not found", "Permission denied"):
        assert parse_numbered(answer) is None


CODES = [
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
    ("Error: File '/it's binary.txt' not found", ErrorCode.FILE_NOT_FOUND),
    ("File '/Bob's permission form.txt' not found", ErrorCode.FILE_NOT_FOUND),
    ('File "/denied.txt" not found', ErrorCode.FILE_NOT_FOUND),
    ("The user's file is not a text file", ErrorCode.BINARY_FILE),
    ("no such document", ErrorCode.FILE_NOT_FOUND),
    ("The page doesn't exist", ErrorCode.FILE_NOT_FOUND),
    ("NoSuchKey", ErrorCode.FILE_NOT_FOUND),
    ("Could not find it", ErrorCode.FILE_NOT_FOUND),
    ("The note could not be found", ErrorCode.FILE_NOT_FOUND),
    ("Unknown file x", ErrorCode.FILE_NOT_FOUND),
    ("[Errno 2] No such file or directory: /srv/quota/a.md", ErrorCode.FILE_NOT_FOUND),
    ("The disk quota is used up", ErrorCode.QUOTA_EXCEEDED),
    ("No such host is known", ErrorCode.BACKEND_ERROR),
    ("sh: python3: command not found", ErrorCode.BACKEND_ERROR),
    ("Sandbox error: file not found", ErrorCode.FILE_NOT_FOUND),
    ("[sandbox] file not found", ErrorCode.FILE_NOT_FOUND),
    ("Sandbox: the file does not exist", ErrorCode.FILE_NOT_FOUND),
    ("Error: host files.example.com not found", ErrorCode.BACKEND_ERROR),
    ("database profiles does not exist", ErrorCode.BACKEND_ERROR),
    ("database file not found", ErrorCode.BACKEND_ERROR),
    ("Database does not exist", ErrorCode.BACKEND_ERROR),
    ("No space left on device", ErrorCode.QUOTA_EXCEEDED),
    ("The disk is full, as 'permission denied", ErrorCode.BACKEND_ERROR),
    ("the cat ate it", ErrorCode.BACKEND_ERROR),
]


def test_the_error_code_is_parsed_from_the_text() -> None:
    assert [(error, code_from(error)) for error, _ in CODES] == CODES


def test_words_that_are_also_names_of_files_stay_conditions() -> None:
    for path in ("/file", "/found", "/not", "/docs/file", "/exist"):
        for error in (f"[Errno 2] No such file or directory: '/srv{path}'", f"Error: File '{path}' not found"):
            assert code_from(error, path) is ErrorCode.FILE_NOT_FOUND


def test_words_of_the_path_are_no_conditions() -> None:
    assert code_from("File not found: /docs/permission.txt", "/docs/permission.txt") is ErrorCode.FILE_NOT_FOUND
    assert code_from("/notes/binary.md: No such file or directory", "/notes/binary.md") is ErrorCode.FILE_NOT_FOUND
    assert code_from("quota.md not found", "/quota.md") is ErrorCode.FILE_NOT_FOUND
    assert code_from("'/docs/a'", "/docs/a") is ErrorCode.FILE_NOT_FOUND
    assert code_from("Permission denied: /", "/") is ErrorCode.PERMISSION_DENIED
