"""Makes files cold: the next access to them has to wait for the disk."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

__all__ = ["evict_all", "evicting", "may_evict_all", "pages_evicted"]

_DROP: Final = Path("/proc/sys/vm/drop_caches")


def evicting(root: Path) -> Callable[[], AbstractContextManager[None]]:
    """A context for contenders: on entry, no page of a file below `root` is in memory. Names and inodes may be."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    os.sync()  # Pages that are not written yet cannot be evicted.

    @contextmanager
    def evicted() -> Iterator[None]:
        for path in files:
            _evict(path)
        yield

    return evicted


def _evict(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def pages_evicted(path: Path) -> bool | None:
    """Whether the first page of a file is not in memory; None if the file system does not tell."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return None
    finally:
        os.close(descriptor)
    return False


def may_evict_all() -> bool:
    """Whether this process may evict the names, inodes and pages of all files of the machine."""
    return os.access(_DROP, os.W_OK)


@contextmanager
def evict_all() -> Iterator[None]:
    """A context for contenders: on entry, nothing of any file is in memory, its name and directory included."""
    os.sync()
    _DROP.write_text("3")
    yield
