"""The files as the running task sees and changes them: those of the state, overlaid with the writes of the task.

LangGraph keeps the writes of a task, while it runs in this process, in a deque until the superstep ends: a retry clears
it, a failure leaves its error at the end. What is known here of tasks is derived from these deques, and lives as long
as they do. The module is imported when it is first needed: importing LangGraph takes over a second.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Self, cast
from weakref import ref

from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.types import ERROR
from langgraph.types import Overwrite

from deepfs._langgraph.private import FILES, Channel, RunningTask, Writes, empty_channel, running_task
from deepfs._langgraph.reducers import (
    Places,
    RecordedChange,
    StepLog,
    Superstep,
    WriteOperation,
    fold,
    header_of,
    is_header,
    next_change,
    operation_in,
    stored_file,
    stored_version,
    version_of,
)
from deepfs.errors import AlreadyExistsError, BackendError, ConflictError
from deepfs.text.diff import difference, merge_texts
from deepfs.text.flat_tree import Change, Directories
from deepfs.text.records import encode_file
from deepfs.threads.forks import ForkSafeLock
from deepfs.types import FileDataV2, FileFormat

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


# --- the writes of a task --------------------------------------------------------------------------------------------


class ProvisionalWrite(list[Any]):
    """A write of a task, a channel and a value, which becomes void when the task fails.

    LangGraph saves what a failed or cancelled task has sent. When the graph is resumed, it takes a task with saved
    writes for finished, so the rest of its work would never be done. Therefore this write then has the items of the
    failure, which is saved anyway, and the task runs again. If the task has already returned, its result is saved and
    it does not run again; then this write stays valid.
    """

    __slots__ = ("_writes",)

    def __init__(self, channel: str, value: object, writes: Writes) -> None:
        super().__init__((channel, value))
        self._writes = ref(writes)

    def _find_failure(self) -> tuple[str, Any] | None:
        writes = self._writes()
        failure = _failure(writes) if writes else None
        return None if failure is None or writes is None or _has_returned(writes) else failure

    def __iter__(self) -> Iterator[Any]:
        failure = self._find_failure()
        return super().__iter__() if failure is None else iter(failure)

    def __getitem__(self, index: Any) -> Any:
        failure = self._find_failure()
        return super().__getitem__(index) if failure is None else failure[index]


def _from(writes: Writes, start: int) -> list[tuple[str, Any]]:
    """The writes from index `start`; if another thread clears them meanwhile, those that were read before."""
    found: list[tuple[str, Any]] = []
    with suppress(IndexError):
        found.extend(writes[index] for index in range(start, len(writes)))
    return found


def _failure(writes: Writes) -> tuple[str, Any] | None:
    """The failure of the task with these writes, which LangGraph puts at their end; None if it has not failed."""
    try:
        for index in (-1, -2):
            write = writes[index]
            if type(write) is tuple and write[0] == ERROR:
                return write
    except IndexError:
        pass
    return None


def _has_returned(writes: Writes) -> bool:
    """Whether LangGraph has added writes for the result of the task; errors and interrupts do not count."""
    channels = (write[0] for write in _from(writes, 0) if type(write) is tuple)
    return any(channel not in WRITES_IDX_MAP and not channel.startswith("__error") for channel in channels)


# --- the tasks of a superstep ----------------------------------------------------------------------------------------


class TaskView:
    """The files as one task sees them: as they were when the superstep began, with the writes of the task.

    All of it is derived from the task's writes, so a retry, which clears them, discards the changes of the failed
    attempt. The object lives as long as these writes.
    """

    def __init__(self, run: "GraphRun", channel: Channel, writes: Writes, step: int | None, name: str) -> None:
        self.run = run
        self.key: int = id(writes)
        self.step = step
        self.name = name
        self._channel: Channel | None = channel
        self._writes = ref(writes, self._end)
        self._forget()

    def _forget(self) -> None:
        self._own: Channel | None = None
        self._reducer: Superstep | None = None
        self._taken = 0
        self._last: object = None
        self._directories: Directories | None = None
        self._overwritten = False
        self.changes: dict[str, RecordedChange] = {}
        self._log = StepLog()

    def _end(self, _: object) -> None:
        self._channel = None
        self._forget()
        _ended.append(self)

    def belongs_to(self, writes: Writes) -> bool:
        """Whether `writes` are the writes of this task."""
        return self._writes() is writes

    def read_writes(self) -> list[Any]:
        """The values that the task has written to the files channel."""
        writes = self._writes()
        return [] if writes is None else [value for channel, value in _from(writes, 0) if channel == FILES]

    @property
    def files(self) -> Mapping[str, Any]:
        """The stored files by path. The next write may change the mapping."""
        if self._reducer is not None:
            return self._reducer.files
        channel = self._own or self._channel
        return channel.get() or {} if channel is not None and channel.is_available() else {}

    @property
    def directories(self) -> Directories:
        """The directories above the files. The writes of the task keep them up to date."""
        if self._directories is None:
            self._directories = Directories(self.files)
        return self._directories

    @property
    def log(self) -> StepLog:
        """The operations of the task."""
        return self._log if self._reducer is None else self._reducer.log

    def catch_up(self) -> None:
        """Apply the writes of the task since the last call."""
        writes = self._writes()
        if writes is None or self._channel is None or self._is_up_to_date(writes):
            return
        if self._are_void(writes):
            self._forget()
        new = _from(writes, self._taken)
        if any(isinstance(value, Overwrite) for _, value in new):
            self._forget()
            self._overwritten, new = True, _from(writes, 0)
        if new:
            self._taken, self._last = self._taken + len(new), new[-1]
            self._take([value for channel, value in new if channel == FILES], self._channel)

    def _is_up_to_date(self, writes: Writes) -> bool:
        with suppress(IndexError):
            return len(writes) == self._taken and (not writes or writes[-1] is self._last)
        return False

    def _are_void(self, writes: Writes) -> bool:
        """Whether the applied writes are void: a retry has cleared them, or the task has failed.

        An `Overwrite` changes the effect of the other writes, so all are then applied together, as LangGraph does.
        """
        if not self._taken:
            return False
        last = next(iter(_from(writes, self._taken - 1)), None)
        return self._overwritten or last is not self._last or _failure(writes) is not None

    def _take(self, values: list[Any], channel: Channel) -> None:
        if values and not self._overwritten and getattr(channel, "reducer", None) is fold:
            # In place, so that the cost does not grow with the number of files.
            if self._reducer is None:
                self._reducer = Superstep(self.files, self.step)
            for value in values:
                self._reducer.apply(value or {}, self.name)
        elif values:
            own = self._own = self._own or channel.copy()
            own.update(values)
        for value in values:
            if isinstance(value, Mapping):
                self._note(value)

    def _note(self, write: Mapping[str, Any]) -> None:
        operation = operation_in(write)
        if operation is not None:
            self.changes.update(operation.paths)
            if self._reducer is None:
                self._log.enter(operation)
        if self._directories is not None:
            for path in write:
                if path in self.files:
                    self._directories.add(path)
                elif not is_header(path):
                    self._directories.discard(path)


class GraphRun:
    """The tasks of one run of a graph, with the lock under which they read and write its files."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.lock: Final = ForkSafeLock()
        self.tasks: dict[int, TaskView] = {}
        self.is_checked = False
        """Whether the channel is known to keep files."""

    def siblings(self, task: TaskView) -> list[TaskView]:
        """The other tasks of the same superstep that used the files, up to date."""
        siblings = [other for other in self.tasks.copy().values() if other is not task and other.step == task.step]
        for sibling in siblings:
            sibling.catch_up()
        return siblings


_runs: dict[int, GraphRun] = {}
_runs_lock = ForkSafeLock()
_ended: "deque[TaskView]" = deque()
"""Tasks to drop. A task ends when its writes are garbage-collected, which can happen anywhere, so no lock is taken."""


def task_of(channel: Channel, writes: Writes, step: int | None, name: str = "") -> TaskView:
    """The `TaskView` with these writes, created if there is none. The channel identifies the run."""
    with _runs_lock:
        while _ended:
            _drop(_ended.popleft())
        run = _runs.get(id(channel))
        if run is None:
            run = _runs[id(channel)] = GraphRun(id(channel))
        task = run.tasks.get(id(writes))
        if task is None or not task.belongs_to(writes):
            task = run.tasks[id(writes)] = TaskView(run, channel, writes, step, name)
        return task


def writers(run: int) -> dict[int, str]:
    """The names of the tasks that wrote to the files channel with the id `run`, by the ids of the written values."""
    known = _runs.get(run)
    return (
        {id(value): task.name for task in known.tasks.copy().values() for value in task.read_writes()} if known else {}
    )


def _drop(task: TaskView) -> None:
    if task.run.tasks.get(task.key) is task:
        del task.run.tasks[task.key]
    if not task.run.tasks and _runs.get(task.run.key) is task.run:
        del _runs[task.run.key]


# --- the files of the running task -----------------------------------------------------------------------------------


class TaskFiles:
    """The files that the running task reads and changes, within `with`, which locks them.

    A read costs only the new writes of the task, and the writes of its siblings, other tasks of the same superstep, are
    known.
    """

    def __init__(self, running: RunningTask, task: TaskView, *, merges: bool) -> None:
        self._running = running
        self._task = task
        self._merges = merges

    def __enter__(self) -> Self:
        self._task.run.lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._task.run.lock.release()

    @property
    def files(self) -> Mapping[str, Any]:
        """The stored files by path, with the writes of the task applied. The next write may change the mapping."""
        self._task.catch_up()
        return self._task.files

    @property
    def directories(self) -> Directories:
        """The directories that the files imply."""
        self._task.catch_up()
        return self._task.directories

    def commit(self, changes: Sequence[Change], file_format: FileFormat = "v2") -> None:
        """Write the changes as one operation. It takes effect as a whole, or not at all: `file_conflicts` reports that.

        Raises ConflictError if a task of the same superstep changed the same place of a file, AlreadyExistsError if it
        created the file, BackendError if the running task has ended. Nothing is written then.
        """
        if not changes:
            return
        running = self._running
        self._task.catch_up()
        earlier = self._task.changes
        paths = {
            each.path: next_change(earlier.get(each.path), _base(each), _version(each.after), _places(each))
            for each in changes
        }
        operation = WriteOperation(paths, running.task, running.step, running.node)
        if running.is_over:
            raise BackendError(changes[0].path, _ENDED)
        self._check(operation)
        header = header_of(operation)
        write: dict[str, Any] = {header: None}
        for change in changes:
            write[change.path] = change.after and encode_file(change.after, file_format, change.path)
        sent = [ProvisionalWrite(FILES, write, running.writes)]
        if CONFLICTS in running.channels:
            sent.append(ProvisionalWrite(CONFLICTS, header, running.writes))
        running.send(sent)
        if (not _is_last(sent[0], running.writes) or running.is_over) and not running.has_taken(write):
            for each in sent:
                with suppress(ValueError):
                    running.writes.remove(cast("Any", each))
            raise BackendError(changes[0].path, _ENDED)

    def _check(self, operation: WriteOperation) -> None:
        """Raise if `operation` conflicts with the writes of other tasks."""
        seen = operation.as_seen_by_siblings(mergeable=self._merges)
        for sibling in self._task.run.siblings(self._task):
            for path in sibling.log.collisions(seen):
                created = seen.paths[path].kind == "create" and path in sibling.changes
                raise AlreadyExistsError(path) if created else ConflictError(path)

    def wrote_elsewhere(self, path: str, result: str | None) -> bool:
        """Whether a task of the same superstep wrote the version `result`."""
        changes = (sibling.changes.get(path) for sibling in self._task.run.siblings(self._task))
        return any(change is not None and change.result == result for change in changes)


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
    channel = running.channels.get(FILES)
    if channel is None:
        raise RuntimeError(_NO_CHANNEL)
    task = task_of(channel, running.writes, running.step, running.task)
    if not task.run.is_checked and not _keeps_files(channel):
        raise RuntimeError(_LOSING.format(kind=type(channel).__name__))
    task.run.is_checked = True
    return TaskFiles(running, task, merges=getattr(channel, "reducer", None) is fold)


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
        changed = [path for path in sorted({*given, *made}) if given.get(path) != made.get(path)]
        return [path for path in changed if not _adopt(task, path, given.get(path), made.get(path))]


def _adopt(task: TaskFiles, path: str, given: Any, made: Any) -> bool:
    """Write one file. Returns whether that succeeded."""
    here = task.files.get(path)
    change = _change(path, given, made, here)
    if change is None:
        return False
    try:
        task.commit([change], "v1" if made and isinstance(made["content"], list) else "v2")
    except (ConflictError, AlreadyExistsError):
        return task.wrote_elsewhere(path, _version(change.after))
    return True


def _change(path: str, given: Any, made: Any, here: Any) -> Change | None:
    """The change that applies the difference between `given` and `made` to the file `here`; None on a conflict."""
    before, after = stored_file(here, path), stored_file(made, path)
    if made is not None and after is None:
        return None
    if stored_version(here, path) in (stored_version(given, path), stored_version(made, path)):
        return Change(path, before, after, _difference(before, after), here)
    base = stored_file(given, path)
    if base is None or after is None or before is None or {base.encoding, after.encoding, before.encoding} != {"utf-8"}:
        return None
    text = merge_texts(base.content, after.content, before.content)
    if text is None:
        return None
    merged = FileDataV2(text, "utf-8", before.created_at, after.modified_at, after.mime_type)
    return Change(path, before, merged, _difference(before, merged), here)


def _difference(before: FileDataV2 | None, after: FileDataV2 | None) -> Any:
    if before is None or after is None or before.encoding != "utf-8" or after.encoding != "utf-8":
        return None
    return difference(before.content, after.content)
