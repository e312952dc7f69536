"""Operations on graph state: their encoding in the writes, and which of several parallel operations take effect.

The tasks of a superstep start from the same files and write without seeing one another. Their writes reach a reducer
one after another, so each write states what it was based on. A write is `{header: None, path: file or None, …}`. The
header is a key with the value None, because a reducer that does not know operations then deletes a file that does not
exist, so the header leaves no trace.
"""

from collections.abc import Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec import MsgspecError, Struct, json

from deepfs.text.diff import Place, compose, disjoint
from deepfs.text.lines import version
from deepfs.text.paths import ancestors, is_beneath

_HEADER = "deepfs:"
"""No path starts like this: paths are absolute."""
_REMOVED = "deepfs:removed:"

Places: TypeAlias = list[Place] | None


class RecordedChange(Struct, frozen=True, omit_defaults=True):
    """The change that one task has made to one file so far, by the versions of the file; None is no file.

    `origin` is the version when the superstep began, `base` the one before this operation, `result` the one after it.
    `places` is the change from `origin` to `result`, or None if the file was created, deleted or replaced as a whole.
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


def next_change(earlier: RecordedChange | None, base: str | None, result: str | None, places: Places) -> RecordedChange:
    """The change after `earlier`, the last one of the same task, when the file changes from `base` to `result`.

    `places` are the places of this change; None if the file was created, deleted or replaced as a whole.
    """
    if earlier is None:
        return RecordedChange(base, base, result, places)
    edited = places is not None and earlier.places is not None and earlier.result == base
    composed = compose(earlier.places or (), places or ()) if edited else None
    return RecordedChange(earlier.origin, earlier.result, result, composed)


class WriteOperation(Struct, frozen=True, omit_defaults=True):
    """One write of a task: it takes effect on all of its paths, or on none. `step` is the number of the superstep.

    An operation that only deletes files does not conflict on a file that another one has deleted. All other changes of
    one file by two tasks conflict, except for edits in disjoint places. Creating a file also conflicts with a file that
    was put above it or beneath it.
    """

    paths: dict[str, RecordedChange]
    task: str
    step: int | None = None
    node: str = ""

    @property
    def deletes_only(self) -> bool:
        """Whether the operation writes no file."""
        return all(change.result is None for change in self.paths.values())

    def as_seen_by_siblings(self, *, mergeable: bool) -> "WriteOperation":
        """The operation as other tasks see it: based on the start of the superstep, with places only if `mergeable`."""
        alone = {
            path: RecordedChange(change.origin, change.origin, change.result, change.places if mergeable else None)
            for path, change in self.paths.items()
        }
        return WriteOperation(alone, task="")


def header_of(operation: WriteOperation) -> str:
    """The key that encodes `operation`."""
    return _HEADER + json.encode(operation).decode()


def is_header(key: object) -> bool:
    """Whether a key of a write is a header, not a path; also true for headers that this version cannot decode."""
    return isinstance(key, str) and key.startswith(_HEADER)


def operation_in(keys: Iterable[object]) -> WriteOperation | None:
    """The operation that one of the keys of a write encodes; None if there is none."""
    for key in keys:
        if isinstance(key, str) and key.startswith(_HEADER) and (operation := _decode(key)) is not None:
            return operation
    return None


def removals_of(files: Mapping[Any, Any], removed: Sequence[str]) -> str:
    """The key that says which of its initial files a nested graph, which returns `files`, has `removed`.

    The returned files alone do not show the removals. The key applies only to a write of exactly these files.
    """
    return _REMOVED + json.encode((digest_of(files), removed)).decode()


def removals_in(keys: Iterable[object]) -> dict[str, list[str]]:
    """The removed files by the digest of the write that the removals belong to."""
    found = (key for key in keys if isinstance(key, str) and key.startswith(_REMOVED))
    with suppress(MsgspecError):
        return dict(json.decode(key[len(_REMOVED) :], type=tuple[str, list[str]]) for key in found)
    return {}


def digest_of(files: Mapping[Any, Any]) -> str:
    """A digest that identifies a set of files by their paths, times and lengths, without reading their content."""
    return version("\0".join(sorted(f"{path!r}\0{_stamp(data)}" for path, data in files.items())))


def _stamp(data: Any) -> str:
    if not isinstance(data, Mapping):
        return repr(data)
    content = data.get("content")
    return f"{data.get('modified_at')}\0{len(content) if isinstance(content, Sized) else content!r}"


@lru_cache(maxsize=4096)
def _decode(header: str) -> WriteOperation | None:
    """The operation in `header`, cached since the task that wrote it, its siblings and both reducers decode it."""
    try:
        return json.decode(header[len(_HEADER) :], type=WriteOperation)
    except MsgspecError:
        return None


def _collide(one: Places, other: Places) -> bool:
    """Whether two changes of one file cannot both take effect."""
    return one is None or other is None or not disjoint(one, other)


class WriteRecord(NamedTuple):
    """The changes of one file by operations that took effect: the last change of each task."""

    origin: str | None
    parts: Mapping[str, RecordedChange]

    @property
    def exists(self) -> bool:
        """Whether the file exists after these changes."""
        return all(part.result is not None for part in self.parts.values())

    def others(self, task: str) -> list[RecordedChange]:
        """The changes of all tasks except `task`."""
        return [part for name, part in self.parts.items() if name != task]

    def refuses(self, task: str, change: RecordedChange) -> bool:
        """Whether `change` conflicts with one of another task, or is based on one that did not take effect."""
        own = self.parts.get(task)
        if change.base != (self.origin if own is None else own.result):
            return True
        return any(_collide(change.places, other.places) for other in self.others(task))


class StepLog:
    """The operations of one superstep that took effect, entered in order. A later step starts with an empty log."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.records: dict[str, WriteRecord] = {}
        self._directories: set[str] = set()

    def copy(self) -> "StepLog":
        """An independent copy."""
        copied = StepLog()
        copied.step = self.step
        copied.records = self.records.copy()
        copied._directories = self._directories.copy()
        return copied

    def begin(self, step: int | None) -> None:
        """Begin the log of `step`; clears it unless it is the log of this step already."""
        if step != self.step:
            self.step = step
            self.records.clear()
            self._directories.clear()

    def enter(self, operation: WriteOperation) -> list[str]:
        """Add `operation`, or return the paths on which it conflicts with the operations in the log."""
        self.begin(operation.step)
        lost = self.collisions(operation)
        if not lost:
            for path, change in operation.paths.items():
                record = self.record(path, change)
                if change.result is not None:
                    self._directories.update(ancestors(path))
                if change.result is not None or record.exists:
                    self.records[path] = WriteRecord(record.origin, {**record.parts, operation.task: change})
        return lost

    def collisions(self, operation: WriteOperation) -> list[str]:
        """The paths on which `operation` conflicts with the operations in the log."""
        agreed = {path for path in operation.paths if self._is_gone(path)} if operation.deletes_only else set()
        return [
            path
            for path, change in operation.paths.items()
            if path not in agreed and self._collides(operation.task, path, change)
        ]

    def record(self, path: str, change: RecordedChange) -> WriteRecord:
        known = self.records.get(path)
        return known if known is not None and known.origin == change.origin else WriteRecord(change.origin, {})

    def _is_gone(self, path: str) -> bool:
        """Whether a task deleted the file at `path`."""
        return path in self.records and not self.records[path].exists

    def _collides(self, task: str, path: str, change: RecordedChange) -> bool:
        refused = self.record(path, change).refuses(task, change)
        return refused or (change.kind == "create" and self._is_in_the_way(path))

    def _is_in_the_way(self, path: str) -> bool:
        """Whether tasks have put a file above `path` or beneath it."""
        above = (self.records.get(directory) for directory in ancestors(path))
        if any(record is not None and record.exists for record in above):
            return True
        return path in self._directories and any(
            record.exists and is_beneath(other, path) for other, record in self.records.items()
        )
