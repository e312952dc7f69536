"""What each operation answers where two clients made a file `/a` and a file `/a/b` at the same time."""

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from deepfs.testing import BackendSuite
from deepfs.testing.suite import assert_failed, assert_ok

__all__ = ["FileAndDirectory"]


class FileAndDirectory(BackendSuite):
    """Tests for backends over flat storage, beside the shipped suite: no other storage can come into this state."""

    async def made_by_two_clients(self) -> None:
        await self.put({"/a": "the file x", "/a/b": "beneath x", "/c": "other"})

    async def test_both_are_listed_and_read(self, backend: BackendProtocol) -> None:
        await self.made_by_two_clients()
        listed = assert_ok(await backend.als("/")).entries or []
        assert [entry.path for entry in listed] == ["/a", "/a/", "/c"]
        assert [entry.path for entry in assert_ok(await backend.als("/a")).entries or []] == ["/a/b"]
        for path, content in (("/a", "the file x"), ("/a/b", "beneath x")):
            read = assert_ok(await backend.aread(path))
            assert read.file_data is not None
            assert read.file_data.content == content
        downloads = await backend.adownload_files(["/a", "/a/b"])
        assert [each.content for each in downloads] == [b"the file x", b"beneath x"]

    async def test_both_are_found(self, backend: BackendProtocol) -> None:
        await self.made_by_two_clients()
        for path, found in (("/", ["/a", "/a/b"]), ("/a", ["/a", "/a/b"]), ("/a/b", ["/a/b"])):
            matches = assert_ok(await backend.agrep("x", path)).matches or []
            assert [match.path for match in matches] == found
        assert [info.path for info in assert_ok(await backend.aglob("**")).matches or []] == ["/a", "/a/b", "/c"]
        assert [info.path for info in assert_ok(await backend.aglob("**", "/a")).matches or []] == ["/a/b"]

    async def test_what_is_there_can_be_changed_and_nothing_is_added_beneath_the_file(
        self, backend: BackendProtocol
    ) -> None:
        await self.made_by_two_clients()
        assert_ok(await backend.aedit("/a", "file", "FILE"))
        assert_ok(await backend.aedit("/a/b", "beneath", "BENEATH"))
        assert_ok(await backend.awrite("/a", "new", overwrite=True))
        assert_failed(await backend.awrite("/a", "new"), ErrorCode.ALREADY_EXISTS)
        for path in ("/a/b", "/a/new"):
            assert_failed(await backend.awrite(path, "", overwrite=True), ErrorCode.NOT_A_DIRECTORY)
        outcomes = await backend.aupload_files([("/a", b"up"), ("/a/b", b"up"), ("/c", b"up")])
        assert [outcome.error for outcome in outcomes] == [None, ErrorCode.NOT_A_DIRECTORY, None]
        assert [await self.raw_peek(path) for path in ("/a", "/a/b")] == [b"up", b"BENEATH x"]

    async def test_delete_and_move_take_the_file_first(self, backend: BackendProtocol) -> None:
        await self.made_by_two_clients()
        assert_ok(await backend.amove("/a", "/moved"))
        assert [await self.raw_peek(path) for path in ("/a", "/moved", "/a/b")] == [None, b"the file x", b"beneath x"]
        await self.put({"/a": "again"})
        assert_ok(await backend.adelete("/a"))
        assert [await self.raw_peek(path) for path in ("/a", "/a/b")] == [None, b"beneath x"]
        assert_ok(await backend.adelete("/a"))
        assert await self.raw_peek("/a/b") is None
        assert_failed(await backend.adelete("/a"), ErrorCode.FILE_NOT_FOUND)

    async def test_a_copy_takes_the_file_and_goes_nowhere_beneath_it(self, backend: BackendProtocol) -> None:
        await self.made_by_two_clients()
        assert_ok(await backend.acopy("/a", "/copy"))
        assert [await self.raw_peek(path) for path in ("/copy", "/copy/b")] == [b"the file x", None]
        assert_failed(await backend.acopy("/c", "/a/new"), ErrorCode.NOT_A_DIRECTORY)
        assert_failed(await backend.acopy("/c", "/a"), ErrorCode.ALREADY_EXISTS)
        assert_ok(await backend.acopy("/c", "/a", overwrite=True))
        assert [await self.raw_peek(path) for path in ("/a", "/a/b")] == [b"other", b"beneath x"]
