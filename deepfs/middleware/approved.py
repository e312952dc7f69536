"""Changes that a person approved: made only if the files are still as they were when the person saw the change."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Final, NamedTuple

from deepfs.backends.protocol import BackendProtocol
from deepfs.errors import (
    BinaryFileError,
    ConflictError,
    DeepFSError,
    ErrorCode,
    InvalidContentError,
    InvalidPathError,
)
from deepfs.sync import in_thread_if_large
from deepfs.text import paths
from deepfs.text.diff import join_edits, line_changes
from deepfs.text.edits import Replacement, replace, replace_each
from deepfs.text.entries import TreeListing
from deepfs.text.lines import digest
from deepfs.types import DeleteResult, EditResult, ReadResult, ResultT, WriteResult, error_from, failure

ABSENT: Final = ""
"""The version of a path at which nothing is."""
WHOLE_FILE: Final = 2**31 - 1
"""The `limit` of a read of all lines."""
_TREE: Final = "tree:"
_ATTEMPTS: Final = 20


class Approval(NamedTuple):
    """What a person was shown of a call."""

    versions: Mapping[str, str]
    """The version that each path had."""
    lines: Mapping[str, str]
    """By path, a digest of the lines that the call removes and adds."""
    is_shared: bool = False
    """Whether other calls of the same turn change the same files, so that versions may differ by those changes."""


_current: ContextVar[Approval | None] = ContextVar("deepfs_approval", default=None)


@contextmanager
def hold_to(approval: Approval | None) -> Iterator[None]:
    """Hold the changes in the block, in this task, to what the person was shown."""
    token = _current.set(approval)
    try:
        yield
    finally:
        _current.reset(token)


def shown_version(path: str) -> str | None:
    """The version of the file when the person was asked; None if the path was not shown."""
    approval = _current.get()
    if approval is None:
        return None
    try:
        return approval.versions.get(paths.normalize(path))
    except InvalidPathError:
        return None


def shown_versions() -> Mapping[str, str] | None:
    """The versions of all that a person was shown of this call; None if nobody was."""
    approval = _current.get()
    return None if approval is None or not approval.versions else approval.versions


class ChangedSinceApprovalError(ConflictError):
    """The file changed after the person was asked."""

    _text = "File {path} changed after a person was asked about this call, and stays as it is"


def _explain_conflict(result: ResultT, path: str, code: ErrorCode = ErrorCode.CONFLICT) -> ResultT:
    """`result`; if it failed with `code`, because the file changed after the person was asked, with a text for that."""
    return failure(type(result), ChangedSinceApprovalError(path)) if result.code is code else result


async def write_as_approved(backend: BackendProtocol, path: str, content: str, *, overwrite: bool) -> WriteResult:
    """`awrite`; if a person approved it, only if the file is as the person saw it."""
    version = shown_version(path)
    if version is None or not overwrite:
        return await backend.awrite(path, content, overwrite=overwrite)
    if version == ABSENT:
        return _explain_conflict(await backend.awrite(path, content), path, ErrorCode.ALREADY_EXISTS)
    return _explain_conflict(await backend.awrite(path, content, overwrite=True, if_match=version), path)


async def edit_as_approved(backend: BackendProtocol, path: str, old: str, new: str, replace_all: bool) -> EditResult:
    """`aedit`; if a person approved it, only if the file is as the person saw it.

    Where several calls of one turn edit the file, it may differ from that if the edit removes and adds the same lines.
    """
    version = shown_version(path)
    if version is None:
        return await backend.aedit(path, old, new, replace_all)
    for _ in range(_ATTEMPTS):
        result = await backend.aedit(path, old, new, replace_all, if_match=version or _TREE)
        read = await backend.aread(path, 0, WHOLE_FILE) if result.code is ErrorCode.CONFLICT else ReadResult()
        if read.version is None or not _makes_shown_change(path, read, old, new, replace_all):
            break
        version = read.version
    return _explain_conflict(result, path)


async def edit_each_as_approved(
    backend: BackendProtocol, path: str, edits: Sequence[tuple[str, str, bool]]
) -> tuple[EditResult, int]:
    """Make all of these edits of a file, each `old`, `new` and `replace_all`, one after the other, or none.

    They are joined to one, so they are merged with other changes of the file, and approved, as any edit. Returns the
    result, and the number of the edit that does not fit the file, from 1; 0 if it is none of them.
    """
    result = EditResult()
    for _ in range(_ATTEMPTS):
        read = await backend.aread(path, 0, WHOLE_FILE)
        if read.error is not None or read.file_data is None:
            return failure(EditResult, error_from(read)), 0
        if read.file_data.encoding == "base64":
            return failure(EditResult, BinaryFileError(path)), 0
        before, made = read.file_data.content, list[Replacement]()
        work = len(before) * len(edits)
        try:
            await in_thread_if_large(work, partial(made.extend, replace_each(path, before, edits)))
        except DeepFSError as error:
            return failure(EditResult, error), len(made) + 1
        occurrences = sum(each.occurrences for each in made)
        if made[-1].content == before:
            return failure(EditResult, InvalidContentError(None, "The edits together change nothing.")), 0
        old, new = await in_thread_if_large(work, partial(join_edits, before, made[-1].content))
        result = await edit_as_approved(backend, path, old, new, replace_all=False)
        if result.error is None:
            return EditResult(path=result.path, occurrences=occurrences), 0
        if result.code not in (ErrorCode.NO_MATCH, ErrorCode.AMBIGUOUS_MATCH):  # The file changed after it was read.
            break
    return result, 0


def _makes_shown_change(path: str, read: ReadResult, old: str, new: str, replace_all: bool) -> bool:
    if read.file_data is None or read.file_data.encoding == "base64":
        return False
    before = read.file_data.content
    try:
        return is_shown_change(path, read.version, before, replace(path, before, old, new, replace_all).content)
    except DeepFSError:
        return False


def is_shown_change(path: str, version: str | None, before: str, after: str) -> bool:
    """Whether a change of this version of the file is the one that the person saw; True if the path was not shown.

    Where several calls of one turn change the file, a change of another version is the same if its lines are.
    """
    approval, shown = _current.get(), shown_version(path)
    if approval is None or shown is None or shown == version:
        return True
    return approval.is_shared and approval.lines.get(paths.normalize(path)) == lines_digest(before, after)


def lines_digest(before: str, after: str) -> str:
    """A digest of the lines in which two texts differ, wherever these lines are."""
    old, new = before.split("\n"), after.split("\n")
    hashed = digest()
    for change in line_changes(old, new):
        removed, added = old[change.start : change.end], new[change.new_start : change.new_end]
        hashed.update(f"{_sign_lines('-', removed)}{_sign_lines('+', added)}".encode())
    return hashed.hexdigest()


def _sign_lines(sign: str, lines: Sequence[str]) -> str:
    return sign + f"\n{sign}".join(lines) + "\n" if lines else ""


async def delete_as_approved(backend: BackendProtocol, path: str) -> DeleteResult:
    """`adelete`; if a person approved it, only if the file or the list of files is as the person saw it."""
    version = shown_version(path)
    if not version:
        return await backend.adelete(path)
    if not version.startswith(_TREE):
        return _explain_conflict(await backend.adelete(path, if_match=version), path)
    error = await _difference(backend, path)
    return await backend.adelete(path) if error is None else failure(DeleteResult, error)


async def move_as_approved(backend: BackendProtocol, source: str, destination: str, *, overwrite: bool) -> WriteResult:
    """`amove`; if a person approved it, only if both paths are as the person saw them.

    The versions are checked just before the move, and not with it.
    """
    for path in (source, destination):
        error = await _difference(backend, path)
        if error is not None:
            return failure(WriteResult, error)
    if overwrite and shown_version(destination) == ABSENT:
        result = await backend.amove(source, destination)
        return _explain_conflict(result, destination, ErrorCode.ALREADY_EXISTS)
    return await backend.amove(source, destination, overwrite=overwrite)


async def _difference(backend: BackendProtocol, path: str) -> DeepFSError | None:
    """The error if what is at `path` differs from what the person saw."""
    shown = shown_version(path)
    if shown is None:
        return None
    try:
        present = await _version(backend, path)
    except DeepFSError as error:
        return error
    return None if present == shown else ChangedSinceApprovalError(path)


async def _version(backend: BackendProtocol, path: str) -> str | None:
    read = await backend.aread(path, 0, 1)
    if read.code is ErrorCode.IS_DIRECTORY:
        return tree_version(await backend.alist_tree(path))
    if read.ok and read.version is None:  # A foreign backend tells no version of a part.
        read = await backend.aread(path, 0, WHOLE_FILE)
    return ABSENT if read.code is ErrorCode.FILE_NOT_FOUND else read.version


def tree_version(listing: TreeListing) -> str:
    """A digest of the names and sizes in a directory."""
    hashed = digest()
    for entry in listing.entries:
        hashed.update(f"{entry.kind} {entry.size} {entry.path}\0".encode("utf-8", "surrogatepass"))
    return _TREE + hashed.hexdigest()
