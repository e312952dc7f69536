"""A durable change is flushed to the disk, with its directory, before it is answered."""

import errno
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import pytest

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.disk import is_temporary
from support.disks import open_descriptors, tree
from support.waiting import until_tasks_wait

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

T = TypeVar("T")

MANY = 100
"""More changes than are made at once."""


async def off_loop(call: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(call)


class Flushes:
    """What was flushed, by path; a flush can be made to wait or to fail."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: set[int] = set()
        """The inodes of the files that are on the disk."""
        self.directories: list[str] = []
        self.fails: Callable[[str], bool] = lambda path: False
        self.gate = threading.Event()
        self.gate.set()
        self._root = root
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._flush)

    def _flush(self, descriptor: int) -> None:
        assert self.gate.wait(20)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if self.fails(path):
            raise OSError(errno.EIO, "injected")
        self._fsync(descriptor)
        if is_temporary(os.path.basename(path)):
            self.files.add(os.fstat(descriptor).st_ino)
        else:
            self.directories.append(os.path.relpath(path, self._root))


@pytest.fixture
def flushes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flushes:
    return Flushes(tmp_path, monkeypatch)


@pytest.fixture
def backend(tmp_path: Path) -> FilesystemBackend:
    return FilesystemBackend(tmp_path, durable=True)


async def gathered(*calls: Callable[[], Any]) -> list[Any]:
    results: dict[int, Any] = {}

    async def keep(number: int, call: Callable[[], Any]) -> None:
        results[number] = await call()

    async with anyio.create_task_group() as tasks:
        for number, call in enumerate(calls):
            tasks.start_soon(keep, number, call)
    return [results[number] for number in range(len(calls))]


async def test_concurrent_changes_are_all_flushed(backend: FilesystemBackend, tmp_path: Path, flushes: Flushes) -> None:
    names = [f"/dir/{number}" for number in range(MANY)]
    results = await gathered(*(partial(backend.awrite, name, "old text") for name in names))
    assert all(result.ok for result in results)
    assert "dir" in flushes.directories
    flushes.directories.clear()
    results = await gathered(*(partial(backend.aedit, name, "old", "new") for name in names))
    assert {result.occurrences for result in results} == {1}
    assert "dir" in flushes.directories
    inodes = await off_loop(lambda: {(tmp_path / name[1:]).stat().st_ino for name in names})
    assert inodes <= flushes.files
    assert (await backend.aread("/dir/99")).file_data.content == "new text"


async def test_a_change_is_answered_after_its_flush(
    backend: FilesystemBackend, tmp_path: Path, flushes: Flushes
) -> None:
    await backend.awrite("/file", "old")
    flushes.gate.clear()
    ended: list[str] = []

    async def change(path: str) -> None:
        assert (await backend.awrite(path, "new", overwrite=True)).ok
        ended.append(path)

    async with anyio.create_task_group() as tasks:
        for path in ("/file", "/dir/a", "/dir/b"):
            tasks.start_soon(change, path)
        with anyio.fail_after(20):
            while len(await off_loop(lambda: [*tmp_path.rglob(".~deepfs-*")])) < 3:  # noqa: ASYNC110
                await anyio.sleep(0.001)
        assert not ended
        assert (await backend.aread("/file")).file_data.content == "old"
        flushes.gate.set()
    assert sorted(ended) == ["/dir/a", "/dir/b", "/file"]


async def test_a_failed_flush_fails_only_its_own_changes(
    backend: FilesystemBackend, tmp_path: Path, flushes: Flushes
) -> None:
    flushes.fails = lambda path: path.endswith("/bad")
    names = ["/a", "/bad/b", "/bad/c", "/good/d"]
    outcomes = await backend.aupload_files([(name, b"") for name in names])
    assert [each.error for each in outcomes] == [None, "backend_error", "backend_error", None]
    flushes.fails = is_of_x
    results = await gathered(*(partial(backend.awrite, name, "x" * (name == "/x")) for name in ("/x", "/y", "/z")))
    assert [result.ok for result in results] == [False, True, True]
    assert sorted(await off_loop(partial(tree, tmp_path))) == [
        "a", "bad", "bad/b", "bad/c", "good", "good/d", "y", "z",
    ]  # fmt: skip


def is_of_x(path: str) -> bool:
    return os.path.isfile(path) and os.path.getsize(path) == 1


async def test_two_names_of_one_file_in_an_upload_do_not_wait_for_each_other(
    backend: FilesystemBackend, tmp_path: Path, flushes: Flushes
) -> None:
    await backend.awrite("/file", "old")
    await off_loop(lambda: (tmp_path / "link").symlink_to("file"))
    with anyio.fail_after(20):
        outcomes = await backend.aupload_files([("/file", b"1"), ("/link", b"2"), ("/other", b"3")])
    assert [each.error for each in outcomes] == [None] * 3
    assert await off_loop((tmp_path / "file").read_bytes) == b"2"


async def test_a_cancelled_change_among_others_is_made_or_not(
    backend: FilesystemBackend, tmp_path: Path, flushes: Flushes
) -> None:
    await backend.awrite("/kept", "old")
    opened = await off_loop(open_descriptors)
    flushes.gate.clear()
    results: list[Any] = []

    async def write(path: str) -> None:
        results.append(await backend.awrite(path, "new", overwrite=True))

    async with anyio.create_task_group() as tasks, anyio.create_task_group() as cancelled:
        tasks.start_soon(write, "/kept")
        for number in range(5):
            cancelled.start_soon(write, f"/{number}")
        with anyio.fail_after(20):
            while not await off_loop(lambda: [*tmp_path.glob(".~deepfs-*")]):  # noqa: ASYNC110
                await anyio.sleep(0.001)
        cancelled.cancel_scope.cancel()
        flushes.gate.set()
    assert await off_loop((tmp_path / "kept").read_text) == "new"
    assert set((await off_loop(partial(tree, tmp_path))).values()) == {b"new"}
    for number in range(5):
        assert (await backend.awrite(f"/{number}", "again", overwrite=True)).ok
    assert await off_loop(open_descriptors) == opened


async def test_nothing_overtakes_an_upload(tmp_path: Path) -> None:
    backend = FilesystemBackend(tmp_path)
    files = [(f"/d/{number}", b"uploaded") for number in range(100)]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(backend.aupload_files, files)
        await until_tasks_wait()
        assert (await backend.awrite("/d/99", "another")).code == "already_exists"
    assert (await backend.amove("/d", "/e")).ok
    assert len((await backend.als("/e")).entries or ()) == 100
