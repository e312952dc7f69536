"""Files that a graph changed which a task of another graph ran: taken over into the state of the other one."""

from collections.abc import Iterator, Mapping
from typing import Any

from deepfs.errors import AlreadyExistsError, ConflictError, DeepFSError
from deepfs.langgraph.private import TaskFiles, task_files
from deepfs.langgraph.reducers import stored_version
from deepfs.text.diff import difference, joined
from deepfs.text.flat_tree import Change
from deepfs.text.records import decode_file
from deepfs.types import FileDataV2, FileFormat

__all__ = ["adopt_files"]


def adopt_files(given: Mapping[str, Any], made: Mapping[str, Any]) -> list[str]:
    """Write to the files of the running task what a graph made of them, and return the paths that it could not.

    `given` are the files that the graph began with, `made` those that it ended with. Where the task, or a parallel
    one, changed a file meanwhile, edits in disjoint lines are merged; else the file stays as it is.
    """
    with task_files() as task:
        return [path for path in _changed(given, made) if not _adopt(task, path, given.get(path), made.get(path))]


def _changed(given: Mapping[str, Any], made: Mapping[str, Any]) -> Iterator[str]:
    return (path for path in sorted({*given, *made}) if given.get(path) != made.get(path))


def _adopt(task: TaskFiles, path: str, given: Any, made: Any) -> bool:
    """Write one file; whether that went well."""
    here = task.files.get(path)
    change = _change(path, given, made, here)
    if change is None:
        return False
    try:
        task.commit([change], _format(made))
    except (ConflictError, AlreadyExistsError):
        return False
    return True


def _change(path: str, given: Any, made: Any, here: Any) -> Change | None:
    """The change of the file as it is `here` that does what made `made` of `given`; None where it collides."""
    before, after = _file(path, here), _file(path, made)
    if made is not None and after is None:
        return None
    if stored_version(here, path) in (stored_version(given, path), stored_version(made, path)):
        return Change(path, before, after, _difference(before, after), here)
    base = _file(path, given)
    if base is None or after is None or before is None or {base.encoding, after.encoding, before.encoding} != {"utf-8"}:
        return None
    text = joined(base.content, after.content, before.content)
    if text is None:
        return None
    merged = FileDataV2(text, "utf-8", before.created_at, after.modified_at, after.mime_type)
    return Change(path, before, merged, _difference(before, merged), here)


def _file(path: str, value: Any) -> FileDataV2 | None:
    """The file that is stored as `value`; None where it is none."""
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
