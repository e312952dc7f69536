"""Files that a graph changed which a task of another graph ran: taken over into the state of the other one."""

from collections.abc import Iterator, Mapping
from typing import Any

from deepfs.backends._langgraph import TaskFiles, task_files
from deepfs.core.differences import difference, joined
from deepfs.core.filedata import decode_file
from deepfs.core.filemap import Change
from deepfs.core.fold import version_of
from deepfs.errors import ConflictError, ExistsError
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
    change = _change(path, *(value and decode_file(value, path) for value in (given, made, here)))
    if change is None:
        return False
    try:
        task.commit([change], _format(made))
    except (ConflictError, ExistsError):
        return False
    return True


def _change(path: str, given: FileDataV2 | None, made: FileDataV2 | None, here: FileDataV2 | None) -> Change | None:
    """The change of the file as it is `here` that does what made `made` of `given`; None where it collides."""
    if _same(here, given) or _same(here, made):
        return Change(path, here, made, _difference(here, made))
    if given is None or made is None or here is None or {given.encoding, made.encoding, here.encoding} != {"utf-8"}:
        return None
    text = joined(given.content, made.content, here.content)
    if text is None:
        return None
    after = FileDataV2(text, "utf-8", here.created_at, made.modified_at, made.mime_type)
    return Change(path, here, after, _difference(here, after))


def _same(one: FileDataV2 | None, other: FileDataV2 | None) -> bool:
    if one is None or other is None:
        return one is other
    return version_of(one) == version_of(other)


def _difference(before: FileDataV2 | None, after: FileDataV2 | None) -> Any:
    if before is None or after is None or before.encoding != "utf-8" or after.encoding != "utf-8":
        return None
    return difference(before.content, after.content)


def _format(made: Any) -> FileFormat:
    return "v1" if made and isinstance(made["content"], list) else "v2"
