"""`edit`: literal, byte-exact outside the replacement, and refused if the place is ambiguous."""

from typing import Final

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from deepfs.testing.conformance.writing import NOT_TEXT
from deepfs.testing.expect import failed, succeeded
from deepfs.testing.suite import BackendSuite
from deepfs.types import EditResult

__all__ = ["EditingConformance"]

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
        failed(result, code)
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
            edited = succeeded(await backend.aedit(path, old, new))
            assert (edited.path, edited.occurrences) == (path, 1)
            assert await self.raw_peek(path) == after, f"{content!r}: {old!r} → {new!r}"

    async def test_replace_all_replaces_every_place(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "x y x\r\nx", "/overlap.txt": "aaaaa", "/once.txt": "x"})
        assert succeeded(await backend.aedit("/a.txt", "x", "zz", True)).occurrences == 3
        assert await self.raw_peek("/a.txt") == b"zz y zz\r\nzz"
        assert succeeded(await backend.aedit("/overlap.txt", "aa", "b", replace_all=True)).occurrences == 2
        assert await self.raw_peek("/overlap.txt") == b"bba"
        assert succeeded(await backend.aedit("/once.txt", "x", "y", True)).occurrences == 1

    async def test_replace_all_may_bring_the_old_text_back(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "ab"})
        assert succeeded(await backend.aedit("/a.txt", "a", "aba", True)).occurrences == 1
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
            failed(await backend.aedit("/a.txt", old, "x"), ErrorCode.INVALID_CONTENT, ErrorCode.NO_MATCH)
        assert await self.raw_peek("/a.txt") == b"one"

    async def test_binary_is_refused(self, backend: BackendProtocol) -> None:
        contents = {"/by-name.png": b"one", "/nul.txt": b"one\x00", "/latin.txt": "one é".encode("latin-1")}
        await self.put(contents)
        for path, content in contents.items():
            await self._check_refused(await backend.aedit(path, "one", "two"), ErrorCode.BINARY_FILE, path, content)

    async def test_missing_files_and_directories_cannot_be_edited(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "one"})
        missing = failed(await backend.aedit("/none.txt", "one", "two"), ErrorCode.FILE_NOT_FOUND)
        assert missing.error == "Error: File '/none.txt' not found"
        failed(await backend.aedit("/dir/a.txt/beneath", "one", "two"), ErrorCode.FILE_NOT_FOUND)
        failed(await backend.aedit("/dir", "one", "two"), ErrorCode.IS_DIRECTORY)
        failed(await backend.aedit("/", "one", "two"), ErrorCode.IS_DIRECTORY)
        assert await self.raw_peek("/none.txt") is None

    async def test_if_match_edits_that_version_only(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one two"})
        version = succeeded(await backend.aread("/a.txt")).version
        succeeded(await backend.aedit("/a.txt", "one", "1", if_match=version))
        result = await backend.aedit("/a.txt", "two", "2", if_match=version)
        await self._check_refused(result, ErrorCode.CONFLICT, "/a.txt", b"1 two")

    async def test_edits_follow_one_another(self, backend: BackendProtocol) -> None:
        succeeded(await backend.awrite("/a.txt", "0"))
        for number in range(10):
            succeeded(await backend.aedit("/a.txt", str(number), str(number + 1)))
        assert await self.raw_peek("/a.txt") == b"10"
