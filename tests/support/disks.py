"""Helpers for tests of files on disk."""

import ctypes
import errno
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

from deepfs.disk import Disk, FoundFile
from deepfs.disk.file_locks import LockHeldError

__all__ = [
    "Faults",
    "Swapping",
    "open_descriptors",
    "public_directory",
    "recorded_modes",
    "seen_by_nobody",
    "tree",
    "walk",
    "when_free",
]

P = ParamSpec("P")
T = TypeVar("T")

_NOBODY = 65534
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def tree(root: Path) -> dict[str, bytes | str | None]:
    """Everything beneath `root`, by relative path: content of files, `-> target` of symlinks, None for directories."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_dir():
            found[name] = None
        else:
            found[name] = path.read_bytes() if path.is_file() else "special"
    return found


def walk(disk: Disk, path: str, **options: Any) -> Generator[FoundFile, None, None]:
    """The files that `Disk.walk_runs` finds, one by one."""
    with closing(disk.walk_runs(path, **options)) as runs:
        for run in runs:
            yield from run


def when_free(change: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Make a change of a Disk again and again, as backends do, until nobody else holds the lock of a file in it."""
    while True:
        with suppress(LockHeldError):
            return change(*args, **options)
        time.sleep(0.001)


def open_descriptors() -> set[str]:
    """The open file descriptors of this process, without the one that the listing itself uses."""
    return {name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}


@contextmanager
def seen_by_nobody() -> Iterator[None]:
    """Run the body as an unprivileged user if the tests run as root, so that permission bits apply."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(_NOBODY)
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@contextmanager
def public_directory() -> Iterator[Path]:
    """A directory where every user may do everything; pytest's temporary directories are closed to other users."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield Path(name)


def recorded_modes(monkeypatch: pytest.MonkeyPatch, root: Path) -> set[int]:
    """The permission bits that regular files beneath `root` have whenever content goes in or they get a name."""
    found: set[int] = set()

    def note(path: str, status: os.stat_result) -> None:
        if stat.S_ISREG(status.st_mode) and path.startswith(f"{root}/"):
            found.add(stat.S_IMODE(status.st_mode))

    def writing(call: Callable[..., int]) -> Callable[..., int]:
        def write(descriptor: int, data: Any, *rest: Any) -> int:
            note(os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor))
            return call(descriptor, data, *rest)

        return write

    def naming(call: Callable[..., None]) -> Callable[..., None]:
        def name(src: str, dst: str, *, src_dir_fd: int, **options: Any) -> None:
            directory = os.readlink(f"/proc/self/fd/{src_dir_fd}")
            note(f"{directory}/{src}", os.stat(src, dir_fd=src_dir_fd, follow_symlinks=False))
            call(src, dst, src_dir_fd=src_dir_fd, **options)

        return name

    monkeypatch.setattr(os, "write", writing(os.write))
    monkeypatch.setattr(os, "link", naming(os.link))
    monkeypatch.setattr(os, "rename", naming(os.rename))
    return found


class Swapping:
    """Keeps swapping `inside` for a symlink to `outside` and back, in a thread, until the context ends."""

    def __init__(self, inside: Path, outside: Path) -> None:
        self.count = 0
        self._inside = os.fsencode(inside)
        self._outside = os.fsencode(outside)
        self._link = os.fsencode(inside.with_name(".link"))
        os.symlink(self._outside, self._link)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._swap)

    def _swap(self) -> None:
        while not self._stop.is_set():
            # The name exists at every instant, so nothing can be created in between.
            if not self._libc.renameat2(_AT_FDCWD, self._inside, _AT_FDCWD, self._link, _RENAME_EXCHANGE):
                self.count += 1
            else:
                # One of the two was deleted; if it was the one inside, the test's own writes create it again.
                with suppress(FileExistsError):
                    os.symlink(self._outside, self._link)

    def __enter__(self) -> "Swapping":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Faults:
    """Makes the n-th of the watched calls fail, counted from 0; all other calls work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: object, names: list[str]) -> None:
        self._calls = 0
        self._at = -1
        self._make: Callable[[], BaseException] = lambda: OSError(errno.EIO, "injected")
        self.hit: str | None = None
        for name in names:
            monkeypatch.setattr(module, name, self._watched(name, getattr(module, name)))

    def _watched(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def watched(*args: object, **kwargs: object) -> object:
            self._calls += 1
            if self._calls - 1 != self._at:
                return call(*args, **kwargs)
            self.hit = name
            if name == "close":
                # A failed close frees the descriptor as well.
                call(*args, **kwargs)
            raise self._make()

        return watched

    def arm(self, at: int, make: Callable[[], BaseException]) -> None:
        """Restart the count, and make call `at` fail with the error that `make` returns."""
        self._calls, self._at, self._make, self.hit = 0, at, make, None

    def disarm(self) -> None:
        """Let all calls work."""
        self._at = -1
