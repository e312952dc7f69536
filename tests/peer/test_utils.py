"""The helpers have the signatures of deepagents, and results of the same form."""

import inspect
from itertools import product
from typing import Any, Final

import pytest
from deepagents.backends import utils as peer

from deepfs.compat import utils

HELPERS: Final = [
    "build_grep_results_dict", "check_empty_content", "compile_grep_include_glob", "create_file_data",
    "file_data_to_string", "format_content_with_line_numbers", "format_grep_matches", "grep_matches_from_files",
    "normalize_read_bounds", "perform_string_replacement", "regex_literal_hint", "sanitize_tool_call_id",
    "slice_read_response", "to_posix_path", "truncate_if_too_long", "update_file_data", "validate_path",
]  # fmt: skip
TEXT: Final[Any] = {"content": "one\ntwo\nthree\n", "encoding": "utf-8"}
LINES: Final[Any] = {"content": ["one", "two", ""], "created_at": "2020-01-01T00:00:00+00:00", "modified_at": ""}
MATCHES: Final[list[Any]] = [
    {"path": "/b.txt", "line": 9, "text": "nine"},
    {"path": "/a.txt", "line": 2, "text": "two", "context_before": [{"line": 1, "text": "one"}], "context_after": []},
    {"path": "/a.txt", "line": 5, "text": "five", "context_before": [], "context_after": [{"line": 6, "text": "6"}]},
]
PATHS: Final = ("a/b", "/./a//b", "../a", "~/a", "C:\\a", "C:/a", "a\\b", "/", "/a/", "/data/x", "/data")
CONTENTS: Final = ("", "a", "a\n", "a\n\nb\n", "\n", "x" * 12_001, ["a", "", "b"], [], [""])
SAME: Final[dict[str, list[tuple[Any, ...]]]] = {
    "file_data_to_string": [(TEXT,), (LINES,)],
    "format_grep_matches": [
        *product([[], MATCHES, MATCHES[:1], MATCHES[1:]], ["files_with_matches", "content", "count"]),
        ([*MATCHES, MATCHES[0]], "count"),
    ],
    "build_grep_results_dict": [([],), ([*MATCHES, MATCHES[0]],)],
    "format_content_with_line_numbers": [*product(CONTENTS, [1, 98])],
    "sanitize_tool_call_id": [("call_1",), ("a.b/c\\d",), ("é" * 65,), ("x" * 129,)],
    "validate_path": [(path,) for path in PATHS],
    "to_posix_path": [(path,) for path in (*PATHS, "/a/..")],
    "normalize_read_bounds": [(-1, 0), (3, -5), (1, 2)],
}
"""Calls of helpers whose results are equal, or ValueErrors."""


def result(module: Any, name: str, *given: Any, **options: Any) -> Any:
    try:
        return getattr(module, name)(*given, **options)
    except ValueError:
        return ValueError


def test_parameters_are_those_of_deepagents() -> None:
    for name in HELPERS:
        ours, theirs = (inspect.signature(getattr(module, name)).parameters.values() for module in (utils, peer))
        assert [(e.name, e.kind, e.default) for e in ours] == [(e.name, e.kind, e.default) for e in theirs], name


def test_results_are_the_same() -> None:
    made = [(name, given) for name, rows in SAME.items() for given in rows]
    assert [call for call in made if result(utils, call[0], *call[1]) != result(peer, call[0], *call[1])] == []
    for path, prefixes in product(PATHS, (["/data/"], ["/a", "/data"])):
        ours, theirs = (result(module, "validate_path", path, allowed_prefixes=prefixes) for module in (utils, peer))
        assert ours == theirs, path
    assert result(utils, "validate_path", "/a/..") is ValueError


def test_file_data_have_the_same_form() -> None:
    ours, theirs = (module.create_file_data("text", "2020", "base64") for module in (utils, peer))
    assert ours.keys() == theirs.keys()
    assert {**ours, "modified_at": ""} == {**theirs, "modified_at": ""}
    updated = utils.update_file_data({"content": "a", "encoding": "utf-8", "created_at": "2020"}, "b")
    assert (updated["content"], updated["created_at"], updated["encoding"]) == ("b", "2020", "utf-8")
    with pytest.raises(TypeError):
        utils.file_data_to_string({"content": 3})


def test_windows_are_the_same() -> None:
    for data, (offset, limit) in product((TEXT, LINES), [(0, 2), (1, 1), (2, 10), (9, 1)]):
        ours, theirs = (module.slice_read_response(data, offset, limit) for module in (utils, peer))
        assert (ours.error is None) == (theirs.error is None)
        if theirs.file_data is not None:
            assert ours.file_data["content"] == theirs.file_data["content"]
            assert (ours.start_line, ours.end_line) == (theirs.start_line, theirs.end_line)


def test_replacements_are_the_same() -> None:
    for given in (("one", "1", False), ("o", "0", True), ("o", "0", False), ("", "", True)):
        ours, theirs = (module.perform_string_replacement("one two", *given) for module in (utils, peer))
        assert isinstance(ours, str) == isinstance(theirs, str)
        assert isinstance(ours, str) or ours == theirs


def test_matches_are_the_same() -> None:
    files = {"/a.txt": TEXT, "/old.txt": LINES}
    ours, theirs = (module.grep_matches_from_files(files, "two", max_count=1) for module in (utils, peer))
    assert ours.matches == theirs.matches
    assert ours.truncated is theirs.truncated is True


def test_globs_match_the_same() -> None:
    patterns = ("*.py", "**/*.py", "/*.py", "src/*.{py,js}", ".env", "[!a].py")
    for pattern, path in product(patterns, ("a.py", "src/a.py", "src/x/b.js", "src/b.js", ".env", "x/.env")):
        ours, theirs = (module.compile_grep_include_glob(pattern)(path) for module in (utils, peer))
        assert ours == theirs, (pattern, path)
    for module in (utils, peer):
        assert issubclass(module.InvalidGlobPatternError, ValueError)
        with pytest.raises(module.InvalidGlobPatternError):
            module.compile_grep_include_glob("../*")


def test_the_same_texts_get_a_hint() -> None:
    for pattern in ("a|b", "a.*", r"\d+", "a.b", "f(x)", "[0]", r"\(", "^a$"):
        assert bool(utils.regex_literal_hint(pattern)) == bool(peer.regex_literal_hint(pattern)), pattern
    for text in ("", " \n", "a"):
        assert bool(utils.check_empty_content(text)) == bool(peer.check_empty_content(text)), text


def test_results_are_cut_at_the_same_length() -> None:
    for given in ("x" * 80_000, "x" * 80_001, ["x" * 30_000] * 2, ["x" * 30_000] * 3, []):
        ours, theirs = utils.truncate_if_too_long(given), peer.truncate_if_too_long(given)
        assert (len(ours), ours == given) == (len(theirs), theirs == given)
        assert len(str(ours)) <= 80_004 + len(given)
