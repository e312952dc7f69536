"""A history and a quota over one storage, in both orders."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from deepfs import FilesystemPermission, MemoryBackend, PermissionedBackend, StoreBackend
from deepfs.errors import NotFoundError
from deepfs.policy import HistoryBackend, QuotaBackend
from support.graphs import in_run

pytestmark = pytest.mark.anyio


def files_and_versions(max_bytes: int | None = None, max_files: int | None = None) -> HistoryBackend:
    return HistoryBackend(QuotaBackend(MemoryBackend(), max_bytes, max_files))


async def numbers(files: HistoryBackend, path: str) -> list[int]:
    return [version.number for version in await files.ahistory(path)]


@pytest.mark.parametrize(("max_bytes", "max_files"), [(2_000, None), (None, 8)])
async def test_the_oldest_versions_make_room(max_bytes: int | None, max_files: int | None) -> None:
    files = files_and_versions(max_bytes, max_files)
    for number in range(20):
        content = chr(97 + number) * 300
        match number % 4:
            case 0:
                changed: Any = await files.awrite("/a", content, overwrite=True)
            case 1:
                changed = await files.aedit("/a", chr(96 + number) * 300, content)
            case 2:
                [changed] = await files.aupload_files([("/a", content.encode())])
            case _:
                changed = await files.aupload_stream("/a", stream(content.encode()))
        assert changed.error is None
    kept = await numbers(files, "/a")
    assert kept == list(range(kept[0], 20)) != []
    assert await files.aread_version("/a", 19) == b"s" * 300


async def stream(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def test_what_can_have_no_room_deletes_no_version() -> None:
    files = files_and_versions(5_000)
    for number in range(5):
        await files.awrite("/a", str(number) * 300, overwrite=True)
    before = await numbers(files, "/a")
    assert (await files.awrite("/b", "x" * 5_000)).code == "quota_exceeded"
    assert (await files.aupload_files([("/b", b"x" * 5_000)]))[0].error == "quota_exceeded"
    assert await numbers(files, "/a") == before
    assert (await files.awrite("/b", "x" * 2_500)).ok
    assert await numbers(files, "/a") == before[1:]


async def test_what_may_be_of_a_change_in_progress_makes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_and_versions(3_000)
    for content in "01":
        await files.awrite("/a", content * 1_000, overwrite=True)
    assert (await files.awrite("/b", "x" * 1_000)).code == "quota_exceeded"
    assert await numbers(files, "/a") == [1]
    monkeypatch.setattr("deepfs.policy.keeping._IN_PROGRESS", timedelta(0))
    assert (await files.awrite("/b", "x" * 1_000)).ok
    assert await numbers(files, "/a") == []
    await files.adelete("/b")
    await files.awrite("/a", "2", overwrite=True)
    assert await numbers(files, "/a") == [2]


async def test_of_a_run_all_changes_make_room_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepfs.policy.keeping._IN_PROGRESS", timedelta(0))
    files = files_and_versions(4_000)
    await files.awrite("/a", "before")
    with in_run("A"):
        for number in range(3):
            await files.awrite("/a", f"{number}" * 100, overwrite=True)
    for number in range(20):
        with in_run(f"B{number // 3}"):
            assert (await files.awrite("/b", f"{number}" * 100, overwrite=True)).ok
        of_a = await files.achanges(run="A")
        assert len(of_a) in (0, 3)
    with pytest.raises(NotFoundError):
        await files.aundo("A")
    assert (await files.aread("/a")).unwrap().content == "2" * 100


async def test_no_tenant_makes_room_of_the_versions_of_another_one() -> None:
    tenants = StoreBackend(InMemoryStore(), namespace=lambda runtime: (runtime.context,))
    files = HistoryBackend(tenants, QuotaBackend(MemoryBackend(), 2_000))
    for number in range(5):
        await files.at("bob").awrite("/a", str(number) * 100, overwrite=True)
    before = len(await files.at("bob").ahistory("/a"))
    outcomes = [await files.at("ada").awrite("/a", str(number) * 100, overwrite=True) for number in range(5)]
    assert outcomes[-1].code == "quota_exceeded"
    assert len(await files.at("bob").ahistory("/a")) == before


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
