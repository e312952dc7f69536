"""Paths: which are refused, which odd ones are valid, how they are normalised; and what listings show of them."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from deepfs.testing.suite import BackendSuite, assert_failed, assert_ok, list_paths, only, paths_in, paths_of, text_of
from deepfs.types import Result

HOSTILE_PATHS: Final = (
    "..",
    "/..",
    "../kept.txt",
    "/../kept.txt",
    "/a/../kept.txt",
    "/a/..",
    "/a/../../kept.txt",
    "a//../kept.txt",
    "~",
    "~/kept.txt",
    "~root/kept.txt",
    "/a\0b",
    "\0",
    "/a\ud800b",
    "/\udfff",
    "/" + "n" * 256,
    "/" + "é" * 128,
    f"/a/{'n' * 256}/b",
    "C:\\kept.txt",
    "C:/kept.txt",
    "c:\\",
)
"""Paths that no operation accepts: `..` segments, a leading `~`, NUL, lone surrogates, long names, drive letters."""

ODD_NAMES: Final = (
    "notes..txt",
    "..notes",
    "notes..",
    "...",
    "a~",
    "a:b",
    "with space",
    " leading and trailing ",
    "quote'and\"double",
    "percent%20",
    "%",
    "under_score",
    "plus+and&",
    "question?",
    "star*",
    "[brackets]",
    "{braces}",
    "a\\b",
    "hash#",
    "semi;colon",
    "dollar$(id)",
    "-rf",
    "new\nline",
    "tab\there",
    "café",
    "cafe\u0301",
    "日本語",
    "😀",
    "\u202eright-to-left",
    "Name",
    "name",
    "n" * 255,
    "é" * 127 + "e",
)
"""Names that look dangerous but are valid; no two of them are the same."""

Call = Callable[[str], Awaitable[Result]]


def _calls(backend: BackendProtocol) -> Mapping[str, Call]:
    """Each operation that returns a Result, as a function of its path."""
    return {
        "ls": backend.als,
        "read": backend.aread,
        "read_raw": backend.aread_raw,
        "write": lambda path: backend.awrite(path, "text"),
        "write with overwrite": lambda path: backend.awrite(path, "text", overwrite=True),
        "edit": lambda path: backend.aedit(path, "old", "new"),
        "glob": lambda path: backend.aglob("*", path),
        "grep": lambda path: backend.agrep("kept", path),
        "delete": backend.adelete,
        "move from": lambda path: backend.amove(path, "/new.txt"),
        "move to": lambda path: backend.amove("/kept.txt", path),
        "copy from": lambda path: backend.acopy(path, "/new.txt"),
        "copy to": lambda path: backend.acopy("/kept.txt", path),
    }


def _code(value: Any) -> str:
    """The error code of an operation, or the exception that it should not have raised."""
    if isinstance(value, Exception):
        return f"raised {value!r}"
    return str(value.code) if isinstance(value, Result) else str(value.error)


async def _outcome(call: Call, path: str) -> str:
    try:
        return _code(await call(path))
    except Exception as error:
        return _code(error)


class ReadOnlyPaths(BackendSuite):
    """Hostile and odd paths, in reading operations."""

    async def test_the_error_of_a_hostile_path_can_be_printed(self, backend: BackendProtocol) -> None:
        for path in HOSTILE_PATHS:
            assert_failed(await backend.aread(path), ErrorCode.INVALID_PATH)

    async def test_files_with_odd_names_are_found(self, backend: BackendProtocol) -> None:
        await self.put({f"/odd/{name}": "needle" for name in ODD_NAMES})
        visible = sorted(f"/odd/{name}" for name in ODD_NAMES if not name.startswith("."))
        globbed = assert_ok(await backend.aglob("*", "/odd")).matches
        grepped = assert_ok(await backend.agrep("needle", "/odd")).matches
        assert [info.path for info in globbed or ()] == visible
        assert [match.path for match in grepped or ()] == visible


class PathConformance(ReadOnlyPaths):
    """Paths are absolute and POSIX, normalised once."""

    async def test_hostile_paths_are_invalid_path_and_never_raise(self, backend: BackendProtocol) -> None:
        await self.put({"/kept.txt": "kept"})
        outcomes = {
            (name, path): await _outcome(call, path) for name, call in _calls(backend).items() for path in HOSTILE_PATHS
        }
        assert outcomes == dict.fromkeys(outcomes, "invalid_path")

    async def test_a_hostile_path_in_a_batch_is_invalid_path_and_never_raises(self, backend: BackendProtocol) -> None:
        uploads = await backend.aupload_files([(path, b"text") for path in HOSTILE_PATHS])
        downloads = await backend.adownload_files(list(HOSTILE_PATHS))
        assert [(item.path, item.error) for item in uploads] == [(path, "invalid_path") for path in HOSTILE_PATHS]
        assert [(item.path, item.error) for item in downloads] == [(path, "invalid_path") for path in HOSTILE_PATHS]

    async def test_hostile_paths_change_nothing(self, backend: BackendProtocol) -> None:
        await self.put({"/kept.txt": "kept"})
        before = await list_paths(backend, "/")
        for path in HOSTILE_PATHS:
            for call in _calls(backend).values():
                await _outcome(call, path)
        await backend.aupload_files([(path, b"text") for path in HOSTILE_PATHS])
        assert await list_paths(backend, "/") == before
        assert await self.raw_peek("/kept.txt") == b"kept"

    async def test_odd_names_are_valid(self, backend: BackendProtocol) -> None:
        names = self.some(ODD_NAMES)
        for name in names:
            assert_ok(await backend.awrite(f"/odd/{name}", f"in {name}"))
        assert await list_paths(backend, "/odd") == sorted(f"/odd/{name}" for name in names)
        stored = {name: await self.raw_peek(f"/odd/{name}") for name in names}
        assert stored == {name: f"in {name}".encode() for name in names}

    async def test_files_with_odd_names_are_read_edited_and_deleted(self, backend: BackendProtocol) -> None:
        await self.put({f"/odd/{name}": f"in {name}" for name in ODD_NAMES})
        for name in self.some(ODD_NAMES):
            path = f"/odd/{name}"
            assert await text_of(backend, path) == f"in {name}"
            assert_ok(await backend.aedit(path, "in ", "still in "))
            assert await self.raw_peek(path) == f"still in {name}".encode()
            assert_ok(await backend.adelete(path))
            assert await self.raw_peek(path) is None

    async def test_directories_may_have_odd_names(self, backend: BackendProtocol) -> None:
        names = self.some(ODD_NAMES)
        for name in names:
            assert_ok(await backend.awrite(f"/odd/{name}/file.txt", name))
        assert await list_paths(backend, "/odd") == sorted(f"/odd/{name}/" for name in names)
        for name in names:
            assert await list_paths(backend, f"/odd/{name}") == [f"/odd/{name}/file.txt"]
            assert_ok(await backend.adelete(f"/odd/{name}"))
            assert await self.raw_peek(f"/odd/{name}/file.txt") is None

    async def test_a_deep_path_is_valid(self, backend: BackendProtocol) -> None:
        path = "/deep" + "/d" * 40 + "/file.txt"
        assert_ok(await backend.awrite(path, "deep"))
        assert await text_of(backend, path) == "deep"
        assert await list_paths(backend, "/deep" + "/d" * 40) == [path]

    async def test_spellings_of_one_path_name_one_file(self, backend: BackendProtocol) -> None:
        assert_ok(await backend.awrite("a/b.txt", "text"))
        assert await self.raw_peek("/a/b.txt") == b"text"
        for path in self.some(spellings()):
            assert await text_of(backend, path) == "text", path

    async def test_results_have_the_normalised_path(self, backend: BackendProtocol) -> None:
        assert assert_ok(await backend.awrite("//a/./b.txt", "text")).path == "/a/b.txt"
        assert assert_ok(await backend.aedit("a//b.txt", "text", "next")).path == "/a/b.txt"
        assert assert_ok(await backend.acopy("a/b.txt", "/./c.txt")).path == "/c.txt"
        assert assert_ok(await backend.amove("c.txt", "//d.txt")).path == "/d.txt"
        assert assert_ok(await backend.adelete("d.txt")).path == "/d.txt"
        assert await list_paths(backend, "a/") == ["/a/b.txt"]

    async def test_case_matters(self, backend: BackendProtocol) -> None:
        await self.put({"/case/File.txt": "upper"})
        assert_failed(await backend.aread("/case/file.txt"), ErrorCode.FILE_NOT_FOUND)
        assert_ok(await backend.awrite("/case/file.txt", "lower"))
        assert await self.raw_peek("/case/File.txt") == b"upper"

    async def test_unicode_is_not_normalised(self, backend: BackendProtocol) -> None:
        await self.put({"/form/caf\u00e9": "composed"})
        assert_failed(await backend.aread("/form/cafe\u0301"), ErrorCode.FILE_NOT_FOUND)
        assert_ok(await backend.awrite("/form/cafe\u0301", "decomposed"))
        assert await self.raw_peek("/form/caf\u00e9") == b"composed"


def spellings() -> Iterator[str]:
    yield from ("/a/b.txt", "a/b.txt", "//a//b.txt", "/./a/./b.txt", "./a/b.txt", "/a///b.txt")


# --- listing ---

_SORTS_TRICKILY: Final = ("a-b", "a.txt", "a0", "a/x", "B", "Z", "_", "~x", "é", "\uff5e", "😀")
"""The slash of a directory sorts after `-` and `.`, before digits; capitals sort before `_`; the rest by code point."""


class ReadOnlyListing(BackendSuite):
    """`ls` of files that are there."""

    async def test_ls_shows_the_direct_children(self, backend: BackendProtocol) -> None:
        await self.put({"/src/a.py": "a", "/src/deep/b.py": "b", "/src/deep/er/c.py": "c", "/other/d.py": "d"})
        assert await list_paths(backend, "/src") == ["/src/a.py", "/src/deep/"]
        assert await list_paths(backend, "/src/deep") == ["/src/deep/b.py", "/src/deep/er/"]
        assert await list_paths(backend, "/src/deep/er") == ["/src/deep/er/c.py"]

    async def test_the_root_always_exists(self, backend: BackendProtocol) -> None:
        entries = assert_ok(await backend.als("/")).entries
        assert isinstance(entries, list)
        assert not [entry for entry in entries if not entry.is_dir], "an empty backend has no file"

    async def test_ls_is_sorted_by_path(self, backend: BackendProtocol) -> None:
        await self.put({f"/sorted/{name}": name for name in _SORTS_TRICKILY})
        expected = sorted(f"/sorted/{'a/' if name == 'a/x' else name}" for name in _SORTS_TRICKILY)
        assert await list_paths(backend, "/sorted") == expected

    async def test_entries_have_kind_and_size(self, backend: BackendProtocol) -> None:
        await self.put({"/kinds/dir/x": "x", "/kinds/file.txt": "héllo", "/kinds/raw.bin": b"\x00\xff\x00"})
        entries = {entry.path: entry for entry in assert_ok(await backend.als("/kinds")).entries or ()}
        assert entries["/kinds/dir/"].is_dir is True
        assert entries["/kinds/file.txt"].is_dir is False
        assert entries["/kinds/file.txt"].size == 6, "the size is in bytes"
        assert entries["/kinds/raw.bin"].size == 3

    async def test_names_with_a_dot_are_listed(self, backend: BackendProtocol) -> None:
        await self.put({"/dots/.env": "x", "/dots/.git/config": "x", "/dots/seen": "x"})
        assert await list_paths(backend, "/dots") == ["/dots/.env", "/dots/.git/", "/dots/seen"]

    async def test_a_prefix_of_a_name_is_not_a_directory(self, backend: BackendProtocol) -> None:
        await self.put({"/pre/x": "x", "/prefix/y": "y", "/pre.txt": "z"})
        assert await list_paths(backend, "/pre") == ["/pre/x"]
        assert_failed(await backend.als("/pref"), ErrorCode.FILE_NOT_FOUND)

    async def test_a_slash_at_the_end_makes_no_difference(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a": "a"})
        assert await list_paths(backend, "/dir/") == await list_paths(backend, "/dir") == ["/dir/a"]

    async def test_ls_of_a_missing_path_is_file_not_found(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a": "a"})
        assert_failed(await backend.als("/nowhere"), ErrorCode.FILE_NOT_FOUND)
        assert_failed(await backend.als("/dir/nowhere"), ErrorCode.FILE_NOT_FOUND)
        assert_failed(await backend.als("/dir/a/beneath"), ErrorCode.FILE_NOT_FOUND)

    async def test_ls_of_a_file_is_not_a_directory(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a": "a"})
        assert_failed(await backend.als("/dir/a"), ErrorCode.NOT_A_DIRECTORY)


class ListingConformance(ReadOnlyListing):
    """`ls` shows the direct children, sorted by path; directories end in a slash."""

    async def test_ls_of_the_root_shows_its_children(self, backend: BackendProtocol) -> None:
        before = await list_paths(backend, "/")
        await self.put({"/one.txt": "1", "/dir/two.txt": "2"})
        assert await list_paths(backend, "/") == sorted([*before, "/dir/", "/one.txt"])

    async def test_an_empty_file_is_a_file(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/empty": ""})
        entry = only(assert_ok(await backend.als("/dir")).entries)
        assert (entry.path, entry.is_dir, entry.size) == ("/dir/empty", False, 0)
        assert paths_of(assert_ok(await backend.aglob("*", "/dir")).matches) == ["/dir/empty"]
        assert_ok(await backend.amove("/dir/empty", "/new/empty"))
        assert await self.raw_peek("/new/empty") == b""

    async def test_a_directory_exists_while_it_holds_a_file(self, backend: BackendProtocol) -> None:
        assert_ok(await backend.awrite("/up/dir/one", "1"))
        assert_ok(await backend.awrite("/up/dir/two", "2"))
        assert_ok(await backend.adelete("/up/dir/one"))
        assert await list_paths(backend, "/up") == ["/up/dir/"]

    async def test_an_empty_directory_stays_only_if_the_capability_is_declared(self, backend: BackendProtocol) -> None:
        assert_ok(await backend.awrite("/up/keep", "k"))
        assert_ok(await backend.awrite("/up/dir/only", "1"))
        assert_ok(await backend.adelete("/up/dir/only"))
        emptied = await backend.als("/up/dir")
        if backend.capabilities.keeps_empty_directories:
            assert paths_in(emptied) == []
            assert await list_paths(backend, "/up") == ["/up/dir/", "/up/keep"]
        else:
            assert_failed(emptied, ErrorCode.FILE_NOT_FOUND)
            assert await list_paths(backend, "/up") == ["/up/keep"]
