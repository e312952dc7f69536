"""Operations on graph state: how they travel beside the files they write, and which of parallel ones take effect.

The tasks of a superstep start from the same files and write without seeing one another. Their writes reach a reducer
one after another, so each tells what it was based on. A write is `{header: None, path: file or None, …}`: the header is
a key, because to a reducer that knows nothing of operations a key with None deletes what is not there, so it leaves no
trace.
"""

from collections.abc import Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec import MsgspecError, Struct, json

from deepfs.text.diff import Place, compose, disjoint
from deepfs.text.lines import version
from deepfs.text.paths import ancestors, is_beneath

__all__ = [
    "FileChange",
    "Operation",
    "Places",
    "StepLog",
    "digest_of",
    "header_of",
    "is_header",
    "next_change",
    "operation_in",
    "removals_in",
    "removals_of",
]

_HEADER = "deepfs:"
"""No path starts like this: paths are absolute."""
_REMOVED = "deepfs:removed:"

Places: TypeAlias = list[Place] | None


class FileChange(Struct, frozen=True, omit_defaults=True):
    """What one task has made of one file so far; a version is None where there is no file.

    `origin` was there when the superstep began, `base` before this operation, `result` is there after it. `places` is
    the change from `origin` to `result`, or None where the file was created, deleted or replaced as a whole.
    """

    origin: str | None = None
    base: str | None = None
    result: str | None = None
    places: Places = None

    @property
    def kind(self) -> Literal["create", "delete", "edit", "overwrite"]:
        """What the operation did to the file."""
        if self.result is None:
            return "delete"
        if self.base is None:
            return "create"
        return "overwrite" if self.places is None else "edit"


def next_change(earlier: FileChange | None, base: str | None, result: str | None, places: Places) -> FileChange:
    """What becomes of a file after `earlier`, its task's last one, when it goes from `base` to `result`.

    `places` tell how; None where the file as a whole is another.
    """
    if earlier is None:
        return FileChange(base, base, result, places)
    edited = places is not None and earlier.places is not None and earlier.result == base
    composed = compose(earlier.places or (), places or ()) if edited else None
    return FileChange(earlier.origin, earlier.result, result, composed)


class Operation(Struct, frozen=True, omit_defaults=True):
    """One write of a task: it takes effect on all of its paths, or on none. `step` is the number of the superstep.

    Deletions of one file agree with one another; whatever else two tasks do to it collides, but for edits in places
    that are disjoint. A file created where another task's file needs a directory collides, too.
    """

    paths: dict[str, FileChange]
    task: str
    step: int | None = None
    node: str = ""

    @property
    def deletes_only(self) -> bool:
        """Whether it writes no file."""
        return all(change.result is None for change in self.paths.values())

    def as_seen_by_siblings(self, *, mergeable: bool) -> "Operation":
        """The operation as other tasks see it: alone, without its earlier ones; `mergeable` with theirs, or not."""
        alone = {
            path: FileChange(change.origin, change.origin, change.result, change.places if mergeable else None)
            for path, change in self.paths.items()
        }
        return Operation(alone, task="")


def header_of(operation: Operation) -> str:
    """The key that holds `operation`."""
    return _HEADER + json.encode(operation).decode()


def is_header(key: object) -> bool:
    """Whether a key of a write is not a path but holds an operation, be it one that this version cannot read."""
    return isinstance(key, str) and key.startswith(_HEADER)


def operation_in(keys: Iterable[object]) -> Operation | None:
    """The operation that one of the keys of a write holds."""
    for key in keys:
        if isinstance(key, str) and key.startswith(_HEADER) and (operation := _decoded(key)) is not None:
            return operation
    return None


def removals_of(files: Mapping[Any, Any], removed: Sequence[str]) -> str:
    """The key that tells of a graph's `files` which of those that it was given it has `removed`.

    A nested graph returns its files as they are, from which that cannot be seen. The key says nothing by itself, but
    only about a write of exactly these files.
    """
    return _REMOVED + json.encode((digest_of(files), removed)).decode()


def removals_in(keys: Iterable[object]) -> dict[str, list[str]]:
    """By digest of a write, the files that are removed where it is written."""
    found = (key for key in keys if isinstance(key, str) and key.startswith(_REMOVED))
    with suppress(MsgspecError):
        return dict(json.decode(key[len(_REMOVED) :], type=tuple[str, list[str]]) for key in found)
    return {}


def digest_of(files: Mapping[Any, Any]) -> str:
    """What tells one set of files from others, without a look at their content."""
    return version("\0".join(sorted(f"{path!r}\0{_stamp(data)}" for path, data in files.items())))


def _stamp(data: Any) -> str:
    if not isinstance(data, Mapping):
        return repr(data)
    content = data.get("content")
    return f"{data.get('modified_at')}\0{len(content) if isinstance(content, Sized) else content!r}"


@lru_cache(maxsize=4096)
def _decoded(header: str) -> Operation | None:
    """The operation in `header`; each is asked for by the task that wrote it, its siblings and both reducers."""
    try:
        return json.decode(header[len(_HEADER) :], type=Operation)
    except MsgspecError:
        return None


def _collide(one: Places, other: Places) -> bool:
    """Whether two changes of one file cannot both take effect."""
    return one is None or other is None or not disjoint(one, other)


class Record(NamedTuple):
    """What the operations that took effect made of one file: the last change of each task."""

    origin: str | None
    parts: Mapping[str, FileChange]

    @property
    def exists(self) -> bool:
        """Whether there is a file now."""
        return all(part.result is not None for part in self.parts.values())

    def others(self, task: str) -> list[FileChange]:
        """The changes of all tasks but one."""
        return [part for name, part in self.parts.items() if name != task]

    def refuses(self, task: str, change: FileChange) -> bool:
        """Whether `change` collides with another task's, or goes on from what did not take effect."""
        own = self.parts.get(task)
        if change.base != (self.origin if own is None else own.result):
            return True
        return any(_collide(change.places, other.places) for other in self.others(task))

    def joined(self, task: str, change: FileChange) -> "Record":
        """The record with `change` in effect."""
        return Record(self.origin, {**self.parts, task: change})


class StepLog:
    """The operations of one superstep that took effect, taken in their order; a later step starts afresh."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.records: dict[str, Record] = {}
        self._directories: set[str] = set()

    def copy(self) -> "StepLog":
        """An independent log that knows the same."""
        copied = StepLog()
        copied.step = self.step
        copied.records = self.records.copy()
        copied._directories = self._directories.copy()
        return copied

    def begin(self, step: int | None) -> None:
        """Forget what other steps did."""
        if step != self.step:
            self.step = step
            self.records.clear()
            self._directories.clear()

    def enter(self, operation: Operation) -> list[str]:
        """Take `operation` into effect, or return the paths on which it collides with those that are."""
        self.begin(operation.step)
        lost = self.collisions(operation)
        if not lost:
            for path, change in operation.paths.items():
                self._enter(operation.task, path, change)
        return lost

    def collisions(self, operation: Operation) -> list[str]:
        """The paths on which `operation` collides."""
        agreed = {path for path in operation.paths if self._is_gone(path)} if operation.deletes_only else set()
        return [
            path
            for path, change in operation.paths.items()
            if path not in agreed and self._collides(operation.task, path, change)
        ]

    def record(self, path: str, change: FileChange) -> Record:
        known = self.records.get(path)
        return known if known is not None and known.origin == change.origin else Record(change.origin, {})

    def _is_gone(self, path: str) -> bool:
        """Whether there was a file at `path` which another task deleted."""
        return path in self.records and not self.records[path].exists

    def _collides(self, task: str, path: str, change: FileChange) -> bool:
        refused = self.record(path, change).refuses(task, change)
        return refused or (change.kind == "create" and self._is_in_the_way(path))

    def _is_in_the_way(self, path: str) -> bool:
        """Whether other tasks put a file above `path` or beneath it."""
        above = (self.records.get(directory) for directory in ancestors(path))
        if any(record is not None and record.exists for record in above):
            return True
        return path in self._directories and any(
            record.exists and is_beneath(other, path) for other, record in self.records.items()
        )

    def _enter(self, task: str, path: str, change: FileChange) -> None:
        record = self.record(path, change)
        if change.result is not None:
            self._directories.update(ancestors(path))
        if change.result is not None or record.exists:
            self.records[path] = record.joined(task, change)
