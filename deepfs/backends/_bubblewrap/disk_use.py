"""How much room a directory takes."""

import os

from deepfs.core.cancellation import Cancellation

__all__ = ["is_beyond"]

_BLOCK = 512


def is_beyond(cancellation: Cancellation, directory: str, limit: int) -> bool:
    """Whether the files beneath `directory` take more than `limit` bytes of the disk; follows no link."""
    total = 0
    waiting = [directory]
    while waiting:
        cancellation.check()
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    total += _size(entry)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:
            continue
        if total > limit:
            return True
    return False


def _size(entry: "os.DirEntry[str]") -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks * _BLOCK
    except OSError:
        return 0
