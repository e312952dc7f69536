"""`write`: create-only, overwrite, if_match; no file beneath a file or in place of a directory; only valid text."""

from typing import Final

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from deepfs.testing.conformance.lines import TEXTS
from deepfs.testing.expect import failed, listing, succeeded
from deepfs.testing.suite import BackendSuite

__all__ = ["NOT_TEXT", "WritingConformance"]

NOT_TEXT: Final = ("\0", "a\0b", "text\n\0", "\ud800", "a\udfffb", "\udc80", "\ud83d and \ude00")
"""Strings that no text file can contain: with NUL or lone surrogates."""


class WritingConformance(BackendSuite):
    """A write only creates, unless it is asked to replace."""

    async def test_a_write_stores_the_text_as_utf_8(self, backend: BackendProtocol) -> None:
        for number, text in enumerate(self.some((*TEXTS, "x" * 300_000))):
            path = f"/texts/{number}.txt"
            written = succeeded(await backend.awrite(path, text))
            assert written.path == path
            assert await self.raw_peek(path) == text.encode(), repr(text[:80])

    async def test_a_write_creates_the_directories_above(self, backend: BackendProtocol) -> None:
        succeeded(await backend.awrite("/new/and/deep/a.txt", "a"))
        assert await listing(backend, "/new") == ["/new/and/"]
        assert await listing(backend, "/new/and") == ["/new/and/deep/"]

    async def test_a_write_does_not_replace(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "kept"})
        result = failed(await backend.awrite("/a.txt", "new"), ErrorCode.ALREADY_EXISTS)
        assert "already exists" in (result.error or "")
        assert await self.raw_peek("/a.txt") == b"kept"

    async def test_a_write_of_the_same_text_does_not_replace(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "kept", "/empty.txt": ""})
        failed(await backend.awrite("/a.txt", "kept"), ErrorCode.ALREADY_EXISTS)
        failed(await backend.awrite("/empty.txt", ""), ErrorCode.ALREADY_EXISTS)

    async def test_overwrite_replaces_or_creates(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "a much longer text than the new one", "/a.bin": b"\x00\x01"})
        for path in ("/a.txt", "/a.bin", "/new.txt"):
            succeeded(await backend.awrite(path, "new", overwrite=True))
            assert await self.raw_peek(path) == b"new"

    async def test_if_match_replaces_that_version(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one"})
        version = succeeded(await backend.aread("/a.txt")).version
        succeeded(await backend.awrite("/a.txt", "two", if_match=version))
        assert await self.raw_peek("/a.txt") == b"two"

    async def test_if_match_of_another_version_is_a_conflict(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one"})
        version = succeeded(await backend.aread("/a.txt")).version
        succeeded(await backend.aedit("/a.txt", "one", "two"))
        for overwrite in (False, True):
            result = await backend.awrite("/a.txt", "three", overwrite=overwrite, if_match=version)
            failed(result, ErrorCode.CONFLICT)
        assert await self.raw_peek("/a.txt") == b"two"

    async def test_if_match_of_a_missing_file_is_a_conflict(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one"})
        version = succeeded(await backend.aread("/a.txt")).version
        succeeded(await backend.adelete("/a.txt"))
        failed(await backend.awrite("/a.txt", "two", overwrite=True, if_match=version), ErrorCode.CONFLICT)
        failed(await backend.awrite("/never.txt", "two", if_match="no version"), ErrorCode.CONFLICT)
        assert await self.raw_peek("/a.txt") is None
        assert await self.raw_peek("/never.txt") is None

    async def test_a_version_of_a_binary_file_can_be_matched(self, backend: BackendProtocol) -> None:
        await self.put({"/a.bin": b"\x00one"})
        version = succeeded(await backend.aread("/a.bin")).version
        succeeded(await backend.awrite("/a.bin", "two", if_match=version))
        assert await self.raw_peek("/a.bin") == b"two"

    async def test_a_write_beneath_a_file_is_refused(self, backend: BackendProtocol) -> None:
        await self.put({"/file": "kept", "/dir/file": "kept"})
        for path in ("/file/beneath", "/file/far/beneath", "/dir/file/beneath"):
            for overwrite in (False, True):
                failed(await backend.awrite(path, "x", overwrite=overwrite), ErrorCode.NOT_A_DIRECTORY)
            assert await self.raw_peek(path) is None
        assert await self.raw_peek("/file") == b"kept"
        assert await listing(backend, "/dir") == ["/dir/file"]

    async def test_a_write_to_the_path_of_a_directory_is_refused(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/deep/file": "kept"})
        for path in ("/dir", "/dir/deep", "/dir/deep/", "/"):
            for overwrite in (False, True):
                failed(await backend.awrite(path, "x", overwrite=overwrite), ErrorCode.IS_DIRECTORY)
        assert await listing(backend, "/dir/deep") == ["/dir/deep/file"]
        assert await self.raw_peek("/dir/deep/file") == b"kept"

    async def test_content_that_is_not_text_is_refused(self, backend: BackendProtocol) -> None:
        await self.put({"/kept.txt": "kept"})
        for content in NOT_TEXT:
            failed(await backend.awrite("/new/file.txt", content), ErrorCode.INVALID_CONTENT)
            failed(await backend.awrite("/kept.txt", content, overwrite=True), ErrorCode.INVALID_CONTENT)
        assert await self.raw_peek("/new/file.txt") is None
        assert await self.raw_peek("/kept.txt") == b"kept"
        failed(await backend.als("/new"), ErrorCode.FILE_NOT_FOUND)

    async def test_a_name_can_be_used_again_as_another_kind(self, backend: BackendProtocol) -> None:
        succeeded(await backend.awrite("/name", "file"))
        succeeded(await backend.adelete("/name"))
        succeeded(await backend.awrite("/name/file", "in a directory"))
        succeeded(await backend.adelete("/name"))
        succeeded(await backend.awrite("/name", "file again"))
        assert await self.raw_peek("/name") == b"file again"
