"""Versions of what was changed: kept, shown, restored."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from deepfs import FilesystemBackend, FilesystemPermission, MemoryBackend, PermissionedBackend, run_sync
from deepfs.errors import BackendError, FileMissingError
from deepfs.policy import HistoryBackend
from deepfs.testing import FaultyBackend

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["in the same backend", "in another one"])
def history(request: pytest.FixtureRequest) -> HistoryBackend:
    if request.param == "in the same backend":
        return HistoryBackend(MemoryBackend())
    return HistoryBackend(MemoryBackend(), MemoryBackend(), "/")


async def contents(backend: HistoryBackend, path: str) -> list[bytes]:
    return [await backend.aread_version(path, version.number) for version in await backend.ahistory(path)]


async def test_every_change_keeps_what_was_there(history: HistoryBackend) -> None:
    assert await history.ahistory("/a") == []
    await history.awrite("/a", "1")
    await history.awrite("/a", "2", overwrite=True)
    await history.aedit("/a", "2", "3")
    await history.aupload_files([("/a", b"\0\xff"), ("/b", b"b")])
    await history.acopy("/b", "/a", overwrite=True)
    await history.adelete("/a")
    assert await contents(history, "/a") == [b"1", b"2", b"3", b"\0\xff", b"b"]
    versions = await history.ahistory("//a/")
    assert [version.number for version in versions] == [1, 2, 3, 4, 5]
    assert [version.size for version in versions] == [1, 1, 1, 2, 1]
    assert sorted(version.saved_at for version in versions) == [version.saved_at for version in versions]


async def test_a_tree_that_is_deleted_or_moved_is_kept(history: HistoryBackend) -> None:
    await history.aupload_files([("/d/a", b"a"), ("/d/.hidden/b", b"b"), ("/e/c", b"c")])
    assert (await history.adelete("/d")).ok
    assert (await history.amove("/e", "/f")).ok
    assert await contents(history, "/d/a") == [b"a"]
    assert await contents(history, "/d/.hidden/b") == [b"b"]
    assert await contents(history, "/e/c") == [b"c"]
    assert (await history.arestore("/d/.hidden/b", 1)).ok
    assert (await history.aread("/d/.hidden/b")).file_data.content == "b"  # type: ignore[union-attr]


async def test_restoring_is_a_change_like_others(history: HistoryBackend) -> None:
    await history.awrite("/a", "old")
    await history.awrite("/a", "new", overwrite=True)
    assert (await history.arestore("/a", 1)).ok
    assert (await history.aread("/a")).file_data.content == "old"  # type: ignore[union-attr]
    assert await contents(history, "/a") == [b"old", b"new"]
    assert (await history.arestore("/a", 9)).code == "file_not_found"
    with pytest.raises(FileMissingError):
        await history.aread_version("/a", 9)


async def test_diffs(history: HistoryBackend) -> None:
    await history.awrite("/a", "one\ntwo\n")
    await history.aedit("/a", "two", "2")
    assert await history.adiff("/a", 1) == "--- /a (version 1)\n+++ /a\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
    await history.awrite("/a", "one\n2", overwrite=True)
    assert (await history.adiff("/a", 2)).endswith("-2\n+2\n\\ No newline at end of file\n")
    assert "+2\n" in await history.adiff("/a", 1, 2)
    assert await history.adiff("/a", 1, 1) == ""
    await history.aupload_files([("/a", b"\0")])
    assert await history.adiff("/a", 1) == "Binary files /a (version 1) and /a differ\n"
    await history.adelete("/a")
    assert (await history.adiff("/a", 1)).endswith("@@ -1,2 +0,0 @@\n-one\n-two\n")


async def test_what_fails_keeps_no_second_version(history: HistoryBackend) -> None:
    await history.awrite("/a", "x")
    for _ in range(3):
        assert not (await history.aedit("/a", "none", "y")).ok
    assert len(await history.ahistory("/a")) <= 1


async def test_only_the_newest_are_kept() -> None:
    history = HistoryBackend(MemoryBackend(), keep=3)
    for number in range(6):
        await history.awrite("/a", str(number), overwrite=True)
    assert await contents(history, "/a") == [b"2", b"3", b"4"]
    assert [version.number for version in await history.ahistory("/a")] == [3, 4, 5]


async def test_the_versions_are_out_of_reach() -> None:
    history = HistoryBackend(MemoryBackend(), directory="/.versions[1]")
    await history.awrite("/a", "x")
    await history.adelete("/a")
    assert (await history.als("/")).entries == []
    assert (await history.adelete("/.versions[1]")).code == "permission_denied"
    assert (await history.awrite("/.versions[1]/x", "x")).code == "permission_denied"
    assert (await history.aglob(".versions*/**")).matches == []
    assert await contents(history, "/a") == [b"x"]


async def test_a_change_that_cannot_be_kept_does_not_happen() -> None:
    memory = MemoryBackend()
    memory.write("/a", "x")
    history = HistoryBackend(memory, FaultyBackend(MemoryBackend(), {"upload_files": BackendError("Error: full")}))
    stored = await history.aupload_files([("/a", b"y"), ("/new", b"z"), ("/..", b"")])
    assert [(item.path, item.error) for item in stored] == [
        ("/a", "backend_error"), ("/new", None), ("/..", "invalid_path"),
    ]  # fmt: skip
    result = await history.awrite("/a", "y", overwrite=True)
    assert result.code == "backend_error"
    assert memory.read("/a").file_data.content == "x"  # type: ignore[union-attr]


async def test_what_may_not_be_read_is_not_changed() -> None:
    memory = MemoryBackend()
    memory.write("/a", "x")
    unreadable = PermissionedBackend(memory, [FilesystemPermission(["read"], ["/a"], "deny")])
    history = HistoryBackend(unreadable, MemoryBackend())
    assert (await history.awrite("/a", "y", overwrite=True)).code == "permission_denied"
    assert memory.read("/a").file_data.content == "x"  # type: ignore[union-attr]


async def test_changes_at_once_lose_no_version(history: HistoryBackend) -> None:
    await history.awrite("/a", "start")

    async def write(number: int) -> None:
        assert (await history.awrite("/a", str(number), overwrite=True)).ok

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(write, number)
    last = (await history.aread("/a")).file_data.content.encode()  # type: ignore[union-attr]
    assert sorted([*await contents(history, "/a"), last]) == sorted([b"start", *(str(n).encode() for n in range(20))])


def test_a_file_has_one_history_by_whatever_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1")
    (tmp_path / "link").symlink_to("file")
    history = HistoryBackend(FilesystemBackend(tmp_path))
    assert history.write("/link", "2", overwrite=True).ok
    assert history.write("/file", "3", overwrite=True).ok
    assert run_sync(contents, history, "/file") == run_sync(contents, history, "/link") == [b"1", b"2"]


@pytest.mark.parametrize("arguments", [{"directory": "/"}, {"keep": 0}])
def test_settings_that_cannot_work_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"version"):
        HistoryBackend(MemoryBackend(), **arguments)
