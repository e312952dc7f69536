"""`delete`: removes a file, or a directory with everything under it, and nothing else."""

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from deepfs.testing.expect import failed, listed, listing, succeeded
from deepfs.testing.suite import BackendSuite
from deepfs.text.lines import version

__all__ = ["DeletingConformance"]


class DeletingConformance(BackendSuite):
    """Deleted paths are gone; all others stay."""

    async def test_a_file_is_deleted(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a.txt": "a", "/dir/b.txt": "b", "/dir/raw.bin": b"\x00"})
        for path in ("/dir/a.txt", "/dir/raw.bin"):
            assert succeeded(await backend.adelete(path)).path == path
            assert await self.raw_peek(path) is None
        assert await listing(backend, "/dir") == ["/dir/b.txt"]
        failed(await backend.aread("/dir/a.txt"), ErrorCode.FILE_NOT_FOUND)

    async def test_a_directory_is_deleted_with_all_under_it(self, backend: BackendProtocol) -> None:
        inside = ("/dir/a", "/dir/.hidden", "/dir/deep/b", "/dir/deep/.git/c", "/dir/deep/er/d.bin")
        await self.put(dict.fromkeys(inside, b"\x00"))
        assert succeeded(await backend.adelete("/dir")).path == "/dir"
        assert [await self.raw_peek(path) for path in inside] == [None] * len(inside)
        failed(await backend.als("/dir"), ErrorCode.FILE_NOT_FOUND)
        failed(await backend.als("/dir/deep"), ErrorCode.FILE_NOT_FOUND)

    async def test_paths_with_the_same_prefix_are_not_deleted(self, backend: BackendProtocol) -> None:
        kept = ("/prefix/a", "/pre.txt", "/pre-b/c", "/Pre/d", "/pr/e", "/p_e/f", "/p%/g")
        await self.put({"/pre/x": "x", **dict.fromkeys(kept, "kept")})
        succeeded(await backend.adelete("/pre"))
        assert [await self.raw_peek(path) for path in kept] == [b"kept"] * len(kept)

    async def test_wildcard_characters_in_a_path_are_literal(self, backend: BackendProtocol) -> None:
        kept = ("/d/abc/x", "/d/a1c", "/d/a%c/x", "/d/a*d")
        await self.put({"/d/a_c/x": "x", "/d/a*c": "x", **dict.fromkeys(kept, "kept")})
        for path in ("/d/a_c", "/d/a*c"):
            succeeded(await backend.adelete(path))
        for path in ("/d/a?c", "/d/*", "/d/a_c"):
            failed(await backend.adelete(path), ErrorCode.FILE_NOT_FOUND)
        assert [await self.raw_peek(path) for path in kept] == [b"kept"] * len(kept)

    async def test_a_missing_path_cannot_be_deleted(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a": "a"})
        for path in ("/none", "/dir/none", "/dir/a/beneath"):
            failed(await backend.adelete(path), ErrorCode.FILE_NOT_FOUND)
        succeeded(await backend.adelete("/dir/a"))
        failed(await backend.adelete("/dir/a"), ErrorCode.FILE_NOT_FOUND)

    async def test_a_delete_with_the_current_version_succeeds(self, backend: BackendProtocol) -> None:
        contents = {
            "/dir/a.txt": b"a\r\n",
            "/dir/empty": b"",
            "/dir/raw.bin": b"\x00\xff",
            "/dir/mark": "\ufeffx".encode(),
        }
        await self.put(contents)
        for path, content in contents.items():
            assert succeeded(await backend.adelete(path, if_match=version(content))).path == path
            assert await self.raw_peek(path) is None
            failed(await backend.adelete(path, if_match=version(content)), ErrorCode.FILE_NOT_FOUND)

    async def test_a_delete_with_the_version_from_a_read_succeeds(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one\ntwo\n"})
        read = succeeded(await backend.aread("/a.txt", 0, 1))
        assert succeeded(await backend.adelete("/a.txt", if_match=read.version)).path == "/a.txt"
        assert await self.raw_peek("/a.txt") is None

    async def test_a_delete_with_another_version_is_a_conflict(self, backend: BackendProtocol) -> None:
        await self.put({"/a.txt": "one"})
        read = succeeded(await backend.aread("/a.txt"))
        succeeded(await backend.aedit("/a.txt", "one", "two"))
        for stale in (read.version, version(b"one"), "", "no version", "f" * 64):
            failed(await backend.adelete("/a.txt", if_match=stale), ErrorCode.CONFLICT)
        assert await self.raw_peek("/a.txt") == b"two"
        succeeded(await backend.adelete("/a.txt", if_match=version(b"two")))

    async def test_a_directory_has_no_version(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a": "a"})
        for named in ("", version(b"a")):
            failed(await backend.adelete("/dir", if_match=named), ErrorCode.IS_DIRECTORY)
        assert await self.raw_peek("/dir/a") == b"a"

    async def test_the_root_cannot_be_deleted(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a": "a"})
        for path in ("/", "", "//", "/."):
            failed(await backend.adelete(path), ErrorCode.PERMISSION_DENIED)
        assert await self.raw_peek("/dir/a") == b"a"
        assert "/dir/" in listed(await backend.als("/"))
