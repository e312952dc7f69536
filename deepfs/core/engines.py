"""How searches go over a tree on disk: file after file in this process, or only where ripgrep finds something."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from time import monotonic
from typing import Protocol

from deepfs.core.excusing import WithRipgrep
from deepfs.core.passes import Pass, Walk
from deepfs.core.ripgrep import RipgrepError, find_ripgrep
from deepfs.core.tasks import AnyTask, GrepTask

__all__ = ["Automatic", "Engine", "InProcess", "WithRipgrep"]

FEW = 300
"""Files of a tree that are searched here first: in the time for which ripgrep only begins and ends."""

_BELIEVED_S = 300.0
_MOST_ROOTS = 256


class Engine(Protocol):
    """A way to carry out a pass. All engines find the same."""

    def run(self, searches: Pass) -> None:
        """Search until nothing is left, or every task is over."""


class InProcess:
    """Searches every file here."""

    def run(self, searches: Pass) -> None:
        _exhaust(Walk(searches, searches.tasks).steps())


class Automatic:
    """Begins here, and goes on with ripgrep for what it serves, where it is installed and there is much to search.

    Where there was much lately, a grep begins with ripgrep, unless it wants the first matches only.
    """

    def __init__(self) -> None:
        self._large: dict[str, float] = {}
        """Roots of searches that had more than a few files, with the time until when that is believed."""

    def run(self, searches: Pass) -> None:
        unlimited = [task for task in _served(searches.tasks) if not task.grep.is_limited]
        greps = unlimited if monotonic() < self._large.get(searches.root, 0) and find_ripgrep() else []
        walk = Walk(searches, [task for task in searches.tasks if task not in greps])
        with closing(walk.steps()) as steps:
            if _served(walk.tasks) and sum(1 for _ in islice(steps, FEW)) == FEW:
                self._remember(searches.root)
                if find_ripgrep():
                    greps += (late := _served(walk.tasks))
                    walk.leave_out(late)
            _finish(searches, greps, steps)

    def _remember(self, root: str) -> None:
        if len(self._large) >= _MOST_ROOTS:
            self._large.clear()
        self._large[root] = monotonic() + _BELIEVED_S


def _served(tasks: Iterable[AnyTask]) -> list[GrepTask]:
    return [task for task in tasks if isinstance(task, GrepTask) and WithRipgrep.serves(task)]


def _finish(searches: Pass, greps: list[GrepTask], steps: Iterator[None]) -> None:
    """Take the rest of `steps`, and carry out `greps` with ripgrep, or here where it fails."""
    for group in _alike(greps):
        try:
            _with_ripgrep().search(searches, group, meanwhile=lambda: _exhaust(steps))
        except RipgrepError:
            _exhaust(Walk(searches, [task for task in group if not task.is_over]).steps())
    _exhaust(steps)


def _with_ripgrep() -> WithRipgrep:
    found = find_ripgrep()
    if found is None:
        raise RipgrepError("it is gone")
    return WithRipgrep(found)


def _alike(greps: Iterable[GrepTask]) -> Iterable[list[GrepTask]]:
    """The greps that want the same files, together."""
    groups: dict[object, list[GrepTask]] = {}
    for task in greps:
        groups.setdefault(task.wanted, []).append(task)
    return groups.values()


def _exhaust(steps: Iterator[None]) -> None:
    for _ in steps:
        pass
