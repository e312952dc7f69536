"""A history and a quota over one storage, in both orders."""

import pytest

from deepfs import FilesystemPermission, MemoryBackend, PermissionedBackend
from deepfs.policy import HistoryBackend, QuotaBackend

pytestmark = pytest.mark.anyio


def files_and_versions(max_bytes: int | None = None, max_files: int | None = None) -> HistoryBackend:
    return HistoryBackend(QuotaBackend(MemoryBackend(), max_bytes, max_files))


async def numbers(files: HistoryBackend, path: str) -> list[int]:
    return [version.number for version in await files.ahistory(path)]


async def test_forgotten_versions_make_room_and_no_number_comes_back() -> None:
    files = files_and_versions(4_000)
    for number in range(3):
        assert (await files.awrite("/a", str(number) * 900, overwrite=True)).ok
    assert (await files.awrite("/a", "3" * 900, overwrite=True)).code == "quota_exceeded"
    assert await files.aforget("/a", keep=1) == 1
    assert await numbers(files, "/a") == [2]
    assert (await files.awrite("/a", "3" * 900, overwrite=True)).ok
    assert (await files.aforget("/a"), await files.aforget("/a")) == (2, 0)
    await files.aedit("/a", "3" * 900, "4")
    assert await numbers(files, "/a") == [4]
    with pytest.raises(ValueError, match="negative"):
        await files.aforget("/a", keep=-1)


async def test_a_change_without_room_for_its_version_costs_nothing() -> None:
    files = files_and_versions(1_000)
    await files.awrite("/a", "x" * 600)
    for changed in (
        await files.awrite("/a", "y" * 600, overwrite=True),
        await files.aedit("/a", "x" * 600, "y"),
        await files.amove("/a", "/b"),
    ):
        assert changed.code == "quota_exceeded"
        assert "/a" in str(changed.error)
    [upload] = await files.aupload_files([("/a", b"y" * 600)])
    assert upload.error == "quota_exceeded"
    assert (await files.aread("/a")).unwrap().content == "x" * 600
    assert await numbers(files, "/a") == []


async def test_a_deletion_succeeds_without_room_for_what_it_deletes() -> None:
    storage = MemoryBackend()
    files = HistoryBackend(QuotaBackend(storage, 20_000))
    for _ in range(3):
        outcomes = await files.aupload_files([("/d/a", b"x" * 9_000), ("/d/b", b"y" * 7_000)])
        assert [outcome.error for outcome in outcomes] == [None, None]
        assert (await files.adelete("/d")).ok
        [deletion, *_] = await files.achanges()
        assert deletion.paths == ["/d/a", "/d/b"]
        assert (await files.aundo(change=deletion.id)).conflicts == {"/d/a": "file_not_found", "/d/b": "file_not_found"}
    assert (await storage.aglob("/.history/*/0*")).matches == []


async def test_an_undo_deletes_nothing_that_it_has_no_room_for() -> None:
    files = files_and_versions(20_000)
    await files.awrite("/a", "x" * 15_000)
    [made] = await files.achanges()
    assert (await files.aundo(change=made.id)).conflicts == {"/a": "quota_exceeded"}
    assert (await files.aread("/a")).ok


async def test_with_a_quota_of_files_every_deletion_succeeds() -> None:
    files = files_and_versions(max_files=6)
    for number in range(20):
        path = f"/{number % 3}"
        if (await files.awrite(path, "x")).ok:
            assert (await files.adelete(path)).ok
    assert (await files.als("/")).entries == []


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
