"""The helpers have the signatures of deepagents, and results of the same form."""

import inspect
from typing import Any, Final

import pytest
from deepagents.backends import utils as peer

from deepfs.compat import utils

HELPERS: Final = [
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

FILES: Final[dict[str, Any]] = {
    "/a.txt": {"content": "one\ntwo\nthree\n", "encoding": "utf-8"},
    "/old.txt": {"content": ["one", "two", ""], "created_at": "2020-01-01T00:00:00+00:00", "modified_at": ""},
}


@pytest.mark.parametrize("name", HELPERS)
def test_parameters_are_those_of_deepagents(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(module, name)).parameters for module in (utils, peer))
    described = [[(each.name, each.kind, each.default) for each in some.values()] for some in (ours, theirs)]
    assert described[0] == described[1]


def test_created_file_data_has_the_same_form() -> None:
    ours, theirs = (module.create_file_data("text", "2020", "base64") for module in (utils, peer))
    assert ours.keys() == theirs.keys()
    assert {**ours, "modified_at": ""} == {**theirs, "modified_at": ""}
    updated = utils.update_file_data({"content": "a", "encoding": "utf-8", "created_at": "2020"}, "b")
    assert (updated["content"], updated["created_at"], updated["encoding"]) == ("b", "2020", "utf-8")


@pytest.mark.parametrize("path", FILES)
def test_content_and_windows_are_the_same(path: str) -> None:
    data = FILES[path]
    assert utils.file_data_to_string(data) == peer.file_data_to_string(data)
    for offset, limit in [(0, 2), (1, 1), (2, 10), (9, 1)]:
        ours, theirs = (module.slice_read_response(data, offset, limit) for module in (utils, peer))
        assert (ours.error is None) == (theirs.error is None)
        if theirs.file_data is not None:
            assert ours.file_data["content"] == theirs.file_data["content"]
            assert (ours.start_line, ours.end_line) == (theirs.start_line, theirs.end_line)


@pytest.mark.parametrize(
    ("old", "new", "every"), [("one", "1", False), ("o", "0", True), ("o", "0", False), ("", "", True)]
)
def test_replacements_are_the_same(old: str, new: str, every: bool) -> None:
    ours, theirs = (module.perform_string_replacement("one two", old, new, every) for module in (utils, peer))
    assert isinstance(ours, str) == isinstance(theirs, str)
    assert isinstance(ours, str) or ours == theirs


def test_matches_are_the_same() -> None:
    ours = utils.grep_matches_from_files(FILES, "two", max_count=1)
    theirs = peer.grep_matches_from_files(FILES, "two", max_count=1)
    assert ours.matches == theirs.matches
    assert ours.truncated is theirs.truncated is True
    with pytest.raises(TypeError):
        utils.file_data_to_string({"content": 3})


def _beside(line: int, text: str) -> dict[str, Any]:
    return {"line": line, "text": text}


MATCHES: Final[list[Any]] = [
    {"path": "/b.txt", "line": 9, "text": "nine"},
    {"path": "/a.txt", "line": 2, "text": "two", "context_before": [_beside(1, "one")], "context_after": []},
    {
        "path": "/a.txt",
        "line": 5,
        "text": "five",
        "context_before": [_beside(4, "4")],
        "context_after": [_beside(6, "6")],
    },
]


@pytest.mark.parametrize("mode", ["files_with_matches", "content", "count"])
@pytest.mark.parametrize("matches", [[], MATCHES, MATCHES[:1], MATCHES[1:], [*MATCHES, MATCHES[0]]])
def test_matches_are_shown_in_the_same_form(matches: list[Any], mode: Any) -> None:
    if len(matches) == 4 and mode == "content":
        matches = matches[:3]  # A line that matches twice is shown once there.
    assert utils.format_grep_matches(matches, mode) == peer.format_grep_matches(matches, mode)
    assert utils.build_grep_results_dict(matches) == peer.build_grep_results_dict(matches)


@pytest.mark.parametrize("content", ["", "a", "a\n", "a\n\nb\n", "\n", "x" * 12_001, ["a", "", "b"], [], [""]])
@pytest.mark.parametrize("start", [1, 98])
def test_lines_are_numbered_in_the_same_form(content: Any, start: int) -> None:
    ours, theirs = (module.format_content_with_line_numbers(content, start) for module in (utils, peer))
    assert ours == theirs


@pytest.mark.parametrize("id_", ["call_1", "a.b/c\\d", "é" * 65, "x" * 128, "x" * 129])
def test_names_for_tool_calls_are_the_same(id_: str) -> None:
    assert utils.sanitize_tool_call_id(id_) == peer.sanitize_tool_call_id(id_)


@pytest.mark.parametrize(
    "path", ["a/b", "/./a//b", "../a", "~/a", "C:\\a", "C:/a", "/a/..", "a\\b", "/", "/a/", "/data/x", "/data"]
)
@pytest.mark.parametrize("prefixes", [None, ["/data/"], ["/a", "/data"]])
def test_paths_are_judged_in_the_same_way(path: str, prefixes: list[str] | None) -> None:
    outcomes: list[Any] = []
    for module in (utils, peer):
        try:
            outcomes.append(module.validate_path(path, allowed_prefixes=prefixes))
        except ValueError:
            outcomes.append(ValueError)
    assert outcomes[0] == (ValueError if path == "/a/.." else outcomes[1])
    assert utils.to_posix_path(path) == peer.to_posix_path(path)


@pytest.mark.parametrize("pattern", ["*.py", "**/*.py", "/*.py", "src/*.{py,js}", ".env", "[!a].py"])
@pytest.mark.parametrize("path", ["a.py", "src/a.py", "src/x/b.js", "src/b.js", ".env", "x/.env"])
def test_globs_match_the_same(pattern: str, path: str) -> None:
    ours, theirs = (module.compile_grep_include_glob(pattern)(path) for module in (utils, peer))
    assert ours == theirs


def test_refused_globs_are_the_same_error() -> None:
    for module in (utils, peer):
        with pytest.raises(module.InvalidGlobPatternError):
            module.compile_grep_include_glob("../*")
        assert issubclass(module.InvalidGlobPatternError, ValueError)


@pytest.mark.parametrize("pattern", ["a|b", "a.*", r"\d+", "a.b", "f(x)", "[0]", r"\(", "^a$"])
def test_the_same_patterns_look_like_regular_expressions(pattern: str) -> None:
    assert bool(utils.regex_literal_hint(pattern)) == bool(peer.regex_literal_hint(pattern))


@pytest.mark.parametrize("text", ["", " \n", "a"])
def test_the_same_content_is_empty(text: str) -> None:
    assert bool(utils.check_empty_content(text)) == bool(peer.check_empty_content(text))


@pytest.mark.parametrize("given", [(-1, 0), (3, -5), (1, 2)])
def test_windows_are_normalised_in_the_same_way(given: tuple[int, int]) -> None:
    assert utils.normalize_read_bounds(*given) == peer.normalize_read_bounds(*given)


@pytest.mark.parametrize("given", ["x" * 80_000, "x" * 80_001, ["x" * 30_000] * 2, ["x" * 30_000] * 3, []])
def test_results_are_cut_at_the_same_length(given: Any) -> None:
    ours, theirs = utils.truncate_if_too_long(given), peer.truncate_if_too_long(given)
    assert len(ours) == len(theirs)
    assert (ours == given) == (theirs == given)
    assert len(str(ours)) <= 80_004 + len(given)
