"""`grep`: literal text or regular expressions, line by line, in the files that the path and the glob choose."""

from typing import Any, Final

import anyio

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from deepfs.testing.expect import failed, lines_of, only, paths_of, succeeded
from deepfs.testing.suite import BackendSuite
from deepfs.types import ContextLine, GrepMatch

__all__ = ["GrepConformance"]

_MEGABYTE: Final = 1024 * 1024
_WAYS: Final[tuple[dict[str, Any], ...]] = ({}, {"regex": True}, {"ignore_case": True})
_POEM: Final = "one needle\ntwo\nthree Needle\nfour needle needle\r\nfive"


def _matches(result: Any) -> list[GrepMatch]:
    matches = succeeded(result).matches
    assert matches is not None
    return list(matches)


class GrepConformance(BackendSuite):
    """Matches are lines, sorted by path, then line."""

    async def test_matches_have_path_line_and_text(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/poem.txt": _POEM})
        result = succeeded(await backend.agrep("needle"))
        assert [dict(match) for match in _matches(result)] == [
            {"path": "/dir/poem.txt", "line": 1, "text": "one needle"},
            {"path": "/dir/poem.txt", "line": 4, "text": "four needle needle"},
        ]
        assert (result.truncated, result.skipped) == (False, 0)

    async def test_the_pattern_is_literal(self, backend: BackendProtocol) -> None:
        lines = ["a.b", "axb", "(", "[a-z]", "a*", "\\d", "^a$", "$HOME", "-e", "'\"", "%_", "tab\there", " two "]
        await self.put({"/lines.txt": "\n".join(lines)})
        found = {line: [match.text for match in _matches(await backend.agrep(line))] for line in lines}
        assert found == {line: [other for other in lines if line in other] for line in lines}

    async def test_nothing_found_is_an_empty_result(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "text"})
        assert lines_of(await backend.agrep("absent")) == []

    async def test_matches_are_sorted_by_path_then_line(self, backend: BackendProtocol) -> None:
        paths = ["/s/a-b/x", "/s/a.x", "/s/a/x", "/s/a0", "/s/B/x", "/s/_", "/s/é", "/s/\uff5e", "/s/😀"]
        await self.put(dict.fromkeys(paths, "x\n\nx"))
        assert lines_of(await backend.agrep("x", "/s")) == [(path, line) for path in sorted(paths) for line in (1, 3)]

    async def test_case_is_ignored_on_demand(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "needle\nNEEDLE\nÉTÉ\nété\na.b\nA.B\naxb"})
        assert lines_of(await backend.agrep("needle")) == [("/a.txt", 1)]
        for pattern, lines in (("Needle", [1, 2]), ("été", [3, 4]), ("a.b", [5, 6])):
            found = lines_of(await backend.agrep(pattern, ignore_case=True))
            assert [line for _, line in found] == lines, pattern

    async def test_regular_expressions(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "alpha\nbeta 12\r\n\r\ngamma123\nlast é"})
        expected = {
            "a": [1, 2, 4, 5],
            "^a": [1],
            r"\d+$": [2, 4],
            "[0-9]{3}": [4],
            "alpha|last": [1, 5],
            "t. ?1": [2],
            "^$": [3],
            "é$": [5],
            "(?i)ALPHA": [1],
            "a.*b": [],
            r"\bbeta\b": [2],
        }
        found = {regex: [line for _, line in lines_of(await backend.agrep(regex, regex=True))] for regex in expected}
        assert found == expected
        both = await backend.agrep("ALPHA|GAMMA", regex=True, ignore_case=True)
        assert lines_of(both) == [("/a.txt", 1), ("/a.txt", 4)]

    async def test_an_invalid_regular_expression_is_invalid_pattern(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "(["})
        for regex in ("(", "[", "a**b(", "*"):
            result = failed(await backend.agrep(regex, regex=True), ErrorCode.INVALID_PATTERN)
            assert "Invalid regex pattern: " in (result.error or "")
        assert lines_of(await backend.agrep("([")) == [("/a.txt", 1)], "as literal text it is fine"

    async def test_a_pattern_with_a_line_break_is_invalid_pattern(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one\ntwo"})
        failed(await backend.agrep("one\ntwo"), ErrorCode.INVALID_PATTERN)

    async def test_a_regular_expression_cannot_hang(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "a" * 3000 + "!\n"})
        with anyio.fail_after(20):
            for regex in ("(a+)+$", "(a|a)*b", "(a*)*c", "^(([a-z])+.)+[A-Z]([a-z])+$"):
                result = await backend.agrep(regex, regex=True)
                assert result.ok or result.code in (ErrorCode.TIMEOUT, ErrorCode.INVALID_PATTERN)

    async def test_context_lines(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one\ntwo\r\nthree\nfour\nfive"})
        match = only(_matches(await backend.agrep("three", context_lines=1)))
        assert match.context_before == [ContextLine(2, "two")]
        assert match.context_after == [ContextLine(4, "four")]
        first = only(_matches(await backend.agrep("one", context_lines=2)))
        assert not first.get("context_before")
        assert first.context_after == [ContextLine(2, "two"), ContextLine(3, "three")]
        last = only(_matches(await backend.agrep("five", context_lines=9)))
        assert [line.line for line in last.context_before or ()] == [1, 2, 3, 4]
        assert not last.get("context_after")

    async def test_no_context_unless_asked_for(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one\ntwo"})
        match = only(_matches(await backend.agrep("one")))
        assert sorted(match) == ["line", "path", "text"]

    async def test_max_count_keeps_the_first_matches_and_sets_truncated(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "x\nx\n", "/b/c.txt": "x\nx\n", "/d.txt": "x"})
        everything = lines_of(await backend.agrep("x"))
        assert len(everything) == 5
        for count in range(1, 7):
            result = await backend.agrep("x", max_count=count)
            assert (lines_of(result), result.truncated) == (everything[:count], count < 5), f"max_count={count}"

    async def test_a_glob_chooses_the_files(self, backend: BackendProtocol) -> None:
        files = ("/s/a.py", "/s/deep/b.py", "/s/c.txt", "/s/.d.py", "/s/.e/f.py", "/t/g.py")
        await self.put(dict.fromkeys(files, "x"))
        expected = {
            ("*.py", "/s"): ["/s/a.py", "/s/deep/b.py"],
            ("*.py", None): ["/s/a.py", "/s/deep/b.py", "/t/g.py"],
            ("deep/*", "/s"): ["/s/deep/b.py"],
            ("/*.py", "/s"): ["/s/a.py"],
            ("*.{py,txt}", "/s"): ["/s/a.py", "/s/c.txt", "/s/deep/b.py"],
            (".*", "/s"): ["/s/.d.py"],
            ("**/.e/*", "/"): ["/s/.e/f.py"],
            ("*.md", "/s"): [],
        }
        found = {
            (glob, path): paths_of(succeeded(await backend.agrep("x", path, glob)).matches) for glob, path in expected
        }
        assert found == expected

    async def test_dot_names_are_searched_only_if_the_path_names_them(self, backend: BackendProtocol) -> None:
        await self.put(dict.fromkeys(("/s/a", "/s/.env", "/s/.git/config", "/s/b/.c/d"), "x"))
        expected = {
            "/s": ["/s/a"],
            "/s/b": [],
            "/s/.env": ["/s/.env"],
            "/s/.git": ["/s/.git/config"],
            "/s/b/.c": ["/s/b/.c/d"],
            "/s/b/.c/d": ["/s/b/.c/d"],
        }
        found = {path: paths_of(succeeded(await backend.agrep("x", path)).matches) for path in expected}
        assert found == expected

    async def test_the_path_may_be_a_file(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "x\ny\nx", "/dir/b.txt": "x"})
        assert lines_of(await backend.agrep("x", "/dir/a.txt")) == [("/dir/a.txt", 1), ("/dir/a.txt", 3)]
        assert lines_of(await backend.agrep("x", "/dir/a.txt", "*.txt")) == [("/dir/a.txt", 1), ("/dir/a.txt", 3)]
        assert lines_of(await backend.agrep("x", "/dir/a.txt", "*.py")) == []

    async def test_grep_of_a_missing_path_is_file_not_found(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "x"})
        for path in ("/none", "/dir/none", "/dir/a.txt/beneath"):
            failed(await backend.agrep("x", path), ErrorCode.FILE_NOT_FOUND)

    async def test_paths_with_the_same_prefix_are_not_searched(self, backend: BackendProtocol) -> None:
        await self.put({"/pre/a": "x", "/prefix/b": "x", "/pre.txt": "x"})
        assert lines_of(await backend.agrep("x", "/pre")) == [("/pre/a", 1)]

    async def test_binary_files_that_match_count_as_skipped(self, backend: BackendProtocol) -> None:
        binary = {"/nul.txt": b"needle\x00", "/latin.txt": "é needle".encode("latin-1"), "/name.png": b"needle"}
        await self.put({**binary, "/other.bin": b"\x00", "/text.txt": "needle", "/logo.svg": "needle"})
        for options in _WAYS:
            result = succeeded(await backend.agrep("needle", **options))
            assert paths_of(result.matches) == ["/logo.svg", "/text.txt"], options
            assert result.skipped == len(binary), options

    async def test_a_byte_order_mark_is_not_part_of_the_line(self, backend: BackendProtocol) -> None:
        await self.put({"/mark.txt": "\ufefffirst\nsecond"})
        for pattern, regex in (("first", False), ("^first$", True)):
            match = only(_matches(await backend.agrep(pattern, regex=regex)))
            assert (match.line, match.text) == (1, "first")

    async def test_a_long_line_is_clipped(self, backend: BackendProtocol) -> None:
        line = "needle " + "é" * 10_000
        await self.put({"/long.txt": f"{line}\nneedle", "/late.txt": "x" * 20_000 + " needle"})
        texts = {(match.path, match.line): match.text for match in _matches(await backend.agrep("needle"))}
        assert texts == {("/late.txt", 1): "x" * 5000, ("/long.txt", 1): line[:5000], ("/long.txt", 2): "needle"}

    async def test_a_file_over_ten_megabytes_counts_as_skipped(self, backend: BackendProtocol) -> None:
        await self.put({"/large.txt": "needle\n" + "x" * (10 * _MEGABYTE), "/small.txt": "needle"})
        result = succeeded(await backend.agrep("needle"))
        assert (lines_of(result), result.skipped) == ([("/small.txt", 1)], 1)
