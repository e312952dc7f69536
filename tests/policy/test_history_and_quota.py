"""A history and a quota over one storage, in both orders."""

import pytest

from deepfs import FilesystemPermission, MemoryBackend, PermissionedBackend
from deepfs.backends.protocol import BackendProtocol
from deepfs.policy import HistoryBackend, QuotaBackend

pytestmark = pytest.mark.anyio


def files_and_versions(max_bytes: int | None = None, max_files: int | None = None) -> HistoryBackend:
    return HistoryBackend(QuotaBackend(MemoryBackend(), max_bytes, max_files))


async def numbers(files: HistoryBackend, path: str) -> list[int]:
    return [version.number for version in await files.ahistory(path)]


async def stored(backend: BackendProtocol) -> int:
    return sum(entry.size or 0 for entry in (await backend.alist_tree("/")).entries)


@pytest.mark.parametrize("by_upload", [False, True])
async def test_the_oldest_versions_make_room(by_upload: bool) -> None:
    files = files_and_versions(2_000)
    for number in range(20):
        if by_upload:
            [outcome] = await files.aupload_files([("/notes.md", b"x" * (300 + number))])
            assert outcome.error is None
        else:
            assert (await files.awrite("/notes.md", "x" * (300 + number), overwrite=True)).ok
    kept = await numbers(files, "/notes.md")
    assert kept == list(range(kept[0], 20))
    assert 4 <= len(kept) <= 6
    assert await files.aread_version("/notes.md", 19) == b"x" * 318
    assert 1_500 < await stored(files._beneath) <= 2_000


async def test_versions_of_other_files_make_room_and_numbers_are_given_once() -> None:
    files = files_and_versions(2_000)
    for text in ("one", "two", "three"):
        await files.awrite("/a", text * 100, overwrite=True)
    for _ in range(4):
        assert (await files.awrite("/b", "x" * 700, overwrite=True)).ok
    assert await numbers(files, "/a") == []
    await files.adelete("/b")
    await files.awrite("/a", "four", overwrite=True)
    assert await numbers(files, "/a") == [3]


async def test_what_fits_without_versions_fits_and_what_does_not_costs_none() -> None:
    files = files_and_versions(2_000)
    for _ in range(4):
        await files.awrite("/a", "x" * 300, overwrite=True)
    before = await numbers(files, "/a")
    huge = await files.awrite("/b", "x" * 5_000)
    [upload] = await files.aupload_files([("/b", b"x" * 5_000)])
    assert (huge.code, upload.error) == ("quota_exceeded", "quota_exceeded")
    assert await numbers(files, "/a") == before
    assert (await files.awrite("/b", "x" * 1_650)).ok


async def test_a_deletion_succeeds_without_room_for_what_it_deletes() -> None:
    files = files_and_versions(1_000)
    await files.awrite("/a", "x" * 600)
    changed = await files.awrite("/a", "y" * 600, overwrite=True)
    assert changed.code == "quota_exceeded"
    assert "/a" in str(changed.error)
    assert (await files.aread("/a")).unwrap().content == "x" * 600
    assert (await files.amove("/a", "/b")).code == "quota_exceeded"
    assert (await files.adelete("/a")).ok
    assert await numbers(files, "/a") == []
    assert (await files.awrite("/c", "z" * 900)).ok


async def test_a_quota_of_files() -> None:
    files = files_and_versions(max_files=7)
    for number in range(10):
        assert (await files.awrite("/a", str(number), overwrite=True)).ok
    assert await numbers(files, "/a") == [7, 8, 9]
    assert (await files.adelete("/a")).ok


async def test_a_quota_over_a_history_counts_the_files_alone() -> None:
    files = QuotaBackend(HistoryBackend(MemoryBackend()), max_bytes=1_000)
    for number in range(10):
        assert (await files.awrite("/a", str(number) * 600, overwrite=True)).ok
    assert (await files.awrite("/b", "x" * 500)).code == "quota_exceeded"
    assert (await files.adelete("/a")).ok
    assert (await files.awrite("/b", "x" * 500)).ok


async def test_a_denied_change_names_the_rule() -> None:
    rules = [FilesystemPermission(["read", "write"], ["/**/.env"], "deny")]
    files = HistoryBackend(PermissionedBackend(MemoryBackend(), rules))
    for result in (await files.awrite("/.env", "x"), await files.aedit("/.env", "x", "y")):
        assert result.error == "Error: permission denied for read on /.env"
