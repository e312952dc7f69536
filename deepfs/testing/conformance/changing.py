"""`write`, `edit`, `delete`, `move` and `copy`."""

from collections.abc import Awaitable, Callable
from typing import Final

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from deepfs.testing.conformance.reading import TEXTS
from deepfs.testing.suite import BackendSuite, assert_failed, assert_ok, list_paths, paths_in
from deepfs.text.lines import version
from deepfs.types import EditResult, WriteResult

# --- write ---

NOT_TEXT: Final = ("\0", "a\0b", "text\n\0", "\ud800", "a\udfffb", "\udc80", "\ud83d and \ude00")
"""Strings that no text file can contain: with NUL or lone surrogates."""


class WritingConformance(BackendSuite):
    """A write only creates, unless it is asked to replace."""

    async def test_a_write_stores_the_text_as_utf_8(self, backend: BackendProtocol) -> None:
        for number, text in enumerate(self.some((*TEXTS, "x" * 300_000))):
            path = f"/texts/{number}.txt"
            written = assert_ok(await backend.awrite(path, text))
            assert written.path == path
            assert await self.raw_peek(path) == text.encode(), repr(text[:80])

    async def test_a_write_creates_the_directories_above(self, backend: BackendProtocol) -> None:
        assert_ok(await backend.awrite("/new/and/deep/a.txt", "a"))
        assert await list_paths(backend, "/new") == ["/new/and/"]
        assert await list_paths(backend, "/new/and") == ["/new/and/deep/"]

    async def test_a_write_does_not_replace(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "kept"})
        result = assert_failed(await backend.awrite("/a.txt", "new"), ErrorCode.ALREADY_EXISTS)
        assert "already exists" in (result.error or "")
        assert await self.raw_peek("/a.txt") == b"kept"

    async def test_a_write_of_the_same_text_does_not_replace(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "kept", "/empty.txt": ""})
        assert_failed(await backend.awrite("/a.txt", "kept"), ErrorCode.ALREADY_EXISTS)
        assert_failed(await backend.awrite("/empty.txt", ""), ErrorCode.ALREADY_EXISTS)

    async def test_overwrite_replaces_or_creates(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "a much longer text than the new one", "/a.bin": b"\x00\x01"})
        for path in ("/a.txt", "/a.bin", "/new.txt"):
            assert_ok(await backend.awrite(path, "new", overwrite=True))
            assert await self.raw_peek(path) == b"new"

    async def test_if_match_replaces_that_version(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one"})
        version = assert_ok(await backend.aread("/a.txt")).version
        assert_ok(await backend.awrite("/a.txt", "two", if_match=version))
        assert await self.raw_peek("/a.txt") == b"two"

    async def test_if_match_of_another_version_is_a_conflict(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one"})
        version = assert_ok(await backend.aread("/a.txt")).version
        assert_ok(await backend.aedit("/a.txt", "one", "two"))
        for overwrite in (False, True):
            result = await backend.awrite("/a.txt", "three", overwrite=overwrite, if_match=version)
            assert_failed(result, ErrorCode.CONFLICT)
        assert await self.raw_peek("/a.txt") == b"two"

    async def test_if_match_of_a_missing_file_is_a_conflict(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one"})
        version = assert_ok(await backend.aread("/a.txt")).version
        assert_ok(await backend.adelete("/a.txt"))
        assert_failed(await backend.awrite("/a.txt", "two", overwrite=True, if_match=version), ErrorCode.CONFLICT)
        assert_failed(await backend.awrite("/never.txt", "two", if_match="no version"), ErrorCode.CONFLICT)
        assert await self.raw_peek("/a.txt") is None
        assert await self.raw_peek("/never.txt") is None

    async def test_a_version_of_a_binary_file_can_be_matched(self, backend: BackendProtocol) -> None:
        await self.put({"/a.bin": b"\x00one"})
        version = assert_ok(await backend.aread("/a.bin")).version
        assert_ok(await backend.awrite("/a.bin", "two", if_match=version))
        assert await self.raw_peek("/a.bin") == b"two"

    async def test_a_write_beneath_a_file_is_refused(self, backend: BackendProtocol) -> None:
        await self.put({"/file": "kept", "/dir/file": "kept"})
        for path in ("/file/beneath", "/file/far/beneath", "/dir/file/beneath"):
            for overwrite in (False, True):
                assert_failed(await backend.awrite(path, "x", overwrite=overwrite), ErrorCode.NOT_A_DIRECTORY)
            assert await self.raw_peek(path) is None
        assert await self.raw_peek("/file") == b"kept"
        assert await list_paths(backend, "/dir") == ["/dir/file"]

    async def test_a_write_to_the_path_of_a_directory_is_refused(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/deep/file": "kept"})
        for path in ("/dir", "/dir/deep", "/dir/deep/", "/"):
            for overwrite in (False, True):
                assert_failed(await backend.awrite(path, "x", overwrite=overwrite), ErrorCode.IS_DIRECTORY)
        assert await list_paths(backend, "/dir/deep") == ["/dir/deep/file"]
        assert await self.raw_peek("/dir/deep/file") == b"kept"

    async def test_content_that_is_not_text_is_refused(self, backend: BackendProtocol) -> None:
        await self.put({"/kept.txt": "kept"})
        for content in NOT_TEXT:
            assert_failed(await backend.awrite("/new/file.txt", content), ErrorCode.INVALID_CONTENT)
            assert_failed(await backend.awrite("/kept.txt", content, overwrite=True), ErrorCode.INVALID_CONTENT)
        assert await self.raw_peek("/new/file.txt") is None
        assert await self.raw_peek("/kept.txt") == b"kept"
        assert_failed(await backend.als("/new"), ErrorCode.FILE_NOT_FOUND)

    async def test_a_name_can_be_used_again_as_another_kind(self, backend: BackendProtocol) -> None:
        assert_ok(await backend.awrite("/name", "file"))
        assert_ok(await backend.adelete("/name"))
        assert_ok(await backend.awrite("/name/file", "in a directory"))
        assert_ok(await backend.adelete("/name"))
        assert_ok(await backend.awrite("/name", "file again"))
        assert await self.raw_peek("/name") == b"file again"


# --- edit ---

_EDITS: Final[tuple[tuple[bytes, str, str, bytes], ...]] = (
    (b"one two three", "two", "2", b"one 2 three"),
    (b"one\ntwo\nthree\n", "one\ntwo", "1\n2", b"1\n2\nthree\n"),
    (b"no end", "end", "END", b"no END"),
    (b"end\n", "end\n", "end", b"end"),
    (b"all of it", "all of it", "", b""),
    (b"a.b a+b", "a.b", r"\1$0\n", rb"\1$0\n a+b"),
    (b"tab\there\x0cform\x0bfeed\n", "here", "there", b"tab\tthere\x0cform\x0bfeed\n"),
    ("é\u2028ü\u2029😀 x".encode(), "x", "y", "é\u2028ü\u2029😀 y".encode()),
    ("日本語 日本".encode(), "本語", "", "日 日本".encode()),
    (b"lone\rcr\nx\n", "x", "y", b"lone\rcr\ny\n"),
    (b"trailing  \t\n\n\nx", "x", "y", b"trailing  \t\n\n\ny"),
    (b"\xef\xbb\xbfname = 1\n", "name", "title", b"\xef\xbb\xbftitle = 1\n"),
    (b"\xef\xbb\xbfone\r\ntwo", "one\ntwo", "1\n2", b"\xef\xbb\xbf1\r\n2"),
)
"""The content, the old text, the new text, and the content after the edit."""

_CRLF_EDITS: Final[tuple[tuple[bytes, str, str, bytes], ...]] = (
    (b"one\r\ntwo\r\nthree\r\n", "two", "2", b"one\r\n2\r\nthree\r\n"),
    (b"one\r\ntwo\r\nthree\r\n", "one\ntwo", "1\n2", b"1\r\n2\r\nthree\r\n"),
    (b"one\r\ntwo\r\nthree\r\n", "one\r\ntwo", "1\r\n2", b"1\r\n2\r\nthree\r\n"),
    (b"one\r\ntwo\r\n", "two", "2\nand a half", b"one\r\n2\r\nand a half\r\n"),
    (b"one\r\ntwo\r\n", "two\n", "", b"one\r\n"),
    (b"one\r\n\r\ntwo", "\n\n", "\n", b"one\r\ntwo"),
    (b"a\r\nb\nc\r\nd", "b", "B", b"a\r\nB\nc\r\nd"),
    (b"a\r\nb\nc\r\nd", "c", "C", b"a\r\nb\nC\r\nd"),
)


class EditingConformance(BackendSuite):
    """Every byte outside the replacement stays."""

    async def _check_refused(self, result: EditResult, code: ErrorCode, path: str, content: bytes) -> str:
        """Check that an edit failed with `code` and changed nothing, and return the error text."""
        assert_failed(result, code)
        assert await self.raw_peek(path) == content, "a refused edit changes nothing"
        return result.error or ""

    async def test_only_the_replacement_changes(self, backend: BackendProtocol) -> None:
        await self._check_edits(backend, _EDITS)

    async def test_line_ends_of_a_crlf_file_stay_and_are_matched(self, backend: BackendProtocol) -> None:
        await self._check_edits(backend, _CRLF_EDITS)

    async def _check_edits(self, backend: BackendProtocol, edits: tuple[tuple[bytes, str, str, bytes], ...]) -> None:
        for number, (content, old, new, after) in enumerate(self.some(edits)):
            path = f"/edits/{number}.txt"
            await self.raw_put(path, content)
            edited = assert_ok(await backend.aedit(path, old, new))
            assert (edited.path, edited.occurrences) == (path, 1)
            assert await self.raw_peek(path) == after, f"{content!r}: {old!r} → {new!r}"

    async def test_replace_all_replaces_every_place(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "x y x\r\nx", "/overlap.txt": "aaaaa", "/once.txt": "x"})
        assert assert_ok(await backend.aedit("/a.txt", "x", "zz", True)).occurrences == 3
        assert await self.raw_peek("/a.txt") == b"zz y zz\r\nzz"
        assert assert_ok(await backend.aedit("/overlap.txt", "aa", "b", replace_all=True)).occurrences == 2
        assert await self.raw_peek("/overlap.txt") == b"bba"
        assert assert_ok(await backend.aedit("/once.txt", "x", "y", True)).occurrences == 1

    async def test_replace_all_may_bring_the_old_text_back(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "ab"})
        assert assert_ok(await backend.aedit("/a.txt", "a", "aba", True)).occurrences == 1
        assert await self.raw_peek("/a.txt") == b"abab"

    async def test_several_places_are_ambiguous(self, backend: BackendProtocol) -> None:
        content = b"x y x\nx x\n"
        await self.raw_put("/a.txt", content)
        result = await backend.aedit("/a.txt", "x", "z")
        error = await self._check_refused(result, ErrorCode.AMBIGUOUS_MATCH, "/a.txt", content)
        assert "multiple" in error
        assert "4" in error, f"the error tells how many places there are: {error}"

    async def test_places_that_overlap_are_ambiguous(self, backend: BackendProtocol) -> None:
        await self.raw_put("/a.txt", b"aaa")
        result = await backend.aedit("/a.txt", "aa", "b")
        error = await self._check_refused(result, ErrorCode.AMBIGUOUS_MATCH, "/a.txt", b"aaa")
        assert "2" in error, f"the error tells how many places there are: {error}"

    async def test_a_missing_old_text_is_no_match(self, backend: BackendProtocol) -> None:
        await self.raw_put("/a.txt", b"one")
        for replace_all in (False, True):
            for old in ("two", "One", "one\n", "one ", "o.e", "\ufeffone"):
                result = await backend.aedit("/a.txt", old, "x", replace_all)
                assert "not found" in await self._check_refused(result, ErrorCode.NO_MATCH, "/a.txt", b"one")

    async def test_no_match_in_an_empty_file(self, backend: BackendProtocol) -> None:
        await self.raw_put("/empty.txt", b"")
        await self._check_refused(await backend.aedit("/empty.txt", "x", "y"), ErrorCode.NO_MATCH, "/empty.txt", b"")

    async def test_no_match_names_the_nearest_line(self, backend: BackendProtocol) -> None:
        content = b"import os\n\n\ndef main():\n\treturn compute(1)\n"
        await self.raw_put("/a.py", content)
        result = await backend.aedit("/a.py", "    return compute(1)", "    return 2")
        error = await self._check_refused(result, ErrorCode.NO_MATCH, "/a.py", content)
        assert "line 5" in error
        assert "return compute(1)" in error

    async def test_an_empty_old_text_is_refused(self, backend: BackendProtocol) -> None:
        for path, content in (("/a.txt", b"one"), ("/empty.txt", b"")):
            await self.raw_put(path, content)
            for replace_all in (False, True):
                result = await backend.aedit(path, "", "x", replace_all)
                await self._check_refused(result, ErrorCode.INVALID_CONTENT, path, content)

    async def test_identical_texts_are_refused(self, backend: BackendProtocol) -> None:
        await self.raw_put("/a.txt", b"one")
        result = await backend.aedit("/a.txt", "one", "one")
        await self._check_refused(result, ErrorCode.INVALID_CONTENT, "/a.txt", b"one")

    async def test_a_new_text_with_nul_or_surrogates_is_refused(self, backend: BackendProtocol) -> None:
        await self.raw_put("/a.txt", b"one one")
        for new in NOT_TEXT:
            result = await backend.aedit("/a.txt", "one", new, True)
            await self._check_refused(result, ErrorCode.INVALID_CONTENT, "/a.txt", b"one one")

    async def test_an_old_text_with_nul_or_surrogates_never_raises(self, backend: BackendProtocol) -> None:
        await self.raw_put("/a.txt", b"one")
        for old in NOT_TEXT:
            assert_failed(await backend.aedit("/a.txt", old, "x"), ErrorCode.INVALID_CONTENT, ErrorCode.NO_MATCH)
        assert await self.raw_peek("/a.txt") == b"one"

    async def test_binary_is_refused(self, backend: BackendProtocol) -> None:
        contents = {"/by-name.png": b"one", "/nul.txt": b"one\x00", "/latin.txt": "one é".encode("latin-1")}
        await self.put(contents)
        for path, content in contents.items():
            await self._check_refused(await backend.aedit(path, "one", "two"), ErrorCode.BINARY_FILE, path, content)

    async def test_missing_files_and_directories_cannot_be_edited(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "one"})
        missing = assert_failed(await backend.aedit("/none.txt", "one", "two"), ErrorCode.FILE_NOT_FOUND)
        assert missing.error == "Error: File '/none.txt' not found"
        assert_failed(await backend.aedit("/dir/a.txt/beneath", "one", "two"), ErrorCode.FILE_NOT_FOUND)
        assert_failed(await backend.aedit("/dir", "one", "two"), ErrorCode.IS_DIRECTORY)
        assert_failed(await backend.aedit("/", "one", "two"), ErrorCode.IS_DIRECTORY)
        assert await self.raw_peek("/none.txt") is None

    async def test_if_match_edits_that_version_only(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one two"})
        version = assert_ok(await backend.aread("/a.txt")).version
        assert_ok(await backend.aedit("/a.txt", "one", "1", if_match=version))
        result = await backend.aedit("/a.txt", "two", "2", if_match=version)
        await self._check_refused(result, ErrorCode.CONFLICT, "/a.txt", b"1 two")

    async def test_edits_follow_one_another(self, backend: BackendProtocol) -> None:
        assert_ok(await backend.awrite("/a.txt", "0"))
        for number in range(10):
            assert_ok(await backend.aedit("/a.txt", str(number), str(number + 1)))
        assert await self.raw_peek("/a.txt") == b"10"


# --- delete ---


class DeletingConformance(BackendSuite):
    """Deleted paths are gone; all others stay."""

    async def test_a_file_is_deleted(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "a", "/dir/b.txt": "b", "/dir/raw.bin": b"\x00"})
        for path in ("/dir/a.txt", "/dir/raw.bin"):
            assert assert_ok(await backend.adelete(path)).path == path
            assert await self.raw_peek(path) is None
        assert await list_paths(backend, "/dir") == ["/dir/b.txt"]
        assert_failed(await backend.aread("/dir/a.txt"), ErrorCode.FILE_NOT_FOUND)

    async def test_a_directory_is_deleted_with_all_under_it(self, backend: BackendProtocol) -> None:
        inside = ("/dir/a", "/dir/.hidden", "/dir/deep/b", "/dir/deep/.git/c", "/dir/deep/er/d.bin")
        await self.put(dict.fromkeys(inside, b"\x00"))
        assert assert_ok(await backend.adelete("/dir")).path == "/dir"
        assert await self._peek_each(*inside) == [None] * len(inside)
        assert_failed(await backend.als("/dir"), ErrorCode.FILE_NOT_FOUND)
        assert_failed(await backend.als("/dir/deep"), ErrorCode.FILE_NOT_FOUND)

    async def test_paths_with_the_same_prefix_are_not_deleted(self, backend: BackendProtocol) -> None:
        kept = ("/prefix/a", "/pre.txt", "/pre-b/c", "/Pre/d", "/pr/e", "/p_e/f", "/p%/g")
        await self.put({"/pre/x": "x", **dict.fromkeys(kept, "kept")})
        assert_ok(await backend.adelete("/pre"))
        assert await self._peek_each(*kept) == [b"kept"] * len(kept)

    async def test_wildcard_characters_in_a_path_are_literal(self, backend: BackendProtocol) -> None:
        kept = ("/d/abc/x", "/d/a1c", "/d/a%c/x", "/d/a*d")
        await self.put({"/d/a_c/x": "x", "/d/a*c": "x", **dict.fromkeys(kept, "kept")})
        for path in ("/d/a_c", "/d/a*c"):
            assert_ok(await backend.adelete(path))
        for path in ("/d/a?c", "/d/*", "/d/a_c"):
            assert_failed(await backend.adelete(path), ErrorCode.FILE_NOT_FOUND)
        assert await self._peek_each(*kept) == [b"kept"] * len(kept)

    async def test_a_missing_path_cannot_be_deleted(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a": "a"})
        for path in ("/none", "/dir/none", "/dir/a/beneath"):
            assert_failed(await backend.adelete(path), ErrorCode.FILE_NOT_FOUND)
        assert_ok(await backend.adelete("/dir/a"))
        assert_failed(await backend.adelete("/dir/a"), ErrorCode.FILE_NOT_FOUND)

    async def test_a_delete_with_the_current_version_succeeds(self, backend: BackendProtocol) -> None:
        contents = {
            "/dir/a.txt": b"a\r\n",
            "/dir/empty": b"",
            "/dir/raw.bin": b"\x00\xff",
            "/dir/mark": "\ufeffx".encode(),
        }
        await self.put(contents)
        for path, content in contents.items():
            assert assert_ok(await backend.adelete(path, if_match=version(content))).path == path
            assert await self.raw_peek(path) is None
            assert_failed(await backend.adelete(path, if_match=version(content)), ErrorCode.FILE_NOT_FOUND)

    async def test_a_delete_with_the_version_from_a_read_succeeds(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one\ntwo\n"})
        read = assert_ok(await backend.aread("/a.txt", 0, 1))
        assert assert_ok(await backend.adelete("/a.txt", if_match=read.version)).path == "/a.txt"
        assert await self.raw_peek("/a.txt") is None

    async def test_a_delete_with_another_version_is_a_conflict(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one"})
        read = assert_ok(await backend.aread("/a.txt"))
        assert_ok(await backend.aedit("/a.txt", "one", "two"))
        for stale in (read.version, version(b"one"), "", "no version", "f" * 64):
            assert_failed(await backend.adelete("/a.txt", if_match=stale), ErrorCode.CONFLICT)
        assert await self.raw_peek("/a.txt") == b"two"
        assert_ok(await backend.adelete("/a.txt", if_match=version(b"two")))

    async def test_a_directory_has_no_version(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a": "a"})
        for named in ("", version(b"a")):
            assert_failed(await backend.adelete("/dir", if_match=named), ErrorCode.IS_DIRECTORY)
        assert await self.raw_peek("/dir/a") == b"a"

    async def test_the_root_cannot_be_deleted(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a": "a"})
        for path in ("/", "", "//", "/."):
            assert_failed(await backend.adelete(path), ErrorCode.PERMISSION_DENIED)
        assert await self.raw_peek("/dir/a") == b"a"
        assert "/dir/" in paths_in(await backend.als("/"))


# --- move and copy ---

_TREE: Final = {
    "/src/a.txt": b"one\r\n",
    "/src/.hidden": b"h",
    "/src/deep/b.bin": b"\x00\xff",
    "/src/deep/er/c.txt": "\ufeffé".encode(),
}


def _both(backend: BackendProtocol) -> list[Callable[..., Awaitable[WriteResult]]]:
    return [backend.amove, backend.acopy]


class MovingConformance(BackendSuite):
    """A move or a copy is complete, or changes nothing."""

    async def test_a_file_is_moved(self, backend: BackendProtocol) -> None:
        for number, content in enumerate(_TREE.values()):
            src, dst = f"/from/{number}", f"/to/new/{number}"
            await self.raw_put(src, content)
            assert assert_ok(await backend.amove(src, dst)).path == dst
            assert await self._peek_each(src, dst) == [None, content]

    async def test_a_file_is_copied(self, backend: BackendProtocol) -> None:
        for number, content in enumerate(_TREE.values()):
            src, dst = f"/from/{number}", f"/to/new/{number}"
            await self.raw_put(src, content)
            assert assert_ok(await backend.acopy(src, dst)).path == dst
            assert await self._peek_each(src, dst) == [content, content]

    async def test_a_copy_is_a_file_of_its_own(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one"})
        assert_ok(await backend.acopy("/a.txt", "/b.txt"))
        assert_ok(await backend.aedit("/b.txt", "one", "two"))
        assert await self._peek_each("/a.txt", "/b.txt") == [b"one", b"two"]

    async def test_a_directory_is_moved_with_all_under_it(self, backend: BackendProtocol) -> None:
        await self.put({**_TREE, "/srcs/kept": "kept"})
        assert assert_ok(await backend.amove("/src", "/new/place")).path == "/new/place"
        moved = [path.replace("/src", "/new/place", 1) for path in _TREE]
        assert await self._peek_each(*moved) == list(_TREE.values())
        assert await self._peek_each(*_TREE, "/srcs/kept") == [None] * len(_TREE) + [b"kept"]
        assert_failed(await backend.als("/src"), ErrorCode.FILE_NOT_FOUND)

    async def test_a_directory_is_copied_with_all_under_it(self, backend: BackendProtocol) -> None:
        await self.put({**_TREE, "/srcs/kept": "kept"})
        assert assert_ok(await backend.acopy("/src/", "/src-copy")).path == "/src-copy"
        assert await self._peek_each(*_TREE) == list(_TREE.values())
        assert await self._peek_each(*(path.replace("/src", "/src-copy", 1) for path in _TREE)) == list(_TREE.values())
        assert await list_paths(backend, "/src-copy") == ["/src-copy/.hidden", "/src-copy/a.txt", "/src-copy/deep/"]

    async def test_a_directory_of_many_files_is_copied_and_moved(self, backend: BackendProtocol) -> None:
        files = {f"/many/{number % 7}/{number}.txt": str(number).encode() for number in range(150)}
        await self.put(files)
        assert_ok(await backend.acopy("/many", "/copy"))
        assert_ok(await backend.amove("/many", "/moved"))
        for place in ("/copy", "/moved"):
            assert await self._peek_each(*(path.replace("/many", place, 1) for path in files)) == list(files.values())
        assert_failed(await backend.als("/many"), ErrorCode.FILE_NOT_FOUND)

    async def test_an_existing_file_is_not_replaced(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "a", "/b.txt": "b", "/dir/c.txt": "c"})
        for transfer in _both(backend):
            result = assert_failed(await transfer("/a.txt", "/b.txt"), ErrorCode.ALREADY_EXISTS)
            assert "already exists" in (result.error or "")
            assert_failed(await transfer("/dir", "/b.txt"), ErrorCode.ALREADY_EXISTS)
        assert await self._peek_each("/a.txt", "/b.txt", "/dir/c.txt") == [b"a", b"b", b"c"]

    async def test_overwrite_replaces_a_file(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "a", "/b.txt": "a longer text", "/c.bin": b"\x00"})
        assert_ok(await backend.acopy("/a.txt", "/b.txt", overwrite=True))
        assert await self._peek_each("/a.txt", "/b.txt") == [b"a", b"a"]
        assert_ok(await backend.amove("/c.bin", "/b.txt", overwrite=True))
        assert await self._peek_each("/c.bin", "/b.txt") == [None, b"\x00"]

    async def test_a_directory_is_never_replaced(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "a", "/dir/b.txt": "b", "/other/c.txt": "c"})
        for transfer in _both(backend):
            for src in ("/a.txt", "/other"):
                assert_failed(await transfer(src, "/dir"), ErrorCode.ALREADY_EXISTS)
                assert_failed(await transfer(src, "/dir", overwrite=True), ErrorCode.IS_DIRECTORY)
        assert await self._peek_each("/a.txt", "/dir/b.txt", "/other/c.txt") == [b"a", b"b", b"c"]

    async def test_a_directory_does_not_replace_a_file(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "a", "/dir/b.txt": "b"})
        for transfer in _both(backend):
            assert_failed(await transfer("/dir", "/a.txt", overwrite=True), ErrorCode.NOT_A_DIRECTORY)
        assert await self._peek_each("/a.txt", "/dir/b.txt") == [b"a", b"b"]

    async def test_a_directory_does_not_go_into_itself(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/deep/a.txt": "a"})
        for transfer in _both(backend):
            for dst in ("/dir/new", "/dir/deep/new", "/dir/new/far"):
                assert_failed(await transfer("/dir", dst), ErrorCode.INVALID_PATH)
            assert_failed(await transfer("/dir", "/dir/new", overwrite=True), ErrorCode.INVALID_PATH)
        assert await self.raw_peek("/dir/deep/a.txt") == b"a"
        assert await list_paths(backend, "/dir") == ["/dir/deep/"]

    async def test_a_destination_with_the_same_prefix_is_not_inside_the_source(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "a"})
        assert_ok(await backend.acopy("/dir", "/dir2"))
        assert_ok(await backend.amove("/dir", "/directory"))
        assert await self._peek_each("/dir/a.txt", "/dir2/a.txt", "/directory/a.txt") == [None, b"a", b"a"]

    async def test_the_root_is_neither_source_nor_destination(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "a"})
        for transfer in _both(backend):
            assert_failed(await transfer("/", "/new"), ErrorCode.INVALID_PATH, ErrorCode.PERMISSION_DENIED)
            assert_failed(await transfer("/dir", "/"), ErrorCode.ALREADY_EXISTS, ErrorCode.IS_DIRECTORY)
        assert await self.raw_peek("/dir/a.txt") == b"a"

    async def test_a_move_onto_itself_changes_nothing(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "a"})
        for path, spelled in (("/dir/a.txt", "//dir/./a.txt"), ("/dir", "dir/")):
            for overwrite in (False, True):
                assert assert_ok(await backend.amove(path, spelled, overwrite=overwrite)).path == path
                assert await self.raw_peek("/dir/a.txt") == b"a"
        assert_failed(await backend.amove("/none", "/none"), ErrorCode.FILE_NOT_FOUND)

    async def test_a_copy_onto_itself_already_exists(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "a"})
        for path in ("/dir/a.txt", "/dir"):
            assert_failed(await backend.acopy(path, path), ErrorCode.ALREADY_EXISTS)
            await backend.acopy(path, path, overwrite=True)
            assert await self.raw_peek("/dir/a.txt") == b"a"
        assert_failed(await backend.acopy("/none", "/none"), ErrorCode.FILE_NOT_FOUND)

    async def test_a_missing_path_cannot_be_moved_or_copied(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "a", "/dir/b.txt": "b"})
        for transfer in _both(backend):
            for src in ("/none", "/dir/none", "/a.txt/beneath"):
                for overwrite in (False, True):
                    result = assert_failed(await transfer(src, "/new", overwrite=overwrite), ErrorCode.FILE_NOT_FOUND)
                    assert f"'{src}'" in (result.error or ""), "the error names the path that is missing"
        assert await self._peek_each("/a.txt", "/new") == [b"a", None]

    async def test_a_destination_beneath_a_file_is_refused(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "a", "/file": "f", "/dir/b.txt": "b"})
        for transfer in _both(backend):
            for src in ("/a.txt", "/dir"):
                for dst in ("/file/beneath", "/file/far/beneath"):
                    assert_failed(await transfer(src, dst), ErrorCode.NOT_A_DIRECTORY)
                    assert_failed(await transfer(src, dst, overwrite=True), ErrorCode.NOT_A_DIRECTORY)
        assert await self._peek_each("/a.txt", "/file", "/dir/b.txt") == [b"a", b"f", b"b"]

    async def test_a_file_does_not_go_beneath_itself(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "a"})
        for transfer in _both(backend):
            assert_failed(await transfer("/a.txt", "/a.txt/b"), ErrorCode.INVALID_PATH, ErrorCode.NOT_A_DIRECTORY)
        assert await self.raw_peek("/a.txt") == b"a"

    async def test_a_moved_file_can_be_edited_and_its_old_path_reused(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one"})
        assert_ok(await backend.amove("/a.txt", "/b.txt"))
        assert_ok(await backend.aedit("/b.txt", "one", "two"))
        assert_ok(await backend.awrite("/a.txt", "new"))
        assert await self._peek_each("/a.txt", "/b.txt") == [b"new", b"two"]
