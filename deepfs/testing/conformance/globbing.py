"""`glob`: one table of patterns for every backend."""

from collections.abc import Iterable, Mapping
from typing import Final

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from deepfs.testing.expect import failed, paths_of, succeeded
from deepfs.testing.suite import BackendSuite

__all__ = ["GLOBS", "INVALID_GLOBS", "TREE", "GlobConformance"]

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
            (pattern, path): paths_of(succeeded(await backend.aglob(pattern, path)).matches) for pattern, path in cases
        }
        assert found == {case: sorted(expected) for case, expected in cases.items()}

    async def test_matches_are_files_with_their_size(self, backend: BackendProtocol) -> None:
        await self.put({"/dir.py/a.py": "héllo", "/b.py": "x"})
        result = succeeded(await backend.aglob("*.py"))
        assert paths_of(result.matches) == ["/b.py", "/dir.py/a.py"]
        assert [(info.is_dir or False, info.size) for info in result.matches or ()] == [(False, 1), (False, 6)]
        assert result.truncated is False

    async def test_matches_are_sorted_by_path(self, backend: BackendProtocol) -> None:
        paths = ["/s/a-b/x", "/s/a.x", "/s/a/x", "/s/a0", "/s/B/x", "/s/Z", "/s/_", "/s/é", "/s/\uff5e", "/s/😀"]
        await self.put(dict.fromkeys(paths, "x"))
        assert paths_of(succeeded(await backend.aglob("*", "/s")).matches) == sorted(paths)

    async def test_a_refused_pattern_is_invalid_pattern(self, backend: BackendProtocol) -> None:
        await self.put(dict.fromkeys(TREE, "x"))
        for pattern in INVALID_GLOBS:
            failed(await backend.aglob(pattern), ErrorCode.INVALID_PATTERN)
            failed(await backend.aglob(pattern, "/src"), ErrorCode.INVALID_PATTERN)
            failed(await backend.agrep("x", glob=pattern), ErrorCode.INVALID_PATTERN)

    async def test_a_pattern_with_many_stars_is_fast(self, backend: BackendProtocol) -> None:
        await self.put({"/" + "a" * 200: "x"})
        assert succeeded(await backend.aglob("*a" * 50 + "b")).matches == []

    async def test_glob_of_a_missing_path_is_file_not_found(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "x"})
        failed(await backend.aglob("*", "/none"), ErrorCode.FILE_NOT_FOUND)
        failed(await backend.aglob("*", "/dir/none"), ErrorCode.FILE_NOT_FOUND)

    async def test_glob_under_a_file_is_not_a_directory(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "x"})
        failed(await backend.aglob("*", "/dir/a.txt"), ErrorCode.NOT_A_DIRECTORY)
