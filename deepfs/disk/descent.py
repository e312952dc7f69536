"""The way down a tree, with few directories open however deep it is.

A directory that is left open while the way leads beneath it costs a descriptor a level. Only the last few stay open
here; one further up is opened anew from the one below it, and must be the same one still.
"""

import errno
import os
from contextlib import ExitStack
from typing import Generic, TypeVar

from deepfs.disk.file_locks import FileId, file_id
from deepfs.disk.resolve import NO_FOLLOW, READ_DIRECTORY, release

__all__ = ["Descent", "OpenDirectory"]

_OPEN_LEVELS = 8


class OpenDirectory:
    """A directory called `name` that can be closed and opened anew; its descriptor is -1 while it is closed.

    One that is `borrowed` is closed by the caller.
    """

    __slots__ = ("_id", "borrowed", "descriptor", "lost", "name")

    def __init__(self, name: str, descriptor: int, *, borrowed: bool = False) -> None:
        self.name: str = name
        self.descriptor: int = descriptor
        self.borrowed: bool = borrowed
        self.lost: OSError | None = None
        """Why it could not be opened anew."""
        self._id: FileId | None = None

    def rest(self) -> None:
        """Close it for a while, unless that was done."""
        if self.descriptor < 0:
            return
        self._id = file_id(os.fstat(self.descriptor))
        self.close()

    def wake(self, child: "OpenDirectory") -> None:
        """Open it again, from the open directory `child` in it; OSError where that is somewhere else by now."""
        if self.descriptor < 0:
            # The kernel follows no link for `..`, and what it leads to was opened from the root before.
            self.take(os.open("..", READ_DIRECTORY, dir_fd=child.descriptor))

    def take(self, descriptor: int) -> None:
        """Go on with a descriptor; OSError where it is of another directory."""
        if file_id(os.fstat(descriptor)) != self._id:
            release(descriptor)
            raise OSError(errno.ESTALE, "it was moved meanwhile")
        self.descriptor = descriptor

    def close(self) -> None:
        """Close it."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0 and not self.borrowed:
            release(descriptor)


LevelT = TypeVar("LevelT", bound=OpenDirectory)


class Descent(Generic[LevelT]):
    """The directories from where a way began, which stays open, to where it is; as a context that closes them.

    With `by_names` a directory is also looked for by the names that led to it.
    """

    def __init__(self, *, by_names: bool = True) -> None:
        self.levels: list[LevelT] = []
        self._looks_by_names = by_names

    def __enter__(self) -> "Descent[LevelT]":
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as closing:
            for level in self.levels:
                closing.callback(level.close)

    def enter(self, level: LevelT) -> None:
        """Go down into `level`, a directory in the last one."""
        self.levels.append(level)
        if len(self.levels) > _OPEN_LEVELS + 1:
            self.levels[-_OPEN_LEVELS - 1].rest()

    def leave(self) -> LevelT:
        """Go up again, and return the level that was left, closed; the one above is `lost` where it is not there."""
        level = self.levels.pop()
        try:
            if self.levels:
                self._wake(self.levels[-1], level)
        finally:
            level.close()
        return level

    def _wake(self, level: LevelT, child: LevelT) -> None:
        try:
            try:
                level.wake(child)
            except OSError:  # The child is gone, or was moved.
                if not self._looks_by_names:
                    raise
                level.take(self._by_names())
        except OSError as error:
            level.lost = error

    def _by_names(self) -> int:
        directory = os.dup(self.levels[0].descriptor)
        for level in self.levels[1:]:
            try:
                child = os.open(level.name, READ_DIRECTORY | NO_FOLLOW, dir_fd=directory)
            finally:
                release(directory)
            directory = child
        return directory
