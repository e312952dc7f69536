"""The files as the running task sees and changes them: those of the state, overlaid with the writes of the task.

It is imported when it is first needed: importing LangGraph takes over a second.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Self, cast

from deepfs._langgraph.private import RunningTask, empty_channel, running_task
from deepfs._langgraph.reducers import (
    Places,
    RecordedChange,
    WriteOperation,
    fold,
    header_of,
    next_change,
    stored_file,
    stored_version,
    version_of,
)
from deepfs._langgraph.superstep_log import FILES, Channel, ProvisionalWrite, Task, Writes, task_of
from deepfs.errors import AlreadyExistsError, BackendError, ConflictError
from deepfs.text.diff import difference, merge_texts
from deepfs.text.flat_tree import Change, Directories
from deepfs.text.records import encode_file
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


class TaskFiles:
    """The files that the running task reads and changes, within `with`, which locks them.

    A read costs only the new writes of the task, and the writes of its siblings, other tasks of the same superstep, are
    known.
    """

    def __init__(self, running: RunningTask, task: Task, *, merges: bool) -> None:
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
        paths = {change.path: self._next_change(change) for change in changes}
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

    def _next_change(self, change: Change) -> RecordedChange:
        earlier = self._task.changes.get(change.path)
        return next_change(earlier, _base(change), _version(change.after), _places(change))

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
