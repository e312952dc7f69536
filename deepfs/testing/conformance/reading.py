"""Paths, listings and reads: which paths are valid, what `ls` shows, and the lines, versions and times of reads."""

import re
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from deepfs.testing.model import bare, lines_of
from deepfs.testing.suite import (
    BackendSuite,
    assert_failed,
    assert_ok,
    content_of,
    list_paths,
    only,
    paths_in,
    paths_of,
    text_of,
)
from deepfs.types import FileDataV2, ReadRawResult, ReadResult, Result

# --- paths ---

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


async def _outcome(call: Call, path: str) -> str:
    """The error code of an operation, or the exception that it should not have raised."""
    try:
        return str((await call(path)).code)
    except Exception as error:
        return f"raised {error!r}"


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

    async def test_spellings_of_one_path_read_one_file(self, backend: BackendProtocol) -> None:
        await self.put({"/a/b.txt": "text"})
        for path in self.some(("/a/b.txt", "a/b.txt", "//a//b.txt", "/./a/./b.txt", "./a/b.txt", "/a///b.txt")):
            assert await text_of(backend, path) == "text", path

    async def test_case_and_unicode_forms_matter(self, backend: BackendProtocol) -> None:
        await self.put({"/case/File.txt": "upper", "/form/caf\u00e9": "composed"})
        assert_failed(await backend.aread("/case/file.txt"), ErrorCode.FILE_NOT_FOUND)
        assert_failed(await backend.aread("/form/cafe\u0301"), ErrorCode.FILE_NOT_FOUND)


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

    async def test_results_have_the_normalised_path(self, backend: BackendProtocol) -> None:
        assert assert_ok(await backend.awrite("//a/./b.txt", "text")).path == "/a/b.txt"
        assert await self.raw_peek("/a/b.txt") == b"text"
        assert assert_ok(await backend.aedit("a//b.txt", "text", "next")).path == "/a/b.txt"
        assert assert_ok(await backend.acopy("a/b.txt", "/./c.txt")).path == "/c.txt"
        assert assert_ok(await backend.amove("c.txt", "//d.txt")).path == "/d.txt"
        assert assert_ok(await backend.adelete("d.txt")).path == "/d.txt"
        assert await list_paths(backend, "a/") == ["/a/b.txt"]

    async def test_names_that_differ_in_case_or_unicode_form_are_two_files(self, backend: BackendProtocol) -> None:
        await self.put({"/case/File.txt": "upper", "/form/caf\u00e9": "composed"})
        assert_ok(await backend.awrite("/case/file.txt", "lower"))
        assert_ok(await backend.awrite("/form/cafe\u0301", "decomposed"))
        assert await self._peek_each("/case/File.txt", "/form/caf\u00e9") == [b"upper", b"composed"]


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


# --- lines ---

TEXTS: Final = (
    "",
    "\n",
    "\n\n",
    "one",
    "one\n",
    "one\ntwo",
    "one\ntwo\n",
    "one\n\nthree\n\n",
    "one\r\ntwo\r\n",
    "one\r\ntwo",
    "one\r\ntwo\nthree\r\nfour",
    "lone\rcarriage\rreturn\nnext",
    "carriage return at the end\r",
    "\r\n\r\n",
    "form\x0cfeed\nvertical\x0btab\nfile\x1cseparator\n",
    "line\u2028separator\nparagraph\u2029separator\nnext\x85line\n",
    "héllo\nwörld 😀\n日本語",
    "\ufeffwith a mark\nsecond\n",
    "\ufeff",
    "trailing space \n\ttab\n",
    "\n".join(str(number) for number in range(30)),
)
"""Texts that are easily split into lines in the wrong places."""


async def _windows(backend: BackendProtocol, path: str, limit: int) -> list[str]:
    """Read a file by windows of `limit` lines, check the line numbers of each, and return their texts."""
    windows: list[str] = []
    offset: int | None = 0
    while offset is not None:
        window = assert_ok(await backend.aread(path, offset, limit))
        text = content_of(window)
        count = len(lines_of("x" + text)) if text else 0
        if count:
            assert (window.start_line, window.end_line) == (offset + 1, offset + count)
            assert count == limit or window.next_offset is None, "a window is full, or the last"
        assert window.next_offset is None or window.next_offset == offset + count, "next_offset follows the window"
        windows.append(text)
        offset = window.next_offset
    return windows


class LineConformance(BackendSuite):
    """`read` and `grep` split a text into the same lines."""

    async def _store_texts(self) -> Mapping[str, str]:
        texts = {f"/lines/{number}.txt": text for number, text in self.some(enumerate(TEXTS))}
        await self.put(texts)
        return texts

    async def test_reading_line_by_line_shows_each_line(self, backend: BackendProtocol) -> None:
        for path, text in (await self._store_texts()).items():
            assert await _windows(backend, path, 1) == (lines_of(text) or [""]), repr(text)

    async def test_following_next_offset_reproduces_the_file(self, backend: BackendProtocol) -> None:
        for path, text in (await self._store_texts()).items():
            for limit in (2, 3, 7, 2000):  # 1 has a stricter test of its own.
                windows = await _windows(backend, path, limit)
                assert "".join(windows) == text.removeprefix("\ufeff"), (repr(text), limit)

    async def test_the_last_window_has_the_number_of_lines(self, backend: BackendProtocol) -> None:
        for path, text in (await self._store_texts()).items():
            lines = lines_of(text)
            read = assert_ok(await backend.aread(path, max(len(lines) - 1, 0), 1))
            assert (read.next_offset, read.total_lines or 0) == (None, len(lines)), repr(text)

    async def test_grep_numbers_lines_as_read_shows_them(self, backend: BackendProtocol) -> None:
        texts = await self._store_texts()
        for regex in (False, True):
            for path, text in texts.items():
                found = assert_ok(await backend.agrep("", path, regex=regex)).matches or []
                lines = lines_of(text)
                plain = [*enumerate(map(bare, lines), 1)]
                assert [(match.line, match.text) for match in found] == plain, (repr(text), regex)

    async def test_the_error_of_an_offset_past_the_end_has_the_number_of_lines(self, backend: BackendProtocol) -> None:
        await self.put({"/seven.txt": "1\n2\n3\n4\n5\n6\n7\n", "/three.txt": "1\n2\n3"})
        for path, offset, length in (("/seven.txt", 7, "7"), ("/seven.txt", 100, "7"), ("/three.txt", 3, "3")):
            error = assert_failed(await backend.aread(path, offset), ErrorCode.INVALID_CONTENT).error or ""
            assert length in error.replace(str(offset), "", 1), f"the error tells the {length} lines: {error}"

    async def test_an_empty_file_is_empty_at_any_offset(self, backend: BackendProtocol) -> None:
        await self.put({"/empty.txt": ""})
        for offset in (0, 5):
            read = assert_ok(await backend.aread("/empty.txt", offset))
            assert (content_of(read), read.start_line, read.next_offset) == ("", None, None)


# --- reading ---

_MEGABYTE: Final = 1024 * 1024
_TIMESTAMP: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(\+00:00|Z)")

_MIME_TYPES: Final = {
    "a.png": "image/png",
    "a.jpg": "image/jpeg",
    "a.JPEG": "image/jpeg",
    "a.gif": "image/gif",
    "a.webp": "image/webp",
    "a.heic": "image/heic",
    "a.mp3": "audio/mpeg",
    "a.wav": "audio/wav",
    "a.flac": "audio/flac",
    "a.mp4": "video/mp4",
    "a.mov": "video/quicktime",
    "a.avi": "video/x-msvideo",
    "a.pdf": "application/pdf",
}


def _data(result: ReadResult | ReadRawResult) -> FileDataV2:
    """The file of a successful read."""
    data = assert_ok(result).file_data if isinstance(result, ReadResult) else assert_ok(result).data
    assert isinstance(data, FileDataV2)
    return data


def _time(stamp: str | None) -> datetime:
    assert stamp is not None, "the timestamp is there"
    assert _TIMESTAMP.fullmatch(stamp), f"{stamp} is not ISO 8601, UTC, with microseconds"
    return datetime.fromisoformat(stamp)


class ReadOnlyReading(BackendSuite):
    """Reads of files that are there."""

    async def test_a_text_is_shown_as_it_is_stored(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one\r\ntwo\n😀\x0c"})
        read = assert_ok(await backend.aread("/a.txt"))
        assert _data(read).encoding == "utf-8"
        assert _data(read).content == "one\r\ntwo\n😀\x0c"
        assert (read.start_line, read.end_line, read.total_lines, read.next_offset) == (1, 3, 3, None)

    async def test_a_window_has_its_line_numbers(self, backend: BackendProtocol) -> None:
        await self.put({"/ten.txt": "".join(f"line {number}\n" for number in range(1, 11))})
        read = assert_ok(await backend.aread("/ten.txt", 3, 2))
        assert content_of(read) == "line 4\nline 5\n"
        assert (read.start_line, read.end_line, read.next_offset) == (4, 5, 5)
        assert read.total_lines in (10, None)

    async def test_the_default_window_is_2000_lines(self, backend: BackendProtocol) -> None:
        await self.put({"/long.txt": "x\n" * 2001})
        read = assert_ok(await backend.aread("/long.txt"))
        assert (content_of(read), read.end_line, read.next_offset) == ("x\n" * 2000, 2000, 2000)
        rest = assert_ok(await backend.aread("/long.txt", 2000))
        assert (content_of(rest), rest.start_line, rest.end_line, rest.next_offset) == ("x\n", 2001, 2001, None)

    async def test_an_empty_file_is_empty_content(self, backend: BackendProtocol) -> None:
        await self.put({"/empty.txt": ""})
        read = assert_ok(await backend.aread("/empty.txt"))
        assert (_data(read).content, _data(read).encoding, read.next_offset) == ("", "utf-8", None)

    async def test_a_byte_order_mark_is_not_shown(self, backend: BackendProtocol) -> None:
        await self.put({"/mark.txt": "\ufefffirst\nsecond"})
        assert await text_of(backend, "/mark.txt") == "first\nsecond"
        assert content_of(await backend.aread("/mark.txt", 0, 1)) == "first\n"

    async def test_a_missing_file_is_file_not_found(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "a"})
        for path in ("/none.txt", "/dir/none.txt", "/none/none.txt", "/dir/a.txt/beneath"):
            read = assert_failed(await backend.aread(path), ErrorCode.FILE_NOT_FOUND)
            assert read.error == f"Error: File '{path}' not found"
            assert_failed(await backend.aread_raw(path), ErrorCode.FILE_NOT_FOUND)

    async def test_a_directory_cannot_be_read(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "a"})
        for path in ("/dir", "/dir/", "/"):
            assert_failed(await backend.aread(path), ErrorCode.IS_DIRECTORY)
            assert_failed(await backend.aread_raw(path), ErrorCode.IS_DIRECTORY)

    async def test_binary_by_name_comes_as_base64_with_its_type(self, backend: BackendProtocol) -> None:
        content = b"text by its bytes"
        await self.put({f"/media/{name}": content for name in _MIME_TYPES})
        read = {name: _data(await backend.aread(f"/media/{name}")) for name in _MIME_TYPES}
        assert {name: data.mime_type for name, data in read.items()} == _MIME_TYPES
        assert {data.encoding for data in read.values()} == {"base64"}
        assert {b64decode(data.content) for data in read.values()} == {content}

    async def test_binary_by_content_comes_as_base64_with_a_type(self, backend: BackendProtocol) -> None:
        contents = {"/nul.txt": b"one\x00two\n", "/latin.txt": "é\n".encode("latin-1"), "/noname": bytes(range(256))}
        await self.put(contents)
        for path, content in contents.items():
            data = _data(await backend.aread(path))
            assert (data.encoding, b64decode(data.content)) == ("base64", content), path
            assert data.mime_type, f"{path} has a mime_type"

    async def test_binary_comes_whole_for_any_window(self, backend: BackendProtocol) -> None:
        content = b"\x00\n" * 100
        await self.put({"/data.bin": content})
        read = assert_ok(await backend.aread("/data.bin", 50, 1))
        assert b64decode(content_of(read)) == content
        assert read.next_offset is None

    async def test_svg_is_text_with_its_type(self, backend: BackendProtocol) -> None:
        await self.put({"/logo.svg": "<svg/>\n"})
        data = _data(await backend.aread("/logo.svg"))
        assert (data.encoding, data.content, data.mime_type) == ("utf-8", "<svg/>\n", "image/svg+xml")

    async def test_a_binary_over_ten_megabytes_is_too_large(self, backend: BackendProtocol) -> None:
        await self.put({"/large.bin": b"\x00" * (10 * _MEGABYTE + 1)})
        assert_failed(await backend.aread("/large.bin"), ErrorCode.TOO_LARGE)

    async def test_read_raw_is_the_whole_file(self, backend: BackendProtocol) -> None:
        text = "\ufeff" + "line\r\n" * 3000
        await self.put({"/a.txt": text, "/a.bin": b"\x00\xff"})
        raw = _data(await backend.aread_raw("/a.txt"))
        assert (raw.encoding, raw.content) == ("utf-8", text)
        binary = _data(await backend.aread_raw("/a.bin"))
        assert (binary.encoding, b64decode(binary.content)) == ("base64", b"\x00\xff")


class ReadingConformance(ReadOnlyReading):
    """Text comes in windows, binary comes whole, and every read returns the version of the content."""

    async def test_the_version_identifies_the_content(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one\ntwo\n"})
        first = assert_ok(await backend.aread("/a.txt")).version
        assert first
        assert isinstance(first, str)
        assert assert_ok(await backend.aread("/a.txt")).version == first, "it is stable"
        assert assert_ok(await backend.aread("/a.txt", 1, 1)).version == first, "it is that of the whole file"
        assert_ok(await backend.awrite("/a.txt", "one\nTWO\n", overwrite=True))
        assert assert_ok(await backend.aread("/a.txt", 0, 1)).version != first, "it changes with the content"

    async def test_binary_has_a_version_too(self, backend: BackendProtocol) -> None:
        await backend.aupload_files([("/a.bin", b"\x00one")])
        first = assert_ok(await backend.aread("/a.bin")).version
        await backend.aupload_files([("/a.bin", b"\x00two")])
        assert first
        assert assert_ok(await backend.aread("/a.bin")).version not in (first, None)

    async def test_timestamps_are_current_and_utc_with_microseconds(self, backend: BackendProtocol) -> None:
        now = datetime.now(UTC)
        assert_ok(await backend.awrite("/a.txt", "one"))
        raw = _data(await backend.aread_raw("/a.txt"))
        assert abs(_time(raw.modified_at) - now) < timedelta(minutes=5)
        if backend.capabilities.keeps_created_at:
            assert abs(_time(raw.created_at) - now) < timedelta(minutes=5)

    async def test_modified_at_moves_on_and_created_at_stays(self, backend: BackendProtocol) -> None:
        assert_ok(await backend.awrite("/a.txt", "one"))
        first = _data(await backend.aread_raw("/a.txt"))
        assert_ok(await backend.aedit("/a.txt", "one", "two"))
        assert_ok(await backend.awrite("/a.txt", "three", overwrite=True))
        await backend.aupload_files([("/a.txt", b"four")])
        last = _data(await backend.aread_raw("/a.txt"))
        assert _time(last.modified_at) >= _time(first.modified_at)
        if backend.capabilities.keeps_created_at:
            assert last.created_at == first.created_at
