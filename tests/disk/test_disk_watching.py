"""Watching a directory: what other programs do to it is told, whatever they do, and nothing outside of it is."""

import ctypes
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from deepfs import FilesystemBackend
from deepfs.disk import Deadline, Disk
from deepfs.disk import watching as disk_watching
from deepfs.errors import BackendError, NotSupportedError, PermissionDeniedError
from deepfs.testing.conformance.at_once import WatchReader, watch_changes
from deepfs.types import ChangeEvent
from support.waiting import until, until_tasks_wait

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "dir" / "deep").mkdir(parents=True)
    (root / "a.txt").write_text("a")
    (root / "dir" / "b.txt").write_text("b")
    (root / "dir" / "deep" / "c.txt").write_text("c")
    return root


async def outside(work: Callable[..., Any], *args: Any) -> None:
    """Change files as another program would."""
    await anyio.to_thread.run_sync(lambda: work(*args))


async def told(reader: WatchReader, root: Path) -> list[ChangeEvent]:
    """The events of all that happened so far, without those about the file that marks the end."""
    reader.received.clear()
    await outside((root / "end").write_text, "")
    await reader.expect("/end", "created")
    await outside((root / "end").unlink)
    await reader.expect("/end", "deleted")
    return [event for event in reader.received if event.path != "/end"]


def _kinds(events: list[ChangeEvent]) -> list[tuple[str, str]]:
    return sorted({(event.path, event.kind) for event in events})


async def test_what_other_programs_do_is_told(root: Path) -> None:
    def replace(name: str) -> None:
        (root / "new").write_text("new")
        (root / "new").replace(root / name)

    def append() -> None:
        with open(root / "dir" / "b.txt", "a") as file:
            file.write("more")

    async with watch_changes(FilesystemBackend(root)) as reader:
        assert reader.files == {"/a.txt", "/dir/b.txt", "/dir/deep/c.txt"}
        await outside(append)
        assert _kinds(await told(reader, root)) == [("/dir/b.txt", "modified")]
        await outside(replace, "a.txt")
        assert ("/a.txt", "modified") in _kinds(await told(reader, root))
        await outside(replace, "other.txt")
        assert ("/other.txt", "created") in _kinds(await told(reader, root))
        await outside((root / "a.txt").unlink)
        assert _kinds(await told(reader, root)) == [("/a.txt", "deleted")]
        await outside((root / "dir").chmod, 0o700)
        await outside(os.utime, root / "other.txt", (1, 1))
        assert await told(reader, root) == [], "neither modes nor times are content"


async def test_files_in_directories_that_are_new_are_told_however_fast_they_come(root: Path) -> None:
    def make() -> None:
        for number in range(100):
            (root / f"{number}" / "x" / "y").mkdir(parents=True)
            for name in ("1", "2"):
                (root / f"{number}" / "x" / "y" / name).touch()

    async with watch_changes(FilesystemBackend(root)) as reader, anyio.create_task_group() as group:
        group.start_soon(outside, make)
        made = {f"/{number}/x/y/{name}" for number in range(100) for name in ("1", "2")}
        await reader.until(lambda: made <= reader.files)


async def test_directories_that_are_moved_in_and_out_are_told_file_by_file(root: Path, tmp_path: Path) -> None:
    async with watch_changes(FilesystemBackend(root)) as reader:
        await outside((root / "dir").rename, tmp_path / "gone")
        assert _kinds(await told(reader, root)) == [("/dir/b.txt", "deleted"), ("/dir/deep/c.txt", "deleted")]
        await outside((tmp_path / "gone" / "deep" / "c.txt").write_text, "not seen any more")
        assert await told(reader, root) == []
        await outside((tmp_path / "gone").rename, root / "back")
        assert _kinds(await told(reader, root)) == [
            ("/back", "resync"), ("/back/b.txt", "created"), ("/back/deep/c.txt", "created"),
        ]  # fmt: skip
        await outside((root / "back" / "deep" / "c.txt").write_text, "seen again")
        assert _kinds(await told(reader, root)) == [("/back/deep/c.txt", "modified")]


GOING: dict[str, Callable[[Path, Path], object]] = {
    "removed": lambda root, _: shutil.rmtree(root / "new"),
    "renamed": lambda root, _: (root / "new").rename(root / "other"),
    "moved away": lambda root, away: (root / "new").rename(away / "new"),
    "without a file": lambda root, _: (root / "new" / "sub" / "seen.txt").unlink(),
    "as a file": lambda root, _: (shutil.rmtree(root / "new"), (root / "new").touch()),
}


@pytest.mark.parametrize("goes", GOING.values(), ids=GOING)
@pytest.mark.parametrize("path", ["/", "/new"])
def test_of_a_new_directory_that_a_reader_saw_no_deletion_is_missed(
    root: Path, tmp_path: Path, path: str, goes: Callable[[Path, Path], object]
) -> None:
    watch = Disk(str(root)).watch(path)
    watch.start(Deadline())
    (root / "new" / "sub").mkdir(parents=True)
    (root / "new" / "sub" / "seen.txt").touch()
    goes(root, tmp_path)  # A reader may have seen the file by now.
    events = [event for _ in range(3) for event in watch.changes(Deadline())]
    watch.close()
    assert ("/new", "resync") in _kinds(events)


async def test_nothing_behind_links_to_directories_is_told(root: Path, tmp_path: Path) -> None:
    await outside((tmp_path / "outside").mkdir)
    await outside((root / "out").symlink_to, tmp_path / "outside")
    async with watch_changes(FilesystemBackend(root)) as reader:
        await outside((tmp_path / "outside" / "secret.txt").touch)
        await outside((root / "around").symlink_to, root / "dir")
        await outside((root / "out-too").symlink_to, tmp_path / "outside" / "secret.txt")
        await outside((root / "link.txt").symlink_to, "dir/b.txt")
        await outside((tmp_path / "outside" / "secret.txt").write_text, "changed")
        await outside((root / "dir" / "b.txt").write_text, "changed")
        events = await told(reader, root)
        assert _kinds(events) == [("/dir/b.txt", "modified"), ("/link.txt", "created")]
        await outside(os.replace, root / "out-too", root / "a.txt")
        assert ("/a.txt", "deleted") in _kinds(await told(reader, root)), "what leads outside is no file here"
    with pytest.raises(PermissionDeniedError):
        await anext(FilesystemBackend(root).awatch("/out"))


async def test_strange_names_and_special_files_neither_raise_nor_are_told(root: Path) -> None:
    def make() -> None:
        (root / os.fsdecode(b"\xff\xfe")).touch()
        (root / os.fsdecode(b"\xff-dir")).mkdir()
        (root / os.fsdecode(b"\xff-dir") / "inside").touch()
        (root / ".~deepfs-0123456789abcdef").touch()
        os.mkfifo(root / "pipe")
        (root / "line\nbreak").touch()
        (root / ".hidden").touch()

    async with watch_changes(FilesystemBackend(root)) as reader:
        await outside(make)
        assert _kinds(await told(reader, root)) == [("/.hidden", "created"), ("/line\nbreak", "created")]


async def test_a_directory_that_is_deleted_and_made_anew_stays_watched(root: Path) -> None:
    def remake() -> None:
        shutil.rmtree(root / "dir")
        (root / "dir").mkdir()
        (root / "dir" / "new.txt").touch()

    async with watch_changes(FilesystemBackend(root), "/dir") as reader:
        await outside(remake)
        await reader.until(lambda: reader.files == {"/dir/new.txt"})
        assert ("/dir", "resync") in _kinds(reader.received[1:])
        await outside(shutil.rmtree, root)
        await reader.until(lambda: not reader.files)
        await outside((root / "dir" / "more").mkdir, 0o755, True)
        await outside((root / "dir" / "more" / "last.txt").touch)
        await reader.until(lambda: reader.files == {"/dir/more/last.txt"})
        await outside((root / "dir" / "more" / "last.txt").write_text, "x")
        await reader.expect("/dir/more/last.txt", "modified")


async def test_a_watched_file_may_come_go_and_be_replaced(root: Path) -> None:
    def replace() -> None:
        (root / "dir" / "new").write_text("new")
        (root / "dir" / "new").replace(root / "dir" / "b.txt")

    backend = FilesystemBackend(root)
    async with watch_changes(backend, "/dir/b.txt") as reader:
        await outside(replace)
        await reader.expect("/dir/b.txt", "modified")
        await outside((root / "dir" / "b.txt").unlink)
        await reader.expect("/dir/b.txt", "deleted")
        assert (await backend.awrite("/dir/b.txt", "again")).ok
        await reader.expect("/dir/b.txt", "created")
        await outside((root / "dir").rename, root / "elsewhere")
        await reader.expect("/dir/b.txt", "deleted")
        await outside((root / "elsewhere").rename, root / "dir")
        await reader.expect("/dir/b.txt", "created")
        await outside((root / "dir" / "b.txt").unlink)
        await outside((root / "dir" / "b.txt").mkdir)
        await outside((root / "dir" / "b.txt" / "inside.txt").touch)
        await reader.until(lambda: reader.files == {"/dir/b.txt/inside.txt"})


async def test_where_the_system_dropped_events_a_resync_says_so(root: Path) -> None:
    def storm() -> None:
        queue = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
        for _ in range(queue // 4 + 100):
            os.rename(root / "a.txt", root / "z.txt")
            os.rename(root / "z.txt", root / "a.txt")
        (root / "dropped.txt").touch()

    async with watch_changes(FilesystemBackend(root)) as reader:
        await outside(storm)
        await reader.until(lambda: "/dropped.txt" in reader.files)
        assert ChangeEvent("/", "resync") in reader.received[1:]
        await outside((root / "dir" / "later.txt").touch)
        await reader.expect("/dir/later.txt", "created")


async def test_nothing_is_left_of_watches_that_ended(root: Path) -> None:
    def held() -> int:
        links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        return sum(os.path.lexists(link) and "inotify" in os.readlink(link) for link in links)

    backend = FilesystemBackend(root)
    before = await anyio.to_thread.run_sync(held)
    waiting: list[WatchReader] = []

    async def wait() -> None:
        async with watch_changes(backend) as reader:
            waiting.append(reader)
            await reader.expect("/never", "created")

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(wait)
            await until(lambda: len(waiting) == 10)
            await until_tasks_wait()
            assert await anyio.to_thread.run_sync(held) == before + 10
            group.cancel_scope.cancel()
    for path in ("/", "/../x"):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anext(backend.awatch(path))
    assert await anyio.to_thread.run_sync(held) == before


async def test_limits_of_the_system_are_told_by_name(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def __init__(self, **errors: int) -> None:
            self.errors = errors

        def __getattr__(self, name: str) -> Any:
            def call(*args: Any) -> int:
                if name in self.errors:
                    ctypes.set_errno(self.errors[name])
                    return -1
                return int(getattr(ctypes.CDLL(None, use_errno=True), name)(*args))

            return call

    for errors, limit in (({"inotify_init1": 24}, "max_user_instances"), ({"inotify_add_watch": 28}, "max_user_watch")):
        monkeypatch.setattr(disk_watching, "_library", lambda errors=errors: Library(**errors))
        with pytest.raises(BackendError, match=limit) as caught:
            await anext(FilesystemBackend(root).awatch("/"))
        assert str(root) not in str(caught.value)


async def test_systems_without_inotify_do_not_watch(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_watching, "CAN_WATCH", False)
    with pytest.raises(NotSupportedError, match="Linux"):
        await anext(FilesystemBackend(root).awatch("/"))
