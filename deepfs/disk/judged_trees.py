"""Judging whole trees, before they are moved, copied or deleted."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress

from deepfs.disk.os_calls import NO_FOLLOW, READ_DIRECTORY, leaf
from deepfs.disk.resolve import Place, Root
from deepfs.disk.walking import Descent, OpenDirectory
from deepfs.errors import PermissionDeniedError
from deepfs.text import paths
from deepfs.threads.deadline import Deadline

__all__ = ["check_tree"]


def check_tree(
    root: Root, source: Place, src: str, deadline: Deadline, target: Place | None = None, dst: str = ""
) -> None:
    """Ask the judge of `root`, if it has one, about all under the directory `source`, and about its places in `target`.

    Links are not followed. Raises the error of a refusal, about `src` or `dst`, and PermissionDeniedError if a
    directory cannot be listed.
    """
    if root.judge is None:
        return

    def ask(path: str) -> None:
        root.check(path, "source", src)
        if target is not None:
            root.check(paths.join(target.path, paths.relative(path, source.path)), "target", dst)

    _Judging(src, deadline, ask).run(source)


class _Level(OpenDirectory):
    """A directory being judged; `children` are asked about one after another."""

    __slots__ = ("children", "path")

    def __init__(self, parent: int, name: str, path: str) -> None:
        super().__init__(name, os.open(name, READ_DIRECTORY | NO_FOLLOW, dir_fd=parent))
        self.path: str = path
        with os.scandir(self.descriptor) as children:
            self.children: Iterator[os.DirEntry[str]] = iter(list(children))


class _Judging:
    """Asks about every entry beneath a directory, whatever its name."""

    def __init__(self, src: str, deadline: Deadline, ask: Callable[[str], None]) -> None:
        self._src = src
        self._deadline = deadline
        self._ask = ask

    def run(self, source: Place) -> None:
        with Descent[_Level](by_names=False) as descent:
            self._enter(descent, source.directory, source.name, source.path)
            while descent.levels:
                level = descent.levels[-1]
                if level.lost is not None:
                    raise leaf(level.lost, self._src) from level.lost
                if (child := self._next_directory(level)) is None:
                    descent.leave()
                else:
                    self._enter(descent, level.descriptor, child, paths.join(level.path, child))

    def _next_directory(self, level: _Level) -> str | None:
        for child in level.children:
            self._deadline.check_cancelled(self._src)
            self._ask(paths.join(level.path, child.name))
            if child.is_dir(follow_symlinks=False):
                return child.name
        return None

    def _enter(self, descent: Descent[_Level], parent: int, name: str, path: str) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            try:
                descent.enter(_Level(parent, name, path))
            except PermissionError as error:
                raise PermissionDeniedError(self._src, "not everything beneath it can be listed") from error
