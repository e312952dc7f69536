"""`glob`, by one table of patterns for every backend, and `grep`, line by line."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import anyio

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from deepfs.testing.suite import BackendSuite, assert_failed, assert_ok, lines_of, only, paths_of
from deepfs.types import ContextLine, GrepMatch

# --- glob ---

TREE: Final = (
    "/.env",
    "/.github/dependabot.yml",
    "/.github/workflows/ci.yml",
    "/README.md",
    "/docs/a[1].md",
    "/docs/café.md",
    "/docs/guide.md",
    "/setup.py",
    "/src/.hidden.py",
    "/src/Main.py",
    "/src/app/.cache/data.py",
    "/src/app/main.py",
    "/src/app/tests/test_main.py",
    "/src/app/views.py",
    "/src/lib.pyi",
    "/src/main.py",
)

_IN_SRC: Final = (
    "/src/Main.py",
    "/src/app/main.py",
    "/src/app/tests/test_main.py",
    "/src/app/views.py",
    "/src/main.py",
)
_DOCS: Final = ("/docs/a[1].md", "/docs/café.md", "/docs/guide.md")
_MAINS: Final = ("/src/app/main.py", "/src/main.py")
_VISIBLE: Final = ("/README.md", "/setup.py", "/src/lib.pyi", *_DOCS, *_IN_SRC)

GLOBS: Final[Mapping[tuple[str, str], Iterable[str]]] = {
    # Patterns without a slash match the name, at any depth.
    ("*", "/"): _VISIBLE,
    ("*.py", "/"): ("/setup.py", *_IN_SRC),
    ("main.py", "/"): _MAINS,
    ("[Mm]ain.py", "/"): ("/src/Main.py", *_MAINS),
    ("[!m]ain.py", "/"): ("/src/Main.py",),
    ("[a-m]ain.py", "/"): _MAINS,
    ("?ain.py", "/"): ("/src/Main.py", *_MAINS),
    ("caf?.md", "/"): ("/docs/café.md",),
    ("a[[]1].md", "/"): ("/docs/a[1].md",),
    ("{main,views}.py", "/"): ("/src/app/views.py", *_MAINS),
    ("*.{md,pyi}", "/"): ("/README.md", "/src/lib.pyi", *_DOCS),
    ("nothing*", "/"): (),
    ("src", "/"): (),
    ("*main.py", "/"): ("/src/app/tests/test_main.py", *_MAINS),
    # Patterns with a slash are relative to the path; a leading slash only anchors.
    ("src/*.py", "/"): ("/src/Main.py", "/src/main.py"),
    ("src/*", "/"): ("/src/Main.py", "/src/lib.pyi", "/src/main.py"),
    ("/setup.py", "/"): ("/setup.py",),
    ("/*.md", "/"): ("/README.md",),
    ("/main.py", "/"): (),
    ("*/*.py", "/"): ("/src/Main.py", "/src/main.py"),
    ("s*/a??/*.py", "/"): ("/src/app/main.py", "/src/app/views.py"),
    ("{src/*.py,docs/*.md}", "/"): ("/src/Main.py", "/src/main.py", *_DOCS),
    ("app/*.py", "/"): (),
    # `**` matches any number of directories, including none.
    ("**", "/"): _VISIBLE,
    ("**/*", "/"): _VISIBLE,
    ("**/main.py", "/"): _MAINS,
    ("/**/*.md", "/"): ("/README.md", *_DOCS),
    ("src/**", "/"): ("/src/lib.pyi", *_IN_SRC),
    ("src/**/*.py", "/"): _IN_SRC,
    ("src/**/main.py", "/"): _MAINS,
    ("**/app/**/*.py", "/"): ("/src/app/main.py", "/src/app/tests/test_main.py", "/src/app/views.py"),
    # A dot-name needs a segment that starts with a dot, and `**` does not enter dot-directories.
    (".*", "/"): ("/.env", "/src/.hidden.py"),
    (".env", "/"): ("/.env",),
    ("?env", "/"): (),
    ("[.]env", "/"): (),
    ("*.yml", "/"): (),
    ("**/*.yml", "/"): (),
    (".github/*", "/"): ("/.github/dependabot.yml",),
    (".github/**", "/"): ("/.github/dependabot.yml", "/.github/workflows/ci.yml"),
    (".g*/**/*.yml", "/"): ("/.github/dependabot.yml", "/.github/workflows/ci.yml"),
    ("**/.cache/*.py", "/"): ("/src/app/.cache/data.py",),
    ("src/.*.py", "/"): ("/src/.hidden.py",),
    # The search starts at a path.
    ("*.py", "/src"): _IN_SRC,
    ("*.py", "/src/"): _IN_SRC,
    ("/main.py", "/src"): ("/src/main.py",),
    ("app/*.py", "/src"): ("/src/app/main.py", "/src/app/views.py"),
    ("src/*.py", "/src"): (),
    ("*.py", "/src/app/.cache"): ("/src/app/.cache/data.py",),
    ("*", "/.github"): ("/.github/dependabot.yml", "/.github/workflows/ci.yml"),
    ("*.md", "/src"): (),
}
"""Maps a pattern and a path to the files that match."""

INVALID_GLOBS: Final = ("", "..", "../*.py", "src/../*.py", "src/..", "/..", "[a", "{a,b", "a}", "[z-a]", "*.p\0y")
"""Patterns that are refused: with `..` segments, or such that they could match nothing."""


class GlobConformance(BackendSuite):
    """A pattern chooses the same files everywhere."""

    async def test_every_pattern_of_the_table(self, backend: BackendProtocol) -> None:
        await self.put(dict.fromkeys(TREE, "x"))
        cases = dict(self.some(GLOBS.items()))
        found = {
            (pattern, path): paths_of(assert_ok(await backend.aglob(pattern, path)).matches) for pattern, path in cases
        }
        assert found == {case: sorted(expected) for case, expected in cases.items()}

    async def test_matches_are_files_with_their_size(self, backend: BackendProtocol) -> None:
        await self.put({"/dir.py/a.py": "héllo", "/b.py": "x"})
        result = assert_ok(await backend.aglob("*.py"))
        assert paths_of(result.matches) == ["/b.py", "/dir.py/a.py"]
        assert [(info.is_dir or False, info.size) for info in result.matches or ()] == [(False, 1), (False, 6)]
        assert result.truncated is False

    async def test_matches_are_sorted_by_path(self, backend: BackendProtocol) -> None:
        paths = ["/s/a-b/x", "/s/a.x", "/s/a/x", "/s/a0", "/s/B/x", "/s/Z", "/s/_", "/s/é", "/s/\uff5e", "/s/😀"]
        await self.put(dict.fromkeys(paths, "x"))
        assert paths_of(assert_ok(await backend.aglob("*", "/s")).matches) == sorted(paths)

    async def test_a_refused_pattern_is_invalid_pattern(self, backend: BackendProtocol) -> None:
        await self.put(dict.fromkeys(TREE, "x"))
        for pattern in INVALID_GLOBS:
            assert_failed(await backend.aglob(pattern), ErrorCode.INVALID_PATTERN)
            assert_failed(await backend.aglob(pattern, "/src"), ErrorCode.INVALID_PATTERN)
            assert_failed(await backend.agrep("x", glob=pattern), ErrorCode.INVALID_PATTERN)

    async def test_a_pattern_with_many_stars_is_fast(self, backend: BackendProtocol) -> None:
        await self.put({"/" + "a" * 200: "x"})
        assert assert_ok(await backend.aglob("*a" * 50 + "b")).matches == []

    async def test_glob_of_a_missing_path_is_file_not_found(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "x"})
        assert_failed(await backend.aglob("*", "/none"), ErrorCode.FILE_NOT_FOUND)
        assert_failed(await backend.aglob("*", "/dir/none"), ErrorCode.FILE_NOT_FOUND)

    async def test_glob_under_a_file_is_not_a_directory(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "x"})
        assert_failed(await backend.aglob("*", "/dir/a.txt"), ErrorCode.NOT_A_DIRECTORY)


# --- grep ---

_MEGABYTE: Final = 1024 * 1024
_WAYS: Final[tuple[dict[str, Any], ...]] = ({}, {"regex": True}, {"ignore_case": True})
_POEM: Final = "one needle\ntwo\nthree Needle\nfour needle needle\r\nfive"


def _matches(result: Any) -> list[GrepMatch]:
    matches = assert_ok(result).matches
    assert matches is not None
    return list(matches)


class GrepConformance(BackendSuite):
    """Matches are lines, sorted by path, then line."""

    async def test_matches_have_path_line_and_text(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/poem.txt": _POEM})
        result = assert_ok(await backend.agrep("needle"))
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
            result = assert_failed(await backend.agrep(regex, regex=True), ErrorCode.INVALID_PATTERN)
            assert "Invalid regex pattern: " in (result.error or "")
        assert lines_of(await backend.agrep("([")) == [("/a.txt", 1)], "as literal text it is fine"

    async def test_a_pattern_with_a_line_break_is_invalid_pattern(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one\ntwo"})
        assert_failed(await backend.agrep("one\ntwo"), ErrorCode.INVALID_PATTERN)

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
            (glob, path): paths_of(assert_ok(await backend.agrep("x", path, glob)).matches) for glob, path in expected
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
        found = {path: paths_of(assert_ok(await backend.agrep("x", path)).matches) for path in expected}
        assert found == expected

    async def test_the_path_may_be_a_file(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "x\ny\nx", "/dir/b.txt": "x"})
        assert lines_of(await backend.agrep("x", "/dir/a.txt")) == [("/dir/a.txt", 1), ("/dir/a.txt", 3)]
        assert lines_of(await backend.agrep("x", "/dir/a.txt", "*.txt")) == [("/dir/a.txt", 1), ("/dir/a.txt", 3)]
        assert lines_of(await backend.agrep("x", "/dir/a.txt", "*.py")) == []

    async def test_grep_of_a_missing_path_is_file_not_found(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "x"})
        for path in ("/none", "/dir/none", "/dir/a.txt/beneath"):
            assert_failed(await backend.agrep("x", path), ErrorCode.FILE_NOT_FOUND)

    async def test_paths_with_the_same_prefix_are_not_searched(self, backend: BackendProtocol) -> None:
        await self.put({"/pre/a": "x", "/prefix/b": "x", "/pre.txt": "x"})
        assert lines_of(await backend.agrep("x", "/pre")) == [("/pre/a", 1)]

    async def test_binary_files_that_match_count_as_skipped(self, backend: BackendProtocol) -> None:
        binary = {"/nul.txt": b"needle\x00", "/latin.txt": "é needle".encode("latin-1"), "/name.png": b"needle"}
        await self.put({**binary, "/other.bin": b"\x00", "/text.txt": "needle", "/logo.svg": "needle"})
        for options in _WAYS:
            result = assert_ok(await backend.agrep("needle", **options))
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
        result = assert_ok(await backend.agrep("needle"))
        assert (lines_of(result), result.skipped) == ([("/small.txt", 1)], 1)
