"""`move` and `copy`: files and directories, and which destinations are allowed."""

from collections.abc import Awaitable, Callable
from typing import Final

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from deepfs.testing.expect import failed, listing, succeeded
from deepfs.testing.suite import BackendSuite
from deepfs.types import WriteResult

__all__ = ["MovingConformance"]

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

    async def _peeked(self, *paths: str) -> list[bytes | None]:
        return [await self.raw_peek(path) for path in paths]

    async def test_a_file_is_moved(self, backend: BackendProtocol) -> None:
        for number, content in enumerate(_TREE.values()):
            src, dst = f"/from/{number}", f"/to/new/{number}"
            await self.raw_put(src, content)
            assert succeeded(await backend.amove(src, dst)).path == dst
            assert await self._peeked(src, dst) == [None, content]

    async def test_a_file_is_copied(self, backend: BackendProtocol) -> None:
        for number, content in enumerate(_TREE.values()):
            src, dst = f"/from/{number}", f"/to/new/{number}"
            await self.raw_put(src, content)
            assert succeeded(await backend.acopy(src, dst)).path == dst
            assert await self._peeked(src, dst) == [content, content]

    async def test_a_copy_is_a_file_of_its_own(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one"})
        succeeded(await backend.acopy("/a.txt", "/b.txt"))
        succeeded(await backend.aedit("/b.txt", "one", "two"))
        assert await self._peeked("/a.txt", "/b.txt") == [b"one", b"two"]

    async def test_a_directory_is_moved_with_all_under_it(self, backend: BackendProtocol) -> None:
        await self.put({**_TREE, "/srcs/kept": "kept"})
        assert succeeded(await backend.amove("/src", "/new/place")).path == "/new/place"
        moved = [path.replace("/src", "/new/place", 1) for path in _TREE]
        assert await self._peeked(*moved) == list(_TREE.values())
        assert await self._peeked(*_TREE, "/srcs/kept") == [None] * len(_TREE) + [b"kept"]
        failed(await backend.als("/src"), ErrorCode.FILE_NOT_FOUND)

    async def test_a_directory_is_copied_with_all_under_it(self, backend: BackendProtocol) -> None:
        await self.put({**_TREE, "/srcs/kept": "kept"})
        assert succeeded(await backend.acopy("/src/", "/src-copy")).path == "/src-copy"
        assert await self._peeked(*_TREE) == list(_TREE.values())
        assert await self._peeked(*(path.replace("/src", "/src-copy", 1) for path in _TREE)) == list(_TREE.values())
        assert await listing(backend, "/src-copy") == ["/src-copy/.hidden", "/src-copy/a.txt", "/src-copy/deep/"]

    async def test_a_directory_of_many_files_is_copied_and_moved(self, backend: BackendProtocol) -> None:
        files = {f"/many/{number % 7}/{number}.txt": str(number).encode() for number in range(150)}
        await self.put(files)
        succeeded(await backend.acopy("/many", "/copy"))
        succeeded(await backend.amove("/many", "/moved"))
        for place in ("/copy", "/moved"):
            assert await self._peeked(*(path.replace("/many", place, 1) for path in files)) == list(files.values())
        failed(await backend.als("/many"), ErrorCode.FILE_NOT_FOUND)

    async def test_an_existing_file_is_not_replaced(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "a", "/b.txt": "b", "/dir/c.txt": "c"})
        for transfer in _both(backend):
            result = failed(await transfer("/a.txt", "/b.txt"), ErrorCode.ALREADY_EXISTS)
            assert "already exists" in (result.error or "")
            failed(await transfer("/dir", "/b.txt"), ErrorCode.ALREADY_EXISTS)
        assert await self._peeked("/a.txt", "/b.txt", "/dir/c.txt") == [b"a", b"b", b"c"]

    async def test_overwrite_replaces_a_file(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "a", "/b.txt": "a longer text", "/c.bin": b"\x00"})
        succeeded(await backend.acopy("/a.txt", "/b.txt", overwrite=True))
        assert await self._peeked("/a.txt", "/b.txt") == [b"a", b"a"]
        succeeded(await backend.amove("/c.bin", "/b.txt", overwrite=True))
        assert await self._peeked("/c.bin", "/b.txt") == [None, b"\x00"]

    async def test_a_directory_is_never_replaced(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "a", "/dir/b.txt": "b", "/other/c.txt": "c"})
        for transfer in _both(backend):
            for src in ("/a.txt", "/other"):
                failed(await transfer(src, "/dir"), ErrorCode.ALREADY_EXISTS)
                failed(await transfer(src, "/dir", overwrite=True), ErrorCode.IS_DIRECTORY)
        assert await self._peeked("/a.txt", "/dir/b.txt", "/other/c.txt") == [b"a", b"b", b"c"]

    async def test_a_directory_does_not_replace_a_file(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "a", "/dir/b.txt": "b"})
        for transfer in _both(backend):
            failed(await transfer("/dir", "/a.txt", overwrite=True), ErrorCode.NOT_A_DIRECTORY)
        assert await self._peeked("/a.txt", "/dir/b.txt") == [b"a", b"b"]

    async def test_a_directory_does_not_go_into_itself(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/deep/a.txt": "a"})
        for transfer in _both(backend):
            for dst in ("/dir/new", "/dir/deep/new", "/dir/new/far"):
                failed(await transfer("/dir", dst), ErrorCode.INVALID_PATH)
            failed(await transfer("/dir", "/dir/new", overwrite=True), ErrorCode.INVALID_PATH)
        assert await self.raw_peek("/dir/deep/a.txt") == b"a"
        assert await listing(backend, "/dir") == ["/dir/deep/"]

    async def test_a_destination_with_the_same_prefix_is_not_inside_the_source(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "a"})
        succeeded(await backend.acopy("/dir", "/dir2"))
        succeeded(await backend.amove("/dir", "/directory"))
        assert await self._peeked("/dir/a.txt", "/dir2/a.txt", "/directory/a.txt") == [None, b"a", b"a"]

    async def test_the_root_is_neither_source_nor_destination(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "a"})
        for transfer in _both(backend):
            failed(await transfer("/", "/new"), ErrorCode.INVALID_PATH, ErrorCode.PERMISSION_DENIED)
            failed(await transfer("/dir", "/"), ErrorCode.ALREADY_EXISTS, ErrorCode.IS_DIRECTORY)
        assert await self.raw_peek("/dir/a.txt") == b"a"

    async def test_a_move_onto_itself_changes_nothing(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "a"})
        for path, spelled in (("/dir/a.txt", "//dir/./a.txt"), ("/dir", "dir/")):
            for overwrite in (False, True):
                assert succeeded(await backend.amove(path, spelled, overwrite=overwrite)).path == path
                assert await self.raw_peek("/dir/a.txt") == b"a"
        failed(await backend.amove("/none", "/none"), ErrorCode.FILE_NOT_FOUND)

    async def test_a_copy_onto_itself_already_exists(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "a"})
        for path in ("/dir/a.txt", "/dir"):
            failed(await backend.acopy(path, path), ErrorCode.ALREADY_EXISTS)
            await backend.acopy(path, path, overwrite=True)
            assert await self.raw_peek("/dir/a.txt") == b"a"
        failed(await backend.acopy("/none", "/none"), ErrorCode.FILE_NOT_FOUND)

    async def test_a_missing_path_cannot_be_moved_or_copied(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "a", "/dir/b.txt": "b"})
        for transfer in _both(backend):
            for src in ("/none", "/dir/none", "/a.txt/beneath"):
                for overwrite in (False, True):
                    result = failed(await transfer(src, "/new", overwrite=overwrite), ErrorCode.FILE_NOT_FOUND)
                    assert f"'{src}'" in (result.error or ""), "the error names the path that is missing"
        assert await self._peeked("/a.txt", "/new") == [b"a", None]

    async def test_a_destination_beneath_a_file_is_refused(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "a", "/file": "f", "/dir/b.txt": "b"})
        for transfer in _both(backend):
            for src in ("/a.txt", "/dir"):
                for dst in ("/file/beneath", "/file/far/beneath"):
                    failed(await transfer(src, dst), ErrorCode.NOT_A_DIRECTORY)
                    failed(await transfer(src, dst, overwrite=True), ErrorCode.NOT_A_DIRECTORY)
        assert await self._peeked("/a.txt", "/file", "/dir/b.txt") == [b"a", b"f", b"b"]

    async def test_a_file_does_not_go_beneath_itself(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "a"})
        for transfer in _both(backend):
            failed(await transfer("/a.txt", "/a.txt/b"), ErrorCode.INVALID_PATH, ErrorCode.NOT_A_DIRECTORY)
        assert await self.raw_peek("/a.txt") == b"a"

    async def test_a_moved_file_can_be_edited_and_its_old_path_reused(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one"})
        succeeded(await backend.amove("/a.txt", "/b.txt"))
        succeeded(await backend.aedit("/b.txt", "one", "two"))
        succeeded(await backend.awrite("/a.txt", "new"))
        assert await self._peeked("/a.txt", "/b.txt") == [b"new", b"two"]
