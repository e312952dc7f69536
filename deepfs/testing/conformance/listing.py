"""`ls`, and the directories that the paths of files imply."""

from typing import Final

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import ErrorCode
from deepfs.testing.expect import failed, listed, listing, only, paths_of, succeeded
from deepfs.testing.suite import BackendSuite

__all__ = ["ListingConformance", "ReadOnlyListing"]

_SORTS_TRICKILY: Final = ("a-b", "a.txt", "a0", "a/x", "B", "Z", "_", "~x", "é", "\uff5e", "😀")
"""The slash of a directory sorts after `-` and `.`, before digits; capitals sort before `_`; the rest by code point."""


class ReadOnlyListing(BackendSuite):
    """`ls` of files that are there."""

    async def test_ls_shows_the_direct_children(self, backend: BackendProtocol) -> None:
        await self.put({"/src/a.py": "a", "/src/deep/b.py": "b", "/src/deep/er/c.py": "c", "/other/d.py": "d"})
        assert await listing(backend, "/src") == ["/src/a.py", "/src/deep/"]
        assert await listing(backend, "/src/deep") == ["/src/deep/b.py", "/src/deep/er/"]
        assert await listing(backend, "/src/deep/er") == ["/src/deep/er/c.py"]

    async def test_the_root_always_exists(self, backend: BackendProtocol) -> None:
        entries = succeeded(await backend.als("/")).entries
        assert isinstance(entries, list)
        assert not [entry for entry in entries if not entry.is_dir], "an empty backend has no file"

    async def test_ls_is_sorted_by_path(self, backend: BackendProtocol) -> None:
        await self.put({f"/sorted/{name}": name for name in _SORTS_TRICKILY})
        expected = sorted(f"/sorted/{'a/' if name == 'a/x' else name}" for name in _SORTS_TRICKILY)
        assert await listing(backend, "/sorted") == expected

    async def test_entries_have_kind_and_size(self, backend: BackendProtocol) -> None:
        await self.put({"/kinds/dir/x": "x", "/kinds/file.txt": "héllo", "/kinds/raw.bin": b"\x00\xff\x00"})
        entries = {entry.path: entry for entry in succeeded(await backend.als("/kinds")).entries or ()}
        assert entries["/kinds/dir/"].is_dir is True
        assert entries["/kinds/file.txt"].is_dir is False
        assert entries["/kinds/file.txt"].size == 6, "the size is in bytes"
        assert entries["/kinds/raw.bin"].size == 3

    async def test_names_with_a_dot_are_listed(self, backend: BackendProtocol) -> None:
        await self.put({"/dots/.env": "x", "/dots/.git/config": "x", "/dots/seen": "x"})
        assert await listing(backend, "/dots") == ["/dots/.env", "/dots/.git/", "/dots/seen"]

    async def test_a_prefix_of_a_name_is_not_a_directory(self, backend: BackendProtocol) -> None:
        await self.put({"/pre/x": "x", "/prefix/y": "y", "/pre.txt": "z"})
        assert await listing(backend, "/pre") == ["/pre/x"]
        failed(await backend.als("/pref"), ErrorCode.FILE_NOT_FOUND)

    async def test_a_slash_at_the_end_makes_no_difference(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a": "a"})
        assert await listing(backend, "/dir/") == await listing(backend, "/dir") == ["/dir/a"]

    async def test_ls_of_a_missing_path_is_file_not_found(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a": "a"})
        failed(await backend.als("/nowhere"), ErrorCode.FILE_NOT_FOUND)
        failed(await backend.als("/dir/nowhere"), ErrorCode.FILE_NOT_FOUND)
        failed(await backend.als("/dir/a/beneath"), ErrorCode.FILE_NOT_FOUND)

    async def test_ls_of_a_file_is_not_a_directory(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/a": "a"})
        failed(await backend.als("/dir/a"), ErrorCode.NOT_A_DIRECTORY)


class ListingConformance(ReadOnlyListing):
    """`ls` shows the direct children, sorted by path; directories end in a slash."""

    async def test_ls_of_the_root_shows_its_children(self, backend: BackendProtocol) -> None:
        before = await listing(backend, "/")
        await self.put({"/one.txt": "1", "/dir/two.txt": "2"})
        assert await listing(backend, "/") == sorted([*before, "/dir/", "/one.txt"])

    async def test_an_empty_file_is_a_file(self, backend: BackendProtocol) -> None:
        await self.put({"/dir/empty": ""})
        entry = only(succeeded(await backend.als("/dir")).entries)
        assert (entry.path, entry.is_dir, entry.size) == ("/dir/empty", False, 0)
        assert paths_of(succeeded(await backend.aglob("*", "/dir")).matches) == ["/dir/empty"]
        succeeded(await backend.amove("/dir/empty", "/new/empty"))
        assert await self.raw_peek("/new/empty") == b""

    async def test_a_directory_exists_while_it_holds_a_file(self, backend: BackendProtocol) -> None:
        succeeded(await backend.awrite("/up/dir/one", "1"))
        succeeded(await backend.awrite("/up/dir/two", "2"))
        succeeded(await backend.adelete("/up/dir/one"))
        assert await listing(backend, "/up") == ["/up/dir/"]

    async def test_an_empty_directory_stays_only_if_the_capability_is_declared(self, backend: BackendProtocol) -> None:
        succeeded(await backend.awrite("/up/keep", "k"))
        succeeded(await backend.awrite("/up/dir/only", "1"))
        succeeded(await backend.adelete("/up/dir/only"))
        emptied = await backend.als("/up/dir")
        if backend.capabilities.keeps_empty_directories:
            assert listed(emptied) == []
            assert await listing(backend, "/up") == ["/up/dir/", "/up/keep"]
        else:
            failed(emptied, ErrorCode.FILE_NOT_FOUND)
            assert await listing(backend, "/up") == ["/up/keep"]
