"""Patches of several files: what they do is planned as a whole, and then done as a whole or not at all."""

from base64 import b64decode
from collections.abc import Sequence
from functools import partial
from typing import Final, Literal, NamedTuple

from deepfs.backends.protocol import BackendProtocol, offers_move
from deepfs.errors import DeepFSError, ErrorCode, error_about, error_of
from deepfs.middleware.approved import ABSENT, WHOLE_FILE, ChangedSinceApprovalError, is_shown_change
from deepfs.middleware.rendering import Advisor, plain_error
from deepfs.storage.gathering import gather
from deepfs.sync import in_thread_if_large, run_shielded
from deepfs.text import paths
from deepfs.text.entries import EntryChange
from deepfs.text.lines import BOM, version
from deepfs.text.patches import Action, FilePatch, PatchError, apply_hunks
from deepfs.text.unified import apply_numbered
from deepfs.text.visible import display_path, one_line
from deepfs.types import ReadResult, Result

__all__ = ["FileChange", "apply_patches", "plan_changes"]

_ATTEMPTS: Final = 5
"""How often a patch is planned anew because a file changed meanwhile."""
_LINE: Final = 20
"""The characters of a text that take as long as a line of a hunk."""
_ORDER: Final[dict[Action, int]] = {"add": 0, "update": 0, "delete": 1}
_DONE: Final[dict[Action, str]] = {"add": "Added", "update": "Updated", "delete": "Deleted"}


class FileChange(NamedTuple):
    """What a patch does with a file, which it found at `version`."""

    action: Action
    path: str
    version: str
    before: str = ""
    """The text; base64 if `is_binary`."""
    after: str = ""
    move_to: str | None = None
    is_binary: bool = False
    is_fuzzy: bool = False
    is_executable: bool | None = None
    """Whether the file can be run afterwards; None if that stays as it is."""
    mode: int | None = None
    """The mode bits of an updated file, if `is_executable` may change them."""

    @property
    def end(self) -> str:
        """Where the file is afterwards."""
        return self.move_to or self.path


async def apply_patches(backend: BackendProtocol, patches: Sequence[FilePatch]) -> str:
    """Apply patches to the files of a backend, all or none, and return what they did, one line for each file.

    Raises PatchError if they cannot be applied.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        changes = await plan_changes(backend, patches)
        # A change that has begun is made or undone as a whole, even if the call is cancelled.
        failed = await run_shielded(partial(_commit, backend, changes))
        if failed is None:
            return await _report(backend, changes)
        if failed.code is not ErrorCode.CONFLICT or failed.leftovers or attempt == _ATTEMPTS:
            raise PatchError(failed.text)
    raise AssertionError("the last attempt returns or raises")


async def _report(backend: BackendProtocol, changes: Sequence[FileChange]) -> str:
    rows = [
        (_DONE[change.action] if _steps(change) else "Left as it is:")
        + f" {display_path(change.path)}"
        + (f", now {display_path(change.move_to)}" if change.move_to else "")
        + (" [matched only without regard to white space: look at it]" if change.is_fuzzy else "")
        + (await _mode_note(backend, change) if change.is_executable is not None else "")
        for change in changes
    ]
    return "\n".join(rows)


async def _mode_note(backend: BackendProtocol, change: FileChange) -> str:
    """What the report says of a file whose mode could not be kept."""
    mode = await _mode(backend, change.end)
    is_kept = mode is not None and bool(mode & 0o111) == change.is_executable
    return "" if is_kept else " [whether it can be run is not kept here]"


async def _mode(backend: BackendProtocol, path: str) -> int | None:
    return next((entry.mode for entry in (await backend.alist_tree(path)).entries if entry.path == path), None)


# --- planning ---


async def plan_changes(backend: BackendProtocol, patches: Sequence[FilePatch]) -> list[FileChange]:
    """Read the files and compute what the patch makes of them. Raises PatchError with all that stands against it."""
    planned = await gather([partial(_plan_or_explain, backend, patch) for patch in patches])
    changes = [each for each in planned if isinstance(each, FileChange)]
    problems = [*await _find_duplicates(backend, patches), *(each for each in planned if isinstance(each, str))]
    if problems:
        raise PatchError("Nothing was changed. " + "\n".join(problems))
    return changes


async def _find_duplicates(backend: BackendProtocol, patches: Sequence[FilePatch]) -> list[str]:
    """What stands against files that are named twice: each part is planned by what the files hold before the patch."""
    named: dict[str, list[str]] = {}
    try:
        normal = [paths.normalize(path) for patch in patches for path in (patch.path, patch.move_to) if path]
        for path, real in zip(normal, await backend.aresolve_paths(normal), strict=True):
            named.setdefault(real or path, []).append(display_path(path))
    except DeepFSError:  # It is told with what else stands against the patch.
        return []
    problems = []
    for first, *others in named.values():
        if others:
            links = "".join(f", also as {name}" for name in dict.fromkeys(others) if name != first)
            advice = "give all its changes under one header, or in several patches."
            problems.append(f"{first} is named {len(others) + 1} times{links}: {advice}")
    return problems


async def _plan_or_explain(backend: BackendProtocol, patch: FilePatch) -> FileChange | str:
    try:
        return await _plan(backend, patch)
    except DeepFSError as error:
        tool = "delete" if patch.action == "delete" else "apply_patch"
        text = await _advise(backend, tool, error, patch.path, patch.move_to or "")
        return one_line(text, 1_000)
    except PatchError as error:
        return one_line(str(error), 1_000)


async def _advise(backend: BackendProtocol, tool: str, error: DeepFSError, *paths: str) -> str:
    """An error, and what to do; which other tools the model has is not known here."""
    text = await Advisor(backend, ()).advise(tool, error, *paths)
    return plain_error(text)


async def _plan(backend: BackendProtocol, patch: FilePatch) -> FileChange:
    path = paths.normalize(patch.path)
    read = await backend.aread(path, 0, WHOLE_FILE)
    if patch.action == "add":
        return await _addition(backend, path, patch, read)
    before, is_binary = _extract_content(read, patch)
    changed = FileChange(patch.action, path, _version(read, before), before, is_binary=is_binary)
    if patch.action == "update" or patch.exact is not None:
        changed = await _apply_hunks(changed, patch)
    if patch.action == "delete" and changed.after:
        raise PatchError(f"{display_path(path)} has more than the patch removes, so it is not deleted.")
    if patch.move_to is not None:
        changed = changed._replace(move_to=await _free(backend, paths.normalize(patch.move_to)))
    if patch.is_executable is not None:
        changed = changed._replace(is_executable=patch.is_executable, mode=await _mode(backend, path))
    if not is_shown_change(path, changed.version, changed.before, changed.after):
        raise ChangedSinceApprovalError(path)
    return changed


def _extract_content(read: ReadResult, patch: FilePatch) -> tuple[str, bool]:
    """The content of a file, and whether it is binary. A unified diff shows a BOM, which a read leaves out."""
    data = _check_read(read).file_data
    content = data.content if data else ""
    is_marked = patch.exact is not None and version(BOM + content) == read.version
    return BOM * is_marked + content, data is not None and data.encoding == "base64"


async def _addition(backend: BackendProtocol, path: str, patch: FilePatch, read: ReadResult) -> FileChange:
    # What rules forbid to read may still be created; then it turns out whether something is there.
    if read.code not in (ErrorCode.FILE_NOT_FOUND, ErrorCode.PERMISSION_DENIED):
        _check_read(read)
        raise PatchError(f"{display_path(path)} is there already. Use '*** Update File:', or delete it before.")
    added = FileChange("add", path, ABSENT, after=patch.content, is_executable=patch.is_executable)
    if patch.copy_of is None:
        return added
    source = paths.normalize(patch.copy_of)
    content, is_binary = _extract_content(await backend.aread(source, 0, WHOLE_FILE), patch)
    copied = await _apply_hunks(FileChange("update", source, ABSENT, content, is_binary=is_binary), patch)
    if is_binary:
        raise PatchError(f"{display_path(source)} is binary. Only text files can be copied by a patch.")
    mode = await _mode(backend, source)
    runs = patch.is_executable is None and mode is not None and bool(mode & 0o111)
    return added._replace(after=copied.after, is_executable=runs or patch.is_executable)


async def _apply_hunks(change: FileChange, patch: FilePatch) -> FileChange:
    """`change` with the text that the hunks make."""
    shown, before = display_path(change.path), change.before
    if change.is_binary:
        if patch.hunks or patch.exact or patch.action == "delete":
            raise PatchError(f"{shown} is binary. Only text files can be patched.")
        return change._replace(after=before)
    if patch.exact is None:
        apply, lines = partial(apply_hunks, shown, before, patch.hunks), [len(hunk.lines) for hunk in patch.hunks]
    else:
        apply, lines = partial(apply_numbered, shown, before, patch.exact), [len(hunk.new) for hunk in patch.exact]
    patched = await in_thread_if_large(len(before) + _LINE * sum(lines), apply)
    return change._replace(after=patched.text, is_fuzzy=patched.fuzzy > 0)


async def _free(backend: BackendProtocol, path: str) -> str:
    """Return the path of a move, if nothing is there."""
    if not offers_move(backend):
        raise PatchError("Files cannot be moved here. Add the new file and delete the old one.")
    read = await backend.aread(path, 0, 1)
    if read.code not in (ErrorCode.FILE_NOT_FOUND, ErrorCode.PERMISSION_DENIED):
        raise PatchError(f"{display_path(path)} is there already. Move to another path, or delete it before.")
    return path


def _check_read(read: ReadResult) -> ReadResult:
    if read.error is not None:
        raise error_of(read.code or ErrorCode.BACKEND_ERROR, read.error)
    return read


def _version(read: ReadResult, before: str) -> str:
    return version(before) if read.version is None else read.version


# --- changing the files ---


class _Failure(NamedTuple):
    code: ErrorCode | None
    text: str
    leftovers: list[str]
    """What could not be restored."""


async def _commit(backend: BackendProtocol, changes: Sequence[FileChange]) -> _Failure | None:
    """Change the files; if one fails, restore those before it."""
    steps = [step for change in sorted(changes, key=lambda change: _ORDER[change.action]) for step in _steps(change)]
    for number, step in enumerate(steps):
        result = await step.run(backend)
        if result.error is not None:
            return await _restore(backend, step, result, steps[:number])
    return None


def _reason(failed: "_PatchStep", result: Result) -> str:
    """Why a step failed, in words that fit a patch: what the error advises is for other tools."""
    change = failed.change
    if result.code is ErrorCode.ALREADY_EXISTS:
        return f"{display_path(change.move_to or change.path)} is there already"
    if result.code is ErrorCode.CONFLICT:
        return f"{display_path(change.path)} changed meanwhile"
    return one_line(plain_error(result.error or ""), 1_000).removesuffix(".")


async def _restore(
    backend: BackendProtocol, failed: "_PatchStep", result: Result, done: "Sequence[_PatchStep]"
) -> _Failure:
    leftovers: dict[str, str] = {}
    for step in reversed(done):
        if step.path in leftovers:  # It is still at its new path, which is told.
            continue
        outcome = await step.undo(backend)
        if outcome.error is not None:
            now = (
                f", now {display_path(step.change.move_to or '')}"
                if step.kind != "write" and step.change.move_to
                else ""
            )
            leftovers[step.path] = f"{display_path(step.path)}{now} ({one_line(outcome.error)})"
    state = f"Could not be restored: {', '.join(leftovers.values())}. Read them" if leftovers else "No file is changed"
    text = f"The patch failed at {display_path(failed.path)}: {_reason(failed, result)}. {state}."
    if not leftovers and result.code is not None:
        text = await _advise(backend, "apply_patch", error_about(result.code, None, text), failed.path)
    return _Failure(result.code, text, [*leftovers])


class _PatchStep(NamedTuple):
    """One operation on a file. Versions are those of the content, so the one after a write is known."""

    change: FileChange
    kind: Literal["write", "move", "mode"] = "write"

    @property
    def path(self) -> str:
        return self.change.path

    @property
    def _bom(self) -> str:
        return BOM if version(BOM + self.change.before) == self.change.version else ""

    async def run(self, backend: BackendProtocol) -> Result:
        change = self.change
        if self.kind == "move":
            return await backend.amove(change.path, change.end)
        if self.kind == "mode":
            mode = await _mode(backend, change.end)
            return await _set_mode(backend, change.end, mode, is_executable=bool(change.is_executable))
        if change.action == "add":
            return await backend.awrite(change.path, change.after)
        if change.action == "delete":
            return await backend.adelete(change.path, if_match=change.version)
        return await backend.awrite(change.path, self._bom + change.after, overwrite=True, if_match=change.version)

    async def undo(self, backend: BackendProtocol) -> Result:
        change = self.change
        if self.kind == "move":
            return await backend.amove(change.end, change.path)
        if self.kind == "mode":
            return await _set_mode(backend, change.end, change.mode)
        if change.action == "add":
            return await backend.adelete(change.path, if_match=version(change.after))
        if change.action == "delete":
            return await self._recreate(backend)
        made = version(self._bom + change.after)
        return await backend.awrite(change.path, self._bom + change.before, overwrite=True, if_match=made)

    async def _recreate(self, backend: BackendProtocol) -> Result:
        change = self.change
        if not change.is_binary:
            return await backend.awrite(change.path, self._bom + change.before)
        if (await backend.aread(change.path, 0, 1)).code is not ErrorCode.FILE_NOT_FOUND:
            return Result(error="a new file is there")
        [outcome] = await backend.aupload_files([(change.path, b64decode(change.before))])
        return Result(error=outcome.error)


async def _set_mode(
    backend: BackendProtocol, path: str, mode: int | None, *, is_executable: bool | None = None
) -> Result:
    """Set the mode bits of a file, if it has any: to `mode`, with who may read it allowed to run it or no one."""
    if mode is None:
        return Result()
    if is_executable is not None:
        mode = mode | (mode & 0o444) >> 2 if is_executable else mode & ~0o111
    [outcome] = await backend.achange_entries([EntryChange(path, "set_mode", mode)])
    return Result(error=outcome.error)


def _steps(change: FileChange) -> list[_PatchStep]:
    is_written = change.action != "update" or change.before != change.after
    steps = [(_PatchStep(change), is_written), (_PatchStep(change, "move"), change.move_to is not None)]
    steps.append((_PatchStep(change, "mode"), change.is_executable is not None))
    return [step for step, is_taken in steps if is_taken]
