"""Greps that ripgrep helps with.

Every engine reads and judges files by the same code, so they cannot differ in what they tell: ripgrep only excuses
files, those that it searched without finding any of the texts. It walks through names, so somebody who swaps a
directory for a link meanwhile may have it look elsewhere; nothing of that is told or counted, since what it finds is
opened anew from the root.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress

from deepfs.disk import Patience
from deepfs.errors import DeadlineError
from deepfs.search.results import Wanted
from deepfs.search.ripgrep import MAX_NEEDLE, Ripgrep, RipgrepError
from deepfs.search.tasks import GrepTask, NamedFile, Pass, PassPatience
from deepfs.text import paths

__all__ = ["WithRipgrep"]


def _nothing() -> None:
    return None


class WithRipgrep:
    """Searches those files here that ripgrep does not excuse."""

    def __init__(self, ripgrep: Ripgrep) -> None:
        self._ripgrep = ripgrep

    @staticmethod
    def serves(task: GrepTask) -> bool:
        """Whether ripgrep would surely not excuse a file that matches, nor search many that are not wanted."""
        query = task.grep.query
        return query.regexp is None and 0 < len(query.needle) <= MAX_NEEDLE and task.wanted.glob is None

    def run(self, searches: Pass) -> None:
        """`search` for all tasks."""
        self.search(searches, [task for task in searches.tasks if isinstance(task, GrepTask)])

    def search(self, searches: Pass, tasks: Sequence[GrepTask], meanwhile: Callable[[], object] = _nothing) -> None:
        """Carry out `tasks`, which it serves and which want the same files; `meanwhile` is called once ripgrep began.

        Raises RipgrepError where ripgrep fails; what is not over is then as it was.
        """
        found = [(task, len(task.grep.matches), task.grep.skipped, task.shortage) for task in tasks]
        try:
            with suppress(DeadlineError):
                self._search(searches, tasks, meanwhile)
        except RipgrepError:
            for task, matches, skipped, shortage in found:
                if not task.is_over:
                    task.grep.forget(matches, skipped)
                    task.shortage = shortage
            raise

    def _search(self, searches: Pass, tasks: Sequence[GrepTask], meanwhile: Callable[[], object]) -> None:
        # Only with a limit does it matter which matches come first.
        unlimited = [task for task in tasks if not task.grep.is_limited]
        limited = [task for task in tasks if task.grep.is_limited]
        later: list[str] = []
        patience = PassPatience(searches, tasks)
        missed: dict[str, OSError] = {}
        with closing(self._places(searches, tasks, patience, missed, meanwhile)) as found:
            for places in found:
                _search_places(searches, unlimited, places, patience, missed)
                later += places if limited else ()
                if any(task.has_enough for task in unlimited):
                    raise RipgrepError("it finds more than a result has; which lines come first, a walk tells")
        for place in sorted(later):
            _search_places(searches, [task for task in limited if not task.has_enough], [place], patience, missed)

    def _places(
        self,
        searches: Pass,
        tasks: Sequence[GrepTask],
        patience: Patience,
        missed: dict[str, OSError],
        meanwhile: Callable[[], object],
    ) -> Generator[list[str], None, None]:
        """What there is to search, in no order, while ripgrep finds it; why some cannot be is put into `missed`."""
        [wanted] = {task.wanted for task in tasks}
        run = self._ripgrep.search(
            {task.grep.query.needle for task in tasks},
            _directory(searches),
            max_bytes=searches.max_bytes,
            options=searches.hints,
            check=lambda: patience.check(searches.root),
        )
        told: set[str] = set()
        with run:
            meanwhile()
            for names in run:
                found = [path for path in _paths(searches.root, names) if path in wanted]
                told.update(found)
                yield found
        left_out = _left_out(searches, wanted, patience, set(_paths(searches.root, run.left_out)), missed)
        yield [place for place in left_out if place not in told]


def _directory(searches: Pass) -> str:
    """Where on the host the search starts, without links: ripgrep would follow one to the outside."""
    path = searches.disk.real_path(searches.root)
    if path is None:
        raise RipgrepError("what it is to search is not inside")
    return os.path.join(searches.disk.host_path, path[1:])


def _search_places(
    searches: Pass, tasks: Sequence[GrepTask], places: Iterable[str], patience: Patience, missed: dict[str, OSError]
) -> None:
    if not tasks:
        return
    for place in places:
        patience.check(place)
        if place in missed:
            for task in tasks:
                task.miss(place, missed[place])
        else:
            searches.search(NamedFile(searches.disk, place), tasks)


def _paths(root: str, names: Iterable[bytes]) -> Iterable[str]:
    """The paths of these names beneath the root; those that are not text have none."""
    for name in names:
        try:
            yield paths.join(root, name.decode())
        except UnicodeDecodeError:
            continue


def _left_out(
    searches: Pass, wanted: Wanted, patience: Patience, left_out: set[str], missed: dict[str, OSError]
) -> list[str]:
    """The wanted files at or beneath these paths, and what cannot be looked at, with `/` at the end, also `missed`."""
    inside = {path for path in _patiently(left_out, patience) if path in wanted or wanted.may_enter(path)}
    if not inside:
        return []
    above = {directory for path in inside for directory in paths.ancestors(path)}

    def enter(directory: str) -> bool:
        patience.check(directory)
        if directory not in inside and paths.parent(directory) in inside:
            inside.add(directory)
        return (directory in inside or directory in above) and wanted.may_enter(directory)

    def miss(directory: str, error: OSError) -> None:
        missed[f"{directory}/"] = error

    walk = searches.disk.walk(searches.root, enter=enter, unreadable=miss, patience=patience)
    with closing(walk):
        files = [file.path for file in walk if file.path in inside or paths.parent(file.path) in inside]
    return [*(path for path in _patiently(files, patience) if path in wanted), *missed]


def _patiently(names: Iterable[str], patience: Patience) -> Iterator[str]:
    for name in names:
        patience.check(name)
        yield name
