"""The files as the running task sees and changes them: those of the state, overlaid with the writes of the task.

It is imported when it is first needed: importing LangGraph takes over a second.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Self, cast

from deepfs._langgraph.parallel_writes import Places, RecordedChange, WriteOperation, header_of, next_change
from deepfs._langgraph.private import RunningTask, empty_channel, running_task
from deepfs._langgraph.reducers import fold, stored_version, version_of
from deepfs._langgraph.superstep_log import FILES, Channel, ProvisionalWrite, Task, Writes, task_of
from deepfs.errors import AlreadyExistsError, BackendError, ConflictError, DeepFSError
from deepfs.text.diff import difference, merge_texts
from deepfs.text.flat_tree import Change, Directories
from deepfs.text.records import decode_file, encode_file
from deepfs.threads.forks import ForkSafeLock
from deepfs.types import FileDataV2, FileFormat

__all__ = ["CONFLICTS", "TaskFiles", "adopt_files", "task_files"]

CONFLICTS: Final = "file_conflicts"

_NO_CHANNEL = (
    "StateBackend needs the channel 'files' in the state of the graph that calls it. Mix it in: "
    "class State(FilesystemState): ..., with `from deepfs import FilesystemState`."
)
_LOSING = (
    "The channel 'files' of this graph ({kind}) would lose files: what is written to it replaces what is there, or "
    "what is deleted stays. Mix the channel in: class State(FilesystemState): ..., with `from deepfs import "
    "FilesystemState`; a dataclass or pydantic state declares `files: Files`, from deepfs.backends.state."
)
_ENDED = (
    "nothing was changed: the node or tool that called has ended, so its writes are taken already. Wait for the "
    "operation before the node returns: await the task, or join the thread, that runs it."
)


class TaskFiles:
    """The files that the running task reads and changes, within `with`, which locks them."""

    def __init__(self, running: RunningTask, lock: ForkSafeLock, *, reports_conflicts: bool) -> None:
        self._running = running
        self._lock = lock
        self._reports_conflicts = reports_conflicts

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @property
    def files(self) -> Mapping[str, Any]:
        """The stored files by path, with the writes of the task applied. The next write may change the mapping."""
        return cast("Mapping[str, Any]", self._running.read(FILES, True) or {})

    @property
    def directories(self) -> Directories:
        """The directories that the files imply."""
        return Directories(self.files)

    def commit(self, changes: Sequence[Change], file_format: FileFormat = "v2") -> None:
        """Write the changes as one operation. It takes effect as a whole, or not at all: `file_conflicts` reports that.

        Raises ConflictError if a task of the same superstep changed the same place of a file, AlreadyExistsError if it
        created the file, BackendError if the running task has ended. Nothing is written then.
        """
        if not changes:
            return
        paths = {change.path: self._next_change(change) for change in changes}
        operation = WriteOperation(paths, self._running.task, self._running.step, self._running.node)
        if self._running.is_over:
            raise _task_over_error(operation)
        self._check(operation)
        header = header_of(operation)
        write: dict[str, Any] = {header: None}
        for change in changes:
            write[change.path] = change.after and encode_file(change.after, file_format, change.path)
        if not self._send([(FILES, write), (CONFLICTS, header)] if self._reports_conflicts else [(FILES, write)]):
            raise _task_over_error(operation)

    def _next_change(self, change: Change) -> RecordedChange:
        before = _files_of(self._running.read(FILES, False)).get(change.path)
        origin = stored_version(before, change.path)
        return RecordedChange(origin, _base(change), _version(change.after))

    def _check(self, operation: WriteOperation) -> None:
        """Raise if `operation` conflicts with the writes of other tasks. This class does not know these writes."""

    def wrote_elsewhere(self, path: str, result: str | None) -> bool:
        """Whether a task of the same superstep wrote the version `result`. This class does not know these writes."""
        return False

    def _send(self, writes: list[tuple[str, Any]]) -> bool:
        """Send the writes. Returns whether LangGraph will take them."""
        self._running.send(writes)
        return True


def _task_over_error(operation: WriteOperation) -> BackendError:
    return BackendError(next(iter(operation.paths)), _ENDED)


class _MergingFiles(TaskFiles):
    """Files of a task whose writes are accessible: a read costs only the new writes, and sibling tasks are known."""

    def __init__(
        self, running: RunningTask, task: Task, writes: Writes, *, reports_conflicts: bool, merges: bool
    ) -> None:
        super().__init__(running, task.run.lock, reports_conflicts=reports_conflicts)
        self._task = task
        self._writes = writes
        self._merges = merges

    @property
    def files(self) -> Mapping[str, Any]:
        self._task.catch_up()
        return self._task.files

    @property
    def directories(self) -> Directories:
        self._task.catch_up()
        return self._task.directories

    def _next_change(self, change: Change) -> RecordedChange:
        self._task.catch_up()
        earlier = self._task.changes.get(change.path)
        return next_change(earlier, _base(change), _version(change.after), _places(change))

    def _check(self, operation: WriteOperation) -> None:
        seen = operation.as_seen_by_siblings(mergeable=self._merges)
        for sibling in self._task.run.siblings(self._task):
            for path in sibling.log.collisions(seen):
                created = seen.paths[path].kind == "create" and path in sibling.changes
                raise AlreadyExistsError(path) if created else ConflictError(path)

    def wrote_elsewhere(self, path: str, result: str | None) -> bool:
        changes = (sibling.changes.get(path) for sibling in self._task.run.siblings(self._task))
        return any(change is not None and change.result == result for change in changes)

    def _send(self, writes: list[tuple[str, Any]]) -> bool:
        sent = [ProvisionalWrite(channel, value, self._writes) for channel, value in writes]
        self._running.send(sent)
        if _is_last(sent[0], self._writes) and not self._running.is_over:
            return True
        if self._running.loop is not None and self._running.has_taken(writes[0][1]):
            return True
        for write in sent:
            with suppress(ValueError):
                self._writes.remove(cast("Any", write))
        return False


def _is_last(write: object, writes: Writes) -> bool:
    """Whether `write` is among the last writes of a task. LangGraph drops what a task sends after its timeout."""
    with suppress(RuntimeError):  # Another thread writes at the same time.
        return any(each is write for each in islice(reversed(writes), 16))
    return True


def task_files() -> TaskFiles:
    """The files of the running task. `with` locks them against other threads and tasks: do not wait inside.

    Raises RuntimeError, which says what to do, outside a graph and in a graph without a channel `files`.
    """
    running = running_task()
    inside = running.inside
    if inside is None:
        return _fresh_files(running)
    channels, writes = inside
    channel = channels.get(FILES)
    if channel is None:
        raise RuntimeError(_NO_CHANNEL)
    task = task_of(channel, writes, running.step, running.task)
    if not task.run.is_checked and not _keeps_files(channel):
        raise RuntimeError(_LOSING.format(kind=type(channel).__name__))
    task.run.is_checked = True
    merges = getattr(channel, "reducer", None) is fold
    return _MergingFiles(running, task, writes, reports_conflicts=CONFLICTS in channels, merges=merges)


_foreign_lock = ForkSafeLock()


def _keeps_files(channel: Channel) -> bool:
    """Whether the channel loses no files, as writes to an empty one like it show."""
    if getattr(channel, "reducer", None) is fold:
        return True
    one, two, three = ({f"/{name}": {"content": name}} for name in ("1", "2", "3"))
    try:
        probe = empty_channel(channel)
        probe.update([one, two])
        probe.update([three, {"/1": None, "deepfs:": None}])
        return bool(probe.get() == {**two, **three})
    except Exception:  # A reducer that was not made for files may raise anything.
        return False


def _fresh_files(running: RunningTask) -> TaskFiles:
    """The files by LangGraph's own calls only: every read applies all writes, and nothing is merged."""
    try:
        running.read(FILES, False)
    except KeyError:
        raise RuntimeError(_NO_CHANNEL) from None
    try:
        running.read(CONFLICTS, False)
    except KeyError:
        return TaskFiles(running, _foreign_lock, reports_conflicts=False)
    return TaskFiles(running, _foreign_lock, reports_conflicts=True)


def _files_of(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _base(change: Change) -> str | None:
    """The version of the record before a change, even if it is no file."""
    return _version(change.before) or stored_version(change.origin, change.path)


def _version(data: Any) -> str | None:
    return None if data is None else version_of(data)


def _places(change: Change) -> Places:
    """The places that an edit replaced; None if the change is no edit."""
    if change.replacement is None:
        return None
    return [(span.start, span.end, len(span.text)) for span in change.replacement.spans]


# --- files that another graph changed --------------------------------------------------------------------------------


def adopt_files(given: Mapping[str, Any], made: Mapping[str, Any]) -> list[str]:
    """Apply the changes that another graph made to the files of the running task. Returns the paths that failed.

    `given` are the files that the graph began with, `made` those that it ended with. If the task, or a parallel one,
    changed a file meanwhile, edits in disjoint lines are merged; otherwise the file stays as it is.
    """
    with task_files() as task:
        return [
            path for path in _differing_paths(given, made) if not _adopt(task, path, given.get(path), made.get(path))
        ]


def _differing_paths(given: Mapping[str, Any], made: Mapping[str, Any]) -> Iterator[str]:
    return (path for path in sorted({*given, *made}) if given.get(path) != made.get(path))


def _adopt(task: TaskFiles, path: str, given: Any, made: Any) -> bool:
    """Write one file. Returns whether that succeeded."""
    here = task.files.get(path)
    change = _change(path, given, made, here)
    if change is None:
        return False
    try:
        task.commit([change], _format(made))
    except (ConflictError, AlreadyExistsError):
        return task.wrote_elsewhere(path, _version(change.after))
    return True


def _change(path: str, given: Any, made: Any, here: Any) -> Change | None:
    """The change that applies the difference between `given` and `made` to the file `here`; None on a conflict."""
    before, after = _file(path, here), _file(path, made)
    if made is not None and after is None:
        return None
    if stored_version(here, path) in (stored_version(given, path), stored_version(made, path)):
        return Change(path, before, after, _difference(before, after), here)
    base = _file(path, given)
    if base is None or after is None or before is None or {base.encoding, after.encoding, before.encoding} != {"utf-8"}:
        return None
    text = merge_texts(base.content, after.content, before.content)
    if text is None:
        return None
    merged = FileDataV2(text, "utf-8", before.created_at, after.modified_at, after.mime_type)
    return Change(path, before, merged, _difference(before, merged), here)


def _file(path: str, value: Any) -> FileDataV2 | None:
    """The file that is stored as `value`; None if it is no file."""
    try:
        return None if value is None else decode_file(value, path)
    except DeepFSError:
        return None


def _difference(before: FileDataV2 | None, after: FileDataV2 | None) -> Any:
    if before is None or after is None or before.encoding != "utf-8" or after.encoding != "utf-8":
        return None
    return difference(before.content, after.content)


def _format(made: Any) -> FileFormat:
    return "v1" if made and isinstance(made["content"], list) else "v2"
