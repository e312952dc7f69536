"""Files in the system's memory are read on the event loop, with the same results; all else goes to a worker thread."""

import errno
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deepfs import FilesystemBackend
from deepfs.disk import Disk
from deepfs.disk.in_memory import MAX_BYTES
from deepfs.disk.os_calls import PREFIX
from deepfs.errors import DeepFSError, PermissionDeniedError
from deepfs.text.lines import version
from deepfs.threads import loop_bridge, pool
from support.disks import open_descriptors

pytestmark = [pytest.mark.anyio, pytest.mark.needs("ext4")]

T = TypeVar("T")

TEXT = "one\ntwo\nthree\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "dir").mkdir(parents=True)
    (root / "dir/file.txt").write_text(TEXT)
    return root


@pytest.fixture
def disk(root: Path) -> Disk:
    return prepared(Disk(str(root)))


def prepared(disk: Disk) -> Disk:
    disk.in_memory.prepare()
    assert disk.in_memory.begin_read()
    return disk


def in_memory(disk: Disk, path: str) -> bytes | None:
    """What is read without waiting; None if that is not possible."""
    try:
        return disk.in_memory.read_file(path)[0]
    except BlockingIOError:
        return None


ATTEMPTS = 6_000
"""What is in memory may be refused for a moment, while others rename files or mount file systems."""


def attempted(read: Callable[[], T]) -> T:
    """What a read returns that does not wait, at one of many attempts."""
    for _ in range(ATTEMPTS):
        with suppress(BlockingIOError):
            return read()
        time.sleep(0.005)
    raise AssertionError("it is not in memory")


def kept_in_memory(disk: Disk, path: str) -> bytes:
    return attempted(lambda: disk.in_memory.read_file(path)[0])


async def without_threads(call: Callable[[], Awaitable[T]]) -> T:
    """What a call returns that uses no thread, at one of many attempts."""
    for _ in range(ATTEMPTS):
        with suppress(ThreadUsedError):
            return await call()
        await anyio.sleep(0.005)
    raise AssertionError("a worker thread was used")


class ThreadUsedError(Exception):
    """Raised instead of using a worker thread."""


def link_to(link: Path, target: Path) -> None:
    """Make a link that the system can follow in memory: it need not record that the link was used since its change."""
    link.symlink_to(target)
    now = time.time()
    os.utime(link, (now + 3600, now), follow_symlinks=False)


# --- what is read in memory ------------------------------------------------------------------------------------------


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def forbid() -> None:
        def run(*_: Any, **__: Any) -> Any:
            raise ThreadUsedError

        monkeypatch.setattr(pool, "run", run)
        monkeypatch.setattr(pool, "run_each", run)

    return forbid


async def test_after_the_first_read_no_thread_is_used(root: Path, no_threads: Callable[[], None]) -> None:
    backend = FilesystemBackend(root)
    first = await backend.aread("/dir/file.txt")
    no_threads()
    assert await without_threads(lambda: backend.aread("/dir/file.txt")) == first
    assert first.file_data is not None
    assert first.file_data.content == TEXT
    raw = await without_threads(lambda: backend.aread_raw("/dir/file.txt"))
    assert raw.data is not None
    assert raw.data.content == TEXT
    [downloaded] = await without_threads(lambda: backend.adownload_files(["/dir/file.txt"]))
    assert downloaded.content == TEXT.encode()


async def test_an_evicted_file_is_read_by_a_thread(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, refused, run = FilesystemBackend(root), list[int](), pool.run
    first = await backend.aread("/dir/file.txt")

    def evicted(descriptor: int, *_: Any) -> int:
        """What the kernel answers of a file that it has forgotten; asked to forget one, it may keep it for long."""
        refused.append(descriptor)
        raise BlockingIOError

    async def read_in_a_thread(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        return await run(*args, **options)

    monkeypatch.setattr(os, "preadv", evicted)
    while not refused:
        assert await backend.aread("/dir/file.txt") == first
    monkeypatch.setattr(pool, "run", read_in_a_thread)
    assert await backend.aread("/dir/file.txt") == first
    assert pool.run is run, "a thread read it"


def test_the_root_may_be_a_link(root: Path) -> None:
    link_to(root.parent / "link", root)
    assert kept_in_memory(prepared(Disk(f"{root.parent}/link")), "/dir/file.txt") == TEXT.encode()


@pytest.fixture
def in_root(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)


@pytest.mark.parametrize("is_relative", [False, True])
@pytest.mark.usefixtures("in_root")
async def test_without_confinement_a_read_makes_no_blocking_call(root: Path, is_relative: bool) -> None:
    backend = FilesystemBackend("." if is_relative else root, virtual_mode=False)
    for path in ("dir/file.txt", f"{root}/dir/file.txt", "dir/file.txt"):
        found = await backend.aread(path)
        assert found.file_data is not None
        assert found.file_data.content == TEXT


# --- what is left to a worker ----------------------------------------------------------------------------------------


def test_links_special_files_and_errors_are_left_to_a_worker(root: Path, disk: Disk) -> None:
    before = open_descriptors()
    (root / "link").symlink_to("dir/file.txt")
    (root / "out").symlink_to(root.parent)
    (root / "linked").symlink_to("dir")
    (root / "large").write_bytes(b"x" * (MAX_BYTES + 1))
    (root / f"{PREFIX}{'0' * 16}").write_text("temporary")
    (root / "closed").write_text("x")
    linked = ["/link", "/out/root/dir/file.txt", "/linked/file.txt"]
    for path in linked:
        assert (root / path[1:]).read_text() == TEXT  # Now the system has the links in memory.
    others = ["/large", f"/{PREFIX}{'0' * 16}", "/dir", "/", "/none", "/dir/file.txt/x"]
    assert [path for path in [*linked, *others] if in_memory(disk, path) is not None] == []
    assert open_descriptors() == before


def test_a_fifo_and_a_socket_are_not_opened(root: Path, disk: Disk) -> None:
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "socket"))
        assert in_memory(disk, "/socket") is None
    woken = threading.Event()

    def write() -> None:
        os.close(os.open(root / "fifo", os.O_WRONLY))  # Waits until somebody opens the other end.
        woken.set()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    for _ in range(100):
        assert in_memory(disk, "/fifo") is None
    assert not woken.wait(0.2)
    os.close(os.open(root / "fifo", os.O_RDONLY | os.O_NONBLOCK))
    assert woken.wait(30)


def test_another_file_system_is_left_to_a_worker() -> None:
    disk = prepared(Disk("/"))
    assert disk.read_file("/proc/stat")[0]
    assert in_memory(disk, "/proc/stat") is None
    proc = Disk("/proc")
    proc.in_memory.prepare()
    assert not proc.in_memory.begin_read()


def test_a_refusal_of_the_file_system_is_remembered(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refused(descriptor: int, *_: Any) -> int:
        asked.append(descriptor)
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "preadv", refused)
    while not asked:
        assert in_memory(disk, "/dir/file.txt") is None
    monkeypatch.undo()
    disk.in_memory.prepare()
    assert not disk.in_memory.begin_read()


def test_a_file_that_becomes_shorter_while_it_is_read_is_left_to_a_worker(
    root: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv = os.preadv

    def shortened(*args: Any) -> int:
        os.truncate(root / "dir/file.txt", 3)
        return preadv(*args)

    monkeypatch.setattr(os, "preadv", shortened)
    assert in_memory(disk, "/dir/file.txt") is None


class Refusing:
    """Refuses one path."""

    def __init__(self, refused: str) -> None:
        self.refused = refused
        self.asked: list[str] = []

    def check(self, path: str, role: str, shown: str) -> None:
        self.asked.append(path)
        if path == self.refused:
            raise PermissionDeniedError(shown, "refused")


def test_a_judge_is_asked_before_a_file_is_found(root: Path, disk: Disk) -> None:
    judge = Refusing("/dir/file.txt")
    view = prepared(disk.with_access(judge))
    (root / "other").write_text("other")
    assert in_memory(view, "/dir/file.txt") is None
    assert in_memory(view, "/none") is None
    assert judge.asked == ["/dir/file.txt", "/none"]
    assert kept_in_memory(view, "/other") == b"other"
    with pytest.raises(PermissionDeniedError):
        view.read_file("/dir/file.txt")


# --- the same results ------------------------------------------------------------------------------------------------

CONTENTS = st.one_of(
    st.binary(max_size=60),
    st.text(st.sampled_from("ab\n\r\ufeff\u00e9\0"), max_size=40).map(str.encode),
    st.integers(0, 300).map(lambda count: b"line\n" * count),
)


@given(content=CONTENTS, offset=st.integers(-2, 12), limit=st.integers(-1, 12), is_old=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_window_is_the_same_as_from_a_worker(
    root: Path, disk: Disk, content: bytes, offset: int, limit: int, is_old: bool
) -> None:
    (root / "file").write_bytes(content)
    if is_old:
        os.utime(root / "file", (1, 1))

    def outcome(read: Callable[[], Any]) -> object:
        try:
            reading = attempted(read)
        except DeepFSError as error:
            return str(error)
        return reading.shown, reading.version

    for _ in range(2):  # The second time, facts may be cached.
        found = outcome(lambda: disk.in_memory.read_window("/file", offset, limit))
        assert found == outcome(lambda: disk.read_window("/file", offset, limit))
        assert attempted(lambda: disk.in_memory.read_whole("/file", 1 << 20)).version == version(content)


@pytest.mark.parametrize("confined", [True, False])
async def test_paths_without_links_are_resolved_without_a_thread(
    root: Path, confined: bool, no_threads: Callable[[], None]
) -> None:
    backend, above = FilesystemBackend(root, virtual_mode=confined), "" if confined else str(root)
    given = [f"{above}{path}" for path in ("/dir/file.txt", "/dir/", "/dir/../..")]
    expected = [f"{above}/dir/file.txt", f"{above}/dir", None if confined else str(root.parent)]
    assert await backend.aresolve_paths(given) == expected
    assert await backend.aresolve_paths([]) == []
    no_threads()
    assert await without_threads(lambda: backend.aresolve_paths(given[:2])) == expected[:2]


# --- turns of the loop -----------------------------------------------------------------------------------------------


async def test_many_reads_at_once_leave_turns_to_other_tasks_and_are_served_in_order(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, served = FilesystemBackend(root), list[int]()
    await backend.aread("/dir/file.txt")
    monkeypatch.setattr(loop_bridge, "_WORK_S", 0)  # Each turn has time for one read.

    async def read(number: int) -> None:
        assert (await backend.aread("/dir/file.txt")).ok
        served.append(number)

    turns = 0
    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(read, number)
        while len(served) < 50:
            turns += 1
            await anyio.lowlevel.checkpoint()
    assert turns >= 50
    assert sorted(served) == list(range(50))


async def test_a_cancelled_reader_leaves_the_queue_to_the_others(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, served = FilesystemBackend(root), list[int]()
    await backend.aread("/dir/file.txt")
    monkeypatch.setattr(loop_bridge, "_WORK_S", 0)

    async def read(number: int, scope: anyio.CancelScope) -> None:
        with scope:
            await backend.aread("/dir/file.txt")
            served.append(number)

    scopes = [anyio.CancelScope() for _ in range(30)]
    async with anyio.create_task_group() as tasks:
        for number, scope in enumerate(scopes):
            tasks.start_soon(read, number, scope)
        await anyio.lowlevel.checkpoint()
        for scope in scopes[1::2]:
            scope.cancel()
    assert set(served) >= set(range(0, 30, 2))


async def test_a_turn_ends_whatever_a_signal_handler_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = loop_bridge.loop_callbacks()

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_call_soon", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.work(int)
    with anyio.fail_after(10):
        await loop.next_turn()
