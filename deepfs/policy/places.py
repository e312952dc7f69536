"""Where a history keeps what it knows of a file: for each caller who has other files than others in another place."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from hashlib import blake2b
from typing import NamedTuple

from deepfs.backends.protocol import BackendProtocol, StoragePlace, TenantView, caller_places, parts_of
from deepfs.errors import BackendError, DeepFSError
from deepfs.text import paths

_NOBODY = "?"
"""The caller where a state is not known: its versions would lie in one place with those of others."""


class FilePlace(NamedTuple):
    """Where the versions of a file are."""

    directory: str
    """The same for all links to the file."""
    caller: str | None
    """Tells apart callers for whom other files are at the path; None if it is the same for all."""


class HistoryPlaces:
    """The directories of a history.

    Args:
        files: The backend of the files.
        versions: The backend of the versions.
        directory: The directory there that holds all of them.

    Raises:
        ValueError: A factory makes `files` or a part of it.
    """

    def __init__(self, files: BackendProtocol, versions: BackendProtocol, directory: str) -> None:
        self._files = files
        self._versions = versions
        self._directory = directory
        self._parts = list(_parts(files))
        if any((choice := part.backend._choice) is not None and not choice.is_place for part in self._parts):
            raise ValueError(
                "a factory makes backends, so versions of several callers could lie in one place: "
                "let the factory make the history, or give each backend a factory for its namespace"
            )

    async def of(self, given: Sequence[str]) -> list[FilePlace]:
        """Where the versions of the files at normalised paths are."""
        real = await self._files.aresolve_paths([*given])
        found = []
        for path, leads_to, caller in zip(given, real, await self.callers(given), strict=True):
            if caller == _NOBODY:
                raise BackendError(
                    path, "its history needs a graph with a thread_id or run_id, or versions in the state"
                )
            named = leads_to or path if caller is None else f"{caller}\0{leads_to or path}"  # No path holds NUL.
            found.append(FilePlace(paths.join(self._directory, _hash(named)), caller))
        return found

    async def of_log(self) -> str:
        """The directory of the log, another one for each caller of a factory: tenants see no changes of another one."""
        roots = await self._roots()
        kept = await self._versions.astorage_place(self._directory) if roots else None
        chosen = [(part, root) for part, root in roots if part.backend._choice is not None]
        caller = _name_caller([part for part, root in chosen if not (kept and _holds(root, kept))])
        return paths.join(self._directory, "changes" if caller is None else f"changes-{caller}")

    async def callers(self, given: Sequence[str]) -> list[str | None]:
        """For each path what tells apart callers who have other files there, but versions in one place."""
        roots = await self._roots()
        if not roots:
            return [None] * len(given)
        kept = await self._versions.astorage_place(self._directory)
        found: list[str | None] = []
        for path in given:
            place = await self._files.astorage_place(path)
            # A layer may not say where the path lies: then it may be in any part.
            holding = [each for each in roots if _holds(each[1], place)] or roots
            found.append(_name_caller([part for part, root in holding if not _holds(root, kept)]))
        return found

    async def _roots(self) -> list[tuple["_Part", StoragePlace]]:
        """The parts that this caller has files in, with their roots; none if all callers have the same."""
        if not any(part.has_callers() for part in self._parts):
            return []
        return [(part, root) for part in self._parts if (root := await part.root()) is not None]


class _Part(NamedTuple):
    """A backend that stores files, and the views of tenants that lead to it."""

    backend: BackendProtocol
    views: tuple[TenantView, ...]

    def has_callers(self) -> bool:
        return self.backend._is_by_thread or self.backend._choice is not None

    def acting(self) -> ExitStack:
        stack = ExitStack()
        for view in self.views:
            stack.enter_context(view._acting())
        return stack

    async def root(self) -> StoragePlace | None:
        try:
            with self.acting():
                return await self.backend.astorage_place("/")
        except DeepFSError:  # Its factory has no place for this caller, so no file of the caller is in it.
            return None


def _parts(backend: object, views: tuple[TenantView, ...] = ()) -> Iterator[_Part]:
    for part in parts_of(backend):
        if isinstance(part, TenantView):
            yield from _parts(part.inner, (*views, part))
        elif isinstance(part, BackendProtocol):
            yield _Part(part, views)


def running_ids() -> tuple[str | None, str | None]:
    """The thread and the run of the graph whose task runs here."""
    if "langgraph.config" not in sys.modules:  # Importing LangGraph takes a second, and without it no graph runs.
        return None, None
    from deepfs._langgraph.private import current_ids

    return current_ids()


def _name_caller(parts: Sequence[_Part]) -> str | None:
    """The hash of what this caller has of parts where others have something else."""
    callers: list[object] = []
    for part in parts:
        with part.acting():
            callers += caller_places([part.backend])
    if any(part.backend._is_by_thread for part in parts):
        thread, run = running_ids()
        if thread is None and run is None:
            return _NOBODY
        callers.append(thread if thread is not None else ("run", run))  # Without a thread, a state lives for one run.
    return _hash(repr(callers)) if callers else None


def _hash(named: str) -> str:
    return blake2b(named.encode(), digest_size=16).hexdigest()


def _holds(root: StoragePlace, place: StoragePlace) -> bool:
    return not root.keys.isdisjoint(place.keys | place.above)
