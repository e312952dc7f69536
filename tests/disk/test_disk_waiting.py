"""Changes through a backend wait for file locks of other processes without a thread, so they stall nobody."""

import errno
import fcntl
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import pytest

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.disk import file_locks
from deepfs.disk.usage import BoundedDisk, DiskUse
from deepfs.threads import pool
from deepfs.types import ErrorCode
from support.disks import open_descriptors, tree
from support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

T = TypeVar("T")

MORE_THAN_THREADS = 60


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("old")
    (tmp_path / "other").write_text("other")
    return tmp_path


@pytest.fixture
def backend(root: Path) -> FilesystemBackend:
    return FilesystemBackend(root)


async def off_loop(call: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(call)


@contextmanager
def held_here(*files: Path) -> Iterator[None]:
    """Hold the locks of files, as another process would."""
    descriptors = [os.open(file, os.O_RDONLY) for file in files]
    try:
        for descriptor in descriptors:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@asynccontextmanager
async def held(*files: Path) -> AsyncIterator[None]:
    """Like `held_here`, for a test with an event loop."""
    locks = held_here(*files)
    await off_loop(locks.__enter__)
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await off_loop(lambda: locks.__exit__(None, None, None))


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The thread of each attempt to lock a file, and the inode of the file."""
    made: list[tuple[str, int]] = []
    try_lock = file_locks.try_lock

    def counted(descriptor: int) -> bool:
        made.append((threading.current_thread().name, os.fstat(descriptor).st_ino))
        return try_lock(descriptor)

    monkeypatch.setattr(file_locks, "try_lock", counted)
    return made


async def content(file: Path) -> str | None:
    return await off_loop(lambda: file.read_text() if file.exists() else None)


async def chunks(*content: bytes) -> AsyncIterator[bytes]:
    for chunk in content:
        yield chunk


async def matching(backend: FilesystemBackend) -> Any:
    read = await backend.aread("/file")
    return await backend.awrite("/file", "new", if_match=read.version)


async def uploaded(backend: FilesystemBackend) -> Any:
    return (await backend.aupload_files([("/first", b"1"), ("/file", b"new"), ("/last", b"2")]))[1]


CHANGES: dict[str, Callable[[FilesystemBackend], Awaitable[Any]]] = {
    "overwrite": lambda backend: backend.awrite("/file", "new", overwrite=True),
    "if_match": matching,
    "edit": lambda backend: backend.aedit("/file", "old", "new"),
    "delete": lambda backend: backend.adelete("/file"),
    "move": lambda backend: backend.amove("/file", "/new"),
    "move over": lambda backend: backend.amove("/other", "/file", overwrite=True),
    "copy over": lambda backend: backend.acopy("/other", "/file", overwrite=True),
    "upload": uploaded,
    "streamed upload": lambda backend: backend.aupload_stream("/file", chunks(b"n", b"ew")),
}
changes = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
SOME = ("edit", "move over", "upload")
some_changes = pytest.mark.parametrize("change", [CHANGES[name] for name in SOME], ids=SOME)


@changes
async def test_a_change_goes_on_when_the_lock_is_released(
    backend: FilesystemBackend,
    root: Path,
    attempts: list[tuple[str, int]],
    change: Callable[[FilesystemBackend], Awaitable[Any]],
) -> None:
    results: list[Any] = []

    async def make() -> None:
        results.append(await change(backend))

    async with anyio.create_task_group() as tasks, held(root / "file"):
        tasks.start_soon(make)
        await until(lambda: len(attempts) > 2)
        assert not results
        assert (await content(root / "file")) == "old"
    assert results[0].error is None
    assert (await content(root / "file")) in ("new", "other", None)
    assert {thread for thread, _ in attempts} == {"deepfs-short"}


async def test_waiting_changes_leave_the_threads_to_others(tmp_path: Path, attempts: list[tuple[str, int]]) -> None:
    files = [tmp_path / str(number) for number in range(MORE_THAN_THREADS)]
    backend = FilesystemBackend(tmp_path)
    await backend.aupload_files([(f"/{file.name}", b"old") for file in files])
    async with anyio.create_task_group() as tasks, held(*files):
        for file in files:
            tasks.start_soon(backend.aedit, f"/{file.name}", "old", "new")
        await until(lambda: len(attempts) >= 2 * len(files))
        with anyio.fail_after(20):
            for file in files:
                assert (await backend.aread(f"/{file.name}")).ok
                assert (await backend.awrite(f"/{file.name}.new", "")).ok
        assert {await content(file) for file in files} == {"old"}
    assert {await content(file) for file in files} == {"new"}


@some_changes
async def test_a_change_that_waits_for_a_lock_can_be_cancelled(
    backend: FilesystemBackend,
    root: Path,
    attempts: list[tuple[str, int]],
    change: Callable[[FilesystemBackend], Awaitable[Any]],
) -> None:
    await backend.aread("/file")
    before, opened = await off_loop(partial(tree, root)), await off_loop(open_descriptors)
    async with held(root / "file"), anyio.create_task_group() as tasks:
        tasks.start_soon(change, backend)
        await until(lambda: len(attempts) > 2)
        tasks.cancel_scope.cancel()
    after = await off_loop(partial(tree, root))
    after.pop("first", None)  # Of several uploaded files, those before it are stored.
    assert after == before
    with anyio.fail_after(20):
        assert (await backend.aedit("/file", "old", "new")).ok
    assert await off_loop(open_descriptors) == opened
    assert not file_locks._waiting


@some_changes
async def test_a_change_waits_for_a_lock_until_its_deadline(
    backend: FilesystemBackend,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[FilesystemBackend], Awaitable[Any]],
) -> None:
    monkeypatch.setattr("deepfs.backends.filesystem._WAIT_S", 0.05)
    async with held(root / "file"):
        result = await change(backend)
    assert ErrorCode.TIMEOUT in (result.error, getattr(result, "code", None))
    assert await content(root / "file") == "old"


async def test_changes_of_one_file_are_made_in_the_order_of_their_calls(
    backend: FilesystemBackend, root: Path, attempts: list[tuple[str, int]]
) -> None:
    async def append(number: int) -> None:
        assert (await backend.aedit("/file", "old", f"old {number}")).ok

    async with anyio.create_task_group() as tasks, held(root / "file"):
        for number in range(5):
            tasks.start_soon(append, number)
            await until(lambda: len(attempts) > 2)
            await anyio.sleep(0.002)
    assert await content(root / "file") == "old 4 3 2 1 0"


def test_a_sync_change_waits_for_a_lock(
    backend: FilesystemBackend, root: Path, attempts: list[tuple[str, int]]
) -> None:
    done: list[Any] = []
    writer = threading.Thread(target=lambda: done.append(backend.write("/file", "new", overwrite=True)))
    with held_here(root / "file"):
        writer.start()
        while len(attempts) < 3:
            writer.join(0.001)
        assert not done
    writer.join(20)
    assert done[0].ok
    assert (root / "file").read_text() == "new"


# --- moves to another file system ------------------------------------------------------------------------------------


@pytest.fixture
def _two_file_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def cross(source: str, target: str, **where: int) -> None:
        if source == "dir":
            raise OSError(errno.EXDEV, "another file system")
        rename(source, target, **where)

    monkeypatch.setattr(os, "rename", cross)


@pytest.mark.usefixtures("_two_file_systems")
@pytest.mark.parametrize("is_written", [False, True])
async def test_a_move_waits_for_the_files_that_it_removes_and_spares_what_was_written_meanwhile(
    backend: FilesystemBackend, root: Path, attempts: list[tuple[str, int]], is_written: bool
) -> None:
    files = {"/dir/a": b"a", "/dir/sub/b": b"b", "/dir/sub/c": b"c"}
    await backend.aupload_files([*files.items()])
    opened = await off_loop(open_descriptors)
    held_file = root / "dir" / "sub" / "b"
    results: list[Any] = []

    async def move() -> None:
        results.append(await backend.amove("/dir", "/new"))

    async with anyio.create_task_group() as tasks, held(held_file):
        tasks.start_soon(move)
        await until(lambda: len(attempts) > 6)
        assert await off_loop(partial(tree, root / "dir")) == {"sub": None, "sub/b": b"b"}
        if is_written:
            await off_loop(lambda: held_file.write_text("later"))
    assert results[0].code == ("conflict" if is_written else None)
    assert await content(held_file) == ("later" if is_written else None)
    assert await off_loop(partial(tree, root / "new")) == {"a": b"a", "sub": None, "sub/b": b"b", "sub/c": b"c"}
    assert await off_loop(open_descriptors) == opened


async def test_attempts_that_found_a_lock_take_no_room(root: Path, attempts: list[tuple[str, int]]) -> None:
    use = DiskUse(str(root), 1 << 20)
    disk = BoundedDisk(str(root), use)
    await off_loop(lambda: disk.write_file("/new", b""))
    before = use._known
    async with held(root / "file"):
        for change in (
            lambda: disk.write_file("/file", bytes(1 << 18), overwrite=True),
            lambda: disk.edit_file("/file", lambda _: bytes(1 << 18)),
        ):
            with pytest.raises(file_locks.LockHeldError):
                await pool.run(change)
    assert (use._known, use._pending) == (before, 0)
