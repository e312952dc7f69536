"""Special files are refused without being opened: opening a FIFO wakes its writers, a device may do anything."""

import ctypes
import os
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from anyio.to_thread import run_sync as in_thread

from deepfs.backends.filesystem import FilesystemBackend
from deepfs.disk import os_calls
from deepfs.errors import DeepFSError
from deepfs.text.entries import EntryChange
from support.promises import keeps

pytestmark = pytest.mark.anyio

_IN_OPEN, _NONBLOCK = 0x20, os.O_NONBLOCK
_TEMPORARY = f"{os_calls.PREFIX}0123456789abcdef"


@contextmanager
def openings(path: Path) -> Iterator[Callable[[], int]]:
    """Counts how often a file is opened, as the kernel reports it."""
    libc = ctypes.CDLL(None, use_errno=True)
    events = libc.inotify_init1(_NONBLOCK)
    assert libc.inotify_add_watch(events, os.fsencode(path), _IN_OPEN) >= 0

    def count() -> int:
        try:
            return sum(bool(mask & _IN_OPEN) for _, mask, _, _ in struct.iter_unpack("iIII", os.read(events, 4096)))
        except BlockingIOError:
            return 0

    try:
        yield count
    finally:
        os.close(events)


async def stream(backend: FilesystemBackend) -> object:
    try:
        return [chunk async for chunk in backend.adownload_stream("/d/fifo")]
    except DeepFSError as error:
        return error


CALLS: dict[str, Callable[[FilesystemBackend], Awaitable[object]]] = {
    "read": lambda backend: backend.aread("/d/fifo"),
    "read by a link": lambda backend: backend.aread("/d/link"),
    "read_raw": lambda backend: backend.aread_raw("/d/fifo"),
    "download": lambda backend: backend.adownload_files(["/d/fifo"]),
    "download_stream": stream,
    "ls": lambda backend: backend.als("/d"),
    "glob": lambda backend: backend.aglob("**"),
    "grep": lambda backend: backend.agrep("x", "/d"),
    "grep of it": lambda backend: backend.agrep("x", "/d/fifo"),
    "list_tree": lambda backend: backend.alist_tree("/d"),
    "write": lambda backend: backend.awrite("/d/fifo", "x", overwrite=True),
    "write a version": lambda backend: backend.awrite("/d/fifo", "x", if_match="0"),
    "edit": lambda backend: backend.aedit("/d/fifo", "a", "b"),
    "upload": lambda backend: backend.aupload_files([("/d/fifo", b"x")]),
    "copy": lambda backend: backend.acopy("/d/fifo", "/copy"),
    "copy a tree": lambda backend: backend.acopy("/d", "/copy"),
    "copy onto it": lambda backend: backend.acopy("/file", "/d/fifo", overwrite=True),
    "move": lambda backend: backend.amove("/d/fifo", "/moved"),
    "delete a version": lambda backend: backend.adelete("/d/fifo", if_match="0"),
    "delete": lambda backend: backend.adelete("/d/fifo"),
    "set a mode": lambda backend: backend.achange_entries([EntryChange("/d/fifo", "set_mode", 0o600)]),
}


def make(root: Path) -> Path:
    (root / "d").mkdir()
    (root / "file").write_text("x")
    os.mkfifo(root / "d" / "fifo")
    (root / "d" / "link").symlink_to("fifo")
    (root / "d" / ".gitignore").symlink_to("fifo")
    return root / "d" / "fifo"


@keeps("Special files are never opened.")
@pytest.mark.parametrize("virtual_mode", [True, False])
async def test_special_files_are_not_opened(tmp_path: Path, virtual_mode: bool) -> None:
    for number, name in enumerate(CALLS):
        root = tmp_path / str(number)
        await in_thread(root.mkdir)
        fifo = await in_thread(make, root)
        backend = FilesystemBackend(root, ignore="git") if virtual_mode else At(root)
        with openings(fifo) as count:
            await CALLS[name](backend)
            assert await in_thread(count) == 0, name


class At(FilesystemBackend):
    """Files of the host without confinement, in whose paths `/` stands for a directory."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, False, ignore="git")
        self._root = root

    def _path(self, path: str) -> str:
        return super()._path(f"{self._root}{path}" if path else "")


async def test_a_special_file_with_the_name_of_a_temporary_one_is_not_opened(tmp_path: Path) -> None:
    await in_thread(os.mkfifo, tmp_path / _TEMPORARY)
    with openings(tmp_path / _TEMPORARY) as count:
        assert (await FilesystemBackend(tmp_path).awrite("/file", "x")).ok
        assert await in_thread(count) == 0
