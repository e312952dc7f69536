"""The reducers of the channels `files` and `file_conflicts`, and the operations in the writes that they decide by.

The tasks of a superstep start from the same files and write without seeing one another. Their writes reach a reducer
one after another, so each write states what it was based on. A write is `{header: None, path: file or None, …}`. The
header is a key with the value None, because a reducer that does not know operations then deletes a file that does not
exist, so the header leaves no trace.

The reducers are pure functions, with the same result for any batching: LangGraph applies the writes of a superstep as
one batch, and rebuilds a state from a checkpoint by applying the writes of many steps as one batch. Both reducers take
the writes one by one and decide by the operation in each, so they make the same decisions, and a rebuilt state equals
the original one. What later writes of a step need to know of earlier ones is kept in an attribute of the value that
only the reducer reads: a copy, a pickle and a checkpoint hold the plain dict or list.
"""

from collections.abc import Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import Any, Literal, TypeAlias

from msgspec import MsgspecError, Struct, json

from deepfs.errors import DeepFSError
from deepfs.text.diff import Place, changed_places, compose, disjoint, merge_texts, rebase
from deepfs.text.lines import version
from deepfs.text.paths import ancestors, is_beneath
from deepfs.text.records import decode_file
from deepfs.types import FileDataV1, FileDataV2

# --- operations ------------------------------------------------------------------------------------------------------

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


class WriteRecord(Struct, frozen=True):
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
        return any(
            change.places is None or other.places is None or not disjoint(change.places, other.places)
            for other in self.others(task)
        )


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
        deletes_only = all(change.result is None for change in operation.paths.values())
        lost: list[str] = []
        for path, change in operation.paths.items():
            if deletes_only and path in self.records and not self.records[path].exists:
                continue  # Both deleted the file.
            if self.record(path, change).refuses(operation.task, change) or (
                change.kind == "create" and self._is_in_the_way(path, operation)
            ):
                lost.append(path)
        return lost

    def record(self, path: str, change: RecordedChange) -> WriteRecord:
        known = self.records.get(path)
        return known if known is not None and known.origin == change.origin else WriteRecord(change.origin, {})

    def _is_in_the_way(self, path: str, operation: WriteOperation) -> bool:
        """Whether tasks have put a file above `path` or beneath it, which `operation` does not delete."""

        def stays(other: str) -> bool:
            record, change = self.records.get(other), operation.paths.get(other)
            return record is not None and record.exists and (change is None or change.result is not None)

        if any(map(stays, ancestors(path))):
            return True
        return path in self._directories and any(is_beneath(other, path) and stays(other) for other in self.records)


# --- stored records --------------------------------------------------------------------------------------------------


def version_of(data: FileDataV2) -> str:
    """The version of a file, a hash that identifies its content."""
    return version(data.content if data.encoding == "utf-8" else f"base64:{data.content}")


def stored_version(data: Any, path: str) -> str | None:
    """The version of the record stored at `path`, even if it is no file; None if there is no record."""
    if data is None:
        return None
    file = stored_file(data, path)
    if file is not None:
        return version_of(file)
    foreign = dict(data) if isinstance(data, Mapping) else data  # The repr of a record would be cut.
    return version(f"foreign:{foreign!r}")


def stored_file(data: Any, path: str) -> FileDataV2 | None:
    """The file in the record stored at `path`; None if there is no record, or it is no file."""
    try:
        return None if data is None else decode_file(data, path)
    except DeepFSError:
        return None


# --- files -----------------------------------------------------------------------------------------------------------


def fold(files: Mapping[str, Any] | None, writes: Iterable[Mapping[str, Any] | None]) -> dict[str, Any]:
    """`files` after `writes`, each of which maps paths to files, or to None to delete them; `files` is not modified.

    A write with an operation takes effect unless it conflicts with one of another task in the same superstep; edits of
    one file in disjoint places are merged. Any other write is applied as it is.
    """
    reducer = FileReducer({} if files is None else files)
    for write in writes:
        reducer.apply(write or {})
    return reducer.result()


class _Memory(Struct, frozen=True):
    """What later writes of a superstep need to know of its earlier ones."""

    log: StepLog
    written: dict[str, frozenset[tuple[str | None, str | None]]]
    """By path, the version and time of each file that an operation wrote, whether the operation took effect or not."""
    replaced: set[str]
    """The paths that a write without an operation has changed after an operation."""


class _Files(dict[str, Any]):
    __slots__ = ("memory",)
    memory: _Memory

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)


class FileReducer:
    """`fold`, one write at a time: `files` is the result so far. The mapping that it began with is not modified."""

    def __init__(self, files: Mapping[str, Any]) -> None:
        self.files: _Files = _Files(files)
        known = files.memory if isinstance(files, _Files) else _Memory(StepLog(), {}, set())
        self._memory = _Memory(known.log.copy(), known.written.copy(), known.replaced.copy())

    @property
    def log(self) -> StepLog:
        """The operations of the last superstep that took effect."""
        return self._memory.log

    def result(self) -> dict[str, Any]:
        """The files, with what later writes of the superstep need to know. Apply nothing afterwards."""
        if not self._memory.log.records and not self._memory.written:
            return dict(self.files)
        self.files.memory = self._memory
        return self.files

    def apply(self, write: Mapping[str, Any], task: str | None = None) -> None:
        """Apply one write, of `task` if that is known."""
        operation = operation_in(write)
        written = {path: _plain(data) for path, data in write.items() if not is_header(path)}
        if operation is None:
            self._take(written, task)
        else:
            self._operate(operation, written)

    def _take(self, written: Mapping[str, Any], task: str | None) -> None:
        """Apply files as they are, except for those that an operation wrote, which are decided with the operation."""
        for path, data in written.items():
            known = self._memory.written.get(path)
            if known and _fingerprint(path, data) in known:
                continue
            if known is not None:
                self._memory.written[path] = frozenset()
                self._memory.replaced.add(path)
            self._put(path, data)

    def _operate(self, operation: WriteOperation, written: Mapping[str, Any]) -> list[str]:
        """Apply an operation, or return the paths on which it conflicts with earlier ones."""
        log = self._memory.log
        if operation.step != log.step:
            log.begin(operation.step)
            self._memory = _Memory(log, {}, set())
        records = {path: log.record(path, change) for path, change in operation.paths.items()}
        lost = log.enter(operation)
        for path, change in operation.paths.items():
            data = written.get(path)
            if isinstance(data, Mapping):
                known = self._memory.written.get(path, frozenset())
                self._memory.written[path] = known | {(change.result, data.get("modified_at"))}
            if not lost:
                self._put(path, self._merge_change(operation.task, path, data, change, records[path]))
        return lost

    def _put(self, path: str, data: Any) -> None:
        if data is None:
            self.files.pop(path, None)
        else:
            self.files[path] = data

    def _merge_change(
        self, task: str, path: str, data: Mapping[str, Any] | None, change: RecordedChange, record: WriteRecord
    ) -> Mapping[str, Any] | None:
        """`data`, which a task wrote, merged with the changes of other tasks to the file."""
        current = self.files.get(path)
        if data is None or current is None or path in self._memory.replaced or not record.others(task):
            return data
        present = sorted(chain.from_iterable(part.places or () for part in record.parts.values()))
        mine, theirs = decode_file(data, path), decode_file(current, path)
        content = rebase(change.places or (), mine.content, theirs.content, present)
        return {
            **data,
            "content": content.split("\n") if isinstance(data["content"], list) else content,
            "modified_at": max(mine.modified_at or "", theirs.modified_at or ""),
        }


def _plain(data: Any) -> Any:
    """`data` as it is stored: a record of deepfs as a plain dict."""
    return dict(data) if isinstance(data, FileDataV1 | FileDataV2) else data


def _fingerprint(path: str, data: Any) -> tuple[str | None, str | None] | None:
    """The version and time of a file as it was written; None if `data` is no file."""
    file = stored_file(data, path)
    return None if file is None else (version_of(file), file.modified_at)


# --- the writes of one superstep -------------------------------------------------------------------------------------


class Superstep(FileReducer):
    """A `FileReducer` for the writes of one superstep, all of whose tasks began with `files`.

    It can derive the changes of a write without an operation: an entry that equals the one at the beginning of the step
    is no change, any other entry is an operation on that state. So a task that returns all files, as a subgraph does,
    undoes no change of another task, and conflicts are found.
    """

    def __init__(self, files: Mapping[str, Any], step: int | None = None) -> None:
        super().__init__(files)
        self._memory = _Memory(StepLog(), {}, set())
        self._memory.log.begin(step)
        self._before = files
        self._changes: dict[tuple[str, str], RecordedChange] = {}
        """The change of each file by each task, by task and path."""
        self._views: dict[tuple[str, str], Any] = {}
        """Each file as each task left it, by task and path."""
        self._removals: dict[str, list[str]] = {}
        self._maps = 0
        self.lost: list[dict[str, Any]] = []
        """The changes that took no effect, in the form of `file_conflicts`."""

    def apply(self, write: Mapping[str, Any], task: str | None = None) -> None:
        self._removals.update(removals_in(write))
        super().apply(write, task)

    def _take(self, written: Mapping[str, Any], task: str | None) -> None:
        if task is None:
            self._maps += 1
            task = f"map {self._maps}"
        removed = self._removals.get(digest_of(written), ()) if self._removals else ()
        entries: list[tuple[Any, Any]] = [*written.items(), *((path, None) for path in removed if path not in written)]
        for path, data in entries:
            if isinstance(path, str) and path.startswith("/"):
                self._take_file(task, path, data)
            elif data != self._before.get(path):
                self._put(path, data)

    def _take_file(self, task: str, path: str, data: Any) -> None:
        """Apply one file of a write without an operation."""
        before = self._before.get(path)
        if data == self.files.get(path) or _fingerprint(path, data) in self._memory.written.get(path, ()):
            return
        earlier, view = self._changes.get((task, path)), self._views.get((task, path), before)
        if data == before and (earlier is None or data is not None):
            return
        if earlier is not None:
            data = _rebase(path, before, data, view)
        base, result = stored_version(view, path), stored_version(data, path)
        change = next_change(earlier, base, result, _places(path, view, data))
        self._operate(WriteOperation({path: change}, task, self.log.step), {path: data})

    def _operate(self, operation: WriteOperation, written: Mapping[str, Any]) -> list[str]:
        operation = self._assign_to_task(operation)
        lost = super()._operate(operation, written)
        if lost:
            self.lost.extend(_report_lost(operation, lost))
        else:
            self._changes.update({(operation.task, path): change for path, change in operation.paths.items()})
            self._views.update({(operation.task, path): written.get(path) for path in operation.paths})
        return lost

    def _assign_to_task(self, operation: WriteOperation) -> WriteOperation:
        """`operation`, assigned to the task whose write without an operation it continues, if there is one."""
        for path, change in operation.paths.items():
            if change.origin == stored_version(self._before.get(path), path):
                continue
            for (task, known), earlier in self._changes.items():
                if known == path and earlier.result == change.base:
                    paths = {**operation.paths, path: next_change(earlier, change.base, change.result, None)}
                    return WriteOperation(paths, task, operation.step, operation.node)
        return operation


def _rebase(path: str, before: Any, data: Any, view: Any) -> Any:
    """`data`, which a task made of `before`, merged with its own earlier changes, in `view`, if these are disjoint."""
    texts = [_text(path, each) for each in (before, data, view)]
    if any(text is None for text in texts):
        return data
    text = merge_texts(*texts)  # type: ignore[arg-type]
    if text is None:
        return data
    return {**data, "content": text.split("\n") if isinstance(data["content"], list) else text}


def _places(path: str, before: Any, after: Any) -> Places:
    """The places where two texts differ; None if one of them is no text."""
    old, new = _text(path, before), _text(path, after)
    return None if old is None or new is None else changed_places(old, new)


def _text(path: str, data: Any) -> str | None:
    """The text of a stored file; None if `data` is no text file."""
    file = stored_file(data, path)
    return file.content if file is not None and file.encoding == "utf-8" else None


# --- conflicts -------------------------------------------------------------------------------------------------------


def fold_conflicts(conflicts: Iterable[Any] | None, writes: Iterable[Any]) -> list[dict[str, Any]]:
    """`conflicts` and those found in `writes`, as dicts with the keys path, operation, node, step and reason.

    A write is the header of an operation that was sent to `files`, a list of conflicts, or None to forget them all.
    """
    folded = _Conflicts(conflicts or ())
    folded._known = set(map(_form, folded))
    folded.log = conflicts.log.copy() if isinstance(conflicts, _Conflicts) else StepLog()
    for write in writes:
        folded.apply(write)
    return folded if folded.log.records else list(folded)


class _Conflicts(list[dict[str, Any]]):
    __slots__ = ("_known", "log")
    log: StepLog
    _known: set[str]
    """What `_form` makes of those that are in the list."""

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[Any]]]:
        return list, (list(self),)

    def apply(self, write: Any) -> None:
        if write is None:
            self.clear()
            self._known = set()
        elif isinstance(write, str):
            operation = operation_in([write])
            if operation is not None and (lost := self.log.enter(operation)):
                self._add(_report_lost(operation, lost))
        else:
            forms = {_form(conflict): conflict for conflict in write}
            self._add(conflict for form, conflict in forms.items() if form not in self._known)

    def _add(self, conflicts: Iterable[dict[str, Any]]) -> None:
        for conflict in conflicts:
            self.append(conflict)
            self._known.add(_form(conflict))


def _form(conflict: Any) -> str:
    """The same text for equal conflicts."""
    return repr(sorted(map(repr, conflict.items()))) if isinstance(conflict, dict) else repr(conflict)


def _report_lost(operation: WriteOperation, lost: list[str]) -> list[dict[str, Any]]:
    """The conflicts to report for an operation that conflicts with others at the paths in `lost`."""
    first = "A parallel task changed it first, in the same place."
    other = f"It was one with a change of {lost[0]}, which a parallel task changed first."
    return [
        {**conflict, "reason": first if conflict["path"] in lost else other}
        for conflict in conflicts_of(operation, first)
    ]


def conflicts_of(operation: WriteOperation, reason: str) -> list[dict[str, Any]]:
    """One conflict for each change of an operation that took no effect, in the form of `file_conflicts`."""
    return [
        {
            "path": path,
            "operation": change.kind,
            "node": operation.node,
            "step": operation.step,
            "reason": reason,
        }
        for path, change in operation.paths.items()
    ]
